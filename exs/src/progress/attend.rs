//! How a thread waits for its own connection.
//!
//! A thread that blocks in a call waits for one connection. If it is alone in its shard, it leads.
//! Where threads share a shard, a leading thread would wake each of them for each message, which
//! takes two switches of threads more than the kernel needs. So such a thread attends its
//! connection. It sleeps on the connection's own descriptor, and runs the engine for messages that
//! came there. The background thread then leads for all other connections.
//!
//! Where memory shows what comes, the thread looks there for a moment before it sleeps, as long as
//! that pays ([`Pace`](super::pace::Pace)). A peer that answers meanwhile need not wake it.

use std::cell::Cell;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::Error;
use super::call::Ringing;
use super::context::Context;
use super::engine::{Engine, SockId};
use super::lead::Lead;
use super::pace::AT_HAND;
use super::queue::QueueCore;
use super::spin::{LOOKS, NOBODY};
use super::wait::{Waited, io_error};
use super::waiter::{Waiter, waiter};
use crate::rnic::{ATTENDED_READ, AttendedBlock, AttendedEnd, AttendedWait, Ready};
use crate::sys::{HeldSignals, wait_ready};
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

thread_local! {
    /// The memory into which the thread reads.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The wait of a thread that attends a connection.
struct AttendedQueue<'a> {
    queue: &'a QueueCore,
    id: SockId,
    waiter: &'a Arc<Waiter>,
    deadline: Option<Time>,
    /// Signals that the thread lets in only while it sleeps. None: it holds no signals back.
    held: Option<HeldSignals>,
    /// The memory into which the thread reads.
    room: Vec<u8>,
}

/// How a sleep ended.
enum Slept {
    /// The connection may be ready.
    Ready(Ready),
    /// The thread has read this many bytes, or could not.
    Read(io::Result<usize>),
}

impl Context {
    /// True if another thread attends a connection of this shard, or leads here.
    fn is_shared(&self) -> bool {
        self.outlook.get().has_attended() || self.lead.lead() == Lead::Application
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
        if !self.is_shared() {
            return Ok(Awaited::CannotAttend);
        }
        self.reliance.note_wait();
        let deadline = timeout.map(|t| self.now() + t);
        // Events that are there, or come within `AT_HAND`, do not count as waiting.
        if exact && self.first_peek(queue, 1, Some(AT_HAND), NOBODY) != Waited::TooFew {
            return Ok(Awaited::There);
        }
        let waiter = waiter()?;
        waiter.wait_at(self.shard());
        waiter.min.store(1, Ordering::SeqCst);
        queue.enlist(&waiter);
        let held = exact.then(HeldSignals::new);
        let room = ROOM.try_with(Cell::take).unwrap_or_default();
        let mut wait = AttendedQueue { queue, id, waiter: &waiter, deadline, held, room };
        let result = self.attend(&mut wait);
        let _ = ROOM.try_with(|room| room.set(wait.room));
        queue.delist(&waiter);
        result
    }

