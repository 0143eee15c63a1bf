//! Which shards the calling thread drives.
//!
//! A thread that waits leads the shard of its queue. A program with one thread may have queues in
//! several shards, or operations in one shard that end in a queue of another. Its other shards
//! would then wait for the background thread's next tick. So a waiting thread also drives, as a
//! companion, each shard that it has used recently and that no other thread leads. A thread that waits
//! for one connection (`wait_for_one`) drives no other shard.

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
    /// The last use of a shard by the thread, which most often is the next one, too.
    static LAST: Cell<Option<(Shard, ShardUse)>> = const { Cell::new(None) };
    /// The shards that the thread has used.
    static USED: RefCell<Vec<UsedShard>> = const { RefCell::new(Vec::new()) };
}

/// How a thread uses a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShardUse {
    /// It dequeues there.
    Dequeues,
    /// It has posted an operation there that ends in a queue of another shard.
    Posts,
}

/// A shard on a thread's list.
struct UsedShard {
    shard: Shard,
    /// The waits for which the shard stays on the list.
    left: u32,
    /// The waits for which the thread counts as one that dequeues there.
    dequeues: u32,
}

/// Notes that the thread uses a shard.
#[inline]
pub(super) fn note(shard: Shard, how: ShardUse) {
    let last = Some((shard, how));
    // A thread that ends has no locals any more, and drives only its own shard.
    if LAST.try_with(|cell| cell.replace(last)) != Ok(last) {
        note_other(shard, how);
    }
}

#[cold]
fn note_other(shard: Shard, how: ShardUse) {
    let _ = USED.try_with(|used| {
        let mut used = used.borrow_mut();
        let at = used.iter().position(|used| used.shard == shard).unwrap_or_else(|| {
            used.push(UsedShard { shard, left: 0, dequeues: 0 });
            used.len() - 1
        });
        used[at].left = FORGOTTEN;
        if how == ShardUse::Dequeues {
            used[at].dequeues = FORGOTTEN;
        }
    });
}

/// True if the thread also dequeues in other shards than `own`.
pub(super) fn dequeues_elsewhere(own: Shard) -> bool {
    let elsewhere = |used: &UsedShard| used.shard != own && used.dequeues > 0;
    USED.try_with(|used| used.borrow().iter().any(elsewhere)).unwrap_or(false)
}

/// The shards besides `own` that the thread has used in its last [`FORGOTTEN`] waits. The thread is
/// about to wait.
fn companions(own: Shard) -> Vec<&'static Arc<Context>> {
    let companions = USED.try_with(|used| {
        let mut used = used.borrow_mut();
        // The usual case: the thread has used only its own shard.
        if used.iter().all(|used| used.shard == own) {
            return Vec::new();
        }
        used.retain_mut(|used| {
            let waits = u32::from(used.shard != own);
            used.left -= waits;
            used.dequeues = used.dequeues.saturating_sub(waits);
            used.left > 0
        });
        let others = used.iter().filter(|used| used.shard != own);
        others.filter_map(|used| used.shard.context()).collect()
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

    use ShardUse::{Dequeues, Posts};

    fn used() -> Vec<(usize, u32)> {
        USED.with_borrow(|used| used.iter().map(|used| (used.shard.index(), used.left)).collect())
    }

    #[test]
    fn a_shard_is_forgotten_after_waits_without_use() {
        let (a, b) = (Shard::at(1000), Shard::at(1001));
        for shard in [a, b, b, a] {
            note(shard, Dequeues);
        }
        assert_eq!(used(), [(1000, FORGOTTEN), (1001, FORGOTTEN)]);
        companions(a);
        assert_eq!(used(), [(1000, FORGOTTEN), (1001, FORGOTTEN - 1)], "the own shard stays");
        note(b, Dequeues);
        assert_eq!(used(), [(1000, FORGOTTEN), (1001, FORGOTTEN)]);
        (0..FORGOTTEN).for_each(|_| drop(companions(a)));
        assert_eq!(used(), [(1000, FORGOTTEN)]);
    }

    #[test]
    fn a_thread_that_posts_in_a_shard_does_not_dequeue_there() {
        let (own, other) = (Shard::at(1000), Shard::at(1001));
        note(own, Dequeues);
        note(other, Posts);
        assert!(!dequeues_elsewhere(own) && dequeues_elsewhere(other));
        note(other, Dequeues);
        assert!(dequeues_elsewhere(own));
        // It posts there on, and has ceased to dequeue.
        for _ in 0..FORGOTTEN {
            assert!(dequeues_elsewhere(own));
            note(other, Posts);
            companions(own);
            note(own, Dequeues);
        }
        assert!(!dequeues_elsewhere(own));
        assert_eq!(used().len(), 2);
    }
}
