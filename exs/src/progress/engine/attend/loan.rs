//! Lending a connection to the threads that block on it, or to an event loop, and taking it back (see
//! [`LoanCell`](crate::progress::loan::LoanCell)).

use std::ops::RangeBounds;
use std::sync::Arc;

use super::{Attendance, Attendances, IDLE, LOOP_IS_LATE, LeftBy, PassWait, SWEEP};
use crate::progress::call::Ringing;
use crate::progress::engine::{Engine, SockId};
use crate::progress::loan::{Borrower, LentRead, Loan, LoanCell, LoanUse};
use crate::progress::pace::Pace;
use crate::progress::room::not_yet;
use crate::progress::waiter::Waiter;
use crate::rnic::AttendedEnd;
use crate::time::Time;

/// The most connections out of the reactor among which event loops borrow. With more of them the caches
/// hold neither a session nor a loan: a server of 300 or 1,000 connections is not faster with loans, one of
/// 16 is 14 % faster (`exs-perf cores --only server --connections N`).
const MOST_LENT_TO_LOOPS: usize = 64;

impl Engine {
    /// Lends a connection. The calling thread attends it without a receive, and is about to sleep. It waits by
    /// the loan then. `shows`: the program polls descriptors, so changes must be shown there. False: something
    /// else is under way.
    pub(in crate::progress) fn lend(
        &mut self,
        id: SockId,
        (cell, pace): (&Arc<LoanCell>, impl FnOnce() -> Pace),
        shows: bool,
        now: Time,
    ) -> bool {
        let waits =
            |by: &Attendance| matches!(by, Attendance::Thread { pass: PassWait::Waits, .. });
        let Some(s) = self.sockets.get_mut(id) else { return false };
        if shows && s.watch.is_some() || !waits(&s.attended.by) || !s.may_pass() {
            return false;
        }
        self.begin_loan(id, cell, || Borrower::threads(pace()), now)
    }

    /// Lends a connection to the event loop that polls its stream, if nothing else is under way. The
    /// stream has nothing more.
    pub(in crate::progress::engine) fn lend_to_loop(
        &mut self,
        id: SockId,
        cell: &Arc<LoanCell>,
        now: Time,
    ) {
        let Some(s) = self.sockets.get(id) else { return };
        let left = matches!(s.attended.by, Attendance::Left { by: LeftBy::Loop, .. });
        let polls_stream = s.watch.as_ref().is_some_and(|watch| watch.polls_stream);
        let few = self.sweeps.out() <= MOST_LENT_TO_LOOPS;
        if few && left && polls_stream && s.rests() && self.attendances().peek(id) == Some(IDLE) {
            self.begin_loan(id, cell, || Borrower::Loop, now);
        }
    }

    /// Lends a connection on which nothing is known to be under way. False: the session or the device has
    /// something to do.
    fn begin_loan(
        &mut self,
        id: SockId,
        cell: &Arc<LoanCell>,
        borrower: impl FnOnce() -> Borrower,
        now: Time,
    ) -> bool {
        let Some(s) = self.sockets.get_mut(id) else { return false };
        let (Some(qp), Some(session), device) = (s.qp, &mut s.session, s.place.device) else {
            return false;
        };
        let Some(loan) = session.lend() else { return false };
        let Some(connection) = self.devices[device].rnic.lend(qp) else {
            session.end_loan(loan, now);
            return false;
        };
        cell.begin(loan, connection, borrower());
        self.attendances().list(id, Attendance::Lent(Arc::clone(cell)), now + SWEEP);
        true
    }

    /// Takes what an event loop has read from a lent connection. The loop has the connection again if
    /// nothing but receives is under way.
    pub(in crate::progress::engine) fn take_loop_read(
        &mut self,
        id: SockId,
        read: LentRead,
        now: Time,
    ) {
        self.recall(id, now);
        let LentRead { room, result, .. } = read;
        let read = AttendedEnd::Read(result.map(|n| room.first(n)));
        self.run_attended(id, read, (now, Ringing::AtOnce), None);
        self.attendances().leave_to_loop(id, now);
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

    /// A thread that waits for the connection does not come back: it ends the process, in the handler of a
    /// signal that has interrupted its wait.
    pub(in crate::progress::engine) fn forget_reader(
        &mut self,
        id: SockId,
        thread: i32,
        now: Time,
    ) {
        match self.sockets.get(id).map(|s| &s.attended.by) {
            Some(Attendance::Lent(cell)) => cell.forget_reader(thread),
            Some(Attendance::Thread { waiter: Some(waiter), .. }) if waiter.thread == thread => {
                let read = AttendedEnd::Read(Err(not_yet()));
                self.run_attended(id, read, (now, Ringing::AtOnce), None);
            }
            _ => {}
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
        let Some(Loan { session, connection, reads, borrower, .. }) = cell.end() else { return };
        if let Some(lender) = &mut s.session {
            lender.end_loan(session, now);
        }
        // A loop's receive does not wait.
        let (pass, by) = match borrower {
            Borrower::Threads { .. } => (PassWait::Waits, LeftBy::Thread),
            Borrower::Loop => (PassWait::Posted, LeftBy::Loop),
        };
        if reads {
            s.attended.by = Attendance::Thread { waiter: None, for_room: false, pass };
        } else {
            self.note_left(id, by, now + SWEEP);
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
                match &mut self.sockets.find(id).ok()?.attended.by {
                    // From now on the sweeps ask whether the loop should have come.
                    Attendance::Left { by: LeftBy::Loop, since } => {
                        *since = since.saturating_sub(LOOP_IS_LATE);
                        return Some(true);
                    }
                    _ => self.end_after_absence(id, now),
                }
                false
            }
        })
    }

    /// An event loop has brought what it had read, for which it had the receiving direction.
    fn leave_to_loop(&mut self, id: SockId, now: Time) {
        let Ok(s) = self.sockets.find(id) else { return };
        let reads = matches!(s.attended.by, Attendance::Thread { waiter: None, .. });
        match s.watch.as_ref().is_some_and(|watch| watch.polls_stream) {
            true if reads => self.note_left(id, LeftBy::Loop, now + SWEEP),
            false if reads => self.end(id),
            _ => {}
        }
    }

    /// A thread comes back from a wait on a connection that was lent: it attends the connection from now
    /// on. False: the connection is gone, or the leader has it.
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
