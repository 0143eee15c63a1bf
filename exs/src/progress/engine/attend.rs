//! Connections that blocked threads attend. Such a thread waits for its connection itself, outside
//! of the reactor, as a thread that blocks in the kernel does. So threads that share a shard do not
//! wake each other.
//!
//! A connection is in one of four states, see [`Attendance`]. It stays out of the reactor between
//! two calls of its thread, since to put it back and take it out again costs two system calls. The
//! engine returns it to the reactor at once where something is under way for which the thread does
//! not wait. A thread that does not come back for one to two sweeps has gone away: then the engine
//! returns the connection, too. A program that polls descriptors is given more time ([`LeftBy`]).

mod leave;
mod loan;
mod pass;
mod queue;

use std::sync::Arc;
use std::time::Duration;

pub(in crate::progress) use self::pass::PassWait;
use super::devices::DeviceTable;
use super::eager::Visit;
use super::sock::State;
use super::sockets::SocketTable;
use super::{Engine, SockId};
use crate::progress::call::Ringing;
use crate::progress::loan::LoanCell;
use crate::progress::waiter::Waiter;
use crate::rnic::{Attended, AttendedBlock, AttendedEnd, AttendedWait, Qp, Rnic};
use crate::session::VisitRead;
use crate::sys::{SharedStream, which_are_readable};
use crate::time::Time;

/// The time between two sweeps. It is the time for which the background thread leaves a shard alone
/// that no thread leads.
const SWEEP: Duration = Duration::from_millis(10);

/// The sweeps after which an event loop that has not come for the bytes of a connection computes, or
/// has forgotten it. With a thousand busy connections each waits some sweeps for its turn.
pub(in crate::progress) const LOOP_IS_LATE: u64 = 4;
/// The sweeps after which a connection is idle. One that is attended keeps the sweeps going.
const LOOP_IS_IDLE: u64 = 20;

/// What a look finds at a connection that waits for the peer alone.
pub(super) const IDLE: Attended = Attended::Idle { for_room: false };

/// The thread that learns what happens on a connection.
#[derive(Default)]
enum Attendance {
    /// The leader learns it: the connection is in the reactor.
    #[default]
    Reactor,
    /// The thread that waits for the connection.
    Thread {
        /// None: the thread comes back from a wait on the connection, which was lent. A read lasts some
        /// milliseconds at most.
        waiter: Option<Arc<Waiter>>,
        /// The thread waits for room to send, too.
        for_room: bool,
        pass: PassWait,
    },
    /// The threads that block on the connection have it.
    Lent(Arc<LoanCell>),
    /// No thread: the program has left the connection before the sweep of the number `since`, and most
    /// likely comes back.
    Left { since: u64, by: LeftBy },
}

impl Attendance {
    /// True if the connection stays on the list after a sweep, and true if there is a next sweep in any case.
    ///
    /// A thread that has come back leaves the connection again soon, as a rule. If the sweeps ended
    /// meanwhile, the thread would have to wake the thread in the reactor for the first one.
    fn after_sweep(&self) -> (bool, bool) {
        match self {
            Attendance::Reactor => (false, false),
            Attendance::Thread { .. } => (false, true),
            // The loan says whether there is a next sweep.
            Attendance::Lent(_) => (true, false),
            Attendance::Left { .. } => (true, true),
        }
    }
}

/// The part of the program that has left a connection, and comes back for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftBy {
    /// A thread, which comes back with a call.
    Thread,
    /// An event loop of the program, which comes back with a call when it finds the socket's descriptor
    /// readable (`polled`).
    Loop,
    /// A task, which comes back when the runtime finds the connection's stream readable (`tasks`).
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "tasks need a runtime"))]
    Task,
}

/// What a sweep does with a connection that the program has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swept {
    Stays,
    /// It returns to the reactor if there is something to read: the loop should have come for it.
    ReturnsIfReadable,
    Returns,
}

impl LeftBy {
    /// What becomes of the connection at this sweep since the program was there.
    fn swept(self, sweeps: u64) -> Swept {
        match (self, sweeps) {
            (_, 0) => Swept::Stays,
            (LeftBy::Thread, _) => Swept::Returns,
            (LeftBy::Loop | LeftBy::Task, ..LOOP_IS_LATE) => Swept::Stays,
            (LeftBy::Loop | LeftBy::Task, ..LOOP_IS_IDLE) => Swept::ReturnsIfReadable,
            (LeftBy::Loop | LeftBy::Task, _) => Swept::Returns,
        }
    }
}

/// The attendance of a socket.
#[derive(Default)]
pub(super) struct AttendedBy {
    by: Attendance,
    /// The socket is on the list for the next sweep.
    listed: bool,
}

impl AttendedBy {
    /// True if the connection is in the reactor, as the leader learns what happens there.
    pub(super) fn is_by_reactor(&self) -> bool {
        matches!(self.by, Attendance::Reactor)
    }
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

