//! F5: one queue pair as one EXS connection, without I/O.
//!
//! A [`Session`] joins the machines of `stream` or `packet` with what they leave
//! out: the hellos, credits, the memory (rings, windows, bounce buffers), the work
//! requests, one-sided operations, shutdown, close, keep-alive and every time limit.
//! Things go in by `handle_*` and `post_*`; [`Session::drive`] turns what is due into
//! calls of a [`Port`], which is the queue pair or, in the tests, a virtual link;
//! operations that have ended come out of [`Session::poll_done`]. After each call of
//! another kind, call `drive`, then `poll_done` until it gives nothing, then look at
//! [`Session::next_timeout`].
//!
//! What this floor promises:
//! - Every operation accepted yields exactly one [`Done`], whatever happens.
//! - When it does, neither the RNIC nor the peer touches the operation's memory any
//!   more: its WRs have completed or were flushed, its window is closed, and a
//!   buffer that the peer knew of was withdrawn and the peer has said so, or the
//!   connection is gone.
//! - Nothing waits for ever on a peer that does not answer: a close is bounded by
//!   its linger time, a withdrawal by `dead_after` or `linger`, the handshake by
//!   `handshake_timeout`; the rest by `dead_after` if the user sets it.
//! - Credits: no message meets an empty receive queue (`flow.rs`, with the argument
//!   why this cannot lock up).
//! - Two directions never wait for each other, except for credits.
//!
//! How data are announced (`tx.rs`): small ones ride inside of the message; others
//! are written, and announced by the WRITE's own immediate data if the RNIC has that
//! and no message is due anyway, else by a SEND behind the WRITE. Bytes of a file are
//! announced when their WRITE has completed, since only then it is known how many
//! the file really had.
//!
//! How a connection ends (`end.rs`):
//!
//! ```text
//! close: sends and one-sided operations end, FIN --> CLOSE -->
//!                        peer: its sends end (EPIPE), --> CLOSE_ACK behind its last data
//!        receives end (ECANCELED), orderly disconnect
//! ```
//!
//! Anything else that ends it - abort, a broken link, a silent peer, a violation -
//! closes all windows, cuts the link, and ends every operation with the reason.
//!
//! What it must never know: sockets, descriptors, threads, clocks, the RNIC's driver.

mod adverts;
mod close;
mod confirm;
mod drive;
mod eager;
mod error;
mod flow;
mod hello;
mod life;
mod ops;
mod out;
mod post;
mod proto;
mod rx;
mod sendq;
mod sided;
#[cfg(test)]
mod sim;
mod table;
#[cfg(test)]
mod tests;
mod timers;
mod tx;
mod types;

pub use eager::After;
pub use error::{OpError, Refusal, SessionError, Violation};
pub use rx::MessageBytes;
pub use types::{
    Announce, Buf, Counters, Done, IoVec, Port, RecvOpts, SendSource, SessionConfig, Standing,
};

use std::collections::VecDeque;

use crate::mem::Key;
use crate::rnic::{Wc, WcStatus};
use crate::time::Time;
use crate::wire::exs::{Hello, Refusal as WireRefusal};

use close::Closing;
use confirm::Confirms;
use flow::Flow;
use life::Life;
use ops::{Group, Recv, Send, Sided};
use out::Outbox;
use proto::{Job, Proto};
use rx::Ring;
use sendq::{PostedWr, SendQueue, WrEnd, WrPurpose};
use table::Table;
use timers::Timers;

/// A post that was refused: why, and the thing that was to be moved.
pub type PostError<T> = (OpError, T);

