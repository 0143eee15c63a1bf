//! The tables of protection domains, completion queues and shared receive queues, and the counts of
//! their users.

use std::collections::BTreeSet;

use super::queues::{CompletionQueue, ReceiveQueue, check_depth};
use crate::rnic::table::IdTable;
use crate::rnic::{Cq, Pd, QpAttr, RnicError, Srq, Wc, WcOp};

/// A protection domain and the objects in it.
#[derive(Default)]
pub(crate) struct ProtectionDomain {
    /// Number of memory regions.
    pub(crate) mrs: usize,
    /// Its queue pairs.
    pub(crate) qps: BTreeSet<u32>,
    /// Its shared receive queues.
    pub(crate) srqs: Vec<u32>,
}

/// The tables; `B` is a receive buffer.
pub(crate) struct Objects<B> {
    pub(crate) pds: IdTable<ProtectionDomain>,
    pub(crate) cqs: IdTable<CompletionQueue>,
    pub(crate) srqs: IdTable<ReceiveQueue<B>>,
}

impl<B> Objects<B> {
    /// Empty tables.
    pub(crate) fn new() -> Objects<B> {
        Objects {
            pds: IdTable::new("protection domain"),
            cqs: IdTable::new("completion queue"),
            srqs: IdTable::new("shared receive queue"),
        }
    }

    pub(crate) fn alloc_pd(&mut self) -> Result<Pd, RnicError> {
        self.pds.insert(ProtectionDomain::default()).map(Pd)
    }

    pub(crate) fn dealloc_pd(&mut self, pd: Pd) -> Result<(), RnicError> {
        let domain = self.pds.get(pd.0)?;
        match domain.mrs + domain.qps.len() + domain.srqs.len() {
            0 => self.pds.remove(pd.0).map(drop),
            users => Err(RnicError::Busy { what: "protection domain", id: pd.0, users }),
        }
    }

