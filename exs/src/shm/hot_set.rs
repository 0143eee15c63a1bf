//! The hot set: the connections that a polling thread looks at itself.
//!
//! Every open link is *hot* or *armed*. `spin` and `poll_memory` read the memory of a hot link. An armed
//! link has stated in its memory what it wants to be woken for. A link becomes hot when something
//! moves on it. It is armed after many misses, and before every sleep. When the hot set is full,
//! a link whose peer has the doorbell bitmap is armed again as soon as it was served; its bit
//! shows when it has work.

use std::os::fd::AsRawFd;

use super::ShmRnic;
use super::control::ControlMessage;
use super::doorbells::{DoorbellBitmap, SLOTS};
use super::wake_up::{BitmapGrant, ReceivedBitmap};
use crate::driver::Source;
use crate::rnic::table;

/// Links that a thread polls if their peers have the bitmap. Further ones are found by their bits.
const MAX_HOT_WITH_BITMAP: usize = 32;
/// Links that a thread polls in all. Links whose peers have no bitmap (another user's, or new ones)
/// stay hot up to this number. Each link beyond is woken by a message: two system calls for what
/// one poll would have found.
const MAX_HOT: usize = 1024;
/// Misses after which a hot link is armed. Where more than `MISSES_SHARE` links are hot, fewer
/// misses suffice, so that a poll of the whole set stays short. A thousand links without the
/// bitmap, each served every 15 ms, must stay hot: otherwise each message costs its peer one
/// system call to wake this thread, and this thread another.
const MAX_MISSES: u32 = 16384;
/// Hot links up to which each has `MAX_MISSES`; twice as many have half each.
const MISSES_SHARE: usize = 64;
/// Ready links that suffice for the next turns, so that the hot set need not be polled.
const READY_BATCH: usize = 64;

impl ShmRnic {
    /// True if one more link whose peer has the bitmap would be armed and not become hot.
    pub(super) fn hot_set_is_full(&self) -> bool {
        self.parts.hot.len() >= MAX_HOT_WITH_BITMAP
    }

    /// Makes an open link hot; arms it instead if the hot set is full and its peer has the bitmap.
    pub(super) fn make_hot(&mut self, id: u32) {
        let full = self.hot_set_is_full();
        let Ok(link) = self.links.get_mut(id) else { return };
        if !link.phase.is_connected() {
            return;
        }
        link.polling.misses = 0;
        if link.polling.hot {
            return;
        }
        if link.base.attended {
            if link.rearm_attended() {
                self.enqueue(Source::Link(id));
            }
            return;
        }
        if link.peer_has_bitmap() && full {
            if link.arm() {
                self.enqueue(Source::Link(id));
            }
            return;
        }
        link.polling.hot = true;
        link.end_polled_sleep();
        link.mem.sleep_words().announce_awake();
        self.parts.hot.push(id);
        if self.parts.hot.len() > MAX_HOT {
            let oldest = self.parts.hot.remove(0);
            if self.make_cold(oldest) {
                self.enqueue(Source::Link(oldest));
            }
        }
    }

    /// Leaves a link to the thread that attends it.
    pub(super) fn make_attended(&mut self, id: u32) {
        self.parts.hot.retain(|hot| *hot != id);
        if let Ok(link) = self.links.get_mut(id) {
            link.polling.hot = false;
            link.end_polled_sleep();
            link.mem.sleep_words().announce_awake();
        }
    }

    /// A link is gone: no thread looks at it any more.
    pub(super) fn look_no_more(&mut self, id: u32) {
        let parts = &mut self.parts;
        parts.hot.retain(|hot| *hot != id);
        parts.woken = parts.woken.filter(|woken| *woken != id);
        parts.last_armed = parts.last_armed.filter(|armed| *armed != id);
    }

    /// Arms a hot link, and takes it for cold. True if it has work already: then it stays hot, and
    /// the caller must enqueue it.
    fn make_cold(&mut self, id: u32) -> bool {
        let Ok(link) = self.links.get_mut(id) else { return false };
        link.polling.hot = false;
        let found = link.arm();
        if found {
            // Neither armed nor worth polling now, but about to be served: after that it becomes hot
            // or is armed.
            link.polling.hot = true;
            self.parts.hot.push(id);
        }
        found
    }

    /// Enqueues the links whose bits are set. True if there were any.
    pub(super) fn collect_doorbells(&mut self) -> bool {
        let Some(bitmap) = &mut self.parts.bitmap else { return false };
        let mut slots = std::mem::take(&mut self.parts.taken_slots);
        bitmap.take(&mut slots);
        let mut any = false;
        for slot in slots.drain(..) {
            // A link that has just gone, or a bad peer, can leave a slot without a link.
            if let Some(id) = self.links.id_at(slot as usize) {
                if !self.hot_set_is_full() {
                    self.make_hot(id);
                }
                self.enqueue(Source::Link(id));
                any = true;
            }
        }
        self.parts.taken_slots = slots;
        any
    }

    /// Opens the peer's bitmap if it has come, and passes ours if the link wants bits by now.
    #[cold]
    pub(super) fn exchange_bitmaps(&mut self, id: u32) {
        let full = self.hot_set_is_full();
        let Ok(link) = self.links.get_mut(id) else { return };
        if let Some(new) = link.wake_up.received_bitmap.take() {
            let ReceivedBitmap { slot, memfd, button } = *new;
            // A descriptor that is not a bitmap is ignored: messages go on to wake this peer.
            if let Ok(bitmap) = self.parts.peer_bitmaps.open(memfd, button) {
                link.ring_by_bitmap(bitmap, slot);
            }
        } else if let Some((named, slot)) = link.named_bitmap()
            && let Some(bitmap) = self.parts.peer_bitmaps.find(named)
        {
            link.ring_by_bitmap(bitmap, slot);
        }
        let slot = table::place_of(id);
        let wants = link.wants_bitmap(full) && slot < SLOTS;
        if wants && (self.parts.bitmap.is_some() || self.make_bitmap()) {
            self.pass_bitmap(id, slot);
        }
    }

