//! Exhaustive check of the stream protocol on small worlds.
//!
//! A [`World`] is one direction of a connection, whole: both machines, what is on
//! its way between them, the ring's bytes, every buffer's bytes, and the windows
//! that the receiver's RNIC would let writes through. An [`Event`] is anything that
//! could happen next. Events that no rule puts in order may happen in any order, so the
//! search tries all. Every byte of the stream carries its position as its value, so loss,
//! duplication and disorder show in the buffers themselves.
//!
//! Asserted after every event, in `world.rs` and `receiver.rs`:
//! - a receive ends once, with the next bytes of the stream, its window closed, and
//!   nothing written beyond what it reports;
//! - a send ends once, its memory no longer in use;
//! - a WRITE lands inside an open window or a ring that exists, on bytes that are
//!   not in use;
//! - neither machine calls the other's messages a violation;
//! - and in `quiet.rs`: where nothing is on its way, all that can end has ended.

mod broken;
mod hostile;
mod quiet;
mod random;
mod receiver;
mod search;
mod tests;
mod turns;
mod world;

use std::collections::VecDeque;

use crate::ids::OpId;

use super::rules::Rule;
use super::{Advert, MAX_MISSES, RecvPost, RemoteRing, StreamConfig, StreamRx, StreamTx};

/// What a search may do: the operations, and how often the rest.
#[derive(Clone, Debug)]
struct Plan {
    cfg: StreamConfig,
    /// Lengths, posted in this order.
    sends: Vec<u32>,
    /// Posted in this order.
    recvs: Vec<Post>,
    /// Cancels of one operation.
    cancels: u8,
    /// Cancels of all receives.
    cancel_alls: u8,
    /// Idle timers that fire, at either end.
    idles: u8,
    /// The sender may shut down.
    shutdown: bool,
    /// A WRITE lands at one moment and its DATA at a later one.
    split_write: bool,
    /// Bytes of one ADVERT, at most.
    max_advert: u32,
    /// Direct phases that may miss before ADVERTs are held back.
    max_misses: u32,
    /// Where both ends start to count phases.
    first_phase: u32,
    /// The rule that neither machine keeps.
    broken: Option<Rule>,
}

#[derive(Clone, Copy, Debug)]
struct Post {
    len: u32,
    waitall: bool,
    peek: bool,
    advertise: bool,
}

const fn some(len: u32) -> Post {
    Post { len, waitall: false, peek: false, advertise: true }
}

const fn all(len: u32) -> Post {
    Post { waitall: true, ..some(len) }
}

const fn hidden(len: u32) -> Post {
    Post { advertise: false, ..some(len) }
}

const fn peek(len: u32) -> Post {
    Post { peek: true, ..some(len) }
}

const fn peek_all(len: u32) -> Post {
    Post { peek: true, ..all(len) }
}

/// The shutdown's number; sends count from 0, receives have their own numbers.
const SHUTDOWN: OpId = 9_999;

/// On its way to the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Fwd {
    /// Bytes `pos..` of the stream, written by RDMA.
    Write {
        to: WriteTo,
        pos: u32,
        len: u32,
    },
    Data {
        direct: bool,
        inline: bool,
        pos: u32,
        len: u32,
    },
    Fin,
    RingReq,
    RingRelease,
    Withdrawn,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum WriteTo {
    Window { addr: u64, key: u32 },
    Ring { offset: u32, key: u32 },
}

/// On its way to the sender; every message carries freed bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Back {
    freed: u32,
    msg: BackMsg,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum BackMsg {
    Advert(Advert),
    Ack,
    Ring(RemoteRing),
    Withdraw,
}

/// A send or the shutdown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum SendState {
    Unposted,
    /// `busy`: bytes whose local completion is still to come.
    Pending {
        taken: u32,
        busy: u32,
        cancelled: bool,
    },
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RecvState {
    Unposted,
    Pending {
        /// Value of each byte: its stream position + 1 (mod 256, never 0), or 0.
        buf: Vec<u8>,
        window: Option<Window>,
        /// How often it has been advertised: makes the key.
        opened: u32,
        cancelled: bool,
    },
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Window {
    key: u32,
    from: u32,
    len: u32,
}

/// The receiver's ring memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RingMem {
    bytes: Vec<u8>,
    exists: bool,
    /// Key under which the peer may write; 0: it may not.
    key: u32,
    grants: u32,
}

