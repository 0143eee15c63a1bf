//! How a thread waits for its own connection.
//!
//! A thread that blocks in a call waits for one connection. If it is alone in its shard, it leads.
//! Where threads share a shard, a leading thread would wake each of them for each message, which
//! takes two switches of threads more than the kernel needs. So such a thread attends its
//! connection. It sleeps on the connection's own descriptor, and runs the engine for messages that
//! came there. The background thread then leads for all other connections. A thread that waits at a queue
//! of the program may do the same (`wait_for_one`).
//!
//! Without a device the engine lends the connection to a thread that waits for a small message
//! ([`LoanCell`]). Such a thread comes back to the engine only if something else comes.
//!
//! Where memory shows what comes, the thread looks there for a moment before it sleeps, as long as
//! that pays ([`Pace`](super::pace::Pace)). A peer that answers meanwhile need not wake it.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::Error;
use super::call::Ringing;
use super::context::Context;
use super::engine::{Engine, PassWait, SockId};
use super::lead::Lead;
use super::loan::{LentRead, LentRecv, LoanCell};
use super::pace::{AT_HAND, Pace};
use super::passing::PassingRecv;
use super::queue::QueueCore;
use super::room::{Room, Slept, not_yet};
use super::spin::{LOOKS, NOBODY};
use super::wait::{WaitEnd, Waited, io_error};
use super::waiter::{Waiter, waiter};
use crate::rnic::{ATTENDED_READ_LIMIT, AttendedBlock, AttendedWait, Ready};
use crate::session::VisitRead;
use crate::sys::{HeldSignals, SharedWord, wait_ready};
use crate::time::Time;

/// How a wait for a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The event is in the queue.
    There,
    TimedOut,
    /// The thread cannot attend the connection: it must lead or follow.
    CannotAttend,
}

/// The wait of a thread that attends a connection.
struct AttendedQueue<'a> {
    queue: &'a QueueCore,
    id: SockId,
    waiter: &'a Arc<Waiter>,
    end: WaitEnd<'a>,
    /// Signals that the thread lets in only while it sleeps. None: it holds no signals back.
    held: Option<&'a HeldSignals>,
    room: Room,
    /// The thread has posted no operation. It waits for the bytes of a message.
    passing: Option<Passing<'a>>,
}

/// Where the bytes of messages go that pass by the receives.
struct Passing<'a> {
    to: PassingRecv<'a>,
    /// The bytes that have come.
    len: usize,
    loan: &'a Arc<LoanCell>,
}

impl Context {
    /// The number of threads that attend connections of this shard, or lead here.
    pub(super) fn blocked_threads(&self) -> u64 {
        self.outlook.get().attended() + u64::from(self.lead.lead() == Lead::Application)
    }

    /// True if a thread that waits for its connection attends it, as others do. False: the thread leads.
    pub(crate) fn has_threads_attend(&self) -> bool {
        self.blocked_threads() > 0 || self.others.fill_processors(self.shard())
    }

    /// Waits for the event of an operation of this socket, which goes to `queue`. The thread
    /// attends the connection meanwhile. `exact`: as in [`Context::wait`].
    ///
    /// # Errors
    /// [`Error::Interrupted`] if a signal handler ran while the thread slept.
    pub(crate) fn wait_for_connection(
        &self,
        queue: &QueueCore,
        id: SockId,
        timeout: Option<Duration>,
        exact: bool,
    ) -> Result<Awaited, Error> {
        if !self.has_threads_attend() {
            return Ok(Awaited::CannotAttend);
        }
        self.reliance.note_wait();
        let deadline = timeout.map(|t| self.now() + t);
        // Events that are there, or come within `AT_HAND`, do not count as waiting.
        if exact && self.first_peek(queue, 1, Some(AT_HAND), NOBODY) != Waited::TooFew {
            return Ok(Awaited::There);
        }
        let held = exact.then(HeldSignals::new);
        self.attend_enlisted(queue, id, WaitEnd::at(deadline), held.as_ref())
    }

