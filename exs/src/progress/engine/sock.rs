//! A socket, as the engine keeps it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::accepts::{Accepts, Parent};
use super::attend::AttendedBy;
use super::device::Device;
use super::dial::Dial;
use super::domain::Place;
use super::eager::Burst;
use super::hosts::Racing;
use super::onesided::ExportId;
use super::ops::TempMrs;
use super::slots;
use super::timers::Timer;
use super::watch::Watched;
use crate::ids::OpId;
use crate::mem::{Buffer, Key};
use crate::progress::event::Readiness;
use crate::progress::flags::Interest;
use crate::progress::handle::Claim;
use crate::progress::options::{MOST_INLINE, Options};
use crate::progress::route::Route;
use crate::rnic::{Caps, Qp};
use crate::session::{Buf, Counters, Demand, OpError, Session, SessionConfig, Standing};
use crate::time::Time;
use crate::trace::{ConnectionSpan, debug, info};
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

/// An export.
pub(super) struct ExportEntry {
    pub(super) key: Key,
    pub(super) buf: Buf,
    pub(super) buffer: Buffer,
    pub(super) temp: TempMrs,
    /// False once it has been revoked, or its lifetime has passed.
    pub(super) open: bool,
    /// The end of its lifetime. None: it has no such end.
    pub(super) expires: Option<Time>,
}

impl ExportEntry {
    /// Frees the memory of an export that is closed. Returns its buffer.
    pub(super) fn free(self, device: &mut Device, domain: u32) -> Buffer {
        let ExportEntry { buf, buffer, temp, .. } = self;
        drop(buf);
        device.unprepare(domain, &temp, None);
        buffer
    }
}

/// A socket.
pub(crate) struct Sock {
    pub(super) generation: u32,
    pub(super) kind: SocketKind,
    pub(super) opts: Options,
    pub(super) state: State,
    pub(super) bound: Option<SocketAddr>,
    /// The address that the program gave to `bind`.
    pub(super) asked: Option<SocketAddr>,
    /// A descriptor that keeps the TCP port of `bind` until `listen` or `connect` uses it.
    pub(super) port: Option<OwnedFd>,
    pub(super) addrs: Option<(SocketAddr, SocketAddr)>,
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
    /// The device of the connection, and the reason for its choice.
    pub(super) route: Option<Box<Route>>,
    /// The span of the connection, for logs.
    pub(super) span: ConnectionSpan,
    pub(super) accepts: Option<Box<Accepts>>,
    pub(super) polls: Vec<(OpId, Interest)>,
    /// The watch that shows its state. None: no descriptor shows it.
    pub(super) watch: Option<Box<Watched>>,
    pub(super) exports: HashMap<ExportId, ExportEntry>,
    /// The counters of earlier sessions.
    pub(super) past: Counters,
    /// The program has a handle.
    pub(super) held: bool,
    /// Of an accepted connection: whether the program has taken it. None: it was not accepted, or
    /// no accept has it yet.
    pub(super) taken: Option<Claim>,
    /// Posted WRs wait for the doorbell.
    pub(super) lazy: bool,
    /// The small sends that followed each other.
    pub(super) burst: Burst,
    /// Whether a thread waits for the connection itself.
    pub(super) attended: AttendedBy,
    /// It is on the list of sockets that the engine must serve.
    pub(super) dirty: bool,
    pub(super) timer: Timer,
}

impl Sock {
    pub(super) fn new(generation: u32, kind: SocketKind, opts: Options) -> Sock {
        Sock {
            generation,
            kind,
            opts,
            state: State::Fresh,
            bound: None,
            asked: None,
            port: None,
            addrs: None,
            session: None,
            place: Place::default(),
            qp: None,
            refused: false,
            dial: None,
            racing: Racing::No,
            route: None,
            span: ConnectionSpan::NONE,
            accepts: None,
            polls: Vec::new(),
            watch: None,
            exports: HashMap::new(),
            past: Counters::default(),
            held: true,
            taken: None,
            lazy: false,
            burst: Burst::default(),
            attended: AttendedBy::default(),
            dirty: false,
            timer: Timer::default(),
        }
    }

    /// A new socket has come to another shard, where it is on no list.
    pub(super) fn settle_in(&mut self, generation: u32) {
        (self.generation, self.dirty) = (generation, false);
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
        let waits = self.taken.as_ref().map_or(!self.held, |t| !t.load(Ordering::Relaxed));
        matches!(self.state, State::Accepting { .. }) || (self.state == State::Open && waits)
    }

    /// Logs that the connection is established.
    pub(super) fn log_established(&self) {
        if let Some((local, _)) = self.addrs {
            self.span.note_local(local);
        }
        self.span.log(|| debug!("the connection is established"));
    }

    /// Logs the end of the session, and what it has moved.
    pub(super) fn log_end(&self) {
        let Some(session) = &self.session else { return };
        let (sent, received) = (session.counters().sent(), session.counters().received());
        self.span.log(|| match session.failure() {
            Some(why) => {
                info!("broken after {sent} bytes sent and {received} received: {why}");
            }
            None => debug!("ended after {sent} bytes sent and {received} received"),
        });
    }

    /// The time at which the engine must look after the socket, though nothing has happened to it.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let session = self.session.as_ref().and_then(|s| s.next_timeout());
        let exports = self.exports.values().filter(|e| e.open).filter_map(|e| e.expires).min();
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
