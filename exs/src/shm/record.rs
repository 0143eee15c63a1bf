//! Records of the rings, as bytes.
//!
//! A record begins on a cache line, and its length is a multiple of a line:
//!
//! ```text
//!  0  tag            (ring.rs)
//!  8  kind, flags, number of pieces, 0
//! 12  bytes of payload that lie in the record (u32)
//! 16  remote address    \
//! 24  bytes of payload   | not in records whose kind is "short"
//! 32  key, immediate    /
//! 40  (or 16) payload; then, from a multiple of 8 on, 24 bytes for each piece
//! ```
//!
//! A *piece* says where payload lies in a region that the sender has shared. The peer writes all of
//! this: `parse` copies numbers only, and refuses numbers that contradict each other.

use super::answers::OPERANDS_LEN;
use super::ring::LINE;
use crate::mem::{Key, MAX_SGE, WORD};

/// Bytes of the head of a short record.
pub(super) const SHORT_HEAD_LEN: usize = 16;
/// Bytes of the head of any other record.
pub(super) const FULL_HEAD_LEN: usize = 40;
/// Bytes of a piece.
pub(super) const PIECE_LEN: usize = 24;
/// Bytes of the longest record.
const MAX_RECORD_LEN: usize = 16 << 10;
#[cfg(test)]
pub(super) const MAX_RECORD: u64 = MAX_RECORD_LEN as u64;
/// Bytes of payload that a record may carry.
pub(super) const MAX_PAYLOAD: usize = MAX_RECORD_LEN - FULL_HEAD_LEN - MAX_SGE * PIECE_LEN - 8;
/// Bytes that one WR may move.
pub(super) const MAX_MSG: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    /// A SEND with all of its payload in the record. Short.
    Send,
    /// Any other SEND.
    LongSend,
    /// A WRITE.
    Write,
    /// A WRITE WITH IMMEDIATE.
    WriteImm,
    /// A READ; its payload comes as `Answer`s.
    Read,
    /// The next bytes for the oldest READ or atomic operation that is not complete. Short.
    Answer,
    /// The sender's last record. Short.
    Fin,
    /// The next record is at the beginning of the ring. Short. In place of the bytes of payload it
    /// has the length of the lap that begins there, in lines.
    Skip,
    /// An atomic operation, with its operands in the record. The old value comes as an `Answer`.
    Atomic,
}

impl RecordKind {
    const ALL: [RecordKind; 9] = [
        RecordKind::Send,
        RecordKind::LongSend,
        RecordKind::Write,
        RecordKind::WriteImm,
        RecordKind::Read,
        RecordKind::Answer,
        RecordKind::Fin,
        RecordKind::Skip,
        RecordKind::Atomic,
    ];

    fn is_short(self) -> bool {
        matches!(self, RecordKind::Send | RecordKind::Answer | RecordKind::Fin | RecordKind::Skip)
    }
}

/// The completion of the receive is a solicited event.
pub(super) const SOLICITED: u8 = 1;
/// The receiver must invalidate `key` (SEND).
pub(super) const INVALIDATE: u8 = 2;
/// The payload that is not in the record comes by the lane.
pub(super) const BY_LANE: u8 = 4;

/// Where a part of the payload lies, in a region that was shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordPiece {
    pub(super) slot: u32,
    /// Generation of the slot when the region was shared.
    pub(super) generation: u32,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl RecordPiece {
    pub(super) fn emit(&self) -> [u8; PIECE_LEN] {
        let mut out = [0; PIECE_LEN];
        out[..8].copy_from_slice(&self.offset.to_ne_bytes());
        out[8..16].copy_from_slice(&self.len.to_ne_bytes());
        out[16..20].copy_from_slice(&self.slot.to_ne_bytes());
        out[20..].copy_from_slice(&self.generation.to_ne_bytes());
        out
    }

    pub(super) fn parse(raw: &[u8; PIECE_LEN]) -> RecordPiece {
        let (slot, generation) = (word(raw, 16), word(raw, 20));
        RecordPiece { slot, generation, offset: long(raw, 0), len: long(raw, 8) }
    }
}

/// The head of a record, without its payload and pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHead {
    pub(super) kind: RecordKind,
    pub(super) flags: u8,
    pub(super) pieces: usize,
    /// Bytes of payload in the record.
    pub(super) inline: usize,
    pub(super) raddr: u64,
    /// Bytes of payload, wherever they lie.
    pub(super) total: u64,
    pub(super) key: Key,
    pub(super) imm: u32,
}

