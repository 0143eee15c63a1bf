//! The receive queues of a domain.
//!
//! All connections share one SRQ and its slots ([`Slots`]). But a device may lose receives with a
//! queue pair that fails (`Rnic::lost_receives`). In the end the SRQ would run dry, with all its
//! connections. So when an SRQ may lack a good part of a chunk, new connections get another SRQ.
//! The old SRQ ends with its last connection, and with all the receives that it lost.
//!
//! An SRQ whose peers cannot wait serves no more connections than it has receives for. Then new
//! connections get another SRQ, too: an older one that has room again, or a new one.
//!
//! The number of a slot contains its domain (the upper half), its queue among those that the domain
//! had, and its place in that queue.

use std::collections::HashMap;

use super::extra::{ExtraSlots, MOST_EXTRA};
use super::slots::{CHUNK, MOST, Slots};
use crate::mem::Segment;
use crate::rnic::{ExtraReceives, Pd, Qp, Rnic, RnicError, Srq};

/// The distance between the slot numbers of two queues, and of two domains.
const QUEUE: u64 = 1 << 16;
const DOMAIN: u64 = 1 << 32;
const _: () = assert!(MOST as u64 <= QUEUE && MOST_EXTRA as u64 <= QUEUE);
/// A queue that may have lost this many receives gets no more connections.
const LACK: usize = CHUNK / 4;

/// The receive queues of a domain.
pub(super) struct Receives {
    pd: Pd,
    /// The queue of new connections.
    current: Slots,
    /// Earlier queues that still have connections.
    old: Vec<Slots>,
    /// The number of the first slot of the newest queue.
    newest: u64,
    /// The queue of each connection.
    of: HashMap<Qp, Srq>,
    /// What busy connections have beyond that.
    extra: ExtraSlots,
}

impl Receives {
    pub(super) fn new(rnic: &mut dyn Rnic, pd: Pd, domain: u32) -> Result<Receives, RnicError> {
        let newest = u64::from(domain) * DOMAIN;
        let current = Slots::new(rnic, pd, newest)?;
        let (old, of, extra) = (Vec::new(), HashMap::new(), ExtraSlots::default());
        Ok(Receives { pd, current, old, newest, of, extra })
    }

    /// The domain of a slot.
    pub(super) fn domain_of(slot: u64) -> u32 {
        u32::try_from(slot / DOMAIN).unwrap_or(u32::MAX)
    }

    /// Makes a connection's queue pair by `make`, and slots for the messages of its peer.
    pub(super) fn equip(
        &mut self,
        rnic: &mut dyn Rnic,
        make: impl FnOnce(&mut dyn Rnic, Srq) -> Result<Qp, RnicError>,
    ) -> Result<Qp, RnicError> {
        if rnic.lost_receives(self.current.srq()) >= LACK {
            self.renew(rnic);
        }
        if !self.current.has_room(rnic.caps()) {
            self.find_room(rnic);
        }
        self.current.promise(rnic)?;
        let srq = self.current.srq();
        let qp = make(rnic, srq).inspect_err(|_| self.current.release(rnic.caps()))?;
        self.of.insert(qp, srq);
        Ok(qp)
    }

    /// A connection's queue pair is gone. Its queue ends with its last connection, if it is an old
    /// one.
    pub(super) fn release(&mut self, rnic: &mut dyn Rnic, qp: Qp) {
        self.extra.release(rnic, qp);
        let Some(srq) = self.of.remove(&qp) else { return };
        if srq == self.current.srq() {
            self.current.release(rnic.caps());
            if self.current.is_unused() && rnic.lost_receives(srq) > 0 {
                self.renew(rnic);
            }
        } else if let Some(at) = self.old.iter().position(|s| s.srq() == srq) {
            self.old[at].release(rnic.caps());
            if self.old[at].is_unused() {
                self.old.swap_remove(at).end(rnic);
            }
        }
    }

    /// Gives new connections an older queue that has room again, or another one.
    fn find_room(&mut self, rnic: &mut dyn Rnic) {
        let has_room = |s: &Slots| s.has_room(rnic.caps()) && rnic.lost_receives(s.srq()) < LACK;
        match self.old.iter().position(has_room) {
            Some(at) => std::mem::swap(&mut self.current, &mut self.old[at]),
            None => self.renew(rnic),
        }
    }

    /// Makes another queue for new connections.
    fn renew(&mut self, rnic: &mut dyn Rnic) {
        let next = self.next_base();
        match Slots::new(rnic, self.pd, next) {
            Ok(new) => {
                self.newest = next;
                let old = std::mem::replace(&mut self.current, new);
                if old.is_unused() { old.end(rnic) } else { self.old.push(old) }
            }
            // The old queue serves on, and the next connection tries again.
            Err(e) => crate::trace::warn!("cannot make another receive queue: {e}"),
        }
    }

    /// The number of the first slot of another queue.
    fn next_base(&self) -> u64 {
        (self.newest / DOMAIN * DOMAIN) + (self.newest + QUEUE) % DOMAIN
    }

    /// Gives a busy connection up to `count` more receives. Returns how many.
    pub(super) fn add(&mut self, rnic: &mut dyn Rnic, qp: Qp, count: u16) -> u16 {
        if self.extra.is_unused() {
            self.newest = self.next_base();
        }
        self.extra.add(rnic, (self.pd, self.newest), qp, count)
    }

    /// Replaces the extra receives of a connection no more. Says which are left.
    pub(super) fn drop_extra(&mut self, rnic: &mut dyn Rnic, qp: Qp) -> ExtraReceives {
        self.extra.drop_of(rnic, qp)
    }

    /// The queue of a slot. None: it is gone.
    fn find(&mut self, slot: u64) -> Option<&mut Slots> {
        let is_its = |s: &Slots| slot / QUEUE == s.base() / QUEUE;
        if is_its(&self.current) {
            return Some(&mut self.current);
        }
        let extra = self.extra.slots().into_iter();
        self.old.iter_mut().chain(extra).find(|s| is_its(s))
    }

    /// The message in a slot has been handled: the slot can be posted again.
    pub(super) fn give_back(&mut self, rnic: &mut dyn Rnic, slot: u64) -> Result<(), RnicError> {
        let posted = self.find(slot).map_or(Ok(()), |slots| slots.give_back(rnic, slot));
        self.extra.give_back(rnic);
        posted
    }

    /// The `len` bytes that arrived in a slot. None: there is no such slot, or it is shorter.
    pub(super) fn get(&mut self, slot: u64, len: u64) -> Option<Segment> {
        self.find(slot)?.get(slot, len)
    }

    /// Frees all queues.
    pub(super) fn end(self, rnic: &mut dyn Rnic) {
        self.current.end(rnic);
        self.extra.end(rnic);
        for slots in self.old {
            slots.end(rnic);
        }
    }
}
