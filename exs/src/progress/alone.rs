//! The questions of the background thread while it waits, and when it leaves a shard to the
//! program.
//!
//! A program that waits for the descriptor of a queue comes when the shard has something to do. The
//! background thread leads such a shard only if the program does not come.

use std::time::Duration;

use super::ticks::{LONG_TICK, Program};

/// The background thread's questions about its shard.
pub(super) struct Ticks<'a> {
    /// What the threads of the program do.
    pub(super) program: &'a dyn Program,
    /// True if the program sleeps, and comes when the reactor has something.
    pub(super) armed: &'a dyn Fn() -> bool,
    /// Announces the sleep of a program that waits for descriptors, so that the program comes.
    /// False: no program waits for a queue's descriptor, or there is something to do for which the
    /// program has not come. The caller holds no lock.
    pub(super) arm: &'a dyn Fn() -> bool,
    /// True if the reactor has something, or a deadline has passed.
    pub(super) ready: &'a dyn Fn() -> bool,
    /// True if the program relies on descriptors.
    pub(super) polls: &'a dyn Fn() -> bool,
    /// True if an event loop keeps changes of sockets in memory. They are shown after some ticks.
    pub(super) keeps: &'a dyn Fn() -> bool,
    /// Notes that a tick is over in which the background thread did not lead. The caller holds no
    /// lock.
    pub(super) ticked: &'a dyn Fn(),
}

/// The longest tick for a shard whose program comes when there is something to do.
const MAX_TICK: Duration = Duration::from_millis(20);

/// The background thread's record of a shard whose program comes by itself.
pub(super) struct Alone {
    /// The count of leads when the background thread saw the reactor ready. None: the reactor was
    /// not ready at the last look.
    ready_at: Option<u64>,
    /// The time until the next look.
    tick: Duration,
}

impl Default for Alone {
    fn default() -> Alone {
        Alone { ready_at: None, tick: LONG_TICK }
    }
}

impl Alone {
    /// The time after which the background thread looks again.
    pub(super) fn tick(&self) -> Duration {
        self.tick
    }

    /// Notes whether the reactor is ready. `ready_at` is the count of leads at this look. None: the
    /// reactor is not ready. Returns true if the reactor was ready a tick ago, and no thread has
    /// led since.
    pub(super) fn is_over(&mut self, ready_at: Option<u64>) -> bool {
        let over = ready_at.is_some() && ready_at == self.ready_at;
        self.tick = if ready_at.is_some() { LONG_TICK } else { MAX_TICK.min(2 * self.tick) };
        self.ready_at = ready_at;
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_left_to_its_program_until_the_program_does_not_come() {
        let mut alone = Alone::default();
        assert!(!alone.is_over(None));
        assert_eq!(alone.tick, 2 * LONG_TICK);
        assert!(!alone.is_over(Some(7)), "ready for less than a tick");
        assert_eq!(alone.tick, LONG_TICK);
        assert!(!alone.is_over(Some(8)), "the program has come");
        assert!(!alone.is_over(None) && !alone.is_over(Some(8)));
        assert!(alone.is_over(Some(8)), "the program has not come");
        (0..3).for_each(|_| assert!(!alone.is_over(None)));
        assert_eq!(alone.tick, MAX_TICK);
    }
}
