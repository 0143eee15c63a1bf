//! Which shards the calling thread drives.
//!
//! A thread that waits leads the shard of its queue. A program with one thread may have queues in
//! several shards, or operations in one shard that end in a queue of another. Its other shards
//! would then wait for the background thread's next tick. So a waiting thread also drives, as a
//! companion, each shard that it has used recently and that no other thread leads.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::reactor::Reactor;
use super::shards::Shard;
use super::waiter::Waiter;
use crate::sys::{HeldSignals, wait_any_readable};

/// The number of waits after which a thread no longer drives a shard that it has not used
/// meanwhile.
const FORGOTTEN: u32 = 64;

thread_local! {
    /// The shard that the thread used last, and which it most often uses next.
    static LAST: Cell<Option<Shard>> = const { Cell::new(None) };
    /// The shards that the thread has used. The number is the waits for which a shard stays on the
    /// list.
    static USED: RefCell<Vec<(Shard, u32)>> = const { RefCell::new(Vec::new()) };
}

/// Notes that the thread uses a shard: it dequeues there, or it has posted an operation there that
/// ends in a queue of another shard.
#[inline]
pub(super) fn note(shard: Shard) {
    // A thread that ends has no locals any more, and drives only its own shard.
    if LAST.try_with(|last| last.replace(Some(shard))) != Ok(Some(shard)) {
        note_other(shard);
    }
}

#[cold]
fn note_other(shard: Shard) {
    let _ = USED.try_with(|used| {
        let mut used = used.borrow_mut();
        match used.iter_mut().find(|(s, _)| *s == shard) {
            Some((_, left)) => *left = FORGOTTEN,
            None => used.push((shard, FORGOTTEN)),
        }
    });
}

/// The shards besides `own` that the thread has used in its last [`FORGOTTEN`] waits. The thread is
/// about to wait.
fn companions(own: Shard) -> Vec<&'static Arc<Context>> {
    let companions = USED.try_with(|used| {
        let mut used = used.borrow_mut();
        // The usual case: the thread has used only its own shard.
        if used.iter().all(|(shard, _)| *shard == own) {
            return Vec::new();
        }
        used.retain_mut(|(shard, left)| {
            *left -= u32::from(*shard != own);
            *left > 0
        });
        let others = used.iter().filter(|(shard, _)| *shard != own);
        others.filter_map(|(shard, _)| shard.context()).collect()
    });
    companions.unwrap_or_default()
}

/// A shard that a thread drives beside its own.
struct Companion {
    context: &'static Arc<Context>,
    /// None: another thread leads it.
    reactor: Option<Reactor>,
}

/// The shards that a waiting thread drives beside its own. The thread leaves them when this is
/// dropped.
#[derive(Default)]
pub(super) struct Companions(Vec<Companion>);

impl Companions {
    /// The companions of the calling thread, which is about to wait in the shard `own`.
    pub(super) fn of_thread(own: Shard) -> Companions {
        let join = |context| Companion { context, reactor: None };
        Companions(companions(own).into_iter().map(join).collect())
    }

    /// Leaves the shards that the thread leads.
    pub(super) fn leave(&mut self) {
        self.0.iter_mut().for_each(Companion::leave);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if there is no other one than `shard`.
    pub(super) fn are_only(&self, shard: Shard) -> bool {
        self.0.iter().all(|companion| companion.context.shard() == shard)
    }

    /// Runs the engine of each shard. Takes the lead where it is free, and leaves it where another
    /// thread asks for it. Returns true if a shard has more to do at once.
    pub(super) fn turn(&mut self, spin: bool, me: Option<&Waiter>) -> io::Result<bool> {
        let mut more = false;
        for companion in &mut self.0 {
            more |= companion.turn(spin, me)?;
        }
        Ok(more)
    }

    /// Announces a sleep of at most `left` in each shard that this thread leads. Returns how long
    /// the thread may sleep: zero if a shard has something to do.
    pub(super) fn prepare_sleep(&self, left: Duration) -> Duration {
        let led = self.0.iter().filter(|c| c.reactor.is_some());
        led.fold(left, |left, c| left.min(c.context.prepare_sleep(None)))
    }

    /// Sleeps until the reactor of a shard, or `own`, is ready, or until the time is up. Then asks
    /// each reactor what it has found.
    pub(super) fn sleep(
        &mut self,
        own: &mut Reactor,
        timeout: Duration,
        held: Option<&HeldSignals>,
    ) -> io::Result<()> {
        let reactors = || self.0.iter().filter_map(|c| c.reactor.as_ref());
        let fds: Vec<RawFd> =
            std::iter::once(&*own).chain(reactors()).map(AsRawFd::as_raw_fd).collect();
        wait_any_readable(&fds, Some(timeout), held)?;
        own.poll(Some(Duration::ZERO))?;
        self.0
            .iter_mut()
            .filter_map(|c| c.reactor.as_mut())
            .try_for_each(|r| r.poll(Some(Duration::ZERO)))
    }

    /// The thread is about to sleep: shows changes of sockets on their descriptors.
    pub(super) fn show_news(&self) {
        self.0.iter().filter(|c| c.reactor.is_some()).for_each(|c| c.context.show_news(false));
    }

    /// The thread is awake: ends the announced sleeps.
    pub(super) fn end_sleep(&self) {
        self.0.iter().filter(|c| c.reactor.is_some()).for_each(|c| c.context.end_sleep());
    }
}

impl Companion {
    fn turn(&mut self, spin: bool, me: Option<&Waiter>) -> io::Result<bool> {
        if self.reactor.is_none() {
            self.reactor = self.context.lead.try_companion();
            if let Some(reactor) = &mut self.reactor {
                reactor.poll(Some(Duration::ZERO))?;
            }
        }
        let Some(reactor) = &mut self.reactor else { return Ok(false) };
        if self.context.lead.must_leave() {
            self.leave();
            return Ok(false);
        }
        self.context.poll_if_due(reactor)?;
        Ok(self.context.turn(Some(reactor), spin, me).more)
    }

    fn leave(&mut self) {
        if let Some(reactor) = self.reactor.take() {
            let asked = self.context.lead.must_leave();
            self.context.lead.leave_as_companion(reactor, self.context.reliance.polls());
            if asked {
                self.context.call_sleeper();
            }
        }
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(all(test, feature = "tokio"))]
mod sleeper;

#[cfg(test)]
mod tests {
    use super::*;

    fn used() -> Vec<(usize, u32)> {
        USED.with_borrow(|used| used.iter().map(|(s, left)| (s.index(), *left)).collect())
    }

    #[test]
    fn a_shard_is_forgotten_after_waits_without_use() {
        let (a, b) = (Shard::at(1000), Shard::at(1001));
        for shard in [a, b, b, a] {
            note(shard);
        }
        assert_eq!(used(), [(1000, FORGOTTEN), (1001, FORGOTTEN)]);
        companions(a);
        assert_eq!(used(), [(1000, FORGOTTEN), (1001, FORGOTTEN - 1)], "the own shard stays");
        note(b);
        assert_eq!(used(), [(1000, FORGOTTEN), (1001, FORGOTTEN)]);
        (0..FORGOTTEN).for_each(|_| drop(companions(a)));
        assert_eq!(used(), [(1000, FORGOTTEN)]);
    }
}
