//! A small world around the two machines: a queue pair, memory, and a witness who
//! knows what must come out. `explore` walks it, exhaustively or at random.

macro_rules! check {
    ($cond:expr, $($msg:tt)+) => { if !$cond { return Err(format!($($msg)+)); } };
}

mod explore;
pub(super) use explore::Random;
mod witness;

use super::*;
use crate::ids::{OpId, Outcome};
use std::collections::VecDeque;

/// Receives are numbered from here, sends from 0.
const RECV: OpId = 100;

/// A rule that the world breaks, to prove that the witness would see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// The sender answers WITHDRAW, but goes on using the ADVERTs.
    KeepAdverts,
    /// A cancelled receive ends without waiting for WITHDRAWN.
    EndAtOnce,
    /// A receive in front of advertised ones is removed, and their numbers shift.
    ShiftNumbers,
    /// WITHDRAWN overtakes the messages before it.
    Overtake,
    /// ACKs are forgotten.
    NoAck,
    /// RTSs are lost.
    NoRts,
}

#[derive(Clone, Copy, Debug)]
enum Post {
    Send(u64),
    Shutdown,
}

#[derive(Clone, Copy, Debug)]
struct PostRecv {
    len: u64,
    ahead: bool,
    peek: bool,
}

/// What the two programs do; when, is for the explorer to choose.
#[derive(Clone, Debug)]
struct Script {
    config: PacketConfig,
    posts: Vec<Post>,
    recvs: Vec<PostRecv>,
    /// Operations that may be cancelled.
    cancels: usize,
    /// As if this many eager messages had arrived before.
    eager_run: u8,
    broken: Option<Broken>,
}

impl Script {
    /// Small is up to 2 bytes, and the stash takes two small messages.
    fn new(posts: &[Post], recvs: &[PostRecv], cancels: usize) -> Script {
        let config = PacketConfig { eager_max: 2, stash: 132, max_msg: 9 };
        let (posts, recvs) = (posts.to_vec(), recvs.to_vec());
        Script { config, posts, recvs, cancels, eager_run: 0, broken: None }
    }

    fn send_len(&self, op: OpId) -> u64 {
        match self.posts[index(op)] {
            Post::Send(len) => len,
            Post::Shutdown => 0,
        }
    }
}

fn index(op: OpId) -> usize {
    usize::try_from(op % RECV).unwrap()
}

/// From the sender to the receiver. `src` is for the witness.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Fwd {
    Eager { src: OpId, len: u32 },
    Write { src: OpId, addr: u64, key: u32, len: u64 },
    Data { len: u64, total: u64 },
    Rts { msg: u64, total: u64 },
    Withdrawn { generation: u32, next_msg: u64 },
    Fin,
}

/// From the receiver to the sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Back {
    Advert(PacketAdvert),
    Ack(u32),
    Withdraw(u32),
}

/// The buffer of a receive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Buffer {
    /// The key of its window, while the peer may write.
    window: Option<u32>,
    /// The send whose message is in it, and how much of it.
    content: Option<(OpId, u64)>,
}

/// One thing that can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Post,
    PostRecv,
    Cancel(OpId),
    Transfer,
    Complete,
    DeliverFwd,
    DeliverBack,
    /// A message that was leaving anyway takes the ACK along.
    Piggyback,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    tx: PacketTx,
    rx: PacketRx,
    fwd: VecDeque<Fwd>,
    back: VecDeque<Back>,
    /// Sends whose local completion is outstanding.
    flights: VecDeque<OpId>,
    stash: VecDeque<(OpId, u32)>,
    buffers: Vec<Buffer>,
    posted: usize,
    cancelled: Vec<OpId>,
    ended: Vec<OpId>,
    /// The witness: the send of each message, and how many were received.
    started: Vec<OpId>,
    received: usize,
}

impl World {
    fn new(script: &Script) -> World {
        let mut rx = PacketRx::new(script.config);
        rx.eager_run = script.eager_run;
        World {
            tx: PacketTx::new(script.config),
            rx,
            fwd: VecDeque::new(),
            back: VecDeque::new(),
            flights: VecDeque::new(),
            stash: VecDeque::new(),
            buffers: Vec::new(),
            posted: 0,
            cancelled: Vec::new(),
            ended: Vec::new(),
            started: Vec::new(),
            received: 0,
        }
    }

    /// Operations that were posted and have not ended.
    fn pending(&self) -> impl Iterator<Item = OpId> {
        let sends = (0..self.posted).map(|i| i as OpId);
        let recvs = (0..self.buffers.len()).map(|i| RECV + i as OpId);
        sends.chain(recvs).filter(|op| !self.ended.contains(op))
    }

