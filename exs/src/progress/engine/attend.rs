//! Connections that blocked threads attend. Such a thread waits for its connection itself, outside
//! of the reactor, as a thread that blocks in the kernel does. So threads that share a shard do not
//! wake each other.
//!
//! A connection is in one of three states, see [`Attendance`]. It stays out of the reactor between
//! two calls of its thread, since to put it back and take it out again costs two system calls. The
//! engine returns it to the reactor at once where something is under way for which the thread does
//! not wait. A thread that does not come back for one to two sweeps has gone away: then the engine
//! returns the connection, too.

use std::sync::Arc;
use std::time::Duration;

use super::devices::DeviceTable;
use super::sock::State;
use super::sockets::SocketTable;
use super::{Engine, SockId};
use crate::progress::queue::QueueCore;
use crate::progress::waiter::Waiter;
use crate::rnic::{Attended, AttendedBlock, AttendedEnd, AttendedWait, Qp, Rnic};
use crate::time::Time;

/// The time between two sweeps. It is the time for which the background thread leaves a shard alone
/// that no thread leads.
pub(super) const SWEEP: Duration = Duration::from_millis(10);

/// The thread that learns what happens on a connection.
#[derive(Default)]
enum Attendance {
    /// The leader learns it: the connection is in the reactor.
    #[default]
    Reactor,
    /// The thread that waits for the connection.
    Thread {
        waiter: Arc<Waiter>,
        /// The thread waits for room to send, too.
        for_room: bool,
    },
    /// No thread: the last one has left before the sweep of this number, and most likely comes
    /// back.
    Left(u64),
}

/// The attendance of a socket.
#[derive(Default)]
pub(super) struct AttendedBy {
    by: Attendance,
    /// The socket is on the list for the next sweep.
    listed: bool,
    /// A task has left the connection, and waits for its receives (`tasks`).
    by_task: bool,
}

/// The sweeps over sockets that threads have left.
#[derive(Default)]
pub(super) struct Sweeps {
    /// The number of connections that are not in the reactor.
    out: usize,
    left: Vec<SockId>,
    /// The number of the next sweep.
    number: u64,
    at: Option<Time>,
}

impl Sweeps {
    /// The number of connections that are not in the reactor.
    pub(super) fn out(&self) -> usize {
        self.out
    }

    /// When the next sweep is due. None: no thread has left a connection.
    pub(super) fn next(&self) -> Option<Time> {
        self.at
    }

    /// A socket is gone.
    pub(super) fn forget(&mut self, gone: &AttendedBy) {
        if !matches!(gone.by, Attendance::Reactor) {
            self.out -= 1;
        }
    }
}

impl SocketTable {
    /// True if a thread has attended the connection, and has left it a moment ago.
    pub(in crate::progress) fn was_attended(&self, id: SockId) -> bool {
        self.get(id).is_some_and(|s| matches!(s.attended.by, Attendance::Left(_)))
    }

    /// True if a thread attends the connection, or has left it a moment ago.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn is_attended(&self, id: SockId) -> bool {
        self.get(id).is_some_and(|s| !matches!(s.attended.by, Attendance::Reactor))
    }

    /// The number of threads that attend connections.
    #[cfg(any(test, feature = "internals"))]
    pub(in crate::progress) fn attending_threads(&self) -> usize {
        let attended = self.iter().map(|(_, s)| &s.attended.by);
        attended.filter(|by| matches!(by, Attendance::Thread { .. })).count()
    }
}

/// The parts of the engine that attendance takes.
pub(in crate::progress) struct Attendances<'e> {
    sweeps: &'e mut Sweeps,
    sockets: &'e mut SocketTable,
    devices: &'e mut DeviceTable,
}

