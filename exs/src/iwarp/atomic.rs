//! Atomic operations of both directions (RFC 7306).
//!
//! A request travels on the queue of the READ requests, takes a MSN there, and counts as a READ
//! against ORD and IRD (RFC 7306). Its response is an untagged message on a queue of its
//! own, so the requester's memory needs no window. Responses leave in the order of the requests,
//! between those of READs.
//!
//! The responder executes a request when the FPDU is whole and its CRC was checked: after the WRITEs
//! that came before it, and once, as TCP brings each FPDU once. It keeps the result until the response
//! leaves. A READ that is still being answered may see the new value, as it may see a later WRITE.

use super::IwarpEngine;
use super::batch::TxBatch;
use super::place::{HeaderVerdict, RxRefusal};
use super::rx::PayloadTarget;
use super::term;
use super::tx::{Fpdu, untagged};
use crate::mem::{AtomicOp, Key, KeyTable};
use crate::wire::atomics::{AtomicCode, AtomicRequest, AtomicResponse, REQUEST_LEN, RESPONSE_LEN};
use crate::wire::rdmap::{Opcode, QN_ATOMIC, QN_READ};

/// Builds the request of an operation. `id` is its MSN, so no two outstanding ones have the same.
fn request(op: AtomicOp, id: u32, stag: Key, to: u64) -> AtomicRequest {
    let (code, data, mask, compare, compare_mask) = match op {
        AtomicOp::FetchAdd(add) => (AtomicCode::FetchAdd, add, 0, 0, 0),
        AtomicOp::CompareSwap { expected, new } => {
            (AtomicCode::CompareSwap, new, u64::MAX, expected, u64::MAX)
        }
    };
    AtomicRequest { code, id, stag, to, data, mask, compare, compare_mask }
}

impl IwarpEngine {
    /// Adds the request of the current WR, which is an atomic operation.
    pub(super) fn build_atomic_request(
        &mut self,
        batch: &mut TxBatch,
        base: u64,
        op: AtomicOp,
        (rkey, raddr): (Key, u64),
    ) {
        let msn = self.tx.next_read_msn();
        let header = untagged(Opcode::AtomicRequest, QN_READ, msn);
        let mut fpdu = Fpdu::begin(batch, self.settled.crc, &header, REQUEST_LEN);
        fpdu.bytes(&request(op, msn, rkey, raddr).emit());
        fpdu.end();
        self.sq.built(base + batch.len() as u64, msn);
    }

    /// Adds a response, whose operation was executed.
    pub(super) fn build_atomic_response(&mut self, batch: &mut TxBatch, response: AtomicResponse) {
        let msn = self.tx.next_atomic_msn();
        let header = untagged(Opcode::AtomicResponse, QN_ATOMIC, msn);
        let mut fpdu = Fpdu::begin(batch, self.settled.crc, &header, RESPONSE_LEN);
        fpdu.bytes(&response.emit());
        fpdu.end();
    }

    /// Checks the header of a response: it must be that of the oldest outstanding request.
    pub(super) fn judge_atomic_response(
        &mut self,
        (msn, mo): (u32, u32),
        last: bool,
    ) -> Result<HeaderVerdict, RxRefusal> {
        if msn != self.rx.atomic_msn {
            return Err(term::INVALID_MSN.into());
        }
        if mo != 0 {
            return Err(term::INVALID_MO.into());
        }
        if !last || self.payload_len() != RESPONSE_LEN {
            return Err(term::CATASTROPHIC_STREAM.into());
        }
        match self.sq.awaited(self.tx.sent) {
            Some(entry) if entry.is_atomic() => Ok(HeaderVerdict::Place(PayloadTarget::Control)),
            _ => Err(term::UNEXPECTED_OPCODE.into()),
        }
    }

    /// Executes a request that is whole, and queues its response.
    pub(super) fn deliver_atomic_request(&mut self, keys: &KeyTable) {
        let request = match AtomicRequest::parse(self.rx.control_bytes()) {
            Ok(request) => request,
            Err(e) => return self.refuse(term::rdmap(e).into()),
        };
        let word = keys.check_word(self.cfg.pd, self.cfg.qp, request.stag, request.to);
        let old = match word {
            Ok(word) => word.update_word(|old| request.apply(old)),
            Err(fault) => return self.refuse(term::read_refused(&fault).into()),
        };
        self.reads.push_atomic(AtomicResponse { id: request.id, old }, self.rx.read_msn);
        self.rx.read_msn = self.rx.read_msn.wrapping_add(1);
    }

    /// Ends the request whose response is whole.
    pub(super) fn deliver_atomic_response(&mut self) {
        let response = match AtomicResponse::parse(self.rx.control_bytes()) {
            Ok(response) => response,
            Err(e) => return self.refuse(term::rdmap(e).into()),
        };
        let Some(entry) = self.sq.awaited(self.tx.sent) else { return };
        if !entry.is_numbered(response.id) {
            return self.refuse(term::CATASTROPHIC_STREAM.into());
        }
        entry.wr.sgl.write_at(0, &response.old.to_ne_bytes());
        self.rx.atomic_msn = self.rx.atomic_msn.wrapping_add(1);
        self.sq.response_done();
        self.sq.complete(self.tx.sent, self.qp(), &mut self.wcs);
    }
}
