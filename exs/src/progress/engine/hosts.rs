//! A connect to a host with several addresses, or with a name.
//!
//! A helper thread resolves the name. Then the addresses race ([`Race`]): each attempt is a socket of
//! the engine's own, which tries one device after the other as any connect does (`dial`). The
//! program's socket takes the connection of the first attempt that succeeds, with its session and
//! its queue pair. The engine ends the other attempts. The time limit of the connect counts for all
//! of it, with the resolver's time.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::binding::Binding;
use super::holder::Holder;
use super::post::Ticket;
use super::sock::State;
use super::{Engine, Error, SockId};
use crate::ids::OpId;
use crate::progress::event::{Bufs, EventKind};
use crate::progress::host::{Host, Lookup};
use crate::progress::race::{Action, Race};
use crate::sys::{self, ResolveError};
use crate::time::Time;

/// Stands for the address of a connect that has not chosen one.
const NO_ADDRESS: (Ipv4Addr, u16) = (Ipv4Addr::UNSPECIFIED, 0);

/// The part of a socket in a race between addresses.
#[derive(Default)]
pub(super) enum Racing {
    /// None: the socket does not connect, or connects to a single address.
    #[default]
    No,
    /// It connects to a host.
    Host(Box<HostDial>),
    /// It is an attempt of that socket, with this number.
    Attempt(SockId, usize),
}

/// A connect to a host, under way.
pub(super) struct HostDial {
    host: Host,
    deadline: Time,
    phase: Phase,
}

enum Phase {
    Resolving,
    /// `attempts`: the sockets of the attempts, by their numbers.
    Racing {
        race: Race<Error>,
        attempts: Vec<SockId>,
    },
}

/// The result of a resolver, and the connect that has asked for it.
pub(in crate::progress) struct Resolved {
    pub(super) sock: SockId,
    pub(super) op: OpId,
    pub(super) found: Result<Vec<SocketAddr>, ResolveError>,
}

impl Racing {
    /// The socket that gets the connection of this attempt.
    pub(super) fn parent(&self) -> Option<SockId> {
        match self {
            Racing::Attempt(parent, _) => Some(*parent),
            _ => None,
        }
    }

    /// When the engine must look after the race. None: it must not.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        match self {
            Racing::Host(dial) => match &dial.phase {
                Phase::Resolving => Some(dial.deadline),
                Phase::Racing { race, .. } => race.next_timeout(),
            },
            _ => None,
        }
    }
}

impl Engine {
    /// Connects to the first address of a host that answers.
    pub(crate) fn connect_host(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        host: &Host,
        now: Time,
    ) -> Result<(), Error> {
        if let Some(addr) = host.single() {
            return self.connect(id, ticket, addr, now);
        }
        let deadline = now + self.sockets.fresh(id, "connect")?.opts.connect_timeout;
        let op = self.book(id, ticket, EventKind::Connect, Bufs::None);
        let s = self.sockets.find(id)?;
        (s.state, s.refused) = (State::Connecting { op, addr: NO_ADDRESS.into() }, false);
        s.grouping = s.opts.link_group.rule(ticket.group_use());
        let dial = HostDial { host: host.clone(), deadline, phase: Phase::Resolving };
        s.racing = Racing::Host(Box::new(dial));
        match host.lookup() {
            Lookup::Done(addrs) => self.begin_race(id, &addrs, now),
            Lookup::Ask(host, service) => {
                let released = Arc::clone(&self.released);
                sys::resolve_later(host, service, move |found| {
                    released.resolved(Resolved { sock: id, op, found });
                });
                self.sockets.mark(id.index);
            }
        }
        Ok(())
    }

    /// The resolver has answered. If the connect has ended meanwhile, the answer is dropped.
    pub(super) fn handle_resolved(&mut self, resolved: Resolved, now: Time) {
        let Resolved { sock: id, op, found } = resolved;
        let Ok(s) = self.sockets.find(id) else { return };
        let ours = matches!(s.state, State::Connecting { op: current, .. } if current == op);
        let Racing::Host(dial) = &s.racing else { return };
        if !ours {
            return;
        }
        let found = found.map_err(|e| dial.host.unresolved(&e));
        match found.and_then(|addrs| dial.host.usable(addrs)) {
            Ok(addrs) => self.begin_race(id, &addrs, now),
            Err(e) => self.connect_failed(id, e, now),
        }
    }

    fn begin_race(&mut self, id: SockId, addrs: &[SocketAddr], now: Time) {
        if let Ok(s) = self.sockets.find(id)
            && let Racing::Host(dial) = &mut s.racing
        {
            let race = Race::new(addrs, now, dial.deadline);
            dial.phase = Phase::Racing { race, attempts: Vec::new() };
        }
        self.drive_race(id, now);
    }

    /// Does what the race of a socket wants now.
    pub(super) fn drive_race(&mut self, id: SockId, now: Time) {
        while let Ok(s) = self.sockets.find(id)
            && let Racing::Host(dial) = &mut s.racing
        {
            let deadline = dial.deadline;
            let action = match &mut dial.phase {
                Phase::Racing { race, .. } => race.poll_action(now),
                Phase::Resolving if now < deadline => None,
                Phase::Resolving => {
                    let late = ResolveError { code: libc::EAI_AGAIN, os: 0 };
                    let error = dial.host.unresolved(&late);
                    return self.connect_failed(id, error, now);
                }
            };
            match action {
                None => break,
                Some(Action::Start(number, addr)) => {
                    self.start_attempt(id, (number, addr), deadline, now);
                }
                Some(Action::Stop(number)) => self.stop_attempt(id, number),
                Some(Action::Lost) => return self.race_lost(id, now),
            }
        }
        // The socket's timer follows the race.
        self.sockets.mark(id.index);
    }

