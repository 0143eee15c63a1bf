//! The checks of an FPDU (`check`, before a byte of its payload is placed) and its effects
//! (`deliver`, when it is whole).

use super::IwarpEngine;
use super::rx::{OpenRecv, PayloadTarget, RxPhase};
use super::term;
use super::types::RxSource;
use crate::mem::{Access, Key, KeyTable, Scope};
use crate::rnic::{TermCode, Wc, WcOp, WcStatus};
use crate::wire::atomics;
use crate::wire::ddp::{DdpBuffer, Header};
use crate::wire::rdmap::{Opcode, READ_REQUEST_LEN, ReadRequest, Terminate};

/// A refusal: the code of the TERMINATE, and the status of the receive under way.
pub(super) struct RxRefusal(TermCode, WcStatus);

impl From<TermCode> for RxRefusal {
    fn from(code: TermCode) -> RxRefusal {
        RxRefusal(code, WcStatus::Flushed)
    }
}

/// The outcome for a header that passed the checks.
pub(super) enum HeaderVerdict {
    /// Place the payload in this target.
    Place(PayloadTarget),
    /// The FPDU begins a SEND, which needs a receive buffer.
    Buffer,
}

pub(super) type SrqSource<'s> = Option<&'s mut dyn RxSource>;

impl IwarpEngine {
    /// The header is complete: decides where its payload goes.
    pub(super) fn check(&mut self, keys: &KeyTable, srq: &mut SrqSource<'_>) {
        match self.judge(keys) {
            Ok(HeaderVerdict::Place(target)) => {
                let len = self.payload_len();
                self.begin_payload(target, len);
            }
            Ok(HeaderVerdict::Buffer) if self.cfg.uses_srq => {
                self.rx.phase = RxPhase::Buffer;
                // If it fails, the caller's loop tries again and reports `stalled`.
                self.take_buffer(srq);
            }
            Ok(HeaderVerdict::Buffer) => match self.rq.pop_front() {
                Some(buf) => {
                    self.rx.receive = Some(OpenRecv { buf, got: 0 });
                    self.fit();
                }
                None => self.refuse(term::NO_BUFFER.into()),
            },
            Err(refused) => self.refuse(refused),
        }
    }

    /// Takes a buffer from the SRQ for the SEND that waits. Returns false if the SRQ is empty.
    pub(super) fn take_buffer(&mut self, srq: &mut SrqSource<'_>) -> bool {
        if self.rx.phase != RxPhase::Buffer {
            return true;
        }
        let Some(buf) = srq.as_mut().and_then(|srq| srq.pop()) else {
            return false;
        };
        self.rx.receive = Some(OpenRecv { buf, got: 0 });
        self.fit();
        true
    }

    /// Places the payload of a SEND in the receive under way, if it has room.
    fn fit(&mut self) {
        let len = self.payload_len();
        let room = self.rx.receive.as_ref().map_or(0, |r| r.buf.sgl.len() - r.got);
        if len > room {
            return self.refuse_too_long();
        }
        self.begin_payload(PayloadTarget::Receive, len);
    }

    /// Refuses a SEND that is longer than its receive.
    pub(super) fn refuse_too_long(&mut self) {
        self.refuse(RxRefusal(term::TOO_LONG, WcStatus::LocalLength));
    }

    pub(super) fn refuse(&mut self, refused: RxRefusal) {
        let offender = self.rx.offender();
        self.fault_with(refused.0, offender, refused.1);
    }

    /// Returns the number of payload bytes after the DDP header. `judge` has checked that the
    /// ULPDU holds at least a header.
    pub(super) fn payload_len(&self) -> usize {
        usize::from(self.rx.ulpdu()).saturating_sub(self.rx.ddp_bytes().len())
    }

