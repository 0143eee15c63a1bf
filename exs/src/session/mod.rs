//! F5: one queue pair as one EXS connection, without I/O.
//!
//! A [`Session`] joins the machines of `stream` or `packet` with what they leave out: the
//! hellos, credits, the memory (rings, windows, bounce buffers), the work requests, one-sided
//! operations, shutdown, close, keep-alive and every time limit. Input arrives by `handle_*` and
//! `post_*`. [`Session::drive`] turns what is due into calls of a [`Port`], which is the queue
//! pair or, in the tests, a virtual link. Operations that have ended come out of
//! [`Session::poll_done`]. After each call of another kind, call `drive`, then `poll_done` until
//! it gives nothing, then look at [`Session::next_timeout`].
//!
//! What this floor promises:
//! - Every operation accepted yields exactly one [`Done`].
//! - When it does, neither the RNIC nor the peer touches the memory of the operation any more:
//!   its WRs have completed or were flushed, and its window is closed. A buffer that the peer
//!   knew of was withdrawn and the peer has answered, or the connection is gone.
//! - No operation waits for ever on a peer that does not answer: a close is bounded by its
//!   linger time, a withdrawal by `dead_after` or `linger`, the handshake by
//!   `handshake_timeout`, and the rest by `dead_after` if the program sets it.
//! - Credits: no message meets an empty receive queue (`credits.rs`, with the argument why this
//!   cannot lock up).
//! - The two directions never wait for each other, except for credits.
//!
//! How data are announced (`tx.rs`): small data ride inside the message. Others are written.
//! The WRITE's own immediate data announce them, if the RNIC has immediates and no message is
//! due anyway; otherwise a SEND behind the WRITE does. Bytes of a file are announced when their
//! WRITE has completed, since only then the session knows how many bytes the file really had.
//!
//! The session owns parts with private fields, and each part takes what it needs as arguments:
//!
//! | part | owns |
//! |---|---|
//! | `life.rs` | the state of the connection: three machines with one table each |
//! | `close.rs` | the closes that the program waits for |
//! | `credits.rs` | receives of the peer that this side may use, and the reverse |
//! | `extra.rs`, `demand.rs` | more receives for a busy peer, and when that is |
//! | `sendq.rs` | the WRs in the send queue |
//! | `out.rs` | control messages that wait |
//! | `doorbell.rs` | how soon what was posted must leave |
//! | `sender.rs` | sends, and the chunk that is being posted |
//! | `receiver.rs` | receives, their windows and bounce buffers |
//! | `ring.rs` | the memory of this side's ring or stash |
//! | `sided.rs` | one-sided operations, exports, confirmations (`confirm.rs`) |
//! | `timers.rs` | points in time |
//! | `hello.rs` | what is known of the peer |
//! | `proto.rs` | the machines of `stream` or `packet` |
//!
//! `drive.rs` is the main loop. `tx.rs`, `rx.rs`, `adverts.rs` and `eager.rs` carry out what the
//! machines want. `inspect.rs` says to observers what a session is doing. `rehome.rs` is for a
//! connection that goes to another port.
//!
//! How a connection ends (`close.rs`):
//!
//! ```text
//! close: sends and one-sided operations end, FIN --> CLOSE -->
//!                        peer: its sends end (EPIPE), --> CLOSE_ACK behind its last data
//!        receives end (ECANCELED), orderly disconnect
//! ```
//!
//! Any other end (abort, a broken link, a silent peer, a violation) closes all windows, cuts the
//! link, and ends every operation with the reason.
//!
//! What this floor must never know: sockets, descriptors, threads, clocks, the RNIC's driver.

mod adverts;
mod close;
mod confirm;
mod credits;
mod demand;
mod doorbell;
mod drive;
mod eager;
mod error;
mod extra;
mod hello;
mod inspect;
mod life;
mod loan;
mod out;
mod post;
mod proto;
mod receiver;
mod rehome;
mod ring;
mod rx;
mod sender;
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

pub use demand::Demand;
pub use doorbell::Doorbell;
pub use eager::{After, VisitRead};
pub use error::{OpError, Refusal, SessionError, Violation};
pub use inspect::{Activity, Progress};
pub use loan::SessionLoan;
pub use rx::MessageBytes;
pub use types::{
    Announce, Buf, Counters, Done, IoVec, Port, RecvOpts, SendSource, SessionConfig, Standing,
};

