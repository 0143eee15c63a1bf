//! Threads that leave the connection that they have attended, and return to the program.

use super::{Attendance, Attendances, IDLE, LeftBy, SWEEP};
use crate::progress::engine::{Engine, SockId};
use crate::time::Time;

impl Engine {
    /// The thread that attended the connection returns to the program, whose next call most likely rings the
    /// doorbells that wait. Otherwise a turn rings them that comes by the time of a sweep. `how`: as for
    /// [`Attendances::leave`].
    pub(in crate::progress) fn leave_attended(&mut self, id: SockId, how: (bool, bool), now: Time) {
        self.attendances().leave(id, how, now);
        self.leave_doorbells(now);
    }

    /// The calling thread leaves the doorbells that wait to its own next call, or to a turn by the time of a
    /// sweep. True if any wait.
    pub(in crate::progress) fn leave_doorbells(&mut self, now: Time) -> bool {
        let waits = self.has_lazy();
        if waits {
            self.sweeps.be_due(now + SWEEP);
        }
        waits
    }
}

impl Attendances<'_> {
    /// The thread that attended the connection returns to the program. `shows`: the program polls
    /// the socket's descriptor, so its changes must be shown. `receives`: the thread comes back for
    /// receives, too, that are under way.
    pub(in crate::progress) fn leave(
        &mut self,
        id: SockId,
        (shows, receives): (bool, bool),
        now: Time,
    ) {
        let Ok(s) = self.sockets.find(id) else { return };
        if !matches!(s.attended.by, Attendance::Thread { .. }) {
            return;
        }
        let rests = s.session.as_ref().is_some_and(|session| match receives {
            true => session.only_receives(),
            false => session.is_resting(),
        });
        let shown = !s.polls.is_empty() || shows && s.watch.is_some();
        if !rests || shown || self.peek(id) != Some(IDLE) {
            return self.end(id);
        }
        self.note_left(id, LeftBy::Thread, now + SWEEP);
    }

    /// The program has made a call that no attending thread waits for. If a thread has left the
    /// connection, the leader looks after it from now on.
    #[inline]
    pub(in crate::progress) fn end_left(&mut self, id: SockId) {
        if !self.sweeps.left.is_empty() && self.sockets.was_attended(id) {
            self.end(id);
        }
    }

    /// The same for a receive. A task that attends the connection waits for its receives.
    #[inline]
    pub(in crate::progress::engine) fn end_left_for_recv(&mut self, id: SockId) {
        if !self.sweeps.left.is_empty() && !self.sockets.is_left_by_task(id) {
            self.end_left(id);
        }
    }
}