    pub(crate) fn create_cq(&mut self, depth: usize) -> Result<Cq, RnicError> {
        self.cqs.insert(CompletionQueue::new(depth)?).map(Cq)
    }

    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn destroy_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        match self.cqs.get(cq.0)?.users {
            0 => self.cqs.remove(cq.0).map(drop),
            users => Err(RnicError::Busy { what: "completion queue", id: cq.0, users }),
        }
    }

    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn arm_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.cqs.get_mut(cq.0)?.arm();
        Ok(())
    }

    /// Returns true if no CQ holds a completion.
    pub(crate) fn no_wc_waits(&self) -> bool {
        self.cqs.iter().all(|(_, cq)| cq.is_empty())
    }

    /// Puts a completion into its CQ. Returns the CQ if it is armed, so that the driver reports
    /// it.
    pub(crate) fn complete(&mut self, of: &QpAttr, wc: Wc) -> Option<Cq> {
        let received = matches!(wc.op, WcOp::Recv | WcOp::RecvWriteImm);
        let id = if received { of.recv_cq } else { of.send_cq };
        self.cqs.get_mut(id.0).ok()?.push(wc).then_some(id)
    }

    pub(crate) fn create_srq(&mut self, pd: Pd, max_wr: usize) -> Result<Srq, RnicError> {
        let queue = ReceiveQueue::new(pd.0, max_wr)?;
        let domain = self.pds.get_mut(pd.0)?;
        let srq = self.srqs.insert(queue)?;
        domain.srqs.push(srq);
        Ok(Srq(srq))
    }

    pub(crate) fn destroy_srq(&mut self, srq: Srq) -> Result<(), RnicError> {
        let users = self.srqs.get(srq.0)?.users;
        if users > 0 {
            return Err(RnicError::Busy { what: "shared receive queue", id: srq.0, users });
        }
        let queue = self.srqs.remove(srq.0)?;
        self.pds.get_mut(queue.pd)?.srqs.retain(|s| *s != srq.0);
        Ok(())
    }

    /// Takes the link that has waited longest for a receive of this SRQ, if the SRQ has a
    /// receive. `waits` tells the links that still wait from those that have died.
    pub(crate) fn next_waiting(&mut self, srq: u32, waits: impl Fn(u32) -> bool) -> Option<u32> {
        let queue = self.srqs.get_mut(srq).ok()?;
        std::iter::from_fn(|| queue.next_waiting()).find(|link| waits(*link))
    }

    /// Records that a link stopped because it lacks a receive, or room for its completion.
    pub(crate) fn await_recv(&mut self, link: u32, of: &QpAttr) {
        match (self.cqs.get_mut(of.recv_cq.0), of.srq.map(|srq| self.srqs.get_mut(srq.0))) {
            (Ok(cq), _) if cq.room() == 0 => cq.throttle(link),
            (_, Some(Ok(srq))) => srq.wait(link),
            // The link waits for a receive of its own.
            _ => {}
        }
    }

    /// Checks that the objects of a new queue pair exist and fit each other.
    pub(crate) fn check_qp(&self, attr: &QpAttr) -> Result<(), RnicError> {
        self.pds.get(attr.pd.0)?;
        check_depth("send queue depth", attr.max_send_wr)?;
        check_depth("receive queue depth", attr.max_recv_wr)?;
        for cq in [attr.send_cq, attr.recv_cq] {
            self.cqs.get(cq.0)?;
        }
        match attr.srq {
            Some(srq) if self.srqs.get(srq.0)?.pd != attr.pd.0 => {
                Err(RnicError::NoSuch { what: "shared receive queue of this domain", id: srq.0 })
            }
            _ => Ok(()),
        }
    }

    /// Counts a queue pair, whose attributes [`check_qp`](Objects::check_qp) has passed, as a
    /// user of its objects.
    pub(crate) fn join(&mut self, qp: u32, attr: &QpAttr) -> Result<(), RnicError> {
        self.pds.get_mut(attr.pd.0)?.qps.insert(qp);
        self.count(attr, |users| *users += 1)
    }

    /// Ends what [`join`](Objects::join) began.
    pub(crate) fn leave(&mut self, qp: u32, attr: &QpAttr) -> Result<(), RnicError> {
        self.pds.get_mut(attr.pd.0)?.qps.remove(&qp);
        self.count(attr, |users| *users -= 1)
    }

    fn count(&mut self, attr: &QpAttr, by_one: impl Fn(&mut usize)) -> Result<(), RnicError> {
        for cq in [attr.send_cq, attr.recv_cq] {
            by_one(&mut self.cqs.get_mut(cq.0)?.users);
        }
        if let Some(srq) = attr.srq {
            by_one(&mut self.srqs.get_mut(srq.0)?.users);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rnic::{Qp, WcStatus};

    fn busy(result: Result<(), RnicError>) -> usize {
        match result {
            Err(RnicError::Busy { users, .. }) => users,
            other => panic!("{other:?}"),
        }
    }

    fn wc(op: WcOp) -> Wc {
        let (status, imm) = (WcStatus::Success, None);
        Wc {
            wr_id: 1,
            qp: Qp(9),
            op,
            status,
            byte_len: 0,
            imm,
            invalidated: None,
            solicited: false,
        }
    }

    fn attr(pd: Pd, cq: Cq, srq: Option<Srq>) -> QpAttr {
        QpAttr { pd, send_cq: cq, recv_cq: cq, srq, max_send_wr: 1, max_recv_wr: 1, context: 7 }
    }

    #[test]
    fn a_link_waits_once_for_what_it_lacks() {
        let mut o = Objects::<u8>::new();
        let pd = o.alloc_pd().unwrap();
        let (cq, srq) = (o.create_cq(1).unwrap(), o.create_srq(pd, 2).unwrap());
        let attr = attr(pd, cq, Some(srq));
        for link in [7, 8, 7] {
            o.await_recv(link, &attr);
        }
        assert_eq!(o.next_waiting(srq.0, |_| true), None, "there is nothing to be had");
        let queue = o.srqs.get_mut(srq.0).unwrap();
        queue.push(1).unwrap();
        queue.push(2).unwrap();
        assert!(matches!(queue.push(3), Err(RnicError::QueueFull { depth: 2, .. })));
        let waiting = [0; 3].map(|_| o.next_waiting(srq.0, |_| true));
        assert_eq!(waiting, [Some(7), Some(8), None]);

        o.complete(&attr, wc(WcOp::Recv));
        for link in [7, 8, 7] {
            o.await_recv(link, &attr);
        }
        assert_eq!(o.next_waiting(srq.0, |_| true), None, "they wait for room, not for a receive");
        let cq = o.cqs.get_mut(cq.0).unwrap();
        assert_eq!((cq.unthrottle(), cq.unthrottle()), (vec![7, 8], vec![]));
    }

    #[test]
    fn objects_in_use_stay() {
        let mut o = Objects::<u8>::new();
        let (pd, other) = (o.alloc_pd().unwrap(), o.alloc_pd().unwrap());
        let (cq, srq) = (o.create_cq(4).unwrap(), o.create_srq(pd, 4).unwrap());
        let attr = attr(pd, cq, Some(srq));
        o.check_qp(&attr).unwrap();
        let foreign = o.check_qp(&QpAttr { pd: other, ..attr });
        assert!(matches!(foreign, Err(RnicError::NoSuch { .. })), "{foreign:?}");
        o.join(9, &attr).unwrap();
        assert_eq!(
            (busy(o.destroy_cq(cq)), busy(o.destroy_srq(srq)), busy(o.dealloc_pd(pd))),
            (2, 1, 2)
        );

        assert_eq!(o.complete(&attr, wc(WcOp::Send)), None, "the queue is not armed");
        o.arm_cq(cq).unwrap();
        assert_eq!(o.complete(&attr, wc(WcOp::Recv)), Some(cq));
        assert!(!o.no_wc_waits());
        assert_eq!(o.cqs.get_mut(cq.0).unwrap().take(9, &mut Vec::new()), 2);
        assert!(o.no_wc_waits());

        o.await_recv(3, &attr);
        o.await_recv(4, &attr);
        assert_eq!(o.next_waiting(srq.0, |_| true), None, "there is no receive");
        o.srqs.get_mut(srq.0).unwrap().push(0).unwrap();
        assert_eq!(o.next_waiting(srq.0, |link| link != 3), Some(4), "3 is gone");

        o.leave(9, &attr).unwrap();
        o.destroy_cq(cq).unwrap();
        o.destroy_srq(srq).unwrap();
        o.dealloc_pd(pd).unwrap();
        assert!(matches!(o.dealloc_pd(pd), Err(RnicError::NoSuch { .. })));
    }
}
