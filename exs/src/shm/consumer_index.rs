//! The consumer index: how the reader of a ring reports how far it has read.
//!
//! The reader stores the index in shared memory ([`Word::Consumed`]). That store is
//! cheap. To check afterwards whether the peer sleeps and waits for room takes a fence, and the
//! fence waits for all earlier stores, those of the message just copied among them. So reports are
//! batched: an eager record, whose sender needs nothing but room, is reported together with later
//! ones, and several transfers in one turn share one check.

use super::link::ShmLink;
use super::record::RecordHead;
use super::ring::{Mem, MemSide, Word};
use super::ring_window::MIN_LAP;
use super::sleep::FOR_ROOM;

/// Bytes of a transfer from which on its end is reported with a check of its own.
const MIN_REPORTED_ALONE: u64 = 128 << 10;

/// The reports of the consumer index to the peer.
#[derive(Clone)]
pub(super) struct ConsumerIndex {
    /// Position up to which the peer knows that we have read.
    reported: u64,
    /// Bytes that may stay unreported. Set by each skip: an eighth of the lap.
    max_unreported: u64,
    /// The index was stored, but it was not checked whether the peer sleeps.
    ring_due: bool,
}

impl Default for ConsumerIndex {
    fn default() -> ConsumerIndex {
        let mut index = ConsumerIndex { reported: 0, max_unreported: 0, ring_due: false };
        index.set_lap(0);
        index
    }
}

impl ConsumerIndex {
    /// Sets how much may stay unreported in a lap of `lap` bytes.
    fn set_lap(&mut self, lap: u64) {
        self.max_unreported = (lap / 8).max(MIN_LAP / 4);
    }
}

/// The reading end of a ring: where the next record comes.
#[derive(Clone, Default)]
pub(super) struct RingReader {
    /// Position of the next record.
    pub(super) pos: u64,
    index: ConsumerIndex,
    /// Bytes of the last eager record while its consumer borrows them; 0: none are borrowed. They are
    /// not reported as read.
    pub(super) borrowed: u64,
}

impl RingReader {
    /// Position up to which the peer may write again.
    fn free_upto(&self) -> u64 {
        self.pos - self.borrowed
    }

    /// True if the peer does not know yet how far we have read.
    fn has_unreported(&self) -> bool {
        self.free_upto() != self.index.reported
    }

    /// True if so much is unreported that a report is due.
    pub(super) fn must_report(&self) -> bool {
        self.free_upto() - self.index.reported > self.index.max_unreported
    }

    /// Stores the consumer index. Returns what to wake the peer for, beside other news: room, or nothing.
    #[inline]
    pub(super) fn publish(&mut self, mem: &Mem) -> u64 {
        if !self.has_unreported() {
            return 0;
        }
        self.index.reported = self.free_upto();
        mem.set(Word::Consumed, self.index.reported);
        FOR_ROOM
    }

    /// Stores the consumer index. True if the caller must wake a peer that waits for room.
    pub(super) fn report(&mut self, mem: &Mem) -> bool {
        (self.publish(mem) != 0) | std::mem::take(&mut self.index.ring_due)
    }

    /// Follows a skip: the next record is at the beginning of the ring.
    pub(super) fn skip_to_start(&mut self, head: &RecordHead, mem: &Mem) {
        self.index.set_lap(head.lap());
        self.pos += mem.to_end(MemSide::Theirs, self.pos);
    }
}

impl ShmLink {
    /// Stores the consumer index. Does not wake the peer.
    pub(super) fn publish_consumed(&mut self) {
        self.rx.ring.publish(&self.mem);
    }

    /// Stores the consumer index, and wakes the peer if it waits for room.
    pub(super) fn report_consumed(&mut self) {
        if self.rx.ring.report(&self.mem) {
            self.ring(FOR_ROOM);
        }
    }

    /// Reports a transfer of `len` bytes: the peer sees it at once, and is woken before this turn
    /// ends.
    pub(super) fn report_transfer(&mut self, len: u64) {
        self.publish_consumed();
        self.rx.ring.index.ring_due = true;
        if len >= MIN_REPORTED_ALONE {
            self.report_consumed();
        }
    }

    /// Reports only if more than `max_unreported` bytes are unreported. The rest goes out with our
    /// next message, with the next poll, or before we sleep.
    pub(super) fn report_consumed_lazily(&mut self) {
        if self.rx.ring.must_report() {
            self.report_consumed();
        }
    }

    /// Follows a skip: the next record is at the beginning of the ring.
    pub(super) fn skip_to_start(&mut self, head: &RecordHead) {
        self.rx.ring.skip_to_start(head, &self.mem);
    }
}

#[cfg(test)]
impl ConsumerIndex {
    /// For a simulated reader: the bytes that may stay unreported, after a skip to `lap`.
    pub(super) fn max_unreported_after(&mut self, lap: Option<u64>) -> u64 {
        lap.into_iter().for_each(|lap| self.set_lap(lap));
        self.max_unreported
    }
}
