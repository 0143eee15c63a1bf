//! A monotonic clock that is cheap enough to read between any two polls of a queue.
//!
//! The kernel's clock costs 20 ns where the vDSO serves it, and a system call where it does not
//! (many virtual machines, User Mode Linux). That is more than the message that a busy-polling
//! thread waits for. The processor's own counter costs a few nanoseconds. So the clock advances
//! by the counter for at most a millisecond, and then reads the kernel's clock again, which also
//! gives the rate of the counter.
//!
//! All clocks of the process count from the same moment, so a time of one shard means the same in
//! another. Each has measured its rate itself, so two of them may differ by microseconds.
//!
//! The clock notices a counter that jumps (another core's, a migrated machine), and asks the
//! kernel. It measures the rate again for a counter that starts again, or that runs on while the
//! kernel's clock stands (a suspended machine).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Instant;

use crate::time::{Time, nanos};

/// Nanoseconds after which the kernel's clock is read again.
const TRUST: u64 = 1_000_000;

/// The clock. The module's head explains it.
pub struct Clock {
    start: Instant,
    /// Counter and nanoseconds at the start of the measurement of the rate.
    first: AtomicU64,
    since: AtomicU64,
    /// Even: the three fields below, and the two above, belong together. Odd: a thread is
    /// changing them.
    seq: AtomicU64,
    ticks: AtomicU64,
    nanos: AtomicU64,
    /// Nanoseconds per tick, times 2^32. 0 while the rate is not known.
    scale: AtomicU64,
    /// The last results of `now` and of `now_locked`. No later result is less.
    last: AtomicU64,
    last_locked: AtomicU64,
}

/// Returns the processor's counter; 0 where there is none that EXS reads.
pub fn cycles() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has the instruction, and Linux lets it be used
    // (a process that forbids itself, by PR_SET_TSC, asks for what it gets).
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    return 0;
}

/// The moment from which all clocks count: when the process made its first one.
static START: OnceLock<Instant> = OnceLock::new();

impl Default for Clock {
    fn default() -> Clock {
        let start = *START.get_or_init(Instant::now);
        Clock {
            start,
            first: AtomicU64::new(cycles()),
            since: AtomicU64::new(nanos(start.elapsed())),
            seq: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            scale: AtomicU64::new(0),
            last: AtomicU64::new(0),
            last_locked: AtomicU64::new(0),
        }
    }
}

impl Clock {
    /// Returns the time since the process made its first clock. Never less than an earlier result.
    pub fn now(&self) -> Time {
        let ns = self.by_counter().unwrap_or_else(|| self.by_kernel());
        // Two cores' counters may differ by a little.
        let ns = ns.max(self.last_locked.load(Ordering::Relaxed));
        let last = self.last.fetch_max(ns, Ordering::Relaxed);
        Time::from_nanos(ns.max(last))
    }

    /// Returns about the same as `now`, for limits of how long to spin. Another thread may have
    /// got a later time.
    #[inline]
    pub fn about(&self) -> Time {
        Time::from_nanos(self.by_counter().unwrap_or_else(|| self.by_kernel()))
    }

    /// As `now`, for callers that hold a lock which all callers of this function hold. They come
    /// one after the other, which saves an atomic exchange. `about` is the result of a call of
    /// [`Clock::about`] just before, and saves reading the counter again.
    #[inline]
    pub fn now_locked(&self, about: Option<Time>) -> Time {
        let ns = match about {
            Some(time) => time.as_nanos(),
            None => self.by_counter().unwrap_or_else(|| self.by_kernel()),
        };
        let ns = ns.max(self.last.load(Ordering::Relaxed));
        let ns = ns.max(self.last_locked.load(Ordering::Relaxed));
        self.last_locked.store(ns, Ordering::Relaxed);
        Time::from_nanos(ns)
    }

