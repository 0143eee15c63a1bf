//! Receiving: the framing of FPDUs, and payload on its way to its place.
//!
//! An FPDU passes four phases: header, (a wait for a receive buffer), payload, trailer. `check`
//! checks the whole header before a byte of payload is placed. The payload goes straight from the
//! socket to its place as far as the driver asked `rx_direct` in time; the engine copies the rest
//! from the lookahead. `deliver` delivers the message after the trailer was checked. Between
//! FPDUs the engine holds nothing but the bytes of a header that came in two parts.

use super::IwarpEngine;
use super::read_size::ReadSize;
use super::spill::Spill;
use super::state::{SendHalf, SendTrigger};
use super::types::{RxBuf, RxResult, RxSource};
use crate::mem::{Key, KeyTable, Segment};
use crate::wire::ddp::{self, Header};
use crate::wire::mpa;
use crate::wire::rdmap::{Offender, Opcode, ReadRequest, TERMINATE_MAX};

/// Bytes of the length field and the longest DDP header.
const HEAD_MAX: usize = mpa::LENGTH_LEN + ddp::UNTAGGED_LEN;
/// Bytes of the length field and DDP's first octet, which determines the header's length.
const HEAD_KIND: usize = mpa::LENGTH_LEN + 1;

/// Returns the offset at which the trailer of an FPDU begins.
pub(super) const fn head_end(ulpdu: usize) -> usize {
    mpa::LENGTH_LEN + ulpdu
}

/// The part of an FPDU that the engine waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RxPhase {
    /// Start-up has not ended.
    Startup,
    /// Length field and DDP header.
    Head,
    /// A buffer of the SRQ for the SEND whose header is here.
    Buffer,
    /// Payload.
    Payload,
    /// Pad and CRC.
    Trailer,
    /// Nothing: the engine throws away what comes.
    Discard,
}

/// The place for the payload of the current FPDU.
#[derive(Clone, Debug)]
pub(super) enum PayloadTarget {
    /// The FPDU has no payload.
    Nothing,
    /// A WRITE through this key, into the part of its memory that was checked.
    Memory(Key, Segment),
    /// The sink of the READ at the front of the send queue.
    Sink,
    /// The receive buffer that the current SEND fills.
    Receive,
    /// The engine's own small buffer, for a READ request, a TERMINATE, or a message of atomics.
    Control,
}

/// A receive buffer that a SEND is filling.
#[derive(Debug)]
pub(super) struct OpenRecv {
    pub(super) buf: RxBuf,
    /// Bytes of the message in the FPDUs before this one.
    pub(super) got: usize,
}

/// The receiving side of a connection.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) phase: RxPhase,
    /// Bytes of the header, and how many have arrived.
    head: [u8; HEAD_MAX],
    have: usize,
    /// The complete header with its opcode and its ULPDU length. None before it is complete.
    pub(super) current: Option<(Header, Opcode, u16)>,
    /// Set with each accepted header.
    pub(super) target: PayloadTarget,
    /// Payload bytes of this FPDU, and how many of them are placed.
    pub(super) len: usize,
    done: usize,
    /// CRC32C of the FPDU so far. Not used without CRC.
    crc: u32,
    /// Payload of a message for which there is [`PayloadTarget::Control`].
    control: [u8; TERMINATE_MAX],
    trailer: [u8; 7],
    /// Number of trailer bytes that have arrived.
    tail: usize,
    /// The receive that the current message fills. None between messages.
    pub(super) receive: Option<OpenRecv>,
    /// The current message, if it gave its receive back. Then `receive` is None.
    pub(super) spilled: Option<Spill>,
    read_size: ReadSize,
    /// The MSNs awaited on the queues of SENDs, of READ requests and atomic requests, and of atomic
    /// responses.
    pub(super) send_msn: u32,
    pub(super) read_msn: u32,
    pub(super) atomic_msn: u32,
}

impl Default for Receiving {
    fn default() -> Receiving {
        Receiving {
            phase: RxPhase::Startup,
            head: [0; HEAD_MAX],
            have: 0,
            current: None,
            target: PayloadTarget::Nothing,
            len: 0,
            done: 0,
            crc: 0,
            control: [0; TERMINATE_MAX],
            trailer: [0; 7],
            tail: 0,
            receive: None,
            spilled: None,
            read_size: ReadSize::default(),
            send_msn: 1,
            read_msn: 1,
            atomic_msn: 1,
        }
    }
}

impl Receiving {
    /// Ends start-up: FPDUs may come.
    pub(super) fn begin(&mut self) {
        self.phase = RxPhase::Head;
        self.have = 0;
        self.current = None;
        self.target = PayloadTarget::Nothing;
    }

    /// Stops receiving: what comes is thrown away.
    pub(super) fn discard(&mut self) {
        self.begin();
        self.spilled = None;
        self.phase = RxPhase::Discard;
    }

