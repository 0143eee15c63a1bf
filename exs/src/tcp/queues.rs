//! Completion queues and shared receive queues: what the queues of
//! [`crate::rnic::queues`] mean to links.

use std::collections::VecDeque;

use super::SoftRnic;
use super::timers::Source;
use crate::iwarp::{RxBuf, RxSource};
use crate::rnic::{Cq, RecvWr, RnicError, RnicEvent, Srq, Wc};

/// The view of an SRQ that a connection gets: as many buffers as there is room for
/// completions.
pub(super) struct Feed<'a> {
    /// The buffers.
    pub(super) bufs: &'a mut VecDeque<RxBuf>,
    /// How many may be taken.
    pub(super) room: usize,
}

impl RxSource for Feed<'_> {
    fn pop(&mut self) -> Option<RxBuf> {
        self.room = self.room.checked_sub(1)?;
        self.bufs.pop_front()
    }
}

impl SoftRnic {
    pub(super) fn poll_cq(
        &mut self,
        cq: Cq,
        max: usize,
        out: &mut Vec<Wc>,
    ) -> Result<usize, RnicError> {
        let queue = self.objects.cqs.get_mut(cq.0)?;
        let n = queue.take(max, out);
        if n > 0 {
            for link in queue.unthrottle() {
                self.enqueue(Source::Link(link));
            }
        }
        Ok(n)
    }

    /// Puts a completion into the CQ it belongs to.
    pub(super) fn complete(&mut self, wc: Wc) {
        let Ok(qp) = self.qps.get(wc.qp.0) else { return };
        let told = self.objects.complete(&qp.attr, wc);
        self.events.extend(told.map(RnicEvent::CqReady));
        if let Some(key) = wc.invalidated {
            self.forget_invalidated(wc.qp.0, key);
        }
    }

    pub(super) fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        let pd = self.objects.srqs.get(srq.0)?.pd;
        let buf = self.resolve_recv(pd, wr)?;
        let lkeys = buf.lkeys;
        self.objects.srqs.get_mut(srq.0)?.push(buf)?;
        self.users.note_shared(&lkeys);
        self.wake_srq(srq.0);
        Ok(())
    }

    /// If links wait and there is no buffer, takes one back from the message that has been
    /// half here longest. Its peer may never send the rest; if it does, the message waits
    /// for a buffer as the others do, and no byte of it is lost.
    pub(super) fn relieve_srq(&mut self, srq: u32) {
        let Ok(queue) = self.objects.srqs.get_mut(srq) else { return };
        while queue.is_dry()
            && let Some(id) = queue.next_begun()
        {
            let Ok(link) = self.links.get_mut(id) else { continue };
            link.begun = None;
            queue.bufs.extend(link.engine.spill());
        }
    }

    /// Lets the link that has waited longest have the buffer there is. One, not all:
    /// it wakes the next when it leaves some (`serve_link`).
    pub(super) fn wake_srq(&mut self, srq: u32) {
        let waits = |link| self.links.get(link).is_ok_and(|l| l.stalled);
        if let Some(link) = self.objects.next_waiting(srq, waits) {
            self.enqueue(Source::Link(link));
        }
    }
}
