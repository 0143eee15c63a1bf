//! How many connections are busy at the same time.

use std::time::Duration;

/// The number of a window: of the time in which a connection is busy on which something has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BusyWindow(u64);

impl BusyWindow {
    /// The length of a window.
    pub(crate) const LENGTH: Duration = Duration::from_millis(10);

    /// The window at this time since a beginning.
    pub(crate) fn at(elapsed: Duration) -> BusyWindow {
        let number = elapsed.as_nanos() / BusyWindow::LENGTH.as_nanos();
        BusyWindow(u64::try_from(number).unwrap_or(u64::MAX))
    }

    /// True, once in a window, for a connection that was counted last in `counted`.
    pub(crate) fn is_new_for(self, counted: &mut BusyWindow) -> bool {
        let new = self > *counted;
        *counted = self.max(*counted);
        new
    }
}

/// Counts the busy connections.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BusyCount {
    current: BusyWindow,
    /// The connections that are busy in the current window, and those that were in the one before.
    count: u32,
    before: u32,
}

impl BusyCount {
    /// Counts a connection that was not counted in this window. Returns those of the window, or of the one
    /// before if these are more.
    pub(crate) fn add(&mut self, window: BusyWindow) -> u32 {
        if window > self.current {
            let follows = window.0 == self.current.0 + 1;
            self.before = if follows { self.count } else { 0 };
            (self.current, self.count) = (window, 0);
        }
        self.count += 1;
        self.count.max(self.before)
    }
}
