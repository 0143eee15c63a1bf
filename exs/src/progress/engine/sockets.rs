//! The sockets of a shard: their table, and the lists of those with something to do.
//!
//! A call, a completion, an event or a timer *marks* its socket. The engine looks after marked
//! sockets (`Engine::settle`). A socket with posted work whose doorbell is *lazy* is on a second
//! list, until the next leader rings it. The table also finds the socket of a queue pair and of a
//! listener.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasherDefault;
use std::ops::{Index, IndexMut};

use super::Error;
use super::domain::Place;
use super::exports::ExportEntry;
use super::figures;
use super::onesided::ExportId;
use super::sock::{Sock, State};
use super::tally::Tally;
use crate::mem::KeyHasher;
use crate::progress::options::Options;
use crate::rnic::{Listener, Qp};
use crate::session::Counters;
use crate::wire::exs::SocketKind;

/// A socket's name: its slot and the slot's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SockId {
    pub(in crate::progress) index: u32,
    pub(in crate::progress) generation: u32,
}

/// As in logs: the slot and its generation.
impl fmt::Display for SockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// A new socket on its way from one shard to another.
pub(in crate::progress) struct Moving(Sock);

/// A slot of the table: a socket, and the lists that it is on.
struct SocketSlot {
    sock: Sock,
    /// It is on the list of sockets that the engine must look after.
    marked: bool,
    /// Posted WRs wait for the doorbell: it is on the list of these.
    lazy: bool,
}

/// The sockets.
#[derive(Default)]
pub(crate) struct SocketTable {
    slab: slab::Slab<SocketSlot>,
    /// The generation of the last new socket.
    generation: u32,
    /// The marked sockets, each once.
    marked: Vec<u32>,
    /// The sockets with a lazy doorbell, each once.
    lazy: Vec<u32>,
    /// Those whose doorbell is lazy after this run of the engine.
    lazy_next: Vec<u32>,
    by_qp: HashMap<(usize, Qp), u32, BuildHasherDefault<KeyHasher>>,
    by_listener: HashMap<(usize, Listener), u32>,
    /// The number of the last export.
    last_export: ExportId,
    /// The sum of what sessions counted.
    pub(super) tally: Tally,
}

impl Index<u32> for SocketTable {
    type Output = Sock;

    #[inline]
    fn index(&self, index: u32) -> &Sock {
        &self.slab[index as usize].sock
    }
}

impl IndexMut<u32> for SocketTable {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Sock {
        &mut self.slab[index as usize].sock
    }
}

