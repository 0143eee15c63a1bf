//! The SRQs of the trait: where their receives are, how many, and which queue pairs use them.
//!
//! A device that has SRQs holds the receives itself. Elsewhere the driver keeps them in a pool
//! (`pool`). Either way this table counts the receives that were posted and have not come back: no
//! more are posted than the SRQ was made for, and a CQ is polled for an SRQ only while there are any.

use std::sync::Arc;

use super::pool::ReceivePool;
use super::raw::SharedQueue;
use crate::rnic::table::IdTable;
use crate::rnic::{Cq, RnicError, Srq};

/// Where the receives of an SRQ are.
pub(super) enum Store {
    /// In an SRQ of the device.
    Device(Arc<SharedQueue>),
    /// In the queue pairs, and in a pool.
    Pool(ReceivePool),
}

/// An SRQ.
pub(super) struct SharedEntry {
    store: Store,
    pd: u32,
    max_wr: u32,
    /// Receives that have not come back.
    posted: u32,
    /// Queue pairs.
    users: usize,
    /// The CQ of the last queue pair that began to use it. It gets receives that come back after their
    /// queue pair has gone.
    cq: Option<Cq>,
    /// Receives that may have been lost so far (`last_wqe`).
    lost: usize,
}

impl SharedEntry {
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// The pool of its receives, if the device does not hold them.
    pub(super) fn pool(&mut self) -> Option<&mut ReceivePool> {
        match &mut self.store {
            Store::Pool(pool) => Some(pool),
            Store::Device(_) => None,
        }
    }

    pub(super) fn pd(&self) -> u32 {
        self.pd
    }

    /// The most receives that it has at a time.
    pub(super) fn max_wr(&self) -> u32 {
        self.max_wr
    }

    /// # Errors
    /// [`RnicError::QueueFull`]: it has as many receives as it may have.
    pub(super) fn check_room(&self) -> Result<(), RnicError> {
        if self.posted < self.max_wr {
            return Ok(());
        }
        let depth = self.max_wr as usize;
        Err(RnicError::QueueFull { what: "shared receive queue", depth })
    }

    /// Receives have come back, for whatever reason.
    pub(super) fn note_used(&mut self, count: u32) {
        self.posted = self.posted.saturating_sub(count);
    }
}

/// See the module's essay.
pub(super) struct SharedQueues(IdTable<SharedEntry>);

impl Default for SharedQueues {
    fn default() -> SharedQueues {
        SharedQueues(IdTable::new("shared receive queue"))
    }
}

impl SharedQueues {
    /// Adds an SRQ of the domain `pd`.
    pub(super) fn add(&mut self, store: Store, pd: u32, max_wr: u32) -> Result<Srq, RnicError> {
        let entry = SharedEntry { store, pd, max_wr, posted: 0, users: 0, cq: None, lost: 0 };
        self.0.insert(entry).map(Srq)
    }

    /// Ends an SRQ. `holders` counts the queue pairs that hold receives of it without being its users.
    /// Returns its domain.
    ///
    /// # Errors
    /// [`RnicError::Busy`]: queue pairs use it.
    pub(super) fn remove(
        &mut self,
        srq: u32,
        holders: impl FnOnce() -> usize,
    ) -> Result<u32, RnicError> {
        let users = match self.0.get(srq)?.users {
            0 => holders(),
            users => users,
        };
        match users {
            0 => self.0.remove(srq).map(|entry| entry.pd),
            users => Err(RnicError::Busy { what: "shared receive queue", id: srq, users }),
        }
    }

    /// Frees all of them, as the device has gone.
    pub(super) fn release(&mut self) {
        let all: Vec<u32> = self.0.iter().map(|(id, _)| id).collect();
        for id in all {
            drop(self.0.remove(id));
        }
    }

    pub(super) fn get(&self, srq: u32) -> Result<&SharedEntry, RnicError> {
        self.0.get(srq)
    }

    pub(super) fn get_mut(&mut self, srq: u32) -> Result<&mut SharedEntry, RnicError> {
        self.0.get_mut(srq)
    }

    /// The pool of an SRQ, if the device does not hold its receives.
    pub(super) fn pool(&mut self, srq: u32) -> Option<&mut ReceivePool> {
        self.0.get_mut(srq).ok()?.pool()
    }

