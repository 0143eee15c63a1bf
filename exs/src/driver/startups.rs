//! Connecting peers whose request has not come.
//!
//! Such a peer is not trusted, and holds a descriptor. So their number is limited: the oldest is
//! dropped for one more. When no descriptor is left, the oldest is dropped if it has had a second.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Time;

/// Start-ups at a time, unless the user sets another limit. Fewer where the process may have few
/// descriptors.
const MAX_STARTUPS: usize = 1024;
/// Time that a start-up has before its descriptor may be taken for another peer.
const GRACE: Duration = Duration::from_secs(1);

/// The start-ups, the oldest first, each with the time when its peer was accepted. Some entries are
/// stale: their request has come since, or their peer has gone.
pub(crate) struct PendingStartups {
    waiting: VecDeque<(u32, Time)>,
    max: usize,
}

impl Default for PendingStartups {
    fn default() -> PendingStartups {
        PendingStartups { waiting: VecDeque::new(), max: MAX_STARTUPS }
    }
}

impl PendingStartups {
    /// Lowers the limit by `f`.
    pub(super) fn limit(&mut self, f: impl FnOnce(usize) -> usize) {
        self.max = f(self.max);
    }

    /// Adds a start-up. Returns the oldest if there are too many now. `is_starting` tells the
    /// start-ups that still wait.
    pub(super) fn add(
        &mut self,
        id: u32,
        now: Time,
        is_starting: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        self.waiting.push_back((id, now));
        self.forget_finished(&is_starting);
        if self.waiting.len() > self.max {
            self.waiting.retain(|(id, _)| is_starting(*id));
        }
        if self.waiting.len() <= self.max {
            return None;
        }
        self.waiting.pop_front().map(|(oldest, _)| oldest)
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
    fn the_oldest_that_still_waits_goes_for_one_more() {
        let mut startups = PendingStartups::default();
        startups.limit(|_| 2);
        assert_eq!(startups.add(1, at(0), |_| true), None);
        assert_eq!(startups.add(2, at(0), |_| true), None);
        assert_eq!(startups.add(3, at(0), |id| id != 2), None, "2 is over");
        assert_eq!(startups.add(4, at(0), |_| true), Some(1));
        assert_eq!(startups.add(5, at(0), |id| id > 4), None, "3 and 4 are over");
    }

    #[test]
    fn a_start_up_has_a_second_before_its_descriptor_is_taken() {
        let mut startups = PendingStartups::default();
        assert_eq!(startups.take_overdue(at(5000), |_| true), None);
        for (id, ms) in [(1, 0), (2, 10), (3, 20)] {
            assert_eq!(startups.add(id, at(ms), |_| true), None);
        }
        assert_eq!(startups.take_overdue(at(1009), |id| id != 1), None, "2 has a millisecond left");
        assert_eq!(startups.take_overdue(at(1010), |_| true), Some(2));
        assert_eq!(startups.take_overdue(at(1010), |_| true), None);
        assert_eq!(startups.take_overdue(at(1020), |_| true), Some(3));
    }
}
