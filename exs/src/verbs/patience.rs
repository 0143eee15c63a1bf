//! Time limits of start-ups, which follow progress.
//!
//! A start-up has the time that the user gives it. But a host that is busy with hundreds of start-ups
//! takes longer for the last of them, and a wall clock says nothing of the peer then. So the limit
//! counts from the last *answer*: the end of another start-up with the same address. A late start-up
//! waits on while answers come.
//!
//! This is bounded. Only answers to start-ups count that began within the time limit of the late one.
//! If such answers stop, the late start-up has its time once more, and ends. A peer that answers
//! nothing has the time that the user gave.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use crate::time::Time;

/// The most addresses with an answer that are kept. The oldest makes way.
const MOST: usize = 64;

/// The time limit of a start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeLimit {
    pub(super) began: Time,
    pub(super) timeout: Duration,
}

/// The last answer of an address.
struct LastAnswer {
    addr: SocketAddr,
    at: Time,
    /// When the start-up began that it ended.
    began: Time,
}

/// The last answer of each address, the oldest first.
#[derive(Default)]
pub(super) struct Answers(VecDeque<LastAnswer>);

impl Answers {
    /// A start-up has been answered.
    pub(super) fn note(&mut self, addr: SocketAddr, limit: TimeLimit, now: Time) {
        if let Some(at) = self.0.iter().position(|a| a.addr == addr) {
            self.0.remove(at);
        } else if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(LastAnswer { addr, at: now, began: limit.began });
    }

    /// The time until which a start-up that is late may go on. None: it may not.
    pub(super) fn extend(&self, addr: SocketAddr, limit: TimeLimit, now: Time) -> Option<Time> {
        let answer = self.0.iter().find(|a| a.addr == addr)?;
        let counts = answer.at > limit.began && answer.began < limit.began + limit.timeout;
        Some(answer.at + limit.timeout).filter(|until| counts && *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Time {
        Time::ZERO + Duration::from_secs(secs)
    }

    fn limit(began: u64) -> TimeLimit {
        TimeLimit { began: at(began), timeout: Duration::from_secs(30) }
    }

    fn addr(n: usize) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], u16::try_from(n).unwrap()))
    }

    #[test]
    fn a_burst_goes_on_while_answers_come() {
        let mut answers = Answers::default();
        assert_eq!(answers.extend(addr(1), limit(0), at(30)), None, "the peer is silent");
        answers.note(addr(1), limit(0), at(29));
        assert_eq!(answers.extend(addr(1), limit(0), at(30)), Some(at(59)));
        assert_eq!(answers.extend(addr(2), limit(0), at(30)), None, "of another address");
        assert_eq!(answers.extend(addr(1), limit(0), at(59)), None, "answers have stopped");
        // Hours later the burst is still answered.
        answers.note(addr(1), limit(2), at(9000));
        assert_eq!(answers.extend(addr(1), limit(1), at(9001)), Some(at(9030)));
    }

    #[test]
    fn a_lost_start_up_does_not_live_by_later_ones() {
        let mut answers = Answers::default();
        answers.note(addr(1), limit(0), at(1));
        assert_eq!(answers.extend(addr(1), limit(5), at(35)), None, "from before it began");
        answers.note(addr(1), limit(34), at(34));
        assert_eq!(answers.extend(addr(1), limit(5), at(35)), Some(at(64)));
        // A busy peer goes on to answer others.
        answers.note(addr(1), limit(63), at(63));
        assert_eq!(answers.extend(addr(1), limit(5), at(64)), None, "twice its time is over");
    }

    #[test]
    fn the_table_is_bounded() {
        let mut answers = Answers::default();
        (0..500).for_each(|n| answers.note(addr(n), limit(0), at(1)));
        assert_eq!(answers.0.len(), MOST);
        assert!(answers.extend(addr(499), limit(0), at(30)).is_some());
    }
}
