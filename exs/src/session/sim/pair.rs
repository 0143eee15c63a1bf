//! Two sessions on the virtual link, moved by hand.

use std::collections::VecDeque;
use std::time::Duration;

use crate::rnic::{Caps, DisconnectCause, WcStatus};
use crate::session::{
    Buf, Done, Doorbell, OpError, Port, RecvOpts, SendSource, Session, SessionConfig,
};
use crate::time::Time;

use super::link::{Arrival, LinkEnd, Net, Receives};
use super::rng::Rng;
use super::user::iovec;
use crate::mem::{Access, AtomicOp, Atomics, Key, Region};
use crate::wire::exs::{MAX_HEADER, Message, Piggyback};

/// Memory of a receive.
pub(in crate::session) struct Memory(Vec<Buf>);

impl Memory {
    pub(in crate::session) fn read(&self, len: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for buf in &self.0 {
            let mut bytes = vec![0; buf.seg.len()];
            buf.seg.read_at(0, &mut bytes);
            all.extend(bytes);
        }
        all.truncate(len);
        all
    }
}

pub(in crate::session) struct Pair {
    net: Net,
    sessions: [Session; 2],
    reply: Vec<u8>,
    done: [VecDeque<Done>; 2],
    frames: [u64; 2],
    fill: u8,
}

impl Pair {
    /// Two connected sessions.
    pub(in crate::session) fn new(cfg: SessionConfig, write_imm: bool) -> Pair {
        let mut pair = Pair::unmet(cfg);
        for side in &mut pair.net.sides {
            side.caps.write_imm = write_imm;
        }
        pair.established(1);
        pair.established(0);
        pair
    }

    /// Two sessions that know each other's hellos, but are not connected.
    pub(in crate::session) fn unmet(cfg: SessionConfig) -> Pair {
        Pair::of([cfg.clone(), cfg])
    }

    /// The same, with a configuration for each.
    pub(in crate::session) fn of([cfg, other]: [SessionConfig; 2]) -> Pair {
        let caps = Caps {
            name: "pair".into(),
            write_imm: true,
            initiator_first: true,
            read_sink_remote_write: false,
            write_acked: false,
            small_reads: true,
            file_source: true,
            atomics: Atomics::Device,
            max_sge: 6,
            max_inline: 256,
            max_msg: 1 << 30,
            max_ord: 4,
            max_ird: 4,
            max_private_data: 56,
            ..Caps::default()
        };
        let wrs = [cfg.max_send_wr; 2];
        let mut net = Net::new(Rng::new(1), [caps.clone(), caps], wrs);
        for (side, cfg) in net.sides.iter_mut().zip([&cfg, &other]) {
            side.slots = Receives::new(cfg.credits, cfg.most_credits);
            (side.slot, side.ord) = (cfg.slot as usize, 2);
            side.caps.small_reads = !cfg.confirm;
        }
        let a = Session::initiator(cfg);
        let (b, reply) = Session::responder(other, &a.hello()).unwrap();
        let done = [VecDeque::new(), VecDeque::new()];
        Pair { net, sessions: [a, b], reply, done, frames: [0; 2], fill: 0 }
    }

    pub(in crate::session) fn established(&mut self, side: usize) {
        let (now, reply) = (self.net.now, self.reply.clone());
        let private: &[u8] = if side == 0 { &reply } else { &[] };
        self.with(side, |s, _| s.handle_established(now, private, 2, false)).unwrap();
        self.settle(side);
    }

    pub(in crate::session) fn now(&self) -> Time {
        self.net.now
    }

    pub(in crate::session) fn session(&self, side: usize) -> &Session {
        &self.sessions[side]
    }

    pub(in crate::session) fn with<R>(
        &mut self,
        side: usize,
        f: impl FnOnce(&mut Session, &mut dyn Port) -> R,
    ) -> R {
        f(&mut self.sessions[side], &mut LinkEnd { net: &mut self.net, side })
    }

    /// Frames vanish from now on.
    pub(in crate::session) fn sever(&mut self) {
        self.net.severed = true;
    }

    /// The queue pair of this end fails, and the port reports that a little later.
    pub(in crate::session) fn fail_queue_pair(&mut self, side: usize) {
        let cause = DisconnectCause::Broken(libc::ETIMEDOUT);
        self.net.break_qp(side, WcStatus::Flushed, cause);
    }

