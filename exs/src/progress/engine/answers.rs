//! When answers leave that can share a write with others.
//!
//! Connections in a link group share a stream to their peer. A thread that has got messages of several
//! most likely answers them all before it looks for further ones, so their answers can leave in one write.
//! If all of them waited for the last one, both ends would take turns: while this end answers, the peer
//! has nothing to do. So answers leave in *portions*, and the peer works on one while this end fills the
//! next. A portion is a quarter of the connections that are busy. With a half, both ends soon have the same
//! portion to wait for, and take turns again. With fewer than eight, each answer leaves at once.

use std::time::Duration;

use crate::progress::busy::{BusyCount, BusyWindow};
use crate::time::Time;

/// The most bytes of a send that may wait for others.
pub(super) const SHARED: usize = 4 << 10;
/// A pause this long ends a burst.
pub(super) const PAUSE: Duration = Duration::from_micros(50);
/// The most answers that leave together. A system call for this number costs each of them next to nothing.
const MOST: u32 = 32;
/// The most messages that are counted. A program need not answer any.
const MOST_LEFT: u32 = 8 * MOST;
/// The portions in which the answers of all busy connections leave.
const PORTIONS: u32 = 4;

/// Small sends after messages that came together, where connections share a stream to their peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnswerBurst {
    /// Messages that have no answer yet.
    left: u32,
    /// Answers of the portion that has not left.
    kept: u32,
    /// When the last of either came.
    last: Time,
    /// The time of the messages that come now.
    came: Time,
    window: BusyWindow,
    count: BusyCount,
    /// The connections that are busy.
    busy: u32,
}

/// Whether an answer waits for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerTurn {
    /// It leaves with the next ones.
    Waits,
    /// It ends a portion, and other messages have no answer yet.
    EndsPortion,
    /// It leaves, and there is no other that could wait: every message has an answer, or each answer is a
    /// portion by itself.
    Last,
}

impl AnswerBurst {
    /// Messages are about to come.
    pub(super) fn begin(&mut self, now: Time) {
        (self.came, self.window) = (now, BusyWindow::at(now.since(Time::ZERO)));
    }

    /// A message has come for a connection that was counted last in `counted`.
    pub(super) fn ask(&mut self, counted: &mut BusyWindow) {
        (self.left, self.last) = ((self.left + 1).min(MOST_LEFT), self.came);
        if self.window.is_new_for(counted) {
            self.busy = self.count.add(self.window);
        }
    }

    /// Counts an answer of a thread. True if it waits for others. An event loop (`in_loop`) comes back before
    /// it sleeps, however long it takes over an answer. Other threads may compute for long, so their answers
    /// after a pause leave at once.
    pub(super) fn waits(&mut self, len: usize, now: Time, in_loop: bool) -> bool {
        let prompt = (in_loop || now.since(self.last) <= PAUSE) && len <= SHARED;
        self.last = now;
        let waits = self.answer() == AnswerTurn::Waits && prompt;
        if !waits {
            self.kept = 0;
        }
        waits
    }

    /// Counts an answer, for a task: the driver of the runtime ends the wait, so the time does not matter.
    pub(super) fn answer(&mut self) -> AnswerTurn {
        self.left = self.left.saturating_sub(1);
        self.kept += 1;
        let turn = match (self.busy / PORTIONS).min(MOST) {
            0 | 1 => AnswerTurn::Last,
            _ if self.left == 0 => AnswerTurn::Last,
            portion if self.kept >= portion => AnswerTurn::EndsPortion,
            _ => AnswerTurn::Waits,
        };
        if turn != AnswerTurn::Waits {
            self.kept = 0;
        }
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Time {
        Time::ZERO + Duration::from_micros(us)
    }

    /// Answers to a message of each of this number of connections.
    fn asked_by(connections: usize) -> AnswerBurst {
        let mut answers = AnswerBurst::default();
        answers.begin(at(20_000));
        for counted in &mut vec![BusyWindow::default(); connections] {
            answers.ask(counted);
        }
        answers
    }

    #[test]
    fn answers_leave_in_portions_of_a_quarter_of_the_busy_connections() {
        use AnswerTurn::{EndsPortion, Last, Waits};
        assert_eq!(AnswerBurst::default().answer(), Last, "no message has come");
        let turns = |connections: usize| {
            let mut answers = asked_by(connections);
            (0..connections).map(|_| answers.answer()).collect::<Vec<_>>()
        };
        assert_eq!(turns(1), [Last]);
        assert_eq!(turns(7), [Last; 7], "each leaves at once");
        assert_eq!(turns(8), [&[Waits, EndsPortion].repeat(3)[..], &[Waits, Last]].concat());
        let ends = |connections| turns(connections).iter().filter(|turn| **turn != Waits).count();
        assert_eq!((ends(11), ends(64), ends(128), ends(256)), (6, 4, 4, 8), "at most 32 together");

        let mut counted = BusyWindow::default();
        let mut answers = AnswerBurst::default();
        answers.begin(at(20_000));
        (0..8).for_each(|_| answers.ask(&mut counted));
        let turns = (0..8).map(|_| answers.answer());
        assert!(turns.into_iter().all(|turn| turn != Waits), "one connection is busy");
    }

    #[test]
    fn a_thread_that_pauses_keeps_no_answer() {
        let mut answers = asked_by(64);
        assert_eq!(
            [1, 2, 100, 101].map(|us| answers.waits(64, at(20_000 + us), false)),
            [true, true, false, true]
        );
        assert!(!answers.waits(SHARED + 1, at(20_102), false), "a large one");
        assert!(answers.waits(64, at(30_000), true), "a loop comes back however long it takes");
        let waited = (0..58).filter(|us| answers.waits(64, at(30_000 + us), false)).count();
        assert_eq!(waited, 54, "three portions end, and the last leaves");
        assert!(!answers.waits(64, at(30_100), false), "every message has an answer");
    }
}
