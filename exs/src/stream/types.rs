//! Inputs and outputs of the stream machines.

use crate::ids::{OpId, Outcome};

/// ADVERTs that a receiver may have out at once. Both ends hold to it, so that
/// neither's memory grows without bound.
pub const MAX_ADVERTS: usize = 64;

/// Direct phases in a row whose ADVERTs may miss: after that many, the receiver holds ADVERTs back
/// (R1), and the sender waits for no ADVERT (R10). Both count the same phases, so neither waits
/// for the other.
pub const MAX_MISSES: u32 = 8;

/// Even phases are direct, odd ones indirect.
pub(super) const fn is_direct(phase: u32) -> bool {
    phase.is_multiple_of(2)
}

/// Phase `a` comes after `b`. Phases wrap, within two hours for a connection that changes phase a
/// million times per second. So they are compared as serial numbers (RFC 1982).
pub(super) const fn is_later(a: u32, b: u32) -> bool {
    let ahead = a.wrapping_sub(b);
    ahead != 0 && ahead < 1 << 31
}

/// What both halves must agree on; the session takes it from the hellos.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamConfig {
    /// Bytes of the receiver's hidden ring, at least 1.
    pub ring: u32,
    /// Data of at most this many bytes ride inside the announcement itself
    /// instead of in a WRITE before it. 0 turns that off.
    pub inline_max: u32,
    /// Data of one announcement, at most; at least 1.
    pub max_chunk: u32,
}

/// An ADVERT as the sender gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Advert {
    /// Stream position of the first byte of the buffer (exact for the first of a
    /// phase, an estimate after that).
    pub seq: u64,
    /// Even.
    pub phase: u32,
    /// Where the buffer is at the receiver.
    pub addr: u64,
    /// Its key.
    pub key: u32,
    /// Its length.
    pub len: u32,
    /// It is complete only when full.
    pub waitall: bool,
    /// Its last use may close its key.
    pub invalidate: bool,
}

/// The receiver's ring as the sender gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRing {
    /// Where it is.
    pub addr: u64,
    /// Its key.
    pub key: u32,
}

/// Where a chunk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChunkTarget {
    /// Into an advertised buffer.
    Direct {
        /// Address at the receiver.
        addr: u64,
        /// Key.
        key: u32,
        /// Nothing more goes there, and the key may be closed with these bytes.
        close: bool,
    },
    /// Into the ring at this offset (never across its end).
    Ring {
        /// Offset of the first byte.
        offset: u32,
    },
}

/// What the sending half wants done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TxAction {
    /// Move `len` bytes at `op_off` of the operation's data and announce them (DATA). Call
    /// `handle_sent` when the local memory is free again.
    Transfer {
        /// The send.
        op: OpId,
        /// First byte.
        op_off: u64,
        /// Bytes.
        len: u32,
        /// Where to.
        target: ChunkTarget,
        /// Inside of the announcement (then `target`'s address is not used).
        inline: bool,
    },
    /// Send RING_REQ: the ring is needed and its key is not known.
    RequestRing,
    /// Send RING_RELEASE: the ring has long been idle.
    ReleaseRing,
    /// Send WITHDRAWN: every ADVERT received so far is forgotten.
    Withdrawn,
    /// Send FIN: no more data.
    Fin,
    /// The operation (a send, or the shutdown) has ended.
    Done {
        /// Which.
        op: OpId,
        /// Bytes moved.
        bytes: u64,
        /// How.
        outcome: Outcome,
    },
}

/// A receive as it is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecvPost {
    /// Which.
    pub op: OpId,
    /// Bytes of its buffer.
    pub len: u64,
    /// Complete only when full (or at the end, or when cancelled).
    pub waitall: bool,
    /// Leave the data in the stream.
    pub peek: bool,
    /// The buffer may be shown to the peer (false: it lies in several pieces, or
    /// the user wants no zero-copy here).
    pub advertise: bool,
}

/// DATA as the receiver gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Data {
    /// Direct or indirect.
    pub direct: bool,
    /// Inside of the message.
    pub inline: bool,
    /// Bytes.
    pub len: u32,
}

/// What the receiving half wants done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RxAction {
    /// Open `len` bytes at `op_off` of the receive's buffer to the peer and send
    /// the ADVERT.
    Advertise {
        /// The receive.
        op: OpId,
        /// First byte to show.
        op_off: u64,
        /// Bytes (at most `u32::MAX`).
        len: u32,
        /// For the ADVERT.
        seq: u64,
        /// For the ADVERT.
        phase: u32,
        /// For the ADVERT.
        waitall: bool,
    },
    /// Close the window onto this receive's buffer again (it was advertised).
    Retract {
        /// The receive.
        op: OpId,
    },
    /// Copy from the ring (never across its end) to the receive's buffer.
    CopyFromRing {
        /// Offset in the ring.
        ring_off: u32,
        /// The receive.
        op: OpId,
        /// Offset in its buffer.
        op_off: u64,
        /// Bytes.
        len: u32,
    },
    /// Copy from the current message (the inline DATA just given to
    /// `handle_data`) to the receive's buffer.
    CopyInline {
        /// Offset in the message's data.
        from: u32,
        /// The receive.
        op: OpId,
        /// Offset in its buffer.
        op_off: u64,
        /// Bytes.
        len: u32,
    },
    /// Copy from the current message to the ring (make its memory, if there is none:
    /// inline data come without GrantRing).
    StashInline {
        /// Offset in the message's data.
        from: u32,
        /// Offset in the ring.
        ring_off: u32,
        /// Bytes.
        len: u32,
    },
    /// Send an ACK soon, as many ring bytes are free. Take the number with `take_freed`; any
    /// message can carry it.
    Ack,
    /// Send WITHDRAW: a cancelled receive may be in the sender's hands.
    Withdraw,
    /// Make the ring (if there is none) and answer with RING.
    GrantRing,
    /// Free the ring.
    DropRing,
    /// The receive has ended.
    Done {
        /// Which.
        op: OpId,
        /// Bytes in its buffer.
        bytes: u64,
        /// How.
        outcome: Outcome,
    },
}

/// The peer broke the protocol: the connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum StreamViolation {
    /// Direct data without an advertised receive, or more than it holds.
    #[error("direct data of {len} bytes, but the first advertised receive takes {room}")]
    DirectOverrun {
        /// Announced.
        len: u32,
        /// Possible.
        room: u64,
    },
    /// More indirect data than the ring has room for, or across its end.
    #[error("indirect data of {len} bytes, but the ring takes {room} here")]
    RingOverrun {
        /// Announced.
        len: u32,
        /// Possible.
        room: u32,
    },
    /// More ring bytes acknowledged than were in use.
    #[error("{freed} ring bytes acknowledged, but only {used} are in use")]
    AckOverrun {
        /// Acknowledged.
        freed: u32,
        /// In use.
        used: u32,
    },
    /// A message that does not fit the state.
    #[error("unexpected {0}")]
    Unexpected(&'static str),
}
