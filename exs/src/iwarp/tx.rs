//! Building FPDUs: from WRs and READ requests to batches.
//!
//! Messages leave whole, one after the other (RFC 5041 section 5.3: segments in the order of the
//! messages). Between messages, our own WRs and the READ responses that this side owes take
//! turns, so that neither starves the other.

use super::batch::{SendStep, TxBatch, TxPool};
use super::state::{ConnState, SendHalf, SendTrigger, next_half};
use super::types::MAX_INLINE;
use super::{IwarpEngine, StartupTerms};
use crate::mem::{MAX_SGE, Segment};
use crate::rnic::SendOp;
use crate::sys::IoVec;
use crate::wire::ddp::{self, DdpBuffer, Header};
use crate::wire::mpa;
use crate::wire::rdmap::{
    Opcode, QN_READ, QN_SEND, QN_TERMINATE, READ_REQUEST_LEN, ReadRequest, TERMINATE_MAX, Terminate,
};

/// Payload of an FPDU between peers that both take large ones: 15 pages, so that pieces of an
/// aligned buffer stay aligned.
pub(super) const LARGE_PAYLOAD: usize = 60 * 1024;
/// Bytes by which TCP's options may shorten a segment below the MSS that the kernel reports: four
/// blocks of SACK (RFC 2018). The kernel sends them with data after a segment of the peer was lost
/// or came twice. It cuts an FPDU that does not fit then, wherever the segment ends.
const SACK_OPTIONS: usize = 36;
/// Smallest credible MSS. IPv4's minimum is 536, less options.
const LEAST_MSS: usize = 128;

/// Arena bytes that any one FPDU needs in a batch.
const FPDU_ARENA: usize = mpa::LENGTH_LEN + ddp::UNTAGGED_LEN + MAX_INLINE + TERMINATE_MAX + 8;
const FPDU_PIECES: usize = MAX_SGE + 4;

/// Returns the most payload bytes of one FPDU whose DDP header has `header` bytes.
pub(super) fn max_payload(settled: &StartupTerms, mss: usize, header: usize) -> usize {
    if settled.large {
        return LARGE_PAYLOAD;
    }
    // Length field, header and CRC must fit beside the payload. A multiple of 4 needs no pad and
    // keeps offsets aligned. The payload is as large as fits (RFC 5044 section 5.1): FPDUs that
    // fill their segments stay aligned with them, and hardware is fast with such FPDUs.
    let mss = mss.clamp(LEAST_MSS, usize::from(u16::MAX));
    // Each FPDU with CRC leaves alone, and must not be cut: siw accepts no trailer in two pieces.
    let options = if settled.crc { SACK_OPTIONS } else { 0 };
    (mss - options - mpa::LENGTH_LEN - header - mpa::CRC_LEN) & !3
}

/// The side whose message is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TxTurn {
    Own,
    Response,
}

/// The sending side of a connection.
#[derive(Debug)]
pub(super) struct Sending {
    /// The batch that is being sent. None if everything built has left.
    pub(super) batch: Option<Box<TxBatch>>,
    /// Bytes ever put into batches, and bytes that have left.
    pub(super) built: u64,
    pub(super) sent: u64,
    /// Position in the sent stream after the start-up frame.
    pub(super) startup_end: u64,
    /// Whether FPDUs may leave. [`Sending::go`] moves it.
    pub(super) half: SendHalf,
    /// A TERMINATE that must be sent. None if there is none, or if it is in a batch.
    pub(super) terminate: Option<Terminate>,
    /// The next MSNs of our SENDs, and of our READ requests and atomic requests.
    pub(super) send_msn: u32,
    read_msn: u32,
    /// The next MSN of our atomic responses.
    atomic_msn: u32,
    /// The turn whose message is built in part. None between messages.
    midway: Option<TxTurn>,
    /// The turn that was served last.
    last: TxTurn,
}

impl Default for Sending {
    fn default() -> Sending {
        Sending {
            batch: None,
            built: 0,
            sent: 0,
            startup_end: 0,
            half: SendHalf::Open,
            terminate: None,
            send_msn: 1,
            read_msn: 1,
            atomic_msn: 1,
            midway: None,
            last: TxTurn::Response,
        }
    }
}

