//! Which thread posts the operations whose events go to a queue.
//!
//! A thread that waits for the next message of its connection saves a system call if it sleeps in a read of
//! the stream. No other thread can end such a sleep, which takes 10 ms at most. So an event that another
//! thread has brought about may be late by that. A thread that has a queue to itself has no such events.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Posts of one thread in a row, after which the thread has the queue to itself.
const ALONE_AFTER: u32 = 64;

thread_local! {
    /// Its address tells threads apart.
    static THREAD: u8 = const { 0 };
}

/// A number of the calling thread, which later threads may get, too. 0: the thread is about to end.
#[inline]
fn this_thread() -> usize {
    THREAD.try_with(|byte| std::ptr::from_ref(byte).addr()).unwrap_or(0)
}

/// The thread that has posted last, and how often in a row. Two threads that post at the same time may
/// mix up both, which the next post of either mends.
#[derive(Default)]
pub(super) struct Poster {
    thread: AtomicUsize,
    /// Up to [`ALONE_AFTER`].
    posts: AtomicU32,
}

impl Poster {
    /// The calling thread is about to post.
    #[inline]
    pub(super) fn note(&self) {
        let (thread, posts) = (this_thread(), self.posts.load(Ordering::Relaxed));
        if self.thread.load(Ordering::Relaxed) != thread {
            self.posts.store(0, Ordering::Relaxed);
            self.thread.store(thread, Ordering::Relaxed);
        } else if posts < ALONE_AFTER {
            self.posts.store(posts + 1, Ordering::Relaxed);
        }
    }

    /// True if no thread but the calling one has posted for long.
    pub(super) fn is_caller_alone(&self) -> bool {
        self.posts.load(Ordering::Relaxed) == ALONE_AFTER
            && self.thread.load(Ordering::Relaxed) == this_thread()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_posts_again_and_again_is_alone() {
        let poster = Poster::default();
        let post = |posts| (0..posts).for_each(|_| poster.note());
        post(ALONE_AFTER);
        assert!(!poster.is_caller_alone());
        post(1);
        assert!(poster.is_caller_alone());
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(!poster.is_caller_alone())).join().unwrap();
            assert!(poster.is_caller_alone(), "the other thread has only looked");
            scope.spawn(|| post(1)).join().unwrap();
        });
        assert!(!poster.is_caller_alone());
        post(ALONE_AFTER + 1);
        assert!(poster.is_caller_alone());
    }
}
