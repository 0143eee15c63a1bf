//! Slabs: the memory of several connections between the same two processes, in one memfd.
//!
//! To make a memfd, to map it on both sides, and to unmap it, takes longer than the messages of a
//! start-up do. So the side that connects makes the memory of 16 connections at a time, and both sides
//! map it once. HELLO says which *place* in the slab a connection has. The memory of a place costs
//! nothing before it is touched, and the slab goes with the last connection in it.
//!
//! # Connections of one slab
//! All places of a slab are open to both processes. So its connections are those to one process of our
//! own user. The process is not known before the connection is made, so a place is taken for an
//! address. If another process answers there, or one of another user, the connection gets a slab with
//! one place instead.
//!
//! # What a place leaves behind
//! The pages of a connection that has ended would stay until its slab goes. So the side that finds that
//! the other has closed the socket gives them back to the kernel after a second, if the slab is still
//! there (`ShmRnic::keep_spare`).

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::ring::{Mem, Vacated};
use crate::sys::{PeerCred, SharedMap, memfd_size, open_shared, share};
use crate::time::Time;

/// Places in a slab.
pub(super) const PLACES: u32 = 16;
/// Time without a new connection after which a slab gets no more of them.
const LIFE: Duration = Duration::from_secs(1);
/// Slabs with free places.
const MOST: usize = 4;

/// A slab that this side has made.
pub(super) struct OwnSlab {
    map: Arc<SharedMap>,
    memfd: OwnedFd,
    /// The process that has it.
    peer: OnceLock<PeerCred>,
}

impl OwnSlab {
    /// Makes a slab with this many places.
    pub(super) fn new(places: u32) -> io::Result<Arc<OwnSlab>> {
        let (map, memfd) = share(places as usize * Mem::LEN)?;
        Ok(Arc::new(OwnSlab { map: Arc::new(map), memfd, peer: OnceLock::new() }))
    }

    /// Makes the memory of a connection at a place. Fails for a place beyond the last.
    pub(super) fn memory(&self, place: u32, nonces: [u64; 2]) -> io::Result<Mem> {
        Mem::create(Arc::clone(&self.map), place, nonces)
    }

    fn is_shared(&self) -> bool {
        self.map.len() > Mem::LEN
    }

    /// True if this process may get the slab, and has it from now on. `trusted`: it is a process of our
    /// own user.
    pub(super) fn give_to(&self, peer: PeerCred, trusted: bool) -> bool {
        // A process of another pid namespace may have no number here.
        let known = trusted && peer.pid != 0;
        match self.peer.get() {
            None => (known || !self.is_shared()) && self.peer.set(peer).is_ok(),
            Some(had_by) => known && *had_by == peer,
        }
    }
}

impl AsFd for OwnSlab {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }
}

/// A place in a slab that this side has made.
pub(super) struct SlabPlace {
    pub(super) slab: Arc<OwnSlab>,
    pub(super) number: u32,
}

/// A slab with free places.
struct Filling {
    called: SocketAddr,
    slab: Arc<OwnSlab>,
    /// The first free place.
    next: u32,
    since: Time,
}

/// The slabs of a driver.
#[derive(Default)]
pub(super) struct Slabs {
    filling: Vec<Filling>,
    /// Slabs that peers have made and that links use, by device and inode of their memfd.
    peers: Vec<((u64, u64), Weak<SharedMap>)>,
    /// Places that no connection will use, and since when. Most slabs go before their pages need to.
    vacated: VecDeque<(Vacated, Time)>,
}

impl Slabs {
    /// Takes a place for a connection to this address.
    pub(super) fn take_place(&mut self, called: SocketAddr, now: Time) -> io::Result<SlabPlace> {
        let at = match self.filling.iter().position(|f| f.called == called) {
            Some(at) => at,
            None => {
                if self.filling.len() == MOST {
                    self.filling.remove(0);
                }
                let slab = OwnSlab::new(PLACES)?;
                self.filling.push(Filling { called, slab, next: 0, since: now });
                self.filling.len() - 1
            }
        };
        let filling = &mut self.filling[at];
        let place = SlabPlace { slab: Arc::clone(&filling.slab), number: filling.next };
        (filling.next, filling.since) = (filling.next + 1, now);
        if filling.next == PLACES {
            self.filling.remove(at);
        }
        Ok(place)
    }

    /// A connection has ended, and no other will use its place.
    pub(super) fn note_vacated(&mut self, vacated: Option<Vacated>, now: Time) {
        self.vacated.extend(vacated.map(|vacated| (vacated, now)));
    }

    /// When to look for what has had its time; None: there is nothing.
    #[inline]
    pub(super) fn due(&self) -> Option<Time> {
        let filling = self.filling.iter().map(|f| f.since);
        let vacated = self.vacated.front().map(|(_, since)| *since);
        filling.chain(vacated).min().map(|since| since + LIFE)
    }

    /// Drops slabs that have had no new connection for some time, and gives back the pages of places
    /// that were vacated some time ago.
    #[inline]
    pub(super) fn expire(&mut self, now: Time) {
        if self.due().is_some_and(|due| due <= now) {
            self.drop_old(now);
        }
    }

