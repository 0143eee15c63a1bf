//! Start-ups: the part of the RNIC that connects and accepts, up to the established connection.
//!
//! It owns the requests that wait for the program's answer, the turns of attempts that ask the same
//! peer (`asking`), the connects that block (`dialer`), and the answers by which start-ups have more
//! time (`patience`). It knows no table of queue pairs: its callers hand it the phase of one.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::asking::AskTurns;
use super::cm::{CmPhase, CmRequest, small};
use super::dialer::Dialer;
use super::dialing::{CmDial, DialGoal};
use super::path::retries;
use super::patience::Answers;
use super::raw::{CmId, ConnAttr};
use crate::rnic::table::IdTable;
use crate::rnic::{ConnReq, RnicError};
use crate::sys::EventFd;
use crate::time::Time;

/// A peer that refuses a request answers at once. A kernel that drops a request does so by a time
/// limit: siw 5 s at the peer, and 10 s here. So an attempt that was cut this late was dropped.
const CUT_LATE: Duration = Duration::from_secs(2);

/// The start-ups of a device's connections, of both sides.
pub(super) struct StartUps {
    /// The kernel limits the time of an answer, and makes a connect wait for the peer. So attempts take
    /// turns, and connects have threads.
    iwarp: bool,
    requests: IdTable<CmRequest>,
    turns: AskTurns,
    dialer: Arc<Dialer>,
    /// The last answers to connects, by the peer's address.
    answered: Answers,
    /// The last accepts that were established, by their local address.
    started: Answers,
}

impl StartUps {
    /// `wake` is signalled when a connect in a thread has failed.
    pub(super) fn new(iwarp: bool, wake: &Arc<EventFd>) -> StartUps {
        StartUps {
            iwarp,
            requests: IdTable::new("connection request"),
            turns: AskTurns::default(),
            dialer: Dialer::new(wake),
            answered: Answers::default(),
            started: Answers::default(),
        }
    }

    // ---- requests --------------------------------------------------------------------

    pub(super) fn add_request(&mut self, request: CmRequest) -> Result<ConnReq, RnicError> {
        self.requests.insert(request).map(ConnReq)
    }

    /// # Errors
    /// [`RnicError::NoSuch`].
    pub(super) fn check_request(&self, req: ConnReq) -> Result<(), RnicError> {
        self.requests.get(req.0).map(drop)
    }

    /// Takes a request out. Dropping its id rejects it.
    pub(super) fn take_request(&mut self, req: ConnReq) -> Result<CmRequest, RnicError> {
        self.requests.remove(req.0)
    }

    /// Rejects the requests of a listener.
    pub(super) fn reject_requests_of(&mut self, listener: u32) -> Result<(), RnicError> {
        let of_it = |(id, r): (u32, &CmRequest)| (r.listener == Some(listener)).then_some(id);
        let waiting: Vec<u32> = self.requests.iter().filter_map(of_it).collect();
        // Dropping the id rejects the request.
        waiting.into_iter().try_for_each(|id| self.requests.remove(id).map(drop))
    }

    // ---- asking ----------------------------------------------------------------------

    /// True if an attempt can ask this address at once. Otherwise it gets its turn later.
    pub(super) fn may_ask(&mut self, addr: SocketAddr, qp: u32) -> bool {
        !self.iwarp || self.turns.enter(addr, qp)
    }

    /// Takes a queue pair whose attempt has got its turn.
    pub(super) fn next_to_ask(&mut self) -> Option<u32> {
        self.turns.take()
    }

    /// True if no attempt has got a turn that it has not used.
    pub(super) fn is_idle(&self) -> bool {
        self.turns.is_idle()
    }

    /// The phase of an attempt has ended: another gets its turn.
    pub(super) fn end_turn(&mut self, qp: u32, phase: &CmPhase) {
        match phase {
            CmPhase::Connecting(dial) if self.iwarp => self.turns.leave(dial.to.addr),
            CmPhase::Routing(dial) if self.iwarp => self.turns.give_up(dial.to.addr, qp),
            _ => {}
        }
    }

    /// Sends the request of an attempt.
    pub(super) fn connect(&self, id: &Arc<CmId>, to: &DialGoal) -> io::Result<()> {
        let (ird, ord) = (small(to.ird), small(to.ord));
        let (private_data, retries) = (&to.private_data, retries(&to.path));
        if self.iwarp {
            return self.dialer.connect(id, private_data.clone(), (ird, ord), retries);
        }
        id.connect(&ConnAttr { private_data, ird, ord, retries })
    }

    /// Connects in threads that have failed: the serials of their ids, and the errors. The caller
    /// drains `wake` before this.
    pub(super) fn failed_connects(&self) -> Vec<(usize, io::Error)> {
        self.dialer.take()
    }

    // ---- time ------------------------------------------------------------------------

    /// The peer of a start-up has answered, whatever the answer. `local` is the address that it asked.
    pub(super) fn note_answer(&mut self, phase: &CmPhase, local: Option<SocketAddr>, now: Time) {
        match (phase, local) {
            (CmPhase::Connecting(d), _) => self.answered.note(d.to.addr, d.to.limit, now),
            (CmPhase::Accepting { limit, .. }, Some(local)) => {
                self.started.note(local, *limit, now);
            }
            _ => {}
        }
    }

    /// A start-up has had its time. Returns its time limit, and the time until which it goes on, as its
    /// peer answers others. None: the phase is none of a start-up.
    pub(super) fn extend(
        &self,
        phase: &mut CmPhase,
        local: Option<SocketAddr>,
        now: Time,
    ) -> Option<(Duration, Option<Time>)> {
        match phase {
            CmPhase::Resolving(d) | CmPhase::Routing(d) | CmPhase::Connecting(d) => {
                let until = self.answered.extend(d.to.addr, d.to.limit, now);
                d.until = until.unwrap_or(d.until);
                Some((d.to.limit.timeout, until))
            }
            CmPhase::Accepting { limit, .. } => {
                let until = local.and_then(|local| self.started.extend(local, *limit, now));
                Some((limit.timeout, until))
            }
            _ => None,
        }
    }

    /// The time that an attempt which was cut has for another try. None: it was not dropped by a
    /// kernel, or there is no time.
    pub(super) fn try_again_until(&self, dial: &CmDial, now: Time) -> Option<Time> {
        let longer = self.answered.extend(dial.to.addr, dial.to.limit, now);
        let until = longer.unwrap_or(dial.until).max(dial.until);
        (now.since(dial.tried) >= CUT_LATE && now < until).then_some(until)
    }
}
