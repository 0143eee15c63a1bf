//! How a leader spins.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::companions::Companions;
use super::context::Context;
use super::event::RawEvent;
use super::queue::{QueueCore, Want};
use super::reactor::Reactor;
use super::wait::{Goal, Led, Waited, io_error};
use super::waiter::Waiter;
use super::{Error, WaitPolicy};
use crate::sys::{HeldSignals, cycles, yield_now};
use crate::time::Time;

/// How long an adaptive wait spins (ns), where spinning has lately paid.
const SPIN: u64 = 50_000;
/// So many times as long where what comes is found by looking at memory, without system
/// calls: as long as a large message takes. To wake a thread costs both ends.
const LOOKING: u64 = 3;
/// Spins in vain after which an adaptive queue only sleeps.
pub(super) const VAIN_SPINS: u32 = 8;
/// Spins between two looks at the reactor: connections, and sockets that the
/// device does not count as active, are only seen there. (Kernel sockets too: while
/// one is waited for, it is looked at in every round.)
pub(super) const SPINS_PER_POLL: u32 = 64;
/// How long to look for completions in memory between two rounds with system calls,
/// as a multiple of what the cheapest of these took.
pub(super) const PEEK: u64 = 4;
/// Cycles that a turn which finds nothing takes at most, or about.
pub(super) const USUAL_TURN: u64 = 10_000;
/// How long to look for completions and messages before the first such round: what
/// a device answers at once needs none. Where the peer lives on this very core that is
/// time lost, so it is done only where it has lately paid.
const FIRST_PEEK: Duration = Duration::from_micros(25);
/// How long to look before signals are held back, which takes two system calls: what comes so
/// soon was not waited for.
pub(super) const AT_HAND: Duration = Duration::from_micros(2);
/// How long a queue that polls busily goes on, as some devices are slower.
const BUSY_PEEK: Duration = Duration::from_micros(100);
/// After how long it yields between looks.
const UNYIELDING: Duration = Duration::from_micros(50);
/// A yield that takes so long has given the core to a thread that computes. A thread that sleeps
/// instead gets the core back as soon as something comes for it.
const CROWDED: Duration = Duration::from_micros(100);
/// How long adaptive waits then sleep at once.
const CROWD: Duration = Duration::from_millis(20);
/// Looks at memory in one hold of the engine's lock: to take and leave it, and to read the
/// clock, costs more than a look.
const LOOKS: u32 = 16;
/// How long (ns) threads that find their events may do without a leader: below the tick
/// after which the background thread takes the reactor and has every connection say that it
/// sleeps. (To lead takes system calls, which some systems make dear.)
pub(super) const LEAD_EVERY: u64 = 500_000;
/// First peeks in vain after which there are none, but one in so many waits.
const VAIN_PEEKS: u32 = 4;
const PROBE: u32 = 256;
/// Between two looks that take system calls a thread rests for so much of what one takes: each
/// takes the lock of a socket, for which the peer that is about to write to it would wait.
const REST: u64 = 2;
/// How a thread looks: so many times in one hold of the lock; and, where nothing is found in
/// memory, once by system calls.
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

