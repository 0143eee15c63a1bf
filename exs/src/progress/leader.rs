//! The leader and its followers: which thread sleeps in the reactor.
//!
//! The reactor (mio's poll and the readiness that it found) lies in [`LeadState`] while no thread
//! leads. A thread that takes the reactor out leads until it puts the reactor back. The rules:
//!
//! 1. A thread that wants to wait takes the reactor if it is there. If not, the thread enters the
//!    list of followers *under the same lock*, and sleeps on its own eventfd.
//! 2. A leader that leaves puts the reactor back. It tells the background thread if that thread is
//!    parked. It also does so if the program relies on descriptors (`reliance`): the background
//!    thread then leads at once. The leader wakes no follower: usually it comes back within
//!    microseconds, and a hand-over would cost more than it gains.
//! 3. The background thread watches a free reactor. If no thread has led for a tick, it wakes the
//!    first follower, or leads itself if there is none. It leaves the lead to a follower that
//!    appears.
//! 4. A leader whose turns serve other threads, and not its own queue, steps aside: it wakes the
//!    first follower, and follows (see `Context::wait`). So the thread that has the traffic leads,
//!    and no event is handed from thread to thread. If that thread does not come, the one that
//!    stepped aside is the next to be woken.
//! 5. A thread that waits in another shard may lead here as a companion (`companions`), while no
//!    other thread leads. It leaves the lead to any thread that asks for it.
//! 6. While the background thread sleeps in the reactor, a thread that waits takes the lead without
//!    waking it. A thread that comes rarely gives the lead back when it leaves (`sentry`).
//! 7. A thread of the program that ends does not come back. If no other thread leads then, the first
//!    follower leads at once, or the background thread.
//! 8. A thread that attends its own connection does not lead. Before it sleeps, it wakes the first
//!    follower if no thread leads.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use background_wait::BackgroundWait;

use super::alone::Ticks;
use super::lead::{Lead, LeadAnswer, LeadEvent};
use super::reactor::Reactor;
use super::reactor_bell::ReactorBell;
use super::sentry::{Allowance, Duty, Findings, GIVEN, TakenLead};
use super::shards::Shard;
use super::sleep_end::SleepEnd;
use super::waiter::{Followers, Waiter};
use crate::rnic::Ready;
use crate::time::Time;

/// A thread of the program that wants the lead back within this time had not gone away.
const SOON: Duration = Duration::from_millis(5);

struct LeadState {
    lead: Lead,
    /// None while a thread leads.
    reactor: Option<Reactor>,
    followers: Followers,
    /// Counts the leads that have ended.
    turns: u64,
    background: BackgroundState,
}

/// What is known of the background thread.
struct BackgroundState {
    /// When it took the lead. None: it does not lead.
    leads_since: Option<Instant>,
    /// Its last lead ended within [`SOON`].
    hasty: bool,
    /// It was called to sleep in the reactor below the leader.
    called: bool,
    /// It was called to lead at once.
    takes_over: bool,
    /// How often the lead may still be given back to it.
    given: Allowance,
}

impl BackgroundState {
    /// The lead of the background thread ends now, if it leads.
    fn end_lead(&mut self) {
        if let Some(since) = self.leads_since.take() {
            self.hasty = since.elapsed() < SOON;
        }
    }
}

/// The lead of a shard, and its hand-over from thread to thread.
pub(super) struct Leadership {
    shard: Shard,
    state: Mutex<LeadState>,
    /// Ends a tick of the background thread, or its sleep outside of the reactor.
    wake_background: Condvar,
    /// The state of the lead, for threads without the lock.
    lead: AtomicU8,
    /// The sleep of the background thread in the reactor. It changes under the lock.
    sentry_sleep: SleepEnd,
    /// What the background thread has found in the reactor, for the leader.
    pub(super) findings: Findings,
    /// The background thread sleeps until another thread wakes it. It changes under the lock.
    parked: AtomicBool,
    /// Ends the sleep of the thread in the reactor.
    pub(super) bell: ReactorBell,
}

impl Leadership {
    pub(super) fn new(reactor: Reactor, shard: Shard) -> io::Result<Leadership> {
        let bell = ReactorBell::new(&reactor)?;
        let state = LeadState {
            lead: Lead::Free,
            reactor: Some(reactor),
            followers: Followers::default(),
            turns: 0,
            background: BackgroundState {
                leads_since: None,
                hasty: false,
                called: false,
                takes_over: false,
                given: Allowance::of(GIVEN),
            },
        };
        Ok(Leadership {
            shard,
            state: Mutex::new(state),
            wake_background: Condvar::new(),
            lead: AtomicU8::new(Lead::Free.to_bits()),
            sentry_sleep: SleepEnd::default(),
            findings: Findings::default(),
            parked: AtomicBool::new(false),
            bell,
        })
    }

