//! How a leader spins.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Error;
use super::companions::Companions;
use super::context::Context;
use super::event::RawEvent;
use super::pace::{ROUNDS_PER_POLL, Spin};
use super::queue::{QueueCore, Want};
use super::reactor::Reactor;
use super::wait::{Goal, Led, Waited, io_error};
use super::waiter::Waiter;
use crate::sys::{HeldSignals, cycles, yield_now};
use crate::time::Time;

/// How long to look for completions in memory between two rounds with system calls, as a multiple of
/// what the cheapest of these took.
pub(super) const LOOK: u64 = 4;
/// Cycles that a turn which finds nothing takes at most, or about.
pub(super) const USUAL_TURN: u64 = 10_000;
/// After how long a thread that peeks yields between looks.
const UNYIELDING: Duration = Duration::from_micros(50);
/// Looks at memory in one hold of the engine's lock: to take and leave it, and to read the clock, costs
/// more than a look.
const LOOKS: u32 = 16;
/// Between two looks that take system calls a thread rests for this multiple of what one takes. Each
/// takes the lock of a socket, for which the peer that is about to write to it would wait.
const REST: u64 = 2;
/// How a thread looks: this many times in one hold of the lock, and once by system calls where
/// devices find nothing in memory.
#[derive(Clone, Copy)]
struct How {
    looks: u32,
    by_call: bool,
}
const WAITING: How = How { looks: LOOKS, by_call: true };
const LEADING: How = How { looks: LOOKS, by_call: false };
const PASSING: How = How { looks: 1, by_call: true };
/// Nobody wants events handed over.
const NOBODY: Option<&mut Want<'_, RawEvent>> = None;

/// What came of looking at memory.
struct Skim {
    /// There is something else to do, which takes a whole turn; None: no device finds
    /// anything so.
    found: Option<bool>,
    /// It took system calls to look, and so many cycles; 0: it did not.
    called: u64,
    /// Threads were woken that follow.
    served_others: bool,
    /// Events that were handed over.
    got: usize,
}

/// Whether it has paid to look before the first system call. What a process has sent as soon as
/// the core was yielded, it sent because it had waited for that core. (Of a device that is not
/// said: its answers may take just as long.)
fn pays(found: bool, yields: u32, by_process: impl FnOnce() -> bool) -> bool {
    found && !((1..=2).contains(&yields) && by_process())
}

impl Context {
    /// Spins as the queue's policy says, after a turn that `took` so many cycles; `None`: it
    /// did not pay, go to sleep.
    pub(super) fn spin_for(
        &self,
        goal: &Goal<'_>,
        reactor: &mut Reactor,
        companions: &mut Companions,
        foreign: &mut u32,
        took: u64,
    ) -> Result<Option<Led>, Error> {
        let Goal { queue, waiter, held, .. } = *goal;
        let Some(spin) = self.spin(queue) else { return Ok(None) };
        let done = |foreign: u32| {
            let led = self.led(goal, foreign);
            if matches!(led, Some(Led::Done)) {
                queue.pace().note_find();
            }
            led
        };
        let begun = self.now();
        let mut cheapest = took.min(USUAL_TURN);
        loop {
            // A round has system calls in it. Devices whose completions are found by
            // looking at memory are looked at for longer than it took.
            let until = cycles().saturating_add(cheapest.saturating_mul(LOOK));
            let found = self.peek_while(goal, foreign, || cycles() < until);
            if found == Some(true)
                && let Some(led) = done(*foreign)
            {
                self.attention.note_find();
                return Ok(Some(led));
            }
            let start = cycles();
            while self.posters.load(Ordering::Relaxed) > 0 {
                yield_now();
            }
            companions.turn(true, Some(waiter)).map_err(|e| io_error("epoll_wait", &e))?;
            let turn = self.turn(Some(reactor), true, Some(waiter));
            *foreign += u32::from(turn.served_others);
            if let Some(led) = done(*foreign) {
                return Ok(Some(led));
            }
            self.look_at_reactor(reactor, held)?;
            if spin.is_over(self.now().since(begun), found.is_some()) {
                break;
            }
            if self.yield_core() && !spin.is_endless() {
                break;
            }
            cheapest = cheapest.min(cycles().saturating_sub(start));
        }
        queue.pace().note_miss();
        Ok(None)
    }

    /// Lets another thread run: the peer may be waiting for this very core. With no other thread to
    /// run, this costs a fraction of a microsecond. Returns true if other programs want the processors.
    fn yield_core(&self) -> bool {
        let begun = self.now();
        yield_now();
        self.attention.note_yield(begun, self.now())
    }

