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
/// This bit says how to wake it for eager messages: the program polls a descriptor, at which the
/// peer rings ([`SleepWords::must_ring_descriptor`]).
pub(super) const BY_DESCRIPTOR: u64 = 16;
/// One such ring. The peer counts them here, as each leaves a message at the descriptor.
const RING: u64 = 1 << 8;
/// All such rings.
const RINGS: u64 = 0xff << 8;
/// Most such rings in one sleep. The descriptor is readable after the first. The others show their
/// bytes, and give an edge each.
const MOST_RINGS: u64 = 4 * RING;

/// How to wake a peer for an eager message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingDescriptor {
    /// As for anything else: the peer does not wait by a descriptor.
    Usual,
    /// The peer is awake, or was woken.
    No,
    /// At its descriptor.
    Yes,
}

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

    /// States anew what this side wants to be woken for, if it still sleeps. False: a thread has woken it,
    /// and it may still be about to sleep at the old value. The caller must look for work as after
    /// [`announce_sleep`](Self::announce_sleep).
    pub(super) fn restate(&self, wants: u64) -> bool {
        let sleeping = |word: u64| (word != 0).then_some(wants);
        let stated = self.ours.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sleeping).is_ok();
        fence(Ordering::SeqCst);
        stated
    }

    /// True if this side sleeps, and the peer has not woken it.
    #[cfg(test)]
    pub(super) fn sleeps(&self) -> bool {
        self.ours.load(Ordering::Relaxed) & !RINGS != 0
    }

    /// True if this side has announced that it wants to be woken for `wants`, and the peer has woken it
    /// for nothing since.
    pub(super) fn state(&self, wants: u64) -> bool {
        self.ours.load(Ordering::Relaxed) & (FOR_RECORDS | FOR_ROOM | FOR_END) == wants
    }

    /// Announces that this side is awake, and returns how many times the peer has rung at the
    /// descriptor since the last such call. It rings no more until the next sleep.
    pub(super) fn take_rings(&self) -> u32 {
        let rings = (self.ours.swap(0, Ordering::AcqRel) & RINGS) / RING;
        u32::try_from(rings).unwrap_or(0)
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
    ///
    /// The count of rings at its descriptor stays.
    pub(super) fn take_wake_mask(&self) -> u64 {
        self.theirs.fetch_and(RINGS, Ordering::AcqRel) & !RINGS
    }

    /// How to wake the peer for an eager message that this side has just made visible. With
    /// [`RingDescriptor::Yes`] the ring is counted, and the caller must ring. What else the peer
    /// waits for stays announced.
    pub(super) fn must_ring_descriptor(&self) -> RingDescriptor {
        fence(Ordering::SeqCst);
        let mut word = self.theirs.load(Ordering::Relaxed);
        loop {
            if word & BY_DESCRIPTOR == 0 {
                return RingDescriptor::Usual;
            }
            if word & RINGS >= MOST_RINGS {
                return RingDescriptor::No;
            }
            let counted = word + RING;
            match self.theirs.compare_exchange(word, counted, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return RingDescriptor::Yes,
                Err(other) => word = other,
            }
        }
    }

    /// A ring that was counted has left no message at the peer's descriptor.
    pub(super) fn uncount_ring(&self) {
        let less = |word: u64| (word & RINGS != 0).then(|| word - RING);
        // The peer may have taken the count. A count of one too many does it no harm.
        let _ = self.theirs.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
    }

    /// Wakes the thread of this side that sleeps on its word.
    pub(super) fn wake_own(&self) {
        self.announce_awake();
        wake_shared(self.ours);
    }

    /// Wakes the thread of the peer's that sleeps on its word.
    pub(super) fn wake_sleeper(&self) {
        wake_shared(self.theirs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides of a word: that of the sleeper, and that of its peer.
    fn sides<'a>(word: &'a AtomicU64, other: &'a AtomicU64) -> [SleepWords<'a>; 2] {
        [SleepWords { ours: word, theirs: other }, SleepWords { ours: other, theirs: word }]
    }

    #[test]
    fn rings_at_a_descriptor_are_counted_and_bounded() {
        let (word, other) = (AtomicU64::new(0), AtomicU64::new(0));
        let [sleeper, peer] = sides(&word, &other);
        assert_eq!(peer.must_ring_descriptor(), RingDescriptor::Usual, "it is awake");
        sleeper.announce_sleep(FOR_RECORDS | FOR_END | BY_DESCRIPTOR);
        let most = MOST_RINGS / RING;
        (0..most).for_each(|_| assert_eq!(peer.must_ring_descriptor(), RingDescriptor::Yes));
        assert_eq!(peer.must_ring_descriptor(), RingDescriptor::No);
        peer.uncount_ring();
        assert_eq!(u64::from(sleeper.take_rings()), most - 1);
        assert!(!sleeper.sleeps() && sleeper.take_rings() == 0);
        peer.uncount_ring();
        assert_eq!(sleeper.take_rings(), 0, "no ring was counted");
    }

    #[test]
    fn a_side_that_was_woken_does_not_sleep_again_by_another_thread() {
        let (word, other) = (AtomicU64::new(0), AtomicU64::new(0));
        let [sleeper, peer] = sides(&word, &other);
        assert!(!sleeper.restate(FOR_RECORDS), "it is awake");
        sleeper.announce_sleep(FOR_RECORDS);
        assert!(sleeper.restate(FOR_RECORDS | FOR_ROOM));
        assert_eq!(peer.must_ring(FOR_ROOM), FOR_RECORDS | FOR_ROOM);
        assert!(!sleeper.restate(FOR_RECORDS), "it was woken");
        assert!(!sleeper.sleeps());
    }

    #[test]
    fn anything_else_rings_as_usual_and_keeps_the_count() {
        let (word, other) = (AtomicU64::new(0), AtomicU64::new(0));
        let [sleeper, peer] = sides(&word, &other);
        sleeper.announce_sleep(FOR_RECORDS | FOR_END | BY_DESCRIPTOR);
        assert_eq!(peer.must_ring_descriptor(), RingDescriptor::Yes);
        assert_eq!(peer.must_ring(FOR_ROOM), 0, "it does not wait for room");
        assert_ne!(peer.must_ring(FOR_RECORDS) & FOR_RECORDS, 0);
        assert!(!sleeper.sleeps(), "it was woken");
        assert_eq!(peer.must_ring(FOR_RECORDS), 0, "once");
        assert_eq!(peer.must_ring_descriptor(), RingDescriptor::Usual);
        assert_eq!(sleeper.take_rings(), 1);
    }
}
