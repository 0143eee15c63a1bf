//! Those who wait in our place: connect and accept on sockets that block.
//!
//! connect(2) and accept(2) have no flag like MSG_DONTWAIT: on a socket without
//! O_NONBLOCK, which is the owner's to set, they wait, and that no thread may that holds
//! the engine's lock. So they are *jobs* of a helper. What it brings home lies in
//! its inbox; a bell (an eventfd in the reactor) says so.
//!
//! There are two helpers. `ring` hands the jobs to io_uring, on a thread of its own,
//! since requests end with the thread that submitted them, and completions disturb
//! the system calls of that thread: neither may happen to a program's threads. `threads`
//! is for kernels without io_uring, or where it is forbidden: a thread waits in the system
//! call. It cannot be called off there, so an accept is only begun when a connection
//! is there.

mod ring;
mod threads;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use self::ring::RingThread;
use self::threads::Pool;
use super::types::KernelIo;
use crate::sys::{EventFd, KernelAddr};

/// What to wait for.
#[derive(Debug)]
pub(super) enum Job {
    Connect(OwnedFd, KernelAddr),
    Accept(OwnedFd),
}

/// What a job came to: of an accept the connection and its peer.
pub(super) type JobResult = io::Result<Option<(OwnedFd, KernelAddr)>>;

/// Jobs that are over.
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
    /// Soon, with what it came to.
    Replies,
    /// Nobody can say when: whoever called it off should not wait.
    Lost,
}

/// Who carries the jobs out.
enum Way {
    Ring(RingThread),
    /// Of their own each: the connections that connects wait for may have to be accepted
    /// by this very process.
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
    /// A helper of the kind wanted; by io_uring if that is left to us and it is there.
    ///
    /// # Errors
    /// What the kernel says; without io_uring where that is insisted on, ENOSYS or EPERM.
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

    /// What to watch: readable when jobs are over.
    pub(super) fn bell(&self) -> &EventFd {
        &self.inbox.bell
    }

    /// An accept must not be begun before a connection is there.
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

    /// Asks a job to end.
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

    /// Takes what lies in the inbox.
    pub(super) fn collect(&self) -> Vec<(u64, JobResult)> {
        self.inbox.bell.drain();
        std::mem::take(&mut *self.inbox.replies.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