    /// Makes the bitmap of this process. False if no descriptors are left: a later call tries again.
    fn make_bitmap(&mut self) -> bool {
        let Ok(mut bitmap) = DoorbellBitmap::new() else { return false };
        let raw = bitmap.bell().as_raw_fd();
        let interest = mio::Interest::READABLE;
        let watched =
            self.reactor.watch(&mut mio::unix::SourceFd(&raw), Source::Doorbell, interest);
        self.parts.bitmap = watched.is_ok().then_some(bitmap);
        self.parts.bitmap.is_some()
    }

    /// Gives a peer our bitmap. One message for each process suffices: the memory of its other
    /// connections names the bitmap, which takes no system call.
    fn pass_bitmap(&mut self, id: u32, slot: u32) {
        let (Ok(link), Some(bitmap)) = (self.links.get_mut(id), &mut self.parts.bitmap) else {
            return;
        };
        if !link.peer_has_bitmap() && bitmap.is_with(link.peer.cred) {
            bitmap.note_slot(slot);
            link.name_bitmap(bitmap.id(), slot);
        } else if link.send_control(&ControlMessage::PassBitmap { slot }, &bitmap.give(slot)) {
            if link.peer_has_bitmap() {
                bitmap.take_back(link.peer.cred);
            }
            link.note_grant(BitmapGrant::Passed);
        } else {
            return;
        }
        bitmap.note_holder(link.peer.cred);
    }

    /// Polls the hot links and the bitmap, and enqueues what has work. True if anything has.
    pub(super) fn poll_hot_set(&mut self) -> bool {
        if self.turns.ready.len() >= READY_BATCH && self.turns.served < READY_BATCH {
            // Enough for some turns, but not for ever: a link that has more as soon as its program
            // posts a receive becomes ready again by that. With enough such links the others would
            // never be polled.
            return true;
        }
        self.turns.served = 0;
        let (mut any, mut at) = (self.collect_doorbells(), 0);
        let max_misses = MAX_MISSES
            / u32::try_from(self.parts.hot.len().div_ceil(MISSES_SHARE))
                .unwrap_or(MAX_MISSES)
                .max(1);
        while let Some(&id) = self.parts.hot.get(at) {
            let Ok(link) = self.links.get_mut(id) else {
                self.parts.hot.swap_remove(at);
                continue;
            };
            at += 1;
            link.report_consumed();
            if link.has_work() {
                any = true;
                self.enqueue(Source::Link(id));
                continue;
            }
            link.polling.misses += 1;
            // More links than fit may have become hot before their peers got the bitmap.
            if link.polling.misses > max_misses
                || (link.peer_has_bitmap() && self.parts.hot.len() > MAX_HOT_WITH_BITMAP)
            {
                at -= 1;
                self.parts.hot.swap_remove(at);
                // A link that has work is in the hot set again.
                if self.make_cold(id) {
                    self.enqueue(Source::Link(id));
                    any = true;
                }
            }
        }
        any
    }

    /// Polls the hot set after some turns that left sources ready. A leader spins only when nothing is
    /// ready, and links whose programs post receives all the time are always ready. The others have
    /// their turn all the same.
    pub(super) fn poll_beside_ready(&mut self) {
        if self.turns.served >= READY_BATCH && !self.turns.ready.is_empty() {
            self.poll_hot_set();
        }
    }

    /// Polls like [`ShmRnic::poll_hot_set`], but counts no misses and enqueues nothing: for a loop of
    /// a few nanoseconds. None if no link is hot, or if setups are, which takes system calls.
    pub(super) fn has_news(&mut self) -> Option<bool> {
        if self.setups.any() {
            return None;
        }
        if self.parts.hot.is_empty() {
            return self.wake_armed().then_some(true);
        }
        let any_set = self.parts.bitmap.as_ref().is_some_and(DoorbellBitmap::any_set);
        Some(
            any_set
                || self.parts.hot.iter().any(|id| self.links.get(*id).is_ok_and(|l| l.has_work())),
        )
    }

    /// Looks at the link that was the only hot one before the sleep. Its peer rings for what it sends, and
    /// the bell makes the link hot. True if it has work, which may come before its bell.
    fn wake_armed(&mut self) -> bool {
        let Some(id) = self.parts.last_armed else { return false };
        let is_ours = |link: &super::ShmLink| {
            link.phase.is_connected() && !link.base.attended && !link.is_lent()
        };
        let has_work = self.links.get(id).is_ok_and(|link| is_ours(link) && link.has_work());
        if has_work {
            (self.parts.last_armed, self.parts.woken) = (None, Some(id));
        }
        has_work
    }

    /// Arms every hot link before a sleep. True if one has work.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        let mut hot = std::mem::take(&mut self.parts.hot);
        if let [only] = hot[..] {
            self.parts.last_armed = Some(only);
        } else if !hot.is_empty() {
            self.parts.last_armed = None;
        }
        let mut found = false;
        for id in hot.drain(..) {
            if self.make_cold(id) {
                self.enqueue(Source::Link(id));
                found = true;
            }
        }
        if !found {
            // Its room serves the next links.
            self.parts.hot = hot;
        }
        if self.parts.bitmap.as_mut().is_some_and(DoorbellBitmap::announce_sleep) {
            self.collect_doorbells();
            found = true;
        }
        found
    }
}
