//! Records of the rings, as bytes.
//!
//! A record begins on a cache line and is a multiple of lines long:
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
//! A *piece* says where payload lies in a region that the sender has shared. All this comes
//! from the peer: `parse` copies nothing but numbers, and refuses those that contradict each other.

use super::ring::LINE;
use crate::mem::{Key, MAX_SGE};

/// Bytes of a record's head.
pub(super) const SHORT: usize = 16;
pub(super) const FULL: usize = 40;
/// Bytes of a piece.
pub(super) const PIECE: usize = 24;
/// Bytes of the longest record.
const LONGEST: usize = 16 << 10;
#[cfg(test)]
pub(super) const MAX_RECORD: u64 = LONGEST as u64;
/// Payload that a record may carry.
pub(super) const MAX_PAYLOAD: usize = LONGEST - FULL - MAX_SGE * PIECE - 8;
/// Bytes that one WR may move.
pub(super) const MAX_MSG: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A SEND all of whose payload is in the record. Short.
    Send,
    /// A SEND of any other kind.
    LongSend,
    /// A WRITE.
    Write,
    /// A WRITE WITH IMMEDIATE.
    WriteImm,
    /// A READ; its payload comes as `Answer`s.
    Read,
    /// The next bytes for the oldest READ that is not complete. Short.
    Answer,
    /// The sender's last record. Short.
    Fin,
    /// The next record is at the beginning of the ring. Short; in place of the bytes that lie in
    /// it, it has the length of the lap that begins there, in lines.
    Skip,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Send,
        Kind::LongSend,
        Kind::Write,
        Kind::WriteImm,
        Kind::Read,
        Kind::Answer,
        Kind::Fin,
        Kind::Skip,
    ];

    fn is_short(self) -> bool {
        matches!(self, Kind::Send | Kind::Answer | Kind::Fin | Kind::Skip)
    }
}

/// The receiver is to be told that a solicited event was asked for.
pub(super) const SOLICITED: u8 = 1;
/// `key` is to be invalidated (SEND).
pub(super) const INVALIDATE: u8 = 2;
/// The payload that is not in the record comes by the lane.
pub(super) const BY_LANE: u8 = 4;

/// Where a part of the payload lies, in a region that was shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) slot: u32,
    /// Of the slot.
    pub(super) generation: u32,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Piece {
    pub(super) fn emit(&self) -> [u8; PIECE] {
        let mut out = [0; PIECE];
        out[..8].copy_from_slice(&self.offset.to_ne_bytes());
        out[8..16].copy_from_slice(&self.len.to_ne_bytes());
        out[16..20].copy_from_slice(&self.slot.to_ne_bytes());
        out[20..].copy_from_slice(&self.generation.to_ne_bytes());
        out
    }

    pub(super) fn parse(raw: &[u8; PIECE]) -> Piece {
        let (slot, generation) = (word(raw, 16), word(raw, 20));
        Piece { slot, generation, offset: long(raw, 0), len: long(raw, 8) }
    }
}

/// What a record says, without its payload and pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) flags: u8,
    pub(super) pieces: usize,
    /// Bytes of payload in the record.
    pub(super) inline: usize,
    pub(super) raddr: u64,
    /// Bytes of payload.
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

impl Head {
    /// A record of a short kind, with this payload in it.
    pub(super) fn short(kind: Kind, flags: u8, inline: usize) -> Head {
        let total = inline as u64;
        Head { kind, flags, pieces: 0, inline, raddr: 0, total, key: 0, imm: 0 }
    }

    /// A skip to a lap of so many bytes.
    pub(super) fn skip(lap: u64) -> Head {
        Head::short(Kind::Skip, 0, usize::try_from(lap / LINE).unwrap_or(0))
    }

    /// The lap that a skip tells of.
    pub(super) fn lap(&self) -> u64 {
        self.inline as u64 * LINE
    }

    /// Where the payload begins.
    pub(super) fn payload_at(&self) -> u64 {
        if self.kind.is_short() { SHORT as u64 } else { FULL as u64 }
    }

    /// Where the pieces begin.
    pub(super) fn pieces_at(&self) -> u64 {
        (self.payload_at() + self.inline as u64).next_multiple_of(8)
    }

    /// Bytes of the whole record.
    pub(super) fn len(&self) -> u64 {
        (self.pieces_at() + (self.pieces * PIECE) as u64).next_multiple_of(LINE)
    }

    /// The word behind the tag: all of the head, if the kind is short.
    pub(super) fn word(&self) -> u64 {
        let [a, b, c, d] = u32::try_from(self.inline).unwrap_or(u32::MAX).to_ne_bytes();
        let pieces = self.pieces.to_le_bytes()[0];
        u64::from_ne_bytes([self.kind as u8, self.flags, pieces, 0, a, b, c, d])
    }

    /// The head, behind the tag; and how much of it there is.
    pub(super) fn emit(&self) -> ([u8; FULL - 8], usize) {
        let mut out = [0; FULL - 8];
        out[..8].copy_from_slice(&self.word().to_ne_bytes());
        if self.kind.is_short() {
            return (out, SHORT - 8);
        }
        out[8..16].copy_from_slice(&self.raddr.to_ne_bytes());
        out[16..24].copy_from_slice(&self.total.to_ne_bytes());
        out[24..28].copy_from_slice(&self.key.to_ne_bytes());
        out[28..].copy_from_slice(&self.imm.to_ne_bytes());
        (out, FULL - 8)
    }

