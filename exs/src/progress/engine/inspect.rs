//! What sockets are doing now, for readers outside of the process.
//!
//! Copies of numbers and addresses, a few sockets at a time: the text is made without the lock.

use std::net::SocketAddr;

use super::Engine;
use super::sock::{Sock, State};
use super::sockets::SockId;
use crate::plain::KernelFigures;
use crate::progress::options::Transport;
use crate::session::{Activity, Counters, Progress};
use crate::time::Time;
use crate::wire::exs::SocketKind;

/// What a listener is doing.
#[derive(Clone, Debug)]
pub(in crate::progress) struct ListenerFigures {
    /// The most connections that may wait, and the start-ups, together.
    pub(in crate::progress) backlog: usize,
    /// Connections that start up, with a place in the backlog.
    pub(in crate::progress) starting: usize,
    /// Connections that the program can accept.
    pub(in crate::progress) ready: usize,
    /// Requests for which the backlog has no room.
    pub(in crate::progress) waiting: usize,
    /// Accepts of the program that wait for a connection.
    pub(in crate::progress) accepts: usize,
    /// The connections established so far.
    pub(in crate::progress) established: u64,
    /// The devices that listen.
    pub(in crate::progress) devices: Vec<String>,
}

/// What a socket is doing.
#[derive(Clone, Debug)]
pub(in crate::progress) struct SocketFigures {
    pub(in crate::progress) id: SockId,
    pub(in crate::progress) kind: SocketKind,
    /// A word for its state.
    pub(in crate::progress) state: &'static str,
    pub(in crate::progress) local: Option<SocketAddr>,
    pub(in crate::progress) peer: Option<SocketAddr>,
    /// The transport and the device of the connection, or of the attempt.
    pub(in crate::progress) route: Option<(Transport, String)>,
    /// What the connections of the socket counted.
    pub(in crate::progress) counters: Counters,
    /// None: the socket has no session.
    pub(in crate::progress) activity: Option<Activity>,
    /// None: the socket does not listen.
    pub(in crate::progress) listener: Option<ListenerFigures>,
    /// Memory that the peer may reach.
    pub(in crate::progress) exports: usize,
}

/// A word for the state of a socket.
fn state_of(s: &Sock, activity: Option<&Activity>) -> &'static str {
    match (&s.state, activity.map(|a| a.progress)) {
        (State::Fresh, _) => "new",
        (State::Connecting { .. }, _) => "connecting",
        (State::Listening, _) => "listening",
        (State::Accepting { .. }, _) | (State::Open, Some(Progress::Starting)) => "starting",
        (State::Open, Some(Progress::Open)) => "open",
        (State::Open, Some(Progress::HalfClosed)) => "half-closed",
        (State::Open, Some(Progress::Broken)) => "broken",
        (State::Open, Some(Progress::Ended) | None) => "ended",
        (State::Closed, Some(_)) => "closing",
        (State::Closed, None) => "closed",
    }
}

impl Engine {
    /// What the sockets in the next `most` slots from `from` on are doing, and the slot after them.
    /// None in place of the slot: there are no more.
    pub(in crate::progress) fn inspect(
        &mut self,
        from: u32,
        most: u32,
        now: Time,
    ) -> (Vec<SocketFigures>, Option<u32>) {
        let slots = self.sockets.slots();
        let end = from.saturating_add(most).min(slots);
        self.recall_slots(from..end, now);
        let found = (from..end).filter_map(|index| self.sockets.peek(index));
        let found = found.filter(|(_, s)| !s.is_branch());
        let figures = found.map(|(id, s)| self.figures_of(id, s)).collect();
        (figures, (end < slots).then_some(end))
    }

    fn figures_of(&self, id: SockId, s: &Sock) -> SocketFigures {
        let activity = s.session.as_ref().map(|session| session.activity());
        let connecting = match s.state {
            State::Connecting { addr, .. } => Some(addr),
            _ => None,
        };
        let listener = s.accepts.as_ref().map(|a| ListenerFigures {
            backlog: a.backlog,
            starting: a.starting.places(),
            ready: a.ready.len(),
            waiting: a.waiting.len(),
            accepts: a.ops.len() + a.branches.accepts(),
            established: a.came.wrapping_add(a.branches.served()),
            devices: a.on.iter().map(|(p, _)| self.devices[p.device].name().to_owned()).collect(),
        });
        SocketFigures {
            id,
            kind: s.kind,
            state: state_of(s, activity.as_ref()),
            local: s.facts.local().or(s.binding.addr()),
            peer: s.facts.peer().or(connecting),
            route: s.facts.route().map(|r| (r.transport, r.device.clone())),
            counters: self.sockets.counters_of(id).unwrap_or_default(),
            activity,
            listener,
            exports: s.exports.count(),
        }
    }

    /// As `inspect`, for the kernel sockets with operations in flight. It asks the kernel about each.
    pub(in crate::progress) fn inspect_kernel(
        &self,
        from: usize,
        most: usize,
    ) -> (Vec<KernelFigures>, Option<usize>) {
        self.plain.inspect(from, most)
    }

    /// The kernel sockets with operations in flight.
    pub(in crate::progress) fn kernel_sockets(&self) -> usize {
        self.plain.in_use()
    }
}