    fn lock(&self) -> MutexGuard<'_, LeadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of the lead. A thread that reads this under the engine's lock and finds no leader
    /// may leave work to the next leader, which runs the engine first of all.
    pub(super) fn lead(&self) -> Lead {
        Lead::from_bits(self.lead.load(Ordering::SeqCst))
    }

    /// Moves the lead. Takes the first follower from its list if the answer says so, and returns
    /// that thread, which the caller must wake.
    fn pass(
        &self,
        st: &mut LeadState,
        event: LeadEvent,
        me: Option<&Arc<Waiter>>,
    ) -> (LeadAnswer, Option<Arc<Waiter>>) {
        let next = st.lead.next(event, st.followers.has_other_than(me));
        debug_assert!(next.is_some(), "{event:?} in {:?}", st.lead);
        let (lead, answer) = next.unwrap_or((st.lead, LeadAnswer::Refuse));
        st.lead = lead;
        self.lead.store(lead.to_bits(), Ordering::SeqCst);
        let woken = match answer {
            LeadAnswer::WakeFollower => st.followers.take_first(),
            _ => None,
        };
        (answer, woken)
    }

    /// Ends the sleep of the thread in the reactor.
    pub(super) fn wake(&self) {
        self.bell.ring();
    }

    /// Wakes a thread, wherever it sleeps. Returns true if the thread follows in this shard.
    pub(super) fn wake_waiter(&self, waiter: &Waiter) -> bool {
        let leads = waiter.leading.load(Ordering::SeqCst);
        let at = waiter.shard();
        match at.context() {
            _ if !leads => waiter.signal(),
            Some(other) if at != self.shard => other.wake(),
            _ => self.wake(),
        }
        !leads && at == self.shard
    }

    /// The number of threads of the program that lead or follow.
    #[cfg(any(test, feature = "internals"))]
    pub(super) fn waiting_threads(&self) -> usize {
        let st = self.lock();
        usize::from(st.lead == Lead::Application) + st.followers.len()
    }

    /// Rules 1 and 6: takes the lead, or makes the thread a follower. None: the thread follows. `alone`:
    /// the thread will sleep in the reactor of this shard only.
    pub(super) fn lead_or_follow(&self, waiter: &Arc<Waiter>, alone: bool) -> Option<TakenLead> {
        let mut st = self.lock();
        // A sleep in several reactors would not keep the background thread from waking.
        let asks = !alone && st.lead == Lead::Sentry;
        if asks {
            self.pass(&mut st, LeadEvent::Visit, None);
        }
        let from_sleeper = st.lead == Lead::Sentry;
        let (answer, _) = self.pass(&mut st, LeadEvent::Wait, Some(waiter));
        if answer == LeadAnswer::Take {
            st.background.end_lead();
            waiter.leading.store(true, Ordering::SeqCst);
            return st.reactor.take().map(|reactor| TakenLead { reactor, from_sleeper });
        }
        if st.followers.add(waiter) {
            // The background thread ticks faster from now on.
            self.wake_background.notify_one();
        }
        drop(st);
        if asks || answer == LeadAnswer::Ask {
            self.wake();
        }
        None
    }

    /// Takes the lead if it is free. Otherwise asks the background thread or a companion to leave
    /// it, unless the thread is `polite`.
    pub(super) fn try_lead(&self, polite: bool) -> Option<Reactor> {
        let mut st = self.lock();
        let event = if polite { LeadEvent::VisitPolitely } else { LeadEvent::Visit };
        match self.pass(&mut st, event, None).0 {
            LeadAnswer::Take => return st.reactor.take(),
            LeadAnswer::Ask => {
                drop(st);
                self.wake();
            }
            LeadAnswer::Refuse | LeadAnswer::Done | LeadAnswer::WakeFollower => {}
        }
        None
    }

    /// Rule 5: takes the lead for a thread that waits in another shard. None: another thread leads,
    /// or a thread of this shard is on its way to the lead.
    pub(super) fn try_companion(&self) -> Option<Reactor> {
        if !self.lead().is_free() {
            return None;
        }
        let mut st = self.lock();
        match self.pass(&mut st, LeadEvent::Accompany, None).0 {
            LeadAnswer::Take => st.reactor.take(),
            _ => None,
        }
    }

