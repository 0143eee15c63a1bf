//! The links that a dialer has to each address, and how soon they end.
//!
//! Many links at a time share a group. So do *brief* ones: links to one address that follow each other
//! quickly, of which few are open, and which carry few messages. Their TCP connections would cost more than
//! what they carry. How many messages come is known of those that are in groups.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::time::Time;

/// The time over which dials are counted.
const WINDOW: Duration = Duration::from_millis(100);
/// The dials of a window that make links brief, if at most half as many are open at its end. As many dials
/// cost some 2 ms of processor time, so fewer in a window are not worth a group.
const LEAST: u32 = 16;
/// The messages that come on a brief link, on average. Where more come, a thread that waits for its own TCP
/// connection gains more by that than the TCP connection costs.
const MOST_MESSAGES: u32 = 5;
/// Links to an address on which more came are not brief for this time.
const PAUSE: Duration = Duration::from_secs(5);
/// Addresses that are kept, at least, before those of the past are forgotten.
const KEPT: usize = 64;

/// How quickly links to an address follow each other.
#[derive(Clone, Copy, Debug, Default)]
struct Turnover {
    /// The window's begin.
    since: Time,
    /// Dials in it.
    begun: u32,
    /// What the window before has shown.
    brief: bool,
    /// Eight times the messages that came on a brief link, on average over the last ones.
    messages: u32,
    /// Until then, links are not brief.
    lively_until: Time,
}

impl Turnover {
    /// Counts a dial. `open`: the links before it, open or under way.
    fn count(&mut self, open: u32, now: Time) {
        if self.messages > 8 * MOST_MESSAGES {
            (self.messages, self.lively_until) = (0, now + PAUSE);
        }
        if now.since(self.since) >= WINDOW {
            self.brief = !self.is_past(now) && self.begun >= LEAST && open <= self.begun / 2;
            (self.since, self.begun) = (now, 0);
        }
        self.begun += 1;
    }

    /// A brief link has ended, or lives on. `came`: the messages that came on it.
    fn note_messages(&mut self, came: u32) {
        self.messages = (self.messages - self.messages / 8).saturating_add(came);
    }

    /// True if the dials that were counted say nothing about those of now.
    fn is_past(&self, now: Time) -> bool {
        now.since(self.since) >= 2 * WINDOW
    }
}

/// The links and dials to an address.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DialedLinks {
    /// Open or under way.
    pub(super) open: u32,
    /// A thread or a task has waited for one of them itself.
    pub(super) attended: bool,
    turnover: Turnover,
}

impl DialedLinks {
    /// True if links to the address end soon after they began.
    pub(super) fn are_brief(&self, now: Time) -> bool {
        let Turnover { brief, lively_until, .. } = self.turnover;
        brief && lively_until <= now && !self.turnover.is_past(now)
    }
}

/// The addresses to which this side dials.
#[derive(Debug)]
pub(super) struct DialedAddrs {
    links: HashMap<SocketAddr, DialedLinks>,
    /// The number of addresses at which those of the past are forgotten.
    forgets_at: usize,
}

impl Default for DialedAddrs {
    fn default() -> DialedAddrs {
        DialedAddrs { links: HashMap::new(), forgets_at: KEPT }
    }
}

impl DialedAddrs {
    pub(super) fn of(&self, addr: &SocketAddr) -> DialedLinks {
        self.links.get(addr).copied().unwrap_or_default()
    }

    /// Counts a dial, which may become a link.
    pub(super) fn count(&mut self, addr: SocketAddr, now: Time) {
        if self.links.len() >= self.forgets_at && !self.links.contains_key(&addr) {
            self.links.retain(|_, links| links.open > 0 || !links.turnover.is_past(now));
            self.forgets_at = KEPT.max(2 * self.links.len());
        }
        let links = self.links.entry(addr).or_default();
        links.turnover.count(links.open, now);
        links.open += 1;
    }

    /// A dial, or its link, is over.
    pub(super) fn uncount(&mut self, addr: SocketAddr) {
        if let Some(links) = self.links.get_mut(&addr) {
            links.open -= 1;
            links.attended &= links.open > 0;
        }
    }