fn word(raw: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

fn long(raw: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&raw[at..at + 8]);
    u64::from_ne_bytes(bytes)
}

impl RecordHead {
    /// The head of a short record with `inline` bytes of payload in it.
    pub(super) fn short(kind: RecordKind, flags: u8, inline: usize) -> RecordHead {
        let total = inline as u64;
        RecordHead { kind, flags, pieces: 0, inline, raddr: 0, total, key: 0, imm: 0 }
    }

    /// A skip to a lap of `lap` bytes.
    pub(super) fn skip(lap: u64) -> RecordHead {
        RecordHead::short(RecordKind::Skip, 0, usize::try_from(lap / LINE).unwrap_or(0))
    }

    /// Bytes of the lap that a skip announces.
    pub(super) fn lap(&self) -> u64 {
        self.inline as u64 * LINE
    }

    /// Offset of the payload in the record.
    pub(super) fn payload_at(&self) -> u64 {
        if self.kind.is_short() { SHORT_HEAD_LEN as u64 } else { FULL_HEAD_LEN as u64 }
    }

    /// Offset of the pieces in the record.
    pub(super) fn pieces_at(&self) -> u64 {
        (self.payload_at() + self.inline as u64).next_multiple_of(8)
    }

    /// Bytes of the whole record.
    pub(super) fn len(&self) -> u64 {
        (self.pieces_at() + (self.pieces * PIECE_LEN) as u64).next_multiple_of(LINE)
    }

    /// The word behind the tag. It is the whole head of a short record.
    pub(super) fn word(&self) -> u64 {
        let [a, b, c, d] = u32::try_from(self.inline).unwrap_or(u32::MAX).to_ne_bytes();
        let pieces = self.pieces.to_le_bytes()[0];
        u64::from_ne_bytes([self.kind as u8, self.flags, pieces, 0, a, b, c, d])
    }

    /// The bytes of the head behind the tag, and their number.
    pub(super) fn emit(&self) -> ([u8; FULL_HEAD_LEN - 8], usize) {
        let mut out = [0; FULL_HEAD_LEN - 8];
        out[..8].copy_from_slice(&self.word().to_ne_bytes());
        if self.kind.is_short() {
            return (out, SHORT_HEAD_LEN - 8);
        }
        out[8..16].copy_from_slice(&self.raddr.to_ne_bytes());
        out[16..24].copy_from_slice(&self.total.to_ne_bytes());
        out[24..28].copy_from_slice(&self.key.to_ne_bytes());
        out[28..].copy_from_slice(&self.imm.to_ne_bytes());
        (out, FULL_HEAD_LEN - 8)
    }

    /// Parses the head of a record, behind its tag. None if it cannot be valid.
    pub(super) fn parse(raw: &[u8; FULL_HEAD_LEN - 8]) -> Option<RecordHead> {
        let kind = *RecordKind::ALL.get(usize::from(raw[0]))?;
        let (flags, pieces) = (raw[1], usize::from(raw[2]));
        let inline = usize::try_from(word(raw, 4)).ok().filter(|n| *n <= MAX_PAYLOAD)?;
        if pieces > MAX_SGE || flags & !(SOLICITED | INVALIDATE | BY_LANE) != 0 {
            return None;
        }
        if kind.is_short() {
            let plain = pieces == 0 && flags & !SOLICITED == 0;
            let fits = match kind {
                RecordKind::Answer => inline > 0,
                RecordKind::Fin => inline == 0,
                _ => true,
            };
            return (plain && fits).then(|| RecordHead::short(kind, flags, inline));
        }
        let (raddr, total) = (long(raw, 8), long(raw, 16));
        let head = RecordHead {
            kind,
            flags,
            pieces,
            inline,
            raddr,
            total,
            key: word(raw, 24),
            imm: word(raw, 28),
        };
        head.is_whole().then_some(head)
    }

