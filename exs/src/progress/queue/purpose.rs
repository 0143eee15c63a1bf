//! The operations that a queue is for.

use crate::progress::grouping::GroupUse;

/// The operations that a queue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueUse {
    /// Those that the program posts.
    Program,
    /// The blocking calls of one thread, each of which waits for its own operation.
    Blocking,
    /// Those of tasks, for which the driver of their runtime waits.
    #[cfg(feature = "futures")]
    Tasks(Workers),
    /// Those that the C library posts for sockets whose descriptors the program polls.
    Descriptors,
}

impl QueueUse {
    /// How the program uses the connections that begin at such a queue.
    pub(crate) fn group_use(self) -> GroupUse {
        match self {
            QueueUse::Blocking => GroupUse::Blocking,
            QueueUse::Descriptors => GroupUse::Polled,
            #[cfg(feature = "tokio")]
            QueueUse::Tasks(Workers::One) => GroupUse::OneWorker,
            #[cfg(feature = "futures")]
            QueueUse::Tasks(Workers::Several) => GroupUse::Usual,
            QueueUse::Program => GroupUse::Usual,
        }
    }
}

/// The threads that run tasks.
#[cfg(feature = "futures")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workers {
    #[cfg(feature = "tokio")]
    One,
    Several,
}
