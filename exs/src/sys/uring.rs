//! io_uring, for calls that have no non-blocking form: connect and accept.
//!
//! # The argument
//! The kernel reads an address (connect) or writes one (accept) at any time between the
//! submission of a request and its completion. So the memory of a request is boxed, and stays in
//! a table until its completion was seen. A ring that is dropped before that leaks the memory,
//! because requests of a closed ring may end later.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};

use super::addr::socklen;
use super::message::{Storage, accepted_from};
use super::sockaddr::SOCKADDR_MAX;
use super::{EventFd, KernelAddr};

/// Most requests that one system call submits. Any number may be under way.
const ENTRIES: u32 = 64;
/// Time to wait for the bell alone when the ring takes nothing.
const RETRY: Duration = Duration::from_millis(10);
/// The completions that belong to no job: of the poll of the bell, and of cancels.
const BELL: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;

/// The memory that a request uses, and its descriptor.
struct RingJob {
    /// The caller's number of the job.
    number: u64,
    fd: OwnedFd,
    /// The address, and its length.
    name: Box<(Storage, libc::socklen_t)>,
    /// It is an accept. If false, it is a connect.
    accept: bool,
}

/// A completed job: its number, and, for an accept, the connection and its peer.
pub type RingReply = (u64, io::Result<Option<(OwnedFd, KernelAddr)>>);

/// A ring that belongs to one thread.
pub struct IoRing {
    ring: IoUring,
    kept: slab::Slab<RingJob>,
    /// Jobs that could not be submitted. `wait` reports them.
    refused: Vec<RingReply>,
    bell: Arc<EventFd>,
    /// The ring polls the bell.
    armed: bool,
}

impl IoRing {
    /// Makes a ring that wakes its thread when `bell` rings.
    ///
    /// # Errors
    /// ENOSYS if the kernel has no io_uring, or one without these calls. EPERM if it is
    /// forbidden.
    pub fn new(bell: Arc<EventFd>) -> io::Result<IoRing> {
        let ring = IoUring::new(ENTRIES)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Accept::CODE,
            opcode::Connect::CODE,
            opcode::AsyncCancel::CODE,
            opcode::PollAdd::CODE,
        ];
        if !needed.iter().all(|code| probe.is_supported(*code)) {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        let (kept, refused) = (slab::Slab::new(), Vec::new());
        Ok(IoRing { ring, kept, refused, bell, armed: false })
    }

    /// Starts to connect. `wait` reports the outcome.
    pub fn connect(&mut self, number: u64, fd: OwnedFd, addr: &KernelAddr) {
        let (bytes, len) = addr.to_sockaddr();
        let name = Box::new((Storage(bytes), socklen(len)));
        let at = self.kept.insert(RingJob { number, fd, name, accept: false });
        let kept = &self.kept[at];
        let ptr = std::ptr::from_ref(&kept.name.0).cast();
        let entry = opcode::Connect::new(types::Fd(kept.fd.as_raw_fd()), ptr, kept.name.1);
        self.begin(at, entry.build());
    }

    /// Starts to wait for a connection. `wait` reports it.
    pub fn accept(&mut self, number: u64, fd: OwnedFd) {
        let name = Box::new((Storage([0; SOCKADDR_MAX]), socklen(SOCKADDR_MAX)));
        let at = self.kept.insert(RingJob { number, fd, name, accept: true });
        let kept = &mut self.kept[at];
        let (name, fd) = (&mut *kept.name, types::Fd(kept.fd.as_raw_fd()));
        let (ptr, len) = (std::ptr::from_mut(&mut name.0).cast(), &raw mut name.1);
        let entry = opcode::Accept::new(fd, ptr, len).flags(libc::SOCK_CLOEXEC);
        self.begin(at, entry.build());
    }

    fn begin(&mut self, at: usize, entry: squeue::Entry) {
        if let Err(e) = self.push(&entry.user_data(at as u64)) {
            // The kernel has not seen it.
            let kept = self.kept.remove(at);
            self.refused.push((kept.number, Err(e)));
        }
    }

