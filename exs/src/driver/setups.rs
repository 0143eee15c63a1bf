//! Setups that a thread which spins looks for: connections to accept, and answers of start-ups.
//!
//! The reactor reports them, but a thread that spins asks the reactor rarely, and a connection takes
//! several round trips. So the thread looks itself, by one system call each, at the listeners that
//! had a connection recently, and at the links that start up.

use std::collections::VecDeque;

use super::Driver;
use super::link::LinkSetup;
use super::turns::Source;
use crate::time::Time;

/// Sources that one call looks at.
const MAX_HOT: usize = 4;
/// Looks without a find after which a source is left to the reactor.
const MAX_MISSES: u32 = 128;

/// The sources to look at, and the looks without a find since each was noted.
#[derive(Default)]
pub(crate) struct HotSetups(VecDeque<(Source, u32)>);

impl HotSetups {
    /// A source is worth looking at from now on.
    pub(crate) fn note(&mut self, source: Source) {
        if let Some((_, misses)) = self.0.iter_mut().find(|(hot, _)| *hot == source) {
            *misses = 0;
            return;
        }
        if self.0.len() == MAX_HOT {
            self.0.pop_front();
        }
        self.0.push_back((source, 0));
    }

    /// A thread is about to sleep in the reactor, which reports whatever comes for the sources.
    pub(super) fn leave_to_reactor(&mut self) {
        self.0.clear();
    }

    /// True if there is any.
    pub(crate) fn any(&self) -> bool {
        !self.0.is_empty()
    }
}

impl<L: LinkSetup> Driver<L> {
    /// Looks at the hot setups. True if one had something.
    pub(super) fn poll_setups(&mut self, now: Time) -> bool {
        let mut any = false;
        for _ in 0..self.setups.0.len() {
            let Some((source, misses)) = self.setups.0.pop_front() else { break };
            let found = match source {
                Source::Listener(id) => self.try_accept(id, now),
                Source::Link(id) => L::poll_setup(self, id),
                _ => None,
            };
            any |= found == Some(true);
            let misses = match found {
                Some(true) => 0,
                Some(false) if misses < MAX_MISSES => misses + 1,
                _ => continue,
            };
            if self.setups.0.iter().all(|(hot, _)| *hot != source) {
                self.setups.0.push_back((source, misses));
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setup_noted_first_makes_way() {
        let mut setups = HotSetups::default();
        assert!(!setups.any());
        for id in [1, 2, 1, 3, 4, 5] {
            setups.note(Source::Link(id));
        }
        let hot: Vec<_> = setups.0.iter().map(|(source, _)| *source).collect();
        assert_eq!(hot, [2, 3, 4, 5].map(Source::Link));
    }
}
