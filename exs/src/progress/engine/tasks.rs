//! Connections that tasks of an asynchronous runtime attend.
//!
//! A runtime has an epoll set of its own. A task that waits for the bytes of one connection can
//! have the connection's stream there, and take what has come itself, as a thread that attends its
//! connection does (`attend`). Then neither the shard's reactor nor the runtime's driver takes part
//! in a message. Between two visits of the task the connection is out of the reactor, as one that an
//! attending thread has left. A sweep returns it to the leader if the task does not come for its bytes,
//! or if it is idle.

use std::sync::Arc;

use super::attend::LeftBy;
use super::sock::State;
use super::{Engine, SockId};
use crate::progress::call::Ringing;
use crate::rnic::{Attended, AttendedEnd, Ready};
use crate::sys::SharedStream;
use crate::time::Time;

/// How the visit of a task has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::progress) enum TaskRun {
    /// The task waits for the stream again, and messages were all that came.
    Calm,
    /// The task waits for the stream again.
    Stays,
    /// The leader looks after the connection from now on.
    Ended,
}

impl Engine {
    /// Takes a connection out of the reactor, for a task that waits for its stream. None: the
    /// connection has no stream, or something is under way for which the task does not wait.
    pub(crate) fn attend_by_task(&mut self, id: SockId, now: Time) -> Option<Arc<SharedStream>> {
        let stream = match self.only_receives(id) {
            true => self.attendances().lend_stream(id)?,
            false => return None,
        };
        self.attendances().leave_to_program(id, LeftBy::Task, now).then_some(stream)
    }

    /// Takes what has come on a connection whose stream the task has found readable.
    pub(in crate::progress) fn run_for_task(&mut self, id: SockId, now: Time) -> TaskRun {
        if !self.sockets.was_attended(id) {
            return TaskRun::Ended;
        }
        let end = AttendedEnd::Ready(Ready { readable: true, ..Ready::default() });
        let mut calm = !self.run_attended(id, end, now);
        let idle = Some(Attended::Idle { for_room: false });
        if self.attendances().peek(id) != idle {
            // There is more than messages.
            calm = false;
            self.more |= self.run(now, false, Ringing::AtOnce);
        }
        if !self.sockets.was_attended(id) {
            // The turn has ended the attendance, by its sweep or for a post.
            return TaskRun::Ended;
        }
        if self.attendances().peek(id) != idle || !self.only_receives(id) {
            self.attendances().end_left(id);
            return TaskRun::Ended;
        }
        self.attendances().renew_left(id);
        if calm { TaskRun::Calm } else { TaskRun::Stays }
    }

    /// Nothing is under way but receives, and no descriptor shows the socket's state.
    fn only_receives(&self, id: SockId) -> bool {
        self.sockets.get(id).is_some_and(|s| {
            let only = s.session.as_ref().is_some_and(|session| session.only_receives());
            only && s.state == State::Open && s.watch.is_none() && s.polls.is_empty()
        })
    }
}
