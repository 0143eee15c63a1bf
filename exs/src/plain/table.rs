//! The table of kernel sockets that have operations in flight.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::sock::{Name, Sock};
use super::types::Kind;

/// The sockets, and the lists of those with something to do.
#[derive(Default)]
pub(super) struct KernelTable {
    socks: slab::Slab<Sock>,
    by_name: HashMap<Name, usize>,
    /// The slots of sockets that `progress` must pump, each once.
    work: Vec<usize>,
    /// The slots of sockets whose sends wait for room, each once.
    full: Vec<usize>,
}

impl Index<usize> for KernelTable {
    type Output = Sock;

    fn index(&self, slot: usize) -> &Sock {
        &self.socks[slot]
    }
}

impl IndexMut<usize> for KernelTable {
    fn index_mut(&mut self, slot: usize) -> &mut Sock {
        &mut self.socks[slot]
    }
}

impl KernelTable {
    pub(super) fn is_empty(&self) -> bool {
        self.socks.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.socks.len()
    }

    /// The number of slots, those without a socket included.
    pub(super) fn capacity(&self) -> usize {
        self.socks.capacity()
    }

    /// The slot of a socket's entry. None: no operation on the socket is in flight.
    pub(super) fn slot_of(&self, name: &Name) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// A socket's entry. None: no operation on the socket is in flight.
    pub(super) fn of(&self, name: &Name) -> Option<&Sock> {
        self.slot_of(name).map(|slot| &self.socks[slot])
    }

    pub(super) fn get(&self, slot: usize) -> Option<&Sock> {
        self.socks.get(slot)
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Sock> {
        self.socks.get_mut(slot)
    }

    /// The slots of all sockets.
    pub(super) fn slots(&self) -> Vec<usize> {
        self.socks.iter().map(|(slot, _)| slot).collect()
    }

    /// Adds an entry for a socket that has none.
    pub(super) fn insert(&mut self, name: Name, fd: Arc<OwnedFd>, kind: Kind) -> usize {
        let slot = self.socks.insert(Sock::new(name, fd, kind));
        self.by_name.insert(name, slot);
        slot
    }

    pub(super) fn remove(&mut self, slot: usize) -> Sock {
        let sock = self.socks.remove(slot);
        self.by_name.remove(&sock.name);
        sock
    }

    /// Has `progress` pump a socket.
    pub(super) fn list(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.socks[slot].listed, true) {
            self.work.push(slot);
        }
    }

    /// Has `progress` try the sends of a socket again.
    pub(super) fn try_sends(&mut self, slot: usize) {
        self.socks[slot].ready.1 = true;
        self.list(slot);
    }

    /// True if sockets are listed.
    pub(super) fn has_work(&self) -> bool {
        !self.work.is_empty()
    }

    /// The sockets that were listed. The caller must pump them.
    pub(super) fn take_work(&mut self) -> Vec<usize> {
        let mut work = std::mem::take(&mut self.work);
        work.retain(|slot| {
            let listed = self.socks.get_mut(*slot);
            listed.is_some_and(|s| std::mem::replace(&mut s.listed, false))
        });
        work
    }

    /// Counts a socket as full if sends wait there for room.
    pub(super) fn count_full(&mut self, slot: usize) {
        let s = &mut self.socks[slot];
        let full = !s.tx.is_empty();
        match (std::mem::replace(&mut s.counted, full), full) {
            (false, true) => self.full.push(slot),
            (true, false) => self.full.retain(|other| *other != slot),
            _ => {}
        }
    }

    /// True if sends of a socket wait for room.
    pub(super) fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    /// Has `progress` try the sends of full sockets again, of `most` at most.
    pub(super) fn try_full(&mut self, most: usize) {
        for at in 0..self.full.len().min(most) {
            self.try_sends(self.full[at]);
        }
    }

    /// Has `progress` try sends again that the reactor does not report.
    pub(super) fn retry(&mut self) {
        for slot in self.slots() {
            if self.socks[slot].must_retry {
                self.try_sends(slot);
            }
        }
    }
}
