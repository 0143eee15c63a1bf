//! F4: the software RNIC's engine: user-space iWARP without I/O.
//!
//! One [`IwarpEngine`] is one connection: MPA start-up and framing (RFC 5044, RFC 6581), DDP
//! segments (RFC 5041), RDMAP messages (RFC 5040, and the atomic operations of RFC 7306), a send queue,
//! a receive queue, the READs of both directions, and TERMINATE. On the wire it is compatible with Linux's siw and with iWARP
//! hardware.
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
//! Outgoing: [`IwarpEngine::poll_tx`] names the next step. The driver does it and reports how
//! many bytes left ([`IwarpEngine::handle_sent`]). One gathered write carries a whole batch of
//! FPDUs, with the payload straight from user memory (`batch`).
//!
//! Incoming: the driver asks [`IwarpEngine::rx_direct`] where the rest of the current payload
//! belongs. It reads that payload and some lookahead in one system call, and hands over what came
//! ([`IwarpEngine::handle_received`]).
//!
//! # What this floor promises
//! - Every signalled or failed WR yields exactly one completion, in the order of posting. After
//!   the completion the engine does not touch the WR's memory.
//! - The engine places a byte from the peer only after key, bounds, rights, scope and life have
//!   allowed the whole FPDU. Nothing that a peer sends can make it panic, grow without bound, or
//!   place a byte elsewhere.
//! - A peer that breaks a rule gets a TERMINATE that names the rule, and only its connection
//!   ends.
//! - The engine allocates nothing per message. A connection with nothing under way holds no
//!   batch, and after [`IwarpEngine::trim`] no queue either.
//!
//! # What it must never know
//! Sockets and time (the driver bounds start-up and close), other connections, and the meaning of
//! the messages.
//!
//! # The modules
//! `state` has the transition table; `startup` the MPA request and reply; `txq` WRs from posting
//! to completion; `tx` FPDUs from WRs; `batch` the gathered write; `rx` framing; `read_size` the
//! predictor of how far to read ahead; `place` the checks of an FPDU and its delivery; `read` the
//! responses owed to the peer; `atomic` atomic operations; `spill` messages that gave their receive
//! back; `eager` small messages without a WR; `loan` those that threads move without the engine; `term` error codes; `end` all ways to end.
//!
//! # Where it is stricter or laxer than the RFCs
//! The engine refuses markers. It places payload before it checks the CRC, and delivers a message
//! only after the check. RFC 5044 section 4.4 would hold the payload back, which costs a copy.

mod atomic;
mod batch;
mod eager;
mod end;
mod loan;
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

pub use batch::{Gather, GatherChunk, MAX_CHUNKS, SendStep, TxPool};
pub use loan::FramingLoan;
pub use types::*;

use std::collections::VecDeque;

use crate::rnic::{DisconnectCause, Qp, QpState, RnicError, Wc};
use crate::wire::mpa::FrameKind;
use state::ConnState;

/// What the start-up has negotiated.
#[derive(Clone, Copy, Debug, Default)]
struct StartupTerms {
    /// FPDUs carry a CRC32C.
    crc: bool,
    /// FPDUs may exceed the MSS: both sides take large ones.
    large: bool,
    /// READs that this side answers at a time.
    ird: u32,
    /// READs that this side issues at a time.
    ord: u32,
}

/// One connection. The module's head explains it.
#[derive(Debug)]
pub struct IwarpEngine {
    /// That of a responder comes with `accept`.
    cfg: Config,
    /// This side connected. If false, it was connected to.
    initiator: bool,
    /// `end` moves it by the table of `state`.
    state: ConnState,
    /// All zero until start-up has negotiated it.
    settled: StartupTerms,
    /// None once the connection is established and the start-up frame is in a batch.
    startup: Option<Box<startup::Startup>>,
    tx: tx::Sending,
    sq: txq::WrQueue,
    /// Responses that this side owes the peer.
    reads: read::InboundReads,
    rx: rx::Receiving,
    /// Posted receives that no message has taken. Empty for a QP on an SRQ.
    rq: VecDeque<RxBuf>,
    /// The peer has ended its sending side.
    eof: bool,
    /// The error that ends the connection. None while no error has happened.
    cause: Option<DisconnectCause>,
    /// Completions that the driver has not drained.
    wcs: Vec<Wc>,
    /// Events that the driver has not taken.
    events: VecDeque<IwarpEvent>,
}

/// The configuration of a responder before `accept`: it can post no receive and promises nothing.
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

