//! The bell that ends the sleep of the thread in the reactor.
//!
//! A thread that leaves work for the leader rings only while the leader has announced a sleep, and only
//! the first such thread makes the system call. The leader looks for work after its announcement, so it
//! finds what was left before, and each thread that leaves work later sees the announcement.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::reactor::{Reactor, WAKE};
use crate::sys::note_calls;

pub(super) struct ReactorBell {
    waker: mio::Waker,
    /// A thread has ended the sleep that was announced last.
    called: AtomicBool,
}

impl ReactorBell {
    pub(super) fn new(reactor: &Reactor) -> io::Result<ReactorBell> {
        let waker = mio::Waker::new(reactor.registry(), WAKE)?;
        Ok(ReactorBell { waker, called: AtomicBool::new(false) })
    }

    pub(super) fn ring(&self) {
        // The waker is an eventfd of the library, which stays open: the call cannot fail.
        note_calls(1);
        let woken = self.waker.wake();
        debug_assert!(woken.is_ok(), "{woken:?}");
    }

    /// The thread in the reactor is about to announce a sleep.
    pub(super) fn note_sleep(&self) {
        self.called.store(false, Ordering::SeqCst);
    }

    /// As `ring`, for a sleep that was announced.
    pub(super) fn end_announced_sleep(&self) {
        if !self.called.swap(true, Ordering::SeqCst) {
            self.ring();
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use super::*;
    use crate::sys::wait_readable;

    #[test]
    fn an_announced_sleep_is_ended_by_one_system_call() {
        let mut reactor = Reactor::new().unwrap();
        let bell = ReactorBell::new(&reactor).unwrap();
        let rung = |r: &Reactor| wait_readable(r.as_raw_fd(), Some(Duration::ZERO), None).unwrap();
        for _ in 0..2 {
            bell.note_sleep();
            assert!(!rung(&reactor));
            bell.end_announced_sleep();
            assert!(rung(&reactor));
            reactor.poll(None).unwrap();
            bell.end_announced_sleep();
            assert!(!rung(&reactor), "the thread is awake");
        }
    }
}
