//! F8: asynchronous Rust. Operations as futures, and streams for tokio (features `futures` and
//! `tokio`).
//!
//! **Completions.** [`AsyncSocket`] has the calls of [`exs::Socket`](crate::Socket). Each returns an
//! [`Operation`], a future that gives the result and the memory back. Memory of a
//! [`MemoryRegion`](crate::MemoryRegion) moves without a copy and without an allocation.
//!
//! **Streams** (feature `tokio`). `AsyncStream` and `AsyncListener` take the place of tokio's `TcpStream` and
//! `TcpListener` under hyper, axum, tokio-rustls, and other code over `AsyncRead` and `AsyncWrite`. More
//! features give them the traits of other crates, so that a program changes its listener and its
//! connector alone:
//!
//! | feature | brings |
//! |---|---|
//! | `tower` | `AsyncConnector`, a `Service<Uri>` of the crate tower-service |
//! | `hyper` | a stream as a connection of hyper 1, which hyper-util's client takes |
//! | `axum` | a listener for `axum::serve` of axum 0.8 |
//! | `tonic` | server and client of tonic 0.14 |
//!
//! The feature `compio` makes a [`Buffer`](crate::Buffer) a buffer of compio's operations. Sockets run
//! in compio's runtime, as in any other.
//!
//! # Runtimes
//! A tokio runtime has one event queue for every four workers, whose descriptor is registered with the
//! runtime once. Sockets take the queues of their runtime in turn. A task of the runtime moves the data
//! of a queue's sockets when the descriptor is readable. A task that reads a busy stream over the
//! software RNIC moves the stream's data itself. Any number of runtimes of both kinds can be in a
//! process, and tasks of a `LocalSet` count as the runtime's. Outside of a runtime, a thread of the
//! process does this, so that the futures work with any executor. The thread ends about a second after
//! the last socket and operation that needed it, and the next one starts another. An event queue has
//! room for all operations: none is refused for lack of it.
//!
//! # For those who change it
//! `reactor` has a queue and its table of operations (`slots`), `runtimes` the reactors of each runtime,
//! `driver` the task and `turns` the writes that wait for the end of a task's turn. `op` has the futures, `buf` the memory that they
//! take, `socket` and `onesided` the calls, and `stream` and `listener` the types under tokio's traits.
//! `tower`, `hyper`, `axum` and `tonic` have the traits of these crates. The floor knows `api` only, and
//! has no `unsafe`: memory in flight belongs to the event of its operation (`Buffer`), so a dropped
//! future frees nothing that a peer may write. `spec-notes/async.md` has the design.

#[cfg(feature = "axum")]
mod axum;
mod block_on;
mod buf;
#[cfg(feature = "tokio")]
mod crowd;
#[cfg(feature = "tokio")]
mod driver;
#[cfg(feature = "hyper")]
mod hyper;
#[cfg(feature = "tokio")]
mod listener;
mod onesided;
mod op;
mod reactor;
#[cfg(feature = "tokio")]
mod runtimes;
#[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "streams and listeners use the rest"))]
mod slots;
mod socket;
#[cfg(feature = "tokio")]
mod stream;
#[cfg(feature = "tonic")]
mod tonic;
#[cfg(feature = "tower")]
mod tower;
#[cfg(feature = "tokio")]
mod turns;

pub use block_on::block_on;
pub use buf::{IoBuf, IoBufMut};
#[cfg(feature = "tokio")]
pub use listener::{AsyncListener, IncomingStreams};
pub use op::{Operation, OperationKind, kinds};
pub use socket::AsyncSocket;
#[cfg(feature = "tokio")]
pub use stream::{AsyncStream, OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
#[cfg(feature = "tower")]
pub use tower::{AsyncConnector, ConnectFuture};
