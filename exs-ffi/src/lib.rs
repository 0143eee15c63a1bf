//! The C face of EXS: `libexs` and `<sys/exs.h>` (an `unsafe` island).
//!
//! Each function of the header is an exported function here: it checks what C cannot
//! promise, finds the objects behind descriptors and handles, and makes a call of the
//! Rust API. `include/sys/exs.h` is the manual, and a test compares the layouts, constants and
//! symbols of this crate with it. `spec-notes/es-api.md` says which parts of the interface are verified,
//! recollected, or choices of this project.
//!
//! Modules: `abi` has the types of the header, `ptr` the pointers of C callers, and `error` the border
//! that no panic crosses. `handles`, `memory`, `queues` and `sockets` are the tables behind handles and
//! descriptors. The other files are the calls, by family; `direct` is the fast path of small sends on
//! TCP sockets, and `event` makes `exs_event_t`s. `c/variadic.c` has the functions with `...`, which
//! Rust cannot define.
//!
//! # Why the uses of `unsafe` are sound
//! The exported functions are `unsafe`: the caller promises what the header asks
//! for. Pointers arrive as [`ptr::In`] and [`ptr::Out`], which nothing else can make, so
//! that promise is behind every use of one. Memory for operations becomes a `Buffer` of
//! the raw layer, of which no Rust reference is ever made here.
#![allow(unsafe_code)]
// The modules are private, and their functions exported all the same: to C.
#![allow(unreachable_pub)]

pub mod abi;
mod accept;
mod blocking;
mod close;
mod connect;
mod data;
mod direct;
mod error;
mod event;
mod extension;
mod files;
mod fork;
mod handles;
mod kernel;
mod late;
mod memory;
mod options;
mod pair;
mod poll;
mod pollable;
pub mod ptr;
mod queues;
mod sockets;
mod tcp;
mod timeouts;
mod told;
mod watch;

pub use exs::VERSION;
