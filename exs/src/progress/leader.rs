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
//! 4. A leader whose turns serve other threads, and not its own queue, steps aside: it leaves for
//!    good, wakes the first follower, and sleeps on its eventfd (see `Context::wait`). So the
//!    thread that has the traffic leads, and no event is handed from thread to thread.
//! 5. A thread that waits in another shard may lead here as a companion (`companions`), while no
//!    other thread leads. It leaves the lead to any thread that asks for it, as the background
//!    thread does.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::alone::{Alone, Ticks};
use super::lead::{Lead, LeadAnswer, LeadEvent};
use super::reactor::Reactor;
use super::reactor_bell::ReactorBell;
use super::shards::Shard;
use super::waiter::Waiter;

/// The time without a leader after which the background thread leads.
const TICK: Duration = Duration::from_millis(1);
/// The tick if threads of the program have led in each of the last ticks. They will most likely
/// come back, and to look after them costs time. With many connections, to handle the events of a
/// turn can take milliseconds. Two threads that both lead would take the engine and the data from
/// each other.
pub(super) const LONG_TICK: Duration = Duration::from_millis(10);
/// A thread of the program that wants the lead back within this time had not gone away.
const SOON: Duration = Duration::from_millis(5);
/// Ticks become long after this many ticks in a row in which threads of the program led. After this
/// many ticks in a row with the same leader, the background thread sleeps until another thread
/// wakes it.
const STEADY: u32 = 4;
/// The tick while threads follow. Their events would wait that long.
const SHORT_TICK: Duration = Duration::from_micros(250);
/// Ticks in a row in which a thread of the program may be at work instead of leading. Some devices
/// move the data in the posting call, which takes milliseconds. A leader would wait for the
/// engine's lock meanwhile.
const AT_WORK: u32 = 4;

struct LeadState {
    lead: Lead,
    /// None while a thread leads.
    reactor: Option<Reactor>,
    followers: VecDeque<Arc<Waiter>>,
    /// The background thread sleeps until another thread wakes it.
    parked: bool,
    /// Counts the leads that have ended.
    turns: u64,
    /// When the background thread took the lead. None: it does not lead.
    background_since: Option<Instant>,
    /// The last lead of the background thread ended within [`SOON`].
    hasty: bool,
}

impl LeadState {
    /// True if a thread follows that is not `but`.
    fn has_followers(&self, but: Option<&Arc<Waiter>>) -> bool {
        self.followers.iter().any(|w| but.is_none_or(|but| !Arc::ptr_eq(w, but)))
    }
}

/// The lead of a shard, and its hand-over from thread to thread.
pub(super) struct Leadership {
    shard: Shard,
    state: Mutex<LeadState>,
    background: Condvar,
    /// The state of the lead, for threads without the lock.
    lead: AtomicU8,
    /// Ends the sleep of the thread in the reactor.
    pub(super) bell: ReactorBell,
}