    /// Attends the connection, on the queue's list of waiters.
    pub(super) fn attend_enlisted(
        &self,
        queue: &QueueCore,
        id: SockId,
        end: WaitEnd<'_>,
        held: Option<&HeldSignals>,
    ) -> Result<Awaited, Error> {
        self.enlisted(queue, 1, |waiter| {
            let (room, passing) = (Room::take(), None);
            let mut wait = AttendedQueue { queue, id, waiter, end, held, room, passing };
            self.attend(&mut wait, None)
        })
    }

    /// Waits for the next small message on a connection that the thread attends again and again, and copies
    /// its bytes to `out`. The message takes no receive and no event then. `queue` is the thread's own, and
    /// nothing is in flight there. `read`: the thread has read these bytes while the connection was lent.
    /// Returns the number of bytes; 0: the thread must post a receive.
    ///
    /// # Errors
    /// Another thread has cancelled the operations of the socket, or has closed it.
    /// [`Error::Interrupted`] if a signal handler ends the wait.
    pub(crate) fn pass_to_thread(
        &self,
        (queue, id): (&QueueCore, SockId),
        loan: &Arc<LoanCell>,
        to: PassingRecv<'_>,
        read: Option<LentRead>,
    ) -> Result<usize, Error> {
        self.reliance.note_wait();
        // The thread has made it before it got its queue.
        let waiter = waiter()?;
        waiter.wait_at(self.shard());
        let (room, begun) = match read {
            Some(LentRead { room, result, .. }) => (room, Some(result)),
            None => (Room::take(), None),
        };
        let (end, held) = (WaitEnd::at(None), None);
        let passing = Some(Passing { to, len: 0, loan });
        let mut wait = AttendedQueue { queue, id, waiter: &waiter, end, held, room, passing };
        let ended = self.attend(&mut wait, begun);
        if let Some(Passing { len: len @ 1.., .. }) = wait.passing {
            return Ok(len);
        }
        if ended.is_err() {
            self.stay();
        }
        ended.map(|_| 0)
    }

    /// `begun`: the outcome of a read that the thread has made while the connection was lent.
    fn attend(
        &self,
        wait: &mut AttendedQueue<'_>,
        begun: Option<io::Result<usize>>,
    ) -> Result<Awaited, Error> {
        let AttendedQueue { id, waiter, .. } = *wait;
        let mut engine = self.lock();
        let mut slept = begun.map(Slept::Read);
        if !wait.begin(&mut engine, slept.is_some(), || self.clock.now_locked(None)) {
            return Ok(self.leave_to_leader(engine, wait, slept));
        }
        // The first turn rings the doorbell for sends that wait for it, and handles what was read.
        let mut turn = slept.is_some() || engine.has_lazy();
        if !turn {
            engine = self.peek_at_connection(engine, wait);
        }
        let (mut end, mut how) = (None, wait.block(slept.as_ref(), self.clock.about()));
        loop {
            let now = self.clock.now_locked(None);
            let runs = turn || slept.is_some();
            if let Some(slept) = slept.take() {
                wait.run(&mut engine, slept, now);
            }
            if turn && !wait.is_over() {
                turn = engine.run(now, false, Ringing::InTurn);
            }
            end = wait.outcome(&mut engine, end, now);
            if let Some(end) = end {
                let receives = !wait.queue.serves_calls();
                engine.leave_attended(id, (self.reliance.polls(), receives), now);
                self.finish(engine, Some(waiter));
                return end;
            }
            let sleep = wait.announce(&mut engine, how, now);
            let sleeps =
                matches!(&sleep, Some(AttendedWait::Stream(_) | AttendedWait::Word { .. }));
            let lent = sleeps && !turn && wait.lend(&mut engine, self.reliance.polls(), now);
            if runs || sleep.is_none() {
                self.finish(engine, Some(waiter));
            } else {
                // So far the thread has only announced its sleep.
                self.finish_idle(engine);
            }
            match sleep {
                None => return Ok(Awaited::CannotAttend),
                // The thread must sleep where others can wake it.
                Some(AttendedWait::Stream(_)) if turn => slept = Some(Slept::Read(Err(not_yet()))),
                Some(_) if turn => {}
                Some(sleep) => {
                    self.sleeps.fetch_add(1, Ordering::Relaxed);
                    self.lead.pass_on();
                    if !lent {
                        (slept, end) = wait.sleep(&sleep, now);
                    } else if let Some(passed) = wait.recv_lent(self, &mut slept) {
                        return passed;
                    }
                    if matches!(&slept, Some(Slept::Read(Err(_)))) {
                        // It takes long, so the thread sleeps where others can wake it.
                        how = AttendedBlock::Poll;
                    }
                    // A whole turn handles all that is not a message.
                    turn = true;
                }
            }
            engine = self.lock();
            if lent && !engine.attendances().come_back(id, waiter, now) {
                return Ok(self.leave_to_leader(engine, wait, slept));
            }
        }
    }

