//! A socket, as the engine keeps it.

use std::net::SocketAddr;
use std::time::Duration;

use super::accepts::{Accepts, Parent};
use super::attend::AttendedBy;
use super::binding::Binding;
use super::connection::ConnectionFacts;
use super::device::Device;
use super::dial::Dial;
use super::domain::Place;
use super::eager::Burst;
use super::exports::Exports;
use super::holder::Holder;
use super::hosts::Racing;
use super::slots;
use super::timers::Timer;
use super::watch::Watched;
use crate::ids::OpId;
use crate::progress::busy::BusyWindow;
use crate::progress::event::Readiness;
use crate::progress::flags::Interest;
use crate::progress::options::{MOST_INLINE, Options};
use crate::rnic::{Caps, GroupRule, Qp};
use crate::session::{Counters, Demand, OpError, Session, SessionConfig, Standing};
use crate::time::Time;
use crate::trace::{debug, info};
use crate::wire::exs::{Hello, SocketKind};

/// The state of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// New, perhaps bound.
    Fresh,
    /// `connect` was posted.
    Connecting { op: OpId, addr: SocketAddr },
    /// It listens.
    Listening,
    /// A listener made it for a connection whose start-up is not over.
    Accepting { parent: Parent },
    /// It is or was connected: the session knows which.
    Open,
    /// The program has posted `close`, or dropped the last handle: the engine refuses all further
    /// operations.
    Closed,
}

impl State {
    /// The error of an operation that is posted while the socket is not open, or has no session.
    #[cold]
    fn refuses(&self) -> OpError {
        match self {
            State::Open => OpError::PeerClosed,
            State::Closed => OpError::Closed,
            _ => OpError::NotConnected,
        }
    }
}

impl State {
    /// The state, for error messages: "this socket ...".
    pub(super) fn describe(&self) -> &'static str {
        match self {
            State::Fresh => "is not connected",
            State::Connecting { .. } => "is still connecting",
            State::Listening => "is listening",
            State::Accepting { .. } | State::Open => "is connected",
            State::Closed => "is closed",
        }
    }
}

/// A socket.
pub(crate) struct Sock {
    pub(super) generation: u32,
    pub(super) kind: SocketKind,
    pub(super) opts: Options,
    pub(super) state: State,
    pub(super) binding: Binding,
    pub(super) facts: ConnectionFacts,
    pub(super) session: Option<Box<Session>>,
    /// The place of its queue pair, or of its last queue pair.
    pub(super) place: Place,
    pub(super) qp: Option<Qp>,
    /// The last connect has failed, or the listener was shut down: a poll reports an error at once.
    pub(super) refused: bool,
    /// The connect under way.
    pub(super) dial: Option<Box<Dial>>,
    /// Its part in a race between the addresses of a host.
    pub(super) racing: Racing,
    pub(super) accepts: Option<Box<Accepts>>,
    pub(super) polls: Vec<(OpId, Interest)>,
    /// The watch that shows its state. None: no descriptor shows it.
    pub(super) watch: Option<Box<Watched>>,
    pub(super) exports: Exports,
    /// The counters of earlier sessions.
    pub(super) past: Counters,
    pub(super) holder: Holder,
    /// The small sends that followed each other.
    pub(super) burst: Burst,
    /// When its connection was counted last among the busy ones of its device.
    pub(super) busy: BusyWindow,
    /// When its connection joins a link group.
    pub(super) grouping: GroupRule,
    /// Whether a thread waits for the connection itself.
    pub(super) attended: AttendedBy,
    pub(super) timer: Timer,
}

impl Sock {
    pub(super) fn new(generation: u32, kind: SocketKind, opts: Options) -> Sock {
        Sock {
            generation,
            kind,
            opts,
            state: State::Fresh,
            binding: Binding::default(),
            facts: ConnectionFacts::default(),
            session: None,
            place: Place::default(),
            qp: None,
            refused: false,
            dial: None,
            racing: Racing::No,
            accepts: None,
            polls: Vec::new(),
            watch: None,
            exports: Exports::default(),
            past: Counters::default(),
            holder: Holder::PROGRAM,
            burst: Burst::default(),
            busy: BusyWindow::default(),
            grouping: GroupRule::default(),
            attended: AttendedBy::default(),
            timer: Timer::default(),
        }
    }

