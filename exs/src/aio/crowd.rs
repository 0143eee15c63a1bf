//! How many streams of a runtime are busy at the same time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The least number of busy streams that keep their runtime at work. With fewer, its threads wait for
/// bytes, and the driver finds these sooner by looking for them.
const CROWD: u32 = 8;
/// A stream is busy for the window in which bytes have come for it.
const WINDOW: Duration = Duration::from_millis(10);

/// The number of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BusyWindow(u128);

/// Counts the busy streams.
pub(super) struct Crowd {
    /// The workers of the runtime.
    workers: usize,
    begun: Instant,
    counts: Mutex<BusyCounts>,
    is_crowd: AtomicBool,
}

#[derive(Default)]
struct BusyCounts {
    current: BusyWindow,
    /// The streams that are busy in the current window, and those that were in the one before.
    count: u32,
    before: u32,
}

impl Crowd {
    /// For a runtime with this many workers.
    pub(super) fn new(workers: usize) -> Crowd {
        let (counts, is_crowd) = (Mutex::default(), AtomicBool::new(false));
        Crowd { workers, begun: Instant::now(), counts, is_crowd }
    }

    /// True if several workers serve the streams. A single thread loses nothing by the driver, which
    /// takes what has come for many streams in one turn.
    pub(super) fn is_possible(&self) -> bool {
        self.workers > 1
    }

    /// Bytes have come for a stream that counted last for `counted`. True if the busy streams are a
    /// crowd.
    pub(super) fn note(&self, now: Instant, counted: &mut BusyWindow) -> bool {
        let window = BusyWindow((now - self.begun).as_millis() / WINDOW.as_millis());
        if window > *counted {
            *counted = window;
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            self.is_crowd.store(counts.count(window) >= CROWD, Ordering::Relaxed);
        }
        self.is_crowd.load(Ordering::Relaxed)
    }
}

impl BusyCounts {
    /// Counts a stream. Returns the streams of this window, or of the one before if these are more.
    fn count(&mut self, window: BusyWindow) -> u32 {
        if window > self.current {
            let follows = window.0 == self.current.0 + 1;
            self.before = if follows { self.count } else { 0 };
            (self.current, self.count) = (window, 0);
        }
        self.count += 1;
        self.count.max(self.before)
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
            let now = crowd.begun + window * WINDOW;
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
