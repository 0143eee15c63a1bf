//! Connecting peers whose request has not come.
//!
//! Such a peer is not trusted, and holds a descriptor. So their number is limited. Peers beyond the
//! limit wait in the kernel. Many peers that connect at once come in as the requests of others arrive.
//! A silent peer gives its place to one that waits after [`PRESSED`], so that silent peers keep no other
//! out. When no descriptor is left, the oldest is dropped if it has had [`GRACE`].

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Time;

/// Start-ups at a time, unless the user sets another limit. Fewer where the process may have few
/// descriptors.
const MAX_STARTUPS: usize = 1024;
/// Time that a start-up has before its descriptor may be taken for another peer.
const GRACE: Duration = Duration::from_secs(1);
/// Time that a start-up has while other peers may wait for its place. The request of an honest peer
/// follows its connection at once, and comes a few round trips later even if a segment is lost.
const PRESSED: Duration = Duration::from_millis(250);

/// The start-ups, the oldest first, each with the time when its peer was accepted. Some entries are
/// stale: their request has come since, or their peer has gone.
pub(crate) struct PendingStartups {
    waiting: VecDeque<(u32, Time)>,
    max: usize,
    /// Listeners that wait for a place.
    pub(super) held: Vec<u32>,
}

/// A place for one more start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceForStartup {
    /// There is one.
    Free,
    /// This start-up must give up its place.
    Of(u32),
    /// None before this time.
    NotBefore(Time),
}

impl Default for PendingStartups {
    fn default() -> PendingStartups {
        PendingStartups { waiting: VecDeque::new(), max: MAX_STARTUPS, held: Vec::new() }
    }
}

impl PendingStartups {
    /// Lowers the limit by `f`.
    pub(super) fn limit(&mut self, f: impl FnOnce(usize) -> usize) {
        self.max = f(self.max);
    }

    /// Adds a start-up, for which there is a place.
    pub(super) fn add(&mut self, id: u32, now: Time) {
        self.waiting.push_back((id, now));
    }

    /// True if [`place`](Self::place) may have to take the place of a start-up.
    pub(super) fn may_be_full(&self) -> bool {
        self.waiting.len() >= self.max
    }

    /// Looks for a place for one more. A start-up that must give up its place is taken out.
    /// `is_starting` tells the start-ups that still wait.
    pub(super) fn place(
        &mut self,
        now: Time,
        is_starting: impl Fn(u32) -> bool,
    ) -> PlaceForStartup {
        if self.may_be_full() {
            self.waiting.retain(|(id, _)| is_starting(*id));
        }
        let full = self.waiting.len() >= self.max;
        let Some(&(oldest, since)) = self.waiting.front().filter(|_| full) else {
            return PlaceForStartup::Free;
        };
        let due = since + PRESSED;
        if now < due {
            return PlaceForStartup::NotBefore(due);
        }
        self.waiting.pop_front();
        PlaceForStartup::Of(oldest)
    }

    /// Takes the oldest start-up. None if it has not had `GRACE` yet, or if there is none.
    pub(super) fn take_overdue(
        &mut self,
        now: Time,
        is_starting: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        self.forget_finished(&is_starting);
        let (oldest, _) = *self.waiting.front().filter(|(_, since)| now >= *since + GRACE)?;
        self.waiting.pop_front();
        Some(oldest)
    }

    /// Removes start-ups that are over from the front.
    fn forget_finished(&mut self, is_starting: &impl Fn(u32) -> bool) {
        while self.waiting.front().is_some_and(|(id, _)| !is_starting(*id)) {
            self.waiting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn the_oldest_that_still_waits_goes_for_one_more_when_it_has_had_its_time() {
        let mut startups = PendingStartups::default();
        startups.limit(|_| 2);
        let limit = at(250);
        for id in 1..=2 {
            assert_eq!(startups.place(at(0), |_| true), PlaceForStartup::Free);
            startups.add(id, at(0));
        }
        let before = at(249);
        assert_eq!(startups.place(before, |_| true), PlaceForStartup::NotBefore(limit));
        assert_eq!(startups.place(before, |id| id != 2), PlaceForStartup::Free, "2 is over");
        startups.add(3, before);
        assert_eq!(startups.place(limit, |_| true), PlaceForStartup::Of(1));
        startups.add(4, limit);
        assert_eq!(startups.place(limit, |_| true), PlaceForStartup::NotBefore(at(499)));
        assert_eq!(startups.place(limit, |_| false), PlaceForStartup::Free, "3 and 4 are over");
    }

    #[test]
    fn a_start_up_has_a_second_before_its_descriptor_is_taken() {
        let mut startups = PendingStartups::default();
        assert_eq!(startups.take_overdue(at(5000), |_| true), None);
        for (id, ms) in [(1, 0), (2, 10), (3, 20)] {
            startups.add(id, at(ms));
        }
        assert_eq!(startups.take_overdue(at(1009), |id| id != 1), None, "2 has a millisecond left");
        assert_eq!(startups.take_overdue(at(1010), |_| true), Some(2));
        assert_eq!(startups.take_overdue(at(1010), |_| true), None);
        assert_eq!(startups.take_overdue(at(1020), |_| true), Some(3));
    }
}
