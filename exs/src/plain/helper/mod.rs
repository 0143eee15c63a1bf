//! The helper: it waits in connect(2) and accept(2) on sockets that block.
//!
//! connect(2) and accept(2) have no flag like MSG_DONTWAIT. On a socket without O_NONBLOCK, which only
//! the owner may set, they wait, and a thread that holds the engine's lock must not wait. So they are
//! *jobs* of a helper. Their results lie in its inbox, and a bell (an eventfd in the reactor) reports
//! them.
//!
//! There are two helpers. `ring` hands the jobs to io_uring from a thread of its own: requests end with
//! the thread that submitted them, and completions interrupt that thread's system calls, neither of
//! which may happen to a thread of the program. `threads` is for kernels that have no io_uring or forbid
//! it: a thread waits in the system call. Such a call cannot be called off, so an accept
//! begins only when a connection is there.

mod jobs;
mod ring;
mod threads;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

pub(super) use self::jobs::{Jobs, is_not_begun};
use self::ring::RingThread;
use self::threads::Pool;
use super::types::KernelIo;
use crate::sys::{EventFd, KernelAddr};

/// A call to wait in.
#[derive(Debug)]
pub(super) enum Job {
    Connect(OwnedFd, KernelAddr),
    Accept(OwnedFd),
}

/// The result of a job; of an accept the connection and its peer.
pub(super) type JobResult = io::Result<Option<(OwnedFd, KernelAddr)>>;

/// The results of jobs that are over.
pub(super) struct Inbox {
    replies: Mutex<Vec<(u64, JobResult)>>,
    bell: EventFd,
}

impl Inbox {
    fn put(&self, job: u64, result: JobResult) {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner).push((job, result));
        self.bell.signal();
    }
}

/// Whether a job that was called off will still reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallOff {
    /// Soon, with its result.
    Replies,
    /// At an unknown time: the caller must not wait for it.
    Lost,
}

/// The way in which jobs are carried out.
enum Way {
    Ring(RingThread),
    /// Connects and accepts have threads of their own: a connect may wait for an accept of this very
    /// process.
    Threads {
        connects: Pool,
        accepts: Pool,
    },
}

impl Way {
    fn threads(inbox: &Arc<Inbox>) -> Way {
        let pool = || Pool::new(Arc::clone(inbox));
        Way::Threads { connects: pool(), accepts: pool() }
    }
}

/// A helper.
pub(super) struct Helper {
    inbox: Arc<Inbox>,
    way: Way,
    next: u64,
}

impl Helper {
    /// Makes a helper of the kind wanted; `Auto` takes io_uring if the kernel has it.
    ///
    /// # Errors
    /// The kernel's error. `Uring` without io_uring gives ENOSYS or EPERM.
    pub(super) fn new(io: KernelIo) -> io::Result<Helper> {
        let inbox = Arc::new(Inbox { replies: Mutex::default(), bell: EventFd::new()? });
        let way = match io {
            KernelIo::Uring => Way::Ring(RingThread::new(Arc::clone(&inbox))?),
            KernelIo::Readiness => Way::threads(&inbox),
            KernelIo::Auto => match RingThread::new(Arc::clone(&inbox)) {
                Ok(ring) => Way::Ring(ring),
                Err(e) => {
                    crate::trace::info!("kernel sockets go without io_uring: {e}");
                    Way::threads(&inbox)
                }
            },
        };
        Ok(Helper { inbox, way, next: 0 })
    }

    /// The descriptor that is readable when jobs are over.
    pub(super) fn bell(&self) -> &EventFd {
        &self.inbox.bell
    }

    /// True if an accept must not begin before a connection is there.
    pub(super) fn needs_readiness(&self) -> bool {
        matches!(self.way, Way::Threads { .. })
    }

    /// Begins a job; returns its number.
    pub(super) fn start(&mut self, job: Job) -> io::Result<u64> {
        self.next += 1;
        match &self.way {
            Way::Ring(ring) => ring.start(self.next, job),
            Way::Threads { connects, accepts } => match job {
                Job::Connect(..) => connects.start(self.next, job)?,
                Job::Accept(..) => accepts.start(self.next, job)?,
            },
        }
        Ok(self.next)
    }

    /// Calls a job off.
    pub(super) fn call_off(&self, job: u64) -> CallOff {
        match &self.way {
            Way::Ring(ring) => {
                ring.call_off(job);
                CallOff::Replies
            }
            Way::Threads { connects, accepts } => match connects.call_off(job) {
                CallOff::Lost => accepts.call_off(job),
                off => off,
            },
        }
    }

    /// Takes the results from the inbox.
    pub(super) fn collect(&self) -> Vec<(u64, JobResult)> {
        self.inbox.bell.drain();
        std::mem::take(&mut *self.inbox.replies.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
