//! How the two sides of a connection wake each other.

use std::sync::Arc;

use super::attended::AttendantSleep;
use super::control::ControlMessage;
use super::doorbells::PeerBitmap;
use super::link::ShmLink;
use super::polled::PolledEnd;
use super::ring::Word;
use super::sleep::{BY_WORD, FOR_RECORDS, RingDescriptor, SleepWords};
use crate::sys::{ForeignFd, PollBell};

/// Bells that came as messages, after which a connection is worth a bit of the bitmap.
const MESSAGE_BELLS: u32 = 8;

/// How this side wakes the peer. Without a bitmap it sends a message on the socket, which does for a
/// connection that is mostly idle.
#[derive(Clone, Default)]
pub(super) struct PeerBell {
    /// The bitmap of the peer's process, and the slot of this connection there. Only for a peer of our own
    /// user.
    bitmap: Option<(Arc<PeerBitmap>, u32)>,
    /// The library's end of the descriptor that the peer's program polls (`polled`).
    polled: Option<Arc<PollBell>>,
}

impl PeerBell {
    /// Adopts the end of a descriptor that has come. An end of another kind is ignored: the usual bells go
    /// on.
    pub(super) fn adopt_descriptor(&mut self, end: Option<ForeignFd>) {
        self.polled = end.and_then(|fd| PollBell::adopt(fd).ok()).map(Arc::new);
    }

    /// Wakes the peer if it sleeps and wants to be woken for `what`. False: the caller must wake the peer by
    /// a message.
    #[must_use]
    pub(super) fn ring(&self, words: &SleepWords<'_>, what: u64) -> bool {
        let mask = words.must_ring(what);
        if mask & BY_WORD != 0 {
            words.wake_sleeper();
            return true;
        }
        mask == 0 || self.bitmap.as_ref().is_some_and(|(bitmap, slot)| bitmap.set(*slot))
    }

    /// The same for an eager message of `len` bytes. A message without bytes is none for a receive of the
    /// program, but for its session.
    #[must_use]
    pub(super) fn ring_for_message(&self, words: &SleepWords<'_>, len: usize, what: u64) -> bool {
        let Some(bell) = self.polled.as_ref().filter(|_| len > 0) else {
            return self.ring(words, what);
        };
        match words.must_ring_descriptor() {
            RingDescriptor::Usual => return self.ring(words, what),
            RingDescriptor::No => {}
            RingDescriptor::Yes => {
                // Without room there the descriptor is readable, and has been for long.
                if !bell.ring(len) {
                    words.uncount_ring();
                }
            }
        }
        true
    }
}

/// The descriptors of a peer's bitmap that have come and were not checked yet.
pub(super) struct ReceivedBitmap {
    pub(super) slot: u32,
    pub(super) memfd: ForeignFd,
    pub(super) button: ForeignFd,
}

/// Whether the peer can set the bit of this connection in our bitmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BitmapGrant {
    #[default]
    No,
    /// This side has named the bitmap in the memory, as the peer has it from another connection.
    Named,
    /// This side has passed the bitmap.
    Passed,
}

/// How each side wakes the other.
#[derive(Default)]
pub(super) struct WakeUp {
    /// How this side wakes the peer.
    pub(super) bell: PeerBell,
    /// The peer's bitmap, if it has come since the last turn.
    pub(super) received_bitmap: Option<Box<ReceivedBitmap>>,
    /// Our bitmap: a peer that has it sets the bit of this connection, so no thread need poll it.
    grant: BitmapGrant,
    /// Bells that came as messages since the grant changed.
    bells_received: u32,
    /// The descriptor that our program polls.
    pub(super) polled: PolledEnd,
    /// How the attendant sleeps.
    pub(super) attendant: AttendantSleep,
}

impl WakeUp {
    /// True if the peer knows nothing of this RNIC by which it could wake this side, but the socket.
    pub(super) fn is_plain(&self) -> bool {
        self.grant == BitmapGrant::No && self.polled.is_kept()
    }

    /// A bell came as a message.
    pub(super) fn note_bell(&mut self) {
        self.bells_received = self.bells_received.saturating_add(1);
    }
}

impl ShmLink {
    /// Wakes the peer if it sleeps and wants to be woken for `what`.
    pub(super) fn ring(&self, what: u64) {
        if !self.wake_up.bell.ring(&self.mem.sleep_words(), what) {
            self.ring_by_message();
        }
    }

    /// Wakes the peer for an eager message of `len` bytes.
    pub(super) fn ring_for_message(&self, len: usize, what: u64) {
        if !self.wake_up.bell.ring_for_message(&self.mem.sleep_words(), len, what) {
            self.ring_by_message();
        }
    }

    /// Wakes a peer that has announced a sleep, which this side has cleared.
    pub(super) fn ring_by_message(&self) {
        self.send_control(&ControlMessage::Bell, &[]);
    }

    /// As [`ring`](Self::ring), for the last record of a link that closes its socket in this very turn.
    /// The peer's reactor reports that, so it needs no bell. A thread that sleeps on the word does not see
    /// the socket.
    pub(super) fn ring_at_end(&self) {
        if self.mem.sleep_words().must_ring(FOR_RECORDS) & BY_WORD != 0 {
            self.mem.sleep_words().wake_sleeper();
        }
    }

    /// True if the peer has our bitmap.
    #[inline]
    pub(super) fn peer_has_bitmap(&self) -> bool {
        self.wake_up.grant != BitmapGrant::No
    }

    /// True if the peer should get our bitmap: its messages have woken us often, or the hot set is
    /// full (`hot_set_full`). A peer that still sends messages does not know a bitmap that was named.
    pub(super) fn wants_bitmap(&self, hot_set_full: bool) -> bool {
        let often = self.wake_up.bells_received >= MESSAGE_BELLS;
        self.peer.trusted
            && match self.wake_up.grant {
                BitmapGrant::No => hot_set_full || often,
                BitmapGrant::Named => often,
                BitmapGrant::Passed => false,
            }
    }

    /// Notes that the peer got our bitmap.
    pub(super) fn note_grant(&mut self, grant: BitmapGrant) {
        (self.wake_up.grant, self.wake_up.bells_received) = (grant, 0);
    }

    /// Names our bitmap, and the bit of this connection, to a peer that has the bitmap from another
    /// connection.
    pub(super) fn name_bitmap(&mut self, id: u64, slot: u32) {
        self.mem.set(Word::BitmapSlot, slot.into());
        self.mem.set(Word::BitmapId, id);
        self.note_grant(BitmapGrant::Named);
    }

    /// The bitmap that the peer has named, and the bit of this connection. None if it has named none,
    /// or if this side rings by a bitmap already.
    pub(super) fn named_bitmap(&self) -> Option<(u64, u32)> {
        if !self.peer.trusted || self.wake_up.bell.bitmap.is_some() {
            return None;
        }
        let id = self.mem.theirs(Word::BitmapId);
        let slot = u32::try_from(self.mem.theirs(Word::BitmapSlot)).ok();
        slot.filter(|_| id != 0).map(|slot| (id, slot))
    }

    /// From now on rings by setting the bit of `slot` in the peer's bitmap.
    pub(super) fn ring_by_bitmap(&mut self, bitmap: Arc<PeerBitmap>, slot: u32) {
        self.wake_up.bell.bitmap = Some((bitmap, slot));
    }
}