impl Sending {
    /// Moves the sending half.
    pub(super) fn go(&mut self, trigger: SendTrigger) {
        let next = next_half(self.half, trigger);
        debug_assert!(next.is_some(), "{trigger:?} in {:?}", self.half);
        self.half = next.unwrap_or(self.half);
    }

    /// Returns true if nothing but WRs and READ responses waits to be built.
    pub(super) fn is_free(&self) -> bool {
        self.half == SendHalf::Open && self.midway.is_none() && self.terminate.is_none()
    }

    /// Returns true if no message is built in part, and no batch holds any.
    pub(super) fn rests(&self) -> bool {
        let half = matches!(self.half, SendHalf::Open | SendHalf::Held);
        half && self.midway.is_none() && self.terminate.is_none() && self.batch.is_none()
    }

    /// Takes the MSN for a SEND that is built now.
    pub(super) fn next_send_msn(&mut self) -> u32 {
        take_msn(&mut self.send_msn)
    }

    /// Takes the MSN for a READ request or an atomic request that is built now.
    pub(super) fn next_read_msn(&mut self) -> u32 {
        take_msn(&mut self.read_msn)
    }

    /// Takes the MSN for an atomic response that is built now.
    pub(super) fn next_atomic_msn(&mut self) -> u32 {
        take_msn(&mut self.atomic_msn)
    }

    /// Drops what waits to be sent, and lets go of its memory. With `framed`, the engine keeps a
    /// copy of the FPDU of which a byte has left, so that a TERMINATE can follow it.
    pub(super) fn abandon(&mut self, framed: bool) {
        self.midway = None;
        self.go(SendTrigger::Abandon);
        if let Some(batch) = &mut self.batch {
            let before = batch.len();
            if framed {
                batch.scrub()
            } else {
                batch.cut()
            }
            self.built -= (before - batch.len()) as u64;
        }
    }
}

fn take_msn(next: &mut u32) -> u32 {
    let msn = *next;
    *next = msn.wrapping_add(1);
    msn
}

/// An FPDU on its way into a batch. It computes the CRC as parts are added.
pub(super) struct Fpdu<'b> {
    batch: &'b mut TxBatch,
    crc_on: bool,
    crc: u32,
    ulpdu: usize,
}

impl<'b> Fpdu<'b> {
    pub(super) fn begin(
        batch: &'b mut TxBatch,
        crc_on: bool,
        header: &Header,
        payload: usize,
    ) -> Fpdu<'b> {
        let mut bytes = [0; mpa::LENGTH_LEN + ddp::UNTAGGED_LEN];
        let mut ddp = [0; ddp::UNTAGGED_LEN];
        let n = header.emit(&mut ddp);
        let ulpdu = n + payload;
        // `max_payload` keeps it below 64 KiB.
        let length = u16::try_from(ulpdu).unwrap_or(u16::MAX);
        bytes[..2].copy_from_slice(&length.to_be_bytes());
        bytes[2..2 + n].copy_from_slice(&ddp[..n]);
        let mut fpdu = Fpdu { batch, crc_on, crc: 0, ulpdu };
        fpdu.bytes(&bytes[..2 + n]);
        fpdu
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.add(|batch| batch.push_bytes(bytes));
    }

    /// Adds a small payload.
    pub(super) fn payload(&mut self, payload: &IoVec<'_>) {
        self.add(|batch| batch.push_copy(|arena| payload.append_to(arena)));
    }

    /// Adds a payload that may change where it lies.
    pub(super) fn copy(&mut self, payload: &IoVec<'_>) {
        self.add(|batch| batch.push_payload(payload));
    }

    /// Adds a payload that is read where it lies, when it leaves. Only without CRC.
    pub(super) fn refer(&mut self, source: &Segment, at: usize, len: usize) {
        debug_assert!(!self.crc_on, "it may change after its CRC was computed");
        self.batch.push_segment(source, at, len);
    }

    /// Adds a copy. The CRC is that of the copy, because the copy leaves.
    fn add(&mut self, copy: impl FnOnce(&mut TxBatch) -> &[u8]) {
        let copy = copy(self.batch);
        if self.crc_on {
            self.crc = crc32c::crc32c_append(self.crc, copy);
        }
    }

    pub(super) fn end(mut self) {
        let mut trailer = [0; 7];
        let pad = mpa::pad(self.ulpdu);
        if self.crc_on {
            self.crc = crc32c::crc32c_append(self.crc, &trailer[..pad]);
            trailer[pad..pad + 4].copy_from_slice(&mpa::emit_crc(self.crc));
        }
        self.crc_on = false;
        self.bytes(&trailer[..pad + mpa::CRC_LEN]);
        self.batch.end_fpdu();
    }
}

