//! The sentry: the background thread while it sleeps in the reactor.
//!
//! The background thread leads where no thread of the program does, so it mostly sleeps in the reactor.
//! A thread that waits now and then would have to wake it for the lead, and the background thread would
//! look for a leader again in some ticks: several switches of threads for each message, two of them
//! while the program waits. So the background thread sleeps on while a thread of the program leads. The
//! kernel wakes one of the threads that sleep in epoll_wait(2), the one that came last, and that is the
//! leader. A leader that leaves gives the lead back to the sleeper: it announces that a thread
//! sleeps in the reactor, as it would before a sleep of its own.
//!
//! Where a leader sleeps for long, the background thread would have to sleep there first. So it waits
//! until that leader wakes (`note_slept`).
//!
//! What comes while the leader is awake wakes the background thread. It leaves what it has found to the
//! leader. The same happens if the kernel should choose otherwise, so nothing depends on its choice
//! but the number of switches.
//!
//! Where leads follow each other quickly, the background thread would wake for nothing, and each leader
//! would announce a sleep for nothing. So this is allowed a few times in each [`PERIOD`]. Beyond that a
//! leader that leaves wakes the background thread, which looks for a leader in ticks (`leader`, rule 3).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::context::Context;
use super::reactor::{Reactor, warn_of_error};
use super::sleep_end::SleepEnd;
use super::wait::SLEEP_MAX;
use super::waiter::Waiter;
use crate::rnic::Ready;
use crate::time::Time;

/// The time in which some things are allowed a few times.
const PERIOD: Duration = Duration::from_millis(20);

/// How often, in each [`PERIOD`], a thread gives the lead back. A request of a program takes some waits.
pub(super) const GIVEN: u32 = 4;

/// How often, in each [`PERIOD`], the background thread falls asleep below a leader.
const DISTURBED: u32 = 3;

/// What the background thread is to do.
pub(super) enum Duty {
    /// Lead.
    Lead(Reactor),
    /// Sleep in the reactor, while a thread of the program leads, and sleeps there, too.
    SleepBelow,
}

/// The lead that a thread has taken.
pub(super) struct TakenLead {
    pub(super) reactor: Reactor,
    /// The thread has taken it from the background thread, which sleeps in the reactor. That sleep is
    /// still announced.
    pub(super) from_sleeper: bool,
}

/// What the background thread has found in the reactor while another thread leads.
#[derive(Default)]
pub(super) struct Findings {
    any: AtomicBool,
    ready: Mutex<Vec<(usize, Ready)>>,
}

impl Findings {
    /// The background thread leaves what it has found to the leader.
    pub(super) fn leave(&self, found: Vec<(usize, Ready)>) {
        if !found.is_empty() {
            self.lock().extend(found);
            self.any.store(true, Ordering::SeqCst);
        }
    }

