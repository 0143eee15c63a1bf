//! Descriptors that a peer has sent: anything that can be open in its process.
//!
//! To close one can wait for the peer: a file of a FUSE file system that the peer serves is flushed by
//! its server when it likes; a socket with SO_LINGER waits for its other end; the last
//! descriptor of a large memfd frees its pages. The kernel does the same for descriptors that
//! lie in a socket which is closed before they were received. So a thread that others wait for
//! never closes either. [`ForeignFd`] is closed by a thread made for that; a [`PeerSocket`] and a
//! [`PeerListener`] take out what lies in them before they are closed.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::HeldSignals;
use super::unix::{accept_unix, take_out};

/// Threads that close, at most. Each can be held up by one descriptor for as long as a peer
/// likes; descriptors beyond that stay open until one of them comes free.
const THREADS: usize = 16;
/// How long a thread waits for more before it ends.
const REST: Duration = Duration::from_millis(100);
/// Messages taken out of a socket that is closed: more than the kernel keeps.
const MOST: usize = 16 << 10;

struct Closers {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    idle: usize,
}

static CLOSERS: Mutex<Closers> = Mutex::new(Closers { waiting: VecDeque::new(), threads: 0, idle: 0 });
static MORE: Condvar = Condvar::new();

fn closers() -> MutexGuard<'static, Closers> {
    CLOSERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a thread of its own close the descriptor, however long that takes.
pub fn close_elsewhere(fd: OwnedFd) {
    let mut all = closers();
    all.waiting.push_back(fd);
    if all.idle >= all.waiting.len() || all.threads >= THREADS {
        return MORE.notify_one();
    }
    // The thread inherits it: the program's signals are for the program's threads.
    let _held = HeldSignals::new();
    // Without a thread the descriptor stays open until there is one: this thread must not wait.
    if std::thread::Builder::new().name("exs-close".into()).spawn(close_what_waits).is_ok() {
        all.threads += 1;
    }
}

fn close_what_waits() {
    let mut all = closers();
    loop {
        while let Some(fd) = all.waiting.pop_front() {
            drop(all);
            drop(fd);
            all = closers();
        }
        all.idle += 1;
        let (back, rest) = MORE.wait_timeout(all, REST).unwrap_or_else(PoisonError::into_inner);
        all = back;
        all.idle -= 1;
        if rest.timed_out() && all.waiting.is_empty() {
            all.threads -= 1;
            return;
        }
    }
}

/// A descriptor that another process has sent.
#[derive(Debug)]
pub struct ForeignFd(ManuallyDrop<OwnedFd>);

impl ForeignFd {
    pub(super) fn new(fd: OwnedFd) -> ForeignFd {
        ForeignFd(ManuallyDrop::new(fd))
    }
}

impl AsFd for ForeignFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for ForeignFd {
    fn drop(&mut self) {
        // SAFETY: taken once, as the value ends here.
        close_elsewhere(unsafe { ManuallyDrop::take(&mut self.0) });
    }
}

/// Nothing comes to the socket any more.
fn stop(fd: BorrowedFd<'_>) {
    // SAFETY: a system call without pointers. It fails for a socket that is not connected any
    // more, to which nothing comes either.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Our end of a UNIX socket that carries descriptors.
#[derive(Debug)]
pub struct PeerSocket(OwnedFd);

impl PeerSocket {
    pub(super) fn new(fd: OwnedFd) -> PeerSocket {
        PeerSocket(fd)
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        stop(self.as_fd());
        for _ in 0..MOST {
            if !take_out(self.as_fd()) {
                return;
            }
        }
    }
}

/// A listening UNIX socket whose callers may have sent descriptors.
#[derive(Debug)]
pub struct PeerListener(ManuallyDrop<OwnedFd>);

impl PeerListener {
    pub(super) fn new(fd: OwnedFd) -> PeerListener {
        PeerListener(ManuallyDrop::new(fd))
    }
}

impl AsFd for PeerListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for PeerListener {
    fn drop(&mut self) {
        stop(self.as_fd());
        let left = loop {
            if let Err(e) = accept_unix(self.as_fd()) {
                break e;
            }
        };
        // SAFETY: taken once, as the value ends here.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        match left.raw_os_error() {
            // No caller is left, and it takes no more.
            Some(libc::EINVAL | libc::EAGAIN) => drop(fd),
            // Callers are left for whom this process has no descriptor.
            _ => close_elsewhere(fd),
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::channel;

    use super::super::unix::{connect_abstract, listen_abstract, pair, recv_with_fds, send_with_fds};
    use super::*;

    /// A socket whose close(2) waits an hour for its peer.
    fn slow_to_close() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let linger = libc::linger { l_onoff: 1, l_linger: 3600 };
        let (at, len) = (std::ptr::from_ref(&linger).cast(), 8);
        // SAFETY: a structure of `len` bytes, alive for the call.
        let set = unsafe {
            libc::setsockopt(client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, len)
        };
        assert_eq!(set, 0);
        client.set_nonblocking(true).unwrap();
        while client.write(&[0; 65_536]).is_ok() {}
        (client.into(), server)
    }

    /// Runs `f`, which must not wait for the peer.
    fn at_once(what: &str, f: impl FnOnce() + Send + 'static) {
        let (done, end) = channel();
        std::thread::spawn(move || {
            f();
            done.send(()).unwrap();
        });
        assert!(end.recv_timeout(Duration::from_secs(60)).is_ok(), "{what} waited for a peer");
    }

    #[test]
    fn what_is_slow_to_close_is_closed_by_another_thread() {
        let mut peers = Vec::new();
        let mut slow = || {
            let (fd, peer) = slow_to_close();
            peers.push(peer);
            fd
        };
        let (a, b) = pair().unwrap();
        let fds = [slow(), slow()];
        send_with_fds(a.as_fd(), b"", &[fds[0].as_fd()]).unwrap();
        send_with_fds(a.as_fd(), b"two", &[fds[1].as_fd()]).unwrap();
        send_with_fds(a.as_fd(), b"three", &[slow().as_fd()]).unwrap();
        drop(fds);
        let got = recv_with_fds(b.as_fd(), &mut [0; 8]).unwrap();
        at_once("a descriptor", move || drop(got));
        send_with_fds(a.as_fd(), b"", &[]).unwrap();
        send_with_fds(a.as_fd(), b"four", &[slow().as_fd()]).unwrap();
        at_once("a socket with messages", move || drop(b));
        let name = format!("exs-foreign-{}", std::process::id());
        let listener = listen_abstract(name.as_bytes(), 4).unwrap();
        let client = connect_abstract(name.as_bytes()).unwrap();
        send_with_fds(client.as_fd(), b"five", &[slow().as_fd()]).unwrap();
        at_once("a listener with callers", move || drop(listener));
        assert!(listen_abstract(name.as_bytes(), 4).is_ok(), "the name is free");
    }
}