    /// Returns true if no FPDU and no message has arrived in part.
    pub(super) fn at_boundary(&self) -> bool {
        let message = self.receive.is_some() || self.spilled.is_some();
        self.phase == RxPhase::Head && self.have == 0 && !message
    }

    /// Returns how many payload bytes of the current FPDU are placed.
    pub(super) fn done(&self) -> usize {
        self.done
    }

    /// Returns the length of the incoming header as far as it is known.
    fn head_len(&self) -> usize {
        if self.have < HEAD_KIND {
            HEAD_KIND
        } else {
            mpa::LENGTH_LEN + ddp::header_len(self.head[mpa::LENGTH_LEN])
        }
    }

    /// Returns the ULPDU length of the current FPDU.
    pub(super) fn ulpdu(&self) -> u16 {
        u16::from_be_bytes([self.head[0], self.head[1]])
    }

    /// Returns the bytes of the DDP header.
    pub(super) fn ddp_bytes(&self) -> &[u8] {
        &self.head[mpa::LENGTH_LEN..self.have]
    }

    /// Returns the control payload that has arrived.
    pub(super) fn control_bytes(&self) -> &[u8] {
        &self.control[..self.done.min(TERMINATE_MAX)]
    }

    fn trailer_len(&self) -> usize {
        mpa::trailer_len(usize::from(self.ulpdu()))
    }

    /// Describes the current FPDU for a TERMINATE.
    pub(super) fn offender(&self) -> Option<Offender> {
        let (header, opcode, len) = self.current?;
        let read = match opcode {
            Opcode::ReadRequest => ReadRequest::parse(self.control_bytes()).ok(),
            _ => None,
        };
        Some(Offender { len, header, read })
    }
}

impl IwarpEngine {
    /// Tells where the rest of the current payload belongs: calls `visit` with (segment, offset
    /// in it, bytes), in order. Calls nothing while a header is awaited.
    pub fn rx_direct(&self, visit: &mut dyn FnMut(&Segment, usize, usize)) {
        if self.rx.phase != RxPhase::Payload {
            return;
        }
        let (done, left) = (self.rx.done, self.rx.len - self.rx.done);
        match &self.rx.target {
            PayloadTarget::Nothing | PayloadTarget::Control => {}
            PayloadTarget::Memory(_, seg) => visit(seg, done, left),
            PayloadTarget::Sink => {
                if let Some(read) = self.sq.awaited_sink() {
                    read.wr.sgl.for_range(read.got as usize + done, left, visit);
                }
            }
            PayloadTarget::Receive => {
                if let Some(receive) = &self.rx.receive {
                    receive.buf.sgl.for_range(receive.got + done, left, visit);
                }
            }
        }
    }

    /// Returns how many bytes of lookahead to read behind the current payload: the trailer, the
    /// next header, and what the read-size predictor expects before the next long payload, of
    /// which nothing should be copied. Returns `usize::MAX` if no payload is awaited.
    pub fn rx_hint(&self) -> usize {
        match (self.rx.phase, &self.rx.target) {
            (
                RxPhase::Payload,
                PayloadTarget::Memory(..) | PayloadTarget::Sink | PayloadTarget::Receive,
            ) => self.rx.read_size.behind(self.rx.trailer_len() + self.rx.have),
            _ => usize::MAX,
        }
    }

    /// Takes bytes that came: `direct` of them where `rx_direct` said, then `lookahead`. The
    /// engine uses all of them, unless a SEND finds the SRQ empty.
    pub fn handle_received(
        &mut self,
        direct: usize,
        lookahead: &[u8],
        keys: &mut KeyTable,
        mut srq: Option<&mut dyn RxSource>,
    ) -> RxResult {
        if self.rx.spilled.is_some() && !lookahead.is_empty() && !self.unspill(&mut srq) {
            return RxResult { consumed: 0, stalled: true };
        }
        self.take_received(direct, lookahead, keys, srq)
    }

    /// The common path. It stays out of `handle_received` because the compiler optimises it
    /// better alone.
    fn take_received(
        &mut self,
        direct: usize,
        lookahead: &[u8],
        keys: &mut KeyTable,
        mut srq: Option<&mut dyn RxSource>,
    ) -> RxResult {
        self.placed_direct(direct);
        let mut rest = lookahead;
        let mut stalled = false;
        loop {
            let before = rest.len();
            match self.rx.phase {
                RxPhase::Startup => {
                    let used = self.startup_received(rest);
                    rest = &rest[used..];
                }
                RxPhase::Head => {
                    self.take_head(&mut rest);
                    if self.rx.have >= HEAD_KIND && self.rx.have == self.rx.head_len() {
                        self.check(keys, &mut srq);
                    }
                }
                RxPhase::Buffer => {
                    if !self.take_buffer(&mut srq) {
                        stalled = true;
                        break;
                    }
                }
                RxPhase::Payload => self.take_payload(&mut rest),
                RxPhase::Trailer => {
                    self.take_trailer(&mut rest);
                    if self.rx.tail == self.rx.trailer_len() {
                        self.end_fpdu(keys);
                    }
                }
                RxPhase::Discard => rest = &[],
            }
            // A phase that got no bytes and used none waits for more.
            if rest.is_empty() && before == 0 && self.rx.phase != RxPhase::Buffer {
                break;
            }
        }
        RxResult { consumed: lookahead.len() - rest.len(), stalled }
    }

