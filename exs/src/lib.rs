//! Extended Sockets.
#![cfg_attr(docsrs, feature(doc_cfg))]

macro_rules! floors {
    ($($(#[$m:meta])* $name:ident),* $(,)?) => {$(
        #[cfg(feature = "internals")]
        $(#[$m])* pub mod $name;
        #[cfg(not(feature = "internals"))]
        #[allow(dead_code, unreachable_pub, unused_imports)]
        $(#[$m])* mod $name;
    )*};
}

floors! {
    api,
    ids,
    mem,
    packet,
    progress,
    rnic,
    session,
    stream,
    sys,
    time,
    trace,
    wire,
}

pub use api::{
    Blocking, Counters, Event, EventQueue, Export, Packet, Refused, RemoteBuffer,
    RemoteBufferError, Rights, SendFlags, Socket, SocketType, Token, counters, raw,
};
pub use mem::{Buffer, MemError, MemoryRegion};
pub use progress::{
    Error, EventKind, Interest, Options, QueueOptions, Readiness, RecvFlags, Transport, WaitPolicy,
};

/// The version of this library.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
