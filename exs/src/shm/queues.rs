//! Completion queues and shared receive queues: what the queues of
//! [`crate::rnic::queues`] mean to links.

use super::ShmRnic;
use super::serve::Source;
use crate::rnic::queues::{CompletionQueue, ReceiveQueue, await_recv};
use crate::rnic::{Cq, Pd, RecvWr, RnicError, RnicEvent, Srq, Wc, WcOp};

impl ShmRnic {
    pub(super) fn make_cq(&mut self, depth: usize) -> Result<Cq, RnicError> {
        self.cqs.insert(CompletionQueue::new(depth)?).map(Cq)
    }

    pub(super) fn free_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        match self.cqs.get(cq.0)?.users {
            0 => self.cqs.remove(cq.0).map(drop),
            users => Err(RnicError::Busy { what: "completion queue", id: cq.0, users }),
        }
    }

    pub(super) fn take_wcs(
        &mut self,
        cq: Cq,
        max: usize,
        out: &mut Vec<Wc>,
    ) -> Result<usize, RnicError> {
        let queue = self.cqs.get_mut(cq.0)?;
        let n = queue.take(max, out);
        if n > 0 {
            for link in queue.unthrottle() {
                self.enqueue(Source::Link(link));
            }
        }
        Ok(n)
    }

    pub(super) fn arm(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.cqs.get_mut(cq.0)?.arm();
        Ok(())
    }

    /// Puts a completion into the CQ it belongs to.
    pub(super) fn complete(&mut self, wc: Wc) {
        let Ok(qp) = self.qps.get(wc.qp.0) else { return };
        let received = matches!(wc.op, WcOp::Recv | WcOp::RecvWriteImm);
        let id = if received { qp.attr.recv_cq } else { qp.attr.send_cq };
        let Ok(cq) = self.cqs.get_mut(id.0) else { return };
        if cq.push(wc) {
            self.events.push_back(RnicEvent::CqReady(id));
        }
        if let Some(key) = wc.invalidated {
            // The window of its own that the peer was allowed to end.
            self.drop_windows(wc.qp.0, |w| w.is(key));
        }
    }

    pub(super) fn make_srq(&mut self, pd: Pd, max_wr: usize) -> Result<Srq, RnicError> {
        let queue = ReceiveQueue::new(pd.0, max_wr)?;
        let domain = self.pds.get_mut(pd.0)?;
        let srq = self.srqs.insert(queue)?;
        domain.srqs.push(srq);
        Ok(Srq(srq))
    }

    pub(super) fn free_srq(&mut self, srq: Srq) -> Result<(), RnicError> {
        let users = self.srqs.get(srq.0)?.users;
        if users > 0 {
            return Err(RnicError::Busy { what: "shared receive queue", id: srq.0, users });
        }
        let queue = self.srqs.remove(srq.0)?;
        self.pds.get_mut(queue.pd)?.srqs.retain(|s| *s != srq.0);
        Ok(())
    }

    /// The domain of an SRQ.
    pub(super) fn srq_domain(&self, srq: Srq) -> Result<u32, RnicError> {
        Ok(self.srqs.get(srq.0)?.pd)
    }

    pub(super) fn fill_srq(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        let pd = self.srqs.get(srq.0)?.pd;
        let buf = self.resolve_recv(pd, wr)?;
        let lkeys = buf.lkeys;
        self.srqs.get_mut(srq.0)?.push(buf)?;
        self.note_shared(&lkeys);
        self.wake_srq(srq.0);
        Ok(())
    }

    /// Lets the link that has waited longest have the buffer there is. One, not all:
    /// it wakes the next when it leaves some.
    pub(super) fn wake_srq(&mut self, srq: u32) {
        while let Ok(queue) = self.srqs.get_mut(srq)
            && let Some(link) = queue.next_waiting()
        {
            // Some have died in the queue.
            if self.links.get(link).is_ok_and(|l| l.stalled) {
                self.enqueue(Source::Link(link));
                break;
            }
        }
    }

    /// Notes that a link stopped for want of a receive, or of room for its completion.
    pub(super) fn await_recv(&mut self, link: u32, srq: Option<Srq>, recv_cq: Cq) {
        let srq = srq.and_then(|srq| self.srqs.get_mut(srq.0).ok());
        await_recv(link, self.cqs.get_mut(recv_cq.0).ok(), srq);
    }
}