    // ---- users -------------------------------------------------------------------------

    /// A queue pair, whose receives complete to `cq`, begins to use it.
    pub(super) fn add_user(&mut self, srq: u32, cq: Cq) -> Result<(), RnicError> {
        let entry = self.0.get_mut(srq)?;
        entry.users += 1;
        entry.cq = Some(cq);
        Ok(())
    }

    /// A queue pair is gone.
    pub(super) fn remove_user(&mut self, srq: u32) -> Result<(), RnicError> {
        self.0.get_mut(srq)?.users -= 1;
        Ok(())
    }

    /// The CQ for receives that belong to no queue pair any more.
    pub(super) fn cq(&self, srq: u32) -> Option<Cq> {
        self.0.get(srq).ok()?.cq
    }

    // ---- receives ----------------------------------------------------------------------

    /// A receive was posted, for which there was room.
    #[inline]
    pub(super) fn note_posted(&mut self, srq: u32) -> Result<(), RnicError> {
        self.0.get_mut(srq)?.posted += 1;
        Ok(())
    }

    /// A receive has come back, for whatever reason.
    #[inline]
    pub(super) fn note_used(&mut self, srq: u32) {
        if let Ok(entry) = self.0.get_mut(srq) {
            entry.note_used(1);
        }
    }

    /// True if receives have not come back.
    #[inline]
    pub(super) fn has_receives(&self, srq: u32) -> bool {
        self.0.get(srq).is_ok_and(|entry| entry.posted > 0)
    }

    /// Receives of an SRQ may have been lost.
    pub(super) fn note_lost(&mut self, srq: u32, count: usize) {
        if let Ok(entry) = self.0.get_mut(srq) {
            entry.lost += count;
        }
    }

    /// Receives that may have been lost so far.
    pub(super) fn lost(&self, srq: u32) -> usize {
        self.0.get(srq).map_or(0, |entry| entry.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_srq() -> (SharedQueues, u32) {
        let mut srqs = SharedQueues::default();
        let srq = srqs.add(Store::Pool(ReceivePool::default()), 5, 2).unwrap();
        (srqs, srq.0)
    }

    #[test]
    fn no_more_receives_are_posted_than_it_was_made_for() {
        let (mut srqs, srq) = with_srq();
        let full = Err(RnicError::QueueFull { what: "shared receive queue", depth: 2 });
        assert!(!srqs.has_receives(srq));
        for _ in 0..2 {
            assert_eq!(srqs.get(srq).unwrap().check_room(), Ok(()));
            srqs.note_posted(srq).unwrap();
        }
        assert_eq!(srqs.get(srq).unwrap().check_room(), full);
        srqs.note_used(srq);
        assert_eq!(srqs.get(srq).unwrap().check_room(), Ok(()));
        assert!(srqs.has_receives(srq));
        // A device may report more than it was given, for one that was counted as lost.
        (0..3).for_each(|_| srqs.note_used(srq));
        assert!(!srqs.has_receives(srq));
    }

    #[test]
    fn it_stays_while_queue_pairs_use_it_or_hold_its_receives() {
        let (mut srqs, srq) = with_srq();
        let busy = |users| Err(RnicError::Busy { what: "shared receive queue", id: srq, users });
        assert_eq!(srqs.cq(srq), None);
        for cq in 1..=2 {
            srqs.add_user(srq, Cq(cq)).unwrap();
            assert_eq!(srqs.cq(srq), Some(Cq(cq)));
        }
        srqs.remove_user(srq).unwrap();
        assert_eq!(srqs.remove(srq, || 9), busy(1));
        srqs.remove_user(srq).unwrap();
        assert_eq!(srqs.cq(srq), Some(Cq(2)), "for receives that come back late");
        assert_eq!(srqs.remove(srq, || 9), busy(9));
        assert_eq!(srqs.remove(srq, || 0), Ok(5));
        assert_eq!((srqs.cq(srq), srqs.get(srq).is_err()), (None, true));
    }

    #[test]
    fn lost_receives_add_up_until_it_goes() {
        let (mut srqs, srq) = with_srq();
        srqs.note_lost(srq, 1);
        srqs.note_lost(srq, 8);
        assert_eq!(srqs.lost(srq), 9);
        srqs.release();
        assert_eq!(srqs.lost(srq), 0);
    }
}
