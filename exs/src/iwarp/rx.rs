//! Receiving: the framing of FPDUs, and payload on its way to its place.
//!
//! An FPDU passes four phases: header, (a wait for a receive buffer), payload,
//! trailer. The header is checked whole before a byte of payload is placed
//! (`check`); the payload goes straight from the socket to its place as far as
//! the driver asked `rx_direct` in time, and is copied from the lookahead
//! otherwise; the message is delivered (`deliver`) after the trailer was
//! checked. Between FPDUs nothing is held but the bytes of a header that came in
//! two parts.

use super::Engine;
use super::read_size::ReadSize;
use super::spill::Spill;
use super::types::{RxBuf, RxResult, RxSource};
use crate::mem::{Key, KeyTable, Segment};
use crate::wire::ddp::{self, Header};
use crate::wire::mpa;
use crate::wire::rdmap::{Offender, Opcode, ReadRequest, TERMINATE_MAX};

/// Length field and the longest DDP header.
const HEAD_MAX: usize = mpa::LENGTH_LEN + ddp::UNTAGGED_LEN;
/// Bytes of the length field and DDP's first octet, which tells the header's
/// length.
const HEAD_KIND: usize = mpa::LENGTH_LEN + 1;

/// Where the trailer of an FPDU begins.
pub(super) const fn head_end(ulpdu: usize) -> usize {
    mpa::LENGTH_LEN + ulpdu
}

/// What is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
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
    /// Nothing: what comes is thrown away.
    Discard,
}

/// Where the payload of the FPDU under way goes.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// There is none.
    Nothing,
    /// A WRITE, by this key, into the part of its memory that was checked.
    Memory(Key, Segment),
    /// The sink of the READ that is the front of the send queue.
    Sink,
    /// The receive buffer under way.
    Receive,
    /// Our own small buffer: READ request or TERMINATE.
    Control,
}

/// A receive buffer that a SEND is filling.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) buf: RxBuf,
    /// Bytes of the FPDUs before this one.
    pub(super) got: usize,
}

/// The receiving side of a connection.
#[derive(Debug)]
pub(super) struct Rx {
    pub(super) phase: Phase,
    head: [u8; HEAD_MAX],
    have: usize,
    /// The header once complete, with its opcode and its ULPDU length.
    pub(super) current: Option<(Header, Opcode, u16)>,
    pub(super) target: Target,
    /// Payload bytes of this FPDU, and how many are placed.
    pub(super) len: usize,
    done: usize,
    crc: u32,
    control: [u8; TERMINATE_MAX],
    trailer: [u8; 7],
    /// Bytes of the trailer that are here.
    tail: usize,
    pub(super) receive: Option<Receive>,
    /// The message that would be in `receive`, had it not given that back.
    pub(super) aside: Option<Spill>,
    gap: ReadSize,
    /// MSNs awaited on the queues of SENDs and READ requests.
    pub(super) send_msn: u32,
    pub(super) read_msn: u32,
}

impl Default for Rx {
    fn default() -> Rx {
        Rx {
            phase: Phase::Startup,
            head: [0; HEAD_MAX],
            have: 0,
            current: None,
            target: Target::Nothing,
            len: 0,
            done: 0,
            crc: 0,
            control: [0; TERMINATE_MAX],
            trailer: [0; 7],
            tail: 0,
            receive: None,
            aside: None,
            gap: ReadSize::default(),
            send_msn: 1,
            read_msn: 1,
        }
    }
}

impl Rx {
    /// Start-up is over: FPDUs may come.
    pub(super) fn begin(&mut self) {
        self.phase = Phase::Head;
        self.have = 0;
        self.current = None;
        self.target = Target::Nothing;
    }

    /// Nothing more is received.
    pub(super) fn discard(&mut self) {
        self.begin();
        self.aside = None;
        self.phase = Phase::Discard;
    }

    /// No FPDU and no message is half here.
    pub(super) fn at_boundary(&self) -> bool {
        let message = self.receive.is_some() || self.aside.is_some();
        self.phase == Phase::Head && self.have == 0 && !message
    }

    /// Payload bytes of the FPDU under way that are placed.
    pub(super) fn done(&self) -> usize {
        self.done
    }

    /// Bytes of the header that is coming, as far as known.
    fn head_len(&self) -> usize {
        if self.have < HEAD_KIND {
            HEAD_KIND
        } else {
            mpa::LENGTH_LEN + ddp::header_len(self.head[mpa::LENGTH_LEN])
        }
    }

    /// The ULPDU length.
    pub(super) fn ulpdu(&self) -> u16 {
        u16::from_be_bytes([self.head[0], self.head[1]])
    }

    /// The DDP header's bytes.
    pub(super) fn ddp_bytes(&self) -> &[u8] {
        &self.head[mpa::LENGTH_LEN..self.have]
    }

    /// The control payload that is here.
    pub(super) fn control_bytes(&self) -> &[u8] {
        &self.control[..self.done.min(TERMINATE_MAX)]
    }

    fn trailer_len(&self) -> usize {
        mpa::trailer_len(usize::from(self.ulpdu()))
    }