/// Whether what was in `vain` so often is to be tried: not if that was too often, but for a probe.
fn may_pay(vain: &AtomicU32) -> bool {
    let times = vain.load(Ordering::Relaxed);
    let pays = times < VAIN_PEEKS || times.is_multiple_of(PROBE);
    if !pays {
        vain.store(times.wrapping_add(1), Ordering::Relaxed);
    }
    pays
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
        let Some(budget) = self.budget(queue) else { return Ok(None) };
        let done = |foreign: u32| {
            let led = self.led(goal, foreign);
            if matches!(led, Some(Led::Done)) {
                queue.vain_spins.store(0, Ordering::Relaxed);
            }
            led
        };
        let begun = self.now().as_nanos();
        let mut cheapest = took.min(USUAL_TURN);
        loop {
            // A round has system calls in it. Devices whose completions are found by
            // looking at memory are looked at for longer than it took.
            let until = cycles().saturating_add(cheapest.saturating_mul(PEEK));
            let found = self.peek_while(goal, foreign, || cycles() < until);
            if found == Some(true)
                && let Some(led) = done(*foreign)
            {
                self.note_skim();
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
            let times = if found.is_some() { LOOKING } else { 1 };
            if self.now().as_nanos() - begun >= budget.saturating_mul(times) {
                break;
            }
            if self.yield_core() && queue.wait_policy() == WaitPolicy::Adaptive {
                break;
            }
            cheapest = cheapest.min(cycles().saturating_sub(start));
        }
        queue.vain_spins.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }

    /// Lets another thread run: the peer may be waiting for this very core. With no other thread to
    /// run, this costs a fraction of a microsecond. Returns true if the core was gone for long.
    fn yield_core(&self) -> bool {
        let begun = self.now();
        yield_now();
        let now = self.now();
        let crowded = now.since(begun) > CROWDED;
        if crowded {
            self.crowded_until.store((now + CROWD).as_nanos(), Ordering::Relaxed);
        }
        crowded
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
        let due = reactor.unseen >= SPINS_PER_POLL || self.watches_kernel.load(Ordering::Relaxed);
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

    /// How long (ns) a thread that waits here may spin.
    pub(super) fn budget(&self, queue: &QueueCore) -> Option<u64> {
        match queue.wait_policy() {
            WaitPolicy::Notify => None,
            WaitPolicy::BusyPoll => Some(u64::MAX),
            WaitPolicy::Adaptive
                if queue.vain_spins.load(Ordering::Relaxed) >= VAIN_SPINS
                    || self.clock.about().as_nanos()
                        < self.crowded_until.load(Ordering::Relaxed) =>
            {
                None
            }
            WaitPolicy::Adaptive => Some(SPIN),
        }
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
        if self.budget(queue).is_none() {
            return Waited::InVain;
        }
        if !may_pay(&queue.vain_peeks) {
            return Waited::InVain;
        }
        self.alone(|| self.peek_alone(queue, min, limit, want)).unwrap_or(Waited::InVain)
    }

    /// Looks, unless another thread does. One is enough: several would only take the engine's
    /// lock from each other, and from whoever has something to do.
    fn alone<T>(&self, looks: impl FnOnce() -> T) -> Option<T> {
        if self.peeking.swap(true, Ordering::Acquire) {
            return None;
        }
        let found = looks();
        self.peeking.store(false, Ordering::Release);
        Some(found)
    }

    /// Looks once, for a thread that does not wait, and takes what it finds. True: a device was
    /// asked, and knows of nothing else.
    pub(super) fn peek_in_passing<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        want: &mut Want<'_, E>,
    ) -> (Waited, bool) {
        let looks = || self.skim(None, None, PASSING, Some((queue, want)));
        let Some(skim) = self.alone(looks) else { return (Waited::InVain, false) };
        self.note_skim();
        match skim.got {
            0 => (Waited::InVain, skim.found == Some(false)),
            n => (Waited::Got(n), false),
        }
    }

    fn peek_alone<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        min: usize,
        limit: Option<Duration>,
        mut want: Option<&mut Want<'_, E>>,
    ) -> Waited {
        let vain = queue.vain_peeks.load(Ordering::Relaxed);
        let most = match queue.wait_policy() {
            WaitPolicy::BusyPoll => BUSY_PEEK,
            _ => FIRST_PEEK,
        };
        let mut now = self.clock.about();
        let patience = now + UNYIELDING;
        if self.led_ago(now) > LEAD_EVERY {
            return Waited::InVain;
        }
        let until = now + limit.map_or(most, |l| l.min(most));
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
                        _ if now >= patience => {
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
        self.note_skim();
        let waited = match got {
            0 if queue.len() >= min => Waited::There,
            0 => Waited::InVain,
            n => Waited::Got(n),
        };
        if limit.is_some_and(|l| l <= AT_HAND) {
            return waited; // which says nothing of a longer look
        }
        let found = waited != Waited::InVain || paid;
        let pays = pays(found, yields, || self.lock().peeked_at_processes());
        let vain = if pays { 0 } else { vain.wrapping_add(1) };
        if vain > 0 || queue.vain_peeks.load(Ordering::Relaxed) > 0 {
            queue.vain_peeks.store(vain, Ordering::Relaxed);
        }
        waited
    }

    /// A thread has found its events without a turn, or has tried. (Lost counts do no harm.)
    fn note_skim(&self) {
        self.skims.store(self.skims.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
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
    fn what_was_in_vain_too_often_is_only_probed() {
        let vain = AtomicU32::new(0);
        let tried = |waits: u32, paid: bool| -> Vec<u32> {
            (0..waits)
                .filter(|_| {
                    let tried = may_pay(&vain);
                    if tried {
                        let next = if paid { 0 } else { vain.load(Ordering::Relaxed) + 1 };
                        vain.store(next, Ordering::Relaxed);
                    }
                    tried
                })
                .collect()
        };
        assert_eq!(tried(4, true), [0, 1, 2, 3]);
        assert_eq!(tried(2 * PROBE + 1, false), [0, 1, 2, 3, PROBE, 2 * PROBE]);
        let back = tried(PROBE + 2, true);
        assert!(back.len() > 1, "one that pays brings the others back: {back:?}");
    }

    #[test]
    fn what_only_waited_for_the_core_has_not_paid() {
        let [process, device] = [true, false];
        assert!(pays(true, 0, || process) && pays(true, 3, || process));
        assert!(!pays(true, 1, || process) && !pays(true, 2, || process));
        assert!(pays(true, 1, || device) && pays(true, 2, || device));
        assert!(!pays(false, 0, || process) && !pays(false, 1, || device));
    }
}
