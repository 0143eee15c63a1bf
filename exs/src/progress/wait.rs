//! How a thread waits for events: it looks, leads, follows the leader, or sleeps.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Error;
use super::attend::Awaited;
use super::background::PASSING_TURNS;
use super::companions::Companions;
use super::context::Context;
use super::event::RawEvent;
use super::pace::{AT_HAND, ROUNDS_PER_POLL, Rhythm};
use super::queue::{Away, QueueCore, Want};
use super::reactor::Reactor;
use super::sleep_end::SleepEnd;
use super::spin::{LOOK, USUAL_TURN};
use super::waiter::{Waiter, waiter};
use crate::sys::{HeldSignals, cycles};
use crate::time::Time;

/// The longest sleep in the reactor: mio takes milliseconds.
pub(super) const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// A leader steps aside after this many turns that served other threads, if its own events have not
/// come.
const FOREIGN_TURNS: u32 = 2;

/// How a thread's lead ended.
pub(super) enum Led {
    /// The thread's events are there.
    Done,
    /// The thread's deadline has passed.
    TimedOut,
    /// The traffic belongs to other threads.
    StepAside,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The thread found too few events in the time that it had.
    TooFew,
    /// The events are in the queue, unless another thread has taken them or has called this one back from
    /// another shard. Then the caller must wait again.
    There,
    /// This many events were handed to the caller, past the queue.
    Got(usize),
}

impl Waited {
    pub(super) fn of(there: bool) -> Waited {
        if there { Waited::There } else { Waited::TooFew }
    }
}

/// The goal of a thread that waits.
#[derive(Clone, Copy)]
pub(super) struct Goal<'a> {
    pub(super) queue: &'a QueueCore,
    pub(super) waiter: &'a Arc<Waiter>,
    /// The number of events that ends the wait.
    pub(super) min: usize,
    pub(super) end: WaitEnd<'a>,
    /// Held signals that the thread lets in while it sleeps. None: it holds no signals.
    pub(super) held: Option<&'a HeldSignals>,
    pub(super) rhythm: Rhythm,
}

impl Goal<'_> {
    fn reached(&self) -> bool {
        self.queue.len() >= self.min || self.end.is_called_back()
    }
}

/// What ends a wait whose events do not come.
#[derive(Clone, Copy)]
pub(super) struct WaitEnd<'a> {
    /// None: the wait has no limit.
    pub(super) deadline: Option<Time>,
    /// The thread waits in another shard than its queue, where others call it back.
    pub(super) away: Option<&'a Away<'a>>,
}

impl WaitEnd<'_> {
    /// For a thread that waits in the shard of its queue.
    pub(super) fn at(deadline: Option<Time>) -> WaitEnd<'static> {
        WaitEnd { deadline, away: None }
    }

    /// Another thread wants this one in the shard of its queue.
    #[inline]
    pub(super) fn is_called_back(&self) -> bool {
        self.away.is_some_and(Away::is_called_back)
    }
}

