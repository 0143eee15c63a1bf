//! Extended Sockets: asynchronous, zero-copy sockets over RDMA, or over a software
//! RNIC where there is no device.
//!
//! A socket program says *what* moves; an RDMA NIC needs to know *where from*, *where
//! to* and *who pays for the buffer*. EXS keeps the socket's shape (connect, accept,
//! send, recv, shutdown, close) and adds the two things that a NIC needs: memory
//! registered ahead, and operations that complete later, as events on a queue.
//!
//! - [`Socket`]: streams and seqpackets. Every call has an asynchronous form, which
//!   takes an [`EventQueue`] and a [`Token`], and a blocking twin
//!   ([`Socket::blocking`]).
//! - [`SocketStream`]: a connected socket as an owned `Read + Write`.
//! - [`KernelSocket`]: the same calls on an ordinary kernel socket, whose peer knows
//!   nothing of EXS.
//! - [`MemoryRegion`] and [`Buffer`]: memory that is moved into operations and comes
//!   back with their events, so that safe code cannot touch it in between.
//! - [`EventQueue`], [`Event`] and [`Completion`]: exactly one event for each accepted
//!   operation, whatever happens to it, and what it brings; a file descriptor for epoll and its kin.
//! - [`Export`] and [`RemoteBuffer`]: one-sided RDMA READ and WRITE.
//! - [`Options`]: each with an environment variable for its default.
//! - [`counters`]: figures to tune with; [`transports`] and [`explain`]: what there is,
//!   and what would be chosen.
//!
//! ```
//! use exs::Socket;
//!
//! let listener = Socket::stream()?;
//! listener.bind("127.0.0.1:0".parse().unwrap())?;
//! listener.listen(8)?;
//! let addr = listener.local_addr()?;
//!
//! let client = std::thread::spawn(move || {
//!     let socket = Socket::stream()?;
//!     socket.blocking().connect(addr)?;
//!     socket.blocking().send_all(b"hello, world")?;
//!     socket.blocking().close()
//! });
//! let (server, peer) = listener.blocking().accept()?;
//! let mut text = [0; 12];
//! server.blocking().recv_exact(&mut text)?;
//! println!("{peer} says: {}", String::from_utf8_lossy(&text));
//! # assert_eq!(&text, b"hello, world");
//! client.join().unwrap()?;
//! # Ok::<(), exs::Error>(())
//! ```
//!
//! The [guide] explains the concepts, the options and the set-up. `spec-notes/ARCHITECTURE.md`
//! describes the code, floor by floor.
//!
//! [guide]: https://github.com/exs-project/exs/tree/main/docs/book/src/guide
// The suites in `tests` see every floor: what they use is `pub`, which programs cannot reach. What
// only they use exists only for them, and unit tests alone do not use all of it.
#![cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
#![cfg_attr(all(test, not(feature = "internals")), allow(dead_code, unused_imports))]
// Of pages on docs.rs, which say what feature an item needs. `internals` is no feature for programs.
#![cfg_attr(docsrs, feature(doc_cfg), doc(auto_cfg(hide(feature = "internals"))))]
// What programs see can grow: an enum or a struct of public fields says so, and each type that a
// public item mentions has a public name. The feature `internals` makes everything public.
#![cfg_attr(
    not(feature = "internals"),
    deny(unnameable_types, clippy::exhaustive_enums, clippy::exhaustive_structs)
)]

// The floors. Each is private in the library that programs use. The feature `internals` makes it
// public to the tests of this project. Both lists stand here in full, as rustfmt and the compiler's
// lints do not see modules that a macro declares.
#[cfg(feature = "internals")]
pub mod api;
#[cfg(feature = "internals")]
pub mod driver;
#[cfg(feature = "internals")]
pub mod ids;
#[cfg(feature = "internals")]
pub mod iwarp;
#[cfg(feature = "internals")]
pub mod mem;
#[cfg(feature = "internals")]
pub mod packet;
#[cfg(feature = "internals")]
pub mod plain;
#[cfg(feature = "internals")]
pub mod progress;
#[cfg(feature = "internals")]
pub mod rnic;
#[cfg(feature = "internals")]
pub mod session;
#[cfg(feature = "internals")]
pub mod shm;
#[cfg(feature = "internals")]
pub mod stream;
#[cfg(feature = "internals")]
pub mod sys;
#[cfg(feature = "internals")]
pub mod tcp;
#[cfg(feature = "internals")]
pub mod time;
#[cfg(feature = "internals")]
pub mod trace;
#[cfg(all(feature = "internals", feature = "verbs"))]
pub mod verbs;
#[cfg(feature = "internals")]
pub mod wire;

#[cfg(not(feature = "internals"))]
mod api;
#[cfg(not(feature = "internals"))]
mod driver;
#[cfg(not(feature = "internals"))]
mod ids;
#[cfg(not(feature = "internals"))]
mod iwarp;
#[cfg(not(feature = "internals"))]
mod mem;
#[cfg(not(feature = "internals"))]
mod packet;
#[cfg(not(feature = "internals"))]
mod plain;
#[cfg(not(feature = "internals"))]
mod progress;
#[cfg(not(feature = "internals"))]
mod rnic;
#[cfg(not(feature = "internals"))]
mod session;
#[cfg(not(feature = "internals"))]
mod shm;
#[cfg(not(feature = "internals"))]
mod stream;
#[cfg(not(feature = "internals"))]
mod sys;
#[cfg(not(feature = "internals"))]
mod tcp;
#[cfg(not(feature = "internals"))]
mod time;
#[cfg(not(feature = "internals"))]
mod trace;
#[cfg(all(not(feature = "internals"), feature = "verbs"))]
mod verbs;
#[cfg(not(feature = "internals"))]
mod wire;

/// For the C library (exs-ffi), which is built from the same sources: no part of the API, and free
/// to change in any release.
#[doc(hidden)]
pub use api::raw as __ffi;
pub use api::{
    AtomicWords, Atomics, Blocking, Buffer, Candidate, Completion, Counters, DeviceInfo,
    DisconnectCause, Error, Event, EventKind, EventQueue, Export, Failed, Grouping, Host, Interest,
    KernelAddr, KernelSocket, MemError, MemoryRegion, OpError, Options, Packet, Part, PathOptions,
    PortInfo, QueueOptions, Readiness, RecvFlags, Refused, RemoteBuffer, RemoteBufferError, Rights,
    RnicError, Route, SessionError, Shard, Socket, SocketStream, SocketType, TermCode, ToHost,
    Token, Transport, TransportInfo, Violation, WaitPolicy, WordsExport, counters, error, explain,
    parse_size, parse_time, stats, transports,
};

#[cfg(feature = "metrics")]
pub use api::metrics;

#[cfg(feature = "futures")]
pub mod aio;

// Documentation only: see the essay there.
#[cfg(any(doc, doctest))]
pub mod guide;

/// The programs in the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The version of this library.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
