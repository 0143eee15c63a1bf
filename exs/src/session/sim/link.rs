//! A queue pair at each end of a virtual link: real memory, virtual time.
//!
//! The link promises no more than the contract of `rnic`: frames arrive in order, bytes of a WRITE
//! appear in pieces and at any time before the next SEND does, memory is read when a WR is
//! transmitted and not when it is posted, completions come late. The test fails at once if a
//! connection sends into no receive, uses a key that is not its own, or posts too much.

mod atomic;
mod ends;
mod port;
mod receives;

pub(in crate::session::sim) use port::LinkEnd;
pub(in crate::session::sim) use receives::Receives;

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::mem::{Access, Key, Region, Segment};
use crate::rnic::siw_quirk::cut_at_page;
use crate::rnic::{Caps, DisconnectCause, EagerSend, Mr, Qp, QpState, SendOp, Wc, WcOp, WcStatus};
use crate::session::Buf;
use crate::time::Time;

use super::rng::Rng;

/// A frame on the link.
#[derive(Debug)]
pub(super) enum Frame {
    Write {
        raddr: u64,
        rkey: Key,
        data: Vec<u8>,
        placed: usize,
        imm: Option<u32>,
        wr: u64,
    },
    Send {
        data: Vec<u8>,
        wr: u64,
        invalidate: Option<Key>,
    },
    ReadReq {
        wr: u64,
        raddr: u64,
        rkey: Key,
        len: u64,
    },
    ReadResp {
        wr: u64,
        data: Vec<u8>,
    },
    AtomicReq(atomic::AtomicReq),
    /// An orderly end.
    Fin,
    /// An abrupt one, of this kind for the receiver.
    Reset(WcStatus),
}

/// The `wr` of a message that has no WR.
const NO_WR: u64 = u64::MAX;

/// A WR that was not transmitted yet.
struct Posted {
    /// The number of the WR, or [`NO_WR`].
    wr: u64,
    op: SendOp,
    copied: Vec<u8>,
    parts: Vec<Segment>,
    file: Option<crate::rnic::FileRange>,
}

/// A WR that has not completed.
struct Track {
    wr: u64,
    op: WcOp,
    signaled: bool,
    status: Option<WcStatus>,
    bytes: u64,
    /// The sink of a READ.
    sink: Option<Segment>,
}

#[derive(Clone, Debug)]
pub(super) struct Window {
    segment: Segment,
    access: Access,
}

impl Window {
    /// The window opens some of these bytes.
    pub(super) fn covers(&self, seg: &Segment) -> bool {
        overlap((self.segment.addr(), self.segment.len()), seg)
    }
}

pub(super) fn overlap((addr, len): (u64, usize), seg: &Segment) -> bool {
    addr < seg.addr() + seg.len() as u64 && seg.addr() < addr + len as u64
}

/// One end.
pub(super) struct Side {
    pub(super) caps: Caps,
    pub(super) max_send_wr: usize,
    pub(super) state: QpState,
    fin_sent: bool,
    /// Its session has had the peer's last message.
    answered: bool,
    posted: VecDeque<Posted>,
    /// Memory of WRs that were flushed before they were transmitted.
    pub(super) lost: Vec<(u64, usize)>,
    tracks: VecDeque<Track>,
    pub(super) cq: VecDeque<Wc>,
    mrs: BTreeMap<Key, Segment>,
    pub(super) windows: BTreeMap<Key, Window>,
    /// Windows that the peer has closed.
    closed: Vec<Key>,
    /// Every key that ever was an export.
    exports: Vec<Key>,
    pub(super) binding_export: bool,
    pub(super) slots: Receives,
    pub(super) slot: usize,
    pub(super) allocs: usize,
    reads: u32,
    pub(super) ord: u32,
    /// Frames on their way to this end, with the time of arrival.
    pub(super) inbound: VecDeque<(Time, Frame)>,
    /// When the next WR is transmitted.
    pub(super) transmit_at: Option<Time>,
    /// When completions are polled.
    pub(super) poll_at: Option<Time>,
    /// When the end is reported.
    pub(super) down: Option<(Time, DisconnectCause)>,
}