impl Attendances<'_> {
    /// The thread of `waiter` is about to wait for an operation of this connection: it attends the
    /// connection from now on. False if it cannot: another thread attends the connection, or the
    /// device has nothing that a thread could wait for.
    pub(in crate::progress) fn attend(&mut self, id: SockId, waiter: &Arc<Waiter>) -> bool {
        let Ok(s) = self.sockets.find(id) else { return false };
        let (State::Open, Some(qp), device) = (&s.state, s.qp, s.place.device) else {
            return false;
        };
        let taken = match s.attended.by {
            Attendance::Thread { .. } => false,
            Attendance::Left(_) => true,
            Attendance::Reactor => {
                let taken = self.devices[device].rnic.attend(qp);
                self.sweeps.out += usize::from(taken);
                taken
            }
        };
        if taken && let Ok(s) = self.sockets.find(id) {
            s.attended.by = Attendance::Thread { waiter: Arc::clone(waiter), for_room: false };
            s.attended.by_task = false;
        }
        taken
    }

    /// Takes a connection that is in the reactor out of it, for a program that comes with calls that
    /// do not wait. False if the device cannot do that.
    pub(super) fn leave_to_program(&mut self, id: SockId, now: Time) -> bool {
        let Ok(s) = self.sockets.find(id) else { return false };
        let (Attendance::Reactor, Some(qp), device) = (&s.attended.by, s.qp, s.place.device) else {
            return false;
        };
        let taken = self.devices[device].rnic.attend(qp);
        if taken && let Ok(s) = self.sockets.find(id) {
            s.attended.by = Attendance::Left(self.sweeps.number);
            self.sweeps.out += 1;
            self.list_for_sweep(id, now + SWEEP);
        }
        taken
    }

    /// Announces that the thread which attends the connection sleeps. Returns what the thread must
    /// wait for. None: the thread cannot attend the connection any more.
    pub(in crate::progress) fn sleep(
        &mut self,
        id: SockId,
        how: AttendedBlock,
    ) -> Option<AttendedWait> {
        let waits = self.peek(id)? == Attended::Idle { for_room: true };
        let Attendance::Thread { for_room, .. } = &mut self.sockets.find(id).ok()?.attended.by
        else {
            return None;
        };
        *for_room = waits;
        let (rnic, qp) = self.rnic_of(id)?;
        rnic.sleep_attended(qp, how)
    }

    /// The device of a connection, and its queue pair there.
    fn rnic_of(&mut self, id: SockId) -> Option<(&mut dyn Rnic, Qp)> {
        let s = self.sockets.find(id).ok()?;
        let (qp, device) = (s.qp?, s.place.device);
        Some((&mut *self.devices[device].rnic, qp))
    }

    /// Looks, without a system call, at what the thread that attends the connection would find.
    pub(super) fn peek(&mut self, id: SockId) -> Option<Attended> {
        let (rnic, qp) = self.rnic_of(id)?;
        rnic.peek_attended(qp)
    }

    /// Looks in memory for what comes on a connection that a thread attends. None: memory does not
    /// show it.
    pub(in crate::progress) fn poll_memory(&mut self, id: SockId) -> Option<bool> {
        let (rnic, qp) = self.rnic_of(id)?;
        rnic.poll_attended(qp)
    }

    /// Another thread has worked on a connection. Returns the thread that attends the connection if
    /// that thread must wait for room from now on: the caller must wake it.
    #[inline]
    fn woken_for_room(&mut self, index: u32) -> Option<Arc<Waiter>> {
        let by = &self.sockets[index].attended.by;
        let Attendance::Thread { waiter, for_room: false } = by else { return None };
        let (waiter, id) = (Arc::clone(waiter), self.sockets.id(index));
        (self.peek(id) != Some(Attended::Idle { for_room: false })).then_some(waiter)
    }

    /// The thread that attended the connection returns to the program. `shows`: the program polls
    /// the socket's descriptor, so its changes must be shown.
    pub(in crate::progress) fn leave(&mut self, id: SockId, shows: bool, now: Time) {
        let Ok(s) = self.sockets.find(id) else { return };
        if !matches!(s.attended.by, Attendance::Thread { .. }) {
            return;
        }
        let rests = s.session.as_ref().is_some_and(|session| session.is_resting());
        let shown = !s.polls.is_empty() || shows && s.watch.is_some();
        if !rests || shown || self.peek(id) != Some(Attended::Idle { for_room: false }) {
            return self.end(id);
        }
        self.list_for_sweep(id, now + SWEEP);
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
    pub(super) fn end_left_for_recv(&mut self, id: SockId) {
        if !self.sweeps.left.is_empty() && !self.sockets.get(id).is_some_and(|s| s.attended.by_task)
        {
            self.end_left(id);
        }
    }

    /// From now on a task attends a connection that is out of the reactor.
    #[cfg(feature = "tokio")]
    pub(super) fn note_task(&mut self, id: SockId) {
        if let Ok(s) = self.sockets.find(id) {
            s.attended.by_task = true;
        }
    }

    /// Returns a connection to the reactor. If the kernel has no memory for that, the connection
    /// stays on the list for the next sweep.
    #[cold]
    pub(in crate::progress) fn end(&mut self, id: SockId) {
        let Ok(s) = self.sockets.find(id) else { return };
        if matches!(s.attended.by, Attendance::Reactor) {
            return;
        }
        let (qp, device) = (s.qp, s.place.device);
        let returned = qp.is_none_or(|qp| self.devices[device].rnic.unattend(qp));
        if returned {
            self.sweeps.out -= 1;
            if let Ok(s) = self.sockets.find(id) {
                (s.attended.by, s.attended.by_task) = (Attendance::Reactor, false);
            }
        } else {
            self.list_for_sweep(id, Time::ZERO);
            // The call that has ended the attendance must wake the leader for the sweep.
            self.sockets.mark(id.index);
        }
    }

    /// Notes that no thread learns what happens on a connection, until a thread attends it again or
    /// a sweep at this time, or an earlier one, returns it.
    pub(super) fn list_for_sweep(&mut self, id: SockId, at: Time) {
        let left = Attendance::Left(self.sweeps.number);
        let Ok(s) = self.sockets.find(id) else { return };
        let out = !matches!(s.attended.by, Attendance::Reactor);
        debug_assert!(out, "the connection is in the reactor");
        s.attended.by = left;
        if !std::mem::replace(&mut s.attended.listed, true) {
            self.sweeps.left.push(id);
        }
        self.sweeps.at = Some(self.sweeps.at.map_or(at, |before| before.min(at)));
    }

    /// Returns connections to the reactor if their threads have gone away.
    pub(super) fn sweep(&mut self, now: Time) {
        if self.sweeps.at.is_none_or(|at| at > now) {
            return;
        }
        let number = self.sweeps.number;
        self.sweeps.number += 1;
        let mut left = std::mem::take(&mut self.sweeps.left);
        left.retain(|id| {
            if let Ok(s) = self.sockets.find(*id)
                && let Attendance::Left(since) = s.attended.by
                && since < number
            {
                self.end(*id);
            }
            let stays = self.sockets.was_attended(*id);
            if let Ok(s) = self.sockets.find(*id) {
                s.attended.listed = stays;
            }
            stays
        });
        self.sweeps.at = (!left.is_empty()).then(|| now + SWEEP);
        self.sweeps.left = left;
    }
}