    /// The next sweep is at this time, or earlier.
    fn be_due(&mut self, at: Time) {
        self.at = Some(self.at.map_or(at, |before| before.min(at)));
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
        self.get(id).is_some_and(|s| matches!(s.attended.by, Attendance::Left { .. }))
    }

    /// True if a task attends the connection.
    fn is_left_by_task(&self, id: SockId) -> bool {
        let task = |by: &Attendance| matches!(by, Attendance::Left { by: LeftBy::Task, .. });
        self.get(id).is_some_and(|s| task(&s.attended.by))
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
        let attends = |by: &&Attendance| match by {
            Attendance::Thread { .. } => true,
            Attendance::Lent(cell) => cell.is_read(),
            Attendance::Reactor | Attendance::Left { .. } => false,
        };
        attended.filter(attends).count()
    }
}

/// The parts of the engine that attendance takes.
pub(in crate::progress) struct Attendances<'e> {
    sweeps: &'e mut Sweeps,
    sockets: &'e mut SocketTable,
    devices: &'e mut DeviceTable,
}

impl Attendances<'_> {
    /// The thread of `waiter` is about to wait for an operation of this connection, or without one: it
    /// attends the connection from now on. False if it cannot: another thread attends the connection, or
    /// the device has nothing that a thread could wait for.
    pub(in crate::progress) fn attend(
        &mut self,
        id: SockId,
        waiter: &Arc<Waiter>,
        pass: PassWait,
    ) -> bool {
        let Ok(s) = self.sockets.find(id) else { return false };
        let (State::Open, Some(qp), device) = (&s.state, s.qp, s.place.device) else {
            return false;
        };
        let taken = match s.attended.by {
            Attendance::Thread { .. } | Attendance::Lent(_) => false,
            Attendance::Left { .. } => true,
            Attendance::Reactor => {
                let rnic = &mut self.devices[device].rnic;
                let taken = rnic.attend(qp);
                if taken {
                    rnic.keep_apart(qp);
                    self.sweeps.out += 1;
                }
                taken
            }
        };
        if taken && let Ok(s) = self.sockets.find(id) {
            let waiter = Some(Arc::clone(waiter));
            s.attended.by = Attendance::Thread { waiter, for_room: false, pass };
        }
        taken
    }

    /// Takes a connection that is in the reactor out of it, for a program that comes with calls that
    /// do not wait. False if the device cannot do that.
    pub(super) fn leave_to_program(&mut self, id: SockId, by: LeftBy, now: Time) -> bool {
        let Ok(s) = self.sockets.find(id) else { return false };
        let (Attendance::Reactor, Some(qp), device) = (&s.attended.by, s.qp, s.place.device) else {
            return false;
        };
        // The driver of a runtime serves groups, and so does an event loop.
        let groups = by == LeftBy::Task || s.watch.as_ref().is_some_and(|watch| watch.in_loop);
        let rnic = &mut self.devices[device].rnic;
        let taken = rnic.attend(qp);
        if taken {
            if !groups {
                rnic.keep_apart(qp);
            }
            self.sweeps.out += 1;
            self.note_left(id, by, now + SWEEP);
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
        let Attendance::Thread { waiter: Some(waiter), for_room: false, .. } = by else {
            return None;
        };
        let (waiter, id) = (Arc::clone(waiter), self.sockets.id(index));
        (self.peek(id) != Some(IDLE)).then_some(waiter)
    }

    /// Returns a connection to the reactor. If the kernel has no memory for that, the connection
    /// stays on the list for the next sweep.
    #[cold]
    pub(in crate::progress) fn end(&mut self, id: SockId) {
        // The calls that end an attendance have recalled the connection.
        debug_assert!(!self.is_lent(id), "{id:?} is lent");
        let Ok(s) = self.sockets.find(id) else { return };
        if matches!(s.attended.by, Attendance::Reactor) {
            return;
        }
        let (qp, device) = (s.qp, s.place.device);
        let returned = qp.is_none_or(|qp| self.devices[device].rnic.unattend(qp));
        if returned {
            self.sweeps.out -= 1;
            if let Ok(s) = self.sockets.find(id) {
                s.attended.by = Attendance::Reactor;
            }
        } else {
            self.note_left(id, LeftBy::Thread, Time::ZERO);
            // The call that has ended the attendance must wake the leader for the sweep.
            self.sockets.mark(id.index);
        }
    }

    /// Notes that no thread learns what happens on a connection that is out of the reactor, until the
    /// program comes back or a sweep returns it. The next sweep is at this time, or earlier.
    fn note_left(&mut self, id: SockId, by: LeftBy, at: Time) {
        self.list(id, Attendance::Left { since: self.sweeps.number, by }, at);
    }

    /// Notes that the next sweep, at this time or earlier, must look at the connection.
    fn list(&mut self, id: SockId, by: Attendance, at: Time) {
        let Ok(s) = self.sockets.find(id) else { return };
        s.attended.by = by;
        if !std::mem::replace(&mut s.attended.listed, true) {
            self.sweeps.left.push(id);
        }
        self.sweeps.be_due(at);
    }

    /// The program has come for a connection that it has left, and leaves it again.
    pub(super) fn renew_left(&mut self, id: SockId) {
        if let Ok(s) = self.sockets.find(id)
            && let Attendance::Left { since, .. } = &mut s.attended.by
        {
            *since = self.sweeps.number;
        }
    }

    /// Returns connections to the reactor if the program has not come for them.
    pub(super) fn sweep(&mut self, now: Time) {
        if self.sweeps.at.is_none_or(|at| at > now) {
            return;
        }
        let number = self.sweeps.number;
        self.sweeps.number += 1;
        let mut left = std::mem::take(&mut self.sweeps.left);
        let (mut asked, mut streams, mut busy) = (Vec::new(), Vec::new(), false);
        for id in &left {
            if let Some(lent) = self.sweep_lent(*id, now) {
                busy |= lent;
                continue;
            }
            match self.swept(*id, number) {
                Swept::Stays => {}
                Swept::Returns => self.end_after_absence(*id, now),
                // Memory shows it, or the kernel is asked.
                Swept::ReturnsIfReadable if self.peek(*id) != Some(IDLE) => self.end(*id),
                Swept::ReturnsIfReadable => {
                    if let Some(stream) = self.lend_stream(*id) {
                        asked.push(*id);
                        streams.push(stream);
                    }
                }
            }
        }
        let readable = asked.iter().zip(which_are_readable(&streams));
        readable.filter(|(_, readable)| *readable).for_each(|(id, _)| self.end(*id));
        left.retain(|id| {
            let Ok(s) = self.sockets.find(*id) else { return false };
            let (stays, goes_on) = s.attended.by.after_sweep();
            s.attended.listed = stays;
            busy |= goes_on;
            stays
        });
        self.sweeps.at = busy.then(|| now + SWEEP);
        self.sweeps.left = left;
    }

    fn is_lent(&self, id: SockId) -> bool {
        self.sockets.get(id).is_some_and(|s| matches!(s.attended.by, Attendance::Lent(_)))
    }

    /// What the sweep of this number does with a connection on the list.
    fn swept(&self, id: SockId, number: u64) -> Swept {
        match self.sockets.get(id).map(|s| &s.attended.by) {
            Some(Attendance::Left { since, by }) => by.swept(number - since),
            _ => Swept::Stays,
        }
    }

    /// The stream of a connection, for a program that polls it.
    pub(super) fn lend_stream(&mut self, id: SockId) -> Option<Arc<SharedStream>> {
        let (rnic, qp) = self.rnic_of(id)?;
        rnic.lend_stream(qp)
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
    /// completions that came. The bytes of messages may go to `read`. True if they have marked a
    /// socket, or there are more: messages alone do not.
    pub(in crate::progress) fn run_attended(
        &mut self,
        id: SockId,
        end: AttendedEnd<'_>,
        (now, ringing): (Time, Ringing),
        read: Option<&mut VisitRead<'_>>,
    ) -> bool {
        let Ok(s) = self.sockets.find(id) else { return false };
        let (Some(qp), device) = (s.qp, s.place.device) else { return false };
        self.devices[device].rnic.wake_attended(qp, end);
        self.take_from(device, now, read.map(|read| Visit { index: id.index, read }));
        let more = self.more || self.sockets.has_marked();
        self.settle_rest(now, ringing);
        more
    }

    /// Another thread has worked on a connection. Wakes the thread that attends the connection if
    /// that thread must wait for room from now on, or cannot wait without a receive any more.
    pub(super) fn check_attended(&mut self, index: u32) {
        self.check_passing(index);
        if let Some(waiter) = self.attendances().woken_for_room(index) {
            self.delivery.wake(waiter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_go_on_while_a_thread_comes_and_goes() {
        let thread = Attendance::Thread { waiter: None, for_room: false, pass: PassWait::Posted };
        let left = Attendance::Left { since: 0, by: LeftBy::Thread };
        assert_eq!(left.after_sweep(), (true, true));
        assert_eq!(thread.after_sweep(), (false, true), "the next sweep does not look at it");
        assert_eq!(Attendance::Reactor.after_sweep(), (false, false));
    }

    #[test]
    fn a_loop_is_given_more_time_than_a_thread() {
        let fates = |by: LeftBy| [0, 1, 3, 4, 19, 20, 1000].map(|sweeps| by.swept(sweeps));
        use Swept::{Returns, ReturnsIfReadable, Stays};
        let thread = [Stays, Returns, Returns, Returns, Returns, Returns, Returns];
        assert_eq!(fates(LeftBy::Thread), thread);
        let task = [Stays, Stays, Stays, ReturnsIfReadable, ReturnsIfReadable, Returns, Returns];
        assert_eq!(fates(LeftBy::Task), task);
        assert_eq!(fates(LeftBy::Loop), task);
    }
}