impl IwarpEngine {
    fn new(cfg: Config, state: ConnState, startup: Box<startup::Startup>) -> IwarpEngine {
        IwarpEngine {
            cfg,
            initiator: state == ConnState::AwaitReply,
            state,
            settled: StartupTerms::default(),
            startup: Some(startup),
            tx: tx::Sending::default(),
            sq: txq::WrQueue::default(),
            reads: read::InboundReads::default(),
            rx: rx::Receiving::default(),
            rq: VecDeque::new(),
            eof: false,
            cause: None,
            wcs: Vec::new(),
            events: VecDeque::new(),
        }
    }

    /// Makes the side that connects. `poll_tx` yields its request first.
    pub fn initiator(cfg: Config, private_data: &[u8]) -> Result<IwarpEngine, RnicError> {
        let mut startup = startup::Startup::new(FrameKind::Reply);
        startup.tx = startup::request(&cfg, private_data)?;
        Ok(IwarpEngine::new(cfg, ConnState::AwaitReply, startup))
    }

    /// Makes the side that was connected to. It waits for a request and then yields
    /// [`IwarpEvent::Request`]. [`IwarpEngine::accept`] brings its configuration.
    pub fn responder() -> IwarpEngine {
        let startup = startup::Startup::new(FrameKind::Request);
        IwarpEngine::new(NOTHING, ConnState::AwaitRequest, startup)
    }

    /// Responder: accepts the request. The connection is established, but nothing is sent before
    /// the initiator's first message has arrived.
    pub fn accept(&mut self, cfg: Config, private_data: &[u8]) -> Result<(), RnicError> {
        if self.state != ConnState::Asked {
            return Err(self.wrong_state("a connection request"));
        }
        self.queue_accept(&cfg, private_data)
    }

    /// Responder: refuses the request. The driver must drive the engine until it is `closed`.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), RnicError> {
        if self.state != ConnState::Asked {
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

    /// Posts a WR to the send queue.
    pub fn post_send(&mut self, wr: TxWr) -> Result<(), RnicError> {
        if self.state != ConnState::Rts {
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

    /// Posts a receive buffer. Possible as soon as the configuration is known.
    pub fn post_recv(&mut self, buf: RxBuf) -> Result<(), RnicError> {
        if !matches!(self.state, ConnState::AwaitReply | ConnState::Rts) {
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

    /// Takes the posted receives back, on a connection that is not established.
    pub fn take_recvs(&mut self) -> VecDeque<RxBuf> {
        std::mem::take(&mut self.rq)
    }

    /// Moves the completions to `out`. The driver must do so before `poll_event`, because flushed
    /// WRs complete before `Disconnected`.
    pub fn drain_wcs(&mut self, out: &mut Vec<Wc>) {
        out.append(&mut self.wcs);
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<IwarpEvent> {
        self.events.pop_front()
    }

    /// Returns the state under its name in the verbs.
    pub fn state(&self) -> QpState {
        self.state.qp()
    }

    /// Returns true if there is nothing more to send or receive, so that the driver can close the
    /// socket.
    pub fn closed(&self) -> bool {
        self.state == ConnState::Dead
    }

    /// Returns true if each FPDU must fit a TCP segment, so that the driver should say how long these
    /// are ([`IwarpEngine::set_mss`]). Known once the connection is established.
    pub fn must_fit_segments(&self) -> bool {
        !self.settled.large
    }

    /// Returns true if nothing is under way but the next message: another driver can have the
    /// connection. A responder that has heard nothing of the initiator rests, too.
    pub fn rests(&self) -> bool {
        self.state == ConnState::Rts
            && !self.eof
            && self.rx.at_boundary()
            && self.tx.rests()
            && self.sq.is_empty()
            && self.rq.is_empty()
            && !self.owes()
            && self.wcs.is_empty()
            && self.events.is_empty()
    }

    /// Another driver has the connection, for this queue pair of this protection domain.
    pub fn move_to(&mut self, qp: u32, pd: u32) {
        (self.cfg.qp, self.cfg.pd) = (qp, pd);
    }

    /// Sets the TCP MSS in bytes.
    pub fn set_mss(&mut self, mss: usize) {
        self.cfg.mss = mss;
    }

    /// Returns true if the two sides negotiated CRC32C.
    pub fn crc(&self) -> bool {
        self.settled.crc
    }

    /// Returns how many WRs are posted and not complete: (sends, receives).
    #[cfg(any(test, feature = "internals"))]
    pub fn outstanding(&self) -> (usize, usize) {
        (self.sq.len(), self.rq.len() + usize::from(self.rx.receive.is_some()))
    }

    /// Frees the spare memory of empty queues. For connections that fall idle.
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
