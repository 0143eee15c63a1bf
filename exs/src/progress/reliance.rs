//! Reliance: does the program wait by poll(2), select(2) or epoll, or inside EXS?
//!
//! A thread that waits inside EXS leads, so a hand-over of the lead to another thread would only
//! cost it time. A thread that waits in poll(2) for a descriptor moves no data: the background
//! thread must lead then, and at once. After a tick is too late, since each message would wait for
//! that tick. No call tells which of the two a program will do next. So the process keeps a score
//! of its past waits, and is in one of two states:
//!
//! - *waits* (at first): a thread that leaves the lead leaves the reactor free, and the background
//!   thread takes it after a tick. The background thread shows changes on descriptors, or a leader
//!   does before it sleeps.
//! - *polls*: a thread that leaves the lead hands it to the background thread. Calls that do not
//!   wait leave it there. Changes are shown at once.
//!
//! Three events turn a process to *polls*. First, the background thread shows a change that no call
//! has fetched within a tick. Second, the background thread makes the descriptor of a queue
//! readable, and that queue does not drive its shard. Third, a caller asks for such a descriptor.
//! Calls that find nothing (EAGAIN) do so too, unless the program has usually waited. Waits turn
//! the process back, if no change is shown between them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The score at which the process turns to *waits*. At 0 it turns to *polls*. Between the two it
/// keeps its state.
const WAITS: u32 = 256;
/// The weight of a wait. A program that has polled leads again after 16 waits.
const WAIT: u32 = 16;
/// The weight of a look at a queue without waiting. A program that does nothing else needs no
/// background thread.
const LOOK: u32 = 1;
/// The weight of a call that found nothing. One such call is enough in a new process, or in one
/// that has usually polled.
const MISS: u32 = 8;

/// The state of the process, and its score.
#[derive(Debug)]
pub(super) struct Reliance {
    polls: AtomicBool,
    score: AtomicU32,
}

impl Default for Reliance {
    fn default() -> Reliance {
        Reliance { polls: AtomicBool::new(false), score: AtomicU32::new(MISS) }
    }
}

impl Reliance {
    /// True if the program relies on descriptors.
    #[inline]
    pub(super) fn polls(&self) -> bool {
        self.polls.load(Ordering::SeqCst)
    }

    /// A thread is about to wait in EXS.
    #[inline]
    pub(super) fn note_wait(&self) {
        self.count_against(WAIT);
    }

    /// An event loop drives the shard, and waits for descriptors in EXS: the process is in the state
    /// *waits*, whatever it did before.
    #[inline]
    pub(super) fn note_loop(&self) {
        if self.polls() {
            self.score.store(WAITS, Ordering::Relaxed);
            self.polls.store(false, Ordering::SeqCst);
        }
    }

    /// A thread looks for events without waiting.
    #[inline]
    pub(super) fn note_look(&self) {
        self.count_against(LOOK);
    }

    #[inline]
    fn count_against(&self, weight: u32) {
        // Threads may overwrite each other's counts, which does no harm.
        let before = self.score.load(Ordering::Relaxed);
        if before < WAITS {
            let score = (before + weight).min(WAITS);
            self.score.store(score, Ordering::Relaxed);
            if score == WAITS {
                self.polls.store(false, Ordering::SeqCst);
            }
        }
    }

    /// A call found nothing and does not wait. True: this turns the process to *polls*.
    pub(super) fn note_miss(&self) -> bool {
        let score = self.score.load(Ordering::Relaxed).saturating_sub(MISS);
        self.score.store(score, Ordering::Relaxed);
        score == 0 && !self.polls.swap(true, Ordering::SeqCst)
    }

    /// A change was shown on a descriptor, or the program has asked for a descriptor. True: this
    /// turns the process to *polls*.
    pub(super) fn note_shown(&self) -> bool {
        self.score.store(0, Ordering::Relaxed);
        !self.polls() && !self.polls.swap(true, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_change_turns_a_process_to_polls_and_waits_turn_it_back() {
        let r = Reliance::default();
        assert!(!r.polls());
        assert!(r.note_shown() && r.polls());
        assert!(!r.note_shown(), "it did already");
        (1..WAITS / WAIT).for_each(|_| r.note_wait());
        assert!(r.polls(), "a few waits between");
        r.note_shown();
        (1..WAITS / WAIT).for_each(|_| r.note_wait());
        assert!(r.polls(), "they count from the last time that something was shown");
        r.note_wait();
        assert!(!r.polls());
    }

    #[test]
    fn a_miss_is_enough_for_a_process_that_has_hardly_waited() {
        let r = Reliance::default();
        assert!(r.note_miss() && r.polls());
        // A program that tries a call and then waits, each time, counts as waiting.
        (0..2 * WAITS / WAIT).for_each(|_| {
            r.note_miss();
            r.note_wait();
        });
        assert!(!r.polls());
        assert!(!r.note_miss(), "now it takes more");
        r.note_shown();
        r.note_loop();
        assert!(!r.polls() && !r.note_miss(), "a loop counts as many waits");
        (0..WAITS).for_each(|_| r.note_look());
        assert!(!r.polls());
    }
}
