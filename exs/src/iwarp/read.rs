//! READs and atomic operations that the peer asks of this side: the inbound READ queue (RFC 5040
//! section 5.2.2), at most IRD entries.
//!
//! The engine checks a request when it comes. The program may revoke the memory before the response
//! has left, so the queue remembers the key of each READ. An atomic operation is executed when its
//! request comes, so its entry has the result.

use std::collections::VecDeque;

use super::IwarpEngine;
use super::batch::TxBatch;
use super::tx::{Fpdu, max_payload};
use crate::mem::{Key, Segment};
use crate::wire::atomics::AtomicResponse;
use crate::wire::ddp::{self, DdpBuffer, Header};
use crate::wire::rdmap::{Offender, Opcode, QN_READ, READ_REQUEST_LEN, ReadRequest};

/// A response that this side owes.
#[derive(Debug)]
enum Answer {
    /// The bytes that a READ asks for.
    Read {
        request: ReadRequest,
        /// The memory to read. None for a READ of no bytes.
        source: Option<Segment>,
        /// Bytes already put into FPDUs.
        built: u32,
    },
    /// The result of an atomic operation.
    Atomic(AtomicResponse),
}

/// A request that this side must answer.
#[derive(Debug)]
struct InboundRequest {
    answer: Answer,
    /// Position in the sent stream at which the response ends. `u64::MAX` until the response is
    /// built.
    end: u64,
    msn: u32,
}

/// The queue. The module's head explains it.
#[derive(Debug, Default)]
pub(super) struct InboundReads {
    queue: VecDeque<InboundRequest>,
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
        let answer = Answer::Read { request, source, built: 0 };
        self.queue.push_back(InboundRequest { answer, end: u64::MAX, msn });
    }

    pub(super) fn push_atomic(&mut self, response: AtomicResponse, msn: u32) {
        let answer = Answer::Atomic(response);
        self.queue.push_back(InboundRequest { answer, end: u64::MAX, msn });
    }

    /// Returns the response that is built next.
    fn current(&mut self) -> Option<&mut Answer> {
        self.queue.get_mut(self.next).map(|r| &mut r.answer)
    }

    /// Records that the current response is built; it ends at `end`.
    fn built(&mut self, end: u64) {
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
        self.queue.iter().find_map(|r| match &r.answer {
            Answer::Read { request, source: Some(_), .. } if request.src_stag == key => {
                Some(offender(*request, r.msn))
            }
            _ => None,
        })
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

impl IwarpEngine {
    /// Adds an FPDU of the current response. Returns `Some(true)` if it was the response's last, None
    /// if there is none.
    pub(super) fn build_response(&mut self, batch: &mut TxBatch, base: u64) -> Option<bool> {
        let max = max_payload(&self.settled, self.cfg.mss, ddp::TAGGED_LEN);
        let crc = self.settled.crc;
        let last = match self.reads.current()? {
            Answer::Atomic(response) => {
                let response = *response;
                self.build_atomic_response(batch, response);
                true
            }
            Answer::Read { request, source, built } => {
                let at = *built as usize;
                let n = (request.size as usize - at).min(max);
                let last = at + n == request.size as usize;
                let place = DdpBuffer::Tagged {
                    stag: request.sink_stag,
                    to: request.sink_to.wrapping_add(at as u64),
                };
                let header = Header { last, control: Opcode::ReadResponse.control(), place };
                let mut fpdu = Fpdu::begin(batch, crc, &header, n);
                match source {
                    // Its program and its peers may write to it before it has left.
                    Some(source) if crc => fpdu.copy(&source.io_vec(at, n)),
                    Some(source) if n > 0 => fpdu.refer(source, at, n),
                    _ => {}
                }
                fpdu.end();
                *built = u32::try_from(at + n).unwrap_or(u32::MAX);
                last
            }
        };
        if last {
            self.reads.built(base + batch.len() as u64);
        }
        Some(last)
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
