//! The record of tries that pay at some times, and at others do not.

use std::sync::atomic::{AtomicU32, Ordering};

/// Tries since the last one that has paid. After some misses in a row only each `probe`th try is made.
/// Threads that lose counts to each other do no harm.
#[derive(Debug, Default)]
pub(super) struct Tries {
    misses: AtomicU32,
}

impl Tries {
    /// True if the next try is made.
    #[inline]
    pub(super) fn next(&self, max_misses: u32, probe: u32) -> bool {
        let misses = self.misses.load(Ordering::Relaxed);
        let made = misses < max_misses || misses.is_multiple_of(probe);
        if !made {
            self.misses.store(misses.wrapping_add(1), Ordering::Relaxed);
        }
        made
    }

    /// Such a try has ended.
    #[inline]
    pub(super) fn note(&self, paid: bool) {
        let misses = self.misses.load(Ordering::Relaxed);
        let next = if paid { 0 } else { misses.wrapping_add(1) };
        if next != misses {
            self.misses.store(next, Ordering::Relaxed);
        }
    }
}
