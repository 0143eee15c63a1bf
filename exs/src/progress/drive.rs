//! A queue's descriptor that drives its shard.
//!
//! A program with an event loop of its own (epoll, mio, tokio, libuv) waits in the kernel for the
//! descriptors of its queues, beside others. So such a descriptor is readable not only while events
//! lie in the queue, but whenever the shard has something to do. It is an epoll set of the queue's
//! eventfd, of the shard's reactor, and of a timer for the engine's next deadline. The loop then
//! calls a dequeue that does not wait, which leads for a turn. No other thread need be woken. The
//! driver of `exs::aio` waits for the three descriptors themselves: where a set lies in the set of a
//! runtime, the kernel passes each segment that arrives through one set more.
//!
//! A dequeue that finds nothing *arms* the shard before it returns: it announces a sleep, as a
//! leader does before it sleeps in the reactor. Peers then ring, and threads that begin work wake
//! the reactor. The next dequeue ends the announced sleep. A loop that dequeues until nothing
//! comes, as the queue's documentation says, therefore never goes to sleep unannounced.
//!
//! Such a loop makes the system calls of one with kernel sockets, and one question more: it sleeps,
//! reads and writes, and asks the kernel behind that.
//! - The first dequeue after a sleep reads the connections that had bytes recently, before it asks the
//!   kernel which are readable. The dequeue that finds nothing asks that question.
//! - Events that a thread brings about itself, as that of a small send, do not make the descriptor
//!   readable until the shard is armed, as its thread dequeues again before it sleeps.
//!
//! [`Habits`] tells whether the loops of the shard are such loops, and whether such reads pay.
//!
//! Other loops dequeue the events that are there, and sleep. The background thread finds such a
//! shard unarmed and without a leader for a tick. It arms the shard for the program. The next
//! dequeues then arm early, before they return events.
//!
//! The background thread leaves an armed shard alone. It leads only if the reactor has been ready
//! for a tick and no thread came. Then the program computes, and the background thread moves its
//! data.

mod habits;
mod queues;

#[cfg(feature = "tokio")]
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::habits::Habits;
use self::queues::DrivingQueues;
use super::Error;
use super::background::PASSING_TURNS;
use super::context::Context;
use super::event::RawEvent;
use super::pace::ROUNDS_PER_POLL;
use super::queue::{DriveFds, FdUse, QueueCore, Want};
use super::reactor;
use super::wait::{Waited, io_error};
use crate::rnic::Ready;
#[cfg(feature = "tokio")]
use crate::sys::duplicate;
use crate::sys::{EpollSet, TimerFd, wait_readable};
#[cfg(feature = "tokio")]
use crate::time::Time;

/// A deadline further away than this needs no timer: a later turn sets it.
const FAR: Duration = Duration::from_secs(3600);

/// What a program that drives a shard has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driven {
    /// Events. `asked`: the thread has asked the kernel before.
    Found { asked: bool },
    /// Nothing. The sleep of the program is announced.
    Asleep,
    /// There is something to do, or another thread is about to leave the lead: the program must come
    /// again.
    Again,
}

/// What came of an attempt to arm a shard without a turn.
enum AtRest {
    /// The shard is armed.
    Armed,
    /// There is something to do. The kernel need not be asked again before the next turn.
    Asked,
    /// Another thread leads, or the kernel could not be asked.
    NotLed,
}

/// What a thread has done that wanted to lead for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriveTurn {
    /// Another thread leads.
    NotLed,
    /// The thread has led, and has handled all that the kernel has found.
    Led,
    /// The thread has led. More may be ready than the kernel's answer had room for, and the kernel does
    /// not report that again to a program that learns of each change once (EPOLLET).
    LedInPart,
}

/// What a turn for a queue's events has found.
pub(super) enum LedFor {
    /// Enough events. `asked` as in [`Driven::Found`].
    Found { asked: bool },
    /// Too few.
    Nothing(DriveTurn),
}

