//! Threads that wait for the bytes of a message without a receive.
//!
//! A receive that waits for a small message is booked, posted, ended, delivered and dequeued: half of
//! what a message costs. A thread that attends its connection reads the message itself, and its buffer
//! lives until the call returns. So it waits without a receive, and the bytes pass by the receives to its
//! buffer. What cannot pass waits in the session as for a receive that comes later, and the thread posts
//! one.

use std::sync::Arc;
use std::time::Duration;

use super::{Attendance, Attendances, LeftBy};
use crate::progress::engine::sock::{Sock, State};
use crate::progress::engine::{Engine, SockId};
use crate::session::OpError;
use crate::time::Time;

/// How long threads wait with operations alone on a socket whose descriptor the program may poll, after no
/// thread has come back to the connection for a sweep. A program that receives and polls in turn would wait
/// for the sweep again and again.
const AFTER_ABSENCE: Duration = Duration::from_secs(1);

/// Whether the thread that attends a connection waits without a receive, for bytes that pass by the
/// receives. No operation is in flight then, so what would end an operation ends the wait.
#[derive(Debug)]
pub(in crate::progress) enum PassWait {
    /// It has posted an operation.
    Posted,
    Waits,
    /// With `Ok` a receive ends at once, and says how.
    Ended(Result<(), OpError>),
}

impl Attendances<'_> {
    /// How the wait of the thread that attends the connection without a receive has ended. None: it has
    /// not, or the thread has posted an operation.
    pub(in crate::progress) fn pass_ended(&mut self, id: SockId) -> Option<Result<(), OpError>> {
        match &self.sockets.find(id).ok()?.attended.by {
            Attendance::Thread { pass: PassWait::Ended(end), .. } => Some(end.clone()),
            _ => None,
        }
    }

    /// The part of the program that has left a connection did not come back. Perhaps it waits at the
    /// socket's descriptor, where no thread has shown what came.
    pub(super) fn end_after_absence(&mut self, id: SockId, now: Time) {
        if let Ok(Sock { watch: Some(watch), .. }) = self.sockets.find(id) {
            watch.passes_from = now + AFTER_ABSENCE;
        }
        self.end(id);
    }
}

impl Sock {
    /// True if a thread attends the connection, or has left it a moment ago, nothing has come or is under
    /// way since, and the next small message may pass by the receives.
    pub(super) fn may_pass(&self) -> bool {
        let attended = match &self.attended.by {
            Attendance::Thread { .. } => true,
            Attendance::Left { by, .. } => *by == LeftBy::Thread,
            Attendance::Reactor | Attendance::Lent(_) => false,
        };
        attended && self.rests()
    }

    /// Nothing has come or is under way, and the next small message may pass by the receives.
    pub(super) fn rests(&self) -> bool {
        let session = self.session.as_ref().filter(|_| self.state == State::Open);
        self.polls.is_empty() && session.is_some_and(|session| session.may_pass())
    }
}

impl Engine {
    /// True if a thread may wait for the next small message of the connection without a receive.
    pub(in crate::progress) fn may_pass(&self, id: SockId) -> bool {
        self.sockets.get(id).is_some_and(Sock::may_pass)
    }

    /// True if a thread of a program that may poll the socket's descriptor may wait so.
    pub(in crate::progress) fn may_pass_beside_polls(&self, id: SockId, now: Time) -> bool {
        let watch = self.sockets.get(id).and_then(|s| s.watch.as_ref());
        watch.is_none_or(|watch| watch.passes_from <= now)
    }

    /// A thread has worked on a connection. A thread that waits there without a receive gets no event for a
    /// message that another thread has taken, so it must look.
    #[inline]
    pub(in crate::progress::engine) fn check_passing(&mut self, index: u32) {
        let s = &self.sockets[index];
        if let Attendance::Thread { waiter: Some(waiter), pass: PassWait::Waits, .. } =
            &s.attended.by
            && !s.may_pass()
        {
            self.delivery.wake(Arc::clone(waiter));
        }
    }

    /// Ends the wait of a thread that attends the connection without a receive. With `Ok` the thread posts a
    /// receive. False: no thread waits so.
    pub(crate) fn end_pass(&mut self, id: SockId, end: Result<(), OpError>) -> bool {
        let Ok(s) = self.sockets.find(id) else { return false };
        let Attendance::Thread { waiter, pass, .. } = &mut s.attended.by else { return false };
        let waits = matches!(pass, PassWait::Waits);
        if waits {
            *pass = PassWait::Ended(end);
            if let Some(waiter) = waiter {
                self.delivery.wake(Arc::clone(waiter));
            }
        }
        waits
    }
}
