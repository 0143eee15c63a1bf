//! How much of its ring a sender uses.
//!
//! A sender may go back to the beginning of the ring at any record: it writes a *skip*, and
//! the record after that lies there. What it uses so is a *lap*. A lap that is too short has the
//! two sides wait for each other: messages of 4 KiB, one sent after the other, move half as fast
//! through 64 KiB as through 256. One that is too long costs, too: each record then lies in
//! lines that the caches have forgotten. So a lap is doubled when the peer is far behind at
//! its end, and halved after some at whose end the peer had nearly caught up. And connections that are
//! busy at the same time share what all of them use.
//!
//! # Room
//! Whoever reads tells how far it is only now and then (`tell.rs`). A record finds room
//! nevertheless, once all before it were taken: the lap ends where three such records would, or
//! later. So the one that is over it begins two of its own length after the beginning, or more, and that
//! is more than its own length and what may stay untold.

use super::link::Link;
use super::record::Head;
use super::ring::{Mem, RING, Whose, Word};
use super::tx::Tx;

/// The shortest lap of a connection that is busy alone, and of any.
const LEAST: u64 = 64 << 10;
pub(super) const LEAST_OF_ALL: u64 = 16 << 10;
/// What all connections together use of their rings, about, if they are several.
const TOGETHER: u64 = 128 << 10;
/// Records that the peer has yet to take at the end of a lap: so many, and the lap is too short;
/// no more than so many, and it is longer than need be.
const MANY: u64 = 8;
const FEW: u64 = 2;
/// Laps without need, after which the next is half as long.
const CALM: u32 = 8;

/// The lap of one sender.
pub(super) struct RingWindow {
    len: u64,
    /// Connections that are busy, with this one.
    busy: usize,
    /// Laps in a row that were longer than need be.
    calm: u32,
    /// There was no room for a record in this one.
    tight: bool,
}

impl Default for RingWindow {
    fn default() -> RingWindow {
        RingWindow { len: LEAST_OF_ALL, busy: 1, calm: 0, tight: false }
    }
}

impl RingWindow {
    /// So many connections are busy.
    pub(super) fn share(&mut self, busy: usize) {
        self.busy = busy;
    }

    /// How long it may become.
    fn most(&self) -> u64 {
        if self.busy <= 1 { RING } else { (TOGETHER / self.busy as u64).max(LEAST_OF_ALL) }
    }

    /// Where the lap ends for a record of `len` bytes.
    fn end(&self, len: u64) -> u64 {
        self.len.max(3 * len)
    }

    /// True if a record of `len` bytes, with `left` bytes to the end of the ring, is beyond
    /// the lap.
    pub(super) fn is_over(&self, left: u64, len: u64) -> bool {
        RING - left + len > self.end(len)
    }

    /// There was no room.
    pub(super) fn note_full(&mut self) {
        self.tight = true;
    }

    /// The lap is over for a record of `len` bytes, with `left` bytes to the end of the ring, of
    /// which `used` are in use: how many to skip. None: there is no room at the beginning.
    pub(super) fn turn(&mut self, left: u64, len: u64, used: u64) -> Option<u64> {
        let (room, most) = (used + left + len <= RING, self.most());
        if (self.tight || !room || used >= MANY * len) && self.len < most && used + len <= RING {
            // The rest of the ring is free: what lies behind are the records of this lap.
            self.len = (2 * self.len).min(most);
            (self.calm, self.tight) = (0, false);
            if !self.is_over(left, len) {
                return Some(0);
            }
        }
        if !room {
            self.tight = true;
            return None;
        }
        let calm = !self.tight && used <= FEW * len;
        (self.calm, self.tight) = (if calm { self.calm + 1 } else { 0 }, false);
        if self.calm >= CALM {
            (self.len, self.calm) = (self.len / 2, 0);
        }
        self.len = self.len.max(LEAST).min(most);
        Some(left)
    }
}

impl Tx {
    /// Bytes to be skipped before a record of `len` bytes, if there is room for it.
    fn room(&mut self, len: u64, mem: &Mem) -> Option<u64> {
        let left = mem.to_end(Whose::Ours, self.pos);
        let mut skip = 0;
        if self.lap.is_over(left, len) && !mem.is_first(self.pos) {
            self.catch_up(mem)?;
            skip = self.lap.turn(left, len, self.pos - self.consumed)?;
        }
        if self.pos + skip + len - self.consumed > RING {
            self.catch_up(mem)?;
        }
        let room = self.pos + skip + len - self.consumed <= RING;
        if !room {
            self.lap.note_full();
        }
        room.then_some(skip)
    }

    /// Looks how far the peer is; None if it says nonsense.
    pub(super) fn catch_up(&mut self, mem: &Mem) -> Option<()> {
        let consumed = mem.theirs(Word::Consumed);
        (consumed >= self.consumed && consumed <= self.pos).then(|| self.consumed = consumed)
    }

    /// The lines of the next record, if that is as long as the last one.
    pub(super) fn next(&self, len: u64, mem: &Mem) -> u64 {
        let left = mem.to_end(Whose::Ours, self.pos);
        self.pos + if self.lap.is_over(left, len) { left } else { 0 }
    }
}

impl Link {
    /// True if there is room for a record of so many bytes, where the next one goes. (A peer
    /// that says nonsense of how far it is, is for `look` to deal with.)
    #[inline(always)]
    pub(super) fn make_room(&mut self, len: u64) -> bool {
        match self.tx.room(len, &self.mem) {
            None => return false,
            Some(0) => {}
            Some(bytes) => {
                let end = self.tx.pos + bytes;
                self.write(&Head::skip(self.tx.lap.len), |_, _| {}, &[]);
                self.tx.pos = end;
            }
        }
        true
    }

    /// The same for what waits if there is none.
    pub(super) fn has_room(&mut self, len: u64) -> bool {
        self.tx.full = !self.make_room(len);
        !self.tx.full
    }
}

#[cfg(test)]
mod tests;