    fn start_attempt(
        &mut self,
        id: SockId,
        (number, addr): (usize, SocketAddr),
        deadline: Time,
        now: Time,
    ) {
        let Ok(s) = self.sockets.find(id) else { return };
        let (kind, bound, grouping) = (s.kind, s.binding.addr(), s.grouping);
        let opts = s.opts.clone().with_connect_timeout(deadline.since(now));
        let child = self.sockets.open(kind, opts);
        let c = &mut self.sockets[child.index];
        (c.holder, c.binding) = (Holder::ENGINE, Binding::at(bound));
        c.grouping = grouping;
        c.racing = Racing::Attempt(id, number);
        if let Ok(s) = self.sockets.find(id)
            && let Racing::Host(dial) = &mut s.racing
            && let Phase::Racing { attempts, .. } = &mut dial.phase
        {
            // Attempts start in the order of their numbers.
            attempts.push(child);
        }
        let begun = self.plan(child, addr, now).and_then(|dial| self.launch(child, 0, dial, now));
        if let Err(e) = begun {
            self.drop_attempt(child);
            self.note_lost(id, number, e, now);
        }
    }

    fn note_lost(&mut self, id: SockId, number: usize, error: Error, now: Time) {
        if let Ok(s) = self.sockets.find(id)
            && let Racing::Host(dial) = &mut s.racing
            && let Phase::Racing { race, .. } = &mut dial.phase
        {
            race.handle_failure(number, error, now);
        }
    }

    /// An attempt has failed: the race goes on.
    pub(super) fn attempt_lost(&mut self, child: SockId, error: Error, now: Time) {
        let Ok(c) = self.sockets.find(child) else { return };
        let Racing::Attempt(id, number) = c.racing else { return };
        self.drop_attempt(child);
        self.note_lost(id, number, error, now);
        self.drive_race(id, now);
    }

    /// An attempt has succeeded: its connection becomes that of the program's socket.
    pub(super) fn attempt_won(&mut self, child: SockId, now: Time) {
        let Ok(c) = self.sockets.find(child) else { return };
        let Racing::Attempt(id, number) = c.racing else { return };
        let wins = self.sockets.find(id).is_ok_and(|s| match &mut s.racing {
            Racing::Host(dial) => match &mut dial.phase {
                Phase::Racing { race, .. } => race.handle_success(number),
                Phase::Resolving => false,
            },
            _ => false,
        });
        if !wins {
            return self.drop_attempt(child);
        }
        // Stops the other attempts.
        self.drive_race(id, now);
        self.hand_over_connection(child, id);
    }

    fn hand_over_connection(&mut self, child: SockId, id: SockId) {
        let c = &mut self.sockets[child.index];
        let (session, qp, place) = (c.session.take(), c.qp.take(), c.place);
        let (facts, bound) = (std::mem::take(&mut c.facts), c.binding.addr());
        let dial = c.dial.take();
        let lazy = self.sockets.is_lazy(child.index);
        self.drop_attempt(child);
        let Ok(s) = self.sockets.find(id) else { return };
        let State::Connecting { op, .. } = s.state else { return };
        (s.session, s.qp, s.place) = (session, qp, place);
        (s.facts, s.state, s.racing) = (facts, State::Open, Racing::No);
        s.binding.of_connection(bound);
        s.facts.log_connected();
        let (opts, session) = (&s.opts, s.session.as_mut());
        if let Some(session) = session {
            // The program may have changed them since the attempt began.
            session.set_timeouts(opts.send_timeout, opts.recv_timeout);
            session.set_keepalive(opts.keep_alive, opts.dead_after);
        }
        if let Some(qp) = qp {
            self.sockets.add_qp(place.device, qp, id.index);
        }
        if lazy {
            self.sockets.ring_later(id.index);
        }
        if let Some(dial) = dial {
            self.devices.note_answer(place.device, dial.addr());
        }
        self.sockets.mark(id.index);
        self.complete(op, Ok(()));
    }

    fn race_lost(&mut self, id: SockId, now: Time) {
        let Ok(s) = self.sockets.find(id) else { return };
        let Racing::Host(dial) = std::mem::take(&mut s.racing) else { return };
        let host = dial.host.to_string();
        let error = match dial.phase {
            Phase::Resolving => return,
            Phase::Racing { race, .. } => {
                let (tried, untried) = race.into_failures();
                Error::ConnectHost { host, tried, untried }
            }
        };
        self.connect_failed(id, error, now);
    }

    /// The connect of a host has failed, or was cancelled: ends the attempts that are still under
    /// way.
    pub(super) fn end_race(&mut self, racing: Racing, now: Time) {
        let Racing::Host(mut dial) = racing else { return };
        if let Phase::Racing { race, attempts } = &mut dial.phase {
            race.handle_cancel();
            while let Some(Action::Stop(number)) = race.poll_action(now) {
                self.drop_attempt(attempts[number]);
            }
        }
    }

    fn stop_attempt(&mut self, id: SockId, number: usize) {
        let Ok(s) = self.sockets.find(id) else { return };
        let Racing::Host(dial) = &s.racing else { return };
        let Phase::Racing { attempts, .. } = &dial.phase else { return };
        let child = attempts[number];
        self.drop_attempt(child);
    }

    /// Ends an attempt. Its socket is freed in the same turn.
    fn drop_attempt(&mut self, child: SockId) {
        let Ok(c) = self.sockets.find(child) else { return };
        (c.state, c.racing, c.dial) = (State::Closed, Racing::No, None);
        c.facts.clear_route();
        self.drop_session(child.index);
        self.sockets.mark(child.index);
    }
}
