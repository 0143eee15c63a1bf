//! Completions, events and receives on their way between links and queues.

use super::Driver;
use super::link::Link;
use super::turns::Source;
use crate::rnic::{CmEvent, Cq, RecvWr, RnicError, RnicEvent, Srq, Wc};

impl<L: Link> Driver<L> {
    pub(super) fn take_wcs(
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

    /// Puts a completion into its CQ.
    pub(crate) fn complete(&mut self, wc: Wc) {
        let Ok(qp) = self.qps.get(wc.qp.0) else { return };
        let event = self.objects.complete(&qp.attr, wc);
        self.reports.events.extend(event.map(RnicEvent::CqReady));
        if let Some(key) = wc.invalidated {
            // The peer has invalidated a window of this queue pair. It can end no other.
            self.drop_windows(wc.qp.0, |w| w.key == key);
        }
    }

    /// Reports a connection event.
    pub(crate) fn emit(&mut self, event: CmEvent) {
        self.reports.events.push_back(RnicEvent::Cm(event));
    }

    pub(super) fn push_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        let pd = self.objects.srqs.get(srq.0)?.pd;
        let buf = self.resolve_recv(pd, wr)?;
        let lkeys = buf.lkeys;
        self.objects.srqs.get_mut(srq.0)?.push(buf)?;
        self.memory.users.note_shared(&lkeys);
        self.wake_srq(srq.0);
        Ok(())
    }

    /// Wakes the link that has waited longest for a receive of this SRQ. Only one: it wakes the next
    /// if it leaves a receive.
    pub(crate) fn wake_srq(&mut self, srq: u32) {
        let waits = |link| self.links.get(link).is_ok_and(|l| l.base().stalled);
        if let Some(link) = self.objects.next_waiting(srq, waits) {
            self.enqueue(Source::Link(link));
        }
    }
}
