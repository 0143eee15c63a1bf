//! Shared regions: how the receiver reads the memory of a peer.
//!
//! Only the owner of memory writes it. So the receiving side carries out a SEND or a WRITE: it
//! checks its own keys, and copies once, from the place that the sender names. A peer gets no
//! more than a view of memory that it may read.
//!
//! # Trust
//! A view of a region shows more than the bytes that are sent. So regions are shared only between
//! processes of one (effective) user, which could look at each other anyway (ptrace(2)). For a peer
//! of another user every byte is copied through the rings.
//!
//! # No peer holds up the copy
//! The copy happens under the engine's lock, so it must not wait for the peer. It never does: a
//! region is a memfd (`open_shared` checks that), and it is mapped *here*. This host's memory alone
//! serves a fault on it. A userfaultfd of the peer watches mappings of the peer only. A hole that
//! the peer punches reads as zeros. The size is sealed, so there is no SIGBUS.
//!
//! Other memory can be anything in the peer's process. A userfaultfd, a FUSE or NFS server or a
//! stopped migration answers for its missing pages when it likes. A call that reads such memory
//! from outside (process_vm_readv(2)) sleeps until then, and only SIGKILL interrupts it. So memory
//! that is no memfd is never read from outside. Its owner copies it into the lane, and waits for its
//! own pages. The lane is also faster: it copies twice, but both sides copy at the same time, and
//! no pages are pinned (`spec-notes/shm.md` has the figures).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use super::control::ControlMessage;
use super::record::RecordPiece;
use crate::mem::{Region, Segment};
use crate::sys::{IoVecMut, SharedMap, open_shared, send_with_fds};

/// Regions that one side may share on one connection at a time.
const SLOTS: usize = 32;

/// A region of ours that the peer can map.
struct SharedRegion {
    /// Weak: the allocation stays, so no other region can get its address.
    region: Weak<Region>,
    generation: u32,
    /// End of the last record that names it.
    used: u64,
}

/// The regions that the peer may read.
#[derive(Default)]
pub(super) struct SharedRegions {
    slots: Vec<Option<SharedRegion>>,
    generation: u32,
}

impl SharedRegions {
    /// The piece for `segment`. Shares its region first if that was not done yet. `end`: end of the
    /// record that names the piece; `done`: the peer's consumer index. None if the region cannot be
    /// shared, or if the peer has no room for the message.
    pub(super) fn piece(
        &mut self,
        segment: &Segment,
        end: u64,
        done: u64,
        sock: BorrowedFd<'_>,
    ) -> Option<RecordPiece> {
        let region = segment.region();
        let fd = region.shared_fd()?;
        let is_it = |s: &Option<SharedRegion>| {
            s.as_ref().is_some_and(|s| std::ptr::eq(s.region.as_ptr(), Arc::as_ptr(region)))
        };
        let slot = match self.slots.iter().position(is_it) {
            Some(slot) => slot,
            None => self.share(region, fd, done, sock)?,
        };
        let share = self.slots.get_mut(slot)?.as_mut()?;
        share.used = end;
        Some(RecordPiece {
            slot: u32::try_from(slot).ok()?,
            generation: share.generation,
            offset: segment.offset() as u64,
            len: segment.len() as u64,
        })
    }

    /// Sets the end of the record that names these pieces, which a skip may have moved.
    pub(super) fn note(&mut self, pieces: &[RecordPiece], end: u64) {
        for piece in pieces {
            if let Some(Some(share)) = self.slots.get_mut(piece.slot as usize) {
                share.used = end;
            }
        }
    }

