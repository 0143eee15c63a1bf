//! The threads of one side, each with its part of the connections.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use exs_tools::fail::Failure;
use hdrhistogram::Histogram;
use quanta::Instant;

/// Longest round trip that a histogram tells apart: beyond, it counts as this.
const LONGEST_NS: u64 = 60_000_000_000;

/// What one thread does.
pub(crate) trait Part: Send {
    /// Moves the job's messages that come before the clock starts.
    fn warm_up(&mut self) -> Result<(), Failure>;
    /// The client's side gets the moment after which it begins nothing more; the server's
    /// goes on until the client ends each connection.
    fn run(&mut self, until: Option<Instant>) -> Result<Outcome, Failure>;
}

/// What one thread did.
pub(crate) struct Outcome {
    /// For each connection, messages that it sent and received while the clock ran.
    pub(crate) moved: Vec<(u64, u64)>,
    /// Round trips, nanoseconds.
    pub(crate) round_trips: Option<Histogram<u64>>,
    /// System calls that moved data, if they are counted.
    pub(crate) system_calls: Option<u64>,
    pub(crate) ended: Instant,
}

/// A histogram for round trips: three significant digits.
pub(crate) fn histogram() -> Result<Histogram<u64>, Failure> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).map_err(|e| Failure(format!("histogram: {e}")))
}

/// Threads that are warm and wait for the clock.
pub(crate) struct Crew {
    threads: Vec<JoinHandle<Result<Outcome, Failure>>>,
    gates: Vec<Sender<Option<Instant>>>,
}

impl Crew {
    /// Starts a thread for each part; returns when all are warm.
    ///
    /// When one fails, the others are left to themselves: their connections end with the
    /// process of the other side.
    pub(crate) fn start(parts: Vec<Box<dyn Part>>) -> Result<Crew, Failure> {
        let (warm, reports) = channel();
        let mut crew = Crew { threads: Vec::new(), gates: Vec::new() };
        for part in parts {
            let (gate, opened) = channel();
            let warm = warm.clone();
            let thread = std::thread::Builder::new()
                .name("part".to_owned())
                .spawn(move || life(part, &warm, &opened))
                .map_err(|e| Failure(format!("cannot start another thread: {e}")))?;
            crew.threads.push(thread);
            crew.gates.push(gate);
        }
        drop(warm);
        for _ in 0..crew.threads.len() {
            reports.recv().unwrap_or_else(|_| Err(Failure("a thread has died".to_owned())))?;
        }
        Ok(crew)
    }

    /// Opens the gates, and waits until all have ended.
    pub(crate) fn go(self, until: Option<Instant>) -> Result<Vec<Outcome>, Failure> {
        for gate in &self.gates {
            // A thread that is gone says why below.
            let _ = gate.send(until);
        }
        let died = |_| Err(Failure("a thread has died".to_owned()));
        let ended: Vec<_> =
            self.threads.into_iter().map(|t| t.join().unwrap_or_else(died)).collect();
        ended.into_iter().collect()
    }
}

fn life(
    mut part: Box<dyn Part>,
    warm: &Sender<Result<(), Failure>>,
    gate: &Receiver<Option<Instant>>,
) -> Result<Outcome, Failure> {
    let warmed = part.warm_up();
    let failed = warmed.is_err();
    // The other end is gone if another thread has failed.
    let _ = warm.send(warmed);
    match gate.recv() {
        Ok(until) if !failed => part.run(until),
        _ => Err(Failure("it ended before it began".to_owned())),
    }
}