    /// A socket has come to another shard, where it is on no list.
    pub(super) fn settle_in(&mut self, generation: u32) {
        self.generation = generation;
        (self.burst, self.busy) = (Burst::default(), BusyWindow::default());
        self.attended = AttendedBy::default();
        if let Some(watch) = &mut self.watch {
            watch.settle_in();
        }
    }

    /// The configuration of the socket's session, from its options and the device.
    pub(super) fn session_config(&self, caps: &Caps) -> SessionConfig {
        let clamp = |n: usize, least: usize, most: usize| {
            u32::try_from(n.clamp(least, most)).unwrap_or(u32::MAX)
        };
        SessionConfig {
            kind: self.kind,
            ring: clamp(self.opts.ring_size, 4 << 10, 1 << 30),
            inline_max: clamp(self.opts.inline_by(caps.within_host), 0, MOST_INLINE),
            max_chunk: clamp(usize::try_from(caps.max_msg).unwrap_or(usize::MAX), 1, 1 << 20),
            max_msg: self.opts.max_message,
            credits: Device::credits(caps),
            most_credits: caps.max_receives,
            demand: Demand::default(),
            slot: slots::slot_len(caps),
            max_send_wr: Device::send_depth(caps),
            keepalive: self.opts.keep_alive,
            dead_after: self.opts.dead_after,
            send_timeout: self.opts.send_timeout,
            recv_timeout: self.opts.recv_timeout,
            linger: self.opts.linger,
            handshake_timeout: self.opts.connect_timeout.max(Duration::from_millis(1)),
            ring_idle: Some(Duration::from_secs(30)),
            confirm: !caps.small_reads,
            atomics: caps.atomics,
            features: Hello::FEATURES,
            force_announce: None,
        }
    }

    /// True for a connection that the program has not taken, from its listener or from its event
    /// queue.
    pub(super) fn is_untaken(&self) -> bool {
        matches!(self.state, State::Accepting { .. })
            || (self.state == State::Open && self.holder.is_untaken())
    }

    /// True if it is a part of a listener of another shard.
    pub(super) fn is_branch(&self) -> bool {
        self.accepts.as_ref().is_some_and(|a| a.trunk.is_some())
    }

    /// Logs the end of the session, and what it has moved.
    pub(super) fn log_end(&self) {
        let Some(session) = &self.session else { return };
        let (sent, received) = (session.counters().sent(), session.counters().received());
        self.facts.log(|| match session.failure() {
            Some(why) => {
                info!("broken after {sent} bytes sent and {received} received: {why}");
            }
            None => debug!("ended after {sent} bytes sent and {received} received"),
        });
    }

    /// The time at which the engine must look after the socket, though nothing has happened to it.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let session = self.session.as_ref().and_then(|s| s.next_timeout());
        let exports = self.exports.next_timeout();
        let accepts = self.accepts.as_ref().and_then(|a| a.next_timeout());
        session.into_iter().chain(exports).chain(accepts).chain(self.racing.next_timeout()).min()
    }

    /// What `poll` would report.
    pub(super) fn readiness(&self) -> Readiness {
        if let Some(a) = &self.accepts {
            // If all its devices were removed, no connection can come any more.
            let over = a.on.is_empty();
            return Readiness {
                readable: over || !a.ready.is_empty(),
                writable: over,
                error: over,
            };
        }
        match (&self.state, &self.session) {
            (State::Open, Some(s)) => {
                Readiness { readable: s.readable(), writable: s.writable(), error: s.is_over() }
            }
            (State::Open | State::Closed, _) => {
                Readiness { readable: true, writable: true, error: true }
            }
            (State::Fresh, _) if self.refused => {
                Readiness { readable: true, writable: true, error: true }
            }
            _ => Readiness::default(),
        }
    }

    /// The state that its descriptor must show.
    #[inline]
    pub(super) fn standing(&self) -> Standing {
        if let (State::Open, Some(s), None) = (&self.state, &self.session, &self.accepts) {
            return s.standing();
        }
        // A socket whose connect has failed may connect again, so nothing of it has ended.
        let Readiness { readable, error, .. } = self.readiness();
        let arrived = self.accepts.as_ref().map_or(0, |a| a.came);
        Standing { readable: readable || error, arrived, ..Standing::default() }
    }

    /// The session, if operations may be posted to it.
    pub(super) fn open_session(&mut self) -> Result<&mut Session, OpError> {
        match (&self.state, &mut self.session) {
            (State::Open, Some(s)) => Ok(s),
            (state, _) => Err(state.refuses()),
        }
    }
}
