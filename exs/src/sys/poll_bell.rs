//! A bell at the descriptor that another process polls.
//!
//! A process that polls a descriptor of its own hands the other end of its socket pair to a peer.
//! The peer sends a message there, and the descriptor becomes readable: no thread stands between.
//! The pair is of the type SOCK_SEQPACKET. A send to it has a flag against waiting, and takes no
//! lock that is held across a page fault.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::doorbell::unix_socket;
use super::foreign::ForeignFd;
use super::note_calls;

/// Most bytes of a ring.
const MOST: usize = 4096;
static BYTES: [u8; MOST] = [0; MOST];

/// The end of a peer's socket pair.
#[derive(Debug)]
pub struct PollBell(ForeignFd);

impl PollBell {
    /// Adopts an end that another process has sent.
    ///
    /// # Errors
    /// `InvalidInput` if the descriptor is no UNIX socket of the type SOCK_SEQPACKET: a send on
    /// another kind could wait.
    pub fn adopt(fd: ForeignFd) -> io::Result<PollBell> {
        unix_socket(fd, libc::SOCK_SEQPACKET).map(PollBell)
    }

    /// Rings by a message of `len` bytes, 4096 at most, which FIONREAD counts at the other end.
    /// Returns false if the owner has gone or leaves no room.
    pub fn ring(&self, len: usize) -> bool {
        let bytes = &BYTES[..len.min(MOST)];
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let fd = self.0.as_fd().as_raw_fd();
        note_calls(1);
        // SAFETY: the bytes live as long as the program.
        let n = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
        n >= 0
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::sys::{WakeSocket, pair, recv_with_fds, send_with_fds};
    use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

    fn passed(fd: BorrowedFd<'_>) -> ForeignFd {
        let (a, b) = pair().unwrap();
        send_with_fds(a.as_fd(), b"x", &[fd]).unwrap();
        recv_with_fds(b.as_fd(), &mut [0]).unwrap().1.unwrap().remove(0)
    }

    fn ends() -> [OwnedFd; 2] {
        let mut fds = [0; 2];
        // SAFETY: room for two descriptors.
        let made =
            unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, fds.as_mut_ptr()) };
        assert_eq!(made, 0);
        // SAFETY: just made, with no other owner.
        fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn there(fd: &OwnedFd) -> libc::c_int {
        let mut n: libc::c_int = -1;
        // SAFETY: an int that is alive for the call.
        assert_eq!(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut n) }, 0);
        n
    }

    #[test]
    fn a_ring_shows_its_length_and_never_waits() {
        let [theirs, ours] = ends();
        let bell = PollBell::adopt(passed(ours.as_fd())).unwrap();
        assert!(bell.ring(64) && bell.ring(1 << 20));
        assert_eq!(there(&theirs), 64 + 4096);
        let rings = (0..1 << 20).take_while(|_| bell.ring(0)).count();
        assert!(rings < 1 << 20, "the room is limited");
        drop(theirs);
        assert!(!bell.ring(1), "it is gone");
    }

    #[test]
    fn a_descriptor_that_could_wait_is_no_bell() {
        let (_, pipe) = std::io::pipe().unwrap();
        let stream = WakeSocket::new().unwrap();
        for fd in [pipe.as_fd(), stream.button()] {
            assert!(PollBell::adopt(passed(fd)).is_err());
        }
    }
}
