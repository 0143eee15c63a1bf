//! Whether the program relies on descriptors: poll(2), select(2), epoll.
//!
//! A thread that waits inside of EXS leads, and the hand-over of the lead to another thread
//! would only cost it time. A thread that waits in poll(2) for a descriptor moves nothing: the
//! background thread must lead then, at once. After a tick is too late, as each message would wait
//! for that tick. No call says which of the two a program is about to do. So the process keeps a
//! score of what it did, and is in one of two states:
//!
//! - *waits* (at first): a thread that leaves the lead leaves the reactor free, and the
//!   background thread takes it after a tick. What is to be shown on descriptors is shown by
//!   the background thread, or by a leader before it sleeps.
//! - *polls*: a thread that leaves the lead hands it to the background thread. Calls that do not
//!   wait leave it there. What is to be shown is shown at once.
//!
//! Three things turn a process to *polls*: the background thread shows something that no call has
//! fetched within a tick; it makes the descriptor of a queue readable that does not drive its shard; or a caller asks for
//! such a descriptor. Calls that find nothing (EAGAIN) do so too, unless the program has mostly waited.
//! Waits turn it back, if nothing is shown between them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The score at which the process waits; at 0 it polls. Between them it stays as it is.
const WAITS: u32 = 256;
/// What a wait counts: so a program that polled leads again after 16 waits.
const WAIT: u32 = 16;
/// What a look at a queue that does not wait counts: a program that does nothing else needs no
/// background thread.
const LOOK: u32 = 1;
/// What a call that found nothing counts. One is enough in a new process, and in one that mostly
/// polled.
const MISS: u32 = 8;

/// The score.
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
    /// True if the program polls.
    #[inline]
    pub(super) fn polls(&self) -> bool {
        self.polls.load(Ordering::SeqCst)
    }

    /// A thread is about to wait in EXS.
    #[inline]
    pub(super) fn note_wait(&self) {
        self.count_against(WAIT);
    }

    /// A thread looks for events without waiting.
    #[inline]
    pub(super) fn note_look(&self) {
        self.count_against(LOOK);
    }

    #[inline]
    fn count_against(&self, weight: u32) {
        // Counts that threads lose to each other do no harm.
        let before = self.score.load(Ordering::Relaxed);
        if before < WAITS {
            let score = (before + weight).min(WAITS);
            self.score.store(score, Ordering::Relaxed);
            if score == WAITS {
                self.polls.store(false, Ordering::SeqCst);
            }
        }
    }

    /// A call found nothing, and does not wait. True if the program polls from now on, and did
    /// not.
    pub(super) fn note_miss(&self) -> bool {
        let score = self.score.load(Ordering::Relaxed).saturating_sub(MISS);
        self.score.store(score, Ordering::Relaxed);
        score == 0 && !self.polls.swap(true, Ordering::SeqCst)
    }

    /// The program was shown something on a descriptor, or has asked for one. True if it did
    /// not poll before.
    pub(super) fn note_shown(&self) -> bool {
        self.score.store(0, Ordering::Relaxed);
        !self.polls() && !self.polls.swap(true, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_turns_it_and_waits_turn_it_back() {
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
        // A program that tries, and then waits, each time, waits.
        (0..2 * WAITS / WAIT).for_each(|_| {
            r.note_miss();
            r.note_wait();
        });
        assert!(!r.polls());
        assert!(!r.note_miss(), "now it takes more");
        (0..WAITS).for_each(|_| r.note_look());
        assert!(!r.polls());
    }
}