/// One direction of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    tx: StreamTx,
    rx: StreamRx,
    fwd: VecDeque<Fwd>,
    back: VecDeque<Back>,
    /// Local completions to come, in order.
    local: VecDeque<(OpId, u32)>,
    ring: RingMem,
    sends: Vec<SendState>,
    recvs: Vec<RecvState>,
    shutdown: SendState,
    /// Stream bytes that went out, and that receives have reported.
    sent: u32,
    delivered: u32,
    cancels: u8,
    cancel_alls: u8,
    idles: u8,
}

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    PostSend(u16),
    PostRecv(u16),
    Shutdown,
    CancelSend(u16),
    CancelRecv(u16),
    CancelShutdown,
    CancelAllRecvs,
    /// The session has credits and asks for a Transfer.
    Transfer,
    /// The oldest message (or WRITE) arrives at the receiver.
    ToReceiver,
    /// The oldest message arrives at the sender.
    ToSender,
    /// The oldest local completion.
    Local,
    IdleSender,
    IdleReceiver,
    /// A send has waited long enough for an ADVERT.
    GiveUp,
}

/// The value that stands for a stream position; 0 means unwritten.
fn value(pos: u32) -> u8 {
    u8::try_from(pos % 255 + 1).expect("at most 255")
}

impl World {
    fn new(plan: &Plan) -> Self {
        let mut tx = StreamTx::new(plan.cfg);
        let mut rx = StreamRx::new(plan.cfg);
        tx.break_rule(plan.broken);
        rx.break_rule(plan.broken);
        rx.limit_adverts(plan.max_advert);
        tx.limit_misses(plan.max_misses);
        rx.limit_misses(plan.max_misses);
        tx.start_phase(plan.first_phase);
        rx.start_phase(plan.first_phase);
        Self {
            tx,
            rx,
            fwd: VecDeque::new(),
            back: VecDeque::new(),
            local: VecDeque::new(),
            ring: RingMem {
                bytes: vec![0; plan.cfg.ring as usize],
                exists: false,
                key: 0,
                grants: 0,
            },
            sends: vec![SendState::Unposted; plan.sends.len()],
            recvs: vec![RecvState::Unposted; plan.recvs.len()],
            shutdown: SendState::Unposted,
            sent: 0,
            delivered: 0,
            cancels: plan.cancels,
            cancel_alls: plan.cancel_alls,
            idles: plan.idles,
        }
    }

    /// Everything that could happen now.
    fn events(&self, plan: &Plan, out: &mut Vec<Event>) {
        out.clear();
        let index = |i: usize| u16::try_from(i).expect("few operations");
        if !self.fwd.is_empty() {
            out.push(Event::ToReceiver);
        }
        if !self.back.is_empty() {
            out.push(Event::ToSender);
        }
        if !self.local.is_empty() {
            out.push(Event::Local);
        }
        if self.tx.wants_transfer() {
            out.push(Event::Transfer);
        }
        if self.tx.is_waiting() {
            out.push(Event::GiveUp);
        }
        if self.shutdown == SendState::Unposted {
            if let Some(i) = self.sends.iter().position(|s| *s == SendState::Unposted) {
                out.push(Event::PostSend(index(i)));
            }
            if plan.shutdown {
                out.push(Event::Shutdown);
            }
        }
        if let Some(i) = self.recvs.iter().position(|r| *r == RecvState::Unposted) {
            out.push(Event::PostRecv(index(i)));
        }
        if self.cancels > 0 {
            for (i, send) in self.sends.iter().enumerate() {
                if matches!(send, SendState::Pending { cancelled: false, .. }) {
                    out.push(Event::CancelSend(index(i)));
                }
            }
            for (i, recv) in self.recvs.iter().enumerate() {
                if matches!(recv, RecvState::Pending { cancelled: false, .. }) {
                    out.push(Event::CancelRecv(index(i)));
                }
            }
            if matches!(self.shutdown, SendState::Pending { cancelled: false, .. }) {
                out.push(Event::CancelShutdown);
            }
        }
        if self.cancel_alls > 0 && self.rx.pending() > 0 {
            out.push(Event::CancelAllRecvs);
        }
        if self.idles > 0 {
            out.push(Event::IdleSender);
            out.push(Event::IdleReceiver);
        }
    }

    /// A receive as the machine gets it.
    fn recv_post(plan: &Plan, i: u16) -> RecvPost {
        let post = plan.recvs[usize::from(i)];
        RecvPost {
            op: i.into(),
            len: post.len.into(),
            waitall: post.waitall,
            peek: post.peek,
            advertise: post.advertise,
        }
    }
}
