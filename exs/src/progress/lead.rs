//! Leader and followers: who sleeps in the reactor.
//!
//! The reactor (mio's poll and the readiness it found) lies in [`LeadState`]
//! while nobody leads; whoever takes it out leads until it is put back. Rules:
//!
//! 1. A thread that wants to wait takes the reactor if it is there. If not, it
//!    enters the list of followers *under the same lock*, and sleeps on its own
//!    eventfd.
//! 2. A leader that leaves puts the reactor back and signals the first follower,
//!    if any; else it tells the background thread, if that one is parked.
//! 3. The background thread takes the reactor only when no other thread has led
//!    during its last tick, so that a program that goes in and out of `dequeue`
//!    never pays for a hand-over. It leaves when a follower appears.
//! 4. A follower that goes its way without leading (its events came, its time is
//!    up) passes a signal on that it may have got by rule 2.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::queue::Waiter;
use crate::rnic::Ready;

/// How long nobody may lead before the background thread does.
const TICK: Duration = Duration::from_millis(1);

/// mio's poll, and what it found and nobody has handled yet.
pub(super) struct Reactor {
    poll: mio::Poll,
    events: mio::Events,
    /// (token, readiness), in order.
    pub(super) ready: Vec<(usize, Ready)>,
}

/// The token of the waker; all others are the devices'.
pub(super) const WAKE: mio::Token = mio::Token(usize::MAX);

impl Reactor {
    pub(super) fn new() -> io::Result<Reactor> {
        let (events, ready) = (mio::Events::with_capacity(256), Vec::with_capacity(256));
        Ok(Reactor { poll: mio::Poll::new()?, events, ready })
    }

    pub(super) fn registry(&self) -> &mio::Registry {
        self.poll.registry()
    }

    /// Sleeps until something is ready or woken; what was found is in `ready`.
    pub(super) fn poll(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.poll.poll(&mut self.events, timeout)?;
        for e in self.events.iter().filter(|e| e.token() != WAKE) {
            let ready = Ready {
                hup: e.is_read_closed() || e.is_error(),
                readable: e.is_readable() || e.is_read_closed() || e.is_error(),
                writable: e.is_writable() || e.is_write_closed() || e.is_error(),
            };
            self.ready.push((e.token().0, ready));
        }
        Ok(())
    }
}

/// Who leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Leader {
    Nobody = 0,
    Application = 1,
    Background = 2,
}

struct LeadState {
    reactor: Option<Reactor>,
    followers: VecDeque<Arc<Waiter>>,
    /// The background thread sleeps until told.
    parked: bool,
    /// An application thread polls without waiting and wants the lead next time.
    wanted: bool,
    /// Counts application threads that left the lead.
    turns: u64,
}

/// The lead, and the hand-over of it.
pub(super) struct Lead {
    state: Mutex<LeadState>,
    background: Condvar,
    leader: AtomicU8,
    waker: mio::Waker,
}

impl Lead {
    pub(super) fn new(reactor: Reactor) -> io::Result<Lead> {
        let waker = mio::Waker::new(reactor.registry(), WAKE)?;
        let state = LeadState {
            reactor: Some(reactor),
            followers: VecDeque::new(),
            parked: false,
            wanted: false,
            turns: 0,
        };
        Ok(Lead {
            state: Mutex::new(state),
            background: Condvar::new(),
            leader: AtomicU8::new(Leader::Nobody as u8),
            waker,
        })
    }

    fn lock(&self) -> MutexGuard<'_, LeadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who leads now. A thread that reads this under the engine's lock and finds
    /// nobody may leave work for the next leader: that one runs the engine first.
    pub(super) fn leader(&self) -> Leader {
        match self.leader.load(Ordering::SeqCst) {
            0 => Leader::Nobody,
            1 => Leader::Application,
            _ => Leader::Background,
        }
    }

    /// Makes the reactor return.
    pub(super) fn wake(&self) {
        // The waker is an eventfd of ours that nobody closes: it cannot fail.
        let woken = self.waker.wake();
        debug_assert!(woken.is_ok(), "{woken:?}");
    }

    /// Wakes a thread, wherever it sleeps.
    pub(super) fn wake_waiter(&self, waiter: &Waiter) {
        if waiter.leading.load(Ordering::SeqCst) {
            self.wake();
        } else {
            waiter.fd.signal();
        }
    }

    /// Rule 1: takes the lead, or follows.
    pub(super) fn lead_or_follow(&self, waiter: &Arc<Waiter>) -> Option<Reactor> {
        let mut st = self.lock();
        if let Some(reactor) = st.reactor.take() {
            waiter.leading.store(true, Ordering::SeqCst);
            self.leader.store(Leader::Application as u8, Ordering::SeqCst);
            return Some(reactor);
        }
        if !st.followers.iter().any(|w| Arc::ptr_eq(w, waiter)) {
            st.followers.push_back(Arc::clone(waiter));
        }
        drop(st);
        if self.leader() == Leader::Background {
            self.wake();
        }
        None
    }