    #[inline]
    fn by_counter(&self) -> Option<u64> {
        let seq = self.seq.load(Ordering::Acquire);
        let scale = self.scale.load(Ordering::Relaxed);
        let (ticks, nanos) =
            (self.ticks.load(Ordering::Relaxed), self.nanos.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if scale == 0 || seq % 2 == 1 || self.seq.load(Ordering::Relaxed) != seq {
            return None;
        }
        // The counter ran backwards or too far: the caller asks the kernel.
        let passed = cycles().checked_sub(ticks)?;
        let passed = u64::try_from((u128::from(passed) * u128::from(scale)) >> 32).ok()?;
        (passed < TRUST).then(|| nanos + passed)
    }

    #[cold]
    fn by_kernel(&self) -> u64 {
        let ticks = cycles();
        let nanos = nanos(self.start.elapsed());
        let seq = self.seq.load(Ordering::Relaxed);
        // Before that, the counter's rate is not known well enough.
        let measured = nanos.saturating_sub(self.since.load(Ordering::Relaxed));
        if measured < TRUST || seq % 2 == 1 {
            return nanos;
        }
        let claim = self.seq.compare_exchange(seq, seq + 1, Ordering::Acquire, Ordering::Relaxed);
        if claim.is_ok() {
            let measured = self.rate(ticks, nanos);
            if measured.is_none() {
                self.first.store(ticks, Ordering::Relaxed);
                self.since.store(nanos, Ordering::Relaxed);
            }
            self.ticks.store(ticks, Ordering::Relaxed);
            self.nanos.store(nanos, Ordering::Relaxed);
            self.scale.store(measured.unwrap_or(0), Ordering::Relaxed);
            self.seq.store(seq + 2, Ordering::Release);
        }
        nanos
    }

    /// Returns the counter's rate since the start of the measurement, as a scale; 0 if it is not
    /// known yet. None: the rate has changed, so the counter has jumped. A rate that is wrong by
    /// less than an eighth shifts the time by less than an eighth of a millisecond.
    fn rate(&self, ticks: u64, nanos: u64) -> Option<u64> {
        let run = ticks.checked_sub(self.first.load(Ordering::Relaxed))?;
        let nanos = nanos.saturating_sub(self.since.load(Ordering::Relaxed));
        if nanos < TRUST {
            return Some(0);
        }
        // A counter below 1 Hz is no counter.
        let scale = (u128::from(nanos) << 32).checked_div(u128::from(run)).unwrap_or(0);
        let scale = u64::try_from(scale).unwrap_or(0);
        let before = self.scale.load(Ordering::Relaxed);
        (before == 0 || scale.abs_diff(before) <= before / 8).then_some(scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_clock_follows_the_kernels_and_never_goes_back() {
        let clock = Clock::default();
        let begun = Instant::now();
        let mut last = clock.now();
        while begun.elapsed() < Duration::from_millis(50) {
            let before = begun.elapsed();
            let locked = begun.elapsed().subsec_nanos().is_multiple_of(2);
            let now = if locked { clock.now_locked(None) } else { clock.now() };
            assert!(now >= last);
            // The clock is older than `begun`, so it is never behind it by more than the
            // counter's error in a millisecond of trust.
            let slack = Duration::from_micros(200);
            assert!(now.since(Time::ZERO) + slack >= before, "{now:?} < {before:?}");
            last = now;
        }
    }

    #[test]
    fn a_later_clock_counts_from_the_same_moment() {
        let early = Clock::default();
        let begun = early.now();
        while early.now().since(begun) < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let late = Clock::default();
        assert!(late.now().since(begun) >= Duration::from_millis(19));
    }

    #[test]
    fn a_counter_that_jumps_is_not_believed() {
        let clock = Clock::default();
        clock.scale.store(1 << 32, Ordering::Relaxed);
        // A base in the counter's future, as another core's may be.
        clock.ticks.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(clock.by_counter(), None);
        // A base so old that the kernel must be asked.
        clock.ticks.store(0, Ordering::Relaxed);
        if cycles() > TRUST {
            assert_eq!(clock.by_counter(), None);
        }
    }

    /// Returns what `rate` finds for a counter at 3 GHz that starts at `first`, `after` seconds later.
    fn rate_after(first: u64, ticks: u64, before: u64, after: u64) -> Option<u64> {
        let clock = Clock::default();
        clock.first.store(first, Ordering::Relaxed);
        clock.since.store(0, Ordering::Relaxed);
        clock.scale.store(before, Ordering::Relaxed);
        clock.rate(ticks, after * 1_000_000_000)
    }

    #[test]
    fn a_restarted_counter_is_measured_anew() {
        const GHZ: u64 = 1_000_000_000;
        let three = (1 << 32) / 3;
        // As it should be, and not yet known.
        assert_eq!(rate_after(7 * GHZ, 307 * GHZ, 0, 100), Some(three));
        assert_eq!(rate_after(7 * GHZ, 307 * GHZ, three, 100), Some(three));
        assert_eq!(rate_after(7 * GHZ, 7 * GHZ + 1, 0, 0), Some(0));
        // The machine was put to sleep: the counter begins again, below the first or above.
        assert_eq!(rate_after(7 * GHZ, GHZ, three, 100), None);
        assert_eq!(rate_after(7 * GHZ, 8 * GHZ, three, 100), None);
        // The counter went on, and the kernel's clock stood.
        assert_eq!(rate_after(7 * GHZ, 4000 * GHZ, three, 100), None);
    }

    #[test]
    fn time_goes_on_after_the_counter_has_jumped() {
        if cycles() == 0 {
            return; // no counter is read here
        }
        let mut clock = Clock::default();
        // A day old, and the counter has stood higher than it does now.
        clock.start -= Duration::from_secs(86_400);
        let high = cycles() + 1_000_000_000_000;
        clock.first.store(high, Ordering::Relaxed);
        clock.ticks.store(high + 1, Ordering::Relaxed);
        clock.scale.store(1 << 30, Ordering::Relaxed);
        let before = clock.now();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(10) {
            std::hint::spin_loop();
        }
        let passed = clock.now().since(before);
        assert!(passed >= Duration::from_millis(9), "{passed:?}");
    }
}
