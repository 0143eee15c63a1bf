//! Jobs in threads, each of which waits in its system call.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{CallOff, Inbox, Job, JobResult};
use crate::sys::{self, HeldSignals};

/// The most threads of a pool. More jobs wait until others are over.
const MOST: usize = 64;
/// A thread ends after this time without a job.
const IDLE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<(u64, Job)>,
    idle: usize,
    threads: usize,
    closed: bool,
}

struct PoolShared {
    state: Mutex<PoolState>,
    more: Condvar,
    inbox: Arc<Inbox>,
}

/// The threads, made as they are needed.
pub(super) struct Pool {
    shared: Arc<PoolShared>,
}

impl PoolShared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some((number, job)) = self.next() {
            let result = run(&job);
            // Closed before the reply, whose reader may count descriptors.
            drop(job);
            self.inbox.put(number, result);
        }
    }

    /// The next job; None after [`IDLE`] without one.
    fn next(&self) -> Option<(u64, Job)> {
        let mut st = self.lock();
        loop {
            if let Some(job) = st.jobs.pop_front() {
                return Some(job);
            }
            st.idle += 1;
            let (back, waited) =
                self.more.wait_timeout(st, IDLE).unwrap_or_else(PoisonError::into_inner);
            st = back;
            st.idle -= 1;
            if st.jobs.is_empty() && (st.closed || waited.timed_out()) {
                st.threads -= 1;
                return None;
            }
        }
    }
}

impl Pool {
    pub(super) fn new(inbox: Arc<Inbox>) -> Pool {
        let (state, more) = (Mutex::default(), Condvar::new());
        Pool { shared: Arc::new(PoolShared { state, more, inbox }) }
    }

    pub(super) fn start(&self, number: u64, job: Job) -> io::Result<()> {
        let mut st = self.shared.lock();
        if st.jobs.len() >= st.idle && st.threads < MOST {
            let shared = Arc::clone(&self.shared);
            // The thread inherits the mask: signals of the program are for its own threads.
            let _held = HeldSignals::new();
            let made =
                std::thread::Builder::new().name("exs-wait".into()).spawn(move || shared.work());
            match made {
                Ok(_) => st.threads += 1,
                // The threads that there are will take the job.
                Err(_) if st.threads > 0 => {}
                Err(e) => return Err(e),
            }
        }
        st.jobs.push_back((number, job));
        drop(st);
        self.shared.more.notify_one();
        Ok(())
    }

    pub(super) fn call_off(&self, number: u64) -> CallOff {
        let mut st = self.shared.lock();
        let Some(at) = st.jobs.iter().position(|(n, _)| *n == number) else {
            return CallOff::Lost;
        };
        st.jobs.remove(at);
        drop(st);
        self.shared.inbox.put(number, Err(io::Error::from_raw_os_error(libc::ECANCELED)));
        CallOff::Replies
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.more.notify_all();
    }
}

/// Carries one job out; waits.
fn run(job: &Job) -> JobResult {
    match job {
        Job::Accept(fd) => loop {
            match sys::accept(fd.as_fd()) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other.map(Some),
            }
        },
        Job::Connect(fd, addr) => match sys::connect(fd.as_fd(), addr) {
            // The connect goes on by itself; a second call would only report that.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                sys::wait_writable(fd.as_fd())?;
                match sys::socket_option(fd.as_fd(), libc::SO_ERROR)? {
                    0 => Ok(None),
                    errno => Err(io::Error::from_raw_os_error(errno)),
                }
            }
            other => other.map(|()| None),
        },
    }
}
