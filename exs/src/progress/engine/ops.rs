//! The table of operations in flight. It keeps what each event must return to the program.

use std::sync::Arc;

use super::SockId;
use super::domain::Piece;
use super::parts::Groups;
use super::post::Ticket;
use crate::ids::OpId;
use crate::mem::{Buffer, Key};
use crate::progress::event::{Bufs, EventKind, RawEvent};
use crate::progress::queue::QueueCore;
use crate::rnic::Mr;

/// The registrations that the engine has made for one operation.
#[derive(Debug, Default)]
pub(super) enum TempMrs {
    #[default]
    None,
    One(Mr),
    Many(Vec<Mr>),
}

impl TempMrs {
    pub(super) fn push(&mut self, mr: Mr) {
        *self = match std::mem::take(self) {
            TempMrs::None => TempMrs::One(mr),
            TempMrs::One(first) => TempMrs::Many(vec![first, mr]),
            TempMrs::Many(mut v) => {
                v.push(mr);
                TempMrs::Many(v)
            }
        };
    }

    pub(super) fn as_slice(&self) -> &[Mr] {
        match self {
            TempMrs::None => &[],
            TempMrs::One(mr) => std::slice::from_ref(mr),
            TempMrs::Many(v) => v,
        }
    }
}

/// A slot of the pool through which the data of small unregistered buffers travel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounce {
    pub(super) piece: Piece,
    /// True if the engine must copy the data that arrive to the program's buffer.
    pub(super) inbound: bool,
}

/// The memory that an operation keeps until it ends. Most operations keep none: they use memory
/// that is registered for good.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) temp: TempMrs,
    pub(super) bounce: Option<Bounce>,
    /// The window onto the sink of a READ.
    pub(super) window: Option<Key>,
}

/// An operation in flight. It is small, since each operation moves into the table and out of it.
#[derive(Debug)]
pub(crate) struct Op {
    pub(super) sock: SockId,
    pub(super) queue: Arc<QueueCore>,
    pub(super) token: u64,
    pub(super) tag: [u64; 2],
    pub(super) kind: EventKind,
    pub(super) bufs: Bufs,
    /// The send of several parts to which the operation belongs. 0: none.
    pub(super) group: OpId,
    /// True if the table has [`Kept`] memory of the operation.
    keeps: bool,
}

impl Op {
    /// An operation whose event, with the buffers, goes to the queue of the ticket.
    pub(super) fn new(sock: SockId, ticket: &Ticket<'_>, kind: EventKind, bufs: Bufs) -> Op {
        Op::of(sock, Arc::clone(ticket.queue), (ticket.token, ticket.tag), kind, bufs)
    }

    /// The same, with a reference to the queue that becomes the operation's.
    pub(super) fn of(
        sock: SockId,
        queue: Arc<QueueCore>,
        (token, tag): (u64, [u64; 2]),
        kind: EventKind,
        bufs: Bufs,
    ) -> Op {
        Op { sock, queue, token, tag, kind, bufs, group: 0, keeps: false }
    }

    /// The operation's queue, and its event: that of a success which moved no bytes.
    #[inline]
    pub(super) fn into_event(self) -> (Arc<QueueCore>, RawEvent) {
        (self.queue, RawEvent::with(self.token, self.tag, self.kind, self.bufs))
    }

    /// The queue to which the operation's event goes.
    pub(super) fn queue(&self) -> Arc<QueueCore> {
        Arc::clone(&self.queue)
    }

    /// True if the operation's event goes to this queue.
    pub(crate) fn goes_to(&self, queue: &Arc<QueueCore>) -> bool {
        Arc::ptr_eq(&self.queue, queue)
    }

    /// True if the operation is its socket's connect.
    pub(crate) fn is_connect(&self) -> bool {
        self.kind == EventKind::Connect
    }

    /// True if the program gave the operation this token.
    pub(crate) fn is_named(&self, token: u64) -> bool {
        self.token == token
    }
}

/// The table. An [`OpId`] is a slot and the slot's generation, so the id of an operation that has
/// ended never names another operation. The id 0 names no operation: the engine gives it to work of
/// its own of which it wants no event.
#[derive(Default)]
pub(super) struct OpTable {
    slab: slab::Slab<(u32, Op)>,
    /// The memory that operations keep, by slot. Only the entries of operations with `keeps` count.
    kept: Vec<Kept>,
    generation: u32,
    /// The sends of several parts.
    pub(super) groups: Groups,
}

impl OpTable {
    #[inline(always)]
    pub(super) fn insert(&mut self, op: Op) -> OpId {
        // The generation is never 0, so no id is 0.
        self.generation = self.generation.wrapping_add(1).max(1);
        let slot = self.slab.insert((self.generation, op));
        (u64::from(self.generation) << 32) | slot as u64
    }