    fn judge(&mut self, keys: &KeyTable) -> Result<HeaderVerdict, RxRefusal> {
        if self.initiator && self.tx.sent <= self.tx.startup_end {
            // The responder must wait for this side's first FPDU.
            return Err(term::BAD_STARTUP.into());
        }
        let ulpdu = self.rx.ulpdu();
        let header = Header::parse(self.rx.ddp_bytes()).map_err(term::ddp)?;
        if usize::from(ulpdu) < header.len() {
            return Err(term::CATASTROPHIC_STREAM.into());
        }
        let opcode = Opcode::parse(header.control).map_err(term::rdmap)?;
        self.rx.current = Some((header, opcode, ulpdu));
        match (header.place, opcode.queue()) {
            (DdpBuffer::Tagged { stag, to }, None) if opcode == Opcode::Write => {
                self.judge_write(keys, stag, to)
            }
            (DdpBuffer::Tagged { stag, to }, None) => self.judge_response(stag, to, header.last),
            (DdpBuffer::Untagged { qn, .. }, Some(queue)) if qn != queue => {
                Err(term::INVALID_QN.into())
            }
            (DdpBuffer::Untagged { msn, mo, .. }, Some(_)) => match opcode {
                Opcode::ReadRequest => self.judge_request((msn, mo), header.last, READ_REQUEST_LEN),
                Opcode::AtomicRequest => {
                    self.judge_request((msn, mo), header.last, atomics::REQUEST_LEN)
                }
                Opcode::AtomicResponse => self.judge_atomic_response((msn, mo), header.last),
                Opcode::Terminate => Ok(HeaderVerdict::Place(PayloadTarget::Control)),
                _ => self.judge_send(msn, mo),
            },
            _ => Err(term::UNEXPECTED_OPCODE.into()),
        }
    }

    fn judge_write(&self, keys: &KeyTable, stag: Key, to: u64) -> Result<HeaderVerdict, RxRefusal> {
        let len = self.payload_len();
        if len == 0 {
            // RFC 5040 section 5.2.1: a zero-length WRITE names no memory.
            return Ok(HeaderVerdict::Place(PayloadTarget::Nothing));
        }
        let (pd, qp) = (self.cfg.pd, self.cfg.qp);
        let part = keys
            .check_remote(pd, qp, stag, to, len as u64, Access::REMOTE_WRITE)
            .map_err(|fault| term::write_refused(&fault))?;
        Ok(HeaderVerdict::Place(PayloadTarget::Memory(stag, part.to_segment())))
    }

    /// Checks a READ response: it must continue the oldest READ exactly.
    fn judge_response(
        &mut self,
        stag: Key,
        to: u64,
        last: bool,
    ) -> Result<HeaderVerdict, RxRefusal> {
        let len = self.payload_len() as u64;
        let Some(read) = self.sq.awaited_read(self.tx.sent) else {
            return Err(term::UNEXPECTED_OPCODE.into());
        };
        let left = read.len - u64::from(read.got);
        if len > left || last != (len == left) {
            return Err(term::TAGGED_BOUNDS.into());
        }
        if len == 0 {
            return Ok(HeaderVerdict::Place(PayloadTarget::Nothing));
        }
        if stag != read.wr.lkeys[0] {
            return Err(term::TAGGED_STAG.into());
        }
        let base = read.wr.sgl.iter().next().map_or(0, |s| s.addr());
        if to != base.wrapping_add(u64::from(read.got)) {
            return Err(term::TAGGED_BOUNDS.into());
        }
        Ok(HeaderVerdict::Place(PayloadTarget::Sink))
    }

    fn judge_send(&mut self, msn: u32, mo: u32) -> Result<HeaderVerdict, RxRefusal> {
        if msn != self.rx.send_msn {
            return Err(term::INVALID_MSN.into());
        }
        let got = self.rx.receive.as_ref().map_or(0, |r| r.got);
        if mo as usize != got {
            return Err(term::INVALID_MO.into());
        }
        match &self.rx.receive {
            None => Ok(HeaderVerdict::Buffer),
            Some(r) if self.payload_len() > r.buf.sgl.len() - r.got => {
                Err(RxRefusal(term::TOO_LONG, WcStatus::LocalLength))
            }
            Some(_) => Ok(HeaderVerdict::Place(PayloadTarget::Receive)),
        }
    }

