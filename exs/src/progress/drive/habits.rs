//! The habits of the event loops that drive a shard.
//!
//! No call tells what a loop does next, so a shard keeps a record of what its loops have done. Pure:
//! the caller says what it sees. Threads that lose counts to each other do no harm.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::progress::tries::Tries;

/// The number of dequeues that arm early after the background thread had to arm the shard.
const EARLY: u32 = 1024;
/// Sleeps in a row that loops have announced, after which they are taken to announce each.
const ORDERLY: u32 = 16;
/// Reads in a row without a byte after which only each [`PROBE`]th one is made.
const MAX_MISSES: u32 = 2;
const PROBE: u32 = 64;

/// What loops have done lately.
#[derive(Debug, Default)]
pub(super) struct Habits {
    /// The number of coming dequeues that arm early.
    early: AtomicU32,
    /// Sleeps that loops have announced since one that they have not; [`ORDERLY`] at most.
    announced: AtomicU32,
    reads: Tries,
}

impl Habits {
    /// A dequeue that found nothing has announced a sleep.
    pub(super) fn note_announced(&self) {
        let announced = self.announced.load(Ordering::Relaxed);
        if announced < ORDERLY {
            self.announced.store(announced + 1, Ordering::Relaxed);
        }
    }

    /// A program has gone to sleep and has announced nothing.
    pub(super) fn note_unannounced(&self) {
        self.early.store(EARLY, Ordering::Relaxed);
        self.announced.store(0, Ordering::Relaxed);
    }

    /// True if dequeues that find events must arm the shard.
    #[inline]
    pub(super) fn arm_early(&self) -> bool {
        self.early.load(Ordering::Relaxed) > 0
    }

    /// Such a dequeue arms the shard.
    pub(super) fn note_early(&self) {
        let early = self.early.load(Ordering::Relaxed);
        self.early.store(early.saturating_sub(1), Ordering::Relaxed);
    }

    /// True if loops announce each sleep: a thread that has found events dequeues again before it waits
    /// for a descriptor.
    #[inline]
    pub(super) fn come_again(&self) -> bool {
        self.announced.load(Ordering::Relaxed) >= ORDERLY && !self.arm_early()
    }

    /// True if a loop that has slept should read the connections that had bytes recently, before it asks
    /// the kernel which are readable.
    #[inline]
    pub(super) fn read_first(&self) -> bool {
        self.reads.next(MAX_MISSES, PROBE)
    }

    /// Such a read has ended.
    #[inline]
    pub(super) fn note_read(&self, found: bool) {
        self.reads.note(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_that_have_announced_many_sleeps_come_again() {
        let habits = Habits::default();
        let announce = |times| (0..times).for_each(|_| habits.note_announced());
        announce(ORDERLY - 1);
        assert!(!habits.come_again());
        announce(2);
        assert!(habits.come_again());
        habits.note_unannounced();
        announce(ORDERLY);
        assert!(!habits.come_again(), "dequeues arm early for a while");
        (0..EARLY).for_each(|_| {
            assert!(habits.arm_early());
            habits.note_early();
        });
        assert!(!habits.arm_early());
        assert!(habits.come_again());
    }

    #[test]
    fn reads_that_find_nothing_become_probes() {
        let habits = Habits::default();
        let reads = |chances: u32, found: bool| -> Vec<u32> {
            let reads = |_: &u32| {
                let reads = habits.read_first();
                if reads {
                    habits.note_read(found);
                }
                reads
            };
            (0..chances).filter(reads).collect()
        };
        assert_eq!(reads(3, true), [0, 1, 2]);
        assert_eq!(reads(2 * PROBE + 1, false), [0, 1, PROBE, 2 * PROBE]);
        assert_eq!(reads(PROBE + 2, true).len(), 3, "one that finds bytes brings the others back");
    }
}
