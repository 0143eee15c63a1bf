//! Completion queues and shared receive queues: their entries, their depths, and the links that wait
//! for them.

use std::collections::VecDeque;

use crate::rnic::{RnicError, Wc};

/// Most work requests or completions that a queue may be made for.
const MAX_DEPTH: usize = 1 << 20;

/// Checks the depth of a new queue.
pub(crate) fn check_depth(what: &'static str, depth: usize) -> Result<(), RnicError> {
    if depth <= MAX_DEPTH {
        return Ok(());
    }
    Err(RnicError::Limit { what, asked: depth as u64, limit: MAX_DEPTH as u64 })
}

/// A completion queue.
pub(crate) struct CompletionQueue {
    wcs: VecDeque<Wc>,
    /// Most completions that it holds.
    depth: usize,
    /// The driver must report the next completion.
    armed: bool,
    /// Number of queue pairs that complete here. A queue pair counts twice if both its sends and
    /// its receives do.
    pub(crate) users: usize,
    /// Links that take no receives until the queue has room.
    throttled: Vec<u32>,
}

impl CompletionQueue {
    /// An empty queue for at least `depth` completions.
    pub(crate) fn new(depth: usize) -> Result<CompletionQueue, RnicError> {
        check_depth("completion queue depth", depth)?;
        Ok(CompletionQueue {
            wcs: VecDeque::new(),
            depth: depth.max(1),
            armed: false,
            users: 0,
            throttled: Vec::new(),
        })
    }

    /// Returns the number of completions that still fit.
    pub(crate) fn room(&self) -> usize {
        self.depth.saturating_sub(self.wcs.len())
    }

    /// Returns true if no completion waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.wcs.is_empty()
    }

    /// Refuses new work while the queue is full. Outstanding WRs are bounded, so the queue is
    /// bounded too.
    pub(crate) fn check_room(&self) -> Result<(), RnicError> {
        if self.room() > 0 {
            return Ok(());
        }
        Err(RnicError::QueueFull { what: "completion queue", depth: self.depth })
    }

    /// Arms the queue: the driver reports the next completion.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn arm(&mut self) {
        self.armed = true;
    }

    /// Adds a completion. Returns true if the queue was armed, and disarms it.
    pub(crate) fn push(&mut self, wc: Wc) -> bool {
        self.wcs.push_back(wc);
        std::mem::take(&mut self.armed)
    }

    /// Moves up to `max` completions to `out` and returns their number.
    pub(crate) fn take(&mut self, max: usize, out: &mut Vec<Wc>) -> usize {
        // The usual case of a busy-polling thread.
        if self.wcs.is_empty() {
            return 0;
        }
        let n = max.min(self.wcs.len());
        out.extend(self.wcs.drain(..n));
        n
    }

    /// Records a link that found the queue full.
    pub(crate) fn throttle(&mut self, link: u32) {
        if !self.throttled.contains(&link) {
            self.throttled.push(link);
        }
    }

    /// Takes the links that can go on after completions were taken out.
    pub(crate) fn unthrottle(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.throttled)
    }
}

/// A receive queue that several QPs share. `B` is the driver's receive buffer.
pub(crate) struct ReceiveQueue<B> {
    /// The protection domain it belongs to.
    pub(crate) pd: u32,
    /// Most buffers that it holds.
    max_wr: usize,
    /// The buffers, the oldest first.
    pub(crate) bufs: VecDeque<B>,
    /// Queue pairs that take their receives from here.
    pub(crate) users: usize,
    /// Links that wait for a buffer, in the order in which they ran dry.
    waiting: VecDeque<u32>,
    /// Links that may hold a buffer which a message has filled in part, the earliest first. The
    /// driver can spill such a message to get the buffer back.
    begun: VecDeque<u32>,
}

impl<B> ReceiveQueue<B> {
    /// An empty queue for `max_wr` receives.
    pub(crate) fn new(pd: u32, max_wr: usize) -> Result<ReceiveQueue<B>, RnicError> {
        check_depth("shared receive queue depth", max_wr)?;
        let (bufs, waiting, begun) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Ok(ReceiveQueue { pd, max_wr: max_wr.max(1), bufs, users: 0, waiting, begun })
    }

    /// Adds a buffer.
    pub(crate) fn push(&mut self, buf: B) -> Result<(), RnicError> {
        if self.bufs.len() >= self.max_wr {
            let what = "shared receive queue";
            return Err(RnicError::QueueFull { what, depth: self.max_wr });
        }
        self.bufs.push_back(buf);
        Ok(())
    }

    /// Takes the link that has waited longest, if there is a buffer for it. The link waits no
    /// more.
    pub(crate) fn next_waiting(&mut self) -> Option<u32> {
        if self.bufs.is_empty() {
            return None;
        }
        self.waiting.pop_front()
    }

    /// Records a link that found no receive.
    pub(crate) fn wait(&mut self, link: u32) {
        if !self.waiting.contains(&link) {
            self.waiting.push_back(link);
        }
    }

    /// Returns true if there is no buffer and a link waits for one.
    pub(crate) fn is_dry(&self) -> bool {
        self.bufs.is_empty() && !self.waiting.is_empty()
    }

    /// Records a link that holds a half-filled buffer. The caller must do so once, until
    /// [`ReceiveQueue::next_begun`] returns the link.
    pub(crate) fn begin(&mut self, link: u32) {
        self.begun.push_back(link);
    }

    /// Takes the link that was recorded first.
    pub(crate) fn next_begun(&mut self) -> Option<u32> {
        self.begun.pop_front()
    }

    /// Removes a link that has gone.
    pub(crate) fn forget_begun(&mut self, link: u32) {
        self.begun.retain(|l| *l != link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rnic::{Qp, WcOp, WcStatus};

    fn wc(wr_id: u64) -> Wc {
        Wc {
            wr_id,
            qp: Qp(1),
            op: WcOp::Send,
            status: WcStatus::Success,
            byte_len: 0,
            imm: None,
            invalidated: None,
            solicited: false,
        }
    }

    #[test]
    fn completions_come_in_order_and_notify_once() {
        let mut cq = CompletionQueue::new(3).unwrap();
        assert!(!cq.push(wc(1)));
        cq.arm();
        assert!(cq.push(wc(2)));
        assert!(!cq.push(wc(3)));
        assert!(matches!(cq.check_room(), Err(RnicError::QueueFull { depth: 3, .. })));
        let mut out = Vec::new();
        assert_eq!((cq.take(2, &mut out), cq.room()), (2, 2));
        assert_eq!((cq.take(2, &mut out), cq.take(2, &mut out)), (1, 0));
        assert_eq!(out.iter().map(|w| w.wr_id).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(CompletionQueue::new(MAX_DEPTH + 1).is_err());
    }
}