/// The state with which descriptors drive a shard.
pub(super) struct Drive {
    reactor: RawFd,
    /// The timer for the engine's next deadline, made with the first descriptor that drives the
    /// shard.
    timer: OnceLock<TimerFd>,
    /// When the timer fires (ns), by the context's clock; `u64::MAX` while it is not set.
    timer_at: AtomicU64,
    queues: DrivingQueues,
    /// True if a sleep was announced for a program that waits for a descriptor.
    armed: AtomicBool,
    /// When that was (ns).
    #[cfg(feature = "tokio")]
    armed_at: AtomicU64,
    habits: Habits,
    /// A thread has found events, and has not asked the kernel since the program slept.
    owes_question: AtomicBool,
}

impl Drive {
    pub(super) fn new(reactor: &impl AsRawFd) -> Drive {
        Drive {
            reactor: reactor.as_raw_fd(),
            timer: OnceLock::new(),
            timer_at: AtomicU64::new(u64::MAX),
            queues: DrivingQueues::default(),
            armed: AtomicBool::new(false),
            #[cfg(feature = "tokio")]
            armed_at: AtomicU64::new(0),
            habits: Habits::default(),
            owes_question: AtomicBool::new(false),
        }
    }

    /// True if a program waits for the descriptor of a queue of this shard.
    pub(super) fn is_used(&self) -> bool {
        !self.queues.is_empty()
    }

    /// What has become ready in the reactor, for a thread that does not have the reactor. The thread that
    /// has it does not learn that any more. Sleeps for `timeout` at most until there is something.
    pub(super) fn take_ready(&self, timeout: Duration) -> Vec<(usize, Ready)> {
        let taken = reactor::take_ready(self.reactor, timeout, None);
        // The kernel's error comes again if it lasts.
        reactor::warn_of_error(&taken);
        taken.unwrap_or_default().ready
    }

    /// A queue whose descriptor drove the shard is gone.
    pub(super) fn forget_queue(&self) {
        self.queues.forget_one();
    }

    /// How long ago a sleep was announced last.
    #[cfg(feature = "tokio")]
    fn slept_for(&self, now: Time) -> Duration {
        now.since(Time::from_nanos(self.armed_at.load(Ordering::Relaxed)))
    }

    /// True if the reactor is ready, or if the kernel cannot say so.
    fn is_ready(&self) -> bool {
        wait_readable(self.reactor, Some(Duration::ZERO), None).unwrap_or(true)
    }
}

