//! The CQs of the trait: queues of the driver, filled from those of the device (`queues`).
//!
//! The driver's own polls come past all the time, so the number of completions in all CQs together
//! is kept as they come and go.

use std::collections::VecDeque;

use crate::rnic::table::IdTable;
use crate::rnic::{Cq, RnicError, Wc};

/// A CQ of the trait.
#[derive(Default)]
struct Completions {
    queue: VecDeque<Wc>,
    /// The next completion is reported as `CqReady`.
    armed: bool,
    /// Queue pairs that use it, once for sends and once for receives.
    users: usize,
}

/// The CQs of an RNIC.
pub(super) struct CompletionQueues {
    table: IdTable<Completions>,
    /// Completions in all of them.
    queued: usize,
}

impl Default for CompletionQueues {
    fn default() -> CompletionQueues {
        CompletionQueues { table: IdTable::new("completion queue"), queued: 0 }
    }
}

impl CompletionQueues {
    pub(super) fn create(&mut self) -> Result<Cq, RnicError> {
        self.table.insert(Completions::default()).map(Cq)
    }

    /// Ends a CQ. Completions in it are lost.
    ///
    /// # Errors
    /// [`RnicError::Busy`]: queue pairs use it.
    #[cfg(any(test, feature = "internals"))]
    pub(super) fn destroy(&mut self, cq: Cq) -> Result<(), RnicError> {
        match self.table.get(cq.0)?.users {
            0 => {
                self.queued -= self.table.remove(cq.0)?.queue.len();
                Ok(())
            }
            users => Err(RnicError::Busy { what: "completion queue", id: cq.0, users }),
        }
    }

    /// # Errors
    /// [`RnicError::NoSuch`].
    pub(super) fn check(&self, cq: Cq) -> Result<(), RnicError> {
        self.table.get(cq.0).map(drop)
    }

    /// A queue pair begins to use it.
    pub(super) fn add_user(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.table.get_mut(cq.0)?.users += 1;
        Ok(())
    }

    /// A queue pair is gone.
    pub(super) fn remove_user(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.table.get_mut(cq.0)?.users -= 1;
        Ok(())
    }

    /// Moves at most `max` completions to `out`, in their order. Returns their number.
    pub(super) fn poll(
        &mut self,
        cq: Cq,
        max: usize,
        out: &mut Vec<Wc>,
    ) -> Result<usize, RnicError> {
        let queue = &mut self.table.get_mut(cq.0)?.queue;
        let n = queue.len().min(max);
        out.extend(queue.drain(..n));
        self.queued -= n;
        Ok(n)
    }

    /// The next completion is to be reported.
    #[cfg(any(test, feature = "internals"))]
    pub(super) fn arm(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.table.get_mut(cq.0)?.armed = true;
        Ok(())
    }

    /// Adds a completion. True if it is to be reported, as the first since the CQ was armed.
    #[inline]
    pub(super) fn push(&mut self, cq: Cq, wc: Wc) -> bool {
        let Ok(to) = self.table.get_mut(cq.0) else { return false };
        to.queue.push_back(wc);
        self.queued += 1;
        std::mem::take(&mut to.armed)
    }

    /// True if the user has taken everything.
    #[inline]
    pub(super) fn are_empty(&self) -> bool {
        self.queued == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::queues::blank;
    use super::*;
    use crate::rnic::{Qp, WcOp, WcStatus};

    fn wc(wr_id: u64) -> Wc {
        blank(Qp(1), wr_id, WcOp::Send, WcStatus::Success)
    }

    #[test]
    fn completions_come_out_in_order_and_are_counted_over_all_cqs() {
        let mut cqs = CompletionQueues::default();
        let [a, b] = [(); 2].map(|()| cqs.create().unwrap());
        (1..=3).for_each(|n| assert!(!cqs.push(a, wc(n)), "it is not armed"));
        cqs.push(b, wc(4));
        let mut out = Vec::new();
        assert_eq!(cqs.poll(a, 2, &mut out), Ok(2));
        assert_eq!(cqs.poll(a, 2, &mut out), Ok(1));
        assert!(!cqs.are_empty(), "one is in the other");
        assert_eq!(cqs.poll(b, 2, &mut out), Ok(1));
        assert_eq!(out.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert!(cqs.are_empty());
    }

    #[test]
    fn an_armed_cq_reports_one_completion() {
        let mut cqs = CompletionQueues::default();
        let cq = cqs.create().unwrap();
        cqs.arm(cq).unwrap();
        assert_eq!([(); 2].map(|()| cqs.push(cq, wc(1))), [true, false]);
        cqs.arm(cq).unwrap();
        assert!(cqs.push(cq, wc(2)));
    }

    #[test]
    fn a_cq_ends_without_users_and_takes_its_completions_along() {
        let mut cqs = CompletionQueues::default();
        let cq = cqs.create().unwrap();
        cqs.add_user(cq).unwrap();
        cqs.push(cq, wc(1));
        let busy = RnicError::Busy { what: "completion queue", id: cq.0, users: 1 };
        assert_eq!(cqs.destroy(cq), Err(busy));
        cqs.remove_user(cq).unwrap();
        assert_eq!(cqs.destroy(cq), Ok(()));
        assert!(cqs.are_empty());
        assert!(!cqs.push(cq, wc(2)) && cqs.are_empty(), "there is no such CQ");
        assert!(cqs.check(cq).is_err() && cqs.poll(cq, 1, &mut Vec::new()).is_err());
    }
}
