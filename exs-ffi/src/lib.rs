//! The C face of EXS: `libexs` and `<sys/exs.h>` (an `unsafe` island).
//!
//! Each function of the header is an exported function here. It checks what C cannot promise,
//! finds the objects behind descriptors and handles, and calls the Rust API. `include/sys/exs.h`
//! is the manual, and a test holds this crate to it: layouts, constants, symbols.
//! `spec-notes/es-api.md` says what is verified, recollected or our own choice.
//!
//! Modules: `abi` has the types of the header, `ptr` the pointers of C callers, and `error` the
//! border that no panic crosses. `handles`, `memory`, `queues` and `sockets` are the tables
//! behind handles and descriptors. `event` makes `exs_event_t`s. The other files are the calls,
//! by family. `c/variadic.c` defines what Rust cannot: functions with `...`.
//!
//! # Why the uses of `unsafe` are sound
//! The exported functions are `unsafe`: their callers promise what the header demands. Pointers
//! arrive as [`ptr::In`] and [`ptr::Out`], which nothing else can make, so that promise covers
//! every use of one. Memory for operations becomes a `Buffer` of the raw layer, of which no Rust
//! reference is ever made here.
#![allow(unsafe_code)]
// The modules are private, but their functions are exported to C.
#![allow(unreachable_pub)]

pub mod abi;
mod accept;
mod arrivals;
mod atomic;
mod batch;
mod blocking;
mod close;
mod connect;
mod data;
#[cfg(test)]
mod data_path;
mod direct;
mod epoll;
mod epoll_set;
mod error;
mod event;
mod event_loop;
mod extension;
mod few;
mod files;
mod fork;
mod handles;
mod kernel;
mod late;
mod memory;
mod options;
mod pair;
mod path;
mod poll;
mod pollable;
pub mod ptr;
mod queues;
mod recent;
mod ring_end;
mod sockets;
mod tcp;
mod timeouts;
mod told;
mod watch;

pub use exs::VERSION;
