//! A question now and then, on one connection to another process, with calls that block.
//!
//! Between two questions both processes sleep, and so does everything that the library runs.

use std::thread;
use std::time::{Duration, Instant};

use exs_tools::fail::Failure;

use super::carrier::Carrier;
use super::loops::Way;
use super::serve::Service;
use super::sockets::connect;

/// Bytes of a question and of an answer.
const SIZE: usize = 64;
/// Questions before the first one that counts.
const WARM_UP: usize = 3;
/// The fewest questions that count.
const FEWEST: usize = 5;

/// Microseconds from a question to its answer: the median. The client pauses between them.
pub(super) fn measure(
    carrier: Carrier,
    pause: Duration,
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
    let (begun, mut trips) = (Instant::now(), Vec::new());
    while trips.len() < FEWEST || begun.elapsed() < duration {
        trips.push(ask()?);
    }
    trips.sort_unstable();
    Ok(trips[trips.len() / 2].as_secs_f64() * 1e6)
}
