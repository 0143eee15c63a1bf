//! Two sessions, their users, and time.

mod acts;

use std::time::Duration;

use crate::rnic::{DisconnectCause, WcStatus};
use crate::session::{After, Counters, Doorbell, MessageBytes, RecvOpts, Session};
use crate::time::Time;
use crate::wire::exs::SocketKind;

use super::link::{Arrival, LinkEnd, Net, Receives};
use super::plan::Plan;
use super::rng::Rng;
use super::user::{Kind, User, verify_packets, verify_stream};

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

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng);
        let wrs = [plan.cfg[0].max_send_wr, plan.cfg[1].max_send_wr];
        let mut net = Net::new(Rng::new(rng.next()), [plan.caps.clone(), plan.caps.clone()], wrs);
        net.delay = plan.delay;
        (net.passes, net.keeps, net.closes) = (rng.below(5), rng.one_in(2), rng.one_in(2));
        for (side, cfg) in net.sides.iter_mut().zip(&plan.cfg) {
            side.slots = Receives::new(cfg.credits, cfg.most_credits);
            side.slots.scarce = true;
            (side.slot, side.ord) = (cfg.slot as usize, 2);
            side.caps.small_reads = !cfg.confirm;
        }
        let near = rng.one_in(2);
        let mut a = Session::initiator(plan.cfg[0].clone());
        let (mut b, reply) = Session::responder(plan.cfg[1].clone(), &a.hello()).unwrap();
        b.handle_established(net.now, &[], 2, near).unwrap();
        a.handle_established(net.now, &reply, 2, near).unwrap();
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
            trace: std::env::var_os("EXS_SEED").is_some(),
        };
        for side in 0..2 {
            world.settle(side);
            if world.rng.one_in(2) {
                world.export(side);
            }
        }
        world
    }

    fn stream(&self) -> bool {
        self.plan.kind == SocketKind::Stream
    }

    /// Calls a session, and does what must follow.
    fn with<R>(&mut self, side: usize, f: impl FnOnce(&mut Session, &mut LinkEnd<'_>) -> R) -> R {
        let mut session = self.sessions[side].take().unwrap();
        let mut end = LinkEnd { net: &mut self.net, side };
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
        let session = self.session(side);
        // An idle ring's time is for the caller to set again: it is far off.
        let quiet = |t: Option<Time>| t.filter(|t| *t < now + Duration::from_secs(1));
        let (settled, ended) = (session.after() == After::Settled, session.has_done());
        let timer = quiet(session.next_timeout());
        let bell = self.with(side, |s, end| s.drive(now, end));
        let session = self.session(side);
        let idle = bell == Doorbell::Idle
            && session.has_done() == ended
            && quiet(session.next_timeout()) == timer;
        assert!(!settled || idle, "side {side} had something to do: {:?}", self.plan);
        // A message that may piggyback can wait for ever, if nothing else leaves.
        if bell >= Doorbell::Next {
            self.net.flush(side, bell == Doorbell::Now);
        }
        let stream = self.stream();
        while let Some(done) = self.with(side, |s, _| s.poll_done()) {
            let session = self.session(side);
            let alive = !session.is_over();
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
            let what =
                ["poll", "transmit", "arrive", "down", "timeout", "act", "cut"][usize::from(what)];
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
            Arrival::Message(slot) if self.rng.one_in(2) => {
                let mut bytes = vec![0; slot.len()];
                slot.read_at(0, &mut bytes);
                self.with(side, |s, end| {
                    let (ended, _) = s.handle_eager(now, end, MessageBytes::Copy(&bytes), None);
                    s.done.extend(ended);
                });
                self.net.sides[side].slots.give_back();
            }
            Arrival::Message(slot) => {
                let _ = self.with(side, |s, end| s.handle_message(now, end, &slot));
                self.net.sides[side].slots.give_back();
            }
            Arrival::Immediate(imm) => {
                self.with(side, |s, _| s.handle_write_imm(now, imm));
                self.net.sides[side].slots.give_back();
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

    /// Receives one end until it meets the end, and all sent has arrived.
    pub(super) fn drain(&mut self, side: usize) {
        let waiting =
            self.users[side].ops.values().filter(|op| matches!(op.kind, Kind::Recv { .. })).count();
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
            let before = self.users[0].dones + self.users[1].dones;
            self.drain(0);
            self.drain(1);
            let moved = self.users[0].dones + self.users[1].dones > before;
            assert!(self.step() || moved, "stuck: {:?}", self.plan);
        }
        for side in 0..2 {
            self.close(side, Duration::from_secs(2));
            self.settle(side);
        }
    }

    pub(super) fn acting(&self) -> bool {
        self.steps_left.iter().any(|n| *n > 0)
    }

    pub(super) fn counters(&self, side: usize) -> Counters {
        *self.session(side).counters()
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
            self.users[side].check_counter(&self.users[1 - side]);
            let s = &self.net.sides[side];
            assert!(s.windows.is_empty(), "side {side}: a window is left");
            let session = self.session(side);
            assert!(session.is_finished(), "side {side} is not finished: {session:?}");
            assert_eq!(s.allocs, 0, "side {side}: memory of the port's is left");
        }
    }
}