impl SocketTable {
    /// Makes a new socket.
    pub(crate) fn open(&mut self, kind: SocketKind, opts: Options) -> SockId {
        let generation = self.next_generation();
        self.insert(Sock::new(generation, kind, opts))
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    fn insert(&mut self, sock: Sock) -> SockId {
        let generation = sock.generation;
        let index = self.slab.insert(SocketSlot { sock, marked: false, lazy: false });
        SockId { index: u32::try_from(index).expect("fewer than 2^32 sockets"), generation }
    }

    /// Takes a socket out of the table. The caller must have freed its objects.
    pub(super) fn remove(&mut self, index: u32) -> Sock {
        self.slab.remove(index as usize).sock
    }

    /// Takes out a socket that will live in another shard. None: it must stay, since it is not new,
    /// or a poll or a timer refers to it here.
    pub(in crate::progress) fn take_fresh(&mut self, id: SockId) -> Option<Moving> {
        let s = self.get(id)?;
        let may_go = s.state == State::Fresh && s.polls.is_empty() && !s.timer.is_set();
        may_go.then(|| Moving(self.remove(id.index)))
    }

    /// Puts in a socket that was taken out of another shard.
    pub(in crate::progress) fn put_fresh(&mut self, Moving(sock): Moving) -> SockId {
        self.put_moved(sock)
    }

    /// Puts in a socket of another shard, which the engine must look after.
    pub(super) fn put_moved(&mut self, mut sock: Sock) -> SockId {
        sock.settle_in(self.next_generation());
        let id = self.insert(sock);
        self.mark(id.index);
        id
    }

    /// Takes out a connected socket, which goes to another shard with its session. What the session has
    /// counted stays here.
    pub(super) fn take_connected(&mut self, index: u32, (place, qp): (Place, Qp)) -> Sock {
        self.by_qp.remove(&(place.device, qp));
        let mut sock = self.remove(index);
        if let Some(session) = &mut sock.session {
            let counters = session.take_counters();
            figures::add(&mut sock.past, &counters);
            self.tally.end(index, place.device, &counters);
        }
        sock
    }

    // ---- look-up ---------------------------------------------------------------

    /// The name of the socket in this slot.
    #[inline]
    pub(super) fn id(&self, index: u32) -> SockId {
        SockId { index, generation: self[index].generation }
    }

    /// The socket of this name.
    ///
    /// # Errors
    /// EBADF if the socket is gone.
    #[inline]
    pub(super) fn find(&mut self, id: SockId) -> Result<&mut Sock, Error> {
        self.get_mut(id).ok_or_else(gone)
    }

    /// The socket of this name. None: the socket is gone.
    #[inline]
    pub(super) fn get(&self, id: SockId) -> Option<&Sock> {
        self.slab.get(id.index as usize).map(|e| &e.sock).filter(|s| s.generation == id.generation)
    }

    /// The same, for a caller that changes the socket.
    #[inline]
    pub(super) fn get_mut(&mut self, id: SockId) -> Option<&mut Sock> {
        let found = self.slab.get_mut(id.index as usize).map(|e| &mut e.sock);
        found.filter(|s| s.generation == id.generation)
    }

    /// The socket in this slot. None: the slot is free.
    #[inline]
    pub(super) fn at(&mut self, index: u32) -> Option<&mut Sock> {
        self.slab.get_mut(index as usize).map(|e| &mut e.sock)
    }

    /// The slots that the table has, free ones included.
    pub(super) fn slots(&self) -> u32 {
        u32::try_from(self.slab.capacity()).unwrap_or(u32::MAX)
    }

    /// The socket in this slot, with its name. None: the slot is free.
    pub(super) fn peek(&self, index: u32) -> Option<(SockId, &Sock)> {
        let s = &self.slab.get(index as usize)?.sock;
        Some((SockId { index, generation: s.generation }, s))
    }

    /// All sockets, with their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SockId, &Sock)> {
        self.slab.iter().filter_map(|(index, SocketSlot { sock: s, .. })| {
            Some((SockId { index: u32::try_from(index).ok()?, generation: s.generation }, s))
        })
    }

    /// The names of all sockets, for a walk that may change the table.
    pub(super) fn ids(&self) -> Vec<SockId> {
        self.iter().map(|(id, _)| id).collect()
    }

    // ---- marks -----------------------------------------------------------------

    /// Puts a socket on the list of those that the engine must look after.
    #[inline]
    pub(super) fn mark(&mut self, index: u32) {
        if let Some(entry) = self.slab.get_mut(index as usize)
            && !entry.marked
        {
            entry.marked = true;
            self.marked.push(index);
        }
    }

    /// True if the engine must look after sockets.
    #[inline]
    pub(in crate::progress) fn has_marked(&self) -> bool {
        !self.marked.is_empty()
    }

