//! F0: logging, if the feature `tracing` is on; else nothing at all.
//!
//! Each connection has a *span* from its connect or its request to its close, with the events about it
//! inside. Work on data enters no span: it logs nothing, and costs nothing for it.

use std::fmt::Display;

#[cfg(feature = "tracing")]
pub(crate) use tracing::{debug, info, warn};

#[cfg(not(feature = "tracing"))]
macro_rules! silent {
    ($($arg:tt)*) => {{
        // The arguments count as used, and cost nothing.
        if false {
            let _ = format_args!($($arg)*);
        }
    }};
}
#[cfg(not(feature = "tracing"))]
pub(crate) use silent as debug;
#[cfg(not(feature = "tracing"))]
pub(crate) use silent as info;
#[cfg(not(feature = "tracing"))]
pub(crate) use silent as warn;

/// The span of a connection. Without the feature it takes no memory. The span ends with its last clone.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionSpan {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl Default for ConnectionSpan {
    fn default() -> ConnectionSpan {
        ConnectionSpan::NONE
    }
}

/// The span of a connection. Fields that are not known yet are recorded later.
#[cfg(feature = "tracing")]
macro_rules! connection_span {
    ($role:literal, $socket:expr, $peer:expr $(, parent: $parent:expr)?) => {
        tracing::info_span!(
            target: "exs",
            $(parent: $parent,)?
            "connection",
            role = $role,
            socket = display($socket),
            peer = display($peer),
            local = tracing::field::Empty,
            transport = tracing::field::Empty,
            device = tracing::field::Empty,
        )
    };
}

#[cfg(feature = "tracing")]
impl ConnectionSpan {
    /// No span: the socket has no connection.
    pub(crate) const NONE: ConnectionSpan = ConnectionSpan { span: tracing::Span::none() };

    /// A program connects. The span of the thread's call is its parent.
    pub(crate) fn of_connect(socket: impl Display, peer: impl Display) -> ConnectionSpan {
        let span = connection_span!("connect", socket, peer);
        ConnectionSpan { span }
    }

    /// A peer connects. The span has no parent: any thread may run the engine when the request comes.
    pub(crate) fn of_request(socket: impl Display, peer: impl Display) -> ConnectionSpan {
        let span = connection_span!("accept", socket, peer, parent: None);
        ConnectionSpan { span }
    }

    /// The connection has this local address.
    pub(crate) fn note_local(&self, local: impl Display) {
        self.span.record("local", tracing::field::display(local));
    }

    /// The connection, or the attempt, goes by this device.
    pub(crate) fn note_route(&self, transport: impl Display, device: &str) {
        self.span.record("transport", tracing::field::display(transport));
        self.span.record("device", device);
    }

    /// Logs inside of the span.
    pub(crate) fn log<T>(&self, log: impl FnOnce() -> T) -> T {
        self.span.in_scope(log)
    }
}

#[cfg(not(feature = "tracing"))]
impl ConnectionSpan {
    /// No span: the socket has no connection.
    pub(crate) const NONE: ConnectionSpan = ConnectionSpan {};

    #[inline]
    pub(crate) fn of_connect(_socket: impl Display, _peer: impl Display) -> ConnectionSpan {
        ConnectionSpan {}
    }

    #[inline]
    pub(crate) fn of_request(_socket: impl Display, _peer: impl Display) -> ConnectionSpan {
        ConnectionSpan {}
    }

    #[inline]
    pub(crate) fn note_local(&self, _local: impl Display) {}

    #[inline]
    pub(crate) fn note_route(&self, _transport: impl Display, _device: &str) {}

    #[inline]
    pub(crate) fn log<T>(&self, log: impl FnOnce() -> T) -> T {
        log()
    }
}