    /// Accounts for payload that the kernel placed.
    fn placed_direct(&mut self, direct: usize) {
        if direct == 0 || self.rx.phase != RxPhase::Payload {
            return;
        }
        debug_assert!(direct <= self.rx.len - self.rx.done, "more than `rx_direct` named");
        let direct = direct.min(self.rx.len - self.rx.done);
        if self.settled.crc {
            let mut left = direct;
            let mut crc = self.rx.crc;
            self.rx_direct(&mut |seg, off, len| {
                let n = len.min(left);
                crc = seg.crc32c(crc, off, n);
                left -= n;
            });
            self.rx.crc = crc;
        }
        self.placed(direct);
    }

    fn placed(&mut self, bytes: usize) {
        self.rx.done += bytes;
        if self.rx.done == self.rx.len {
            self.rx.phase = RxPhase::Trailer;
            self.rx.tail = 0;
        }
    }

    fn take_head(&mut self, rest: &mut &[u8]) {
        loop {
            let need = self.rx.head_len();
            let n = (need - self.rx.have).min(rest.len());
            let (bytes, after) = rest.split_at(n);
            self.rx.head[self.rx.have..self.rx.have + n].copy_from_slice(bytes);
            self.rx.have += n;
            *rest = after;
            if n == 0 || rest.is_empty() {
                return;
            }
        }
    }

    /// The header is accepted: starts to place `len` bytes of payload in `target`.
    pub(super) fn begin_payload(&mut self, target: PayloadTarget, len: usize) {
        self.rx.read_size.begin(self.rx.have, len, self.rx.trailer_len());
        self.rx.target = target;
        (self.rx.len, self.rx.done) = (len, 0);
        self.rx.phase = RxPhase::Payload;
        if self.settled.crc {
            self.rx.crc = crc32c::crc32c(&self.rx.head[..self.rx.have]);
        }
        self.placed(0);
    }

    fn take_payload(&mut self, rest: &mut &[u8]) {
        let n = (self.rx.len - self.rx.done).min(rest.len());
        let (bytes, after) = rest.split_at(n);
        *rest = after;
        if self.settled.crc {
            self.rx.crc = crc32c::crc32c_append(self.rx.crc, bytes);
        }
        let done = self.rx.done;
        match &self.rx.target {
            PayloadTarget::Nothing => {}
            PayloadTarget::Memory(_, seg) => seg.write_at(done, bytes),
            PayloadTarget::Sink => {
                if let Some(read) = self.sq.awaited_sink() {
                    read.wr.sgl.write_at(read.got as usize + done, bytes);
                }
            }
            PayloadTarget::Receive => {
                if let Some(receive) = &self.rx.receive {
                    receive.buf.sgl.write_at(receive.got + done, bytes);
                }
            }
            // The first bytes of an overlong TERMINATE are enough.
            PayloadTarget::Control => {
                let room = self.rx.control.get_mut(done..).unwrap_or(&mut []);
                let n = bytes.len().min(room.len());
                room[..n].copy_from_slice(&bytes[..n]);
            }
        }
        self.placed(n);
    }

    fn take_trailer(&mut self, rest: &mut &[u8]) {
        let n = (self.rx.trailer_len() - self.rx.tail).min(rest.len());
        let (bytes, after) = rest.split_at(n);
        self.rx.trailer[self.rx.tail..self.rx.tail + n].copy_from_slice(bytes);
        self.rx.tail += n;
        *rest = after;
    }

    /// The FPDU is whole: checks its CRC, delivers it, and awaits the next.
    fn end_fpdu(&mut self, keys: &mut KeyTable) {
        if self.settled.crc {
            let pad = mpa::pad(usize::from(self.rx.ulpdu()));
            let crc = crc32c::crc32c_append(self.rx.crc, &self.rx.trailer[..pad]);
            if self.rx.trailer[pad..pad + mpa::CRC_LEN] != mpa::emit_crc(crc) {
                // The damage may be in the header, so the TERMINATE does not quote it.
                return self.fault(super::term::BAD_CRC, None);
            }
        }
        // The initiator's first FPDU lets the responder send (RFC 5044 section 7.1.2).
        if self.tx.half == SendHalf::Held {
            self.tx.go(SendTrigger::Received);
        }
        self.deliver(keys);
        if self.rx.phase == RxPhase::Trailer {
            self.rx.begin();
        }
    }
}