    /// Takes the list of marked sockets. The caller gives the emptied list back by `reuse`.
    pub(super) fn take_marked(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.marked)
    }

    /// Removes the mark of a socket from the list. False: the socket is gone.
    pub(super) fn unmark(&mut self, index: u32) -> bool {
        let found = self.slab.get_mut(index as usize);
        found.map(|entry| entry.marked = false).is_some()
    }

    /// Takes the memory of an emptied list for the next marks.
    pub(super) fn reuse(&mut self, list: Vec<u32>) {
        if self.marked.is_empty() {
            self.marked = list;
        }
    }

    // ---- doorbells -------------------------------------------------------------

    /// Leaves the doorbell of a socket to the next leader.
    #[inline]
    pub(super) fn ring_later(&mut self, index: u32) {
        if !std::mem::replace(&mut self.slab[index as usize].lazy, true) {
            self.lazy.push(index);
        }
    }

    /// Leaves the doorbell of a socket to the run after this one.
    pub(super) fn ring_next(&mut self, index: u32) {
        if !std::mem::replace(&mut self.slab[index as usize].lazy, true) {
            self.lazy_next.push(index);
        }
    }

    /// True if the doorbell of a socket waits for the next leader.
    pub(super) fn is_lazy(&self, index: u32) -> bool {
        self.slab.get(index as usize).is_some_and(|entry| entry.lazy)
    }

    /// True if a doorbell waits for the next leader.
    #[inline]
    pub(super) fn has_lazy(&self) -> bool {
        !self.lazy.is_empty() || !self.lazy_next.is_empty()
    }

    /// Rings the doorbells that wait, each by a call of `flush` with its device and queue pair. Those
    /// that this run has left to the next one stay.
    pub(super) fn ring_lazy(&mut self, mut flush: impl FnMut(usize, Qp)) {
        let mut lazy = std::mem::take(&mut self.lazy);
        for index in lazy.drain(..) {
            let Some(entry) = self.slab.get_mut(index as usize) else { continue };
            entry.lazy = false;
            let s = &entry.sock;
            if let Some(qp) = s.qp {
                flush(s.place.device, qp);
            }
        }
        self.lazy = std::mem::replace(&mut self.lazy_next, lazy);
    }

    // ---- queue pairs and listeners -----------------------------------------------

    /// The socket of a queue pair. None: the queue pair is gone.
    #[inline]
    pub(super) fn of_qp(&self, device: usize, qp: Qp) -> Option<u32> {
        self.by_qp.get(&(device, qp)).copied()
    }

    /// Notes that a queue pair belongs to a socket.
    pub(super) fn add_qp(&mut self, device: usize, qp: Qp, index: u32) {
        self.by_qp.insert((device, qp), index);
    }

    /// Marks the socket of a queue pair.
    pub(super) fn mark_qp(&mut self, device: usize, qp: Qp) {
        if let Some(index) = self.of_qp(device, qp) {
            self.mark(index);
        }
    }

    /// Ends the session of a socket. Returns the queue pair, which the caller must destroy, and its
    /// place. None: the socket has no queue pair.
    pub(super) fn end_session(&mut self, index: u32) -> Option<(Place, Qp)> {
        let s = &mut self.slab[index as usize].sock;
        if let Some(session) = s.session.take() {
            figures::add(&mut s.past, session.counters());
            self.tally.end(index, s.place.device, session.counters());
        }
        // The memory windows end with the queue pair.
        s.exports.close_all();
        let (place, qp) = (s.place, s.qp.take()?);
        self.by_qp.remove(&(place.device, qp));
        Some((place, qp))
    }

    /// The socket that listens by this listener of a device. None: the listener is closed.
    pub(super) fn of_listener(&self, device: usize, listener: Listener) -> Option<u32> {
        self.by_listener.get(&(device, listener)).copied()
    }

    /// The listeners of a device, with their sockets.
    pub(super) fn listeners_of(&self, device: usize) -> impl Iterator<Item = (Listener, u32)> {
        let of_device = self.by_listener.iter().filter(move |((d, _), _)| *d == device);
        of_device.map(|((_, listener), index)| (*listener, *index))
    }

    /// Notes that a listener belongs to a socket.
    pub(super) fn add_listener(&mut self, device: usize, listener: Listener, index: u32) {
        self.by_listener.insert((device, listener), index);
    }

    /// A listener is closed.
    pub(super) fn remove_listener(&mut self, device: usize, listener: Listener) {
        self.by_listener.remove(&(device, listener));
    }

    /// Takes out the listeners of a device, with their sockets.
    pub(super) fn take_listeners(&mut self, device: usize) -> Vec<(Listener, u32)> {
        let of_device = self.by_listener.extract_if(|(d, _), _| *d == device);
        of_device.map(|((_, listener), index)| (listener, index)).collect()
    }

    /// Notes an export of a socket. Returns its number.
    pub(super) fn add_export(&mut self, id: SockId, export: ExportEntry) -> ExportId {
        self.last_export += 1;
        let number = self.last_export;
        if let Some(s) = self.get_mut(id) {
            s.exports.add(number, export);
        }
        self.mark(id.index);
        number
    }

    /// True if every connection of a closed socket has ended.
    pub(in crate::progress) fn have_ended(&self) -> bool {
        self.iter().all(|(_, s)| s.session.is_none() || s.state != State::Closed)
    }

    /// The counters of all sessions, including those that are gone.
    pub(super) fn counters(&self) -> Counters {
        let mut sum = self.tally.past();
        for session in self.iter().filter_map(|(_, s)| s.session.as_ref()) {
            figures::add(&mut sum, session.counters());
        }
        sum
    }
}

