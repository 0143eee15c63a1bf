//! The operations that a queue is for.

/// The operations that a queue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueUse {
    /// Those that the program posts.
    Program,
    /// The blocking calls of one thread, each of which waits for its own operation.
    Blocking,
    /// Those of tasks, for which the driver of their runtime waits.
    #[cfg(feature = "futures")]
    Tasks,
    /// Those that the C library posts for sockets whose descriptors the program polls.
    Descriptors,
}
