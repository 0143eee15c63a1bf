//! What the queues of operations say of the threads that attend connections.

use super::{Attendance, LeftBy};
use crate::progress::engine::sock::Sock;
use crate::progress::engine::{Engine, SockId};
use crate::progress::queue::QueueCore;

impl Engine {
    /// True if this connection has as many operations in flight as a queue, so that these are most likely the
    /// same.
    pub(in crate::progress) fn has_operations(&self, id: SockId, operations: usize) -> bool {
        let session = self.sockets.get(id).and_then(|s| s.session.as_ref());
        session.is_some_and(|session| session.operations() == operations)
    }

    /// True if a thread that waits at a queue may attend this connection: all that is under way there are
    /// receives, as many as the queue has `operations` in flight. So these are most likely the same. If
    /// they are not, the thread learns of the others as they end.
    ///
    /// A send that has not ended is left to the leader, which looks after it when the thread returns to
    /// the program.
    pub(in crate::progress) fn may_attend_at_queue(
        &mut self,
        id: SockId,
        operations: usize,
    ) -> bool {
        let receives = |s: &Sock| {
            let by_thread = match &s.attended.by {
                Attendance::Reactor => true,
                Attendance::Left { by, .. } => *by == LeftBy::Thread,
                Attendance::Thread { .. } | Attendance::Lent(_) => false,
            };
            let session = s.session.as_ref().filter(|_| by_thread && s.polls.is_empty());
            session.is_some_and(|session| session.has_only_receives(operations))
        };
        self.sockets.get(id).is_some_and(receives) && self.attendances().peek(id).is_some()
    }

    /// The program posts an operation whose event goes to this queue. If a thread has left the
    /// connection, and the queue is not one of a thread that will attend it again, the leader looks
    /// after it from now on.
    #[inline]
    pub(in crate::progress::engine) fn unattend_for(&mut self, id: SockId, queue: &QueueCore) {
        if !queue.serves_calls() {
            self.attendances().end_left(id);
        }
    }

    /// The same for a receive. A thread that waits at a queue of the program comes back for receives.
    #[inline]
    pub(in crate::progress::engine) fn unattend_for_recv(&mut self, id: SockId, queue: &QueueCore) {
        if !queue.attends((self.neighbours.here(), id)) {
            self.attendances().end_left_for_recv(id);
        }
    }
}
