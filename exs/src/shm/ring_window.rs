//! The ring window: how much of its ring a sender uses.
//!
//! A sender may go back to the beginning of its ring at any record. It writes a *skip*, and puts
//! the next record at the beginning. The bytes from the beginning to the skip are a *lap*.
//!
//! The length of a lap matters both ways. In a short lap the two sides wait for each other:
//! 4 KiB messages, one after the other, move half as fast through 64 KiB as through 256 KiB. In a
//! long lap each record lies in lines that the caches have dropped. So a lap is doubled when the
//! peer is far behind at its end. It is halved after several laps at whose end the peer had
//! nearly caught up. Connections that are busy at the same time share one budget.
//!
//! # Room
//! The reader reports its position only now and then (`consumer_index.rs`). Of the bytes that it
//! has read, `unreported` are not yet free for the sender. Still, a record of `len` bytes finds
//! room as soon as the peer has read all records before it. Let the record stand at `offset`:
//!
//! - It wraps only if `offset + len > max(lap, 3 * len)`. So
//!   `offset - len > max(lap, 3 * len) - 2 * len >= lap / 3`.
//! - `unreported <= max(lap / 8, 4 KiB)` and `lap >= 16 KiB`. So `unreported < lap / 3`.
//! - Hence `len + unreported < offset`, which is the free space at the beginning.

use super::link::ShmLink;
use super::record::{PIECE_LEN, RecordHead, RecordPiece};
use super::ring::{Area, Mem, MemSide, RING, Word};
use crate::sys::IoVec;

/// Bytes of the shortest lap of a connection that is busy alone.
const MIN_LAP_ALONE: u64 = 64 << 10;
/// Bytes of the shortest lap.
pub(super) const MIN_LAP: u64 = 16 << 10;
/// Bytes that the laps of all busy connections have together, if several are busy.
const SHARED_BUDGET: u64 = 128 << 10;
/// Unread records at the end of a lap from which on the lap is too short.
const LAG_TO_GROW: u64 = 8;
/// Unread records at the end of a lap up to which the lap is longer than needed.
const LAG_TO_SHRINK: u64 = 2;
/// Laps in a row that were longer than needed, after which the next lap is half as long.
const LAPS_TO_SHRINK: u32 = 8;

/// The ring window of one sender.
#[derive(Clone)]
pub(super) struct RingWindow {
    /// Bytes of a lap.
    len: u64,
    /// Busy connections of this process, this one included.
    busy_links: usize,
    /// Laps in a row that were longer than needed.
    oversized_laps: u32,
    /// A record found no room in this lap.
    was_full: bool,
}

impl Default for RingWindow {
    fn default() -> RingWindow {
        RingWindow { len: MIN_LAP, busy_links: 1, oversized_laps: 0, was_full: false }
    }
}

impl RingWindow {
    /// Sets how many connections are busy.
    pub(super) fn set_busy_links(&mut self, busy: usize) {
        self.busy_links = busy;
    }

    /// Bytes of the longest lap for this number of busy connections.
    fn max_len(&self) -> u64 {
        if self.busy_links <= 1 {
            RING
        } else {
            (SHARED_BUDGET / self.busy_links as u64).max(MIN_LAP)
        }
    }

    /// The offset at which a lap must end if its last record has `len` bytes.
    fn lap_end(&self, len: u64) -> u64 {
        self.len.max(3 * len)
    }

    /// True if a record of `len` bytes goes beyond the lap. `left`: bytes to the end of the ring.
    pub(super) fn exceeds(&self, left: u64, len: u64) -> bool {
        RING - left + len > self.lap_end(len)
    }

    /// Notes that a record found no room.
    pub(super) fn note_full(&mut self) {
        self.was_full = true;
    }