impl Leadership {
    pub(super) fn new(reactor: Reactor, shard: Shard) -> io::Result<Leadership> {
        let bell = ReactorBell::new(&reactor)?;
        let state = LeadState {
            lead: Lead::Free,
            reactor: Some(reactor),
            followers: VecDeque::new(),
            parked: false,
            turns: 0,
            background_since: None,
            hasty: false,
        };
        Ok(Leadership {
            shard,
            state: Mutex::new(state),
            background: Condvar::new(),
            lead: AtomicU8::new(Lead::Free.to_bits()),
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
        let next = st.lead.next(event, st.has_followers(me));
        debug_assert!(next.is_some(), "{event:?} in {:?}", st.lead);
        let (lead, answer) = next.unwrap_or((st.lead, LeadAnswer::Refuse));
        st.lead = lead;
        self.lead.store(lead.to_bits(), Ordering::SeqCst);
        let woken = match answer {
            LeadAnswer::WakeFollower => st.followers.pop_front(),
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

    /// Rule 1: takes the lead, or makes the thread a follower. None: the thread follows.
    pub(super) fn lead_or_follow(&self, waiter: &Arc<Waiter>) -> Option<Reactor> {
        let mut st = self.lock();
        let (answer, _) = self.pass(&mut st, LeadEvent::Wait, Some(waiter));
        if answer == LeadAnswer::Take {
            waiter.leading.store(true, Ordering::SeqCst);
            return st.reactor.take();
        }
        if !st.followers.iter().any(|w| Arc::ptr_eq(w, waiter)) {
            st.followers.push_back(Arc::clone(waiter));
            // The background thread ticks faster from now on.
            self.background.notify_one();
        }
        drop(st);
        if answer == LeadAnswer::Ask {
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

    /// Rule 2: a thread of the program leaves the lead. If it leaves `for_good`, it wakes the first
    /// follower itself. `polls`: the program relies on descriptors.
    pub(super) fn leave(
        &self,
        reactor: Reactor,
        waiter: Option<&Waiter>,
        (for_good, polls): (bool, bool),
    ) {
        if let Some(w) = waiter {
            w.leading.store(false, Ordering::SeqCst);
        }
        let mut st = self.lock();
        self.pass(&mut st, LeadEvent::Leave, None);
        let next = if for_good { self.pass(&mut st, LeadEvent::Call, None).1 } else { None };
        self.put_back(st, reactor, next, polls);
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
        st.reactor = Some(reactor);
        let calls = st.parked || polls && st.lead == Lead::Free;
        st.parked &= !calls;
        drop(st);
        if calls {
            self.background.notify_one();
        }
        if let Some(next) = next {
            next.fd.signal();
        }
    }

    /// Takes a thread from the list of followers.
    pub(super) fn unfollow(&self, waiter: &Arc<Waiter>) {
        let mut st = self.lock();
        let before = st.followers.len();
        st.followers.retain(|w| !Arc::ptr_eq(w, waiter));
        if st.followers.len() < before {
            self.pass(&mut st, LeadEvent::Unfollow, None);
        }
    }

    /// Wakes the background thread: the program relies on descriptors from now on.
    pub(super) fn call_background(&self) {
        drop(self.lock());
        self.background.notify_one();
    }

    fn lead_in_background(&self, st: &mut LeadState) -> Option<Reactor> {
        if self.pass(st, LeadEvent::Watch, None).0 != LeadAnswer::Take {
            return None;
        }
        st.background_since = Some(Instant::now());
        st.reactor.take()
    }

    /// Rule 3: the background thread sleeps until it must lead. Returns the reactor.
    pub(super) fn background_wait(&self, ticks: &Ticks<'_>) -> Reactor {
        let mut st = self.lock();
        let (mut seen, mut busy, mut still) = (None, if st.hasty { STEADY } else { 0 }, 0);
        let mut left_alone = 0;
        let mut alone = Alone::default();
        loop {
            // A program that waits for descriptors of sockets does not come when the descriptor of
            // a queue is readable.
            if st.reactor.is_some()
                && st.followers.is_empty()
                && (ticks.armed)()
                && !(ticks.polls)()
            {
                if alone.is_over((ticks.ready)().then_some(st.turns))
                    && let Some(reactor) = self.lead_in_background(&mut st)
                {
                    return reactor;
                }
                st = self.wait_tick(st, alone.tick(), ticks);
                continue;
            }
            alone = Alone::default();
            // A thread of the program that has left the lead most likely waits for a descriptor.
            if (ticks.polls)()
                && st.lead.is_free()
                && let Some(reactor) = self.lead_in_background(&mut st)
            {
                return reactor;
            }
            let unled = seen == Some(st.turns);
            let works = unled && st.reactor.is_some() && left_alone < AT_WORK && (ticks.at_work)();
            left_alone = if works { left_alone + 1 } else { 0 };
            let quiet = unled && !works;
            seen = Some(st.turns);
            let led = quiet && st.reactor.is_none();
            (busy, still) = (if quiet { 0 } else { busy + 1 }, if led { still + 1 } else { 0 });
            if still >= STEADY && !(ticks.keeps)() {
                // The leader sleeps, so this thread can sleep until the leader wakes it. After
                // fewer ticks this would not pay: a leader that comes and goes would wake this
                // thread each time, with a system call and a switch of threads.
                st.parked = true;
                st = self.background.wait(st).unwrap_or_else(PoisonError::into_inner);
                (seen, still) = (None, 0);
                continue;
            }
            if quiet && !led {
                // If that thread no longer wants the lead, the next tick asks another thread.
                let (reactor, locked) = self.have_it_led(st, ticks);
                if let Some(reactor) = reactor {
                    return reactor;
                }
                st = locked;
            }
            let tick = match (st.followers.is_empty(), busy > STEADY || led) {
                (false, _) => SHORT_TICK,
                (true, false) => TICK,
                (true, true) => LONG_TICK,
            };
            st = self.wait_tick(st, tick, ticks);
        }
    }

    /// The background thread waits for a tick, or until another thread wakes it.
    fn wait_tick<'a>(
        &'a self,
        st: MutexGuard<'a, LeadState>,
        tick: Duration,
        ticks: &Ticks<'_>,
    ) -> MutexGuard<'a, LeadState> {
        let waited = self.background.wait_timeout(st, tick);
        let (mut st, over) = waited.unwrap_or_else(PoisonError::into_inner);
        if over.timed_out() {
            // The thread to which the reactor was promised has had its time.
            self.pass(&mut st, LeadEvent::Lapse, None);
            drop(st);
            (ticks.ticked)();
            st = self.lock();
        }
        st
    }

    /// No thread leads: asks the first follower to lead, or the program that waits for descriptors.
    /// Takes the reactor if there is neither.
    fn have_it_led<'a>(
        &'a self,
        mut st: MutexGuard<'a, LeadState>,
        ticks: &Ticks<'_>,
    ) -> (Option<Reactor>, MutexGuard<'a, LeadState>) {
        let (_, next) = self.pass(&mut st, LeadEvent::Call, None);
        if let Some(next) = next {
            next.fd.signal();
            return (None, st);
        }
        drop(st);
        let comes = (ticks.arm)();
        st = self.lock();
        let reactor = if comes { None } else { self.lead_in_background(&mut st) };
        (reactor, st)
    }

    /// True if the background thread, or a companion, must leave the lead.
    pub(super) fn must_leave(&self) -> bool {
        self.lead().must_leave()
    }

    /// The background thread leaves the lead, and wakes the first follower if there is one.
    pub(super) fn background_leave(&self, reactor: Reactor) {
        let mut st = self.lock();
        let (_, next) = self.pass(&mut st, LeadEvent::Leave, None);
        st.hasty = st.background_since.take().is_some_and(|since| since.elapsed() < SOON);
        // `put_back` would wake this very thread, so `polls` is false.
        self.put_back(st, reactor, next, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(at_work: &dyn Fn() -> bool) -> Ticks<'_> {
        let no = &|| false;
        Ticks { at_work, armed: no, arm: no, ready: no, polls: no, keeps: no, ticked: &|| {} }
    }

    fn lead() -> Leadership {
        Leadership::new(Reactor::new().unwrap(), Shard::FIRST).unwrap()
    }

    #[test]
    fn a_follower_is_handed_the_lead_when_the_leader_does_not_come_back() {
        let lead = Arc::new(lead());
        let (a, b) = (Waiter::new().unwrap(), Waiter::new().unwrap());
        let r = lead.lead_or_follow(&a).expect("free");
        assert_eq!(lead.lead(), Lead::Application);
        assert!(lead.lead_or_follow(&b).is_none());
        lead.leave(r, Some(&a), (false, false));
        assert!(!b.fd.wait(Some(Duration::ZERO)).unwrap(), "the leader may come back");
        let background = Arc::clone(&lead);
        let thread = std::thread::spawn(move || background.background_wait(&ticks(&|| false)));
        assert!(b.fd.wait(None).unwrap());
        let r = match lead.lead_or_follow(&b) {
            Some(r) => r,
            // The background thread saw no leader for one more tick, and leads.
            None => thread.join().unwrap(),
        };
        lead.leave(r, Some(&b), (false, false));
    }

    #[test]
    fn a_waiter_that_leads_is_woken_in_the_reactor() {
        let lead = lead();
        let a = Waiter::new().unwrap();
        let mut r = lead.lead_or_follow(&a).unwrap();
        lead.wake_waiter(&a);
        r.poll(None).unwrap();
        assert!(r.ready.is_empty(), "the waker is no device");
    }

    #[test]
    fn a_companion_leads_while_no_other_thread_wants_to() {
        let lead = lead();
        let r = lead.try_companion().expect("free");
        assert_eq!(lead.lead(), Lead::Companion { asked: false });
        assert!(!lead.must_leave() && lead.try_companion().is_none());
        let a = Waiter::new().unwrap();
        assert!(lead.lead_or_follow(&a).is_none());
        assert!(lead.must_leave(), "a thread of this shard waits");
        lead.leave_as_companion(r, false);
        assert!(a.fd.wait(Some(Duration::ZERO)).unwrap(), "the follower is woken");
        assert!(lead.try_companion().is_none(), "the lead is promised to the follower");
        let r = lead.lead_or_follow(&a).expect("the follower leads");
        lead.leave(r, Some(&a), (false, false));
        let r = lead.try_companion().expect("free again");
        assert!(lead.try_lead(false).is_none());
        assert!(lead.must_leave(), "a thread that does not wait has asked for it");
        lead.leave_as_companion(r, false);
    }

    #[test]
    fn a_thread_at_work_is_left_alone_but_not_for_ever() {
        let (lead, asked) = (lead(), std::cell::Cell::new(0));
        let r = lead.background_wait(&ticks(&|| {
            asked.set(asked.get() + 1);
            true
        }));
        assert_eq!(asked.get(), AT_WORK);
        lead.background_leave(r);
    }

    #[test]
    fn the_background_thread_leads_while_no_other_does_and_leaves_when_asked() {
        let lead = Arc::new(lead());
        let r = lead.background_wait(&ticks(&|| false));
        assert_eq!(lead.lead(), Lead::Background { asked: false });
        assert!(!lead.must_leave());
        assert!(lead.try_lead(true).is_none());
        assert!(!lead.must_leave(), "polite");
        let a = Waiter::new().unwrap();
        assert!(lead.lead_or_follow(&a).is_none());
        assert!(lead.must_leave());
        lead.background_leave(r);
        assert!(a.fd.wait(Some(Duration::ZERO)).unwrap());
    }
}
