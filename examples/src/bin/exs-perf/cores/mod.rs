//! What more threads gain: several programs' shapes, over EXS and plain TCP in one run.
//!
//! All ends live in this process. Each shape runs for every transport in turn, and again for each
//! round, so that noise of the machine meets all of them; the report has the medians.
//!
//! - `own`: each thread has an event queue and a pair of connected sockets of its own, and sends
//!   itself messages. Threads share nothing but the library.
//! - `pairs`: two threads for each connection ask and answer with calls that block.
//! - `connects`: one thread connects, sends a byte, receives one and closes, again and again;
//!   another accepts.

mod connects;
mod own;
mod pairs;
mod report;
mod sockets;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use exs_examples::fail::Failure;
use exs_examples::stats::median;

use self::report::{Row, Table};
pub(crate) use self::sockets::Carrier;
use crate::cli::Cores;

/// Time before the clock starts.
const WARM_UP: Duration = Duration::from_millis(200);

/// When the threads of a run count, and when they end.
pub(crate) struct Clock {
    gate: Barrier,
    counting: AtomicBool,
    over: AtomicBool,
}

impl Clock {
    fn new(threads: usize) -> Clock {
        let gate = Barrier::new(threads + 1);
        Clock { gate, counting: AtomicBool::new(false), over: AtomicBool::new(false) }
    }

    /// A thread is ready. Returns when all are.
    fn ready(&self) {
        self.gate.wait();
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// How much to count for one unit of work: nothing during the warm-up.
    fn unit(&self) -> u64 {
        u64::from(self.counting.load(Ordering::Relaxed))
    }
}

/// Runs `threads` times `work`, which returns its count, and returns the sum in a second.
fn rate<W>(threads: usize, duration: Duration, work: W) -> Result<f64, Failure>
where
    W: Fn(usize, &Clock) -> Result<u64, Failure> + Sync,
{
    let clock = Clock::new(threads);
    thread::scope(|scope| {
        let (clock, work) = (&clock, &work);
        let workers: Vec<_> = (0..threads).map(|n| scope.spawn(move || work(n, clock))).collect();
        clock.ready();
        // sleep-ok: the warm-up is a time
        thread::sleep(WARM_UP);
        clock.counting.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        // sleep-ok: a run is a time
        thread::sleep(duration);
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

/// One shape with its parameter, such as the number of threads.
#[derive(Clone, Copy)]
enum Shape {
    Own { threads: usize, size: usize },
    Pairs { pairs: usize },
    Connects,
}

impl Shape {
    fn measure(self, carrier: Carrier, duration: Duration) -> Result<f64, Failure> {
        match self {
            Shape::Own { threads, size } => own::measure(carrier, threads, size, duration),
            Shape::Pairs { pairs } => pairs::measure(carrier, pairs, duration),
            Shape::Connects => connects::measure(carrier, duration),
        }
    }

    /// The shape whose figure this one's is compared with, over the same transport.
    fn base(self) -> Shape {
        match self {
            Shape::Own { size, .. } => Shape::Own { threads: 1, size },
            Shape::Pairs { .. } => Shape::Pairs { pairs: 1 },
            Shape::Connects => Shape::Connects,
        }
    }

    fn name(self) -> String {
        match self {
            Shape::Own { threads, size } => format!("own, {size} bytes, {threads} threads"),
            Shape::Pairs { pairs } => format!("pairs of threads: {pairs}"),
            Shape::Connects => "connects, one after the other".to_owned(),
        }
    }
}

pub(crate) fn run(args: &Cores) -> Result<(), Failure> {
    let own = args
        .sizes
        .iter()
        .flat_map(|&size| args.threads.iter().map(move |&threads| Shape::Own { threads, size }));
    let pairs = args.pairs.iter().map(|&pairs| Shape::Pairs { pairs });
    let shapes: Vec<Shape> = own.chain(pairs).chain([Shape::Connects]).collect();
    let mut table = Table::new(args.json)?;
    for shape in shapes {
        let mut figures = vec![Vec::new(); args.carriers.len()];
        for _ in 0..args.rounds {
            for (carrier, figures) in args.carriers.iter().zip(&mut figures) {
                figures.push(shape.measure(*carrier, args.duration)?);
            }
        }
        for (carrier, figures) in args.carriers.iter().zip(&figures) {
            let (name, base) = (shape.name(), shape.base().name());
            table.print(Row { name, base, carrier: *carrier, rate: median(figures) })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shape_moves_over_each_transport() {
        for carrier in ["tcp", "soft", "shm"].map(|name| name.parse().unwrap()) {
            let shapes =
                [Shape::Own { threads: 2, size: 4096 }, Shape::Pairs { pairs: 2 }, Shape::Connects];
            for shape in shapes {
                let rate = shape.measure(carrier, Duration::from_millis(100)).unwrap();
                assert!(rate > 0.0, "{} over {carrier}", shape.name());
            }
        }
    }
}
