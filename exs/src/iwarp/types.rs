//! The inputs and outputs of the engine.

use crate::mem::{Key, MAX_SGE, Sgl};
use crate::rnic::{DisconnectCause, FileRange, RnicError, SendOp};

/// Most bytes that a WR carries by value: its `head`, and its payload if posted inline.
pub const MAX_INLINE: usize = 256;

/// Most private data in a request or reply of revision 2: 512 bytes (RFC 5044 section 7.1) less
/// the 4 bytes of IRD and ORD (RFC 6581 section 9).
pub const MAX_PRIVATE_DATA: usize = 508;

/// Most READs under way in one direction. siw has the same limit.
pub const MAX_READS: u32 = 128;

/// The parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of the queue pair. The check of a peer's keys uses it.
    pub qp: u32,
    /// The queue pair's protection domain.
    pub pd: u32,
    /// Asks the peer for CRC32C. It is on if either side asks.
    pub crc: bool,
    /// READs that this side answers at a time.
    pub ird: u32,
    /// READs that this side issues at a time.
    pub ord: u32,
    /// Most send WRs outstanding.
    pub max_send_wr: usize,
    /// Most receives outstanding. 0 if they come from an SRQ.
    pub max_recv_wr: usize,
    /// Receives come from an SRQ. A SEND that finds the SRQ empty waits.
    pub uses_srq: bool,
    /// The TCP MSS in bytes. FPDUs for peers of other makes are fitted to it.
    pub mss: usize,
    /// Initiator: the engine sends a zero-length WRITE as the first message (RFC 6581 section 4),
    /// so that the acceptor may send first.
    pub peer_to_peer: bool,
}

/// Bytes held by value.
#[derive(Clone, Copy)]
pub struct Inline {
    len: u16,
    bytes: [u8; MAX_INLINE],
}

impl Inline {
    /// No bytes.
    pub const EMPTY: Inline = Inline { len: 0, bytes: [0; MAX_INLINE] };

    /// Appends a copy of `more`. Returns false and appends nothing if it does not fit.
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

    /// Appends a copy of the bytes of `sgl`. Returns false and appends nothing if they do not
    /// fit.
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

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl std::fmt::Debug for Inline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inline({} bytes)", self.len)
    }
}

/// A send WR whose local segments the key table has already checked.
#[derive(Clone, Debug)]
pub struct TxWr {
    /// The caller's number, which comes back in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// Payload by value, before the segments. Empty for READ.
    pub head: Inline,
    /// The payload; for a READ the sink, which has at most one segment.
    pub sgl: Sgl,
    /// The lkeys of the segments; 0 marks an unused entry. For a READ the first is the sink's
    /// STag. [`super::IwarpEngine::mr_revoked`] searches them.
    pub lkeys: [Key; MAX_SGE],
    /// Payload from a file, after the segments. Only for a WRITE without CRC.
    pub file: Option<FileRange>,
    /// Asks for a completion.
    pub signaled: bool,
}

/// A receive buffer whose segments the key table has already checked.
#[derive(Clone, Debug)]
pub struct RxBuf {
    /// The caller's number, which comes back in the completion.
    pub wr_id: u64,
    /// The memory that a message is placed in.
    pub sgl: Sgl,
    /// The lkeys of the segments; 0 marks an unused entry.
    pub lkeys: [Key; MAX_SGE],
}

impl RxBuf {
    /// Takes the memory of an MR away from a waiting buffer. The buffer stays in its queue,
    /// because it must complete: a message that meets it is too long for it.
    pub fn revoke(&mut self, key: Key) {
        if self.lkeys.contains(&key) {
            self.sgl = Sgl::new();
        }
    }
}

/// An eager SEND that the engine took out of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxEager {
    /// Number of received bytes that it used, framing included.
    pub used: usize,
    /// Length of its payload in bytes.
    pub len: usize,
}

/// The source of receive buffers for a queue pair on an SRQ.
pub trait RxSource {
    /// Takes the oldest buffer. None if the SRQ is empty.
    fn pop(&mut self) -> Option<RxBuf>;
}

/// How far the engine got with received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxResult {
    /// Bytes of the lookahead that were used. Fewer than all only if `stalled`.
    pub consumed: usize,
    /// The SRQ is empty. The driver must stop reading, keep the rest of the lookahead, and offer
    /// it again (with `direct` 0) after a buffer was posted.
    pub stalled: bool,
}

/// An event of the connection.
#[derive(Clone, Debug)]
pub enum IwarpEvent {
    /// Responder: a peer asks to connect. `accept` or `reject` answers.
    Request {
        /// The private data of the request.
        private_data: Vec<u8>,
    },
    /// The connection is established.
    Established {
        /// The acceptor's private data. Empty on the responder's side.
        private_data: Vec<u8>,
        /// READs that this side may issue at a time, as negotiated.
        ord: u32,
        /// READs that this side answers at a time, as negotiated.
        ird: u32,
    },
    /// Initiator: the acceptor refused.
    Rejected {
        /// The private data of the refusal.
        private_data: Vec<u8>,
    },
    /// The connection attempt failed.
    Failed(RnicError),
    /// An established connection is over. This is the last event.
    Disconnected(DisconnectCause),
}