    fn slot(&self, id: OpId) -> Option<usize> {
        let slot = (id & 0xffff_ffff) as usize;
        let (generation, _) = self.slab.get(slot)?;
        (u64::from(*generation) == id >> 32).then_some(slot)
    }

    pub(super) fn remove(&mut self, id: OpId) -> Option<Op> {
        let slot = self.slot(id)?;
        Some(self.slab.remove(slot).1)
    }

    pub(super) fn get(&self, id: OpId) -> Option<&Op> {
        self.slot(id).map(|s| &self.slab[s].1)
    }

    pub(super) fn get_mut(&mut self, id: OpId) -> Option<&mut Op> {
        self.slot(id).map(|s| &mut self.slab[s].1)
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// The memory that an operation keeps, for the caller to fill in. None: there is no such
    /// operation.
    pub(super) fn keep(&mut self, id: OpId) -> Option<&mut Kept> {
        let slot = self.slot(id)?;
        if self.kept.len() <= slot {
            self.kept.resize_with(slot + 1, Kept::default);
        }
        if !std::mem::replace(&mut self.slab[slot].1.keeps, true) {
            self.kept[slot] = Kept::default();
        }
        Some(&mut self.kept[slot])
    }

    /// The memory that the removed operation `op` has kept. None: it kept none.
    pub(super) fn take_kept(&mut self, id: OpId, op: &Op) -> Option<Kept> {
        let slot = (id & 0xffff_ffff) as usize;
        op.keeps.then(|| std::mem::take(&mut self.kept[slot]))
    }

    /// The chosen operations of a socket, in the order of their posting.
    pub(super) fn of_socket(&self, sock: SockId, chosen: impl Fn(&Op) -> bool) -> Vec<OpId> {
        let mut ids: Vec<OpId> = self
            .slab
            .iter()
            .filter(|(_, (_, op))| op.sock == sock && chosen(op))
            .map(|(slot, (generation, _))| (u64::from(*generation) << 32) | slot as u64)
            .collect();
        ids.sort_unstable();
        ids
    }
}

/// The first buffer of an operation.
pub(super) fn first_buffer(bufs: &Bufs) -> Option<&Buffer> {
    match bufs {
        Bufs::One(b) => Some(b),
        Bufs::Many(v) => v.first(),
        Bufs::None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::{QueueOptions, ServedBy};

    #[test]
    fn an_id_never_names_another_operation() {
        let queue = QueueCore::new(&QueueOptions::default()).unwrap();
        let mut table = OpTable::default();
        let sock = |index| SockId { index, generation: 1 };
        let mut insert = |s, token| {
            let ticket =
                Ticket { queue: &queue, token, tag: [0; 2], served_by: ServedBy::QueueUse };
            table.insert(Op::new(sock(s), &ticket, EventKind::Send, Bufs::None))
        };
        let (a, b, c) = (insert(1, 7), insert(1, 8), insert(2, 7));
        assert!(a != 0 && b != 0 && c != 0, "0 is no operation");
        assert_eq!(table.of_socket(sock(1), |_| true), [a, b]);
        assert_eq!(table.of_socket(sock(1), |op| op.token == 8), [b]);
        assert!(table.remove(a).is_some());
        assert!(table.remove(a).is_none());
        assert!(table.get(a).is_none() && table.remove(0).is_none());
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn what_is_kept_ends_with_its_operation() {
        let queue = QueueCore::new(&QueueOptions::default()).unwrap();
        let (mut table, sock) = (OpTable::default(), SockId { index: 0, generation: 1 });
        let ticket = Ticket { queue: &queue, token: 1, tag: [0; 2], served_by: ServedBy::QueueUse };
        let op = || Op::new(sock, &ticket, EventKind::Read, Bufs::None);
        let (plain, first) = (table.insert(op()), table.insert(op()));
        table.keep(first).unwrap().window = Some(7);
        table.keep(first).unwrap().temp.push(Mr { key: 9 });
        let gone = table.remove(first).unwrap();
        assert!(table.keep(first).is_none());
        let kept = table.take_kept(first, &gone).unwrap();
        assert_eq!((kept.window, kept.temp.as_slice()), (Some(7), &[Mr { key: 9 }][..]));
        let gone = table.remove(plain).unwrap();
        assert!(table.take_kept(plain, &gone).is_none());
        // An operation that was refused ends without giving back what it kept. It leaves nothing to
        // the next operation in its slot.
        let refused = table.insert(op());
        table.keep(refused).unwrap().window = Some(8);
        table.remove(refused);
        let next = table.insert(op());
        assert_eq!(next & 0xffff_ffff, refused & 0xffff_ffff);
        assert_eq!(table.keep(next).unwrap().window, None);
    }
}