    /// Everything that can happen next, progress first.
    fn steps(&self, script: &Script) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut add = |possible, step| {
            if possible {
                steps.push(step);
            }
        };
        add(!self.fwd.is_empty(), Step::DeliverFwd);
        add(!self.back.is_empty(), Step::DeliverBack);
        add(self.tx.wants_transfer(), Step::Transfer);
        add(!self.flights.is_empty(), Step::Complete);
        add(self.posted < script.posts.len(), Step::Post);
        add(self.buffers.len() < script.recvs.len(), Step::PostRecv);
        if self.cancelled.len() < script.cancels {
            for op in self.pending().filter(|op| !self.cancelled.contains(op)) {
                add(true, Step::Cancel(op));
            }
        }
        add(self.rx.clone().take_freed() > 0, Step::Piggyback);
        steps
    }

    fn step(&mut self, script: &Script, step: Step) -> Result<(), String> {
        match step {
            Step::Post => {
                let op = self.posted as OpId;
                match script.posts[self.posted] {
                    Post::Send(len) => {
                        self.tx.post_send(op, len).map_err(|e| format!("{e:?}"))?;
                    }
                    Post::Shutdown => self.tx.shutdown(op),
                }
                self.posted += 1;
            }
            Step::PostRecv => {
                let op = RECV + self.buffers.len() as OpId;
                let PostRecv { len, ahead, peek } = script.recvs[self.buffers.len()];
                self.buffers.push(Buffer::default());
                self.rx.post_recv(op, len, ahead, peek);
            }
            Step::Cancel(op) => self.cancel(script, op)?,
            Step::Transfer => {
                let action = self.tx.poll(true).ok_or("wants_transfer was wrong")?;
                self.on_tx(script, action)?;
            }
            Step::Complete => {
                let op = self.flights.pop_front().ok_or("no flight")?;
                self.tx.handle_sent(op);
            }
            Step::DeliverFwd => self.deliver_fwd(script)?,
            Step::DeliverBack => self.deliver_back(script)?,
            Step::Piggyback => self.ack(script),
        }
        self.settle(script, None)
    }

    fn cancel(&mut self, script: &Script, op: OpId) -> Result<(), String> {
        self.cancelled.push(op);
        self.cancelled.sort_unstable();
        if op < RECV {
            check!(self.tx.cancel(op), "the sender does not know {op}");
            return Ok(());
        }
        let broken = match script.broken {
            Some(Broken::EndAtOnce) => true,
            Some(Broken::ShiftNumbers) => self.rx.queue.iter().any(|r| r.op == op && !r.advertised),
            _ => false,
        };
        if broken {
            self.rx.queue.retain(|r| r.op != op);
            self.buffers[index(op)].window = None;
            self.ended.push(op);
        } else {
            check!(self.rx.cancel(op), "the receiver does not know {op}");
        }
        Ok(())
    }

    fn ack(&mut self, script: &Script) {
        let freed = self.rx.take_freed();
        if freed > 0 && script.broken != Some(Broken::NoAck) {
            self.back.push_back(Back::Ack(freed));
        }
    }

    fn deliver_fwd(&mut self, script: &Script) -> Result<(), String> {
        let mut at_hand = None;
        let result = match self.fwd.pop_front().ok_or("nothing to deliver")? {
            Fwd::Eager { src, len } => {
                at_hand = Some((src, len));
                self.rx.handle_eager(len)
            }
            Fwd::Write { src, addr, key, len } => {
                let buffer = &mut self.buffers[index(addr)];
                check!(buffer.window == Some(key), "write of {src} into {addr}, which is closed");
                check!(buffer.content.is_none(), "{addr} is written twice");
                check!(len <= script.recvs[index(addr)].len, "{addr} is overrun");
                buffer.content = Some((src, len));
                Ok(())
            }
            Fwd::Data { len, total } => self.rx.handle_data(len, total),
            Fwd::Rts { msg, total } => self.rx.handle_rts(msg, total),
            Fwd::Withdrawn { generation, next_msg } => {
                self.rx.handle_withdrawn(generation, next_msg)
            }
            Fwd::Fin => self.rx.handle_fin(),
        };
        result.map_err(|e| format!("{e:?}"))?;
        self.settle(script, at_hand)
    }

    fn deliver_back(&mut self, script: &Script) -> Result<(), String> {
        let result = match self.back.pop_front().ok_or("nothing to deliver")? {
            Back::Advert(advert) => self.tx.handle_advert(advert),
            Back::Ack(freed) => self.tx.handle_ack(freed),
            Back::Withdraw(generation) => {
                let adverts = self.tx.adverts.clone();
                let result = self.tx.handle_withdraw(generation);
                if script.broken == Some(Broken::KeepAdverts) {
                    self.tx.adverts = adverts;
                }
                result
            }
        };
        result.map_err(|e| format!("{e:?}"))
    }

    /// Does what the machines ask for, but for transfers, and looks at the result.
    fn settle(&mut self, script: &Script, at_hand: Option<(OpId, u32)>) -> Result<(), String> {
        while let Some(action) = self.rx.poll() {
            self.on_rx(script, action, at_hand)?;
        }
        while let Some(action) = self.tx.poll(false) {
            self.on_tx(script, action)?;
        }
        let used: u32 = self.stash.iter().map(|(_, len)| PacketConfig::stash_cost(*len)).sum();
        check!(used <= script.config.stash, "{used} bytes in the stash");
        self.check_abort()
    }

    fn on_tx(&mut self, script: &Script, action: PacketTxAction) -> Result<(), String> {
        match action {
            PacketTxAction::Eager { op, len } => {
                check!(u64::from(len) == script.send_len(op), "{op} was cut");
                self.started.push(op);
                self.flights.push_back(op);
                self.fwd.push_back(Fwd::Eager { src: op, len });
            }
            PacketTxAction::Write { op, addr, key, len, total } => {
                check!(total == script.send_len(op), "{op} was cut");
                self.started.push(op);
                self.flights.push_back(op);
                self.fwd.push_back(Fwd::Write { src: op, addr, key, len });
                self.fwd.push_back(Fwd::Data { len, total });
            }
            PacketTxAction::Rts { msg, total } => {
                if script.broken != Some(Broken::NoRts) {
                    self.fwd.push_back(Fwd::Rts { msg, total });
                }
            }
            PacketTxAction::Withdrawn { next_msg, generation } => {
                let message = Fwd::Withdrawn { next_msg, generation };
                match script.broken {
                    Some(Broken::Overtake) => self.fwd.push_front(message),
                    _ => self.fwd.push_back(message),
                }
            }
            PacketTxAction::Fin => self.fwd.push_back(Fwd::Fin),
            PacketTxAction::Done { op, bytes, outcome } => {
                self.end(op)?;
                let moved = self.started.contains(&op);
                match outcome {
                    Outcome::Cancelled => {
                        check!(!moved && bytes == 0, "{op} was sent and cancelled");
                    }
                    Outcome::Ok => {
                        check!(bytes == script.send_len(op), "{op} says {bytes} bytes");
                        let shutdown = matches!(script.posts[index(op)], Post::Shutdown);
                        check!(moved != shutdown, "{op} was not sent");
                    }
                }
            }
        }
        Ok(())
    }

    fn on_rx(
        &mut self,
        script: &Script,
        action: PacketRxAction,
        at_hand: Option<(OpId, u32)>,
    ) -> Result<(), String> {
        match action {
            PacketRxAction::Advertise { op, msg, generation, len } => {
                let buffer = &mut self.buffers[index(op)];
                check!(buffer.window.is_none(), "{op} is opened twice");
                check!(!self.ended.contains(&op), "{op} is opened after its end");
                check!(
                    len == script.recvs[index(op)].len.min(script.config.max_msg),
                    "{op}: {len}"
                );
                let key = generation + 1;
                buffer.window = Some(key);
                self.back.push_back(Back::Advert(PacketAdvert {
                    msg,
                    generation,
                    addr: op,
                    key,
                    len,
                }));
            }
            PacketRxAction::Retract { op } => {
                let window = self.buffers[index(op)].window.take();
                check!(window.is_some(), "{op} is closed twice");
            }
            PacketRxAction::CopyInline { op, len } => {
                let (src, all) = at_hand.ok_or("no message at hand")?;
                self.copy(script, op, src, len, all)?;
            }
            PacketRxAction::Stash { len } => {
                let (src, all) = at_hand.ok_or("no message at hand")?;
                check!(len == all, "{src} was cut");
                self.stash.push_back((src, len));
            }
            PacketRxAction::Unstash { op, len, stashed, keep } => {
                let (src, all) = *self.stash.front().ok_or("empty stash")?;
                check!(stashed == all, "{src} is not {stashed} long");
                self.copy(script, op, src, len, all)?;
                if !keep {
                    self.stash.pop_front();
                }
            }
            PacketRxAction::Ack => self.ack(script),
            PacketRxAction::Withdraw { generation } => {
                self.back.push_back(Back::Withdraw(generation));
            }
            PacketRxAction::Done { op, bytes, total, eof, outcome } => {
                self.end(op)?;
                self.check_received(script, op, (bytes, total), eof, outcome)?;
            }
        }
        Ok(())
    }
}