    /// A companion leaves the lead, and wakes the first follower if there is one.
    pub(super) fn leave_as_companion(&self, reactor: Reactor, polls: bool) {
        let mut st = self.lock();
        let (_, next) = self.pass(&mut st, LeadEvent::Leave, None);
        self.put_back(st, reactor, next, polls);
    }

    /// Rule 2: a thread of the program leaves the lead. `polls`: the program relies on descriptors.
    pub(super) fn leave(&self, reactor: Reactor, waiter: Option<&Waiter>, polls: bool) {
        if let Some(w) = waiter {
            w.leading.store(false, Ordering::SeqCst);
        }
        let mut st = self.lock();
        self.pass(&mut st, LeadEvent::Leave, None);
        self.put_back(st, reactor, None, polls);
    }

    /// Rule 4: a thread of the program steps aside. It wakes the first follower, and follows.
    pub(super) fn step_aside(&self, reactor: Reactor, waiter: &Arc<Waiter>) {
        waiter.leading.store(false, Ordering::SeqCst);
        let mut st = self.lock();
        self.pass(&mut st, LeadEvent::Leave, None);
        let (_, next) = self.pass(&mut st, LeadEvent::Call, None);
        st.followers.add(waiter);
        self.put_back(st, reactor, next, false);
        // The background thread ticks faster from now on.
        self.wake_background.notify_one();
    }

    /// Puts the reactor back, and wakes the thread to which the lead is promised.
    fn put_back(
        &self,
        mut st: MutexGuard<'_, LeadState>,
        reactor: Reactor,
        next: Option<Arc<Waiter>>,
        polls: bool,
    ) {
        st.turns += 1;
        self.keep(&mut st, reactor);
        let calls = self.unpark() || polls && st.lead == Lead::Free;
        let sleeps_below = self.has_sleeper();
        drop(st);
        if calls {
            self.wake_background.notify_one();
        }
        if sleeps_below {
            // It looks after the lead from now on. A thread that takes this wake-up from the reactor
            // leads, and comes here when it leaves.
            self.wake();
        }
        if let Some(next) = next {
            next.fd.signal();
        }
    }

    /// Keeps the reactor while no thread is awake that leads.
    fn keep(&self, st: &mut LeadState, mut reactor: Reactor) {
        self.findings.fetch(&mut reactor.ready);
        st.reactor = Some(reactor);
    }

    /// Rule 6: the background thread, which leads, is about to sleep in the reactor, until `until` at
    /// most. Returns the reactor if the thread must leave the lead instead.
    pub(super) fn begin_sentry(&self, reactor: Reactor, until: Time) -> Option<Reactor> {
        let mut st = self.lock();
        if self.pass(&mut st, LeadEvent::Doze, None).0 != LeadAnswer::Done {
            return Some(reactor);
        }
        self.keep(&mut st, reactor);
        self.sentry_sleep.begin(until);
        None
    }

    /// The background thread is about to sleep in the reactor, until `until` at most, below a thread of
    /// the program that leads. False: there is no such thread.
    pub(super) fn sleep_below(&self, until: Time) -> bool {
        let st = self.lock();
        let leads = st.lead == Lead::Application;
        if leads {
            self.sentry_sleep.begin(until);
        }
        leads
    }

    /// The background thread has slept in the reactor, and has found this. Returns the reactor if the
    /// thread leads. If not, the leader gets what was found. If that thread sleeps, the caller must wake it.
    pub(super) fn woke(&self, found: Vec<(usize, Ready)>) -> Option<Reactor> {
        let mut st = self.lock();
        self.sentry_sleep.end();
        match &mut st.reactor {
            Some(reactor) => reactor.ready.extend(found),
            None => self.findings.leave(found),
        }
        let (answer, _) = self.pass(&mut st, LeadEvent::Woke, None);
        if answer == LeadAnswer::Take { st.reactor.take() } else { None }
    }

    /// True if the background thread sleeps in the reactor.
    pub(super) fn has_sleeper(&self) -> bool {
        self.sentry_sleep.sleeps()
    }