    /// Takes the lead if it is free; else asks the background thread to leave it,
    /// unless it should stay (`polite`).
    pub(super) fn try_lead(&self, polite: bool) -> Option<Reactor> {
        let mut st = self.lock();
        if let Some(reactor) = st.reactor.take() {
            self.leader.store(Leader::Application as u8, Ordering::SeqCst);
            return Some(reactor);
        }
        if !polite && !st.wanted && self.leader() == Leader::Background {
            st.wanted = true;
            drop(st);
            self.wake();
        }
        None
    }

    /// Rule 2, for an application thread.
    pub(super) fn leave(&self, reactor: Reactor, waiter: Option<&Waiter>) {
        if let Some(w) = waiter {
            w.leading.store(false, Ordering::SeqCst);
        }
        let mut st = self.lock();
        st.turns += 1;
        st.wanted = false;
        self.put_back(st, reactor);
    }

    fn put_back(&self, mut st: MutexGuard<'_, LeadState>, reactor: Reactor) {
        st.reactor = Some(reactor);
        self.leader.store(Leader::Nobody as u8, Ordering::SeqCst);
        self.hand_on(st);
    }

    fn hand_on(&self, mut st: MutexGuard<'_, LeadState>) {
        if st.reactor.is_none() {
            return;
        }
        if let Some(next) = st.followers.pop_front() {
            drop(st);
            next.fd.signal();
        } else if st.parked {
            st.parked = false;
            drop(st);
            self.background.notify_one();
        }
    }

    /// Rule 4: a follower goes.
    pub(super) fn unfollow(&self, waiter: &Arc<Waiter>) {
        let mut st = self.lock();
        let before = st.followers.len();
        st.followers.retain(|w| !Arc::ptr_eq(w, waiter));
        if st.followers.len() == before {
            self.hand_on(st);
        }
    }

    /// Rule 3: sleeps until the background thread is to lead.
    pub(super) fn background_wait(&self) -> Reactor {
        let mut st = self.lock();
        let mut seen = None;
        loop {
            if st.reactor.is_none() {
                st.parked = true;
                seen = None;
                st = self.background.wait(st).unwrap_or_else(PoisonError::into_inner);
            } else if seen == Some(st.turns) && st.followers.is_empty() {
                st.parked = false;
                self.leader.store(Leader::Background as u8, Ordering::SeqCst);
                return st.reactor.take().expect("checked above");
            } else {
                seen = Some(st.turns);
                let (guard, _) = self
                    .background
                    .wait_timeout(st, TICK)
                    .unwrap_or_else(PoisonError::into_inner);
                st = guard;
            }
        }
    }

    /// True if the background thread should leave the lead.
    pub(super) fn background_must_leave(&self) -> bool {
        let st = self.lock();
        !st.followers.is_empty() || st.wanted
    }

    /// Rule 2, for the background thread.
    pub(super) fn background_leave(&self, reactor: Reactor) {
        let mut st = self.lock();
        st.wanted = false;
        st.turns += 1;
        self.put_back(st, reactor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lead() -> Lead {
        Lead::new(Reactor::new().unwrap()).unwrap()
    }

    #[test]
    fn a_follower_is_handed_the_lead() {
        let lead = lead();
        let (a, b) = (Waiter::new().unwrap(), Waiter::new().unwrap());
        let r = lead.lead_or_follow(&a).expect("free");
        assert_eq!(lead.leader(), Leader::Application);
        assert!(lead.lead_or_follow(&b).is_none());
        assert!(!b.fd.wait(Some(Duration::ZERO)).unwrap());
        lead.leave(r, Some(&a));
        assert!(b.fd.wait(Some(Duration::ZERO)).unwrap());
        assert!(lead.lead_or_follow(&b).is_some());
    }

    #[test]
    fn a_follower_that_goes_passes_the_signal_on() {
        let lead = lead();
        let [a, b, c] = std::array::from_fn(|_| Waiter::new().unwrap());
        let r = lead.lead_or_follow(&a).unwrap();
        assert!(lead.lead_or_follow(&b).is_none());
        assert!(lead.lead_or_follow(&c).is_none());
        lead.leave(r, Some(&a));
        lead.unfollow(&b);
        assert!(c.fd.wait(Some(Duration::ZERO)).unwrap(), "the lead is free and c waits");
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
    fn the_background_leads_when_nobody_does_and_leaves_when_asked() {
        let lead = Arc::new(lead());
        let r = lead.background_wait();
        assert_eq!(lead.leader(), Leader::Background);
        assert!(!lead.background_must_leave());
        assert!(lead.try_lead(true).is_none());
        assert!(!lead.background_must_leave(), "polite");
        let a = Waiter::new().unwrap();
        assert!(lead.lead_or_follow(&a).is_none());
        assert!(lead.background_must_leave());
        lead.background_leave(r);
        assert!(a.fd.wait(Some(Duration::ZERO)).unwrap());
    }
}