impl IwarpEngine {
    /// Returns the next step of sending.
    pub fn poll_tx<'a>(&'a mut self, pool: &mut TxPool) -> SendStep<'a> {
        self.release_batch(pool);
        if self.tx.batch.is_none() && self.wants_tx() {
            let mut batch = pool.take();
            self.build(&mut batch);
            if batch.is_done() {
                pool.give(batch);
            } else {
                self.tx.batch = Some(batch);
            }
        }
        if self.tx.batch.is_none() && self.shutdown_due() {
            self.tx.go(SendTrigger::Shutdown);
            self.maybe_finish();
            return SendStep::Shutdown;
        }
        let ends = self.ends_with_batch();
        match &self.tx.batch {
            Some(batch) => batch.step(ends),
            None => SendStep::Idle,
        }
    }

    /// Returns true if the end of the sending side follows the batch at once.
    fn ends_with_batch(&self) -> bool {
        self.state == ConnState::Closing
            && !self.sq.has_unbuilt()
            && !self.sq.has_reads()
            && self.reads.is_empty()
    }

    /// Gives the batch back if all of it has left. The driver does so when it has sent what it can:
    /// a batch takes more memory than the rest of an idle connection.
    pub fn release_batch(&mut self, pool: &mut TxPool) {
        if self.tx.batch.as_ref().is_some_and(|b| b.is_done() || self.closed())
            && let Some(done) = self.tx.batch.take()
        {
            pool.give(done);
        }
    }

    /// Reports that bytes of a gathered write have left.
    pub fn handle_sent(&mut self, bytes: usize) {
        let Some(batch) = &mut self.tx.batch else { return };
        batch.advance(bytes);
        self.tx.sent += bytes as u64;
        self.reads.complete(self.tx.sent);
        self.sq.complete(self.tx.sent, self.qp(), &mut self.wcs);
    }

    /// Reports that bytes of a file step have left. 0 says that the file has ended.
    pub fn handle_file_sent(&mut self, bytes: usize) {
        let Some((serial, left)) = self.tx.batch.as_ref().and_then(|b| b.current_file()) else {
            return;
        };
        if bytes == 0 {
            return self.file_ended(serial, None);
        }
        self.sq.file_sent(serial, bytes.min(left));
        self.handle_sent(bytes.min(left));
    }

    /// Reports that the file of a file step cannot be read. Zeros take the place of the rest, and
    /// the WR completes with [`crate::rnic::WcStatus::FileRead`].
    pub fn handle_file_error(&mut self, errno: i32) {
        if let Some((serial, _)) = self.tx.batch.as_ref().and_then(|b| b.current_file()) {
            self.file_ended(serial, Some(errno));
        }
    }

    fn file_ended(&mut self, serial: u64, errno: Option<i32>) {
        self.sq.file_ended(serial, errno);
        if let Some(batch) = &mut self.tx.batch {
            batch.drop_file(serial);
        }
    }

    /// Returns true if posted WRs wait to be sent: for the doorbell, for a READ's response (ORD),
    /// or for the initiator's first message.
    pub fn has_unsent(&self) -> bool {
        self.sq.has_unbuilt()
    }

    /// Returns true if there is something to send for which no doorbell is rung: the rest of what
    /// has begun to leave, start-up frames, READ responses, a TERMINATE, the end.
    pub fn owes(&self) -> bool {
        let open = self.state.is_open() && self.tx.half.may_build();
        self.tx.batch.as_ref().is_some_and(|b| !b.is_done())
            || self.startup.as_ref().is_some_and(|s| !s.tx.is_empty())
            || self.tx.terminate.is_some()
            || (open && (self.tx.half == SendHalf::FirstWrite || !self.reads.is_empty()))
            || self.shutdown_due()
    }

    fn wants_tx(&self) -> bool {
        let open = self.state.is_open() && self.tx.half.may_build();
        let first = self.tx.half == SendHalf::FirstWrite;
        let work = first || !self.sq.is_empty() || !self.reads.is_empty();
        self.startup.as_ref().is_some_and(|s| !s.tx.is_empty())
            || self.tx.terminate.is_some()
            || (open && work)
    }

    fn build(&mut self, batch: &mut TxBatch) {
        if let Some(startup) = &mut self.startup
            && !startup.tx.is_empty()
        {
            batch.push_bytes(&std::mem::take(&mut startup.tx));
            batch.end_fpdu();
            self.tx.startup_end = batch.len() as u64;
            if self.state.is_open() {
                self.startup = None;
            }
        }
        let base = self.tx.built;
        if let Some(terminate) = self.tx.terminate.take() {
            self.build_terminate(batch, &terminate);
        } else if self.state.is_open() && self.tx.half.may_build() {
            if self.tx.half == SendHalf::FirstWrite {
                self.tx.go(SendTrigger::Built);
                let place = DdpBuffer::Tagged { stag: 0, to: 0 };
                let header = Header { last: true, control: Opcode::Write.control(), place };
                Fpdu::begin(batch, self.settled.crc, &header, 0).end();
            }
            // An FPDU that must be a TCP segment of its own gets a batch of its own.
            batch.alone = self.settled.crc && !self.settled.large;
            while batch.has_room(FPDU_ARENA, FPDU_PIECES)
                && self.build_one(batch, base)
                && !batch.alone
            {}
        }
        self.tx.built = base + batch.len() as u64;
    }

    /// Adds one FPDU of the side whose turn it is. Returns false if there is none to add.
    fn build_one(&mut self, batch: &mut TxBatch, base: u64) -> bool {
        let first = match (self.tx.midway, self.tx.last) {
            (Some(turn), _) => turn,
            (None, TxTurn::Own) => TxTurn::Response,
            (None, TxTurn::Response) => TxTurn::Own,
        };
        let turns = match first {
            TxTurn::Own => [TxTurn::Own, TxTurn::Response],
            TxTurn::Response => [TxTurn::Response, TxTurn::Own],
        };
        for turn in turns {
            let built = match turn {
                TxTurn::Own => self.build_own(batch, base),
                TxTurn::Response => self.build_response(batch, base),
            };
            if let Some(last) = built {
                self.tx.midway = if last { None } else { Some(turn) };
                self.tx.last = turn;
                return true;
            }
            if self.tx.midway.is_some() {
                return false;
            }
        }
        false
    }

    /// Adds an FPDU of the current WR. Returns `Some(true)` if it was the WR's last, None if
    /// there is none.
    fn build_own(&mut self, batch: &mut TxBatch, base: u64) -> Option<bool> {
        let crc = self.settled.crc;
        let (serial, entry) = self.sq.current(self.settled.ord)?;
        let header = match entry.wr.op {
            SendOp::Write { .. } | SendOp::WriteImm { .. } => ddp::TAGGED_LEN,
            SendOp::Send { .. } | SendOp::Read { .. } | SendOp::Atomic { .. } => ddp::UNTAGGED_LEN,
        };
        let max = max_payload(&self.settled, self.cfg.mss, header);
        let at = entry.built;
        let rest = entry.len - at;
        let n = usize::try_from(rest).map_or(max, |rest| rest.min(max));
        let last = n as u64 == rest;
        let mut msn = 0;
        match entry.wr.op {
            SendOp::Read { raddr, rkey } => {
                let request = ReadRequest {
                    sink_stag: entry.wr.lkeys[0],
                    sink_to: entry.wr.sgl.iter().next().map_or(0, |s| s.addr()),
                    size: u32::try_from(entry.len).unwrap_or(u32::MAX),
                    src_stag: rkey,
                    src_to: raddr,
                };
                msn = self.tx.next_read_msn();
                let header = untagged(Opcode::ReadRequest, QN_READ, msn);
                let mut fpdu = Fpdu::begin(batch, crc, &header, READ_REQUEST_LEN);
                fpdu.bytes(&request.emit());
                fpdu.end();
                self.sq.built(base + batch.len() as u64, msn);
                return Some(true);
            }
            SendOp::Atomic { raddr, rkey, op } => {
                self.build_atomic_request(batch, base, op, (rkey, raddr));
                return Some(true);
            }
            SendOp::Write { raddr, rkey } | SendOp::WriteImm { raddr, rkey, .. } => {
                let place = DdpBuffer::Tagged { stag: rkey, to: raddr.wrapping_add(at) };
                let header = Header { last, control: Opcode::Write.control(), place };
                payload(Fpdu::begin(batch, crc, &header, n), serial, entry, at, n);
            }
            SendOp::Send { invalidate, solicited } => {
                msn = self.tx.send_msn;
                let opcode = Opcode::send(invalidate.is_some(), solicited);
                let place = DdpBuffer::Untagged {
                    ulp: invalidate.unwrap_or(0),
                    qn: QN_SEND,
                    msn,
                    mo: u32::try_from(at).unwrap_or(u32::MAX),
                };
                let header = Header { last, control: opcode.control(), place };
                payload(Fpdu::begin(batch, crc, &header, n), serial, entry, at, n);
                self.tx.send_msn = msn.wrapping_add(u32::from(last));
            }
        }
        entry.built += n as u64;
        if last {
            self.sq.built(base + batch.len() as u64, msn);
        }
        Some(last)
    }

    fn build_terminate(&mut self, batch: &mut TxBatch, terminate: &Terminate) {
        let mut bytes = [0; TERMINATE_MAX];
        let n = terminate.emit(&mut bytes);
        let header = untagged(Opcode::Terminate, QN_TERMINATE, 1);
        let mut fpdu = Fpdu::begin(batch, self.settled.crc, &header, n);
        fpdu.bytes(&bytes[..n]);
        fpdu.end();
    }
}