    /// Receives of this end, and the extra ones among them.
    pub(in crate::session) fn receives(&self, side: usize) -> (usize, usize) {
        let slots = &self.net.sides[side].slots;
        (slots.len(), slots.extra())
    }

    /// Frames that came to this end.
    pub(in crate::session) fn frames(&self, side: usize) -> u64 {
        self.frames[side]
    }

    pub(in crate::session) fn done(&mut self, side: usize) -> Option<Done> {
        self.done[side].pop_front()
    }

    fn memory(&mut self, side: usize, sizes: &[usize], fill: u8) -> Vec<Buf> {
        let piece = |len: &usize| {
            let seg = Region::from_vec(vec![fill; *len]).segment(0, *len).unwrap();
            self.net.register(side, seg)
        };
        sizes.iter().map(piece).collect()
    }

    /// Sends some bytes, which it gives back to compare with.
    pub(in crate::session) fn send(&mut self, side: usize, op: u64, len: usize) -> Vec<u8> {
        self.try_send(side, op, len).unwrap();
        vec![self.fill; len]
    }

    pub(in crate::session) fn try_send(
        &mut self,
        side: usize,
        op: u64,
        len: usize,
    ) -> Result<(), OpError> {
        self.fill = self.fill.wrapping_add(1);
        let (bufs, now) = (self.memory(side, &[len], self.fill), self.net.now);
        let source = SendSource::Memory(iovec(&bufs));
        self.with(side, |s, _| s.post_send(now, op, source)).map_err(|(error, _)| error)
    }

    pub(in crate::session) fn recv(
        &mut self,
        side: usize,
        op: u64,
        len: usize,
        opts: RecvOpts,
    ) -> Memory {
        self.recv_pieces(side, op, &[len], opts)
    }

    pub(in crate::session) fn recv_pieces(
        &mut self,
        side: usize,
        op: u64,
        sizes: &[usize],
        opts: RecvOpts,
    ) -> Memory {
        let (bufs, now) = (self.memory(side, sizes, 0), self.net.now);
        let iov = iovec(&bufs);
        let posted = self.with(side, |s, _| s.post_recv(now, op, iov, opts));
        let _ = posted.map_err(|(error, _)| error).unwrap();
        Memory(bufs)
    }

    /// Opens memory for the peer's WRITEs and READs.
    pub(in crate::session) fn export(&mut self, side: usize, len: usize) -> (Buf, Key) {
        let buf = self.memory(side, &[len], 0).remove(0);
        self.net.sides[side].binding_export = true;
        let atomic = self.sessions[side].cfg.atomics > Atomics::None;
        let access = Access { remote_atomic: atomic, ..Access::ALL };
        let key = self.with(side, |s, end| s.export(end, &buf, access)).unwrap();
        self.net.sides[side].binding_export = false;
        (buf, key)
    }

    /// Writes to an export at an offset, and waits until the bytes have arrived.
    pub(in crate::session) fn write(&mut self, op: u64, to: &(Buf, Key), at: u64, len: usize) {
        self.fill = self.fill.wrapping_add(1);
        let (bufs, now) = (self.memory(0, &[len], self.fill), self.net.now);
        let (raddr, iov) = (to.0.seg.addr() + at, iovec(&bufs));
        self.with(0, |s, _| s.post_write(now, op, raddr, to.1, iov, true)).unwrap();
    }

    /// Reads from an export.
    pub(in crate::session) fn read(
        &mut self,
        op: u64,
        from: &(Buf, Key),
        at: u64,
        len: usize,
    ) -> Memory {
        let (bufs, now) = (self.memory(0, &[len], 0), self.net.now);
        let (raddr, sink) = (from.0.seg.addr() + at, bufs[0].clone());
        self.with(0, |s, _| s.post_read(now, op, raddr, from.1, sink)).unwrap();
        Memory(bufs)
    }

    /// Adds to the word at an offset of an export.
    pub(in crate::session) fn fetch_add(
        &mut self,
        op: u64,
        of: &(Buf, Key),
        at: u64,
        add: u64,
    ) -> Result<Memory, OpError> {
        let bufs = self.memory(0, &[8], 0);
        let (raddr, old) = (of.0.seg.addr() + at, bufs[0].clone());
        let what = AtomicOp::FetchAdd(add);
        self.with(0, |s, _| s.post_atomic(op, raddr, of.1, what, old)).map(|()| Memory(bufs))
    }