/// One connection.
#[derive(Debug)]
pub struct Session {
    cfg: SessionConfig,
    life: Life,
    initiator: bool,
    /// There as soon as both hellos are known.
    proto: Option<Proto>,
    flow: Flow,
    sendq: SendQueue,
    sends: Table<Send>,
    recvs: Table<Recv>,
    groups: Table<Group>,
    sided: Table<Sided>,
    /// READs that may be outstanding, and those that are.
    ord: u32,
    reads: u32,
    confirms: Confirms,
    /// The chunk that is being posted. Nothing of its direction overtakes it.
    job: Option<Job>,
    out: Outbox,
    /// The peer understands ADVERTs that ask it to close their windows.
    asks_close: bool,
    /// The peer is on this host.
    near: bool,
    /// Our ring or stash.
    ring: Option<Ring>,
    /// Windows that the user opened.
    exports: Vec<Key>,
    /// The port's memory, to be given back.
    trash: Vec<Buf>,
    done: VecDeque<Done>,
    closing: Closing,
    timers: Timers,
    counters: Counters,
    /// `drive` has posted something; it should leave before long; it is urgent.
    posted: bool,
    soon: bool,
    urgent: bool,
    /// Something was posted that need not leave, since anything last left.
    idle_posted: bool,
    /// Bytes of an ADVERT of several receives, as far as it is for the peer to say.
    several: u32,
    /// One-sided operations go first this time.
    sided_first: bool,
}

impl Session {
    fn new(cfg: SessionConfig, initiator: bool) -> Session {
        Session {
            life: Life::new(),
            initiator,
            proto: None,
            flow: Flow::new(cfg.credits, 0),
            sendq: SendQueue::new(cfg.max_send_wr),
            sends: Table::new(),
            recvs: Table::new(),
            groups: Table::new(),
            sided: Table::new(),
            ord: 0,
            reads: 0,
            confirms: Confirms::default(),
            job: None,
            out: Outbox::default(),
            asks_close: false,
            near: false,
            ring: None,
            exports: Vec::new(),
            trash: Vec::new(),
            done: VecDeque::new(),
            closing: Closing::default(),
            timers: Timers::default(),
            counters: Counters::default(),
            posted: false,
            soon: false,
            urgent: false,
            idle_posted: false,
            several: 0,
            sided_first: false,
            cfg,
        }
    }

    /// The side that connects.
    pub fn initiator(cfg: SessionConfig) -> Session {
        Session::new(cfg, true)
    }

    /// Our hello: the private data for `connect`.
    pub fn hello(&self) -> Vec<u8> {
        hello::emit(&hello::ours(&self.cfg))
    }

    /// The side that accepts: answers the private data of a connection request with
    /// those for `accept`, or for `reject`.
    pub fn responder(cfg: SessionConfig, theirs: &[u8]) -> Result<(Session, Vec<u8>), Refusal> {
        let peer = hello::agree(&cfg, theirs)?;
        let mut session = Session::new(cfg, false);
        session.meet(&peer);
        let reply = session.hello();
        Ok((session, reply))
    }

    /// Both hellos are known.
    fn meet(&mut self, peer: &Hello) {
        let (proto, flow) = hello::machines(&self.cfg, peer);
        self.several = if peer.features & Hello::SEVERAL != 0 { peer.slot } else { 0 };
        (self.proto, self.flow) = (Some(proto), flow);
        self.asks_close = peer.features & Hello::INVALIDATE != 0;
        self.confirms.by_message = peer.features & Hello::CONFIRM != 0;
    }

    /// What the private data of a rejection say.
    #[cold]
    pub fn refusal(private_data: &[u8]) -> SessionError {
        match WireRefusal::parse(private_data) {
            Some(why) => SessionError::Refused(why),
            None => SessionError::RefusedSilently,
        }
    }

    /// The QP is connected. `private_data` are the acceptor's (initiator side only),
    /// `ord` the READs that may be outstanding; `near`: the peer is on this host, so that it
    /// has within microseconds what we tell it. After an error, abort.
    pub fn handle_established(
        &mut self,
        now: Time,
        private_data: &[u8],
        ord: u32,
        near: bool,
    ) -> Result<(), SessionError> {
        (self.ord, self.near) = (ord, near);
        if !self.life.is_idle() {
            return Ok(()); // ended before it began, or the first message was faster
        }
        self.timers.heard(now);
        if self.initiator {
            let peer = hello::agree(&self.cfg, private_data).map_err(|r| r.error)?;
            self.meet(&peer);
            self.life.on_connected();
            self.out.ready_due = true;
        } else {
            self.life.on_accepted();
            self.timers.handshake = Some(now + self.cfg.handshake_timeout);
        }
        if let Some(Proto::Stream(stream)) = &mut self.proto {
            stream.tx.set_near(near);
        }
        Ok(())
    }

