//! F4: the software RNIC's engine: user-space iWARP without I/O.
//!
//! One [`Engine`] is one connection: MPA start-up and framing (RFC 5044, RFC
//! 6581), DDP segments (RFC 5041), RDMAP messages (RFC 5040), a send queue, a
//! receive queue, the READs of both directions, and TERMINATE. It is wire
//! compatible with Linux's siw and with iWARP hardware.
//!
//! # How it is driven
//! ```text
//!   post_send, post_recv                 drain_wcs, poll_event
//!          |                                    ^
//!          v                                    |
//!   +------------------- Engine -------------------+
//!   | txq -> tx -> batch          rx -> place -> wc |
//!   +------|------------------------^---------------+
//!          v poll_tx                | rx_direct, handle_received
//!      sendmsg, sendfile         readv           (the driver's)
//! ```
//! Outgoing: [`Engine::poll_tx`] names what to do next, the driver does it and
//! says how far it came ([`Engine::handle_sent`]). One gathered write carries a
//! whole batch of FPDUs, payload straight from user memory (`batch`).
//! Incoming: the driver asks [`Engine::rx_direct`] where the rest of the payload
//! under way belongs, reads that and some lookahead in one system call, and
//! hands over what came ([`Engine::handle_received`]).
//!
//! # What this floor promises
//! - Every signalled or failed WR yields exactly one completion, in the order of
//!   posting; after it, its memory is not touched.
//! - No byte of a peer's is placed before key, bounds, rights, scope and life
//!   allow the whole FPDU; nothing that a peer sends makes it panic, grow
//!   without bound, or place a byte elsewhere.
//! - A peer that breaks a rule gets a TERMINATE that says which, and only its
//!   connection ends.
//! - Nothing is allocated per message; a connection with nothing under way holds
//!   no batch, and after [`Engine::trim`] no queue either.
//!
//! # What it must never know
//! Sockets and time (the driver bounds start-up and close), other connections,
//! and what the messages mean.
//!
//! # Where what is
//! `state` the transition table; `startup` request and reply; `txq` WRs from
//! posting to completion; `tx` FPDUs from WRs; `batch` the gathered write; `rx`
//! framing; `gap` how far to read ahead; `place` what an FPDU may do and has done; `read`
//! READs owed to the peer; `aside` messages that gave their receive back; `short` small messages without a WR; `term` error codes; `end` all
//! ways to end.
//!
//! # Where it is stricter or laxer than the RFCs
//! Markers are refused. Payload is placed before its CRC is checked (RFC 5044
//! section 4.4 would have it held back, which costs a copy); a message is
//! delivered only after.

mod batch;
mod eager;
mod end;
mod place;
mod read;
mod read_size;
mod rx;
mod spill;
mod startup;
mod state;
mod term;
mod tx;
mod txq;
mod types;

#[cfg(test)]
mod tests;

pub use batch::{Chunk, Gather, MAX_CHUNKS, TxPool, TxStep};
pub use types::*;

use std::collections::VecDeque;

use crate::rnic::{DisconnectCause, Qp, QpState, RnicError, Wc};
use crate::wire::mpa::FrameKind;
use state::State;

/// What start-up has settled.
#[derive(Clone, Copy, Debug, Default)]
struct Negotiated {
    crc: bool,
    /// FPDUs may exceed the MSS.
    large: bool,
    ird: u32,
    ord: u32,
}

/// One connection. See the module's essay.
#[derive(Debug)]
pub struct Engine {
    cfg: Config,
    initiator: bool,
    state: State,
    settled: Negotiated,
    startup: Option<Box<startup::Startup>>,
    tx: tx::Tx,
    sq: txq::SendQueue,
    reads: read::Inbounds,
    rx: rx::Rx,
    rq: VecDeque<RxBuf>,
    /// The peer sends no more.
    eof: bool,
    /// Why the connection ends, if by an error.
    cause: Option<DisconnectCause>,
    wcs: Vec<Wc>,
    events: VecDeque<Event>,
}

/// A responder before `accept`: no receive can be posted, nothing is promised.
const NOTHING: Config = Config {
    qp: 0,
    pd: 0,
    crc: false,
    ird: 0,
    ord: 0,
    max_send_wr: 0,
    max_recv_wr: 0,
    uses_srq: false,
    mss: 0,
    peer_to_peer: false,
};

