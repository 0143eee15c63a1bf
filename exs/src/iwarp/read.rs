//! READs that the peer asked of us: the inbound READ queue (RFC 5040 section
//! 5.2.2), IRD entries at most.
//!
//! A request was checked when it came; until its response has left, the memory
//! it reads may be taken back, so the queue remembers under which key it was
//! let in.

use std::collections::VecDeque;

use crate::mem::{Key, Segment};
use crate::wire::ddp::{Header, Place};
use crate::wire::rdmap::{Offender, Opcode, QN_READ, READ_REQUEST_LEN, ReadRequest};

/// A READ to be answered.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) request: ReadRequest,
    /// The source; none if there is nothing to read.
    pub(super) source: Option<Segment>,
    /// Bytes put into FPDUs.
    pub(super) built: u32,
    /// Position in the sent stream at which the response ends.
    end: u64,
    msn: u32,
}

/// See the module's essay.
#[derive(Debug, Default)]
pub(super) struct Inbounds {
    queue: VecDeque<Inbound>,
    next: usize,
}

impl Inbounds {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn push(&mut self, request: ReadRequest, source: Option<Segment>, msn: u32) {
        self.queue.push_back(Inbound { request, source, built: 0, end: u64::MAX, msn });
    }

    /// The READ to be answered next.
    pub(super) fn current(&mut self) -> Option<&mut Inbound> {
        self.queue.get_mut(self.next)
    }

    /// The current response is wholly built.
    pub(super) fn built(&mut self, end: u64) {
        if let Some(inbound) = self.queue.get_mut(self.next) {
            inbound.end = end;
            self.next += 1;
        }
    }

    /// Forgets responses that have left.
    pub(super) fn complete(&mut self, sent: u64) {
        while self.queue.front().is_some_and(|r| r.end <= sent) {
            self.queue.pop_front();
            self.next -= 1;
        }
    }

    /// The request that reads by this key, as a TERMINATE names it.
    pub(super) fn by_key(&self, key: Key) -> Option<Offender> {
        let hit = self.queue.iter().find(|r| r.source.is_some() && r.request.src_stag == key)?;
        Some(offender(hit.request, hit.msn))
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.next = 0;
    }

    pub(super) fn trim(&mut self) {
        if self.queue.is_empty() {
            self.queue.shrink_to_fit();
        }
    }
}

/// What a TERMINATE says of a READ request.
fn offender(request: ReadRequest, msn: u32) -> Offender {
    let header = Header {
        last: true,
        control: Opcode::ReadRequest.control(),
        place: Place::Untagged { ulp: 0, qn: QN_READ, msn, mo: 0 },
    };
    #[expect(clippy::cast_possible_truncation, reason = "a constant of 46")]
    let len = (header.len() + READ_REQUEST_LEN) as u16;
    Offender { len, header, read: Some(request) }
}
