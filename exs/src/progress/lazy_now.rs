//! The time of a call.

use std::cell::Cell;

use crate::sys::Clock;
use crate::time::Time;

/// The time of a call, read from the clock when the call first needs it. To read the clock costs a
/// good part of the time that a small message takes, and most messages need no time.
pub(crate) struct LazyNow<'a> {
    clock: &'a Clock,
    time: Cell<Option<Time>>,
}

impl<'a> LazyNow<'a> {
    /// The caller must hold the engine's lock for as long as this lives.
    pub(super) fn new(clock: &'a Clock) -> LazyNow<'a> {
        LazyNow { clock, time: Cell::new(None) }
    }

    /// The time. It stays the same.
    pub(crate) fn now(&self) -> Time {
        match self.time.get() {
            Some(time) => time,
            None => {
                let time = self.clock.now_locked(None);
                self.time.set(Some(time));
                time
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_first_request() {
        let clock = Clock::default();
        let lazy = LazyNow::new(&clock);
        let before = clock.now();
        let now = lazy.now();
        let after = loop {
            let after = clock.now();
            if after > now {
                break after;
            }
        };
        assert!(before <= now && now < after);
        assert_eq!(lazy.now(), now);
    }
}
