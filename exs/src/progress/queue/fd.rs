//! The descriptor of a queue.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::{Inner, QueueCore};
use crate::sys::{EpollSet, EventFd, this_thread};

/// The user of a queue's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FdUse {
    /// No caller has asked for the descriptor.
    None = 0,
    /// A thread of the library waits for it.
    Library = 1,
    /// The program waits for it.
    Program = 2,
}

/// The state of the queue's eventfd, which is readable while events wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Signal {
    /// It is not readable, and an event makes it so.
    #[default]
    Off,
    /// It is readable.
    On,
    /// It is not readable, and stays so: the thread that drives the queue's shard takes the events
    /// itself. This saves two system calls for each dequeue that finds events.
    Quiet,
    /// It is not readable. An event that this thread brings about leaves it so until the shard is armed:
    /// the thread dequeues again before it waits.
    Withheld(i32),
}

impl Signal {
    /// True if an event that the calling thread brings about makes the descriptor readable.
    fn shows(self) -> bool {
        match self {
            Signal::Off => true,
            Signal::On | Signal::Quiet => false,
            Signal::Withheld(thread) => thread != this_thread(),
        }
    }
}

/// How the program waits for the descriptors that drive a queue's shard.
pub(in crate::progress) enum DriveFds {
    /// It waits for an epoll set of them.
    Joined(EpollSet),
    /// It waits for each of them.
    #[cfg(feature = "tokio")]
    Apart,
}

impl Drop for QueueCore {
    fn drop(&mut self) {
        if self.drive.get().is_some() {
            self.context().drive.forget_queue();
        }
    }
}

impl QueueCore {
    /// Returns the descriptor, which is readable while events wait. From the first call on, the
    /// queue keeps it up to date.
    pub fn fd(&self, user: FdUse) -> &EventFd {
        let mut inner = self.lock();
        self.fd_use.fetch_max(user as u8, Ordering::AcqRel);
        self.signal(&mut inner);
        self.fd.as_ref().expect("only a thread that blocks waits at a queue for blocking calls")
    }

    /// Makes the descriptor readable, if events wait and a user has asked for it.
    pub(super) fn signal(&self, inner: &mut Inner) {
        if !inner.events.is_empty()
            && inner.signal.shows()
            && self.has_fd()
            && let Some(fd) = &self.fd
        {
            fd.signal();
            inner.signal = Signal::On;
        }
    }

    /// Events were taken: the descriptor is readable if more wait, and not otherwise.
    pub(super) fn end_signal(&self, inner: &mut Inner) {
        match inner.signal {
            Signal::On if inner.events.is_empty() => {
                if let Some(fd) = &self.fd {
                    fd.drain();
                }
                inner.signal = Signal::Off;
            }
            Signal::Quiet => self.end_silence(inner),
            // The thread leaves some, and may wait now.
            Signal::Withheld(_) if !inner.events.is_empty() => self.end_silence(inner),
            Signal::On | Signal::Off | Signal::Withheld(_) => {}
        }
    }

    /// Events that wait make the descriptor readable from now on.
    fn end_silence(&self, inner: &mut Inner) {
        inner.signal = Signal::Off;
        self.signal(inner);
    }

    /// The calling thread has taken all events, and dequeues again before it waits for the descriptor.
    pub(in crate::progress) fn withhold(&self) {
        let mut inner = self.lock();
        if inner.signal == Signal::Off && inner.events.is_empty() {
            inner.signal = Signal::Withheld(this_thread());
        }
    }

    /// The thread may wait for the descriptor now.
    pub(in crate::progress) fn show_withheld(&self) {
        let mut inner = self.lock();
        if matches!(inner.signal, Signal::Withheld(_)) {
            self.end_silence(&mut inner);
        }
    }

    /// This thread is about to drive the shard, and takes what comes: no event makes the descriptor
    /// readable until [`QueueCore::end_quiet`], or until events were taken.
    pub(in crate::progress) fn begin_quiet(&self) {
        let mut inner = self.lock();
        if matches!(inner.signal, Signal::Off | Signal::Withheld(_)) {
            inner.signal = Signal::Quiet;
        }
    }

    /// This thread takes no events: those that came make the descriptor readable.
    pub(in crate::progress) fn end_quiet(&self) {
        let mut inner = self.lock();
        if inner.signal == Signal::Quiet {
            self.end_silence(&mut inner);
        }
    }

    /// True once [`QueueCore::fd`] was called.
    pub fn has_fd(&self) -> bool {
        self.fd_use() != FdUse::None
    }

    /// True if the program waits for the descriptor.
    pub fn is_polled(&self) -> bool {
        self.fd_use() == FdUse::Program
    }

    /// The descriptors that drive the queue's shard, for which the program waits. Empty: the queue's
    /// descriptor does not drive the shard.
    pub(in crate::progress) fn drive_fds(&self) -> &OnceLock<DriveFds> {
        &self.drive
    }

    /// True if the program waits for the descriptor, and this does not drive the shard: another
    /// thread must lead.
    pub(super) fn needs_leader(&self) -> bool {
        self.is_polled() && self.drive.get().is_none()
    }

    fn fd_use(&self) -> FdUse {
        match self.fd_use.load(Ordering::Acquire) {
            0 => FdUse::None,
            1 => FdUse::Library,
            _ => FdUse::Program,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::progress::event::RawEvent;
    use crate::progress::{EventKind, QueueOptions};

    #[test]
    fn events_of_a_thread_that_drives_do_not_signal() {
        let q = QueueCore::new(&QueueOptions::default()).unwrap();
        let readable = || q.fd(FdUse::Program).wait(Some(Duration::ZERO)).unwrap();
        let push = || q.push(RawEvent::new(1, EventKind::Send), &mut Vec::new());
        let take = |max| q.take::<RawEvent>(max, &mut Vec::new());
        assert!(!readable());
        q.begin_quiet();
        push();
        push();
        assert!(!readable(), "the thread takes them itself");
        assert_eq!(take(1), 1);
        assert!(readable(), "it has left one");
        q.begin_quiet();
        assert!(readable(), "the event that waits is shown");
        assert_eq!(take(8), 1);
        assert!(!readable());
        push();
        assert!(readable(), "no thread drives");
        take(8);
        q.begin_quiet();
        push();
        q.end_quiet();
        assert!(readable(), "the thread that drove takes nothing");
    }

    #[test]
    fn a_thread_that_comes_again_is_shown_its_own_events_later() {
        let q = QueueCore::new(&QueueOptions::default()).unwrap();
        let readable = || q.fd(FdUse::Program).wait(Some(Duration::ZERO)).unwrap();
        let push = || q.push(RawEvent::new(1, EventKind::Send), &mut Vec::new());
        let take = |max| q.take::<RawEvent>(max, &mut Vec::new());
        assert!(!readable());
        q.withhold();
        push();
        assert!(!readable(), "this thread dequeues before it waits");
        assert_eq!(take(8), 1);
        push();
        q.show_withheld();
        assert!(readable(), "it may wait now");
        q.withhold();
        assert!(readable(), "an event waits");
        take(8);
        q.withhold();
        push();
        push();
        assert_eq!(take(1), 1);
        assert!(readable(), "it has left one, and may wait");
        take(8);
        q.withhold();
        std::thread::scope(|s| s.spawn(push).join()).unwrap();
        assert!(readable(), "another thread's event");
        take(8);
        q.withhold();
        push();
        q.begin_quiet();
        q.end_quiet();
        assert!(readable(), "the thread that drove takes nothing");
        q.show_withheld();
        assert!(readable());
    }
}