    fn attend(&self, wait: &mut AttendedQueue<'_>) -> Result<Awaited, Error> {
        let AttendedQueue { queue, id, waiter, .. } = *wait;
        let mut engine = self.lock();
        if !engine.attendances().attend(id, waiter) {
            return Ok(Awaited::CannotAttend);
        }
        // The first turn rings the doorbell for sends that wait for it.
        let mut turn = engine.has_lazy();
        if !turn {
            engine = self.peek_at_connection(engine, wait);
        }
        let (mut slept, mut end) = (None, None);
        let mut how = wait.block();
        loop {
            let now = self.clock.now_locked(None);
            let runs = turn || slept.is_some();
            match slept.take() {
                Some(Slept::Ready(ready)) => {
                    engine.run_attended(id, AttendedEnd::Ready(ready), now, None);
                }
                Some(Slept::Read(read)) => {
                    let read = read.map(|n| &wait.room[..n]);
                    engine.run_attended(id, AttendedEnd::Read(read), now, None);
                }
                None => {}
            }
            if turn && queue.is_empty() {
                turn = engine.run(now, false, Ringing::AtOnce);
            }
            if !queue.is_empty() {
                end = Some(Ok(Awaited::There));
            } else if wait.deadline.is_some_and(|deadline| deadline <= now) {
                end = end.or(Some(Ok(Awaited::TimedOut)));
            }
            if let Some(end) = end {
                engine.attendances().leave(id, self.reliance.polls(), now);
                self.finish(engine, Some(waiter));
                return end;
            }
            let sleep = engine.attendances().sleep(id, how);
            let sleep = sleep.filter(|sleep| wait.can_sleep(sleep));
            if sleep.is_none() {
                engine.attendances().end(id);
            }
            if runs || sleep.is_none() {
                self.finish(engine, Some(waiter));
            } else {
                // So far the thread has only announced its sleep.
                self.finish_idle(engine);
            }
            match sleep {
                None => return Ok(Awaited::CannotAttend),
                // The thread must sleep where others can wake it.
                Some(AttendedWait::Stream(_)) if turn => slept = Some(Slept::Read(not_yet())),
                Some(_) if turn => {}
                Some(sleep) => {
                    self.sleeps.fetch_add(1, Ordering::Relaxed);
                    (slept, end) = wait.sleep(&sleep, now);
                    if matches!(&slept, Some(Slept::Read(Err(_)))) {
                        // It takes long, so the thread sleeps where others can wake it.
                        how = AttendedBlock::Poll;
                    }
                    // A whole turn handles all that is not a message.
                    turn = true;
                }
            }
            engine = self.lock();
        }
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
        let crowded = self.attention.is_crowded(self.clock.about());
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

/// The outcome of a read that the thread did not begin, with the kernel's number.
fn not_yet() -> io::Result<usize> {
    Err(io::Error::from_raw_os_error(libc::EAGAIN))
}

impl AttendedQueue<'_> {
    /// False if the thread holds signals back and would have to sleep on a word: such a sleep
    /// cannot let signals in.
    fn can_sleep(&self, sleep: &AttendedWait) -> bool {
        self.held.is_none() || !matches!(sleep, AttendedWait::Word(_))
    }

    /// How the thread can block. A read has a time limit of its own, and cannot let signals in.
    fn block(&self) -> AttendedBlock {
        match self.held.is_none() && self.deadline.is_none() {
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
            self.room.resize(ATTENDED_READ, 0);
            return match stream.read_blocking(&mut self.room) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                    (Some(Slept::Read(not_yet())), Some(Err(Error::Interrupted)))
                }
                read => (Some(Slept::Read(read)), None),
            };
        }
        match self.sleep_in_poll(sleep, now) {
            Ok(ready) => (Some(Slept::Ready(ready)), None),
            Err(e) => (None, Some(Err(e))),
        }
    }

    fn sleep_in_poll(&self, sleep: &AttendedWait, now: Time) -> Result<Ready, Error> {
        let left = self.deadline.map(|deadline| deadline.since(now));
        match sleep {
            AttendedWait::Ready | AttendedWait::Stream(_) => Ok(Ready::default()),
            AttendedWait::Descriptor { fd, write } => {
                let bell = &self.waiter.fd;
                let found = wait_ready((*fd, *write), bell.as_raw_fd(), left, self.held.as_ref())
                    .map_err(|e| io_error("ppoll", &e))?;
                if found.bell {
                    bell.drain();
                }
                let (readable, writable) = (found.readable, found.writable);
                Ok(Ready { readable, writable, hup: found.hup })
            }
            AttendedWait::Word(word) => {
                let bell = &self.waiter.bell;
                bell.arm();
                // An event that came before the bell was armed has rung no bell.
                let slept = if self.queue.is_empty() { word.sleep(bell, left) } else { Ok(()) };
                bell.disarm();
                slept.map_err(|e| io_error("futex_waitv", &e))?;
                Ok(Ready::default())
            }
        }
    }
}
