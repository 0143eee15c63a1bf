//! Sets of flags. Each is a struct of named booleans with constants, `|`, and a method for each
//! flag.

use std::ops::{BitOr, BitOrAssign};

/// How a receive behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RecvFlags {
    /// Complete only when the buffer is full (MSG_WAITALL), at the end of the stream, or when
    /// cancelled. For streams only.
    pub waitall: bool,
    /// Leave the data in the socket (MSG_PEEK).
    pub peek: bool,
}

impl RecvFlags {
    /// Complete as soon as there are data.
    pub const NONE: RecvFlags = RecvFlags { waitall: false, peek: false };
    /// Complete only when the buffer is full.
    pub const WAITALL: RecvFlags = RecvFlags { waitall: true, peek: false };
    /// Leave the data in the socket.
    pub const PEEK: RecvFlags = RecvFlags { waitall: false, peek: true };

    /// The same flags with this value of [`RecvFlags::waitall`].
    #[must_use]
    pub const fn with_waitall(self, waitall: bool) -> RecvFlags {
        RecvFlags { waitall, ..self }
    }

    /// The same flags with this value of [`RecvFlags::peek`].
    #[must_use]
    pub const fn with_peek(self, peek: bool) -> RecvFlags {
        RecvFlags { peek, ..self }
    }
}

/// The states of a socket that `poll` waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Interest {
    /// Data, the end of the stream, or a connection to accept.
    pub readable: bool,
    /// A send would not wait.
    pub writable: bool,
}

impl Interest {
    /// Readable only.
    pub const READABLE: Interest = Interest { readable: true, writable: false };
    /// Writable only.
    pub const WRITABLE: Interest = Interest { readable: false, writable: true };
    /// Either.
    pub const BOTH: Interest = Interest { readable: true, writable: true };

    /// The same flags with this value of [`Interest::readable`].
    #[must_use]
    pub const fn with_readable(self, readable: bool) -> Interest {
        Interest { readable, ..self }
    }

    /// The same flags with this value of [`Interest::writable`].
    #[must_use]
    pub const fn with_writable(self, writable: bool) -> Interest {
        Interest { writable, ..self }
    }
}

/// The operations that a peer may do on exported memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Rights {
    /// RDMA READ.
    pub read: bool,
    /// RDMA WRITE.
    pub write: bool,
    /// Atomic operations on words of 8 bytes.
    pub atomic: bool,
}

impl Rights {
    /// READ only.
    pub const READ: Rights = Rights { read: true, write: false, atomic: false };
    /// WRITE only.
    pub const WRITE: Rights = Rights { read: false, write: true, atomic: false };
    /// READ and WRITE.
    pub const READ_WRITE: Rights = Rights { read: true, write: true, atomic: false };
    /// Atomic operations only.
    pub const ATOMIC: Rights = Rights { read: false, write: false, atomic: true };

    /// The same flags with this value of [`Rights::read`].
    #[must_use]
    pub const fn with_read(self, read: bool) -> Rights {
        Rights { read, ..self }
    }

    /// The same flags with this value of [`Rights::write`].
    #[must_use]
    pub const fn with_write(self, write: bool) -> Rights {
        Rights { write, ..self }
    }

    /// The same flags with this value of [`Rights::atomic`].
    #[must_use]
    pub const fn with_atomic(self, atomic: bool) -> Rights {
        Rights { atomic, ..self }
    }

    /// True if there is a right.
    pub const fn is_any(self) -> bool {
        self.read || self.write || self.atomic
    }
}

/// `|` of sets of flags: the flags of both.
macro_rules! union {
    ($($ty:ident: $($field:ident),+;)+) => {$(
        impl BitOr for $ty {
            type Output = $ty;

            /// The flags that either has.
            fn bitor(self, other: $ty) -> $ty {
                $ty { $($field: self.$field | other.$field),+ }
            }
        }

        impl BitOrAssign for $ty {
            fn bitor_assign(&mut self, other: $ty) {
                *self = *self | other;
            }
        }
    )+};
}

union! {
    RecvFlags: waitall, peek;
    Interest: readable, writable;
    Rights: read, write, atomic;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_joined_by_or() {
        let both = RecvFlags::WAITALL | RecvFlags::PEEK;
        assert_eq!(both, RecvFlags { waitall: true, peek: true });
        assert_eq!(RecvFlags::NONE | RecvFlags::PEEK, RecvFlags::PEEK);
        assert_eq!(Interest::READABLE | Interest::WRITABLE, Interest::BOTH);
        let mut rights = Rights::READ;
        rights |= Rights::WRITE;
        assert_eq!((rights, rights | rights), (Rights::READ_WRITE, Rights::READ_WRITE));
        assert!((rights | Rights::ATOMIC).atomic && !rights.atomic);
        assert_eq!(Rights::ATOMIC.with_atomic(false), Rights::default());
    }
}
