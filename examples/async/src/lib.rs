//! Programs of the asynchronous Rust world over EXS.
//!
//! What a program changes to leave TCP are the listener of its server and the connector of its
//! client. [The guide](../../docs/book/src/guide/programs.md) shows each of them.

pub mod resp;
pub mod store;

/// The programs of the guide compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/book/src/guide/programs.md")]
struct Guide;
