//! The descriptor of a queue.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::QueueCore;
use crate::sys::{EpollSet, EventFd};

/// Who waits at a queue's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FdUse {
    /// No caller has asked for it.
    None = 0,
    /// A thread of the library's.
    Library = 1,
    /// The program.
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
    /// The descriptor that is readable while events wait.
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

    /// True if the program waits at the descriptor.
    pub fn is_polled(&self) -> bool {
        self.fd_use() == FdUse::Program
    }

    /// The set that drives its shard, once the program waits for it.
    pub(in crate::progress) fn drive_set(&self) -> &OnceLock<EpollSet> {
        &self.drive
    }

    /// True if the program waits at a descriptor that drives nothing.
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