impl Engine {
    fn new(cfg: Config, state: State, startup: Box<startup::Startup>) -> Engine {
        Engine {
            cfg,
            initiator: state == State::AwaitReply,
            state,
            settled: Negotiated::default(),
            startup: Some(startup),
            tx: tx::Tx::default(),
            sq: txq::SendQueue::default(),
            reads: read::Inbounds::default(),
            rx: rx::Rx::default(),
            rq: VecDeque::new(),
            eof: false,
            cause: None,
            wcs: Vec::new(),
            events: VecDeque::new(),
        }
    }

    /// The side that connects. The request is what `poll_tx` yields first.
    pub fn initiator(cfg: Config, private_data: &[u8]) -> Result<Engine, RnicError> {
        let mut startup = startup::Startup::new(FrameKind::Reply);
        startup.tx = startup::request(&cfg, private_data)?;
        Ok(Engine::new(cfg, State::AwaitReply, startup))
    }

    /// The side that was connected to: waits for a request, then yields
    /// [`Event::Request`]. Its configuration comes with [`Engine::accept`].
    pub fn responder() -> Engine {
        let startup = startup::Startup::new(FrameKind::Request);
        Engine::new(NOTHING, State::AwaitRequest, startup)
    }

    /// Responder: accepts the request. The connection stands, but nothing is
    /// sent before the initiator's first message has come.
    pub fn accept(&mut self, cfg: Config, private_data: &[u8]) -> Result<(), RnicError> {
        if self.state != State::Asked {
            return Err(self.wrong_state("a connection request"));
        }
        self.queue_accept(&cfg, private_data)
    }

    /// Responder: refuses the request. Drive the engine until it is `closed`.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), RnicError> {
        if self.state != State::Asked {
            return Err(self.wrong_state("a connection request"));
        }
        if private_data.len() > MAX_PRIVATE_DATA {
            return Err(RnicError::Limit {
                what: "bytes of private data",
                asked: private_data.len() as u64,
                limit: MAX_PRIVATE_DATA as u64,
            });
        }
        self.queue_reject(private_data);
        Ok(())
    }

    /// Posts to the send queue.
    pub fn post_send(&mut self, wr: TxWr) -> Result<(), RnicError> {
        if self.state != State::Rts {
            return Err(self.wrong_state("Rts"));
        }
        if self.sq.len() >= self.cfg.max_send_wr {
            let depth = self.cfg.max_send_wr;
            return Err(RnicError::QueueFull { what: "send queue", depth });
        }
        let len = txq::check(&wr, self.settled.ord, self.settled.crc)?;
        self.sq.push(wr, len);
        Ok(())
    }

    /// Posts a receive buffer; possible as soon as the configuration is known.
    pub fn post_recv(&mut self, buf: RxBuf) -> Result<(), RnicError> {
        if !matches!(self.state, State::AwaitReply | State::Rts) {
            return Err(self.wrong_state("Connecting or Rts"));
        }
        if self.cfg.uses_srq {
            return Err(RnicError::Unsupported("receive queue of its own for a QP on an SRQ"));
        }
        if self.rq.len() >= self.cfg.max_recv_wr {
            let depth = self.cfg.max_recv_wr;
            return Err(RnicError::QueueFull { what: "receive queue", depth });
        }
        self.rq.push_back(buf);
        Ok(())
    }

    /// Moves the completions to `out`. Do so before `poll_event`: flushed WRs
    /// complete before `Disconnected`.
    pub fn drain_wcs(&mut self, out: &mut Vec<Wc>) {
        out.append(&mut self.wcs);
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The state in terms of verbs.
    pub fn state(&self) -> QpState {
        self.state.qp()
    }

    /// Nothing more is to be sent or received: the socket can be closed.
    pub fn closed(&self) -> bool {
        self.state == State::Dead
    }

    /// CRC32C was settled on.
    pub fn crc(&self) -> bool {
        self.settled.crc
    }

    /// WRs that are posted and not complete: (sends, receives).
    #[cfg(any(test, feature = "internals"))]
    pub fn outstanding(&self) -> (usize, usize) {
        (self.sq.len(), self.rq.len() + usize::from(self.rx.receive.is_some()))
    }

    /// Gives back the spare memory of queues that are empty: for connections
    /// that fall idle.
    pub fn trim(&mut self) {
        self.sq.trim();
        self.reads.trim();
        if self.rq.is_empty() {
            self.rq.shrink_to_fit();
        }
        self.wcs.shrink_to_fit();
        self.events.shrink_to_fit();
    }

    fn qp(&self) -> Qp {
        Qp(self.cfg.qp)
    }

    #[cold]
    fn wrong_state(&self, need: &'static str) -> RnicError {
        RnicError::State { qp: self.cfg.qp, state: self.state.qp(), need }
    }
}
