//! Descriptors that a peer has sent: anything that can be open in its process.
//!
//! Closing one can wait for the peer. A file of a FUSE file system that the peer serves is
//! flushed by its server when it likes, a socket with SO_LINGER waits for its other end, and the
//! last descriptor of a large memfd frees its pages. The kernel does the same for descriptors in
//! a socket that is closed before they were received. So a thread that others wait for never
//! closes either kind. A thread made for that closes a [`ForeignFd`]. A [`PeerSocket`] and a
//! [`PeerListener`] take out their descriptors before they are closed.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::helpers::Helpers;
use super::unix::{accept_unix, take_out};

/// Most messages taken out of a socket before it is closed: more than the kernel keeps.
const MOST: usize = 16 << 10;

/// Each thread can be held up by one descriptor. Descriptors beyond that stay open until a thread
/// comes free.
static CLOSERS: Helpers = Helpers::new("exs-close", 16);

/// Closes a descriptor in another thread, however long that takes.
pub fn close_elsewhere(fd: OwnedFd) {
    // Without a thread the descriptor stays open until there is one: this thread must not wait.
    CLOSERS.run(Box::new(move || drop(fd)));
}

/// A descriptor that another process has sent.
#[derive(Debug)]
pub struct ForeignFd(ManuallyDrop<OwnedFd>);

impl ForeignFd {
    pub(super) fn new(fd: OwnedFd) -> ForeignFd {
        ForeignFd(ManuallyDrop::new(fd))
    }
}

impl ForeignFd {
    /// Closes it in this thread. That must free nothing and ask no file system: it is a memfd of which
    /// this process has a mapping, or a socket of which it has another descriptor.
    pub fn close_here(self) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once, as the value itself is never dropped.
        drop(unsafe { ManuallyDrop::take(&mut this.0) });
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

/// Stops the socket from receiving.
fn stop(fd: BorrowedFd<'_>) {
    // SAFETY: a system call without pointers. It fails for a socket that is not connected any
    // more, to which nothing comes either.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
}

/// This side's end of a UNIX socket that carries descriptors.
#[derive(Debug)]
pub struct PeerSocket(OwnedFd);

impl PeerSocket {
    pub(super) fn new(fd: OwnedFd) -> PeerSocket {
        PeerSocket(fd)
    }
}

impl PeerSocket {
    /// Ends the direction to the peer, which sees that.
    pub fn shut_write(&self) {
        // SAFETY: a system call without pointers. It fails for a socket that is not connected any
        // more.
        unsafe { libc::shutdown(self.as_fd().as_raw_fd(), libc::SHUT_WR) };
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
            // No caller is left, and the socket accepts no more.
            Some(libc::EINVAL | libc::EAGAIN) => drop(fd),
            // Callers are left, but this process has no descriptor for them.
            _ => close_elsewhere(fd),
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::super::unix::{
        connect_abstract, listen_abstract, pair, recv_with_fds, send_with_fds,
    };
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
    fn another_thread_closes_slow_descriptors() {
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
