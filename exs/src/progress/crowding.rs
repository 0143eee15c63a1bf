//! Whether other programs want the processors.
//!
//! A thread that spins yields the processor between its looks. If another program computes there,
//! the yield takes a time slice. A thread that sleeps instead gets the processor back as soon as
//! something comes for it. But a yield is long for other reasons too, now and then: a thread of the
//! system runs, or a hypervisor takes the processor away. So spins have a budget. Each spin that
//! finds what it looks for adds the time that it has saved, and each long yield takes off the time
//! that it took. When the budget is used up, the threads of the shard sleep at once for a while.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::time::{Time, nanos};

/// A yield that takes longer has given the processor to a thread that computes. A shorter one has
/// mostly let a peer run.
const LONG_YIELD: Duration = Duration::from_micros(500);
/// What a spin saves that finds what it looks for: a sleep, the peer's system call that ends it, and
/// the time until the thread runs.
const SAVED: Duration = Duration::from_micros(20);
/// The budget of a shard whose spins have not found anything yet, or have used up theirs. It is less
/// than a time slice.
const FIRST_BUDGET: Duration = Duration::from_millis(1);
/// The largest budget. When another program begins to compute, the spins lose this much before the
/// threads sleep at once: a few time slices.
const MAX_BUDGET: Duration = Duration::from_millis(10);
/// How long the threads then sleep at once. Each time that begins soon after another one is twice as
/// long, up to 640 ms: on a busy machine a yield can cost a hundred round trips.
const PAUSE: Duration = Duration::from_millis(20);
const MOST_DOUBLINGS: u32 = 5;

/// The budget of a shard's spins, and whether its threads must sleep at once. Several threads change
/// it without a lock, and may lose each other's changes, which does no harm.
#[derive(Debug)]
pub(super) struct Crowding {
    /// The budget that is left (ns).
    budget: AtomicU64,
    /// Until then (ns) the threads sleep at once.
    until: AtomicU64,
    /// How often the length of that time was doubled.
    doublings: AtomicU32,
}

impl Default for Crowding {
    fn default() -> Crowding {
        let budget = AtomicU64::new(nanos(FIRST_BUDGET));
        Crowding { budget, until: AtomicU64::new(0), doublings: AtomicU32::new(0) }
    }
}

impl Crowding {
    /// A spin has found what it looked for.
    pub(super) fn note_find(&self) {
        let budget = self.budget.load(Ordering::Relaxed);
        let most = nanos(MAX_BUDGET);
        if budget < most {
            self.budget.store(most.min(budget + nanos(SAVED)), Ordering::Relaxed);
        }
    }

    /// A thread that spins has yielded the processor from `begun` until `now`. True if other programs
    /// want the processor, and the thread must sleep.
    pub(super) fn note_yield(&self, begun: Time, now: Time) -> bool {
        let took = now.since(begun);
        if took <= LONG_YIELD {
            return false;
        }
        let left = self.budget.load(Ordering::Relaxed).checked_sub(nanos(took));
        self.budget.store(left.unwrap_or(nanos(FIRST_BUDGET)), Ordering::Relaxed);
        if left.is_none() {
            self.pause(now);
        }
        left.is_none()
    }

    fn pause(&self, now: Time) {
        let doublings = self.doublings.load(Ordering::Relaxed);
        let ended = self.until.load(Ordering::Relaxed);
        let soon = ended > 0 && now.since(Time::from_nanos(ended)) < PAUSE * (1 << doublings);
        let doublings = if soon { MOST_DOUBLINGS.min(doublings + 1) } else { 0 };
        self.doublings.store(doublings, Ordering::Relaxed);
        self.until.store((now + PAUSE * (1 << doublings)).as_nanos(), Ordering::Relaxed);
    }

    /// True if other programs want the processors.
    pub(super) fn is_crowded(&self, now: Time) -> bool {
        now.as_nanos() < self.until.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_nanos(1_000 * micros)
    }

    /// A yield of this many microseconds, which ends now.
    fn yields(crowding: &Crowding, micros: u64, now: u64) -> bool {
        crowding.note_yield(at(now - micros), at(now))
    }

    #[test]
    fn a_time_slice_makes_a_shard_crowded_for_a_while() {
        let crowding = Crowding::default();
        assert!(!crowding.is_crowded(at(0)));
        assert!(yields(&crowding, 1_001, 10_000));
        assert!(crowding.is_crowded(at(10_000)) && crowding.is_crowded(at(29_999)));
        assert!(!crowding.is_crowded(at(30_000)));
    }

    #[test]
    fn short_yields_cost_nothing() {
        let crowding = Crowding::default();
        assert!((1..1_000).all(|n| !yields(&crowding, 500, 1_000 * n)));
        assert!(!yields(&crowding, 501, 2_000_000), "longer than that, but there is a budget");
        assert!(yields(&crowding, 501, 2_001_000), "which is then used up");
    }

    #[test]
    fn a_shard_that_is_crowded_again_and_again_is_crowded_for_longer() {
        let crowding = Crowding::default();
        let mut now = 1_000_000;
        let mut crowded = |after: u64| {
            now += after;
            assert!(yields(&crowding, 3_000, now));
            let begun = now;
            while crowding.is_crowded(at(now)) {
                now += 1_000;
            }
            (now - begun) / 1_000
        };
        assert_eq!([crowded(0), crowded(1_000), crowded(1_000)], [20, 40, 80]);
        assert_eq!([crowded(90_000), crowded(10_000)], [20, 40], "it was quiet for a while");
        let lengths: Vec<_> = (0..6).map(|_| crowded(0)).collect();
        assert_eq!(lengths, [80, 160, 320, 640, 640, 640]);
    }

    #[test]
    fn spins_that_find_pay_for_rare_long_yields() {
        let crowding = Crowding::default();
        let find = |count: u32| (0..count).for_each(|_| crowding.note_find());
        find(100);
        assert!(!yields(&crowding, 3_000, 10_000), "100 finds have added 2 ms to the first budget");
        assert!(yields(&crowding, 501, 12_000), "and no more than that");
        find(49);
        assert!(!yields(&crowding, 1_500, 40_000) && yields(&crowding, 501, 41_000));
    }

    #[test]
    fn a_program_that_begins_to_compute_costs_a_few_time_slices() {
        let crowding = Crowding::default();
        (0..1_000_000).for_each(|_| crowding.note_find());
        let lost = (1..).take_while(|n| !yields(&crowding, 3_000, 3_000 * n));
        assert_eq!(lost.count(), 3);
    }
}