    /// Reads the head of a record (behind its tag); None if it makes no sense.
    pub(super) fn parse(raw: &[u8; FULL - 8]) -> Option<Head> {
        let kind = *Kind::ALL.get(usize::from(raw[0]))?;
        let (flags, pieces) = (raw[1], usize::from(raw[2]));
        let inline = usize::try_from(word(raw, 4)).ok().filter(|n| *n <= MAX_PAYLOAD)?;
        if pieces > MAX_SGE || flags & !(SOLICITED | INVALIDATE | BY_LANE) != 0 {
            return None;
        }
        if kind.is_short() {
            let plain = pieces == 0 && flags & !SOLICITED == 0;
            let fits = match kind {
                Kind::Answer => inline > 0,
                Kind::Fin => inline == 0,
                _ => true,
            };
            return (plain && fits).then(|| Head::short(kind, flags, inline));
        }
        let (raddr, total) = (long(raw, 8), long(raw, 16));
        let head = Head {
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

    /// Whether the payload is all there, once: in the record, and in pieces or the lane.
    fn is_whole(&self) -> bool {
        if self.total > MAX_MSG {
            return false;
        }
        let rest = match self.total.checked_sub(self.inline as u64) {
            Some(rest) => rest,
            None => return false,
        };
        match (self.kind, self.flags & BY_LANE != 0) {
            (Kind::Read, lane) => self.inline == 0 && self.pieces == 0 && !lane,
            (_, true) => self.pieces == 0 && rest > 0,
            (_, false) => (self.pieces > 0) == (rest > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(kind: Kind, inline: usize, pieces: usize, total: u64) -> Head {
        let head = Head { kind, flags: 0, pieces, inline, raddr: 7, total, key: 8, imm: 9 };
        if kind.is_short() { Head { raddr: 0, key: 0, imm: 0, ..head } } else { head }
    }

    #[test]
    fn what_is_emitted_is_parsed() {
        for h in [
            head(Kind::Send, 0, 0, 0),
            head(Kind::Send, MAX_PAYLOAD, 0, MAX_PAYLOAD as u64),
            head(Kind::LongSend, 10, MAX_SGE, MAX_MSG),
            Head { flags: INVALIDATE | SOLICITED, ..head(Kind::LongSend, 10, 0, 10) },
            Head { flags: BY_LANE, ..head(Kind::Write, 0, 0, 1) },
            head(Kind::WriteImm, 0, 0, 0),
            head(Kind::Read, 0, 0, MAX_MSG),
            head(Kind::Answer, 1, 0, 1),
            head(Kind::Fin, 0, 0, 0),
            Head::skip(256 << 10),
        ] {
            let (mut raw, len) = h.emit();
            raw[len..].fill(0xEE); // what an earlier lap has left
            assert_eq!(Head::parse(&raw), Some(h));
            assert!(h.len().is_multiple_of(LINE) && h.len() <= MAX_RECORD, "{h:?}");
        }
        assert_eq!(head(Kind::Send, 48, 0, 48).len(), LINE, "one line");
    }

    #[test]
    fn contradictions_are_refused() {
        let too_long = head(Kind::Write, 0, 1, MAX_MSG + 1);
        for h in [
            too_long,
            head(Kind::Write, 5, 0, 4),
            head(Kind::Write, 5, 0, 6),
            head(Kind::Write, 5, 1, 5),
            Head { flags: BY_LANE, ..head(Kind::Write, 5, 0, 5) },
            Head { flags: BY_LANE, ..head(Kind::Write, 5, 1, 9) },
            Head { flags: 0x80, ..head(Kind::Write, 5, 0, 5) },
            head(Kind::Write, 5, MAX_SGE + 1, 9),
            head(Kind::Write, MAX_PAYLOAD + 1, 0, MAX_PAYLOAD as u64 + 1),
            head(Kind::Read, 1, 0, 1),
            head(Kind::Answer, 0, 0, 0),
            head(Kind::Fin, 1, 0, 1),
            Head { flags: BY_LANE, ..Head::skip(0) },
            Head { flags: INVALIDATE, ..head(Kind::Send, 1, 0, 1) },
        ] {
            assert_eq!(Head::parse(&h.emit().0), None, "{h:?}");
        }
        assert_eq!(Head::parse(&[0xFF; FULL - 8]), None);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_bounded(raw in any::<[u8; FULL - 8]>(), kind in 0u8..9) {
            let mut raw = raw;
            (raw[0], raw[1], raw[2]) = (kind, raw[1] & 7, raw[2] & 7);
            if let Some(h) = Head::parse(&raw) {
                prop_assert!(h.len() <= MAX_RECORD && h.total <= MAX_MSG && h.inline as u64 <= h.total);
            }
        }

        #[test]
        fn pieces_are_read_back(raw in any::<[u8; PIECE]>()) {
            let piece = Piece::parse(&raw);
            prop_assert_eq!(Piece::parse(&piece.emit()), piece);
        }
    }
}