impl Context {
    /// Waits until `queue` has the events that the caller wants, or until `timeout` has passed. A
    /// timeout of 0 looks without waiting. None: the wait has no limit.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if a signal handler ran while the thread slept. With `exact` the call
    /// also reports each handler that ran while the thread waited without sleeping. That takes two
    /// more system calls if the thread has to wait.
    pub(crate) fn wait<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        want: &mut Want<'_, E>,
        timeout: Option<Duration>,
        exact: bool,
    ) -> Result<Waited, Error> {
        let min = want.min;
        if timeout == Some(Duration::ZERO) {
            Context::end_attendance(queue);
            return match queue.drive_fds().get() {
                Some(_) => self.drive(queue, want),
                None => self.glance(queue, want),
            };
        }
        if min == 1
            && let Some((home, id)) = self.elsewhere(queue)
            && let Some(waited) = home.wait_away(queue, id, timeout, exact)?
        {
            return Ok(waited);
        }
        self.reliance.note_wait();
        let mut held = None;
        if exact {
            // Events that are there, or come within `AT_HAND`, do not count as waiting.
            let found = self.first_peek(queue, min, Some(AT_HAND), Some(want));
            if found != Waited::TooFew {
                return Ok(found);
            }
            held = Some(HeldSignals::new());
        }
        // A thread that spins usually finds its events before it has begun to lead.
        let found = self.first_peek(queue, min, timeout, Some(want));
        if found != Waited::TooFew {
            return Ok(found);
        }
        let deadline = timeout.map(|t| self.now() + t);
        if min == 1 {
            match self.wait_at_queue(queue, timeout, held.as_ref())? {
                Awaited::There => return Ok(Waited::There),
                Awaited::TimedOut => return Ok(Waited::TooFew),
                Awaited::CannotAttend => {}
            }
        }
        Context::end_attendance(queue);
        self.wait_here(queue, min, WaitEnd::at(deadline), held.as_ref())
    }

    /// Runs `wait` while the thread is on the queue's list of waiters, for `min` events. It sleeps in this
    /// shard.
    pub(super) fn enlisted<T>(
        &self,
        queue: &QueueCore,
        min: usize,
        wait: impl FnOnce(&Arc<Waiter>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let waiter = waiter()?;
        waiter.wait_at(self.shard());
        waiter.min.store(min, Ordering::SeqCst);
        queue.enlist(&waiter);
        let result = wait(&waiter);
        queue.delist(&waiter);
        result
    }

    /// Leads or follows, on the queue's list of waiters.
    #[inline(never)]
    pub(super) fn wait_here(
        &self,
        queue: &QueueCore,
        min: usize,
        end: WaitEnd<'_>,
        held: Option<&HeldSignals>,
    ) -> Result<Waited, Error> {
        let there = self.enlisted(queue, min, |waiter| {
            let rhythm = self.attention.rhythm(self.clock.about());
            self.wait_enlisted(&Goal { queue, waiter, min, end, held, rhythm })
        });
        there.map(Waited::of)
    }

    /// Looks for events without waiting. To ask the kernel and to run the engine for every socket
    /// takes longer than a look. A program may do nothing else than look, so a thread that looks
    /// again and again asks the kernel for a part of its time only.
    #[inline(never)]
    fn glance<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        want: &mut Want<'_, E>,
    ) -> Result<Waited, Error> {
        let now = self.clock.about();
        let begun = cycles();
        // If the threads of the program do not lead for long, the background thread leads.
        if !self.attention.lacks_leader(now) {
            let (found, nothing_else) = self.peek_in_passing(queue, want);
            let asked = self.attention.has_asked(begun) && !self.outlook.get().watches_kernel();
            if found != Waited::TooFew || nothing_else && asked {
                return Ok(found);
            }
        }
        let polite = queue.has_fd() || self.reliance.polls();
        if !queue.has_fd() {
            self.reliance.note_look();
        }
        if let Some(mut reactor) = self.lead.try_lead(polite) {
            let polled = reactor.poll(Some(Duration::ZERO));
            let turn = self.turn(Some(&mut reactor), true, None);
            self.lead.leave(reactor, None, self.reliance.polls());
            self.attention.note_lead(now);
            let end = cycles();
            let rest = if turn.more { 0 } else { end.saturating_sub(begun).min(USUAL_TURN) * LOOK };
            self.attention.note_question(end.saturating_add(rest));
            polled
                .or_else(
                    |e| {
                        if e.kind() == std::io::ErrorKind::Interrupted { Ok(()) } else { Err(e) }
                    },
                )
                .map_err(|e| Error::os("epoll_wait", &e))?;
        } else if polite && !queue.is_polled() {
            // The background thread leads. This thread moves what it can move at once.
            for _ in 0..PASSING_TURNS {
                if !self.turn(None, true, None).more {
                    break;
                }
            }
        }
        let mut companions = Companions::of_thread(self.shard());
        companions.turn(true, None).map_err(|e| io_error("epoll_wait", &e))?;
        Ok(Waited::of(queue.len() >= want.min))
    }

    #[inline(never)]
    fn wait_enlisted(&self, goal: &Goal<'_>) -> Result<bool, Error> {
        let Goal { waiter, end, held, .. } = *goal;
        let mut aside = false;
        let mut companions = match end.away {
            Some(_) => Companions::default(),
            None => Companions::of_thread(self.shard()),
        };
        loop {
            if goal.reached() {
                return Ok(true);
            }
            let left = end.deadline.map(|d| d.since(self.now()));
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            if !aside && let Some(taken) = self.lead.lead_or_follow(waiter, companions.is_empty()) {
                let mut reactor = taken.reactor;
                if taken.from_sleeper {
                    self.end_sleep();
                }
                let led = self.lead_until(goal, &mut reactor, &mut companions);
                companions.leave();
                aside = matches!(led, Ok(Led::StepAside));
                match aside {
                    true => self.lead.step_aside(reactor, waiter),
                    false => self.leave_lead(reactor, waiter),
                }
                self.arm_early();
                self.attention.note_lead(self.now());
                match led? {
                    Led::Done => return Ok(true),
                    Led::TimedOut => return Ok(false),
                    Led::StepAside => continue,
                }
            }
            aside = false;
            let slept =
                if goal.reached() { Ok(true) } else { waiter.fd.wait_letting_in(left, held) };
            waiter.fd.drain();
            self.lead.unfollow(waiter);
            slept.map_err(|e| io_error("ppoll", &e))?;
        }
    }

    /// Leads until the queue has its events, until the deadline, or until it turns out that the
    /// traffic belongs to other threads.
    fn lead_until(
        &self,
        goal: &Goal<'_>,
        reactor: &mut Reactor,
        companions: &mut Companions,
    ) -> Result<Led, Error> {
        let mut foreign = 0;
        if reactor.unseen.saturating_add(self.attention.finds()) >= ROUNDS_PER_POLL {
            reactor.poll(Some(Duration::ZERO)).map_err(|e| io_error("epoll_wait", &e))?;
        }
        loop {
            // A thread that is about to spin looks everywhere at once, unless the reactor has
            // already reported something.
            let (spins, start) = (
                reactor.ready.is_empty() && self.spin(goal.queue, goal.rhythm).is_some(),
                cycles(),
            );
            let beside = companions.turn(spins, Some(goal.waiter));
            let beside = beside.map_err(|e| io_error("epoll_wait", &e))?;
            let turn = self.turn(Some(reactor), spins, Some(goal.waiter));
            foreign += u32::from(turn.served_others);
            if let Some(led) = self.led(goal, foreign) {
                return Ok(led);
            }
            if turn.more || beside {
                reactor.poll(Some(Duration::ZERO)).map_err(|e| io_error("epoll_wait", &e))?;
                if goal.held.is_some_and(HeldSignals::pending) {
                    return Err(Error::Interrupted);
                }
                continue;
            }
            let took = cycles().saturating_sub(start);
            match self.spin_for(goal, reactor, companions, &mut foreign, took)? {
                Some(led) => return Ok(led),
                None => self.sleep(goal, reactor, companions)?,
            }
        }
    }

    /// How a lead has ended. None: it has not.
    pub(super) fn led(&self, goal: &Goal<'_>, foreign: u32) -> Option<Led> {
        if goal.reached() {
            Some(Led::Done)
        } else if goal.end.deadline.is_some_and(|d| d <= self.now()) {
            Some(Led::TimedOut)
        } else if foreign >= FOREIGN_TURNS {
            Some(Led::StepAside)
        } else {
            None
        }
    }

    /// Sleeps in the reactor, and notes how long the sleep took.
    fn sleep(
        &self,
        goal: &Goal<'_>,
        reactor: &mut Reactor,
        companions: &mut Companions,
    ) -> Result<(), Error> {
        debug_assert!(goal.waiter.leading.load(Ordering::SeqCst), "a leader sleeps here");
        let begun = self.now();
        let slept =
            self.sleep_until(goal.end.deadline, goal.held, reactor, companions, || goal.reached());
        goal.queue.pace().note_sleep(self.now().since(begun), goal.rhythm);
        slept.map_err(|e| io_error("epoll_wait", &e))
    }

    /// Sleeps until something is ready in this shard or in a shard of `companions`, until the next
    /// deadline of their engines, or until `deadline`. The thread announces its sleep first, and
    /// does not sleep if `done` returns true after that. So a thread that wakes sleepers cannot
    /// miss it.
    pub(super) fn sleep_until(
        &self,
        deadline: Option<Time>,
        held: Option<&HeldSignals>,
        reactor: &mut Reactor,
        companions: &mut Companions,
        done: impl Fn() -> bool,
    ) -> std::io::Result<()> {
        let mut timeout = companions.prepare_sleep(self.prepare_sleep(deadline));
        if !reactor.ready.is_empty() || self.lead.findings.has_any() || done() {
            timeout = Duration::ZERO;
        }
        if !timeout.is_zero() {
            self.sleeps.fetch_add(1, Ordering::Relaxed);
            // The thread has nothing else to do, and it may be long until another thread comes.
            self.show_news(false);
            companions.show_news();
        }
        let slept = match companions.is_empty() {
            true => reactor.poll_letting_in(timeout, held),
            false => companions.sleep(reactor, timeout, held),
        };
        self.end_sleep();
        if companions.is_empty() {
            self.note_slept();
        }
        companions.end_sleep();
        slept
    }

    /// Announces that the thread which leads is about to sleep. Returns for how long it may sleep:
    /// until `deadline` or the engine's next deadline, or not at all if there is something to do.
    pub(super) fn prepare_sleep(&self, deadline: Option<Time>) -> Duration {
        let mut engine = self.lock();
        let now = self.now();
        let found = engine.devices.prepare_sleep();
        let next = match (engine.next_deadline(), deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        // The thread still holds the engine's lock, so a thread that changes the engine's deadline
        // later sees this value. A thread that leaves work without the lock and sees no sleep does
        // not wake this thread, so the look for such work comes after the announcement.
        self.lead.bell.note_sleep();
        self.announced.begin(next.unwrap_or(SleepEnd::FAR));
        let busy = found || engine.wants_run() || engine.has_lazy();
        match busy {
            true => Duration::ZERO,
            false => next.map_or(SLEEP_MAX, |t| t.since(now).min(SLEEP_MAX)),
        }
    }

    /// Withdraws the announcement: the thread that leads is awake.
    pub(super) fn end_sleep(&self) {
        self.announced.end();
    }
}

#[cold]
pub(super) fn io_error(call: &'static str, e: &std::io::Error) -> Error {
    if e.kind() == std::io::ErrorKind::Interrupted {
        Error::Interrupted
    } else {
        Error::os(call, e)
    }
}