    /// Asks the kernel, if it is time to, for what is not found by looking at connections; for
    /// signals, too.
    fn look_at_reactor(
        &self,
        reactor: &mut Reactor,
        held: Option<&HeldSignals>,
    ) -> Result<(), Error> {
        if self.poll_if_due(reactor).map_err(|e| io_error("epoll_wait", &e))? {
            self.show_news(false);
            if held.is_some_and(HeldSignals::pending) {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }

    /// Asks the kernel if it is time to; true if it was asked.
    pub(super) fn poll_if_due(&self, reactor: &mut Reactor) -> std::io::Result<bool> {
        let due = reactor.unseen >= ROUNDS_PER_POLL || self.outlook.watches_kernel();
        if due {
            reactor.poll(Some(Duration::ZERO))?;
        }
        Ok(due)
    }

    /// Does nothing for so many cycles, unless somebody has something to do.
    fn rest(&self, duration: u64) {
        let until = cycles().saturating_add(duration);
        while cycles() < until && self.posters.load(Ordering::Relaxed) == 0 {
            std::hint::spin_loop();
        }
    }

    /// How long a thread that waits here may spin. None: it must not.
    pub(super) fn spin(&self, queue: &QueueCore) -> Option<Spin> {
        queue.pace().spin(self.attention.is_crowded(self.clock.about()))
    }

    /// Looks at memory for a while, before this thread leads, and takes the small messages that
    /// come. Their events are handed to who wants them.
    pub(super) fn first_peek<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        min: usize,
        limit: Option<Duration>,
        want: Option<&mut Want<'_, E>>,
    ) -> Waited {
        if self.spin(queue).is_none() {
            return Waited::InVain;
        }
        let Some(limit) = queue.pace().peek(limit) else { return Waited::InVain };
        let peek = || self.peek_alone(queue, min, limit, want);
        self.attention.peek(peek).unwrap_or(Waited::InVain)
    }

    /// Looks once, for a thread that does not wait, and takes what it finds. True: a device was
    /// asked, and knows of nothing else.
    pub(super) fn peek_in_passing<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        want: &mut Want<'_, E>,
    ) -> (Waited, bool) {
        let looks = || self.skim(None, None, PASSING, Some((queue, want)));
        let Some(skim) = self.attention.peek(looks) else { return (Waited::InVain, false) };
        self.attention.note_find();
        match skim.got {
            0 => (Waited::InVain, skim.found == Some(false)),
            n => (Waited::Got(n), false),
        }
    }

    fn peek_alone<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        min: usize,
        limit: Duration,
        mut want: Option<&mut Want<'_, E>>,
    ) -> Waited {
        let mut now = self.clock.about();
        let yields_from = now + UNYIELDING;
        if self.attention.lacks_leader(now) {
            return Waited::InVain;
        }
        let until = now + limit;
        let (mut paid, mut got, mut yields) = (false, 0, 0);
        while queue.len() < min && self.posters.load(Ordering::Relaxed) == 0 {
            let skim = self.skim(Some(now), None, WAITING, want.as_deref_mut().map(|w| (queue, w)));
            got = skim.got;
            match skim.found {
                _ if got > 0 => break,
                Some(false) => {
                    now = self.clock.about();
                    if now >= until {
                        break;
                    }
                    match skim.called {
                        _ if now >= yields_from => {
                            yields += 1;
                            yield_now();
                        }
                        0 => std::hint::spin_loop(),
                        took => self.rest(took / REST),
                    }
                }
                // Nobody to ask.
                None => break,
                Some(true) => {
                    paid = true;
                    break;
                }
            }
        }
        self.attention.note_find();
        let waited = match got {
            0 if queue.len() >= min => Waited::There,
            0 => Waited::InVain,
            n => Waited::Got(n),
        };
        let found = waited != Waited::InVain || paid;
        let pays = pays(found, yields, || self.lock().peeked_at_processes());
        queue.pace().note_peek(Some(limit), pays);
        waited
    }

    /// Takes small messages that have come, as far as they are found by looking. `now` is the
    /// time, if the caller has asked of late; `me` need not be woken; `want`: events of this
    /// queue are for the caller.
    fn skim<E: From<RawEvent>>(
        &self,
        now: Option<Time>,
        me: Option<&Waiter>,
        how: How,
        want: Option<(&QueueCore, &mut Want<'_, E>)>,
    ) -> Skim {
        let mut engine = self.lock();
        let mut found = engine.peek();
        for _ in 1..how.looks {
            if found != Some(false) || self.posters.load(Ordering::Relaxed) > 0 {
                break;
            }
            // The peer may run on the other thread of this core.
            std::hint::spin_loop();
            found = engine.peek();
        }
        let mut called = 0;
        if how.by_call && found.is_none() {
            let begun = cycles();
            found = engine.look();
            called = cycles().saturating_sub(begun);
        }
        if found != Some(true) {
            return Skim { found, called, served_others: false, got: 0 };
        }
        let now = self.clock.now_locked(now);
        if let Some((queue, _)) = &want {
            engine.catch_for(queue);
        }
        let taken = engine.take_found(now);
        engine.settle_rest(now);
        let got = want.map_or(0, |(queue, want)| engine.hand_over(queue, want));
        Skim { found: Some(!taken), called, served_others: self.finish(engine, me), got }
    }

    /// The same for a leader, as long as it is worth it: until there is more to do, or its
    /// events are there (true), or somebody else has something to do, or it has been long
    /// enough. None: there is nobody to ask.
    fn peek_while(
        &self,
        goal: &Goal<'_>,
        foreign: &mut u32,
        on: impl Fn() -> bool,
    ) -> Option<bool> {
        loop {
            if goal.queue.len() >= goal.min {
                return Some(true);
            }
            if self.posters.load(Ordering::Relaxed) > 0 {
                return Some(false);
            }
            let skim = self.skim(None, Some(goal.waiter), LEADING, NOBODY.map(|w| (goal.queue, w)));
            *foreign += u32::from(skim.served_others);
            match skim.found {
                Some(false) if on() => std::hint::spin_loop(),
                found => return found,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_waited_for_the_core_has_not_paid() {
        let [process, device] = [true, false];
        assert!(pays(true, 0, || process) && pays(true, 3, || process));
        assert!(!pays(true, 1, || process) && !pays(true, 2, || process));
        assert!(pays(true, 1, || device) && pays(true, 2, || device));
        assert!(!pays(false, 0, || process) && !pays(false, 1, || device));
    }
}
