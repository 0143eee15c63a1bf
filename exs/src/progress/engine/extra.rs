//! The extra receives of busy connections, where each queue pair has receives of its own.
//!
//! They lie in a queue of their own, apart from the receives that each connection has all the time.
//! The session of a connection says when its peer is busy, and when idle again. The queue grows with
//! the number of busy connections, up to a limit. Its memory is freed as they become idle, and the
//! queue itself with the last of them.

use std::collections::HashMap;

use super::slots::Slots;
use crate::rnic::{ExtraReceives, Pd, Qp, Rnic};

/// The most extra slots of a domain: 32 MiB, for 340 busy connections. The others keep to the
/// receives that they have.
pub(super) const MOST_EXTRA: usize = 8 << 10;

/// The extra receives of a domain.
#[derive(Default)]
pub(super) struct ExtraSlots {
    slots: Option<Slots>,
    /// Those of each connection that has some.
    of: HashMap<Qp, usize>,
}

impl ExtraSlots {
    /// Their queue, if some connection is busy.
    pub(super) fn slots(&mut self) -> Option<&mut Slots> {
        self.slots.as_mut()
    }

    /// True if the next call of [`ExtraSlots::add`] makes a queue.
    pub(super) fn is_unused(&self) -> bool {
        self.slots.is_none()
    }

    /// Gives a connection up to `count` more receives. Returns how many. `base`: the number of the
    /// first slot of a new queue.
    pub(super) fn add(
        &mut self,
        rnic: &mut dyn Rnic,
        (pd, base): (Pd, u64),
        qp: Qp,
        count: u16,
    ) -> u16 {
        if self.slots.is_none() {
            match Slots::up_to(rnic, pd, base, MOST_EXTRA) {
                Ok(slots) => self.slots = Some(slots),
                Err(e) => crate::trace::debug!("no receives for busy connections: {e}"),
            }
        }
        let Some(slots) = &mut self.slots else { return 0 };
        let promised = slots.promise_extra(rnic, count.into()).unwrap_or_else(|e| {
            crate::trace::debug!("no more receives for busy connections: {e}");
            0
        });
        let asked = u16::try_from(promised).unwrap_or(count);
        let added = rnic.add_receives(qp, slots.srq(), asked);
        if added > 0 {
            *self.of.entry(qp).or_default() += usize::from(added);
        }
        self.give_up(rnic, promised - usize::from(added));
        added
    }

    /// Replaces the extra receives of a connection no more. Says which are left. When none is, they
    /// are for others.
    pub(super) fn drop_of(&mut self, rnic: &mut dyn Rnic, qp: Qp) -> ExtraReceives {
        let left = rnic.drop_receives(qp);
        if left.left == 0 {
            self.release(rnic, qp);
        }
        left
    }

    /// A connection has no extra receives any more.
    pub(super) fn release(&mut self, rnic: &mut dyn Rnic, qp: Qp) {
        if let Some(count) = self.of.remove(&qp) {
            self.give_up(rnic, count);
        }
    }

    /// A message in a slot has been handled.
    pub(super) fn give_back(&mut self, rnic: &mut dyn Rnic) {
        // The last slots may come back after their connections have given them up.
        if self.of.is_empty() {
            self.give_up(rnic, 0);
        }
    }

    fn give_up(&mut self, rnic: &mut dyn Rnic, count: usize) {
        let Some(slots) = &mut self.slots else { return };
        if (count > 0 || self.of.is_empty())
            && slots.release_extra(rnic, count)
            && let Some(slots) = self.slots.take()
        {
            slots.end(rnic);
        }
    }

    /// Frees the queue.
    pub(super) fn end(self, rnic: &mut dyn Rnic) {
        if let Some(slots) = self.slots {
            slots.end(rnic);
        }
    }
}
