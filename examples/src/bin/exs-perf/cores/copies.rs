//! Threads that copy memory: what the cores give where nothing is shared at all.

use std::time::Duration;

use exs_tools::fail::Failure;
use exs_tools::registered::buffers;

use super::clock::rate;
use super::own::in_flight;

/// Copies in a second, between buffers of the kind and number that `own` has.
pub(super) fn measure(threads: usize, size: usize, duration: Duration) -> Result<f64, Failure> {
    let depth = in_flight(size);
    rate(threads, duration, |_, clock| {
        let made = buffers(depth, size).and_then(|from| Ok((from, buffers(2 * depth, size)?)));
        clock.ready();
        let (from, mut to) = made?;
        let mut copies = 0;
        while !clock.is_over() {
            for (to, from) in to.iter_mut().zip(from.iter().cycle()) {
                to.copy_from_slice(std::hint::black_box(from));
                std::hint::black_box(&to);
                copies += clock.unit();
            }
        }
        Ok(copies)
    })
}
