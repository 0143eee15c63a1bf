//! A way for messages between the two processes.

use std::time::Duration;

use exs_tools::fail::Failure;
use exs_tools::stats::Samples;

use crate::control::{Job, What};

/// The part that a link plays in a measurement. Both implementations do the same things
/// in the same order, so that their figures may be compared.
pub(crate) trait Link: Send {
    /// `rounds` round trips of `size` bytes; one sample for each whole round.
    fn ping(&mut self, size: usize, rounds: u32) -> Result<Samples, Failure>;
    /// Sends `rounds` messages back; `ready` is called when they may come.
    fn pong(
        &mut self,
        size: usize,
        rounds: u32,
        ready: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure>;
    /// Sends `count` messages, `depth` in flight, and waits for the receiver's byte;
    /// how long that took.
    fn pour(&mut self, size: usize, count: u32, depth: u32) -> Result<Duration, Failure>;
    /// Receives `count` messages and confirms the last.
    fn drink(
        &mut self,
        size: usize,
        count: u32,
        depth: u32,
        ready: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure>;

    /// The server's part of a job.
    fn serve(
        &mut self,
        job: &Job,
        ready: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match job.what {
            What::Latency => self.pong(job.size, job.iters, ready),
            What::Bandwidth => self.drink(job.size, job.iters, job.depth, ready),
        }
    }
}