    /// True if the background thread waits until the leader calls it.
    #[inline]
    pub(super) fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Relaxed)
    }

    /// The leader calls the background thread, if it is parked, to sleep in the reactor below it.
    #[cold]
    pub(super) fn call_sleeper_below(&self) {
        let mut st = self.lock();
        if self.unpark() {
            st.background.called = true;
            drop(st);
            self.wake_background.notify_one();
        }
    }

    /// Parks the background thread until a leader calls it.
    fn park<'a>(&'a self, st: MutexGuard<'a, LeadState>) -> MutexGuard<'a, LeadState> {
        self.parked.store(true, Ordering::Relaxed);
        self.wake_background.wait(st).unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the background thread was parked. The caller must wake it.
    fn unpark(&self) -> bool {
        self.parked.swap(false, Ordering::Relaxed)
    }

    /// True if a thread that leaves the lead now should give it back to the background thread: that
    /// thread sleeps in the reactor, and few leads have ended in the last milliseconds.
    pub(super) fn should_give_back(&self, now: Time) -> bool {
        self.has_sleeper() && self.lock().background.given.may(now)
    }

    /// Rule 6: a thread of the program gives the lead back to the background thread, whose sleep it has
    /// announced, until `next` at most. Returns the reactor if the background thread is awake by now,
    /// or if threads follow.
    pub(super) fn give_back(
        &self,
        reactor: Reactor,
        waiter: &Waiter,
        next: Time,
    ) -> Option<Reactor> {
        let mut st = self.lock();
        let Some(until) = self.sentry_sleep.until() else { return Some(reactor) };
        if self.pass(&mut st, LeadEvent::GiveBack, None).0 != LeadAnswer::Done {
            return Some(reactor);
        }
        waiter.leading.store(false, Ordering::SeqCst);
        st.turns += 1;
        st.background.leads_since = Some(Instant::now());
        self.keep(&mut st, reactor);
        let found = st.reactor.as_ref().is_some_and(|reactor| !reactor.ready.is_empty());
        drop(st);
        if found || next < until {
            self.wake();
        }
        None
    }

    /// Rule 8: the calling thread is about to sleep without the lead. If no thread leads, wakes the first
    /// follower.
    #[inline]
    pub(super) fn pass_on(&self) {
        if self.lead() == Lead::Free {
            self.call_follower();
        }
    }

    fn call_follower(&self) {
        let mut st = self.lock();
        // A thread may have taken the lead in the meantime.
        if st.lead != Lead::Free {
            return;
        }
        let (_, next) = self.pass(&mut st, LeadEvent::Call, None);
        drop(st);
        if let Some(next) = next {
            next.fd.signal();
        }
    }

    /// Rule 7: a thread that has led, or was to lead, has ended. If no other thread leads, wakes the first
    /// follower, or has the background thread lead.
    pub(super) fn replace(&self) {
        if !self.lead().is_free() {
            return;
        }
        let mut st = self.lock();
        if !st.lead.is_free() {
            return;
        }
        // It may have been promised to that thread. Another one that is on its way comes first, still.
        self.pass(&mut st, LeadEvent::Lapse, None);
        let (_, next) = self.pass(&mut st, LeadEvent::Call, None);
        st.background.takes_over = next.is_none();
        drop(st);
        match next {
            Some(next) => next.fd.signal(),
            None => self.wake_background.notify_one(),
        }
    }

    /// Takes a thread from the list of followers.
    pub(super) fn unfollow(&self, waiter: &Arc<Waiter>) {
        let mut st = self.lock();
        if st.followers.remove(waiter) {
            self.pass(&mut st, LeadEvent::Unfollow, None);
        }
    }

    /// Wakes the background thread: the program relies on descriptors from now on.
    pub(super) fn call_background(&self) {
        drop(self.lock());
        self.wake_background.notify_one();
    }

    fn lead_in_background(&self, st: &mut LeadState) -> Option<Reactor> {
        if self.pass(st, LeadEvent::Watch, None).0 != LeadAnswer::Take {
            return None;
        }
        st.background.leads_since = Some(Instant::now());
        st.reactor.take()
    }

    /// Rule 3: the background thread sleeps until it must lead, or until a leader calls it to sleep
    /// below. `parks`: the leader sleeps.
    pub(super) fn background_wait(&self, ticks: &Ticks<'_>, parks: bool) -> Duty {
        let mut st = self.lock();
        if parks && st.lead == Lead::Application {
            st = self.park(st);
        }
        BackgroundWait::new(self, ticks, st.background.hasty).wait(st)
    }

    /// True if the background thread, or a companion, must leave the lead.
    pub(super) fn must_leave(&self) -> bool {
        self.lead().must_leave()
    }

    /// The background thread leaves the lead, and wakes the first follower if there is one.
    pub(super) fn background_leave(&self, reactor: Reactor) {
        let mut st = self.lock();
        let (_, next) = self.pass(&mut st, LeadEvent::Leave, None);
        st.background.end_lead();
        // `put_back` would wake this very thread, so `polls` is false.
        self.put_back(st, reactor, next, false);
    }
}

mod background_wait;
#[cfg(test)]
mod tests;
