//! Atomic operations on the link.

use crate::mem::{Access, AtomicOp, Key, WORD};
use crate::rnic::WcStatus;

use super::{Frame, Net};

/// A request for an atomic operation.
#[derive(Debug)]
pub(in crate::session::sim) struct AtomicReq {
    pub(super) wr: u64,
    pub(super) raddr: u64,
    pub(super) rkey: Key,
    pub(super) op: AtomicOp,
}

impl Net {
    /// Executes an operation of the peer, once, and answers it.
    pub(super) fn execute(&mut self, side: usize, req: &AtomicReq) {
        let AtomicReq { wr, raddr, rkey, op } = *req;
        match self.reach(side, rkey, raddr, WORD as u64, Access::REMOTE_ATOMIC) {
            Some(word) => {
                let data = word.atomic(0, op).to_ne_bytes().to_vec();
                self.send(side, Frame::ReadResp { wr, data });
            }
            None => self.refuse(side),
        }
    }

    /// What a request says, before it is executed or lost.
    pub(super) fn ask(&mut self, side: usize, req: AtomicReq) {
        self.send(side, Frame::AtomicReq(req));
    }

    /// An answer has come.
    pub(super) fn answered(&mut self, side: usize, wr: u64, data: &[u8]) {
        if let Some(track) = self.track(side, wr) {
            track.bytes = data.len() as u64;
            if let Some(sink) = &track.sink {
                sink.write_at(0, data);
            }
        }
        self.complete(side, wr, WcStatus::Success);
    }
}
