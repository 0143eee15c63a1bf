//! How a leader spins, and how a thread peeks before it leads.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Error;
use super::call::Ringing;
use super::companions::Companions;
use super::context::Context;
use super::engine::DeviceSet;
use super::event::RawEvent;
use super::pace::{ROUNDS_PER_POLL, Rhythm, Spin};
use super::queue::{QueueCore, Want};
use super::reactor::Reactor;
use super::wait::{Goal, Led, Waited, io_error};
use super::waiter::Waiter;
use crate::sys::{HeldSignals, cycles, yield_now};
use crate::time::Time;

/// How long a thread looks for completions in memory between two rounds with system calls, as a
/// multiple of the time of the cheapest round.
pub(super) const LOOK: u64 = 4;
/// About the most cycles that a turn takes if it finds nothing.
pub(super) const USUAL_TURN: u64 = 10_000;
/// The time after which a thread that peeks yields between looks.
pub(super) const UNYIELDING: Duration = Duration::from_micros(50);
/// Looks at memory in one hold of the engine's lock. To take the lock, to release it and to read
/// the clock costs more than a look.
pub(super) const LOOKS: u32 = 16;
/// A thread rests between two looks by system calls, for the time of a look divided by this number.
/// Each look takes the lock of a socket, and a peer that is about to write to the socket would wait
/// for that lock.
const REST: u64 = 2;
/// A yield that took longer has let another thread run.
const SWITCH: Duration = Duration::from_micros(5);

/// What a yield of the processor has told.
struct Yielded {
    /// Another thread ran meanwhile.
    switched: bool,
    /// Other programs want the processors.
    crowded: bool,
}

/// How a thread looks.
#[derive(Clone, Copy)]
struct How {
    /// Looks at memory in one hold of the engine's lock.
    looks: u32,
    /// The thread looks once by system calls, if no device finds completions in memory.
    by_call: bool,
}
const WAITING: How = How { looks: LOOKS, by_call: true };
const LEADING: How = How { looks: LOOKS, by_call: false };
const PASSING: How = How { looks: 1, by_call: true };
/// The thread wants no events handed over.
pub(super) const NOBODY: Option<&mut Want<'_, RawEvent>> = None;

/// The result of a look at memory.
struct Skim {
    /// True: there is something else to do, which takes a whole turn. None: no device finds
    /// anything by such a look.
    found: Option<bool>,
    /// The devices at which the look has found something.
    at: DeviceSet,
    /// The cycles that a look by system calls took. 0: the thread made no such look.
    called: u64,
    /// The thread has woken followers.
    served_others: bool,
    /// The number of events that were handed over.
    got: usize,
}

/// Where a look finds what comes.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskedWhere {
    /// No device can be asked.
    Nowhere,
    Memory,
    /// Only system calls tell.
    Kernel,
}

/// Looks that followed each other.
pub(super) struct Looks {
    pub(super) waited: Waited,
    /// How often the thread yielded the processor.
    yields: u32,
    /// None: the events were there, or another thread wanted to post.
    last: Option<Skim>,
}

impl Looks {
    /// True if they have found what takes a whole turn.
    pub(super) fn want_turn(&self) -> bool {
        self.last.as_ref().is_some_and(|skim| skim.found == Some(true))
    }

    /// None: no look was made.
    #[cfg(feature = "tokio")]
    pub(super) fn source(&self) -> Option<AskedWhere> {
        self.last.as_ref().map(|skim| match skim.found {
            None => AskedWhere::Nowhere,
            Some(_) if skim.called > 0 => AskedWhere::Kernel,
            Some(_) => AskedWhere::Memory,
        })
    }
}

/// True if it has paid to look before the first system call. A process of this host that sends as
/// soon as this thread yields its core had waited for that core, so its message does not count. The
/// message of an RDMA device counts, because the device may take just as long to answer.
fn pays(found: bool, yields: u32, by_process: impl FnOnce() -> bool) -> bool {
    found && !((1..=2).contains(&yields) && by_process())
}

