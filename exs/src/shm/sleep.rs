//! How the two sides of a connection sleep and wake each other.
//!
//! Each side has a word, [`Word::Asleep`](super::ring::Word), that says what it wants to be woken
//! for; 0: it is awake.
//!
//! ```text
//! sleeper:  Asleep = wants;  fence;  is there work?    no: sleep
//! peer:     publish;         fence;  Asleep & what?    yes: Asleep = 0, ring
//! ```

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::sys::wake_shared;

/// Bits of such a word: what a side wants to be woken for.
///
/// Records and payload.
pub(super) const FOR_RECORDS: u64 = 1;
/// Room: the peer has read records, or taken payload.
pub(super) const FOR_ROOM: u64 = 2;
/// The end of the connection.
pub(super) const FOR_END: u64 = 4;
/// This bit says how to wake it: a thread sleeps on the word itself.
pub(super) const BY_WORD: u64 = 8;

/// The words of both sides.
pub(super) struct SleepWords<'a> {
    pub(super) ours: &'a AtomicU64,
    pub(super) theirs: &'a AtomicU64,
}

impl SleepWords<'_> {
    /// Announces that this side sleeps, and what it wants to be woken for. The caller must look for
    /// work once more afterwards. The fence orders the announcement before that look, as
    /// [`SleepWords::must_ring`] orders the peer's change before its look at this word. So at least
    /// one of the two sides sees the other.
    pub(super) fn announce_sleep(&self, wants: u64) {
        self.ours.store(wants, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// True if this side sleeps, and the peer has not woken it.
    pub(super) fn sleeps(&self) -> bool {
        self.ours.load(Ordering::Relaxed) != 0
    }

    /// Announces that this side is awake: the peer need not ring.
    pub(super) fn announce_awake(&self) {
        self.ours.store(0, Ordering::Relaxed);
    }

    /// What the peer wants to be woken for, if it sleeps and that includes `what`, which this side
    /// has just made visible. Then the caller must ring. 0: it must not.
    pub(super) fn must_ring(&self, what: u64) -> u64 {
        fence(Ordering::SeqCst);
        match self.theirs.load(Ordering::Relaxed) & what {
            0 => 0,
            _ => self.take_wake_mask(),
        }
    }

    /// Clears what the peer wants to be woken for, and returns it. The caller must ring if there was
    /// anything, whatever it was. The peer may have woken since the caller looked, and may sleep again
    /// and wait for something else. It would miss the bell that the caller owes it.
    pub(super) fn take_wake_mask(&self) -> u64 {
        self.theirs.swap(0, Ordering::AcqRel)
    }

    /// Wakes the thread of the peer's that sleeps on its word.
    pub(super) fn wake_sleeper(&self) {
        wake_shared(self.theirs);
    }
}
