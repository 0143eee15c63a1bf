//! How busy a connection is: when more receives pay, and when they no longer do.
//!
//! Only the side that sends knows whether it waits for credits. So it asks for more, by [`Stalls`].
//! Only the side that receives knows what its receives cost. So it takes them back, by [`Lull`].
//! Both are policy alone. They read no clock and know no message.

use std::time::Duration;

use crate::time::Time;

/// The longest pause between two requests for more credits.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What counts as busy, and as idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// A connection is busy if it waits for credits this often...
    pub busy_stalls: u64,
    /// ...within this time. After a side has asked for more, it does not ask again for as long: the
    /// peer may lack the memory. The pause doubles each time, up to ten seconds.
    pub busy_within: Duration,
    /// A connection is idle if fewer messages than this arrive...
    pub idle_messages: u64,
    /// ...within this time. After as long without a wait for credits, the pauses are short again.
    pub idle_within: Duration,
}

impl Default for Demand {
    fn default() -> Demand {
        Demand {
            busy_stalls: 4,
            busy_within: Duration::from_millis(100),
            idle_messages: 256,
            idle_within: Duration::from_secs(1),
        }
    }
}

/// The waits of a side for its peer's credits.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    /// Those that are counted.
    seen: u64,
    /// Those of the present window, and its begin.
    recent: u64,
    began: Time,
    last: Time,
    /// Until when this side does not ask, and how long it keeps quiet when it has asked again.
    quiet_until: Time,
    pause: Duration,
}

impl Stalls {
    /// Notes how many waits there were so far. True if this side must ask for more credits now.
    pub(super) fn note(&mut self, is: &Demand, now: Time, all: u64) -> bool {
        let new = all.saturating_sub(self.seen);
        if new == 0 {
            return false;
        }
        self.seen = all;
        if now.since(self.last) >= is.idle_within || self.pause.is_zero() {
            self.pause = is.busy_within;
        }
        self.last = now;
        if now.since(self.began) > is.busy_within {
            (self.began, self.recent) = (now, 0);
        }
        self.recent += new;
        if self.recent < is.busy_stalls || now < self.quiet_until {
            return false;
        }
        self.recent = 0;
        self.quiet_until = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}

/// The time since a side has given its peer more receives.
#[derive(Debug, Default)]
pub(super) struct Lull {
    /// When the present period began.
    began: Time,
    /// Messages that have arrived in it.
    messages: u64,
}

impl Lull {
    /// Begins the first period.
    pub(super) fn begin(&mut self, now: Time) {
        (self.began, self.messages) = (now, 0);
    }

    /// Messages have arrived that the peer wanted to send.
    #[inline]
    pub(super) fn note_messages(&mut self, messages: u64) {
        self.messages += messages;
    }

    /// When [`Lull::is_idle`] must be asked.
    pub(super) fn ends(&self, is: &Demand) -> Time {
        self.began + is.idle_within
    }

    /// The period is over. True if the connection was idle; otherwise the next period begins.
    pub(super) fn is_idle(&mut self, is: &Demand, now: Time) -> bool {
        let idle = self.messages < is.idle_messages;
        if !idle {
            self.begin(now);
        }
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IS: Demand = Demand {
        busy_stalls: 4,
        busy_within: Duration::from_millis(100),
        idle_messages: 256,
        idle_within: Duration::from_secs(1),
    };

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn waits_close_together_ask() {
        let mut s = Stalls::default();
        for (all, asks) in [(0, false), (1, false), (2, false), (3, false), (4, true)] {
            assert_eq!(s.note(&IS, at(5000 + all), all), asks, "{all} waits");
        }
        assert!(!s.note(&IS, at(5005), 4), "no new ones");
        let mut once = Stalls::default();
        assert!(once.note(&IS, at(5000), 40), "many at once");
    }

    #[test]
    fn waits_far_apart_do_not_ask() {
        let mut s = Stalls::default();
        for all in 1..100 {
            assert!(!s.note(&IS, at(all * 51), all), "{all} waits");
        }
    }

    #[test]
    fn the_pauses_grow_and_a_calm_ends_that() {
        let mut s = Stalls::default();
        let (mut asked, mut all) = (Vec::new(), 0);
        for ms in 1000..30_000 {
            all += 1;
            if s.note(&IS, at(ms), all) {
                asked.push(ms);
            }
        }
        let gaps = asked.windows(2).map(|w| w[1] - w[0]);
        let pauses = [100, 200, 400, 800, 1600, 3200, 6400, 10_000];
        // A few waits must have been counted when the pause is over.
        let fits = gaps.zip(pauses).filter(|(gap, pause)| (*pause..pause + 10).contains(gap));
        assert_eq!(fits.count(), 8, "{asked:?}");
        // The last pause is over before the waits begin again.
        assert!(s.note(&IS, at(60_000), all + 4));
        assert!(!s.note(&IS, at(60_099), all + 8));
        assert!(s.note(&IS, at(60_100), all + 12), "the first pause again");
    }

    #[test]
    fn a_lull_is_a_period_with_few_messages() {
        let mut l = Lull::default();
        l.begin(at(100));
        for _ in 0..IS.idle_messages {
            l.note_messages(1);
        }
        assert_eq!(l.ends(&IS), at(1100));
        assert!(!l.is_idle(&IS, at(1100)), "busy");
        assert_eq!(l.ends(&IS), at(2100));
        for _ in 1..IS.idle_messages {
            l.note_messages(1);
        }
        assert!(l.is_idle(&IS, at(2100)), "those of the period before do not count");
    }
}