use std::collections::VecDeque;

use crate::mem::Atomics;
use crate::rnic::{Wc, WcStatus};
use crate::time::Time;
use crate::trace::ConnectionSpan;
use crate::wire::exs::{Hello, Refusal as WireRefusal};

use close::Closing;
use credits::Credits;
use doorbell::Unrung;
use extra::Extra;
use hello::Peer;
use life::Life;
use out::Outbox;
use proto::Proto;
use receiver::Receiver;
use ring::LocalRing;
use sender::Sender;
use sendq::{PostedWr, SendQueue, WrEnd, WrPurpose};
use sided::OneSided;
use timers::Timers;

/// A post that was refused: why, and the memory or file that the caller gets back.
pub type PostError<T> = (OpError, T);

/// One connection.
#[derive(Debug)]
pub struct Session {
    cfg: SessionConfig,
    /// This side connected; the other one accepted.
    initiator: bool,
    life: Life,
    closing: Closing,
    peer: Peer,
    /// The protocol machines. `None` until both hellos are known.
    proto: Option<Proto>,
    credits: Credits,
    extra: Extra,
    sendq: SendQueue,
    out: Outbox,
    unrung: Unrung,
    sender: Sender,
    receiver: Receiver,
    ring: LocalRing,
    sided: OneSided,
    timers: Timers,
    /// The port's memory that the next `drive` gives back.
    trash: Vec<Buf>,
    /// Operations that have ended, for `poll_done`.
    done: VecDeque<Done>,
    /// Threads have the connection ([`SessionLoan`]).
    lent: bool,
    counters: Counters,
    /// Where READY is logged.
    span: ConnectionSpan,
}

impl Session {
    fn new(cfg: SessionConfig, initiator: bool) -> Session {
        Session {
            initiator,
            life: Life::new(),
            closing: Closing::default(),
            peer: Peer::default(),
            proto: None,
            credits: Credits::new(cfg.credits, 0, 0),
            extra: Extra::default(),
            sendq: SendQueue::new(cfg.max_send_wr),
            out: Outbox::default(),
            unrung: Unrung::default(),
            sender: Sender::new(),
            receiver: Receiver::new(),
            ring: LocalRing::default(),
            sided: OneSided::new(),
            timers: Timers::default(),
            trash: Vec::new(),
            done: VecDeque::new(),
            lent: false,
            counters: Counters::default(),
            span: ConnectionSpan::NONE,
            cfg,
        }
    }

    /// The session of the side that accepts logs the arrival of READY inside of this span.
    pub(crate) fn set_span(&mut self, span: ConnectionSpan) {
        self.span = span;
    }

    /// The side that connects.
    pub fn initiator(cfg: SessionConfig) -> Session {
        Session::new(cfg, true)
    }

    /// This side's hello: the private data for `connect`.
    pub fn hello(&self) -> Vec<u8> {
        hello::emit(&hello::ours(&self.cfg))
    }

    /// The side that accepts. Reads the private data of a connection request, and gives those for
    /// `accept`.
    ///
    /// # Errors
    /// The two sides do not fit. The refusal has the private data for `reject`.
    pub fn responder(cfg: SessionConfig, theirs: &[u8]) -> Result<(Session, Vec<u8>), Refusal> {
        let peer = hello::agree(&cfg, theirs)?;
        let mut session = Session::new(cfg, false);
        session.meet(&peer);
        let reply = session.hello();
        Ok((session, reply))
    }

    /// Both hellos are known.
    fn meet(&mut self, theirs: &Hello) {
        let (proto, credits) = hello::machines(&self.cfg, theirs);
        (self.proto, self.credits) = (Some(proto), credits);
        self.peer = Peer::new(theirs);
        self.extra = Extra::new(&self.cfg, theirs);
        self.sided.confirms_mut().set_by_message(theirs.features & Hello::CONFIRM != 0);
    }

    /// The reason that the private data of a rejection give.
    #[cold]
    pub fn refusal(private_data: &[u8]) -> SessionError {
        match WireRefusal::parse(private_data) {
            Some(why) => SessionError::Refused(why),
            None => SessionError::RefusedSilently,
        }
    }