    fn share(
        &mut self,
        region: &Arc<Region>,
        fd: BorrowedFd<'_>,
        done: u64,
        sock: BorrowedFd<'_>,
    ) -> Option<usize> {
        let free = |s: &Option<SharedRegion>| {
            s.as_ref().is_none_or(|s| s.region.strong_count() == 0 && s.used <= done)
        };
        let idle = |s: &Option<SharedRegion>| s.as_ref().is_none_or(|s| s.used <= done);
        let slot = match self.slots.iter().position(free) {
            Some(slot) => slot,
            None if self.slots.len() < SLOTS => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            // All slots are in use: the region that was used longest ago gives way.
            None => {
                let used = |i: &usize| self.slots[*i].as_ref().map_or(0, |s| s.used);
                (0..SLOTS).filter(|i| idle(&self.slots[*i])).min_by_key(used)?
            }
        };
        let generation = self.generation.wrapping_add(1);
        let number = u32::try_from(slot).ok()?;
        let message = ControlMessage::Share { slot: number, generation, len: region.len() as u64 };
        // Bytes of a region that the peer does not know travel by another route.
        send_with_fds(sock, &message.emit(), &[fd]).ok()?;
        self.generation = generation;
        let region = Arc::downgrade(region);
        self.slots[slot] = Some(SharedRegion { region, generation, used: 0 });
        Some(slot)
    }

    /// Tells the peer which regions are gone, so that it unmaps them.
    pub(super) fn sweep(&mut self, sock: BorrowedFd<'_>) {
        for (slot, share) in (0u32..).zip(&mut self.slots) {
            if let Some(s) = share
                && s.region.strong_count() == 0
            {
                let message = ControlMessage::Unshare { slot, generation: s.generation };
                // If the peer does not take the message now, the next region in this slot replaces it.
                if send_with_fds(sock, &message.emit(), &[]).is_ok() {
                    *share = None;
                }
            }
        }
    }

    /// True if any region was ever shared.
    pub(super) fn any(&self) -> bool {
        !self.slots.is_empty()
    }
}

/// Why payload could not be read in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ViewError {
    /// The region is not mapped: the payload must come by the lane.
    ByLane,
    /// The piece exceeds its region.
    Bounds,
}

/// The regions of the peer that we may read.
#[derive(Default)]
pub(super) struct PeerRegions {
    /// By slot: the generation and the mapping.
    maps: Vec<Option<(u32, SharedMap)>>,
}

impl PeerRegions {
    /// Maps a region that the peer shares. False if the slot is out of range. A region that cannot be
    /// mapped is left out: its bytes are asked for by the lane.
    pub(super) fn add(&mut self, slot: u32, generation: u32, len: u64, fd: &impl AsFd) -> bool {
        let Some(slot) = usize::try_from(slot).ok().filter(|s| *s < SLOTS) else { return false };
        if self.maps.len() <= slot {
            self.maps.resize_with(slot + 1, || None);
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.maps[slot] = open_shared(fd.as_fd(), len, false).ok().map(|map| (generation, map));
        true
    }

    /// Unmaps a region that the peer takes back.
    pub(super) fn remove(&mut self, slot: u32, generation: u32) {
        if let Some(view) = usize::try_from(slot).ok().and_then(|s| self.maps.get_mut(s))
            && view.as_ref().is_some_and(|(g, _)| *g == generation)
        {
            *view = None;
        }
    }

    /// True if a region is mapped.
    pub(super) fn has(&self, slot: u32, generation: u32) -> bool {
        let map = usize::try_from(slot).ok().and_then(|s| self.maps.get(s));
        map.and_then(Option::as_ref).is_some_and(|(g, _)| *g == generation)
    }

    /// Copies the bytes of a piece from `offset` on to where `to` points. `non_temporal` is as in
    /// [`SharedMap::copy_out`].
    pub(super) fn copy(
        &self,
        piece: &RecordPiece,
        offset: u64,
        to: &[IoVecMut<'_>],
        non_temporal: bool,
    ) -> Result<(), ViewError> {
        let map = self.maps.get(piece.slot as usize).and_then(Option::as_ref);
        let map = map.filter(|(generation, _)| *generation == piece.generation);
        let (_, map) = map.ok_or(ViewError::ByLane)?;
        let mut at = piece.offset.checked_add(offset).ok_or(ViewError::Bounds)?;
        for part in to {
            if !map.copy_out(at, part, non_temporal) {
                return Err(ViewError::Bounds);
            }
            at += part.len() as u64;
        }
        Ok(())
    }
}