/// What arrived for the session.
pub(super) enum Arrival {
    Message(Segment),
    Immediate(u32),
    Nothing,
}

pub(super) struct Net {
    pub(super) now: Time,
    pub(super) rng: Rng,
    pub(super) sides: [Side; 2],
    /// Longest delay of a frame, in nanoseconds.
    pub(super) delay: u64,
    next_key: Key,
    /// Frames vanish: the cable is cut.
    pub(super) severed: bool,
    /// One in this many small messages may be eager; 0: none.
    pub(super) passes: u64,
    /// Eager messages wait for the doorbell.
    pub(super) keeps: bool,
    /// Sessions ask the peer to close windows.
    pub(super) closes: bool,
}

impl Net {
    pub(super) fn new(rng: Rng, caps: [Caps; 2], max_send_wr: [usize; 2]) -> Net {
        let [a, b] = caps;
        let sides = [(a, max_send_wr[0]), (b, max_send_wr[1])].map(|(caps, max_send_wr)| Side {
            caps,
            max_send_wr,
            state: QpState::Rts,
            fin_sent: false,
            answered: false,
            posted: VecDeque::new(),
            lost: Vec::new(),
            tracks: VecDeque::new(),
            cq: VecDeque::new(),
            mrs: BTreeMap::new(),
            windows: BTreeMap::new(),
            closed: Vec::new(),
            exports: Vec::new(),
            binding_export: false,
            slots: Receives::default(),
            slot: 0,
            allocs: 0,
            reads: 0,
            ord: 0,
            inbound: VecDeque::new(),
            transmit_at: None,
            poll_at: None,
            down: None,
        });
        Net {
            now: Time::ZERO,
            rng,
            sides,
            delay: 10_000,
            next_key: 1,
            severed: false,
            passes: 0,
            keeps: false,
            closes: false,
        }
    }

    pub(super) fn soon(&mut self, most: u64) -> Time {
        self.now + Duration::from_nanos(self.rng.below(most + 1))
    }

    fn key(&mut self) -> Key {
        self.next_key += 1;
        self.next_key
    }

    /// Registers memory, and gives it to the caller.
    pub(super) fn register(&mut self, side: usize, seg: Segment) -> Buf {
        let key = self.key();
        self.sides[side].mrs.insert(key, seg.clone());
        Buf { seg, mr: Mr { key } }
    }

    pub(super) fn deregister(&mut self, side: usize, buf: &Buf) {
        assert!(self.sides[side].mrs.remove(&buf.mr.key).is_some(), "not registered");
    }

    /// The doorbell.
    pub(super) fn flush(&mut self, side: usize, urgent: bool) {
        let at = self.soon(if urgent { 1_000 } else { 500_000 });
        let s = &mut self.sides[side];
        s.transmit_at = Some(s.transmit_at.map_or(at, |t| t.min(at)));
    }

    fn send(&mut self, from: usize, frame: Frame) {
        if self.severed || self.sides[1 - from].state == QpState::Error {
            return;
        }
        let at = self.soon(self.delay);
        let inbound = &mut self.sides[1 - from].inbound;
        let at = inbound.back().map_or(at, |(last, _)| at.max(*last));
        inbound.push_back((at, frame));
    }

    /// A message that has no WR, and leaves at once, or with the doorbell.
    fn pass(&mut self, from: usize, data: Vec<u8>) -> EagerSend {
        if !self.keeps {
            self.send(from, Frame::Send { data, wr: NO_WR, invalidate: None });
            return EagerSend::Sent;
        }
        let op = SendOp::Send { invalidate: None, solicited: false };
        let posted = Posted { wr: NO_WR, op, copied: data, parts: Vec::new(), file: None };
        self.sides[from].posted.push_back(posted);
        EagerSend::Batched
    }

