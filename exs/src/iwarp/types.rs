//! What goes into the engine and what comes out of it.

use crate::mem::{Key, MAX_SGE, Sgl};
use crate::rnic::{DisconnectCause, FileRange, RnicError, SendOp};

/// Bytes that a WR may carry by value: its `head`, plus its payload if posted
/// inline.
pub const MAX_INLINE: usize = 256;

/// Private data that fit a request or reply of revision 2: 512 bytes (RFC 5044
/// section 7.1) less the 4 that RFC 6581 section 9 takes for IRD and ORD.
pub const MAX_PRIVATE_DATA: usize = 508;

/// READs that may be under way in one direction, at most (siw's limit too).
pub const MAX_READS: u32 = 128;

/// How a connection is to be set up.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of the queue pair: part of the check of a peer's keys.
    pub qp: u32,
    /// Its protection domain.
    pub pd: u32,
    /// Ask the peer for CRC32C (it is on if either side asks).
    pub crc: bool,
    /// READs of the peer's that we answer at a time.
    pub ird: u32,
    /// READs that we issue at a time.
    pub ord: u32,
    /// Send WRs that may be outstanding.
    pub max_send_wr: usize,
    /// Receives that may be outstanding (none if they come from an SRQ).
    pub max_recv_wr: usize,
    /// Receives come from an SRQ: a SEND that finds it empty waits.
    pub uses_srq: bool,
    /// The TCP MSS, to which FPDUs for peers of other makes are fitted.
    pub mss: usize,
    /// As initiator: let a zero-length WRITE be the first message, made by the
    /// engine (RFC 6581 section 4), so that the acceptor may send first.
    pub peer_to_peer: bool,
}

/// Bytes by value.
#[derive(Clone, Copy)]
pub struct Inline {
    len: u16,
    bytes: [u8; MAX_INLINE],
}

impl Inline {
    /// No bytes.
    pub const EMPTY: Inline = Inline { len: 0, bytes: [0; MAX_INLINE] };

    /// Appends a copy of `more`; false, and nothing appended, if it does not fit.
    #[must_use]
    pub fn push(&mut self, more: &[u8]) -> bool {
        let len = usize::from(self.len);
        let Some(room) = self.bytes.get_mut(len..len + more.len()) else {
            return false;
        };
        room.copy_from_slice(more);
        self.len += u16::try_from(more.len()).unwrap_or(0);
        true
    }

    /// Appends a copy of the bytes of `sgl`; false if they do not fit.
    #[must_use]
    pub fn push_sgl(&mut self, sgl: &Sgl) -> bool {
        let len = usize::from(self.len);
        let Some(room) = self.bytes.get_mut(len..len + sgl.len()) else {
            return false;
        };
        sgl.read_at(0, room);
        self.len += u16::try_from(sgl.len()).unwrap_or(0);
        true
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// How many.
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl std::fmt::Debug for Inline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inline({} bytes)", self.len)
    }
}

/// A send WR whose local segments were already checked through the key table.
#[derive(Clone, Debug)]
pub struct TxWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Payload by value, before the segments. None for READ.
    pub head: Inline,
    /// The payload; for a READ the sink (at most one segment).
    pub sgl: Sgl,
    /// The lkeys of the segments, 0 where there is none. For a READ the first
    /// is the sink's STag. See [`super::Engine::mr_revoked`].
    pub lkeys: [Key; MAX_SGE],
    /// Payload from a file, after the segments (WRITE without CRC only).
    pub file: Option<FileRange>,
    /// Ask for a completion.
    pub signaled: bool,
}

/// A receive buffer, checked likewise.
#[derive(Clone, Debug)]
pub struct RxBuf {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where a message goes.
    pub sgl: Sgl,
    /// The lkeys of the segments, 0 where there is none.
    pub lkeys: [Key; MAX_SGE],
}

impl RxBuf {
    /// Takes the memory of an MR away from a buffer that waits. It stays in its queue,
    /// since it must complete: a message that meets it is too long for it.
    pub fn revoke(&mut self, key: Key) {
        if self.lkeys.contains(&key) {
            self.sgl = Sgl::new();
        }
    }
}

/// A SEND that was taken out of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxSend {
    /// Bytes of it there, framing included.
    pub used: usize,
    /// Bytes of its payload.
    pub len: usize,
}

/// Where a queue pair on an SRQ takes its receive buffers from.
pub trait RxSource {
    /// Takes the oldest buffer.
    fn pop(&mut self) -> Option<RxBuf>;
}

/// What became of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxResult {
    /// Bytes of the lookahead that were used. Less than all only if `stalled`.
    pub consumed: usize,
    /// The SRQ is empty: stop reading, keep the rest of the lookahead, and offer
    /// it again (with `direct` 0) when a buffer was posted.
    pub stalled: bool,
}

/// What happens to the connection.
#[derive(Clone, Debug)]
pub enum Event {
    /// Responder: a peer asks; answer with `accept` or `reject`.
    Request {
        /// What came along.
        private_data: Vec<u8>,
    },
    /// Connected.
    Established {
        /// The acceptor's private data (initiator only).
        private_data: Vec<u8>,
        /// READs that we may issue at a time, as negotiated.
        ord: u32,
        /// READs that we answer at a time, as negotiated.
        ird: u32,
    },
    /// Initiator: the acceptor said no.
    Rejected {
        /// What came along.
        private_data: Vec<u8>,
    },
    /// The connection was not made.
    Failed(RnicError),
    /// A connection that was established is over. The last event.
    Disconnected(DisconnectCause),
}
