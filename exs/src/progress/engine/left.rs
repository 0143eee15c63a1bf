//! Connections whose streams the program polls: what happens when the program comes for them.
//!
//! The program is a task of an asynchronous runtime (`tasks`), or an event loop (`polled`). It polls
//! by edges, so each visit reads until the stream has nothing more, or ends the attendance.

use super::attend::IDLE;
use super::sock::State;
use super::{Engine, SockId};
use crate::progress::call::Ringing;
use crate::rnic::{AttendedEnd, Ready};
use crate::session::VisitRead;
use crate::time::Time;

/// How a visit of the program to a stream that it polls has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::progress) enum StreamRun {
    /// The program polls the stream again, and messages were all that came.
    Calm,
    /// The program polls the stream again.
    Stays,
    /// The leader looks after the connection from now on.
    Ended,
}

impl Engine {
    /// Takes what has come on a connection whose stream the program polls. The bytes may go to `read`.
    pub(in crate::progress) fn run_left(
        &mut self,
        id: SockId,
        now: Time,
        read: Option<&mut VisitRead<'_>>,
    ) -> StreamRun {
        if !self.sockets.was_attended(id) {
            return StreamRun::Ended;
        }
        let end = AttendedEnd::Ready(Ready { readable: true, ..Ready::default() });
        let mut calm = !self.run_attended(id, end, (now, Ringing::AtOnce), read);
        if self.attendances().peek(id) != Some(IDLE) {
            // There is more than messages.
            calm = false;
            self.more |= self.run(now, false, Ringing::AtOnce);
        }
        if !self.sockets.was_attended(id) {
            // The turn has ended the attendance, by its sweep or for a post.
            return StreamRun::Ended;
        }
        if self.attendances().peek(id) != Some(IDLE) || !self.only_receives(id) {
            self.attendances().end_left(id);
            return StreamRun::Ended;
        }
        self.attendances().renew_left(id);
        if calm { StreamRun::Calm } else { StreamRun::Stays }
    }

    /// Nothing is under way but receives.
    pub(super) fn only_receives(&self, id: SockId) -> bool {
        self.sockets.get(id).is_some_and(|s| {
            let only = s.session.as_ref().is_some_and(|session| session.only_receives());
            only && s.state == State::Open && s.polls.is_empty()
        })
    }
}
