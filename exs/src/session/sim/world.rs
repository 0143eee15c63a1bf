//! Two sessions, their users, and time.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::mem::Access;
use crate::rnic::{Caps, DisconnectCause, WcStatus};
use crate::session::{Announce, Link, OpError, RecvOpts, Session, SessionConfig, Source};
use crate::time::Time;
use crate::wire::exs::SocketKind;

use super::link::{Arrival, End, Net};
use super::rng::Rng;
use super::user::{
    Kind, Op, Sent, User, file_source, iovec, verify_packets, verify_stream,
};

/// What a run is made of.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) kind: SocketKind,
    /// Nothing goes wrong: then all that is sent arrives.
    pub(super) calm: bool,
    /// Steps of each user.
    pub(super) steps: u64,
    /// Largest send and receive.
    pub(super) max_len: usize,
    pub(super) cfg: [SessionConfig; 2],
    pub(super) caps: Caps,
    pub(super) delay: u64,
    /// When the cable is cut.
    pub(super) cut_at: Option<Time>,
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Plan {
        let kind = rng.pick(&[SocketKind::Stream, SocketKind::Stream, SocketKind::SeqPacket]);
        let calm = rng.one_in(3);
        let max_len = rng.pick(&[40, 300, 3_000, 20_000]);
        // Tiny, but not so tiny that a run takes for ever.
        let ring = rng.pick(&[1, 7, 64, 1000, 1 << 16]).max(u32::try_from(max_len / 64).unwrap());
        let caps = Caps {
            name: "sim".into(),
            write_imm: rng.one_in(2),
            initiator_first: true,
            read_sink_remote_write: false,
            write_acked: rng.one_in(3),
            file_source: true,
            max_sge: rng.size(1, 6),
            max_inline: rng.pick(&[48, 64, 256]),
            max_msg: rng.pick(&[17, 1000, 1 << 30]),
            max_ord: 4,
            max_ird: 4,
            max_private_data: 56,
        };
        let mut cfg = || SessionConfig {
            kind,
            ring,
            inline_max: rng.pick(&[0, 16, 100, 4096]),
            max_chunk: rng.pick(&[1, 50, 1000, 1 << 20]).max(u32::try_from(max_len / 64).unwrap()),
            max_msg: max_len as u64 - rng.below(2),
            credits: rng.pick(&[4, 4, 5, 8, 32]),
            slot: rng.pick(&[48, 100, 1000]),
            max_send_wr: rng.size(4, 20),
            keepalive: rng.one_in(2).then(|| Duration::from_millis(rng.range(1, 2000))),
            dead_after: Some(Duration::from_millis(rng.range(500, 5000))),
            send_timeout: (!calm && rng.one_in(6)).then(|| Duration::from_millis(rng.range(1, 60))),
            recv_timeout: (!calm && rng.one_in(6)).then(|| Duration::from_millis(rng.range(1, 60))),
            linger: Duration::from_secs(3),
            handshake_timeout: Duration::from_secs(5),
            ring_idle: rng.one_in(2).then(|| Duration::from_millis(rng.range(1, 20))),
            force_announce: rng.one_in(3).then_some(Announce::WriteSend),
        };
        let cfg = [cfg(), cfg()];
        let delay = rng.pick(&[1_000, 50_000, 2_000_000]);
        let steps = rng.range(3, 40);
        let cut_at = (!calm && rng.one_in(5))
            .then(|| Time::from_nanos(rng.below(40_000_000)));
        Plan { kind, calm, steps, max_len, cfg, caps, delay, cut_at }
    }
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) net: Net,
    rng: Rng,
    sessions: [Option<Session>; 2],
    pub(super) users: [User; 2],
    steps_left: [u64; 2],
    next_step: [Time; 2],
    events: u64,
    /// One seed is replayed: say what happens.
    trace: bool,
}