    #[cold]
    fn drop_old(&mut self, now: Time) {
        self.filling.retain(|f| f.since + LIFE > now);
        while let Some((vacated, since)) = self.vacated.front()
            && *since + LIFE <= now
        {
            vacated.discard();
            self.vacated.pop_front();
        }
    }

    /// Drops all, as this process needs the descriptors. True if there were some.
    pub(super) fn clear(&mut self) -> bool {
        !std::mem::take(&mut self.filling).is_empty()
    }

    /// Maps a slab that a peer has made, or finds it if it is mapped already.
    ///
    /// # Errors
    /// `InvalidInput` if it is no slab.
    pub(super) fn open(
        &mut self,
        memfd: BorrowedFd<'_>,
    ) -> io::Result<((u64, u64), Arc<SharedMap>)> {
        let (id, size) = memfd_size(memfd)?;
        let known = self.peers.iter().find(|(known, _)| *known == id);
        if let Some(map) = known.and_then(|(_, map)| map.upgrade()) {
            return Ok((id, map));
        }
        if ![1, PLACES as usize].contains(&(size / Mem::LEN)) || !size.is_multiple_of(Mem::LEN) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a slab has another size"));
        }
        let map = Arc::new(open_shared(memfd, size, true)?);
        self.peers.retain(|(_, map)| map.strong_count() > 0);
        self.peers.push((id, Arc::downgrade(&map)));
        Ok((id, map))
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::shm::ring::Word;

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn connections_to_one_address_have_places_of_their_own_in_one_slab() {
        let (mut ours, mut theirs) = (Slabs::default(), Slabs::default());
        let now = Time::ZERO;
        let places: Vec<SlabPlace> =
            (0..=PLACES).map(|_| ours.take_place(addr(7), now).unwrap()).collect();
        let same = |a: &SlabPlace, b: &SlabPlace| Arc::ptr_eq(&a.slab, &b.slab);
        assert!(places[1..PLACES as usize].iter().all(|p| same(p, &places[0])));
        assert!(!same(&places[PLACES as usize], &places[0]), "it is full");
        assert!(!same(&ours.take_place(addr(8), now).unwrap(), &places[PLACES as usize]));
        let both: Vec<(Mem, Mem)> = places[..2]
            .iter()
            .map(|p| {
                let a = p.slab.memory(p.number, [1, 2]).unwrap();
                let (_, map) = theirs.open(p.slab.as_fd()).unwrap();
                (a, Mem::open(map, p.number).unwrap())
            })
            .collect();
        both[1].0.set(Word::Consumed, 9);
        assert_eq!([0, 1].map(|i| both[i].1.theirs(Word::Consumed)), [0, 9]);
        let (_, map) = theirs.open(places[0].slab.as_fd()).unwrap();
        assert_eq!(theirs.peers.len(), 1, "mapped once");
        assert!(Mem::open(Arc::clone(&map), PLACES).is_err(), "beyond the last place");
        assert!(Mem::open(map, u32::MAX).is_err());
        assert!(Mem::open(theirs.open(places[2].slab.as_fd()).unwrap().1, 2).is_err(), "not made");
    }

    #[test]
    fn a_slab_gets_no_new_connection_after_a_second() {
        let mut slabs = Slabs::default();
        let first = slabs.take_place(addr(7), Time::ZERO).unwrap();
        let due = slabs.due().unwrap();
        assert_eq!(due, Time::ZERO + LIFE);
        slabs.expire(due);
        assert_eq!(slabs.due(), None);
        let second = slabs.take_place(addr(7), due).unwrap();
        assert!(!Arc::ptr_eq(&first.slab, &second.slab));
        assert!(slabs.clear() && !slabs.clear());
    }

    #[test]
    fn a_slab_is_for_one_trusted_process() {
        let (one, other) = (PeerCred { pid: 7, uid: 1 }, PeerCred { pid: 8, uid: 1 });
        let hidden = PeerCred { pid: 0, uid: 1 };
        let slab = OwnSlab::new(PLACES).unwrap();
        assert!(!slab.give_to(one, false) && !slab.give_to(hidden, true));
        assert!(slab.give_to(one, true) && slab.give_to(one, true));
        assert!(!slab.give_to(other, true) && !slab.give_to(one, false));
        let alone = OwnSlab::new(1).unwrap();
        assert!(alone.give_to(hidden, false));
        assert!(!alone.give_to(hidden, true), "this may be another process");
    }

    #[test]
    fn a_file_of_another_size_is_no_slab() {
        let mut slabs = Slabs::default();
        for len in [Mem::LEN - 4096, 2 * Mem::LEN, Mem::LEN * PLACES as usize + 4096] {
            assert!(slabs.open(share(len).unwrap().1.as_fd()).is_err(), "{len}");
        }
        assert!(slabs.open(share(Mem::LEN).unwrap().1.as_fd()).is_ok());
    }
}