    /// The FPDU under way as a TERMINATE names it.
    pub(super) fn offender(&self) -> Option<Offender> {
        let (header, opcode, len) = self.current?;
        let read = match opcode {
            Opcode::ReadRequest => ReadRequest::parse(self.control_bytes()).ok(),
            _ => None,
        };
        Some(Offender { len, header, read })
    }
}

impl Engine {
    /// Where the rest of the payload under way goes: calls `visit` with (segment,
    /// offset in it, bytes), in order. Nothing while a header is awaited.
    pub fn rx_direct(&self, visit: &mut dyn FnMut(&Segment, usize, usize)) {
        if self.rx.phase != Phase::Payload {
            return;
        }
        let (done, left) = (self.rx.done, self.rx.len - self.rx.done);
        match &self.rx.target {
            Target::Nothing | Target::Control => {}
            Target::Memory(_, seg) => visit(seg, done, left),
            Target::Sink => {
                if let Some(read) = self.sq.awaited_sink() {
                    read.wr.sgl.for_range(read.got as usize + done, left, visit);
                }
            }
            Target::Receive => {
                if let Some(receive) = &self.rx.receive {
                    receive.buf.sgl.for_range(receive.got + done, left, visit);
                }
            }
        }
    }

    /// How many bytes of lookahead fetch what is behind the payload under way, up to the
    /// next long one, of which nothing should have to be copied: the trailer and the next
    /// header, and what else is likely to lie between (`gap`). `usize::MAX` if no payload is
    /// awaited.
    pub fn rx_hint(&self) -> usize {
        match (self.rx.phase, &self.rx.target) {
            (Phase::Payload, Target::Memory(..) | Target::Sink | Target::Receive) => {
                self.rx.gap.behind(self.rx.trailer_len() + self.rx.have)
            }
            _ => usize::MAX,
        }
    }

    /// Bytes came: `direct` of them where `rx_direct` said, then `lookahead`. All
    /// are used, unless a SEND finds the SRQ empty.
    pub fn handle_received(
        &mut self,
        direct: usize,
        lookahead: &[u8],
        keys: &mut KeyTable,
        mut srq: Option<&mut dyn RxSource>,
    ) -> RxResult {
        if self.rx.aside.is_some() && !lookahead.is_empty() && !self.resume(&mut srq) {
            return RxResult { consumed: 0, stalled: true };
        }
        self.take_in(direct, lookahead, keys, srq)
    }

    /// The usual way, apart: with the other one in it the compiler makes more of it.
    fn take_in(
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
                Phase::Startup => {
                    let used = self.startup_received(rest);
                    rest = &rest[used..];
                }
                Phase::Head => {
                    self.take_head(&mut rest);
                    if self.rx.have >= HEAD_KIND && self.rx.have == self.rx.head_len() {
                        self.check(keys, &mut srq);
                    }
                }
                Phase::Buffer => {
                    if !self.take_buffer(&mut srq) {
                        stalled = true;
                        break;
                    }
                }
                Phase::Payload => self.take_payload(&mut rest),
                Phase::Trailer => {
                    self.take_trailer(&mut rest);
                    if self.rx.tail == self.rx.trailer_len() {
                        self.end_fpdu(keys);
                    }
                }
                Phase::Discard => rest = &[],
            }
            // A phase that used nothing of nothing waits for more.
            if rest.is_empty() && before == 0 && self.rx.phase != Phase::Buffer {
                break;
            }
        }
        RxResult { consumed: lookahead.len() - rest.len(), stalled }
    }

    /// Accounts for payload that the kernel put in place.
    fn placed_direct(&mut self, direct: usize) {
        if direct == 0 || self.rx.phase != Phase::Payload {
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
            self.rx.phase = Phase::Trailer;
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

    /// The header is accepted: payload of `len` bytes goes to `target`.
    pub(super) fn begin_payload(&mut self, target: Target, len: usize) {
        self.rx.gap.begin(self.rx.have, len, self.rx.trailer_len());
        self.rx.target = target;
        (self.rx.len, self.rx.done) = (len, 0);
        self.rx.phase = Phase::Payload;
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
            Target::Nothing => {}
            Target::Memory(_, seg) => seg.write_at(done, bytes),
            Target::Sink => {
                if let Some(read) = self.sq.awaited_sink() {
                    read.wr.sgl.write_at(read.got as usize + done, bytes);
                }
            }
            Target::Receive => {
                if let Some(receive) = &self.rx.receive {
                    receive.buf.sgl.write_at(receive.got + done, bytes);
                }
            }
            // Of an overlong TERMINATE the head is enough.
            Target::Control => {
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

    /// The FPDU is whole: checks its CRC, delivers it, awaits the next.
    fn end_fpdu(&mut self, keys: &mut KeyTable) {
        if self.settled.crc {
            let pad = mpa::pad(usize::from(self.rx.ulpdu()));
            let crc = crc32c::crc32c_append(self.rx.crc, &self.rx.trailer[..pad]);
            if self.rx.trailer[pad..pad + mpa::CRC_LEN] != mpa::emit_crc(crc) {
                // The header may be what is damaged: do not quote it.
                return self.fault(super::term::BAD_CRC, None);
            }
        }
        // The initiator's first FPDU lets the responder send (RFC 5044 7.1.2).
        self.tx.held = false;
        self.deliver(keys);
        if self.rx.phase == Phase::Trailer {
            self.rx.begin();
        }
    }
}