/// 5000 bytes to send from.
fn file() -> &'static (Arc<std::fs::File>, Vec<u8>) {
    static FILE: OnceLock<(Arc<std::fs::File>, Vec<u8>)> = OnceLock::new();
    FILE.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("exs-sim-{}", std::process::id()));
        let data: Vec<u8> = (0..5000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(&path, &data).unwrap();
        let file = Arc::new(std::fs::File::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        (file, data)
    })
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng);
        let wrs = [plan.cfg[0].max_send_wr, plan.cfg[1].max_send_wr];
        let mut net = Net::new(Rng::new(rng.next()), [plan.caps.clone(), plan.caps.clone()], wrs);
        net.delay = plan.delay;
        for (side, cfg) in net.sides.iter_mut().zip(&plan.cfg) {
            (side.slots, side.slot, side.ord) = (cfg.credits, cfg.slot as usize, 2);
        }
        let mut a = Session::initiator(plan.cfg[0].clone());
        let (mut b, reply) = Session::responder(plan.cfg[1].clone(), &a.hello()).unwrap();
        b.handle_established(net.now, &[], 2).unwrap();
        a.handle_established(net.now, &reply, 2).unwrap();
        let steps_left = [plan.steps, plan.steps];
        let mut world = World {
            plan,
            net,
            rng,
            sessions: [Some(a), Some(b)],
            users: [User::default(), User::default()],
            steps_left,
            next_step: [Time::ZERO; 2],
            events: 0,
            trace: std::env::var_os("EXS_SIM_SEED").is_some(),
        };
        world.settle(0);
        world.settle(1);
        world
    }

    fn stream(&self) -> bool {
        self.plan.kind == SocketKind::Stream
    }

    /// Calls a session, and does what must follow.
    fn with<R>(&mut self, side: usize, f: impl FnOnce(&mut Session, &mut End<'_>) -> R) -> R {
        let mut session = self.sessions[side].take().unwrap();
        let mut end = End { net: &mut self.net, side };
        let r = f(&mut session, &mut end);
        self.sessions[side] = Some(session);
        r
    }

    fn session(&self, side: usize) -> &Session {
        self.sessions[side].as_ref().unwrap()
    }

    /// Drives a session and takes out what has ended.
    fn settle(&mut self, side: usize) {
        let now = self.net.now;
        let (posted, urgent, soon) =
            self.with(side, |s, end| (s.drive(now, end), s.urgent(), s.soon()));
        // What is neither may wait for ever, if nothing else leaves.
        if posted && (urgent || soon) {
            self.net.flush(side, urgent);
        }
        let stream = self.stream();
        while let Some(done) = self.with(side, |s, _| s.poll_done()) {
            let session = self.session(side);
            let alive = !session.ending.over() && !matches!(session.link, Link::Down(_));
            if self.trace {
                eprintln!("{:?} {side}: {done:?}", self.net.now);
            }
            self.users[side].done(&mut self.net, side, &done, stream, alive);
        }
    }

    /// Something happens. False when nothing ever will again.
    pub(super) fn step(&mut self) -> bool {
        self.events += 1;
        assert!(self.events < 200_000, "too much happens: {:?}", self.plan);
        let mut next: Option<(Time, usize, u8)> = None;
        let mut offer = |at: Option<Time>, side: usize, what: u8| {
            if let Some(at) = at
                && next.is_none_or(|(t, ..)| at < t)
            {
                next = Some((at, side, what));
            }
        };
        for side in 0..2 {
            let s = &self.net.sides[side];
            offer(s.poll_at, side, 0);
            offer(s.transmit_at, side, 1);
            offer(s.inbound.front().map(|(at, _)| *at), side, 2);
            offer(s.down.filter(|_| s.poll_at.is_none()).map(|(at, _)| at), side, 3);
            offer(self.session(side).next_timeout(), side, 4);
            let step = (self.steps_left[side] > 0).then_some(self.next_step[side]);
            offer(step, side, 5);
        }
        if !self.net.severed {
            offer(self.plan.cut_at, 0, 6);
        }
        let Some((at, side, what)) = next else { return false };
        let now = self.net.now.max(at);
        self.net.now = now;
        if self.trace {
            let what = ["poll", "transmit", "arrive", "down", "timeout", "act", "cut"][usize::from(what)];
            let frame = self.net.sides[side].inbound.front().filter(|_| what == "arrive");
            eprintln!("{now:?} {side}: {what} {frame:?}");
        }
        match what {
            0 => self.poll(side),
            1 => self.net.transmit(side),
            2 => self.arrive(side),
            3 => {
                let (_, cause) = self.net.sides[side].down.take().unwrap();
                self.with(side, |s, _| s.handle_disconnected(now, cause));
            }
            4 => self.with(side, |s, _| s.handle_timeout(now)),
            5 => self.act(side),
            _ => self.cut(),
        }
        self.settle(side);
        let next = self.session(side).next_timeout();
        assert!(what != 4 || next.is_none_or(|t| t > now), "a timer that does not go off");
        true
    }

    fn poll(&mut self, side: usize) {
        let now = self.net.now;
        self.net.sides[side].poll_at = None;
        while let Some(wc) = self.net.sides[side].cq.pop_front() {
            self.with(side, |s, _| s.handle_wc(now, &wc));
        }
    }

    fn arrive(&mut self, side: usize) {
        let now = self.net.now;
        match self.net.arrive(side) {
            Arrival::Message(slot) => {
                self.with(side, |s, end| s.handle_message(now, end, &slot));
                self.net.sides[side].slots += 1;
            }
            Arrival::Immediate(imm) => {
                self.with(side, |s, _| s.handle_write_imm(now, imm));
                self.net.sides[side].slots += 1;
            }
            Arrival::Nothing => {}
        }
    }

    /// The cable is cut: silently, or both RNICs notice.
    fn cut(&mut self) {
        self.net.severed = true;
        let silent = self.rng.one_in(2);
        for side in 0..2 {
            self.net.sides[side].inbound.clear();
            if !silent {
                let cause = DisconnectCause::Broken(libc::ETIMEDOUT);
                self.net.break_qp(side, WcStatus::Flushed, cause);
            }
        }
    }

    /// The user of one end does something.
    fn act(&mut self, side: usize) {
        self.steps_left[side] -= 1;
        self.next_step[side] = self.net.soon(1_500_000);
        let busy = self.users[side].ops.len();
        let calm = self.plan.calm;
        match self.rng.below(if calm { 20 } else { 27 }) {
            0..8 if busy < 12 => self.post_send(side),
            8..16 if busy < 12 => self.post_recv(side),
            16 | 17 => self.post_sided(side),
            18 => self.export(side),
            20..24 => self.cancel(side),
            24 if self.rng.one_in(3) => self.shutdown(side),
            25 if self.rng.one_in(4) => {
                self.users[side].closing = true;
                self.with(side, |s, end| s.abort(end, OpError::Aborted));
            }
            26 if self.rng.one_in(3) => match self.rng.below(3) {
                0 => {
                    let linger = Duration::from_millis(self.rng.below(50));
                    self.close(side, linger);
                }
                1 => {
                    let now = self.net.now;
                    self.with(side, |s, _| s.shutdown_recv(now));
                }
                _ => self.revoke(side),
            },
            _ => {}
        }
        if self.steps_left[side] == 0 && !calm && !self.users[side].closing {
            self.close(side, Duration::from_secs(2));
        }
    }

    /// Sizes of pieces that make up `len`.
    fn pieces(&mut self, len: usize) -> Vec<usize> {
        if self.rng.one_in(2) {
            return vec![len];
        }
        let mut left = len;
        let mut sizes = Vec::new();
        for _ in 0..self.rng.below(8) {
            let n = self.rng.size(0, left);
            sizes.push(n);
            left -= n;
        }
        sizes.push(left);
        sizes
    }

    pub(super) fn post_send(&mut self, side: usize) {
        let len = self.rng.size(0, self.plan.max_len);
        let now = self.net.now;
        let op = self.users[side].op();
        let (source, bufs, data, real) = if self.rng.one_in(5) {
            let (file, content) = file();
            let past = if self.plan.calm { 0 } else { 300 };
            let len = len.min(content.len() / 2);
            let offset = self.rng.size(0, content.len() - len + past.min(len));
            let mut data = content.get(offset..).unwrap_or(&[]).to_vec();
            let real = data.len().min(len);
            data.resize(len, 0);
            (file_source(file, offset as u64, len as u64), Vec::new(), data, real)
        } else {
            let data: Vec<u8> = (0..len).map(|_| self.rng.next().to_le_bytes()[0]).collect();
            let sizes = self.pieces(len);
            let bufs = self.users[side].memory(&mut self.net, side, &sizes, &data);
            (Source::Memory(iovec(&bufs)), bufs, data, len)
        };
        match self.with(side, |s, _| s.post_send(now, op, source)) {
            Ok(()) => {
                if self.trace {
                    eprintln!("{now:?} {side}: send {op} of {len}");
                }
                let cut = self.plan.cfg[side].send_timeout.is_some();
                let user = &mut self.users[side];
                user.sends.push_back(Sent { data, real, cut, end: None });
                let kind = Kind::Send(user.sends.len() - 1);
                user.ops.insert(op, Op { kind, bufs });
            }
            Err((error, source)) => {
                drop(source);
                let too_long = matches!(error, OpError::TooLong { .. });
                assert!(too_long || !self.plan.calm || self.users[side].shut, "{error}");
                for buf in &bufs {
                    self.net.deregister(side, buf);
                }
            }
        }
    }

    pub(super) fn post_recv(&mut self, side: usize) {
        let len = self.rng.size(if self.plan.calm { 1 } else { 0 }, self.plan.max_len);
        let sizes = self.pieces(len);
        let peek = self.rng.one_in(8);
        let waitall = !self.plan.calm && self.rng.one_in(3);
        self.receive(side, &sizes, RecvOpts { waitall, peek });
    }

    fn receive(&mut self, side: usize, sizes: &[usize], opts: RecvOpts) {
        let now = self.net.now;
        let op = self.users[side].op();
        let bufs = self.users[side].memory(&mut self.net, side, sizes, &[]);
        let iov = iovec(&bufs);
        match self.with(side, |s, _| s.post_recv(now, op, iov, opts)) {
            Ok(()) => {
                if self.trace {
                    eprintln!("{now:?} {side}: receive {op} into {sizes:?} {opts:?}");
                }
                let kind = Kind::Recv { peek: opts.peek };
                self.users[side].ops.insert(op, Op { kind, bufs });
            }
            Err((_, iov)) => {
                drop(iov);
                for buf in &bufs {
                    self.net.deregister(side, buf);
                }
            }
        }
    }

    fn export(&mut self, side: usize) {
        if self.users[side].readable.is_some() {
            return;
        }
        self.net.sides[side].binding_export = true;
        let data: Vec<u8> = (0..400).map(|_| self.rng.next().to_le_bytes()[0]).collect();
        let bufs = self.users[side].memory(&mut self.net, side, &[400, 4000], &data);
        let keys = [Access::REMOTE_READ, Access::REMOTE_WRITE].map(|access| {
            let buf = bufs[usize::from(access.remote_write)].clone();
            self.with(side, |s, end| s.export(end, &buf, access)).ok().map(|key| (buf, key))
        });
        self.net.sides[side].binding_export = false;
        let [read, write] = keys;
        self.users[side].readable = read;
        self.users[side].writable = write.map(|(buf, key)| (buf, key, 0));
    }

    fn revoke(&mut self, side: usize) {
        if let Some((_, key)) = self.users[side].readable.take() {
            self.with(side, |s, end| s.revoke(end, key));
            self.users[side].readable = None;
        }
    }

    fn post_sided(&mut self, side: usize) {
        let now = self.net.now;
        let op = self.users[side].op();
        if self.rng.one_in(2) {
            let Some((target, key)) = self.users[1 - side].readable.clone() else { return };
            let len = self.rng.size(0, target.seg.len());
            let at = self.rng.size(0, target.seg.len() - len);
            let mut expect = vec![0; len];
            target.seg.read_at(at, &mut expect);
            let bufs = self.users[side].memory(&mut self.net, side, &[len], &[]);
            let (sink, raddr) = (bufs[0].clone(), target.seg.addr() + at as u64);
            match self.with(side, |s, _| s.post_read(now, op, raddr, key, sink)) {
                Ok(()) => drop(self.users[side].ops.insert(op, Op { kind: Kind::Read { expect }, bufs })),
                Err(_) => self.net.deregister(side, &bufs[0]),
            }
        } else {
            let Some((target, key, at)) = self.users[1 - side].writable.clone() else { return };
            let len = self.rng.size(0, (target.seg.len() - at).min(300));
            if let Some(w) = &mut self.users[1 - side].writable {
                w.2 += len;
            }
            let data: Vec<u8> = (0..len).map(|_| self.rng.next().to_le_bytes()[0]).collect();
            let sizes = self.pieces(len);
            let bufs = self.users[side].memory(&mut self.net, side, &sizes, &data);
            let raddr = target.seg.addr() + at as u64;
            let (iov, confirm) = (iovec(&bufs), self.rng.one_in(2));
            let target = target.seg.slice(at, len).unwrap();
            match self.with(side, |s, _| s.post_write(now, op, raddr, key, iov, confirm)) {
                Ok(()) => {
                    let kind = Kind::Write { target, confirm };
                    self.users[side].ops.insert(op, Op { kind, bufs });
                }
                Err((_, iov)) => {
                    drop(iov);
                    bufs.iter().for_each(|buf| self.net.deregister(side, buf));
                }
            }
        }
    }

    fn cancel(&mut self, side: usize) {
        let mut ops: Vec<u64> = self.users[side].ops.keys().copied().collect();
        ops.sort_unstable();
        if ops.is_empty() {
            return;
        }
        let (op, now) = (self.rng.pick(&ops), self.net.now);
        if let Some(Kind::Send(at)) = self.users[side].ops.get(&op).map(|op| &op.kind) {
            let at = *at;
            self.users[side].sends[at].cut = true;
        }
        let found = self.with(side, |s, _| s.cancel(now, op));
        if self.trace {
            eprintln!("{now:?} {side}: cancel {op}: {found}");
        }
    }

    pub(super) fn shutdown(&mut self, side: usize) {
        let (op, now) = (self.users[side].op(), self.net.now);
        if self.with(side, |s, _| s.shutdown_send(now, op)).is_ok() {
            self.users[side].shut = true;
            self.users[side].ops.insert(op, Op { kind: Kind::Shutdown, bufs: Vec::new() });
        }
    }

    pub(super) fn close(&mut self, side: usize, linger: Duration) {
        let (op, now) = (self.users[side].op(), self.net.now);
        self.users[side].closing = true;
        self.users[side].ops.insert(op, Op { kind: Kind::Close, bufs: Vec::new() });
        self.with(side, |s, _| s.close(now, op, linger));
    }

    /// Receives one end until it meets the end, and all sent has arrived.
    pub(super) fn drain(&mut self, side: usize) {
        let waiting = self.users[side]
            .ops
            .values()
            .filter(|op| matches!(op.kind, Kind::Recv { .. }))
            .count();
        if waiting < 3 && !self.users[side].eof {
            let len = self.plan.max_len.max(1);
            self.receive(side, &[len], RecvOpts::default());
            self.settle(side);
        }
    }

    pub(super) fn finish_calm(&mut self) {
        for side in 0..2 {
            self.shutdown(side);
            self.settle(side);
        }
        while self.users.iter().any(|user| !user.eof || !user.ops.is_empty()) {
            self.drain(0);
            self.drain(1);
            assert!(self.step(), "stuck: {:?}", self.plan);
        }
        for side in 0..2 {
            self.close(side, Duration::from_secs(2));
            self.settle(side);
        }
    }

    pub(super) fn acting(&self) -> bool {
        self.steps_left.iter().any(|n| *n > 0)
    }

    pub(super) fn settle_all(&mut self) {
        self.settle(0);
        self.settle(1);
    }

    pub(super) fn verify(&self) {
        for (tx, rx) in [(0, 1), (1, 0)] {
            match self.plan.kind {
                SocketKind::Stream => verify_stream(&self.users[tx], &self.users[rx]),
                SocketKind::SeqPacket => verify_packets(&self.users[tx], &self.users[rx]),
            }
        }
    }

    /// At the very end nothing is left.
    pub(super) fn verify_end(&mut self) {
        self.verify();
        for side in 0..2 {
            let user = &mut self.users[side];
            let left: Vec<_> = user.ops.keys().collect();
            assert!(left.is_empty(), "side {side}: {left:?} have not ended: {:?}", self.plan);
            user.check_returned();
            let s = &self.net.sides[side];
            assert!(s.windows.is_empty(), "side {side}: a window is left");
            let session = self.session(side);
            assert!(session.is_finished(), "side {side} is not finished: {session:?}");
            assert_eq!(s.allocs, 0, "side {side}: memory of the port's is left");
        }
    }
}
