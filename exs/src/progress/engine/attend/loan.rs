//! Lending a connection to the threads that block on it, and taking it back (see
//! [`LoanCell`](crate::progress::loan::LoanCell)).

use std::ops::RangeBounds;
use std::sync::Arc;

use super::{Attendance, Attendances, LeftBy, PassWait, SWEEP};
use crate::progress::engine::{Engine, SockId};
use crate::progress::loan::{Loan, LoanCell, LoanUse};
use crate::progress::pace::Pace;
use crate::progress::waiter::Waiter;
use crate::time::Time;

impl Engine {
    /// Lends a connection. The calling thread attends it without a receive, and is about to sleep. It waits by
    /// the loan then. False: something else is under way.
    pub(in crate::progress) fn lend(
        &mut self,
        id: SockId,
        cell: &Arc<LoanCell>,
        pace: impl FnOnce() -> Pace,
        now: Time,
    ) -> bool {
        let waits =
            |by: &Attendance| matches!(by, Attendance::Thread { pass: PassWait::Waits, .. });
        let Some(s) = self.sockets.get_mut(id) else { return false };
        let (true, None, Some(qp)) = (waits(&s.attended.by) && s.may_pass(), &s.watch, s.qp) else {
            return false;
        };
        let device = s.place.device;
        let Some(session) = &mut s.session else { return false };
        let Some(loan) = session.lend() else { return false };
        let Some(connection) = self.devices[device].rnic.lend(qp) else {
            session.end_loan(loan, now);
            return false;
        };
        cell.begin(loan, connection, pace());
        self.attendances().list(id, Attendance::Lent(Arc::clone(cell)), now + SWEEP);
        true
    }

    /// Takes a connection back if it is lent. If a thread is in a read, it comes back soon
    /// ([`Attendances::come_back`]).
    #[inline]
    pub(in crate::progress) fn recall(&mut self, id: SockId, now: Time) {
        self.attendances().recall(id, now);
    }

    /// The same for the socket at this place.
    #[inline]
    pub(in crate::progress::engine) fn recall_at(&mut self, index: u32, now: Time) {
        if matches!(self.sockets[index].attended.by, Attendance::Lent(_)) {
            self.recall(self.sockets.id(index), now);
        }
    }

    /// Takes all connections back, so that the sessions have what was counted.
    pub(in crate::progress) fn recall_all(&mut self, now: Time) {
        self.recall_slots(.., now);
    }

    /// The same for the sockets in these slots.
    pub(in crate::progress::engine) fn recall_slots(
        &mut self,
        slots: impl RangeBounds<u32>,
        now: Time,
    ) {
        let listed = self.sweeps.left.iter().filter(|id| slots.contains(&id.index));
        for id in listed.copied().collect::<Vec<_>>() {
            self.recall(id, now);
        }
    }
}

impl Attendances<'_> {
    pub(super) fn recall(&mut self, id: SockId, now: Time) {
        let Ok(s) = self.sockets.find(id) else { return };
        let Attendance::Lent(cell) = &s.attended.by else { return };
        let Some(Loan { session, connection, reads, .. }) = cell.end() else { return };
        if let Some(lender) = &mut s.session {
            lender.end_loan(session, now);
        }
        if reads {
            s.attended.by =
                Attendance::Thread { waiter: None, for_room: false, pass: PassWait::Waits };
        } else {
            self.note_left(id, LeftBy::Thread, now + SWEEP);
        }
        if let Some((rnic, qp)) = self.rnic_of(id) {
            rnic.end_loan(qp, connection, reads, now);
        }
        // What the session owes the peer leaves with the next turn.
        self.sockets.mark(id.index);
    }

    /// A sweep has come. None: the connection is not lent. True if the next sweep must look again.
    pub(super) fn sweep_lent(&mut self, id: SockId, now: Time) -> Option<bool> {
        let Attendance::Lent(cell) = &self.sockets.get(id)?.attended.by else { return None };
        Some(match cell.sweep() {
            LoanUse::Busy => true,
            LoanUse::Dormant => false,
            LoanUse::Over => {
                self.recall(id, now);
                self.end(id);
                false
            }
        })
    }

    /// A thread comes back from a wait on a connection that was lent: it attends the connection from now
    /// on. False: the connection is gone.
    pub(in crate::progress) fn come_back(
        &mut self,
        id: SockId,
        by: &Arc<Waiter>,
        now: Time,
    ) -> bool {
        self.recall(id, now);
        let Ok(s) = self.sockets.find(id) else { return false };
        let Attendance::Thread { waiter, .. } = &mut s.attended.by else { return false };
        let away = waiter.is_none();
        if away {
            *waiter = Some(Arc::clone(by));
        }
        away
    }
}
