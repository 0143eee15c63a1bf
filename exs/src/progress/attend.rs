//! How a thread waits for its own connection.
//!
//! A thread that blocks in a call waits for one connection. If it is alone in its shard, it leads.
//! Where threads share a shard, a leading thread would wake each of them for each message, which
//! takes two switches of threads more than the kernel needs. So such a thread attends its
//! connection. It sleeps on the connection's own descriptor, and runs the engine for messages that
//! came there. The background thread then leads for all other connections.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Error;
use super::context::Context;
use super::engine::SockId;
use super::lead::Lead;
use super::pace::AT_HAND;
use super::queue::QueueCore;
use super::spin::NOBODY;
use super::wait::{Waited, io_error};
use super::waiter::{Waiter, waiter};
use crate::rnic::{AttendedWait, Ready};
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

/// The wait of a thread that attends a connection.
struct AttendedQueue<'a> {
    queue: &'a QueueCore,
    id: SockId,
    waiter: &'a Arc<Waiter>,
    deadline: Option<Time>,
    /// Signals that the thread lets in only while it sleeps. None: it holds no signals back.
    held: Option<HeldSignals>,
}

impl Context {
    /// True if another thread attends a connection of this shard, or leads here.
    fn is_shared(&self) -> bool {
        self.outlook.attended() > 0 || self.lead.lead() == Lead::Application
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
        let peek = if exact { Some(AT_HAND) } else { timeout };
        if self.first_peek(queue, 1, peek, NOBODY) != Waited::InVain {
            return Ok(Awaited::There);
        }
        let waiter = waiter()?;
        waiter.wait_at(self.shard());
        waiter.min.store(1, Ordering::SeqCst);
        queue.enlist(&waiter);
        let held = exact.then(HeldSignals::new);
        let wait = AttendedQueue { queue, id, waiter: &waiter, deadline, held };
        let result = self.attend(&wait);
        queue.delist(&waiter);
        result
    }

    fn attend(&self, wait: &AttendedQueue<'_>) -> Result<Awaited, Error> {
        let AttendedQueue { queue, id, waiter, .. } = *wait;
        let mut engine = self.lock();
        if !engine.attend(id, waiter) {
            return Ok(Awaited::CannotAttend);
        }
        // The first turn rings the doorbell for sends that wait for it.
        let mut turn = engine.has_lazy();
        let (mut ready, mut end) = (None, None);
        loop {
            let now = self.clock.now_locked(None);
            if let Some(ready) = ready.take() {
                engine.run_attended(id, ready, now);
            }
            if turn && queue.is_empty() {
                turn = engine.run(now, false);
            }
            if !queue.is_empty() {
                end = Some(Ok(Awaited::There));
            } else if wait.deadline.is_some_and(|deadline| deadline <= now) {
                end = end.or(Some(Ok(Awaited::TimedOut)));
            }
            if let Some(end) = end {
                engine.leave_attended(id, self.reliance.polls(), now);
                self.finish(engine, Some(waiter));
                return end;
            }
            let sleep = engine.sleep_attended(id).filter(|sleep| wait.can_sleep(sleep));
            if sleep.is_none() {
                engine.unattend(id);
            }
            self.finish(engine, Some(waiter));
            match sleep {
                None => return Ok(Awaited::CannotAttend),
                Some(_) if turn => {}
                Some(sleep) => {
                    self.sleeps.fetch_add(1, Ordering::Relaxed);
                    match wait.sleep(&sleep, now) {
                        Ok(found) => ready = Some(found),
                        Err(e) => end = Some(Err(e)),
                    }
                    // A whole turn handles all that is not a message.
                    turn = true;
                }
            }
            engine = self.lock();
        }
    }
}

impl AttendedQueue<'_> {
    /// False if the thread holds signals back and would have to sleep on a word: such a sleep
    /// cannot let signals in.
    fn can_sleep(&self, sleep: &AttendedWait) -> bool {
        self.held.is_none() || !matches!(sleep, AttendedWait::Word(_))
    }

    /// Sleeps until the connection is ready, another thread wakes this thread, or the deadline
    /// passes. The thread may wake sooner.
    fn sleep(&self, sleep: &AttendedWait, now: Time) -> Result<Ready, Error> {
        let left = self.deadline.map(|deadline| deadline.since(now));
        match sleep {
            AttendedWait::Ready => Ok(Ready::default()),
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