    /// The thread cannot attend the connection. The leader, which has it, waits for what the thread has read
    /// while the connection was lent.
    #[cold]
    fn leave_to_leader(
        &self,
        mut engine: MutexGuard<'_, Engine>,
        wait: &AttendedQueue<'_>,
        slept: Option<Slept>,
    ) -> Awaited {
        if let Some(slept) = slept {
            let now = self.clock.now_locked(None);
            engine.run_attended(wait.id, slept.end(&wait.room), (now, Ringing::AtOnce), None);
            self.finish(engine, Some(wait.waiter));
        }
        Awaited::CannotAttend
    }

    /// Looks in memory for what comes on the connection, if that has lately paid. Another thread
    /// can have the engine between the looks.
    fn peek_at_connection<'a>(
        &'a self,
        mut engine: MutexGuard<'a, Engine>,
        wait: &AttendedQueue<'_>,
    ) -> MutexGuard<'a, Engine> {
        let AttendedQueue { queue, id, .. } = *wait;
        if engine.attendances().poll_memory(id).is_none() {
            return engine;
        }
        let crowded = self.attention.crowding.is_crowded(self.clock.about());
        let Some(limit) = queue.pace().peek_attended(crowded) else { return engine };
        let until = self.clock.about() + limit;
        let found = loop {
            let mut looks = 0;
            while looks < LOOKS && engine.attendances().poll_memory(id) == Some(false) {
                looks += 1;
                std::hint::spin_loop();
            }
            if engine.attendances().poll_memory(id) != Some(false) || !queue.is_empty() {
                break true;
            }
            // A thread that wants to post may wait for this very processor.
            if self.posters.load(Ordering::Relaxed) > 0 || self.clock.about() >= until {
                break false;
            }
            drop(engine);
            engine = self.lock();
        };
        queue.pace().note_peek_attended(found);
        engine
    }
}