    /// The QP is connected. `private_data` are the acceptor's, for the side that connects.
    /// `ord`: READs that may be outstanding. `near`: the peer is on this host, so it learns within
    /// microseconds what this side sends.
    ///
    /// # Errors
    /// The two sides do not fit. The caller must abort.
    pub fn handle_established(
        &mut self,
        now: Time,
        private_data: &[u8],
        ord: u32,
        near: bool,
    ) -> Result<(), SessionError> {
        self.sided.set_ord(ord);
        self.peer.set_near(near);
        if !self.life.is_idle() {
            return Ok(()); // ended before it began, or the first message overtook this call
        }
        self.timers.heard(now);
        if self.initiator {
            let peer = hello::agree(&self.cfg, private_data).map_err(|r| r.error)?;
            self.meet(&peer);
            self.life.on_connected();
            self.out.queue_ready();
        } else {
            self.life.on_accepted();
            self.timers.handshake = Some(now + self.cfg.handshake_timeout);
        }
        if let Some(Proto::Stream(stream)) = &mut self.proto {
            stream.tx.set_near(near);
        }
        Ok(())
    }

    /// A WR of the send queue has completed. Receives arrive by `handle_message`.
    pub fn handle_wc(&mut self, now: Time, wc: &Wc) {
        if wc.status == WcStatus::Success {
            self.timers.heard(now);
            self.timers.moved(now);
        }
        while let Some((entry, own)) = self.sendq.retire(wc.wr_id) {
            self.retired(entry, if own { WrEnd::Own(wc) } else { WrEnd::Implied });
        }
    }

    /// A WR is over, so its memory is free. Its bytes have moved only if it succeeded.
    fn retired(&mut self, entry: PostedWr, over: WrEnd<'_>) {
        self.trash.extend(entry.bounce);
        match entry.what {
            WrPurpose::Message => {}
            WrPurpose::Piece { op } => self.release_send(op),
            WrPurpose::Chunk { op, len } => {
                self.sender.found_room(op);
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

    /// An operation that has ended waits for `poll_done`.
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// The next operation that has ended.
    pub fn poll_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// A receive would not wait: there are data, or their end, or an error.
    pub fn readable(&self) -> bool {
        self.life.reason().is_some()
            || self.life.recv_is_shut()
            || self.proto.as_ref().is_some_and(Proto::readable)
    }

    /// A send would wait for no other send, or would fail at once.
    pub fn writable(&self) -> bool {
        match self.life.is_connected() {
            true => self.sender.is_empty(),
            false => !self.life.is_idle(),
        }
    }

    /// What a descriptor reports of the connection.
    pub fn standing(&self) -> Standing {
        let (fin, arrived, available) = self.proto.as_ref().map_or((false, 0, 0), Proto::incoming);
        let life = &self.life;
        Standing {
            readable: self.readable(),
            arrived,
            available: if life.recv_is_shut() { 0 } else { available },
            ended: fin || life.recv_is_shut() || life.peer_closed() || life.is_over(),
            // The end of the connection alone shuts nothing down.
            shut: life.is_closing()
                || life.send_is_shut() && self.proto.as_ref().is_some_and(Proto::is_shut),
            broken: life.failure().is_some(),
        }
    }

    /// The handshake is done, and the connection has not ended.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_connected(&self) -> bool {
        !self.life.is_over() && !self.life.awaits_ready()
    }

    /// The connection has ended, or is about to.
    pub fn is_over(&self) -> bool {
        self.life.is_over()
    }

    /// Why the connection is over, if it has not ended in order.
    pub fn failure(&self) -> Option<&OpError> {
        self.life.failure()
    }

    /// The QP may be destroyed: no operation is outstanding, no window is open and no memory of
    /// the port's is held. The session still answers posts, with the end of the data or the
    /// error.
    pub fn is_finished(&self) -> bool {
        self.life.is_gone()
            && self.sender.is_empty()
            && self.receiver.holds_nothing()
            && !self.ring.exists()
            && self.sided.is_empty()
            && self.sided.has_no_exports()
            && self.closing.is_empty()
            && self.trash.is_empty()
    }

    /// What the peer's RNIC executes this side's atomic operations with. `None` also while the peer is
    /// not known, or if the agreement allows no READs.
    pub fn peer_atomics(&self) -> Atomics {
        let can = self.sided.can_read() && self.cfg.atomics > Atomics::None;
        if can { self.peer.atomics() } else { Atomics::None }
    }

    /// What the connection counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