impl Context {
    /// Spins as the queue's policy says, after a turn of `took` cycles. `None`: the spin did not
    /// pay, and the thread must sleep.
    pub(super) fn spin_for(
        &self,
        goal: &Goal<'_>,
        reactor: &mut Reactor,
        companions: &mut Companions,
        foreign: &mut u32,
        took: u64,
    ) -> Result<Option<Led>, Error> {
        let Goal { queue, waiter, held, rhythm, .. } = *goal;
        let Some(spin) = self.spin(queue, rhythm) else { return Ok(None) };
        let done = |foreign: u32, switched: bool| {
            let led = self.led(goal, foreign);
            if matches!(led, Some(Led::Done)) {
                // In a rare wait, the peer's thread ran because this one yielded. A sleep does the same.
                match switched && rhythm == Rhythm::Rare {
                    true => queue.pace().note_miss(rhythm),
                    false => self.note_spin_found(queue, rhythm),
                }
            }
            led
        };
        let mut switched = false;
        let begun = self.now();
        let mut cheapest = took.min(USUAL_TURN);
        loop {
            // A round makes system calls. The thread looks at memory for longer than the round
            // took, if devices find completions there.
            let until = cycles().saturating_add(cheapest.saturating_mul(LOOK));
            let found = self.peek_while(goal, foreign, || cycles() < until);
            if found == Some(true)
                && let Some(led) = done(*foreign, switched)
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
            if let Some(led) = done(*foreign, switched) {
                return Ok(Some(led));
            }
            self.look_at_reactor(reactor, held)?;
            if spin.is_over(self.now().since(begun), found.is_some()) {
                break;
            }
            let yielded = self.yield_core();
            if yielded.crowded && !spin.is_endless() {
                break;
            }
            switched |= yielded.switched;
            cheapest = cheapest.min(cycles().saturating_sub(start));
        }
        queue.pace().note_miss(rhythm);
        Ok(None)
    }

    /// A spin of a thread that waits at this queue has found its event.
    pub(super) fn note_spin_found(&self, queue: &QueueCore, rhythm: Rhythm) {
        queue.pace().note_find(rhythm);
        self.attention.crowding.note_find();
    }

    /// Lets another thread run, since the peer may wait for this very core. If no other thread
    /// wants to run, this costs a fraction of a microsecond.
    fn yield_core(&self) -> Yielded {
        let begun = self.now();
        yield_now();
        let now = self.now();
        let crowded = self.attention.crowding.note_yield(begun, now);
        Yielded { switched: now.since(begun) > SWITCH, crowded }
    }

    /// Asks the kernel, if that is due, for everything that a look at connections does not find.
    /// Then it also looks for signals.
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

    /// Asks the kernel if that is due. Returns true if it did.
    pub(super) fn poll_if_due(&self, reactor: &mut Reactor) -> std::io::Result<bool> {
        let due = reactor.unseen >= ROUNDS_PER_POLL || self.outlook.get().watches_kernel();
        if due {
            reactor.poll(Some(Duration::ZERO))?;
        }
        Ok(due)
    }

    /// Does nothing for `duration` cycles, or until a thread wants to post.
    fn rest(&self, duration: u64) {
        let until = cycles().saturating_add(duration);
        while cycles() < until && self.posters.load(Ordering::Relaxed) == 0 {
            std::hint::spin_loop();
        }
    }

    /// How long a thread that waits at this queue may spin. None: it must not spin.
    pub(super) fn spin(&self, queue: &QueueCore, rhythm: Rhythm) -> Option<Spin> {
        queue.pace().spin(self.attention.crowding.is_crowded(self.clock.about()), rhythm)
    }

