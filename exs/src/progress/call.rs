//! A call of the API on the engine: its time, and what it leaves behind.

use super::lazy_now::LazyNow;
use crate::rnic::DeferredWrite;
use crate::session::Doorbell;
use crate::sys::Clock;
use crate::time::Time;

/// How the engine rings doorbells while it settles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ringing {
    /// Each at once: no thread is about to lead that would ring them.
    AtOnce,
    /// For the turn of a leader: each at once, except those that may wait for the program's next call.
    /// The leader rings these before it sleeps, and the background thread after a tick.
    InTurn,
    /// The urgent ones at once. The next leader rings the others first of all.
    Lazy,
    /// As `Lazy`, but the next doorbell is that of a small send in a burst, which may wait even if it
    /// is urgent.
    LazyBurst,
}

impl Ringing {
    /// How soon a doorbell must ring, if the session wants it as soon as `bell`.
    #[inline]
    pub(super) fn apply(&mut self, bell: Doorbell) -> Doorbell {
        let before = *self;
        if before == Ringing::LazyBurst && bell > Doorbell::Idle {
            *self = Ringing::Lazy;
        }
        match (before, bell) {
            (Ringing::AtOnce, Doorbell::Next | Doorbell::Soon) => Doorbell::Now,
            (Ringing::InTurn, Doorbell::Soon) => Doorbell::Now,
            (Ringing::Lazy | Ringing::LazyBurst, Doorbell::Next) => Doorbell::Soon,
            (Ringing::LazyBurst, Doorbell::Now) => Doorbell::Soon,
            _ => bell,
        }
    }
}

/// A system call that the thread makes when it has released the engine.
pub(super) struct Deferred {
    pub(super) device: usize,
    pub(super) write: DeferredWrite,
}

/// A call. Context and engine pass it down to the code that runs the call, and the context asks it
/// afterwards for the work that is left.
pub(crate) struct Call<'a> {
    time: LazyNow<'a>,
    ringing: Ringing,
    /// The call has taken the eager path, which leaves nothing to settle.
    eager: bool,
    /// The write that the call has left to its thread.
    deferred: Option<Deferred>,
}

impl<'a> Call<'a> {
    /// The caller must hold the engine's lock for as long as the call lives.
    #[inline]
    pub(super) fn new(clock: &'a Clock, ringing: Ringing) -> Call<'a> {
        Call { time: LazyNow::new(clock), ringing, eager: false, deferred: None }
    }

    /// The time of the call. It stays the same.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        self.time.now()
    }

    /// How doorbells ring after the call.
    pub(super) fn ringing(&self) -> Ringing {
        self.ringing
    }

    /// True if small sends may share a doorbell, which the next leader rings first of all.
    #[inline]
    pub(super) fn may_share(&self) -> bool {
        self.ringing != Ringing::AtOnce
    }

    /// Notes whether the last send is one of a burst, and may wait for others.
    pub(super) fn note_send(&mut self, may_wait: bool) {
        self.ringing = match (self.ringing, may_wait) {
            (Ringing::AtOnce, _) => Ringing::AtOnce,
            (_, true) => Ringing::LazyBurst,
            (_, false) => Ringing::Lazy,
        };
    }

    /// Leaves a write to the thread.
    pub(super) fn defer(&mut self, write: Deferred) {
        self.deferred = Some(write);
    }

    /// Takes the write that the thread must make.
    #[inline]
    pub(super) fn take_deferred(&mut self) -> Option<Deferred> {
        self.deferred.take()
    }

    /// Notes that an operation has taken the eager path.
    #[inline]
    pub(super) fn pass(&mut self) {
        self.eager = true;
    }

    /// True if an operation has taken the eager path. If it has marked no socket either, there is
    /// nothing to settle.
    #[inline]
    pub(super) fn has_passed(&self) -> bool {
        self.eager
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Doorbell::{Idle, Next, Now, Piggyback, Soon};

    #[test]
    fn doorbells_wait_for_the_next_leader_if_there_is_one() {
        let apply = |ringing: Ringing, bell| {
            let mut after = ringing;
            (after.apply(bell), after)
        };
        for bell in [Idle, Piggyback] {
            for ringing in [Ringing::AtOnce, Ringing::InTurn, Ringing::Lazy, Ringing::LazyBurst] {
                assert_eq!(apply(ringing, bell).0, bell, "the session wants none");
            }
        }
        for bell in [Next, Soon, Now] {
            assert_eq!(apply(Ringing::AtOnce, bell).0, Now);
        }
        for (bell, rings) in [(Next, Next), (Soon, Now), (Now, Now)] {
            assert_eq!(apply(Ringing::InTurn, bell), (rings, Ringing::InTurn));
        }
        assert_eq!(apply(Ringing::Lazy, Next).0, Soon, "the next leader is soon enough");
        assert_eq!(apply(Ringing::Lazy, Soon).0, Soon);
        assert_eq!(apply(Ringing::Lazy, Now).0, Now);
        // Only the next doorbell is that of the send.
        for bell in [Next, Soon, Now] {
            assert_eq!(apply(Ringing::LazyBurst, bell), (Soon, Ringing::Lazy));
        }
        assert_eq!(apply(Ringing::LazyBurst, Piggyback), (Piggyback, Ringing::Lazy));
        assert_eq!(apply(Ringing::LazyBurst, Idle), (Idle, Ringing::LazyBurst));
    }

    #[test]
    fn the_last_send_of_a_call_counts() {
        let clock = Clock::default();
        let mut call = Call::new(&clock, Ringing::Lazy);
        call.note_send(true);
        assert_eq!(call.ringing(), Ringing::LazyBurst);
        call.note_send(false);
        assert_eq!((call.ringing(), call.may_share()), (Ringing::Lazy, true));
        let mut call = Call::new(&clock, Ringing::AtOnce);
        call.note_send(true);
        assert_eq!((call.ringing(), call.may_share()), (Ringing::AtOnce, false));
    }
}
