//! The time of a call.

use std::cell::Cell;

use crate::sys::Clock;
use crate::time::Time;

/// When a call is made: read when first asked for. To read the clock takes a good part of
/// what a small message does, and most of these need no time.
pub(crate) struct LazyNow<'a> {
    clock: &'a Clock,
    time: Cell<Option<Time>>,
}

impl<'a> LazyNow<'a> {
    /// For a caller who holds the engine's lock for as long as this lives.
    pub(super) fn new(clock: &'a Clock) -> LazyNow<'a> {
        LazyNow { clock, time: Cell::new(None) }
    }

    /// The time, the same each time.
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
    fn a_moment_is_when_it_is_first_asked_for() {
        let clock = Clock::default();
        let moment = LazyNow::new(&clock);
        let before = clock.now();
        let now = moment.now();
        let after = loop {
            let after = clock.now();
            if after > now {
                break after;
            }
        };
        assert!(before <= now && now < after);
        assert_eq!(moment.now(), now);
    }
}
