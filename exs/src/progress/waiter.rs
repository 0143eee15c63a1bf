//! A thread that waits for events: where it sleeps, and how many events end its wait.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::shards::Shard;
use super::{Error, exit};
use crate::sys::{EventFd, FutexBell, this_thread};

/// A thread that waits in `dequeue`.
#[derive(Debug)]
pub struct Waiter {
    /// The number of the thread (gettid(2)).
    pub(super) thread: i32,
    /// The thread sleeps on this descriptor while it follows.
    pub fd: EventFd,
    /// The thread sleeps here while it attends a connection of shared memory.
    pub(super) bell: FutexBell,
    /// The index of the shard in which the thread waits, or last waited.
    at: AtomicUsize,
    /// True while the thread leads: it sleeps in the reactor then.
    pub leading: AtomicBool,
    /// The number of events for which the thread waits.
    pub min: AtomicUsize,
}

impl Waiter {
    /// Makes a waiter for the calling thread.
    pub fn new() -> Result<Arc<Waiter>, Error> {
        let fd = EventFd::new().map_err(|e| Error::os("eventfd", &e))?;
        let (at, leading) = (AtomicUsize::new(0), AtomicBool::new(false));
        let bell = FutexBell::default();
        let (thread, min) = (this_thread(), AtomicUsize::new(1));
        Ok(Arc::new(Waiter { thread, fd, bell, at, leading, min }))
    }

    /// Wakes the thread if it follows or attends. This does not wake a leader.
    pub(super) fn signal(&self) {
        if !self.bell.ring() {
            self.fd.signal();
        }
    }

    /// Notes that the thread is about to wait in this shard.
    pub(super) fn wait_at(&self, shard: Shard) {
        self.at.store(shard.index(), Ordering::SeqCst);
    }

    /// The shard in which the thread waits, or last waited.
    pub(super) fn shard(&self) -> Shard {
        Shard::at(self.at.load(Ordering::SeqCst))
    }
}

/// The threads that follow in a shard, the first one first.
#[derive(Default)]
pub(super) struct Followers(VecDeque<Arc<Waiter>>);

impl Followers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(any(test, feature = "internals"))]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// True if a thread follows that is not `but`.
    pub(super) fn has_other_than(&self, but: Option<&Arc<Waiter>>) -> bool {
        self.0.iter().any(|w| but.is_none_or(|but| !Arc::ptr_eq(w, but)))
    }

    /// Adds a thread as the last one. False: it follows already.
    pub(super) fn add(&mut self, waiter: &Arc<Waiter>) -> bool {
        let new = !self.0.iter().any(|w| Arc::ptr_eq(w, waiter));
        if new {
            self.0.push_back(Arc::clone(waiter));
        }
        new
    }

    /// False: the thread does not follow.
    pub(super) fn remove(&mut self, waiter: &Arc<Waiter>) -> bool {
        let before = self.0.len();
        self.0.retain(|w| !Arc::ptr_eq(w, waiter));
        self.0.len() < before
    }

    pub(super) fn take_first(&mut self) -> Option<Arc<Waiter>> {
        self.0.pop_front()
    }
}

/// The waiter of a thread, which ends with it.
struct OfThread(Arc<Waiter>);

impl Drop for OfThread {
    /// The thread does not come back to the shard where it waited last.
    fn drop(&mut self) {
        if exit::owns_sockets()
            && let Some(context) = self.0.shard().context()
        {
            context.lead.replace();
        }
    }
}

/// Makes sure that the calling thread can wait, for which it needs a descriptor of its own. A
/// caller that cannot report an error after it has posted an operation calls this first.
pub(crate) fn prepare_to_wait() -> Result<(), Error> {
    waiter().map(drop)
}

/// Returns the calling thread's waiter, which the first call makes.
#[inline(never)]
pub(super) fn waiter() -> Result<Arc<Waiter>, Error> {
    thread_local! {
        static WAITER: OnceLock<OfThread> = const { OnceLock::new() };
    }
    let kept = WAITER.try_with(|cell| {
        if let Some(w) = cell.get() {
            return Ok(Arc::clone(&w.0));
        }
        let made = OfThread(Waiter::new()?);
        Ok(Arc::clone(&cell.get_or_init(|| made).0))
    });
    // A thread that ends may still have to wait, in the drop of another of its locals.
    kept.unwrap_or_else(|_| Waiter::new())
}