    /// Checks the header of a READ request or an atomic request, of `len` bytes.
    fn judge_request(
        &self,
        (msn, mo): (u32, u32),
        last: bool,
        len: usize,
    ) -> Result<HeaderVerdict, RxRefusal> {
        if msn != self.rx.read_msn {
            return Err(term::INVALID_MSN.into());
        }
        if mo != 0 {
            return Err(term::INVALID_MO.into());
        }
        if !last || self.payload_len() != len {
            return Err(term::CATASTROPHIC_STREAM.into());
        }
        if self.reads.len() >= self.settled.ird as usize {
            return Err(term::NO_BUFFER.into());
        }
        Ok(HeaderVerdict::Place(PayloadTarget::Control))
    }

    /// Acts on an FPDU that is whole and sound.
    pub(super) fn deliver(&mut self, keys: &mut KeyTable) {
        let Some((header, opcode, _)) = self.rx.current else { return };
        match opcode {
            Opcode::Write => {}
            Opcode::ReadResponse => self.deliver_response(header.last),
            Opcode::ReadRequest => self.deliver_request(keys),
            Opcode::AtomicRequest => self.deliver_atomic_request(keys),
            Opcode::AtomicResponse => self.deliver_atomic_response(),
            Opcode::Terminate => match Terminate::parse(self.rx.control_bytes()) {
                Ok(terminate) => self.terminated(&terminate),
                Err(e) => self.fault(term::rdmap(e), None),
            },
            _ => self.deliver_send(&header, opcode, keys),
        }
    }

    fn deliver_response(&mut self, last: bool) {
        let len = u32::try_from(self.rx.len).unwrap_or(u32::MAX);
        if let Some(read) = self.sq.awaited_read(self.tx.sent) {
            read.got = read.got.saturating_add(len);
            if last {
                self.sq.response_done();
                self.sq.complete(self.tx.sent, self.qp(), &mut self.wcs);
            }
        }
    }

    fn deliver_request(&mut self, keys: &KeyTable) {
        let request = match ReadRequest::parse(self.rx.control_bytes()) {
            Ok(request) => request,
            Err(e) => return self.refuse(term::rdmap(e).into()),
        };
        let mut source = None;
        if request.size > 0 {
            let (pd, qp, size) = (self.cfg.pd, self.cfg.qp, u64::from(request.size));
            let (stag, to) = (request.src_stag, request.src_to);
            match keys.check_remote(pd, qp, stag, to, size, Access::REMOTE_READ) {
                Ok(part) => source = Some(part.to_segment()),
                Err(fault) => return self.refuse(term::read_refused(&fault).into()),
            }
        }
        self.reads.push(request, source, self.rx.read_msn);
        self.rx.read_msn = self.rx.read_msn.wrapping_add(1);
    }

    fn deliver_send(&mut self, header: &Header, opcode: Opcode, keys: &mut KeyTable) {
        if let Some(receive) = &mut self.rx.receive {
            receive.got += self.rx.len;
        }
        if !header.last {
            return;
        }
        let mut invalidated = None;
        if opcode.invalidates()
            && let DdpBuffer::Untagged { ulp: key, .. } = header.place
        {
            // RFC 5040 section 5.3: a SEND may invalidate only a key that was opened to this
            // stream alone.
            let scope = Scope::QueuePair(self.cfg.pd, self.cfg.qp);
            if keys.get(key).is_none_or(|grant| grant.scope != scope) {
                return self.refuse(term::CANNOT_INVALIDATE.into());
            }
            keys.remove(key);
            invalidated = Some(key);
        }
        let Some(receive) = self.rx.receive.take() else { return };
        self.rx.send_msn = self.rx.send_msn.wrapping_add(1);
        self.wcs.push(Wc {
            wr_id: receive.buf.wr_id,
            qp: self.qp(),
            status: WcStatus::Success,
            op: WcOp::Recv,
            byte_len: receive.got as u64,
            imm: None,
            invalidated,
            solicited: opcode.solicited(),
        });
        if let Some(key) = invalidated {
            // A READ response that this side sends through the key ends with it.
            self.key_revoked(key);
        }
    }
}
