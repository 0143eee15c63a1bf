//! How many streams of a runtime are busy at the same time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::progress::busy::{BusyCount, BusyWindow};

/// The least number of busy streams that keep their runtime at work. With fewer, its threads wait for
/// bytes, and the driver finds these sooner by looking for them.
const CROWD: u32 = 8;

/// Counts the busy streams.
pub(super) struct Crowd {
    /// The workers of the runtime.
    workers: usize,
    begun: Instant,
    count: Mutex<BusyCount>,
    is_crowd: AtomicBool,
}

impl Crowd {
    /// For a runtime with this many workers.
    pub(super) fn new(workers: usize) -> Crowd {
        let (count, is_crowd) = (Mutex::default(), AtomicBool::new(false));
        Crowd { workers, begun: Instant::now(), count, is_crowd }
    }

    /// True if several workers serve the streams. A single thread loses nothing by the driver, which
    /// takes what has come for many streams in one turn.
    pub(super) fn is_possible(&self) -> bool {
        self.workers > 1
    }

    /// Bytes have come for a stream that counted last for `counted`. True if the busy streams are a
    /// crowd.
    pub(super) fn note(&self, now: Instant, counted: &mut BusyWindow) -> bool {
        let window = BusyWindow::at(now - self.begun);
        if window.is_new_for(counted) {
            let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
            self.is_crowd.store(count.add(window) >= CROWD, Ordering::Relaxed);
        }
        self.is_crowd.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_lasts_while_its_streams_are_busy() {
        let crowd = Crowd::new(2);
        let mut streams = [BusyWindow::default(); CROWD as usize];
        let (few, last) = (streams.len() - 1, streams.len() - 1);
        let at = |window: u32, streams: &mut [BusyWindow]| {
            let now = crowd.begun + window * BusyWindow::LENGTH;
            streams.iter_mut().map(|counted| crowd.note(now, counted)).last().unwrap()
        };
        assert!(!at(1, &mut streams[..few]), "one is missing");
        assert!(!at(1, &mut streams[..few]), "a stream counts once");
        assert!(at(1, &mut streams[last..]));
        assert!(at(2, &mut streams[..1]), "the window has only begun");
        assert!(!at(3, &mut streams[..1]), "one stream was busy in the window before");
        assert!(at(3, &mut streams));
        assert!(!at(5, &mut streams[..1]), "nothing came for a whole window");
    }
}
