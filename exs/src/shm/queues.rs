//! Completion queues and shared receive queues.

use std::collections::VecDeque;

use super::ShmRnic;
use super::serve::Source;
use crate::iwarp::RxBuf;
use crate::rnic::{Cq, Pd, RecvWr, RnicError, RnicEvent, Srq, Wc, WcOp};

/// Work requests or completions that a queue may be made for.
const MAX_DEPTH: usize = 1 << 20;

/// A completion queue.
pub(super) struct CompletionQueue {
    wcs: VecDeque<Wc>,
    depth: usize,
    armed: bool,
    /// Queue pairs that complete here (twice if sends and receives both do).
    pub(super) users: usize,
    /// Links that stopped taking receives because the queue is full.
    throttled: Vec<u32>,
}

impl CompletionQueue {
    /// Completions that still fit.
    pub(super) fn room(&self) -> usize {
        self.depth.saturating_sub(self.wcs.len())
    }

    /// Refuses new work as long as the old is not taken out: outstanding WRs are
    /// bounded, so the queue is too.
    pub(super) fn check_room(&self) -> Result<(), RnicError> {
        if self.room() > 0 {
            return Ok(());
        }
        Err(RnicError::QueueFull { what: "completion queue", depth: self.depth })
    }
}

/// A receive queue that several QPs share.
pub(super) struct ReceiveQueue {
    pd: u32,
    max_wr: usize,
    pub(super) bufs: VecDeque<RxBuf>,
    pub(super) users: usize,
    /// Links that wait for a buffer, in the order in which they ran dry.
    waiting: VecDeque<u32>,
}

/// Checks the depth that a queue is asked to have.
pub(super) fn check_depth(what: &'static str, depth: usize) -> Result<(), RnicError> {
    if depth <= MAX_DEPTH {
        return Ok(());
    }
    Err(RnicError::Limit { what, asked: depth as u64, limit: MAX_DEPTH as u64 })
}

impl ShmRnic {
    pub(super) fn make_cq(&mut self, depth: usize) -> Result<Cq, RnicError> {
        check_depth("completion queue depth", depth)?;
        let cq = CompletionQueue {
            wcs: VecDeque::new(),
            depth: depth.max(1),
            armed: false,
            users: 0,
            throttled: Vec::new(),
        };
        self.cqs.insert(cq).map(Cq)
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
        // The usual answer to a busy-polling thread.
        if queue.wcs.is_empty() {
            return Ok(0);
        }
        let n = max.min(queue.wcs.len());
        out.extend(queue.wcs.drain(..n));
        if !queue.throttled.is_empty() {
            for link in std::mem::take(&mut queue.throttled) {
                self.enqueue(Source::Link(link));
            }
        }
        Ok(n)
    }

    pub(super) fn arm(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.cqs.get_mut(cq.0)?.armed = true;
        Ok(())
    }

    /// Puts a completion into the CQ it belongs to.
    pub(super) fn complete(&mut self, wc: Wc) {
        let Ok(qp) = self.qps.get(wc.qp.0) else { return };
        let received = matches!(wc.op, WcOp::Recv | WcOp::RecvWriteImm);
        let id = if received { qp.attr.recv_cq } else { qp.attr.send_cq };
        let Ok(cq) = self.cqs.get_mut(id.0) else { return };
        cq.wcs.push_back(wc);
        if std::mem::take(&mut cq.armed) {
            self.events.push_back(RnicEvent::CqReady(id));
        }
        if let Some(key) = wc.invalidated {
            // The window of its own that the peer was allowed to end.
            self.drop_windows(wc.qp.0, |w| w.is(key));
        }
    }

    pub(super) fn make_srq(&mut self, pd: Pd, max_wr: usize) -> Result<Srq, RnicError> {
        check_depth("shared receive queue depth", max_wr)?;
        let domain = self.pds.get_mut(pd.0)?;
        let srq = self.srqs.insert(ReceiveQueue {
            pd: pd.0,
            max_wr: max_wr.max(1),
            bufs: VecDeque::new(),
            users: 0,
            waiting: VecDeque::new(),
        })?;
        domain.srqs.push(srq);
        Ok(Srq(srq))
    }

    pub(super) fn free_srq(&mut self, srq: Srq) -> Result<(), RnicError> {
        let queue = self.srqs.get(srq.0)?;
        if queue.users > 0 {
            let users = queue.users;
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
        let queue = self.srqs.get_mut(srq.0)?;
        if queue.bufs.len() >= queue.max_wr {
            let what = "shared receive queue";
            return Err(RnicError::QueueFull { what, depth: queue.max_wr });
        }
        let lkeys = buf.lkeys;
        queue.bufs.push_back(buf);
        let waited = !queue.waiting.is_empty();
        self.note_shared(&lkeys);
        if waited {
            self.wake_srq(srq.0);
        }
        Ok(())
    }

    /// Lets the link that has waited longest have the buffer there is. One, not all: it
    /// wakes the next when it leaves some.
    pub(super) fn wake_srq(&mut self, srq: u32) {
        while let Ok(queue) = self.srqs.get_mut(srq)
            && !queue.bufs.is_empty()
            && let Some(link) = queue.waiting.pop_front()
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
        if let Ok(cq) = self.cqs.get_mut(recv_cq.0)
            && cq.room() == 0
        {
            if !cq.throttled.contains(&link) {
                cq.throttled.push(link);
            }
        } else if let Some(srq) = srq
            && let Ok(queue) = self.srqs.get_mut(srq.0)
            && !queue.waiting.contains(&link)
        {
            queue.waiting.push_back(link);
        }
    }
}