impl AttendedQueue<'_> {
    /// Takes what has ended a sleep.
    fn run(&mut self, engine: &mut Engine, slept: Slept, now: Time) {
        let end = slept.end(&self.room);
        let Some(Passing { to, len, .. }) = &mut self.passing else {
            engine.run_attended(self.id, end, (now, Ringing::InTurn), None);
            return;
        };
        let room = to.out.len() - *len;
        let mut take = |bytes: &[u8]| {
            let fits = to.out.put(*len, bytes);
            debug_assert!(fits, "no more than there is room");
            *len += bytes.len();
        };
        let mut read = VisitRead { posted: 0, room, take: &mut take };
        engine.run_attended(self.id, end, (now, Ringing::InTurn), Some(&mut read));
    }

    /// True if the event is there, or bytes have passed, or another thread has called this one back.
    fn is_over(&self) -> bool {
        !self.queue.is_empty()
            || self.end.is_called_back()
            || self.passing.as_ref().is_some_and(|passing| passing.len > 0)
    }

    fn pass(&self) -> PassWait {
        if self.passing.is_some() { PassWait::Waits } else { PassWait::Posted }
    }

    /// True if no bytes can pass, for which the thread waits.
    fn cannot_pass(&self, engine: &Engine) -> bool {
        self.passing.is_some() && !engine.may_pass(self.id)
    }

    /// The thread attends the connection from now on. `returns`: it has read while the connection was
    /// lent. False: it cannot attend the connection.
    fn begin(&self, engine: &mut Engine, returns: bool, now: impl FnOnce() -> Time) -> bool {
        if returns {
            return engine.attendances().come_back(self.id, self.waiter, now());
        }
        if self.passes_exactly() && !engine.may_pass_beside_polls(self.id, now()) {
            return false;
        }
        let pass = self.pass();
        !self.cannot_pass(engine) && engine.attendances().attend(self.id, self.waiter, pass)
    }

    /// How the wait ends now. None: it goes on. `end`: how the last sleep has ended the wait, unless what
    /// the thread waits for has come.
    fn outcome(
        &self,
        engine: &mut Engine,
        end: Option<Result<Awaited, Error>>,
        now: Time,
    ) -> Option<Result<Awaited, Error>> {
        if self.is_over() {
            Some(Ok(Awaited::There))
        } else if let Some(ended) = engine.attendances().pass_ended(self.id) {
            Some(ended.map(|()| Awaited::CannotAttend).map_err(Error::Op))
        } else if self.cannot_pass(engine) {
            end.or(Some(Ok(Awaited::CannotAttend)))
        } else if self.end.deadline.is_some_and(|deadline| deadline <= now) {
            end.or(Some(Ok(Awaited::TimedOut)))
        } else {
            end
        }
    }

    /// Announces a sleep. None: the thread does not attend the connection any more.
    fn announce(&self, engine: &mut Engine, how: AttendedBlock, now: Time) -> Option<AttendedWait> {
        let mut attendances = engine.attendances();
        match attendances.sleep(self.id, how) {
            Some(sleep) if self.can_sleep(&sleep) => return Some(sleep),
            // It comes back with an operation.
            Some(AttendedWait::Descriptor { .. }) => {
                attendances.leave(self.id, (false, false), now)
            }
            // The leader looks after the connection from now on.
            _ => attendances.end(self.id),
        }
        None
    }

    /// Has the connection lent to this thread, which is about to sleep. `shows`: as for [`Engine::lend`].
    /// False: the engine keeps it.
    fn lend(&self, engine: &mut Engine, shows: bool, now: Time) -> bool {
        let pace = || Pace::new(self.queue.pace().policy());
        let lend = |passing: &Passing<'_>| engine.lend(self.id, (passing.loan, pace), shows, now);
        self.passing.as_ref().is_some_and(lend)
    }

    /// Waits for a message on the connection, which was lent to this thread. None: the thread comes back to
    /// the engine.
    fn recv_lent(
        &mut self,
        context: &Context,
        slept: &mut Option<Slept>,
    ) -> Option<Result<Awaited, Error>> {
        let Passing { to, len, loan } = self.passing.as_mut()?;
        match loan.recv_begun(context, std::mem::take(&mut self.room), to) {
            LentRecv::Message(n) => *len = n,
            LentRecv::Last(n) => {
                context.recall(self.id);
                *len = n;
            }
            LentRecv::Interrupted => return Some(Err(Error::Interrupted)),
            LentRecv::Other(LentRead { room, result, .. }) => {
                (self.room, *slept) = (room, Some(Slept::Read(result)));
                return None;
            }
            LentRecv::NotLent => return None,
        }
        Some(Ok(Awaited::There))
    }

    /// False if the thread holds signals back and would have to sleep on a word: such a sleep
    /// cannot let signals in. Also false if a signal must end the wait and the thread holds none back: then
    /// it sleeps only once, and on the word of a peer that is trusted.
    fn can_sleep(&self, sleep: &AttendedWait) -> bool {
        match sleep {
            AttendedWait::Word { trusted, .. } => {
                self.held.is_none() && (*trusted || self.queue.serves_calls())
            }
            AttendedWait::Descriptor { .. } => !self.passes_exactly(),
            AttendedWait::Ready | AttendedWait::Stream(_) => true,
        }
    }

    /// The thread waits without an operation, and a signal ends its wait.
    fn passes_exactly(&self) -> bool {
        self.passing.as_ref().is_some_and(|passing| passing.to.ends_at_signal)
    }

    /// How the thread blocks first. A read has a time limit of its own. It cannot let signals in, and no
    /// other event ends it.
    fn block(&self, slept: Option<&Slept>, now: Time) -> AttendedBlock {
        let found_nothing = matches!(slept, Some(Slept::Read(Err(_))));
        let only_message = self.queue.is_of_caller() && self.held.is_none();
        let has_time = self.end.deadline.is_none_or(|d| d.since(now) > 2 * ATTENDED_READ_LIMIT);
        match only_message && has_time && !found_nothing {
            true => AttendedBlock::Read,
            false => AttendedBlock::Poll,
        }
    }

    /// Sleeps until the connection is ready, another thread wakes this thread, or the deadline
    /// passes. The thread may wake sooner. The second value is an error that ends the wait.
    fn sleep(
        &mut self,
        sleep: &AttendedWait,
        now: Time,
    ) -> (Option<Slept>, Option<Result<Awaited, Error>>) {
        if let AttendedWait::Stream(stream) = sleep {
            return match stream.read_blocking(self.room.bytes()) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                    (Some(Slept::Read(Err(not_yet()))), self.interrupted())
                }
                Err(e) if self.passes_exactly() => {
                    (Some(Slept::Read(Err(e))), Some(Ok(Awaited::CannotAttend)))
                }
                read => (Some(Slept::Read(read)), None),
            };
        }
        match self.sleep_in_poll(sleep, now) {
            Ok(ready) => (Some(Slept::Ready(ready)), None),
            Err(Error::Interrupted) => (None, self.interrupted()),
            Err(e) => (None, Some(Err(e))),
        }
    }

    /// The end of a wait during which a signal handler ran.
    fn interrupted(&self) -> Option<Result<Awaited, Error>> {
        let ends = self.passing.is_none() || self.passes_exactly();
        ends.then_some(Err(Error::Interrupted))
    }

    /// Sleeps on a word of shared memory. As recv(2), a call that blocks goes on after a signal handler
    /// with SA_RESTART. As epoll_wait(2), a dequeue does not.
    fn sleep_on(&self, word: &SharedWord, left: Option<Duration>) -> io::Result<()> {
        let bell = &self.waiter.bell;
        // An event that came before the bell was armed has rung no bell.
        if self.queue.serves_calls() {
            bell.arm();
            let slept = if self.queue.is_empty() { word.sleep(bell, left) } else { Ok(()) };
            bell.disarm();
            return slept;
        }
        bell.arm_alone(word);
        let slept = if self.queue.is_empty() { word.sleep_until_signal(left) } else { Ok(()) };
        bell.disarm_alone();
        slept
    }

    fn sleep_in_poll(&self, sleep: &AttendedWait, now: Time) -> Result<Ready, Error> {
        let left = self.end.deadline.map(|deadline| deadline.since(now));
        match sleep {
            AttendedWait::Ready | AttendedWait::Stream(_) => Ok(Ready::default()),
            AttendedWait::Descriptor { fd, write } => {
                let bell = &self.waiter.fd;
                let found = wait_ready((*fd, *write), bell.as_raw_fd(), left, self.held)
                    .map_err(|e| io_error("ppoll", &e))?;
                if found.bell {
                    bell.drain();
                }
                let (readable, writable) = (found.readable, found.writable);
                Ok(Ready { readable, writable, hup: found.hup })
            }
            AttendedWait::Word { word, .. } => {
                let slept = self.sleep_on(word, left);
                slept.map_err(|e| io_error("futex", &e))?;
                Ok(Ready::default())
            }
        }
    }
}