    /// A brief link to the address has ended, or lives on. `came`: the messages that came on it.
    pub(super) fn note_messages(&mut self, addr: &SocketAddr, came: u32) {
        if let Some(links) = self.links.get_mut(addr) {
            links.turnover.note_messages(came);
        }
    }

    /// A thread or a task waits for a link to the address itself.
    pub(super) fn note_attended(&mut self, addr: &SocketAddr) {
        if let Some(links) = self.links.get_mut(addr) {
            links.attended = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    /// Dials at this time, `each` links, which end at once unless they are `kept`.
    fn dial(addrs: &mut DialedAddrs, at: Time, each: u32, kept: bool) {
        for _ in 0..each {
            addrs.count(addr(1), at);
            if !kept {
                addrs.uncount(addr(1));
            }
        }
    }

    #[test]
    fn links_that_follow_each_other_quickly_are_brief() {
        let mut addrs = DialedAddrs::default();
        let begin = Time::ZERO + Duration::from_secs(1);
        for ms in 0..100 {
            dial(&mut addrs, begin + Duration::from_millis(ms), 1, false);
        }
        let end = begin + WINDOW;
        assert!(!addrs.of(&addr(1)).are_brief(end), "the window has not ended");
        dial(&mut addrs, end, 1, false);
        assert!(addrs.of(&addr(1)).are_brief(end));
        assert!(!addrs.of(&addr(2)).are_brief(end));
        assert!(!addrs.of(&addr(1)).are_brief(end + 2 * WINDOW), "it was long ago");
    }

    #[test]
    fn few_links_and_those_that_stay_are_not_brief() {
        for (each, kept) in [(LEAST - 1, false), (100, true)] {
            let mut addrs = DialedAddrs::default();
            let begin = Time::ZERO + Duration::from_secs(1);
            for window in 0..5 {
                dial(&mut addrs, begin + window * WINDOW, each, kept);
                assert!(!addrs.of(&addr(1)).are_brief(begin + window * WINDOW));
            }
        }
    }

    #[test]
    fn links_with_many_messages_are_not_brief_for_a_time() {
        let mut addrs = DialedAddrs::default();
        let begin = Time::ZERO + Duration::from_secs(1);
        let mut now = begin;
        let mut steps = |addrs: &mut DialedAddrs, steps: u32, came: u32| {
            for _ in 0..steps {
                now = now + Duration::from_millis(1);
                dial(addrs, now, 1, false);
                addrs.note_messages(&addr(1), came);
            }
            (addrs.of(&addr(1)).are_brief(now), now)
        };
        assert!(steps(&mut addrs, 300, MOST_MESSAGES).0);
        let (brief, lively) = steps(&mut addrs, 10, 10 * MOST_MESSAGES);
        assert!(!brief);
        assert!(!steps(&mut addrs, 4980, 0).0);
        let (brief, then) = steps(&mut addrs, 300, MOST_MESSAGES);
        assert!(brief && then.since(lively) > PAUSE);
    }

    #[test]
    fn a_pause_ends_the_count() {
        let mut addrs = DialedAddrs::default();
        let begin = Time::ZERO + Duration::from_secs(1);
        dial(&mut addrs, begin, 100, false);
        let later = begin + 2 * WINDOW;
        dial(&mut addrs, later, 1, false);
        assert!(!addrs.of(&addr(1)).are_brief(later));
    }

    #[test]
    fn addresses_of_the_past_are_forgotten() {
        let mut addrs = DialedAddrs::default();
        let mut now = Time::ZERO + Duration::from_secs(1);
        addrs.count(addr(1), now);
        addrs.note_attended(&addr(1));
        for port in 2..2000 {
            now = now + WINDOW;
            addrs.count(addr(port), now);
            addrs.uncount(addr(port));
        }
        assert!(addrs.links.len() <= KEPT);
        assert!(addrs.of(&addr(1)).attended, "its link is open");
        addrs.uncount(addr(1));
        assert!(!addrs.of(&addr(1)).attended);
    }
}
