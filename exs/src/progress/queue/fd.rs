//! The descriptor of a queue.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::QueueCore;
use crate::sys::{EpollSet, EventFd};

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
        let inner = self.lock();
        let before = self.fd_use.fetch_max(user as u8, Ordering::AcqRel);
        if before == FdUse::None as u8 && !inner.events.is_empty() {
            self.fd.signal();
        }
        &self.fd
    }

    /// True once [`QueueCore::fd`] was called.
    pub fn has_fd(&self) -> bool {
        self.fd_use() != FdUse::None
    }

    /// True if the program waits for the descriptor.
    pub fn is_polled(&self) -> bool {
        self.fd_use() == FdUse::Program
    }

    /// The epoll set that drives the queue's shard, for which the program waits. Empty: the queue's
    /// descriptor does not drive the shard.
    pub(in crate::progress) fn drive_set(&self) -> &OnceLock<EpollSet> {
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
