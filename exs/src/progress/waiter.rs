//! A thread that waits for events: where it sleeps, and for how many.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::Error;
use super::shards::Shard;
use crate::sys::{EventFd, FutexBell};

/// A thread that waits in `dequeue`.
#[derive(Debug)]
pub struct Waiter {
    /// Where it sleeps while it follows.
    pub fd: EventFd,
    /// The same while it attends a connection of shared memory.
    pub(super) bell: FutexBell,
    /// The shard in which it waits.
    at: AtomicUsize,
    /// It sleeps in the reactor instead (it leads).
    pub leading: AtomicBool,
    /// How many events it waits for.
    pub min: AtomicUsize,
}

impl Waiter {
    /// A waiter of the calling thread.
    pub fn new() -> Result<Arc<Waiter>, Error> {
        let fd = EventFd::new().map_err(|e| Error::os("eventfd", &e))?;
        let (at, leading) = (AtomicUsize::new(0), AtomicBool::new(false));
        let bell = FutexBell::default();
        Ok(Arc::new(Waiter { fd, bell, at, leading, min: AtomicUsize::new(1) }))
    }

    /// Wakes the thread, unless it leads.
    pub(super) fn signal(&self) {
        if !self.bell.ring() {
            self.fd.signal();
        }
    }

    /// The thread is about to wait in this shard.
    pub(super) fn wait_at(&self, shard: Shard) {
        self.at.store(shard.index(), Ordering::SeqCst);
    }

    /// The shard in which it waits, or last waited.
    pub(super) fn shard(&self) -> Shard {
        Shard::at(self.at.load(Ordering::SeqCst))
    }
}

/// Makes sure that this thread can wait, for which it needs a descriptor of its own:
/// whoever cannot do with an error once an operation is posted asks before.
pub(crate) fn prepare_to_wait() -> Result<(), Error> {
    waiter().map(drop)
}

/// The calling thread's waiter, made once.
#[inline(never)]
pub(super) fn waiter() -> Result<Arc<Waiter>, Error> {
    thread_local! {
        static WAITER: OnceLock<Arc<Waiter>> = const { OnceLock::new() };
    }
    let kept = WAITER.try_with(|cell| {
        if let Some(w) = cell.get() {
            return Ok(Arc::clone(w));
        }
        let made = Waiter::new()?;
        Ok(Arc::clone(cell.get_or_init(|| made)))
    });
    // A thread that ends may still have to wait, in the drop of some other local.
    kept.unwrap_or_else(|_| Waiter::new())
}