    /// Asks a job to end. If it has not ended yet, it replies with ECANCELED.
    pub fn cancel(&mut self, number: u64) {
        let Some((at, _)) = self.kept.iter().find(|(_, k)| k.number == number) else { return };
        let entry = opcode::AsyncCancel::new(at as u64).build().user_data(CANCEL);
        // If there is no room for the cancel, the job goes on, as if the cancel came too late.
        let _ = self.push(&entry);
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        for _ in 0..2 {
            // SAFETY: the memory of the entry is in `kept` (boxed, so it does not move) until its
            // completion was seen, or the entry has none.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Sleeps until a job has ended or the bell rings. Appends the jobs that have ended.
    pub fn wait(&mut self, out: &mut Vec<RingReply>) {
        if !self.armed {
            let poll = opcode::PollAdd::new(types::Fd(self.bell.as_raw_fd()), POLLIN);
            self.armed = self.push(&poll.build().user_data(BELL)).is_ok();
        }
        out.append(&mut self.refused);
        let want = usize::from(out.is_empty() && self.armed);
        // A temporary failure (a full completion queue, lack of memory) passes once completions
        // are taken, which comes next. Meanwhile the thread waits for the bell.
        let waited = self.ring.submit_and_wait(want);
        let failed = waited.is_err_and(|e| e.kind() != io::ErrorKind::Interrupted);
        if failed || !self.armed {
            let _ = self.bell.wait(Some(RETRY));
        }
        let mut over = Vec::new();
        for cqe in self.ring.completion() {
            match cqe.user_data() {
                BELL => self.armed = false,
                CANCEL => {}
                at => over.push((at, cqe.result())),
            }
        }
        for (at, result) in over {
            if let Some(kept) = usize::try_from(at).ok().and_then(|at| self.kept.try_remove(at)) {
                out.push(reply(kept, result));
            }
        }
    }
}

/// `POLLIN` of poll(2) in the type of io_uring.
const POLLIN: u32 = libc::POLLIN as u32;

fn reply(kept: RingJob, result: i32) -> RingReply {
    if result < 0 {
        return (kept.number, Err(io::Error::from_raw_os_error(-result)));
    }
    if !kept.accept {
        return (kept.number, Ok(None));
    }
    // SAFETY: the result of a completed accept is a descriptor just made, with no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(result) };
    let peer = accepted_from(&kept.name.0.0, kept.name.1);
    (kept.number, Ok(Some((fd, peer))))
}

impl Drop for IoRing {
    fn drop(&mut self) {
        // The kernel may still write there (see the module's head).
        std::mem::forget(std::mem::take(&mut self.kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    fn ring() -> Option<IoRing> {
        let made = IoRing::new(Arc::new(EventFd::new().unwrap()));
        if let Err(e) = &made {
            eprintln!("skipped: no io_uring here ({e})");
        }
        made.ok()
    }

    fn wait_for_one(ring: &mut IoRing) -> RingReply {
        let mut out = Vec::new();
        while out.is_empty() {
            ring.wait(&mut out);
        }
        out.pop().unwrap()
    }

    #[test]
    fn an_accept_waits_for_a_connection_and_can_be_cancelled() {
        let Some(mut ring) = ring() else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        ring.accept(7, listener.try_clone().unwrap().into());
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (number, got) = wait_for_one(&mut ring);
        let (_, peer) = got.unwrap().unwrap();
        assert_eq!((number, peer.as_ip()), (7, Some(client.local_addr().unwrap())));
        ring.accept(8, listener.into());
        ring.cancel(8);
        let (number, got) = wait_for_one(&mut ring);
        assert_eq!((number, got.unwrap_err().raw_os_error()), (8, Some(libc::ECANCELED)));
    }

    #[test]
    fn a_connect_reports_its_outcome_and_the_bell_wakes() {
        let Some(mut ring) = ring() else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let blocking = |addr: SocketAddr| {
            // SAFETY: a system call without pointers.
            let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
            assert!(fd >= 0);
            // SAFETY: the descriptor was just made, and has no other owner.
            (unsafe { OwnedFd::from_raw_fd(fd) }, KernelAddr::from(addr))
        };
        let (fd, to) = blocking(addr);
        ring.connect(1, fd, &to);
        assert!(matches!(wait_for_one(&mut ring), (1, Ok(None))));
        drop(listener);
        let (fd, to) = blocking(addr);
        ring.connect(2, fd, &to);
        let (_, refused) = wait_for_one(&mut ring);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ECONNREFUSED));
        let mut none = Vec::new();
        ring.bell.signal();
        ring.wait(&mut none);
        assert!(none.is_empty());
    }
}
