//! Shared receive queues, joined to links.

use std::collections::VecDeque;

use super::SoftRnic;
use crate::iwarp::{RxBuf, RxSource};

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
    /// Takes a receive back from the message that has been incomplete longest, if links wait and the SRQ
    /// has none. The peer of that message may never send the rest. If it does, the message waits for a
    /// receive as others do, and loses no byte.
    pub(super) fn relieve_srq(&mut self, srq: u32) {
        let Ok(queue) = self.objects.srqs.get_mut(srq) else { return };
        while queue.is_dry()
            && let Some(id) = queue.next_begun()
        {
            let Ok(link) = self.links.get_mut(id) else { continue };
            link.intake.holds_recv_of = None;
            queue.bufs.extend(link.engine.spill());
        }
    }
}
