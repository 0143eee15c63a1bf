//! READs that the peer asks of this side: the inbound READ queue (RFC 5040 section 5.2.2), at
//! most IRD entries.
//!
//! The engine checks a request when it comes. The program may revoke the memory before the
//! response has left, so the queue remembers the key of each request.

use std::collections::VecDeque;

use crate::mem::{Key, Segment};
use crate::wire::ddp::{DdpBuffer, Header};
use crate::wire::rdmap::{Offender, Opcode, QN_READ, READ_REQUEST_LEN, ReadRequest};

/// A READ that this side must answer.
#[derive(Debug)]
pub(super) struct InboundRead {
    pub(super) request: ReadRequest,
    /// The memory to read. None for a READ of no bytes.
    pub(super) source: Option<Segment>,
    /// Bytes already put into FPDUs.
    pub(super) built: u32,
    /// Position in the sent stream at which the response ends. `u64::MAX` until the response is
    /// built.
    end: u64,
    msn: u32,
}

/// The queue. The module's head explains it.
#[derive(Debug, Default)]
pub(super) struct InboundReads {
    queue: VecDeque<InboundRead>,
    next: usize,
}

impl InboundReads {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn push(&mut self, request: ReadRequest, source: Option<Segment>, msn: u32) {
        self.queue.push_back(InboundRead { request, source, built: 0, end: u64::MAX, msn });
    }

    /// Returns the READ whose response is built next.
    pub(super) fn current(&mut self) -> Option<&mut InboundRead> {
        self.queue.get_mut(self.next)
    }

    /// Records that the current response is built; it ends at `end`.
    pub(super) fn built(&mut self, end: u64) {
        if let Some(inbound) = self.queue.get_mut(self.next) {
            inbound.end = end;
            self.next += 1;
        }
    }

    /// Removes the responses that have left, `sent` bytes being out.
    pub(super) fn complete(&mut self, sent: u64) {
        while self.queue.front().is_some_and(|r| r.end <= sent) {
            self.queue.pop_front();
            self.next -= 1;
        }
    }

    /// Returns the request that reads through this key, as a TERMINATE names it.
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

/// Describes a READ request for a TERMINATE.
fn offender(request: ReadRequest, msn: u32) -> Offender {
    let header = Header {
        last: true,
        control: Opcode::ReadRequest.control(),
        place: DdpBuffer::Untagged { ulp: 0, qn: QN_READ, msn, mo: 0 },
    };
    #[expect(clippy::cast_possible_truncation, reason = "a constant of 46")]
    let len = (header.len() + READ_REQUEST_LEN) as u16;
    Offender { len, header, read: Some(request) }
}
