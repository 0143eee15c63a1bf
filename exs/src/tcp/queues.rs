//! Completion queues and shared receive queues, joined to links.

use std::collections::VecDeque;

use super::SoftRnic;
use super::timers::SoftSource;
use crate::iwarp::{RxBuf, RxSource};
use crate::rnic::{Cq, RecvWr, RnicError, RnicEvent, Srq, Wc};

/// The part of an SRQ that a connection may use: as many receives as its CQ has room for completions.
pub(super) struct SrqView<'a> {
    /// The receives.
    pub(super) bufs: &'a mut VecDeque<RxBuf>,
    /// Receives that may be taken.
    pub(super) room: usize,
}

impl RxSource for SrqView<'_> {
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
                self.enqueue(SoftSource::Link(link));
            }
        }
        Ok(n)
    }

    /// Puts a completion into its CQ.
    pub(super) fn complete(&mut self, wc: Wc) {
        let Ok(qp) = self.qps.get(wc.qp.0) else { return };
        let event = self.objects.complete(&qp.attr, wc);
        self.events.extend(event.map(RnicEvent::CqReady));
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

    /// Takes a receive back from the message that has been incomplete longest, if links wait and the SRQ
    /// has none. The peer of that message may never send the rest. If it does, the message waits for a
    /// receive as others do, and loses no byte.
    pub(super) fn relieve_srq(&mut self, srq: u32) {
        let Ok(queue) = self.objects.srqs.get_mut(srq) else { return };
        while queue.is_dry()
            && let Some(id) = queue.next_begun()
        {
            let Ok(link) = self.links.get_mut(id) else { continue };
            link.holds_recv_of = None;
            queue.bufs.extend(link.engine.spill());
        }
    }

    /// Wakes the link that has waited longest for a receive of this SRQ. Only one: it wakes the next if
    /// it leaves a receive (`serve_link`).
    pub(super) fn wake_srq(&mut self, srq: u32) {
        let waits = |link| self.links.get(link).is_ok_and(|l| l.stalled);
        if let Some(link) = self.objects.next_waiting(srq, waits) {
            self.enqueue(SoftSource::Link(link));
        }
    }
}
