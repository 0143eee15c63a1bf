//! F7: what programs see.
//!
//! All public types are defined or exported again here.
//!
//! A thin layer over the progress floor: every call checks its arguments, books a place in the
//! event queue, and hands buffers over. Nothing here knows of protocols. Safe Rust cannot cause undefined behaviour through it: see
//! [`Buffer`] for why. `raw`, which the crate exports hidden as `__ffi`, is the
//! C library's own door; a part of it is `unsafe`.

mod atomic;
mod attend;
mod batch;
mod blocking;
mod completion;
mod connection;
mod counters;
pub mod error;
mod event;
mod event_loop;
mod export;
mod host;
mod kernel;
#[cfg(feature = "metrics")]
pub mod metrics;
mod onesided;
mod place;
mod private_queues;
mod queue;
pub mod raw;
mod socket;
pub mod stats;
mod stream;
mod transfer;
mod transports;
mod words;

pub use crate::mem::{Atomics, Buffer, MemError, MemoryRegion};
pub(crate) use crate::progress::Driven;
#[cfg(feature = "tokio")]
pub(crate) use crate::progress::LoopLook;
pub use crate::progress::{
    Candidate, DeviceInfo, Error, EventKind, Grouping, Host, Interest, Options, Part, PathOptions,
    PortInfo, QueueOptions, Readiness, RecvFlags, Rights, Route, Shard, Transport, TransportInfo,
    WaitPolicy, parse_size, parse_time,
};
pub use crate::rnic::{DisconnectCause, RnicError, TermCode};
pub use crate::session::{OpError, SessionError, Violation};
pub use crate::sys::KernelAddr;
pub use attend::{AttendedStream, RungBy};
pub use blocking::{Blocking, Packet};
pub use completion::{Completion, Failed};
pub use counters::{Counters, counters};
pub use event::{Event, Token};
pub use event_loop::LoopDriver;
pub use export::{Export, RemoteBuffer, RemoteBufferError};
pub use host::ToHost;
pub use kernel::KernelSocket;
pub use queue::EventQueue;
pub use socket::{Socket, SocketType};
pub use stream::SocketStream;
pub use transfer::Refused;
pub use transports::{explain, transports};
pub use words::{AtomicWords, WordsExport};

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs move these between threads and share them.
    #[test]
    fn public_types_are_send_and_sync() {
        fn both<T: Send + Sync>() {}
        both::<(Socket, SocketStream, KernelSocket<std::net::TcpStream>, Blocking<'_>)>();
        both::<(EventQueue, Event, Completion, Failed, Refused, Refused<Vec<Buffer>>)>();
        both::<(Buffer, MemoryRegion, Export, RemoteBuffer, Part, KernelAddr)>();
        both::<(AtomicWords, WordsExport)>();
        both::<(Error, OpError, SessionError, RnicError, MemError, Violation)>();
        both::<(Options, QueueOptions, Counters, Route, TransportInfo)>();
    }
}