    /// Looks at memory for `limit` at most, before this thread leads, and takes the small messages
    /// that come. Their events are handed to `want`, if there is one.
    pub(super) fn first_peek<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        min: usize,
        limit: Option<Duration>,
        want: Option<&mut Want<'_, E>>,
    ) -> Waited {
        if self.spin(queue, Rhythm::Steady).is_none() {
            return Waited::TooFew;
        }
        let Some(limit) = queue.pace().peek(limit) else { return Waited::TooFew };
        let peek = || self.peek_alone(queue, min, limit, want);
        self.attention.peek(peek).unwrap_or(Waited::TooFew)
    }

    /// Looks once, for a thread that does not wait, and takes what it finds. The second value is
    /// true if a device was asked and has nothing else.
    pub(super) fn peek_in_passing<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        want: &mut Want<'_, E>,
    ) -> (Waited, bool) {
        let looks = || self.skim(None, None, PASSING, Some((queue, want)));
        let Some(skim) = self.attention.peek(looks) else { return (Waited::TooFew, false) };
        self.attention.note_find();
        match skim.got {
            0 => (Waited::TooFew, skim.found == Some(false)),
            n => (Waited::Got(n), false),
        }
    }

    fn peek_alone<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        min: usize,
        limit: Duration,
        want: Option<&mut Want<'_, E>>,
    ) -> Waited {
        let now = self.clock.about();
        if self.attention.lacks_leader(now) {
            return Waited::TooFew;
        }
        let looks = self.look_until(queue, min, now, (limit, UNYIELDING), want);
        queue.pace().note_peek(Some(limit), self.has_paid(&looks));
        looks.waited
    }

    /// True if it has paid to look.
    pub(super) fn has_paid(&self, looks: &Looks) -> bool {
        let at = looks.last.as_ref().map(|skim| skim.at).unwrap_or_default();
        let found = looks.waited != Waited::TooFew || looks.want_turn();
        pays(found, looks.yields, || self.lock().devices.are_processes(at))
    }

    /// Looks again and again, from `now` for `limit` at most, and yields between looks after `unyielding`.
    #[inline]
    pub(super) fn look_until<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        min: usize,
        mut now: Time,
        (limit, unyielding): (Duration, Duration),
        mut want: Option<&mut Want<'_, E>>,
    ) -> Looks {
        let (until, yields_from) = (now + limit, now + unyielding);
        let (mut yields, mut last) = (0, None);
        while queue.len() < min && self.posters.load(Ordering::Relaxed) == 0 {
            let skim = self.skim(Some(now), None, WAITING, want.as_deref_mut().map(|w| (queue, w)));
            let Skim { found, called, got, .. } = *last.insert(skim);
            // Something has come, or there is no device to ask.
            if got > 0 || found != Some(false) {
                break;
            }
            now = self.clock.about();
            if now >= until {
                break;
            }
            if now >= yields_from {
                yields += 1;
                if self.yield_core().crowded {
                    break;
                }
            } else if called == 0 {
                std::hint::spin_loop();
            } else {
                self.rest(called / REST);
            }
        }
        self.attention.note_find();
        let waited = match last.as_ref().map_or(0, |skim| skim.got) {
            0 if queue.len() >= min => Waited::There,
            0 => Waited::TooFew,
            n => Waited::Got(n),
        };
        Looks { waited, yields, last }
    }

    /// Takes the small messages that a look finds. `now` is the time, if the thread has read the
    /// clock a short time ago. `me` is awake and needs no signal. The events of the queue in `want`
    /// are handed to the thread.
    fn skim<E: From<RawEvent>>(
        &self,
        now: Option<Time>,
        me: Option<&Waiter>,
        how: How,
        want: Option<(&QueueCore, &mut Want<'_, E>)>,
    ) -> Skim {
        let mut engine = self.lock();
        let mut found = engine.devices.poll_memory();
        for _ in 1..how.looks {
            if found.is_none_or(|at| !at.is_empty()) || self.posters.load(Ordering::Relaxed) > 0 {
                break;
            }
            // The peer may run on the other hardware thread of this core.
            std::hint::spin_loop();
            found = engine.devices.poll_memory();
        }
        let mut called = 0;
        if how.by_call && found.is_none() {
            let begun = cycles();
            found = engine.devices.poll_syscall();
            called = cycles().saturating_sub(begun);
        }
        let at = found.unwrap_or_default();
        if at.is_empty() {
            let found = found.map(|_| false);
            return Skim { found, at, called, served_others: false, got: 0 };
        }
        let now = self.clock.now_locked(now);
        if let Some((queue, _)) = &want {
            engine.delivery.catch_for(queue);
        }
        let taken = engine.take_found(at, now);
        engine.settle_rest(now, Ringing::AtOnce);
        let got = want.map_or(0, |(queue, want)| engine.delivery.hand_over(queue, want));
        Skim { found: Some(!taken), at, called, served_others: self.finish(engine, me), got }
    }

    /// Looks at memory for a leader. True: its events are there, or there is more to do. False:
    /// another thread wants to post, or `on` says that the leader has looked for long enough. None:
    /// there is no device to ask.
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
    fn a_message_that_waited_for_the_core_has_not_paid() {
        let [process, device] = [true, false];
        assert!(pays(true, 0, || process) && pays(true, 3, || process));
        assert!(!pays(true, 1, || process) && !pays(true, 2, || process));
        assert!(pays(true, 1, || device) && pays(true, 2, || device));
        assert!(!pays(false, 0, || process) && !pays(false, 1, || device));
    }
}
