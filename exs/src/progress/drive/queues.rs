//! The queues whose descriptors drive a shard.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::progress::queue::QueueCore;

/// The queues of a shard whose descriptors drive it.
#[derive(Default)]
pub(super) struct DrivingQueues {
    /// Their number. A thread that has left work looks at it after that, and a new queue's thread looks
    /// for work after it counts (`Context::wake`).
    count: AtomicUsize,
    list: Mutex<Vec<Weak<QueueCore>>>,
    /// A queue withholds the signal of its events from a thread that comes again.
    withholds: AtomicBool,
}

impl DrivingQueues {
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    pub(super) fn add(&self, queue: &Arc<QueueCore>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|queue| queue.strong_count() > 0);
        list.push(Arc::downgrade(queue));
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// A queue is gone.
    pub(super) fn forget_one(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// The calling thread has emptied `queue`, and comes again: events that it brings about itself make
    /// the descriptor readable only when the shard is armed.
    #[inline]
    pub(super) fn withhold(&self, queue: &QueueCore) {
        queue.withhold();
        self.withholds.store(true, Ordering::SeqCst);
    }

    /// The shard is armed: events that wait make the descriptors of their queues readable.
    #[inline]
    pub(super) fn show_withheld(&self) {
        if self.withholds.swap(false, Ordering::SeqCst) {
            let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            list.iter().filter_map(Weak::upgrade).for_each(|queue| queue.show_withheld());
        }
    }
}
