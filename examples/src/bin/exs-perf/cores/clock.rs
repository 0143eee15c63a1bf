//! The clock that the threads of a run share.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use exs_tools::fail::Failure;

use super::ask::PATIENCE;

/// Time before the clock starts; no longer than the run itself.
const WARM_UP: Duration = Duration::from_millis(200);

/// When the threads of a run count, and when they end.
pub(super) struct Clock {
    gate: Barrier,
    counting: AtomicBool,
    /// A unit of work was counted.
    counted: AtomicBool,
    over: AtomicBool,
}

impl Clock {
    fn new(threads: usize) -> Clock {
        let (gate, no) = (Barrier::new(threads + 1), || AtomicBool::new(false));
        Clock { gate, counting: no(), counted: no(), over: no() }
    }

    /// A thread is ready. Returns when all are.
    pub(super) fn ready(&self) {
        self.gate.wait();
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// How much to count for one unit of work: nothing during the warm-up.
    pub(super) fn unit(&self) -> u64 {
        let counts = self.counting.load(Ordering::Relaxed);
        if counts && !self.counted.load(Ordering::Relaxed) {
            self.counted.store(true, Ordering::Relaxed);
        }
        u64::from(counts)
    }
}

/// Runs `work` in `threads` threads, and returns the sum of their counts in a second. Each calls
/// [`Clock::ready`] once, whether it succeeds or fails.
pub(super) fn rate<W>(threads: usize, duration: Duration, work: W) -> Result<f64, Failure>
where
    W: Fn(usize, &Clock) -> Result<u64, Failure> + Sync,
{
    let clock = Clock::new(threads);
    thread::scope(|scope| {
        let (clock, work) = (&clock, &work);
        let workers: Vec<_> = (0..threads).map(|n| scope.spawn(move || work(n, clock))).collect();
        clock.ready();
        // sleep-ok: the warm-up is a time
        thread::sleep(WARM_UP.min(duration));
        clock.counting.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        // Beside other programs a thread may not have the processor once in a short run.
        loop {
            // sleep-ok: a run is a time
            thread::sleep(duration);
            let counted = clock.counted.load(Ordering::Relaxed);
            if counted || begun.elapsed() > PATIENCE || workers.iter().any(|w| w.is_finished()) {
                break;
            }
        }
        clock.counting.store(false, Ordering::Relaxed);
        let seconds = begun.elapsed().as_secs_f64();
        clock.over.store(true, Ordering::Relaxed);
        let mut sum = 0;
        for worker in workers {
            sum += worker.join().map_err(|_| Failure("a thread panicked".to_owned()))??;
        }
        Ok(sum as f64 / seconds)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_on_until_something_is_counted() {
        let brief = Duration::from_millis(1);
        let found = rate(1, brief, |_, clock| {
            clock.ready();
            while !clock.counting.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            let late = Instant::now();
            while late.elapsed() < 10 * brief {
                thread::yield_now();
            }
            Ok(clock.unit())
        });
        assert!(found.unwrap() > 0.0);
    }
}
