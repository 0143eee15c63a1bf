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
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use super::ShmRnic;
use super::control::canonical;
use super::link::{LinkPhase, ShmLink};
use super::ring::{Mem, Word};
use crate::sys::{PeerCred, PeerSocket, is_hung_up};
use crate::time::Time;

/// Spares of either kind, and connections whose memfd is kept so that they become spares.
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

/// Memory for the next connection to a process.
pub(super) struct MadeMemory {
    pub(super) mem: Mem,
    pub(super) memfd: OwnedFd,
    /// The process that has had it.
    pub(super) cred: PeerCred,
}

/// Memory that a peer made, under its inode.
struct Mapped {
    inode: (u64, u64),
    mem: Mem,
    since: Time,
}

/// The spares of a driver.
#[derive(Default)]
pub(super) struct Spares {
    made: Vec<Made>,
    mapped: Vec<Mapped>,
    /// Links whose memfd is kept.
    kept: usize,
    /// When to look for those that have had their time; None: there are none.
    due: Option<Time>,
}

impl Spares {
    /// True if one more link may keep its memfd, which counts from now on.
    pub(super) fn keep_memfd(&mut self) -> bool {
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

    /// Takes the mapping of a memfd out.
    pub(super) fn take_mapped(&mut self, inode: (u64, u64)) -> Option<Mem> {
        let at = self.mapped.iter().position(|m| m.inode == inode)?;
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
        self.made.retain(|m| m.since + LIFE > now);
        self.mapped.retain(|m| m.since + LIFE > now);
        let (made, mapped) =
            (self.made.iter().map(|m| m.since), self.mapped.iter().map(|m| m.since));
        self.due = made.chain(mapped).min().map(|since| since + LIFE);
    }

    /// Drops all, as this process needs the descriptors. True if that has freed any.
    pub(super) fn clear(&mut self) -> bool {
        let any = !self.made.is_empty();
        self.made.clear();
        self.mapped.clear();
        any
    }
}

/// True if the memory of a link that has ended may be used again.
fn may_be_spare(link: &ShmLink) -> bool {
    let in_order = link.phase == LinkPhase::Closing
        && link.rx.fin_received
        && link.tx.is_finished()
        && link.mem.states_are_clear();
    let lanes = link.mem.theirs(Word::Filled) | link.tx.lane_filled();
    let little = link.tx.pos.saturating_add(link.rx.pos) <= LITTLE && lanes == 0;
    in_order && little && link.peer.trusted && link.mem.is_sole()
}

impl ShmRnic {
    /// How many memories are kept that this RNIC made, and that its peers made.
    #[cfg(any(test, feature = "internals"))]
    pub fn spare_memories(&self) -> (usize, usize) {
        (self.parts.spares.made.len(), self.parts.spares.mapped.len())
    }

    /// A link has ended: keeps its memory, if that may be used again.
    pub(super) fn keep_spare(&mut self, link: ShmLink) {
        let spares = &mut self.parts.spares;
        spares.kept -= usize::from(link.memfd.is_some());
        if !may_be_spare(&link) {
            return;
        }
        let ShmLink { mem, memfd, inode, socket, peer, polling, .. } = link;
        let since = polling.last_moved;
        match (memfd, socket.sock, inode) {
            (Some(memfd), Some(sock), None) if spares.made.len() < MOST => {
                // Its peer sees the end, and this side sees when the peer is done.
                sock.shut_write();
                let memory = MadeMemory { mem, memfd, cred: peer.cred };
                let called = canonical(peer.addrs.1);
                spares.made.push(Made { memory, called, sock, since });
            }
            (None, _, Some(inode)) => {
                if spares.mapped.len() == MOST {
                    spares.mapped.remove(0);
                }
                spares.mapped.push(Mapped { inode, mem, since });
            }
            _ => return,
        }
        spares.due.get_or_insert(since + LIFE);
    }
}
