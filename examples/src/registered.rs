//! What the programs that measure share of EXS: registered buffers, and events.

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
/// Those of the queue.
pub fn dequeue(queue: &EventQueue, events: &mut Vec<Event>, min: usize) -> Result<(), Failure> {
    loop {
        match queue.dequeue_into(events, min, 64, None) {
            Err(exs::Error::Interrupted) => {}
            other => return other.during("dequeue").map(|_| ()),
        }
    }
}