    /// True if all of the payload is somewhere, once: in the record, and in pieces or in the lane.
    fn is_whole(&self) -> bool {
        if self.kind == RecordKind::Atomic {
            // The operands are no part of the word.
            let plain = self.pieces == 0 && self.flags == 0;
            return plain && self.total == WORD as u64 && self.inline == OPERANDS_LEN;
        }
        if self.total > MAX_MSG {
            return false;
        }
        let rest = match self.total.checked_sub(self.inline as u64) {
            Some(rest) => rest,
            None => return false,
        };
        match (self.kind, self.flags & BY_LANE != 0) {
            (RecordKind::Read, lane) => self.inline == 0 && self.pieces == 0 && !lane,
            (_, true) => self.pieces == 0 && rest > 0,
            (_, false) => (self.pieces > 0) == (rest > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(kind: RecordKind, inline: usize, pieces: usize, total: u64) -> RecordHead {
        let head = RecordHead { kind, flags: 0, pieces, inline, raddr: 7, total, key: 8, imm: 9 };
        if kind.is_short() { RecordHead { raddr: 0, key: 0, imm: 0, ..head } } else { head }
    }

    #[test]
    fn emitted_heads_parse() {
        for h in [
            head(RecordKind::Send, 0, 0, 0),
            head(RecordKind::Send, MAX_PAYLOAD, 0, MAX_PAYLOAD as u64),
            head(RecordKind::LongSend, 10, MAX_SGE, MAX_MSG),
            RecordHead { flags: INVALIDATE | SOLICITED, ..head(RecordKind::LongSend, 10, 0, 10) },
            RecordHead { flags: BY_LANE, ..head(RecordKind::Write, 0, 0, 1) },
            head(RecordKind::WriteImm, 0, 0, 0),
            head(RecordKind::Read, 0, 0, MAX_MSG),
            head(RecordKind::Answer, 1, 0, 1),
            head(RecordKind::Fin, 0, 0, 0),
            head(RecordKind::Atomic, OPERANDS_LEN, 0, 8),
            RecordHead::skip(256 << 10),
        ] {
            let (mut raw, len) = h.emit();
            raw[len..].fill(0xEE); // left by an earlier lap
            assert_eq!(RecordHead::parse(&raw), Some(h));
            assert!(h.len().is_multiple_of(LINE) && h.len() <= MAX_RECORD, "{h:?}");
        }
        assert_eq!(head(RecordKind::Send, 48, 0, 48).len(), LINE, "one line");
    }

    #[test]
    fn contradictions_are_refused() {
        let too_long = head(RecordKind::Write, 0, 1, MAX_MSG + 1);
        for h in [
            too_long,
            head(RecordKind::Write, 5, 0, 4),
            head(RecordKind::Write, 5, 0, 6),
            head(RecordKind::Write, 5, 1, 5),
            RecordHead { flags: BY_LANE, ..head(RecordKind::Write, 5, 0, 5) },
            RecordHead { flags: BY_LANE, ..head(RecordKind::Write, 5, 1, 9) },
            RecordHead { flags: 0x80, ..head(RecordKind::Write, 5, 0, 5) },
            head(RecordKind::Write, 5, MAX_SGE + 1, 9),
            head(RecordKind::Write, MAX_PAYLOAD + 1, 0, MAX_PAYLOAD as u64 + 1),
            head(RecordKind::Read, 1, 0, 1),
            head(RecordKind::Atomic, 0, 0, 8),
            head(RecordKind::Atomic, OPERANDS_LEN, 0, 16),
            head(RecordKind::Atomic, OPERANDS_LEN, 1, 8),
            RecordHead { flags: SOLICITED, ..head(RecordKind::Atomic, OPERANDS_LEN, 0, 8) },
            head(RecordKind::Answer, 0, 0, 0),
            head(RecordKind::Fin, 1, 0, 1),
            RecordHead { flags: BY_LANE, ..RecordHead::skip(0) },
            RecordHead { flags: INVALIDATE, ..head(RecordKind::Send, 1, 0, 1) },
        ] {
            assert_eq!(RecordHead::parse(&h.emit().0), None, "{h:?}");
        }
        assert_eq!(RecordHead::parse(&[0xFF; FULL_HEAD_LEN - 8]), None);
    }

    proptest! {
        #[test]
        fn parsed_lengths_are_bounded(raw in any::<[u8; FULL_HEAD_LEN - 8]>(), kind in 0u8..10) {
            let mut raw = raw;
            (raw[0], raw[1], raw[2]) = (kind, raw[1] & 7, raw[2] & 7);
            if let Some(h) = RecordHead::parse(&raw) {
                prop_assert!(h.len() <= MAX_RECORD && h.total <= MAX_MSG);
                prop_assert!(h.kind == RecordKind::Atomic || h.inline as u64 <= h.total);
            }
        }

        #[test]
        fn emitted_pieces_parse(raw in any::<[u8; PIECE_LEN]>()) {
            let piece = RecordPiece::parse(&raw);
            prop_assert_eq!(RecordPiece::parse(&piece.emit()), piece);
        }
    }
}
