//! Inputs and outputs of the seqpacket machines.

use crate::ids::{OpId, Outcome};

/// What both halves must agree on; the session takes it from the hellos.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketConfig {
    /// Messages of at most this many bytes travel inside of their announcement.
    pub eager_max: u32,
    /// Bytes of eager messages that the receiver keeps for receives to come; each
    /// also costs [`STASH_OVERHEAD`].
    pub stash: u32,
    /// Bytes of one message, at most.
    pub max_msg: u64,
}

/// What a stashed message costs beside its bytes, so that empty messages cannot
/// pile up without end. Part of the protocol: both sides count with it.
pub const STASH_OVERHEAD: u32 = 64;

/// ADVERTs are sent for at most this many messages ahead. Part of the protocol: it
/// bounds what a sender must remember.
pub const ADVERT_WINDOW: usize = 32;

/// After this many eager messages in a row a receiver stops showing buffers ahead
/// of time, until a message is written or asks to be. Its own business: the sender
/// need not know.
pub const EAGER_RUN: u8 = 4;

impl PacketConfig {
    /// What an eager message of this length uses of the stash.
    pub const fn stash_cost(len: u32) -> u32 {
        len.saturating_add(STASH_OVERHEAD)
    }

    /// The length of a message as an eager one, or None if it is too long for that. An eager message
    /// uses at most half of the stash: the receiver acknowledges by halves, so a sender that waits
    /// for room gets an acknowledgement.
    pub fn as_eager(&self, len: u64) -> Option<u32> {
        let small = u32::try_from(len).ok()?;
        let half = (self.stash / 2).checked_sub(STASH_OVERHEAD)?;
        (small <= half && small <= self.eager_max && len <= self.max_msg).then_some(small)
    }

    /// Is there room for one more, with `used` bytes of the stash taken?
    pub(super) fn stash_takes(&self, used: u32, len: u32) -> bool {
        used.checked_add(Self::stash_cost(len)).is_some_and(|sum| sum <= self.stash)
    }

    /// May a message of this length go eagerly now, with `used` bytes of the stash taken?
    pub(super) fn takes_eager(&self, used: u32, len: u32) -> bool {
        self.as_eager(len.into()).is_some() && self.stash_takes(used, len)
    }

    /// The longest eager message that could come now.
    pub(super) fn eager_room(&self, used: u32) -> u32 {
        let free = self.stash.saturating_sub(used).min(self.stash / 2);
        free.saturating_sub(STASH_OVERHEAD).min(self.eager_max)
    }
}

/// A send that was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PacketPostError {
    /// Longer than the peer takes.
    #[error(
        "a message of {len} bytes, but the peer takes {limit}: send less, or raise its limit there"
    )]
    TooLong {
        /// Of the send.
        len: u64,
        /// The peer's.
        limit: u64,
    },
    /// After a shutdown of this direction.
    #[error("this direction was shut down: nothing can be sent any more")]
    ShutDown,
}

/// An ADVERT as the sender gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketAdvert {
    /// Number of the message it is for.
    pub msg: u64,
    /// Generation: counts the receiver's withdrawals.
    pub generation: u32,
    /// Where the buffer is at the receiver.
    pub addr: u64,
    /// Its key.
    pub key: u32,
    /// Its length.
    pub len: u64,
}

/// What the sending half wants done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketTxAction {
    /// Send the whole message inside of an EAGER.
    Eager {
        /// The send.
        op: OpId,
        /// Bytes.
        len: u32,
    },
    /// WRITE the first `len` bytes to the receiver and announce them (DATA with
    /// the message's true length).
    Write {
        /// The send.
        op: OpId,
        /// Address at the receiver.
        addr: u64,
        /// Key.
        key: u32,
        /// Bytes to write (the message's, or as many as the receive holds).
        len: u64,
        /// True length of the message.
        total: u64,
    },
    /// Send RTS: this message waits for its ADVERT.
    Rts {
        /// Number of the message.
        msg: u64,
        /// True length.
        total: u64,
    },
    /// Send WITHDRAWN: ADVERTs up to this generation are forgotten.
    Withdrawn {
        /// Number of the next message to be sent.
        next_msg: u64,
        /// Generation withdrawn.
        generation: u32,
    },
    /// Send FIN: no more messages.
    Fin,
    /// The operation (a send, or the shutdown) has ended.
    Done {
        /// Which.
        op: OpId,
        /// Bytes moved (the whole message, also if the receiver cut it off).
        bytes: u64,
        /// How.
        outcome: Outcome,
    },
}

/// What the receiving half wants done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketRxAction {
    /// Open the receive's buffer to the peer and send the ADVERT. This may come for
    /// a receive that was posted as not to be advertised, and for one of 0 bytes.
    Advertise {
        /// The receive.
        op: OpId,
        /// For the ADVERT.
        msg: u64,
        /// For the ADVERT.
        generation: u32,
        /// Bytes to show.
        len: u64,
    },
    /// Close the window onto this receive's buffer again.
    Retract {
        /// The receive.
        op: OpId,
    },
    /// Copy from the current EAGER to the receive's buffer.
    CopyInline {
        /// The receive.
        op: OpId,
        /// Bytes (at most what the buffer holds).
        len: u32,
    },
    /// Keep the current EAGER for a receive to come (a first-in-first-out store).
    Stash {
        /// Bytes.
        len: u32,
    },
    /// Move the oldest stashed message to the receive's buffer, and drop what
    /// does not fit.
    Unstash {
        /// The receive.
        op: OpId,
        /// Bytes to copy.
        len: u32,
        /// Bytes of the stashed message.
        stashed: u32,
        /// Leave it in the stash (a peek).
        keep: bool,
    },
    /// Send an ACK soon (see `take_freed`).
    Ack,
    /// Send WITHDRAW with this generation.
    Withdraw {
        /// The generation that ends.
        generation: u32,
    },
    /// The receive has ended.
    Done {
        /// Which.
        op: OpId,
        /// Bytes in its buffer.
        bytes: u64,
        /// True length of the message; more than `bytes` if it was cut off.
        total: u64,
        /// This is the end (FIN), not an empty message.
        eof: bool,
        /// How.
        outcome: Outcome,
    },
}

/// A peer broke the protocol: the connection must be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum PacketViolation {
    /// An eager message that is too long, or more of them than may wait.
    #[error("an eager message of {len} bytes, but {room} may come")]
    EagerOverrun {
        /// Announced.
        len: u32,
        /// Possible.
        room: u32,
    },
    /// DATA without an advertised receive, or more than it holds.
    #[error("message of {len} bytes written, but the advertised receive takes {room}")]
    WriteOverrun {
        /// Announced.
        len: u64,
        /// Possible.
        room: u64,
    },
    /// More stash bytes acknowledged than were in use.
    #[error("{freed} bytes acknowledged, but only {used} are in use")]
    AckOverrun {
        /// Acknowledged.
        freed: u32,
        /// In use.
        used: u32,
    },
    /// A message longer than agreed.
    #[error("a message of {total} bytes is over the limit of {limit}")]
    TooLong {
        /// Announced.
        total: u64,
        /// Agreed.
        limit: u64,
    },
    /// A message that does not fit the state.
    #[error("unexpected {0}")]
    Unexpected(&'static str),
}
