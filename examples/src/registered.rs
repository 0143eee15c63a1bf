//! What the programs that measure share of EXS: registered buffers, and events.

use std::time::Duration;

use exs::{Buffer, Event, EventQueue, MemoryRegion};

use crate::fail::{During, Failure};

/// `n` registered buffers of `size` bytes each, of one region.
///
/// # Errors
/// If the memory cannot be had.
pub fn buffers(n: usize, size: usize) -> Result<Vec<Buffer>, Failure> {
    let region = MemoryRegion::new(n * size).during("memory region")?;
    let lease = |i: usize| region.buffer(i * size..(i + 1) * size).during("buffer");
    let mut all = (0..n).map(lease).collect::<Result<Vec<_>, _>>()?;
    // Touched, so that no page fault is measured.
    all.iter_mut().for_each(|b| b.fill(1));
    Ok(all)
}

/// Waits for `min` events, and takes up to 64; signals do not end the wait.
///
/// # Errors
/// Those of the queue; that no event has come for as long as `limit`, if there is one.
pub fn dequeue(
    queue: &EventQueue,
    events: &mut Vec<Event>,
    min: usize,
    limit: Option<Duration>,
) -> Result<(), Failure> {
    loop {
        match queue.dequeue_into(events, min, 64, limit) {
            Err(exs::Error::Interrupted) => {}
            Ok(0) => return Err(stalled(limit.unwrap_or_default())),
            other => return other.during("dequeue").map(|_| ()),
        }
    }
}

/// What to say of an other side that is there, and does nothing.
pub fn stalled(limit: Duration) -> Failure {
    Failure(format!(
        "nothing has moved for {} s: the other side is stopped or overloaded, or the network swallows \
         what is sent",
        limit.as_secs()
    ))
}
