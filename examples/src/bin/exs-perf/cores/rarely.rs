//! A question now and then, on one connection to another process, with calls that block.
//!
//! Between two questions both processes sleep, and so does everything that the library runs.

use std::thread;
use std::time::{Duration, Instant};

use exs_tools::fail::Failure;
use serde::{Deserialize, Serialize};

use super::carrier::Carrier;
use super::loops::Way;
use super::serve::Service;
use super::sockets::connect;
use crate::usage::{cpu, cpu_of};

/// Bytes of a question and of an answer.
const SIZE: usize = 64;
/// Questions before the first one that counts.
const WARM_UP: usize = 3;
/// The fewest questions that count.
const FEWEST: usize = 5;

/// What is measured of a question and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Cost {
    /// The time until the answer is there: the median.
    Trip,
    /// The processor time of both processes: the mean.
    Processor,
}

/// Microseconds that a question and its answer cost. The client pauses between them.
pub(super) fn measure(
    carrier: Carrier,
    pause: Duration,
    cost: Cost,
    duration: Duration,
) -> Result<f64, Failure> {
    let server = Service::new(carrier, Way::Dequeue, SIZE).start()?;
    let mut end = connect(carrier, server.addr())?;
    let mut message = [1; SIZE];
    let mut ask = || {
        // sleep-ok: the pause is what is measured
        thread::sleep(pause);
        let begun = Instant::now();
        end.send(&message)?;
        if !end.recv(&mut message)? {
            return Err(Failure("the server has ended the connection".to_owned()));
        }
        Ok(begun.elapsed())
    };
    for _ in 0..WARM_UP {
        ask()?;
    }
    let used = || Ok::<_, Failure>(cpu() + cpu_of(server.id())?);
    let (begun, before, mut trips) = (Instant::now(), used()?, Vec::new());
    while trips.len() < FEWEST || begun.elapsed() < duration {
        trips.push(ask()?);
    }
    let cost = match cost {
        Cost::Processor => used()?.saturating_sub(before).div_f64(trips.len() as f64),
        Cost::Trip => {
            trips.sort_unstable();
            trips[trips.len() / 2]
        }
    };
    Ok(cost.as_secs_f64() * 1e6)
}