#[cold]
fn gone() -> Error {
    Error::State { call: "the call", need: "exists", is: "is gone", errno: libc::EBADF }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(count: usize) -> (SocketTable, Vec<SockId>) {
        let mut table = SocketTable::default();
        let ids = (0..count).map(|_| table.open(SocketKind::Stream, Options::default())).collect();
        (table, ids)
    }

    #[test]
    fn a_name_never_names_another_socket() {
        let (mut table, ids) = table(2);
        table.remove(ids[0].index);
        assert!(table.get(ids[0]).is_none() && table.get(ids[1]).is_some());
        assert!(table.find(ids[0]).is_err_and(|e| e.errno() == libc::EBADF));
        let next = table.open(SocketKind::Stream, Options::default());
        assert_eq!(next.index, ids[0].index, "the slot is used again");
        assert!(table.get(ids[0]).is_none() && table.get(next).is_some());
        assert_eq!(table.id(next.index), next);
    }

    #[test]
    fn a_socket_is_marked_once_until_it_was_looked_after() {
        let (mut table, ids) = table(2);
        assert!(!table.has_marked());
        for index in [1, 0, 1, 7] {
            table.mark(index);
        }
        let mut list = table.take_marked();
        assert_eq!(list, [1, 0]);
        table.mark(1);
        assert!(!table.has_marked(), "its mark is still on the list that was taken");
        assert!(table.unmark(1) && !table.unmark(7));
        table.mark(1);
        assert!(table.has_marked());
        list.clear();
        table.reuse(list);
        assert_eq!(table.take_marked(), [1], "marks are not lost");
        table.remove(ids[0].index);
        assert!(!table.unmark(0), "a socket that is gone has no turn");
    }

    #[test]
    fn a_lazy_doorbell_is_rung_once_if_there_is_a_queue_pair() {
        let (mut table, _) = table(2);
        table[1].qp = Some(Qp(9));
        table[1].place = Place { device: 3, domain: 0 };
        let rung = |table: &mut SocketTable| {
            let mut rung = Vec::new();
            table.ring_lazy(|device, qp| rung.push((device, qp)));
            rung
        };
        for index in [1, 0, 1] {
            table.ring_later(index);
        }
        assert!(table.has_lazy());
        assert_eq!(rung(&mut table), [(3, Qp(9))]);
        // One that a run leaves to the next waits until then.
        for index in [1, 1] {
            table.ring_next(index);
        }
        assert!(table.has_lazy() && rung(&mut table).is_empty());
        assert!(table.has_lazy());
        assert_eq!(rung(&mut table), [(3, Qp(9))]);
        assert!(!table.has_lazy() && rung(&mut table).is_empty());
        table.ring_later(1);
        assert_eq!(rung(&mut table), [(3, Qp(9))], "it can be lazy again");
    }

    #[test]
    fn a_queue_pair_leads_to_its_socket_until_the_session_ends() {
        let (mut table, ids) = table(1);
        let place = Place { device: 2, domain: 5 };
        (table[0].qp, table[0].place) = (Some(Qp(4)), place);
        table.add_qp(2, Qp(4), ids[0].index);
        assert_eq!((table.of_qp(2, Qp(4)), table.of_qp(1, Qp(4))), (Some(0), None));
        assert_eq!(table.end_session(0), Some((place, Qp(4))));
        assert_eq!((table.of_qp(2, Qp(4)), table.end_session(0)), (None, None));
    }
}