    /// A WR of the send queue has completed. (Receives come by `handle_message`.)
    pub fn handle_wc(&mut self, now: Time, wc: &Wc) {
        if wc.status == WcStatus::Success {
            self.timers.heard(now);
            self.timers.moved(now);
        }
        while let Some((entry, own)) = self.sendq.retire(wc.wr_id) {
            self.retired(entry, if own { WrEnd::Own(wc) } else { WrEnd::Implied });
        }
    }

    /// A WR is over. What it was to move has moved only if it succeeded, but its
    /// memory is free in any case.
    fn retired(&mut self, entry: PostedWr, over: WrEnd<'_>) {
        self.trash.extend(entry.bounce);
        match entry.what {
            WrPurpose::Message => {}
            WrPurpose::Piece { op } => self.release_send(op),
            WrPurpose::Chunk { op, len } => {
                if over.status() == WcStatus::Success
                    && let Some(proto) = &mut self.proto
                {
                    proto.handle_sent(op, len);
                }
                self.release_send(op);
            }
            WrPurpose::File { op } => {
                self.file_written(over);
                self.release_send(op);
            }
            WrPurpose::Sided { op, len, read } => self.sided_retired(op, len, read, over.status()),
        }
        if let WcStatus::LocalProtection(fault) = over.status() {
            self.fail(OpError::LocalMemory(fault.into()));
        }
    }

    /// `poll_done` has something.
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// The next operation that has ended.
    pub fn poll_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// What was posted should leave before long; if not, it may wait for whatever
    /// leaves next.
    pub fn soon(&self) -> bool {
        self.soon || self.urgent
    }

    /// What the last `drive` posted should leave now: data, or what the peer waits
    /// for, as opposed to ADVERTs that may ride with the next flush.
    pub fn urgent(&self) -> bool {
        self.urgent
    }

    /// A receive would not wait: there are data, or the end, or an error.
    pub fn readable(&self) -> bool {
        self.life.reason().is_some()
            || self.life.recv_is_shut()
            || self.proto.as_ref().is_some_and(Proto::readable)
    }

    /// A send would not wait behind another one, or would fail at once.
    pub fn writable(&self) -> bool {
        match self.life.is_connected() {
            true => self.sends.is_empty(),
            false => !self.life.is_idle(),
        }
    }

    /// What a descriptor is to say of the connection.
    pub fn standing(&self) -> Standing {
        let (fin, arrived, available) = self.proto.as_ref().map_or((false, 0, 0), Proto::incoming);
        let life = &self.life;
        Standing {
            readable: self.readable(),
            arrived,
            available: if life.recv_is_shut() { 0 } else { available },
            ended: fin || life.recv_is_shut() || life.peer_closed() || life.is_over(),
            // What ends with the connection was not shut down by that.
            shut: life.is_closing()
                || life.send_is_shut() && self.proto.as_ref().is_some_and(Proto::is_shut),
            broken: life.failure().is_some(),
        }
    }

    /// The handshake is over and nothing has ended the connection.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_connected(&self) -> bool {
        !self.life.is_over() && !self.life.awaits_ready()
    }

    /// Something has ended the connection, or is about to.
    pub fn is_over(&self) -> bool {
        self.life.is_over()
    }

    /// Why the connection is over, if it has not ended in order.
    pub fn failure(&self) -> Option<&OpError> {
        self.life.failure()
    }

    /// Nothing is outstanding, no window is open and no memory of the port's is held:
    /// the QP may be destroyed. The session still answers posts (with the end of the
    /// data, or the error).
    pub fn is_finished(&self) -> bool {
        self.life.is_gone()
            && self.no_ops()
            && self.ring.is_none()
            && self.exports.is_empty()
            && self.trash.is_empty()
    }

    fn no_ops(&self) -> bool {
        self.sends.is_empty()
            && self.recvs.is_empty()
            && self.groups.is_empty()
            && self.sided.is_empty()
            && self.closing.is_empty()
    }

    /// Figures.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
