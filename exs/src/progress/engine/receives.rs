//! The receive queues of a domain.
//!
//! All connections share one SRQ with its slots ([`Slots`]). But a device may lose receives
//! with a queue pair that fails (`Rnic::lost_receives`): the queue would run dry in the end,
//! and with it all who share it. So when it may lack a good part of a chunk, the connections
//! that come get another, and the old one ends, with all that it lost, when its last
//! connection does.
//!
//! The number of a slot tells its domain (the upper half), the queue among those that the
//! domain had, and the place in that.

use std::collections::HashMap;

use super::slots::{CHUNK, MOST, Slots};
use crate::mem::Segment;
use crate::rnic::{Pd, Qp, Rnic, RnicError, Srq};

/// What the numbers of the next queue, and of the next domain, are away.
const QUEUE: u64 = 1 << 16;
const DOMAIN: u64 = 1 << 32;
const _: () = assert!(MOST as u64 <= QUEUE);
/// A queue that may have lost as many gets no more connections.
const LACK: usize = CHUNK / 4;

/// The receive queues of a domain.
pub(super) struct Receives {
    pd: Pd,
    /// That of the connections to come.
    current: Slots,
    /// Those before it that have connections still.
    old: Vec<Slots>,
    /// The queues of the connections.
    of: HashMap<Qp, Srq>,
}

impl Receives {
    pub(super) fn new(rnic: &mut dyn Rnic, pd: Pd, domain: u32) -> Result<Receives, RnicError> {
        let current = Slots::new(rnic, pd, u64::from(domain) * DOMAIN)?;
        Ok(Receives { pd, current, old: Vec::new(), of: HashMap::new() })
    }

    /// The domain of a slot.
    pub(super) fn domain_of(slot: u64) -> u32 {
        u32::try_from(slot / DOMAIN).unwrap_or(u32::MAX)
    }

    /// Makes a connection's queue pair, by `make`, with slots for what its peer may send.
    pub(super) fn equip(
        &mut self,
        rnic: &mut dyn Rnic,
        make: impl FnOnce(&mut dyn Rnic, Srq) -> Result<Qp, RnicError>,
    ) -> Result<Qp, RnicError> {
        if rnic.lost_receives(self.current.srq()) >= LACK {
            self.renew(rnic);
        }
        self.current.promise(rnic)?;
        let srq = self.current.srq();
        let qp = make(rnic, srq).inspect_err(|_| self.current.release(rnic.caps()))?;
        self.of.insert(qp, srq);
        Ok(qp)
    }

    /// A connection's queue pair is gone.
    pub(super) fn release(&mut self, rnic: &mut dyn Rnic, qp: Qp) {
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

    /// Makes another queue for the connections to come.
    fn renew(&mut self, rnic: &mut dyn Rnic) {
        let base = self.current.base();
        let next = (base / DOMAIN * DOMAIN) + (base + QUEUE) % DOMAIN;
        match Slots::new(rnic, self.pd, next) {
            Ok(new) => {
                let old = std::mem::replace(&mut self.current, new);
                if old.is_unused() { old.end(rnic) } else { self.old.push(old) }
            }
            // The old one serves as far as it goes, and the next connection tries again.
            Err(e) => crate::trace::warn!("another receive queue: {e}"),
        }
    }

    /// The queue of a slot; None if it is gone.
    fn find(&mut self, slot: u64) -> Option<&mut Slots> {
        let is_its = |s: &Slots| slot / QUEUE == s.base() / QUEUE;
        if is_its(&self.current) {
            return Some(&mut self.current);
        }
        self.old.iter_mut().find(|s| is_its(s))
    }

    /// A slot has come back from the RNIC.
    pub(super) fn give_back(&mut self, rnic: &mut dyn Rnic, slot: u64) -> Result<(), RnicError> {
        self.find(slot).map_or(Ok(()), |slots| slots.give_back(rnic, slot))
    }

    /// What arrived in a slot; None if the numbers are not of a slot of ours.
    pub(super) fn get(&mut self, slot: u64, len: u64) -> Option<Segment> {
        self.find(slot)?.get(slot, len)
    }

    /// Gives all back.
    pub(super) fn end(self, rnic: &mut dyn Rnic) {
        self.current.end(rnic);
        for slots in self.old {
            slots.end(rnic);
        }
    }
}
