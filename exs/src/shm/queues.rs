//! Completion queues and shared receive queues, joined to links.

use super::ShmRnic;
use super::serve::ShmSource;
use crate::rnic::{Cq, RecvWr, RnicError, RnicEvent, Srq, Wc};

impl ShmRnic {
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
                self.enqueue(ShmSource::Link(link));
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
            // The peer has invalidated a window of this queue pair.
            self.drop_windows(wc.qp.0, |w| w.is(key));
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

    /// Wakes the link that has waited longest for a receive of this SRQ. Only one: it wakes the next
    /// if it leaves a receive.
    pub(super) fn wake_srq(&mut self, srq: u32) {
        let waits = |link| self.links.get(link).is_ok_and(|l| l.stalled);
        if let Some(link) = self.objects.next_waiting(srq, waits) {
            self.enqueue(ShmSource::Link(link));
        }
    }
}