    /// Ends the lap before a record of `len` bytes. `left`: bytes to the end of the ring; `used`: bytes
    /// that the peer has not reported as read. Returns the bytes to skip: 0 if the lap is longer now.
    /// None if there is no room at the beginning.
    pub(super) fn wrap(&mut self, left: u64, len: u64, used: u64) -> Option<u64> {
        let (room, most) = (used + left + len <= RING, self.max_len());
        if (self.was_full || !room || used >= LAG_TO_GROW * len)
            && self.len < most
            && used + len <= RING
        {
            // The rest of the ring is free: the `used` bytes are records of this lap.
            self.len = (2 * self.len).min(most);
            (self.oversized_laps, self.was_full) = (0, false);
            if !self.exceeds(left, len) {
                return Some(0);
            }
        }
        if !room {
            self.was_full = true;
            return None;
        }
        let calm = !self.was_full && used <= LAG_TO_SHRINK * len;
        (self.oversized_laps, self.was_full) =
            (if calm { self.oversized_laps + 1 } else { 0 }, false);
        if self.oversized_laps >= LAPS_TO_SHRINK {
            (self.len, self.oversized_laps) = (self.len / 2, 0);
        }
        self.len = self.len.max(MIN_LAP_ALONE).min(most);
        Some(left)
    }
}

/// The writing end of a ring: where the next record goes.
#[derive(Clone, Default)]
pub(super) struct RingWriter {
    /// Position of the next record.
    pub(super) pos: u64,
    /// The peer's consumer index, as read last.
    pub(super) consumed: u64,
    pub(super) window: RingWindow,
    /// Position of this side's reader when the last eager message left.
    pub(super) read_at_message: u64,
}

impl RingWriter {
    /// Bytes to skip before a record of `len` bytes. None if there is no room for the record.
    fn skip_for(&mut self, len: u64, mem: &Mem) -> Option<u64> {
        let left = mem.to_end(MemSide::Ours, self.pos);
        let mut skip = 0;
        if self.window.exceeds(left, len) && !mem.is_first(self.pos) {
            self.read_consumed(mem)?;
            skip = self.window.wrap(left, len, self.pos - self.consumed)?;
        }
        if self.pos + skip + len - self.consumed > RING {
            self.read_consumed(mem)?;
        }
        let room = self.pos + skip + len - self.consumed <= RING;
        if !room {
            self.window.note_full();
        }
        room.then_some(skip)
    }

    /// Reads the peer's consumer index. None if the value is impossible.
    pub(super) fn read_consumed(&mut self, mem: &Mem) -> Option<()> {
        let consumed = mem.theirs(Word::Consumed);
        (consumed >= self.consumed && consumed <= self.pos).then(|| self.consumed = consumed)
    }

    /// The position of the next record, if it is as long as the last one (`len` bytes).
    pub(super) fn next_pos(&self, len: u64, mem: &Mem) -> u64 {
        let left = mem.to_end(MemSide::Ours, self.pos);
        self.pos + if self.window.exceeds(left, len) { left } else { 0 }
    }

    /// Makes sure that a record of `len` bytes has room at `pos`, and writes a skip if needed. False if
    /// there is no room. `Tx::read_peer_words` ends a link whose peer reports an impossible index.
    #[inline(always)]
    pub(super) fn reserve(&mut self, len: u64, mem: &Mem) -> bool {
        match self.skip_for(len, mem) {
            None => return false,
            Some(0) => {}
            Some(bytes) => {
                let end = self.pos + bytes;
                self.append(&RecordHead::skip(self.window.len), |_, _| {}, &[], mem);
                self.pos = end;
            }
        }
        true
    }

    /// Writes a record at `pos` and publishes it. The caller must have reserved the room.
    pub(super) fn append(
        &mut self,
        head: &RecordHead,
        payload: impl FnOnce(&Mem, u64),
        pieces: &[RecordPiece],
        mem: &Mem,
    ) {
        let pos = self.pos;
        let (raw, len) = head.emit();
        mem.put(Area::Ring, pos + 8, &IoVec::new(&raw[..len]));
        payload(mem, pos + head.payload_at());
        for (i, piece) in pieces.iter().enumerate() {
            let at = pos + head.pieces_at() + (i * PIECE_LEN) as u64;
            mem.put(Area::Ring, at, &IoVec::new(&piece.emit()));
        }
        mem.publish(pos);
        self.pos += head.len();
    }
}

impl ShmLink {
    /// Makes sure that a record of `len` bytes has room ([`RingWriter::reserve`]).
    #[inline(always)]
    pub(super) fn reserve(&mut self, len: u64) -> bool {
        self.tx.ring.reserve(len, &self.mem)
    }

    /// Does the same for a record that waits if there is no room.
    pub(super) fn reserve_or_wait(&mut self, len: u64) -> bool {
        self.tx.record_waits = !self.reserve(len);
        !self.tx.record_waits
    }
}

#[cfg(test)]
mod tests;
