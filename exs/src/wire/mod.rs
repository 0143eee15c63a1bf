//! F1: codecs, and nothing else.
//!
//! Each file holds one format: a `Repr` with public fields, `parse` from bytes (which never
//! panics, whatever the bytes) and `emit` into bytes, with the layout drawn above it and a test
//! vector below. What it must never know: connections, state, memory, time.

pub mod atomics;
pub mod ddp;
pub mod exs;
pub mod group;
pub mod mpa;
pub mod rdmap;