pub(super) fn untagged(opcode: Opcode, qn: u32, msn: u32) -> Header {
    let place = DdpBuffer::Untagged { ulp: 0, qn, msn, mo: 0 };
    Header { last: true, control: opcode.control(), place }
}

/// Adds `n` payload bytes of a WR from offset `at`: from its inline bytes, its segments and its
/// file, in this order. Then ends the FPDU.
fn payload(mut fpdu: Fpdu<'_>, serial: u64, entry: &super::txq::SendEntry, at: u64, n: usize) {
    let (mut at, mut left) = (at, n as u64);
    let narrow = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let head = entry.wr.head.as_slice();
    if at < head.len() as u64 {
        let from = narrow(at);
        let take = narrow(left).min(head.len() - from);
        fpdu.bytes(&head[from..from + take]);
        at += take as u64;
        left -= take as u64;
    }
    at = at.saturating_sub(head.len() as u64);
    let sgl = &entry.wr.sgl;
    if left > 0 && at < sgl.len() as u64 {
        let from = narrow(at);
        let take = narrow(left).min(sgl.len() - from);
        if fpdu.crc_on {
            fpdu.crc = sgl.crc32c(fpdu.crc, from, take);
        }
        fpdu.batch.push_sgl(sgl, from, take);
        at += take as u64;
        left -= take as u64;
    }
    if left > 0
        && let Some(file) = &entry.wr.file
    {
        let offset = file.offset.saturating_add(at - sgl.len() as u64);
        match entry.file_over() {
            false => fpdu.batch.push_file(serial, &file.file, offset, narrow(left)),
            true => fpdu.batch.push_zeros(narrow(left)),
        }
    }
    fpdu.end();
}
