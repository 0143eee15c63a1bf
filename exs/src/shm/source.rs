//! Reading the memory of a peer: the regions that it has shared.
//!
//! Who owns memory is the only one to write it. So a SEND or a WRITE is carried out by
//! the side that receives it: it checks its own keys, and copies once, from where the
//! sender says that the payload lies. What a peer gets is never more than a view of what
//! it may read.
//!
//! # Trust
//! A view of a region shows more than the bytes that are sent. So it is given, and used,
//! between processes of one (effective) user only, which could look at each other anyway
//! (ptrace(2)). To a peer of another user every byte is copied through the rings.
//!
//! # No peer holds up the copy
//! The copy is made under the engine's lock, so it must not wait for the peer. It does not,
//! because a region is a memfd (`open_shared` checks that) which is mapped *here*: a fault on it is
//! served by this host's memory alone. A userfaultfd of the peer's watches the peer's own
//! mappings; a hole that the peer punches reads as zeros; the size is sealed, so there is
//! no SIGBUS. Memory that is no memfd may be anything in the peer's process: missing pages that
//! a userfaultfd, a FUSE or NFS server, or a stopped migration answers when it likes. The calls
//! that read it from outside (process_vm_readv(2)) sleep until then, uninterruptible but for
//! SIGKILL. So such memory is never read from outside: its owner copies it into the lane, and
//! waits for its own pages. The lane is the faster road, too: it copies twice, but both sides at
//! a time and without pinning pages (`spec-notes/shm.md` has the figures).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use super::greet::Message;
use super::record::Piece;
use crate::mem::{Region, Segment};
use crate::sys::{IoVecMut, SharedMap, open_shared, send_with_fds};

/// Regions that one side may have shared on one connection at a time.
const SLOTS: usize = 32;

/// A region of ours that the peer has.
struct Share {
    /// (Weak: so its address cannot come back for another region.)
    region: Weak<Region>,
    generation: u32,
    /// End of the last record that refers to it.
    used: u64,
}

/// What the peer may read of us.
#[derive(Default)]
pub(super) struct Shares {
    slots: Vec<Option<Share>>,
    generation: u32,
}

impl Shares {
    /// The piece for `segment`, if its region is one that can be shared; shares it first
    /// if that was not done. `end`: of the record that is to have the piece; `done`: up
    /// to where the peer has taken records.
    pub(super) fn piece(
        &mut self,
        segment: &Segment,
        end: u64,
        done: u64,
        sock: BorrowedFd<'_>,
    ) -> Option<Piece> {
        let region = segment.region();
        let fd = region.shared_fd()?;
        let is_it = |s: &Option<Share>| {
            s.as_ref().is_some_and(|s| std::ptr::eq(s.region.as_ptr(), Arc::as_ptr(region)))
        };
        let slot = match self.slots.iter().position(is_it) {
            Some(slot) => slot,
            None => self.share(region, fd, done, sock)?,
        };
        let share = self.slots.get_mut(slot)?.as_mut()?;
        share.used = end;
        Some(Piece {
            slot: u32::try_from(slot).ok()?,
            generation: share.generation,
            offset: segment.offset() as u64,
            len: segment.len() as u64,
        })
    }

    /// The record that has these pieces ends there: a skip may have come before it.
    pub(super) fn note(&mut self, pieces: &[Piece], end: u64) {
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
        let free = |s: &Option<Share>| {
            s.as_ref().is_none_or(|s| s.region.strong_count() == 0 && s.used <= done)
        };
        let idle = |s: &Option<Share>| s.as_ref().is_none_or(|s| s.used <= done);
        let slot = match self.slots.iter().position(free) {
            Some(slot) => slot,
            None if self.slots.len() < SLOTS => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            // All are in use: the one that was used longest ago makes room.
            None => {
                let used = |i: &usize| self.slots[*i].as_ref().map_or(0, |s| s.used);
                (0..SLOTS).filter(|i| idle(&self.slots[*i])).min_by_key(used)?
            }
        };
        let generation = self.generation.wrapping_add(1);
        let number = u32::try_from(slot).ok()?;
        let message = Message::Share { slot: number, generation, len: region.len() as u64 };
        // A peer that does not read its messages gets its bytes by another road.
        send_with_fds(sock, &message.emit(), &[fd]).ok()?;
        self.generation = generation;
        let region = Arc::downgrade(region);
        self.slots[slot] = Some(Share { region, generation, used: 0 });
        Some(slot)
    }

    /// Tells the peer of regions that are gone, so that it lets go of them.
    pub(super) fn sweep(&mut self, sock: BorrowedFd<'_>) {
        for (slot, share) in (0u32..).zip(&mut self.slots) {
            if let Some(s) = share
                && s.region.strong_count() == 0
            {
                let message = Message::Unshare { slot, generation: s.generation };
                // If it does not take the message now, the next sharing in this slot
                // replaces it.
                if send_with_fds(sock, &message.emit(), &[]).is_ok() {
                    *share = None;
                }
            }
        }
    }

    /// True if something was ever shared.
    pub(super) fn any(&self) -> bool {
        !self.slots.is_empty()
    }
}

/// Why payload could not be read where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It must come by the lane.
    ByLane,
    /// The piece is not inside of its region.
    Bounds,
}

/// What we may read of the peer.
#[derive(Default)]
pub(super) struct Views {
    maps: Vec<Option<(u32, SharedMap)>>,
}

impl Views {
    /// Takes a region that the peer shares. What cannot be mapped is not there, and its
    /// bytes will be asked for by the lane.
    pub(super) fn add(&mut self, slot: u32, generation: u32, len: u64, fd: &impl AsFd) -> bool {
        let Some(slot) = usize::try_from(slot).ok().filter(|s| *s < SLOTS) else { return false };
        if self.maps.len() <= slot {
            self.maps.resize_with(slot + 1, || None);
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.maps[slot] = open_shared(fd.as_fd(), len, false).ok().map(|map| (generation, map));
        true
    }

    /// The peer takes a region back.
    pub(super) fn remove(&mut self, slot: u32, generation: u32) {
        if let Some(place) = usize::try_from(slot).ok().and_then(|s| self.maps.get_mut(s))
            && place.as_ref().is_some_and(|(g, _)| *g == generation)
        {
            *place = None;
        }
    }

    /// True if a piece's region is here.
    pub(super) fn has(&self, slot: u32, generation: u32) -> bool {
        let map = usize::try_from(slot).ok().and_then(|s| self.maps.get(s));
        map.and_then(Option::as_ref).is_some_and(|(g, _)| *g == generation)
    }

    /// Copies the bytes of a piece from `offset` in it to where `to` points; `much`, as for
    /// [`SharedMap::copy_out`].
    pub(super) fn copy(
        &self,
        piece: &Piece,
        offset: u64,
        to: &[IoVecMut<'_>],
        much: bool,
    ) -> Result<(), Unread> {
        let map = self.maps.get(piece.slot as usize).and_then(Option::as_ref);
        let map = map.filter(|(generation, _)| *generation == piece.generation);
        let (_, map) = map.ok_or(Unread::ByLane)?;
        let mut at = piece.offset.checked_add(offset).ok_or(Unread::Bounds)?;
        for part in to {
            if !map.copy_out(at, part, much) {
                return Err(Unread::Bounds);
            }
            at += part.len() as u64;
        }
        Ok(())
    }
}