    /// Transmits the next WR.
    pub(super) fn transmit(&mut self, side: usize) {
        let Some(posted) = self.sides[side].posted.pop_front() else {
            self.sides[side].transmit_at = None;
            if self.sides[side].state == QpState::Closing {
                self.end_orderly(side);
            }
            return;
        };
        self.sides[side].transmit_at = Some(self.soon(self.delay / 2));
        let mut data = posted.copied;
        for part in &posted.parts {
            let mut bytes = vec![0; part.len()];
            part.read_at(0, &mut bytes);
            data.extend(bytes);
        }
        let mut had = data.len() as u64;
        if let Some(file) = &posted.file {
            let mut bytes = vec![0; usize::try_from(file.len).unwrap()];
            had += file.file.read_at(&mut bytes, file.offset).unwrap() as u64;
            data.extend(bytes);
        }
        let wr = posted.wr;
        let frame = match posted.op {
            SendOp::Send { invalidate, .. } => Frame::Send { data, wr, invalidate },
            SendOp::Write { raddr, rkey } => {
                Frame::Write { raddr, rkey, data, placed: 0, imm: None, wr }
            }
            SendOp::WriteImm { raddr, rkey, imm } => {
                Frame::Write { raddr, rkey, data, placed: 0, imm: Some(imm), wr }
            }
            SendOp::Read { raddr, rkey } => Frame::ReadReq { wr, raddr, rkey, len: 0 },
            SendOp::Atomic { raddr, rkey, op } => {
                return self.ask(side, atomic::AtomicReq { wr, raddr, rkey, op });
            }
        };
        if let Frame::ReadReq { raddr, rkey, .. } = frame {
            let len = self.track(side, wr).map_or(0, |t| t.sink.as_ref().map_or(0, Segment::len));
            return self.send(side, Frame::ReadReq { wr, raddr, rkey, len: len as u64 });
        }
        self.send(side, frame);
        if let Some(track) = self.track(side, wr) {
            track.bytes = had;
        }
        if !self.sides[side].caps.write_acked {
            self.complete(side, wr, WcStatus::Success);
        }
    }

    fn track(&mut self, side: usize, wr: u64) -> Option<&mut Track> {
        self.sides[side].tracks.iter_mut().find(|t| t.wr == wr)
    }

    /// A WR has completed; completions come out in order.
    fn complete(&mut self, side: usize, wr: u64, status: WcStatus) {
        if let Some(track) = self.track(side, wr) {
            track.status = Some(status);
        }
        while let Some(status) = self.sides[side].tracks.front().and_then(|t| t.status)
            && let Some(track) = self.sides[side].tracks.pop_front()
        {
            if matches!(track.op, WcOp::Read | WcOp::Atomic) {
                self.sides[side].reads -= 1;
            }
            if track.signaled || status != WcStatus::Success {
                self.sides[side].cq.push_back(Wc {
                    wr_id: track.wr,
                    qp: Qp(u32::try_from(side).unwrap()),
                    status,
                    op: track.op,
                    byte_len: track.bytes,
                    imm: None,
                    invalidated: None,
                    solicited: false,
                });
                let at = self.soon(self.delay / 2);
                let poll_at = &mut self.sides[side].poll_at;
                *poll_at = Some(poll_at.map_or(at, |t| t.min(at)));
            }
        }
    }