impl Context {
    /// Returns the descriptor of a queue. The program waits for it from now on.
    pub(crate) fn program_fd<'q>(&self, queue: &'q Arc<QueueCore>) -> BorrowedFd<'q> {
        let events = queue.fd(FdUse::Program);
        Context::end_attendance(queue);
        match self.drive_set(queue) {
            Some(DriveFds::Joined(set)) => set.as_fd(),
            #[cfg(feature = "tokio")]
            Some(DriveFds::Apart) => events.as_fd(),
            None => {
                // The process has no descriptor left. The background thread leads, and shows
                // events.
                self.rely();
                events.as_fd()
            }
        }
    }

    /// Returns the descriptors that the descriptor of a queue is a set of. The program waits for each
    /// of them from now on, and comes when one is readable. They are duplicates, since queues of one
    /// shard have the same reactor, and an epoll set takes a descriptor once.
    #[cfg(feature = "tokio")]
    pub(crate) fn program_fds(&self, queue: &Arc<QueueCore>) -> std::io::Result<[OwnedFd; 3]> {
        let [events, reactor, timer] = self.drive_members(queue)?.map(duplicate);
        let members = [events?, reactor?, timer?];
        Context::end_attendance(queue);
        self.begin_drive(queue, DriveFds::Apart);
        Ok(members)
    }

    fn drive_set<'q>(&self, queue: &'q Arc<QueueCore>) -> Option<&'q DriveFds> {
        if let Some(fds) = queue.drive_fds().get() {
            return Some(fds);
        }
        let set = EpollSet::new(&self.drive_members(queue).ok()?).ok()?;
        Some(self.begin_drive(queue, DriveFds::Joined(set)))
    }

    /// What a program must wait for: the events of the queue, the shard's reactor, and the next deadline.
    fn drive_members(&self, queue: &QueueCore) -> std::io::Result<[RawFd; 3]> {
        let timer = match self.drive.timer.get() {
            Some(timer) => timer,
            None => {
                let made = TimerFd::new()?;
                self.drive.timer.get_or_init(|| made)
            }
        };
        let events = queue.fd(FdUse::Program).as_raw_fd();
        Ok([events, self.drive.reactor, timer.as_raw_fd()])
    }

    fn begin_drive<'q>(&self, queue: &'q Arc<QueueCore>, fds: DriveFds) -> &'q DriveFds {
        let fds = queue.drive_fds().get_or_init(|| {
            self.drive.queues.add(queue);
            fds
        });
        // The program may wait at once.
        self.arm_or_wake();
        fds
    }

    pub(super) fn arm_or_wake(&self) {
        if !self.arm() {
            // The wake-up makes the descriptor readable, so that the program comes for the work.
            self.lead.wake();
        }
    }

    /// A dequeue is about to return events of this queue, or a lead has ended: arms the shard if
    /// dequeues must still arm early.
    #[inline]
    pub(super) fn arm_early(&self) {
        if self.drive.habits.arm_early() && !self.is_armed() {
            self.drive.habits.note_early();
            self.arm_or_wake();
        }
    }

    /// The same for a dequeue that does not wait. If its thread comes again before it sleeps, the events
    /// that it brings about until then need not make the descriptor readable.
    #[inline]
    pub(crate) fn note_dequeued(&self, queue: &QueueCore) {
        if queue.drive_fds().get().is_none() || !queue.is_empty() {
            return;
        }
        if !self.drive.habits.come_again() {
            return self.arm_early();
        }
        self.drive.queues.withhold(queue);
        // Another thread may have announced a sleep, and waits for events.
        if self.is_armed() {
            self.drive.queues.show_withheld();
        }
    }

    /// Arms the shard for a program that went to sleep without a last dequeue: no thread leads, and
    /// the shard is not armed. False if no program waits for a queue's descriptor here, or if the
    /// shard has something to do for which the program has not come.
    pub(super) fn arm_for_sleeper(&self) -> bool {
        if !self.drive.is_used() {
            return false;
        }
        self.drive.habits.note_unannounced();
        self.arm()
    }

    /// As a dequeue that finds nothing: arms the shard for a program that has taken its events and is
    /// about to wait for descriptors. False if the shard has something to do, or if another thread
    /// leads: only a dequeue that finds nothing asks the background thread to leave the lead.
    #[cfg(feature = "tokio")]
    pub(crate) fn announce_sleep(&self) -> bool {
        self.lead.lead().is_free() && self.arm()
    }

    /// Announces the sleep of a program that waits for descriptors. False if the shard has
    /// something to do: then no sleep is announced.
    fn arm(&self) -> bool {
        let left = self.prepare_sleep(None);
        let armed = !left.is_zero();
        if armed {
            self.set_timer(left);
            self.show_news(false);
            #[cfg(feature = "tokio")]
            self.drive.armed_at.store(self.about_now().as_nanos(), Ordering::Relaxed);
            self.drive.armed.store(true, Ordering::SeqCst);
        } else {
            self.end_sleep();
        }
        self.drive.queues.show_withheld();
        armed
    }

    fn set_timer(&self, left: Duration) {
        let now = self.now();
        let at = if left < FAR { (now + left).as_nanos() } else { u64::MAX };
        let set = self.drive.timer_at.load(Ordering::Relaxed);
        // A timer that fires too early costs only a turn, so it stands. A timer that has fired
        // stays readable until it is set again.
        let stands = set <= at && set > now.as_nanos();
        if !stands
            && (set != u64::MAX || at != u64::MAX)
            && let Some(timer) = self.drive.timer.get()
        {
            timer.set(left.min(FAR));
            self.drive.timer_at.store(at, Ordering::Relaxed);
        }
    }

    /// True while a program sleeps that will come when the reactor is ready.
    pub(super) fn is_armed(&self) -> bool {
        self.drive.armed.load(Ordering::SeqCst) && self.announced.sleeps()
    }

    /// True if the program that sleeps should come: the reactor is ready, or a deadline has passed.
    /// The timer is not in the reactor, so the deadline is compared here.
    pub(super) fn is_due(&self) -> bool {
        self.announced.until().is_some_and(|end| end <= self.now()) || self.drive.is_ready()
    }

    pub(super) fn disarm(&self) -> bool {
        let armed = self.drive.armed.swap(false, Ordering::SeqCst);
        if armed {
            self.end_sleep();
        }
        armed
    }

    /// Runs a dequeue that does not wait, for a program that waits for the queue's descriptor.
    pub(super) fn drive<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        want: &mut Want<'_, E>,
    ) -> Result<Waited, Error> {
        let slept = self.disarm();
        let owed = self.drive.owes_question.swap(false, Ordering::Relaxed);
        let mut ask = slept || owed;
        if !slept {
            // A loop that comes again without a sleep has asked the kernel a moment ago, or does now.
            match self.arm_at_rest(owed) {
                AtRest::Armed => return Ok(Waited::of(queue.len() >= want.min)),
                AtRest::Asked => ask = false,
                AtRest::NotLed => {}
            }
        } else if !owed && let Some(found) = self.read_after_sleep(queue, want) {
            self.drive.owes_question.store(true, Ordering::Relaxed);
            self.note_dequeued(queue);
            return Ok(found);
        }
        for _ in 0..PASSING_TURNS {
            match self.drive_turn(queue, want.min.max(1), ask)? {
                Driven::Found { .. } => return Ok(Waited::There),
                Driven::Asleep => return Ok(Waited::of(queue.len() >= want.min)),
                Driven::Again => ask = true,
            }
        }
        // The shard has more to do: the wake-up keeps the descriptor readable.
        self.lead.wake();
        Ok(Waited::TooFew)
    }

    /// A program that waited for the queue's descriptor comes: reads the connections that had bytes
    /// recently, before it asks the kernel which are readable. So an answer does not wait for that
    /// question. The thread owes it, since the program may learn of each change once (EPOLLET): a
    /// dequeue that finds nothing asks before it arms the shard. None: they have brought nothing.
    fn read_after_sleep<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        want: &mut Want<'_, E>,
    ) -> Option<Waited> {
        let must_ask = self.attention.finds() >= ROUNDS_PER_POLL
            || self.attention.lacks_leader(self.clock.about())
            || self.outlook.get().watches_kernel();
        if must_ask || want.min > 1 || !self.drive.habits.read_first() {
            return None;
        }
        let (waited, _) = self.peek_in_passing(queue, want);
        let found = (waited != Waited::TooFew).then_some(waited);
        self.drive.habits.note_read(found.is_some());
        found
    }

    /// Arms the shard for a loop that has taken all events, without a turn of the engine. With `ask`, the
    /// thread first asks the kernel what became ready. If anything did, the thread must lead for a turn.
    fn arm_at_rest(&self, ask: bool) -> AtRest {
        let Some(mut reactor) = self.lead.try_lead(false) else { return AtRest::NotLed };
        // An error of the kernel comes again if it lasts.
        let asked = !ask || reactor.poll(Some(Duration::ZERO)).is_ok();
        let found = !reactor.ready.is_empty() || self.lead.findings.has_any() || reactor.is_full();
        self.lead.leave(reactor, None, self.reliance.polls());
        if asked && !found && self.arm() {
            self.drive.habits.note_announced();
            return AtRest::Armed;
        }
        if asked { AtRest::Asked } else { AtRest::NotLed }
    }

    /// As `drive`, for a program that may have learnt at any time that the descriptor is readable, and
    /// learns it once. So the thread always asks the kernel before it announces a sleep.
    #[cfg(feature = "tokio")]
    pub(crate) fn drive_once(&self, queue: &QueueCore, min: usize) -> Driven {
        let slept = self.disarm().then(|| self.drive.slept_for(self.about_now()));
        // The kernel's error comes again if it lasts.
        let driven = self.drive_turn(queue, min, true).unwrap_or(Driven::Again);
        if let Some(slept) = slept
            && matches!(driven, Driven::Found { .. })
        {
            queue.pace().note_sleep(slept, super::pace::Rhythm::Steady);
        }
        driven
    }

    /// A turn for a program that waits for the queue's descriptor, and wants `min` events. If it finds
    /// them, the caller takes them. With `ask`, the thread first asks the kernel what became ready.
    fn drive_turn(&self, queue: &QueueCore, min: usize, ask: bool) -> Result<Driven, Error> {
        Ok(match self.lead_for(queue, min, ask)? {
            LedFor::Found { asked } => Driven::Found { asked },
            LedFor::Nothing(turn) => self.arm_after(turn),
        })
    }

    /// The same, and arms no shard.
    pub(super) fn lead_for(
        &self,
        queue: &QueueCore,
        min: usize,
        ask: bool,
    ) -> Result<LedFor, Error> {
        queue.begin_quiet();
        let led = self.lead_once(ask, || ());
        if queue.len() >= min {
            // Taking them ends the quiet.
            return Ok(LedFor::Found { asked: matches!(led, Ok(DriveTurn::Led)) });
        }
        queue.end_quiet();
        Ok(LedFor::Nothing(led?))
    }

    /// A turn has found nothing for the program: arms the shard.
    pub(super) fn arm_after(&self, turn: DriveTurn) -> Driven {
        if turn == DriveTurn::LedInPart {
            return Driven::Again;
        }
        let armed = self.arm();
        // A background thread or a companion that was asked to leave the lead may not have seen what
        // made the descriptor readable. It wakes the program when it leaves, if the shard is armed.
        let left = turn == DriveTurn::NotLed && self.lead.lead().is_free();
        if !armed || left {
            return Driven::Again;
        }
        self.drive.habits.note_announced();
        Driven::Asleep
    }

    /// The background thread, or a companion, has left the lead. A program that asked for the lead
    /// may have gone to sleep, and must come for what the thread has not seen.
    pub(super) fn call_sleeper(&self) {
        // The thread that led has withdrawn the announcement, if it slept itself.
        if self.drive.armed.load(Ordering::SeqCst) {
            self.lead.wake();
        }
    }

    /// Leads for a turn. With `ask`, the thread first asks the kernel what became ready. It runs `then`
    /// before it leaves the lead.
    pub(super) fn lead_once(&self, ask: bool, then: impl FnOnce()) -> Result<DriveTurn, Error> {
        let Some(mut reactor) = self.lead.try_lead(false) else {
            self.turn(None, false, None);
            return Ok(DriveTurn::NotLed);
        };
        let asked = match ask || reactor.is_full() {
            true => reactor.poll(Some(Duration::ZERO)),
            false => self.poll_if_due(&mut reactor).map(drop),
        };
        let all = !reactor.is_full();
        self.turn(Some(&mut reactor), false, None);
        then();
        self.lead.leave(reactor, None, self.reliance.polls());
        self.attention.note_lead(self.about_now());
        match asked {
            Err(e) if e.kind() != std::io::ErrorKind::Interrupted => {
                Err(io_error("epoll_wait", &e))
            }
            _ => Ok(if all { DriveTurn::Led } else { DriveTurn::LedInPart }),
        }
    }
}