impl Engine {
    /// What attendance takes of the engine.
    #[inline]
    pub(in crate::progress) fn attendances(&mut self) -> Attendances<'_> {
        let Engine { sweeps, sockets, devices, .. } = self;
        Attendances { sweeps, sockets, devices }
    }

    /// The wait of the thread that attends the connection has ended: takes the messages and
    /// completions that came.
    pub(in crate::progress) fn run_attended(
        &mut self,
        id: SockId,
        end: AttendedEnd<'_>,
        now: Time,
    ) {
        if let Ok(s) = self.sockets.find(id)
            && let (Some(qp), device) = (s.qp, s.place.device)
        {
            self.devices[device].rnic.wake_attended(qp, end);
            self.take_from(device, now);
            self.settle_rest(now);
        }
    }

    /// Another thread has worked on a connection. Wakes the thread that attends the connection if
    /// that thread must wait for room from now on.
    pub(super) fn check_attended(&mut self, index: u32) {
        if let Some(waiter) = self.attendances().woken_for_room(index) {
            self.delivery.wake(waiter);
        }
    }

    /// The program posts an operation whose event goes to this queue. If a thread has left the
    /// connection, and the queue is not one of a thread that will attend it again, the leader looks
    /// after it from now on.
    #[inline]
    pub(super) fn unattend_for(&mut self, id: SockId, queue: &QueueCore) {
        if !queue.attends() {
            self.attendances().end_left(id);
        }
    }

    /// The same for a receive.
    #[inline]
    pub(super) fn unattend_for_recv(&mut self, id: SockId, queue: &QueueCore) {
        if !queue.attends() {
            self.attendances().end_left_for_recv(id);
        }
    }
}
