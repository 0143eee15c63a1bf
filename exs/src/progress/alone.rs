//! What the background thread asks while it waits, and how it leaves alone a shard whose program
//! comes by itself.

use std::time::Duration;

use super::leader::LONG_TICK;

/// What the background thread asks while it waits.
pub(super) struct Ticks<'a> {
    /// A thread of the program is in the engine.
    pub(super) at_work: &'a dyn Fn() -> bool,
    /// The program sleeps, and comes when the reactor has something.
    pub(super) armed: &'a dyn Fn() -> bool,
    /// Has the program come, if it waits for descriptors. The caller holds no lock.
    pub(super) arm: &'a dyn Fn() -> bool,
    /// The reactor has something, or a deadline has passed.
    pub(super) ready: &'a dyn Fn() -> bool,
    /// The program relies on descriptors.
    pub(super) polls: &'a dyn Fn() -> bool,
    /// A tick is over in which threads of the program led. The caller holds no lock.
    pub(super) ticked: &'a dyn Fn(),
}

/// The longest tick, while the program comes by itself when there is something to do.
const MAX_TICK: Duration = Duration::from_millis(20);
/// What the background thread has seen of such a shard.
pub(super) struct Alone {
    /// The program's turns when the reactor was first seen ready. None: it was not.
    ready_at: Option<u64>,
    tick: Duration,
}

impl Default for Alone {
    fn default() -> Alone {
        Alone { ready_at: None, tick: LONG_TICK }
    }
}

impl Alone {
    /// When the background thread looks again.
    pub(super) fn tick(&self) -> Duration {
        self.tick
    }

    /// Notes the program's turns if the reactor is ready. True if it was ready a tick ago, and the
    /// program has not come since.
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
    fn a_program_that_comes_by_itself_is_left_alone_until_it_does_not() {
        let mut alone = Alone::default();
        assert!(!alone.is_over(None));
        assert_eq!(alone.tick, 2 * LONG_TICK);
        assert!(!alone.is_over(Some(7)), "ready for less than a tick");
        assert_eq!(alone.tick, LONG_TICK);
        assert!(!alone.is_over(Some(8)), "the program has come");
        assert!(!alone.is_over(None) && !alone.is_over(Some(8)));
        assert!(alone.is_over(Some(8)), "it has not");
        (0..3).for_each(|_| assert!(!alone.is_over(None)));
        assert_eq!(alone.tick, MAX_TICK);
    }
}