    /// A message of the peer's arrives, by the rules or not.
    pub(in crate::session) fn hear(&mut self, side: usize, message: Message) {
        self.deliver(side, message);
        self.settle(side);
    }

    /// As `hear`, and the session is not driven.
    pub(in crate::session) fn deliver(&mut self, side: usize, message: Message) {
        let mut head = [0; MAX_HEADER];
        let len = message.emit(Piggyback::default(), &mut head);
        let slot = Region::from_vec(head[..len].to_vec()).segment(0, len).unwrap();
        let now = self.net.now;
        let _ = self.with(side, |s, end| s.handle_message(now, end, &slot));
    }

    pub(in crate::session) fn close(&mut self, side: usize, op: u64) {
        let now = self.net.now;
        self.with(side, |s, _| s.close(now, op, Duration::from_secs(3)));
    }

    pub(in crate::session) fn settle(&mut self, side: usize) {
        let now = self.net.now;
        // A message that may piggyback can wait for ever.
        if self.with(side, |s, end| s.drive(now, end)) >= Doorbell::Next {
            self.net.flush(side, true);
        }
        while let Some(done) = self.sessions[side].poll_done() {
            self.done[side].push_back(done);
        }
    }

    /// Runs until nothing happens any more.
    pub(in crate::session) fn run(&mut self) {
        self.run_for(Duration::from_secs(1000));
    }

    /// Lets this much time go by.
    pub(in crate::session) fn pass(&mut self, time: Duration) {
        let until = self.net.now + time;
        self.run_for(time);
        self.net.now = until;
    }

    /// Lets this much time go by in which no thread runs.
    pub(in crate::session) fn stall(&mut self, time: Duration) {
        self.net.now = self.net.now + time;
    }

    /// Pieces of the port's memory that this end holds.
    pub(in crate::session) fn held(&self, side: usize) -> usize {
        self.net.sides[side].allocs
    }

    /// Runs for this time, or until nothing happens any more.
    pub(in crate::session) fn run_for(&mut self, time: Duration) {
        let until = self.net.now + time;
        self.settle(0);
        self.settle(1);
        while self.step(until) {
            self.settle(0);
            self.settle(1);
        }
    }

    fn step(&mut self, until: Time) -> bool {
        let mut next: Option<(Time, usize, u8)> = None;
        for side in 0..2 {
            let s = &self.net.sides[side];
            let times = [
                s.poll_at,
                s.transmit_at,
                s.inbound.front().map(|(at, _)| *at),
                s.down.filter(|_| s.poll_at.is_none()).map(|(at, _)| at),
                self.sessions[side].next_timeout(),
            ];
            for (at, what) in times.into_iter().zip(0..) {
                if let Some(at) = at
                    && next.is_none_or(|(t, ..)| at < t)
                {
                    next = Some((at, side, what));
                }
            }
        }
        let Some((at, side, what)) = next.filter(|(at, ..)| *at <= until) else { return false };
        self.net.now = self.net.now.max(at);
        let now = self.net.now;
        match what {
            0 => {
                self.net.sides[side].poll_at = None;
                while let Some(wc) = self.net.sides[side].cq.pop_front() {
                    self.sessions[side].handle_wc(now, &wc);
                }
            }
            1 => self.net.transmit(side),
            2 => self.arrive(side),
            3 => {
                if let Some((_, cause)) = self.net.sides[side].down.take() {
                    self.sessions[side].handle_disconnected(now, cause);
                }
            }
            _ => self.sessions[side].handle_timeout(now),
        }
        true
    }

    fn arrive(&mut self, side: usize) {
        let (now, before) = (self.net.now, self.net.sides[side].inbound.len());
        let arrival = self.net.arrive(side);
        let whole = self.net.sides[side].inbound.len() < before;
        self.frames[side] += u64::from(whole);
        match arrival {
            Arrival::Message(slot) => {
                let _ = self.with(side, |s, end| s.handle_message(now, end, &slot));
            }
            Arrival::Immediate(imm) => self.sessions[side].handle_write_imm(now, imm),
            Arrival::Nothing => return,
        }
        self.net.sides[side].slots.give_back();
    }
}