    /// The next frame arrives, or a part of it.
    pub(super) fn arrive(&mut self, side: usize) -> Arrival {
        let Some((at, frame)) = self.sides[side].inbound.pop_front() else {
            return Arrival::Nothing;
        };
        let from = 1 - side;
        match frame {
            Frame::Write { raddr, rkey, data, placed, imm, wr } => {
                self.place(at, side, Frame::Write { raddr, rkey, data, placed, imm, wr })
            }
            Frame::Send { data, wr, invalidate } => {
                if let Some(key) = invalidate {
                    let s = &mut self.sides[side];
                    assert!(s.windows.remove(&key).is_some(), "side {side}: key {key} is not open");
                    s.closed.push(key);
                }
                self.use_slot(side, data.len());
                if self.sides[from].caps.write_acked {
                    self.complete(from, wr, WcStatus::Success);
                }
                let len = data.len();
                Arrival::Message(Region::from_vec(data).segment(0, len).unwrap())
            }
            Frame::ReadReq { wr, raddr, rkey, len } => {
                let need = Access::REMOTE_READ;
                let answered = len > 0 && cut_at_page(raddr, len).is_none();
                assert!(
                    answered || self.sides[side].caps.small_reads,
                    "side {side}: a READ of {len} bytes from {raddr:#x}"
                );
                match self.reach(side, rkey, raddr, len, need) {
                    Some(seg) => {
                        let mut data = vec![0; seg.len()];
                        seg.read_at(0, &mut data);
                        self.send(side, Frame::ReadResp { wr, data });
                    }
                    None if len == 0 => self.send(side, Frame::ReadResp { wr, data: Vec::new() }),
                    None => self.refuse(side),
                }
                Arrival::Nothing
            }
            Frame::ReadResp { wr, data } => {
                self.answered(side, wr, &data);
                Arrival::Nothing
            }
            Frame::AtomicReq(req) => {
                self.execute(side, &req);
                Arrival::Nothing
            }
            Frame::Fin => {
                self.end_orderly(side);
                self.break_qp(side, WcStatus::Flushed, DisconnectCause::Orderly);
                Arrival::Nothing
            }
            Frame::Reset(status) => {
                self.break_qp(side, status, DisconnectCause::Broken(libc::ECONNRESET));
                Arrival::Nothing
            }
        }
    }

    /// Places some bytes of a WRITE, or the last.
    fn place(&mut self, at: Time, side: usize, frame: Frame) -> Arrival {
        let Frame::Write { raddr, rkey, data, mut placed, imm, wr } = frame else {
            return Arrival::Nothing;
        };
        let n = match self.rng.one_in(2) {
            true => data.len() - placed,
            false => self.rng.size(0, data.len() - placed),
        };
        if n > 0 {
            let (start, len) = (raddr + placed as u64, n as u64);
            let Some(seg) = self.reach(side, rkey, start, len, Access::REMOTE_WRITE) else {
                self.refuse(side);
                return Arrival::Nothing;
            };
            seg.write_at(0, &data[placed..placed + n]);
            placed += n;
        }
        if placed < data.len() {
            let next = self.soon(self.delay / 4).max(at);
            // The frames behind it arrive later still.
            for (t, _) in &mut self.sides[side].inbound {
                *t = (*t).max(next);
            }
            let rest = Frame::Write { raddr, rkey, data, placed, imm, wr };
            self.sides[side].inbound.push_front((next, rest));
            return Arrival::Nothing;
        }
        if self.sides[1 - side].caps.write_acked {
            self.complete(1 - side, wr, WcStatus::Success);
        }
        match imm {
            Some(imm) => {
                self.use_slot(side, 0);
                Arrival::Immediate(imm)
            }
            None => Arrival::Nothing,
        }
    }

    fn use_slot(&mut self, side: usize, len: usize) {
        let s = &mut self.sides[side];
        assert!(s.slots.take(), "side {side}: a message meets no receive");
        assert!(len <= s.slot, "side {side}: {len} bytes do not fit a slot of {}", s.slot);
    }

    /// The memory that a peer's access touches; none if the access is not allowed.
    fn reach(&self, side: usize, rkey: Key, addr: u64, len: u64, need: Access) -> Option<Segment> {
        let s = &self.sides[side];
        if len == 0 {
            return None;
        }
        let inside = s.windows.get(&rkey).filter(|w| w.access.allows(need)).and_then(|w| {
            let offset = usize::try_from(addr.checked_sub(w.segment.addr())?).ok()?;
            w.segment.slice(offset, usize::try_from(len).ok()?).ok()
        });
        if inside.is_none() {
            // Only an export can be used wrongly, since the user can close it at any time.
            let gone = s.state != QpState::Rts;
            assert!(
                gone || s.exports.contains(&rkey),
                "side {side}: the peer uses key {rkey} ({len} bytes at {addr:#x}), which is \
                 not open: {:?}",
                s.windows.get(&rkey)
            );
        }
        inside
    }

    /// An access is refused: the connection dies, at both ends.
    fn refuse(&mut self, side: usize) {
        self.send(side, Frame::Reset(WcStatus::RemoteAccess));
        self.break_qp(side, WcStatus::Flushed, DisconnectCause::Broken(libc::ECONNRESET));
    }
}