    /// True if something is left for the leader. A leader asks that after it has announced a sleep, and
    /// the background thread wakes a leader that sleeps after it has left something.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// The leader fetches what was left.
    #[inline]
    pub(super) fn fetch(&self, ready: &mut Vec<(usize, Ready)>) {
        if self.has_any() {
            self.any.store(false, Ordering::SeqCst);
            ready.append(&mut self.lock());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(usize, Ready)>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What may happen a few times in each [`PERIOD`].
pub(super) struct Allowance {
    most: u32,
    since: Time,
    used: u32,
}

impl Allowance {
    pub(super) fn of(most: u32) -> Allowance {
        Allowance { most, since: Time::ZERO, used: 0 }
    }

    /// True if it may happen once more.
    pub(super) fn may(&mut self, now: Time) -> bool {
        if now.since(self.since) >= PERIOD {
            (self.since, self.used) = (now, 0);
        }
        self.used = self.used.saturating_add(1);
        self.used <= self.most
    }
}

/// How a sleep of the background thread in the reactor has ended.
enum Woken {
    /// It leads.
    Leads(Reactor),
    /// Another thread leads, and is awake.
    Below,
    /// Another thread leads, and sleeps: the kernel has woken the wrong one.
    Above,
}

/// What the background thread does after its sleep.
pub(super) enum AfterSleep {
    /// It leads, or must leave the lead now.
    Leads(Reactor),
    /// Another thread has the lead. It looks for a leader in ticks.
    Looks,
    /// Another thread has the lead, and sleeps. It waits until that thread calls it.
    Parks,
}

impl Context {
    /// The background thread, which leads, sleeps in the reactor.
    pub(super) fn sleep_as_sentry(&self, reactor: Reactor) -> AfterSleep {
        let left = self.prepare_sleep(None);
        if left.is_zero() || !reactor.ready.is_empty() || self.lead.must_leave() {
            self.end_sleep();
            return AfterSleep::Leads(self.ask_kernel(reactor));
        }
        self.show_news(false);
        let until = self.announced_sleep();
        if let Some(reactor) = self.lead.begin_sentry(reactor, until) {
            self.end_sleep();
            return AfterSleep::Leads(reactor);
        }
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        match self.sleep_in_reactor(left) {
            Woken::Leads(reactor) => AfterSleep::Leads(reactor),
            Woken::Above => AfterSleep::Parks,
            Woken::Below => self.sleep_below(until),
        }
    }

    /// The background thread, which leads, asks the kernel what has become ready.
    pub(super) fn ask_kernel(&self, mut reactor: Reactor) -> Reactor {
        warn_of_error(&reactor.poll(Some(Duration::ZERO)));
        reactor
    }

    /// The background thread sleeps below a thread of the program that leads, as long as that pays. It
    /// wakes at `until`, the shard's next deadline at some time: a leader that gives the lead back wakes
    /// it only for an earlier deadline.
    pub(super) fn sleep_below(&self, until: Time) -> AfterSleep {
        let mut disturbed = Allowance::of(DISTURBED);
        loop {
            let now = self.now();
            let until = if until > now { until } else { SleepEnd::FAR };
            if !disturbed.may(now) || !self.lead.sleep_below(until) {
                return AfterSleep::Looks;
            }
            match self.sleep_in_reactor(until.since(now).min(SLEEP_MAX)) {
                Woken::Leads(reactor) => return AfterSleep::Leads(reactor),
                // The next sleep would be above that of the leader again.
                Woken::Above => return AfterSleep::Parks,
                Woken::Below => {}
            }
        }
    }

    /// The background thread sleeps in the reactor for `left` at most.
    fn sleep_in_reactor(&self, left: Duration) -> Woken {
        let found = self.drive.take_ready(left);
        if let Some(reactor) = self.lead.woke(found) {
            self.end_sleep();
            return Woken::Leads(reactor);
        }
        if !self.announced.sleeps() {
            return Woken::Below;
        }
        // The leader looks for what was found when it wakes.
        self.lead.wake();
        Woken::Above
    }

    /// The end of the sleep that is announced.
    fn announced_sleep(&self) -> Time {
        self.announced.until().unwrap_or(SleepEnd::FAR)
    }

    /// The leader has slept in the reactor of this shard only. If it had slept for so long that the
    /// background thread has parked, that thread falls asleep below it now.
    pub(super) fn note_slept(&self) {
        if self.lead.is_parked() && !self.drive.is_used() && !self.keeps_news() {
            self.lead.call_sleeper_below();
        }
    }

    /// A thread that waited leaves the lead, and gives it back to the background thread if that sleeps in
    /// the reactor.
    pub(super) fn leave_lead(&self, reactor: Reactor, waiter: &Waiter) {
        let gives = self.lead.should_give_back(self.clock.about())
            && !self.drive.is_used()
            && !self.keeps_news();
        let kept = if gives { self.give_lead_back(reactor, waiter) } else { Some(reactor) };
        if let Some(reactor) = kept {
            self.lead.leave(reactor, Some(waiter), self.reliance.polls());
        }
    }

    /// Gives the lead back to the background thread. Returns the reactor if there is something to do.
    fn give_lead_back(&self, reactor: Reactor, waiter: &Waiter) -> Option<Reactor> {
        let left = self.prepare_sleep(None);
        if left.is_zero() || !reactor.ready.is_empty() {
            self.end_sleep();
            return Some(reactor);
        }
        self.show_news(false);
        let kept = self.lead.give_back(reactor, waiter, self.announced_sleep());
        if kept.is_some() {
            self.end_sleep();
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_often_is_not_allowed() {
        let at = |ms: u64| Time::from_nanos(ms * 1_000_000);
        let period = u64::try_from(PERIOD.as_millis()).unwrap();
        let mut allowance = Allowance::of(2);
        let may = |allowance: &mut Allowance, ms: &[u64]| -> Vec<bool> {
            ms.iter().map(|ms| allowance.may(at(*ms))).collect()
        };
        let begin = [period, period, period, 2 * period - 1];
        assert_eq!(may(&mut allowance, &begin), [true, true, false, false]);
        assert_eq!(may(&mut allowance, &[2 * period; 3]), [true, true, false]);
        let rarely: Vec<u64> = (3..50).map(|n| n * period).collect();
        assert!(may(&mut allowance, &rarely).into_iter().all(|may| may));
    }
}
