//! Memory of connections that have ended, for the next ones between the same two processes.
//!
//! To make and map the memory of a connection, to fault its first page in, and to unmap it, takes
//! longer than all else that a short connection does. The threads of a process wait for each other
//! there, too. So both sides keep the memory of some connections for a second. The side that connects
//! passes the same memfd again, with new nonces and with its words set back. The side that listens
//! knows the memfd by its inode, and has it mapped. The messages are the same either way.
//!
//! # When memory may be used again
//! - Both sides trust each other, and the connection ended in order.
//! - The other side is the same process. It had the memory before, so it learns nothing new.
//! - The side that connects waits until the other has closed the socket, after which it touches the
//!   memory no more.
//! - Little of it was used, so that it costs a few pages.
//!
//! Records of the connection before may lie in the rings. They are none of the new one: the nonces
//! differ, see `ring`.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use super::ShmRnic;
use super::control::canonical;
use super::link::{LinkPhase, ShmLink};
use super::ring::{Mem, Word};
use super::slabs::SlabPlace;
use crate::sys::{PeerSocket, is_hung_up};
use crate::time::Time;

/// Spares of either kind, and connections whose place is kept so that they become spares.
const MOST: usize = 8;
/// Time that a spare is kept.
const LIFE: Duration = Duration::from_secs(1);
/// Bytes that a connection may have moved.
const LITTLE: u64 = 16 << 10;

/// Memory that this side made.
struct Made {
    memory: MadeMemory,
    called: SocketAddr,
    sock: PeerSocket,
    since: Time,
}

impl Made {
    /// Gives the memory back to the kernel, if the peer is done with it.
    fn give_back(&self) {
        if is_hung_up(self.sock.as_fd())
            && let Some(vacated) = self.memory.mem.vacate()
        {
            vacated.discard();
        }
    }
}

/// Memory for the next connection to a process.
pub(super) struct MadeMemory {
    pub(super) mem: Mem,
    pub(super) place: SlabPlace,
}

/// Memory that a peer made, under its slab's inode and its place there.
struct Mapped {
    origin: ((u64, u64), u32),
    mem: Mem,
    since: Time,
}

/// The spares of a driver.
#[derive(Default)]
pub(super) struct Spares {
    made: Vec<Made>,
    mapped: Vec<Mapped>,
    /// Links whose place is kept.
    kept: usize,
    /// When to look for those that have had their time; None: there are none.
    due: Option<Time>,
}

impl Spares {
    /// True if one more link may keep its place, which counts from now on.
    pub(super) fn keep_place(&mut self) -> bool {
        let room = self.kept + self.made.len() < MOST;
        self.kept += usize::from(room);
        room
    }

    /// Takes memory out that a connection to this address has used. Its peer must be done with it.
    pub(super) fn take_made(&mut self, called: SocketAddr) -> Option<MadeMemory> {
        let done = |m: &Made| m.called == called && is_hung_up(m.sock.as_fd());
        let at = self.made.iter().position(done)?;
        Some(self.made.swap_remove(at).memory)
    }

    /// Takes the memory of a place out.
    pub(super) fn take_mapped(&mut self, origin: ((u64, u64), u32)) -> Option<Mem> {
        let at = self.mapped.iter().position(|m| m.origin == origin)?;
        Some(self.mapped.swap_remove(at).mem)
    }

    #[inline]
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Drops those that have had their time.
    #[inline]
    pub(super) fn expire(&mut self, now: Time) {
        if self.due.is_some_and(|due| due <= now) {
            self.drop_old(now);
        }
    }

    #[cold]
    fn drop_old(&mut self, now: Time) {
        let (made, old) = std::mem::take(&mut self.made)
            .into_iter()
            .partition::<Vec<_>, _>(|m| m.since + LIFE > now);
        self.made = made;
        old.iter().for_each(Made::give_back);
        self.mapped.retain(|m| m.since + LIFE > now);
        let (made, mapped) =
            (self.made.iter().map(|m| m.since), self.mapped.iter().map(|m| m.since));
        self.due = made.chain(mapped).min().map(|since| since + LIFE);
    }

    /// Drops all, as this process needs the descriptors. True if there were some.
    pub(super) fn clear(&mut self) -> bool {
        let any = !self.made.is_empty();
        self.made.drain(..).for_each(|m| m.give_back());
        self.mapped.clear();
        any
    }
}

/// True if a link has ended in order, so that both sides are done with what its memory holds.
fn ended_in_order(link: &ShmLink) -> bool {
    let phase = link.phase == LinkPhase::Closing;
    let finished = link.rx.fin_received && link.tx.is_finished();
    phase && finished && link.mem.states_are_clear() && link.mem.is_sole()
}

/// True if the memory of a link that has ended in order may be used again.
fn may_be_spare(link: &ShmLink) -> bool {
    let lanes = link.mem.theirs(Word::Filled) | link.tx.lane_filled();
    let little = link.tx.ring.pos.saturating_add(link.rx.ring.pos) <= LITTLE && lanes == 0;
    little && link.peer.trusted
}

impl ShmRnic {
    /// How many memories are kept that this RNIC made, and that its peers made.
    #[cfg(any(test, feature = "internals"))]
    pub fn spare_memories(&self) -> (usize, usize) {
        (self.parts.spares.made.len(), self.parts.spares.mapped.len())
    }

    /// A link goes to another RNIC, which does not keep its memory when it ends.
    pub(super) fn forget_place(&mut self, link: &mut ShmLink) {
        if link.place.take().is_some() {
            self.parts.spares.kept -= 1;
        }
    }

    /// A link has ended: keeps its memory, if that may be used again. If the peer has closed
    /// the socket, neither side will use it, and its pages go back to the kernel if its slab stays. If
    /// both sides close at the same moment, the pages stay until the slab goes.
    pub(super) fn keep_spare(&mut self, link: ShmLink) {
        let spares = &mut self.parts.spares;
        spares.kept -= usize::from(link.place.is_some());
        if !ended_in_order(&link) {
            return;
        }
        let little = may_be_spare(&link);
        let ShmLink { mem, place, origin, socket, peer, polling, .. } = link;
        let since = polling.last_moved;
        let ended = socket.sock.as_ref().is_some_and(|sock| is_hung_up(sock.as_fd()));
        match (place, socket.sock, origin) {
            // Neither side will use it again.
            (None, ..) if ended => {
                return self.parts.slabs.note_vacated(mem.vacate(), since);
            }
            (Some(place), Some(sock), None) if little && spares.made.len() < MOST => {
                // Its peer sees the end, and this side sees when the peer is done.
                sock.shut_write();
                let memory = MadeMemory { mem, place };
                let called = canonical(peer.addrs.1);
                spares.made.push(Made { memory, called, sock, since });
            }
            (None, _, Some(origin)) if little => {
                if spares.mapped.len() == MOST {
                    spares.mapped.remove(0);
                }
                spares.mapped.push(Mapped { origin, mem, since });
            }
            _ if ended => return self.parts.slabs.note_vacated(mem.vacate(), since),
            _ => return,
        }
        spares.due.get_or_insert(since + LIFE);
    }
}
