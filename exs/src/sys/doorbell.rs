//! A socket that another process writes to in order to wake this one.
//!
//! An eventfd has a flaw here: it is one open file for both processes, and so are its flags. Its
//! owner can clear O_NONBLOCK and set the counter to its maximum, and then the write(2) of the
//! ringing process waits as long as the owner likes. A pipe has a mutex that its other end can
//! hold. A send(2) on a UNIX socket has a flag of its own against waiting, and takes no lock that
//! is held across a page fault.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::addr::socklen;
use super::foreign::ForeignFd;
use super::note_calls;

/// Most rings left unread. A ring costs its reader no call while the kernel has room for the next
/// ones.
const UNREAD: u32 = 32;

fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

/// The owner's side: readable after a ring. The reactor must watch it edge-triggered, because it
/// is emptied only now and then.
#[derive(Debug)]
pub struct WakeSocket {
    bell: OwnedFd,
    button: OwnedFd,
    heard: u32,
}

impl WakeSocket {
    /// Makes a doorbell.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new() -> io::Result<WakeSocket> {
        let mut fds = [0; 2];
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
        // SAFETY: descriptors just made, which have no other owner.
        let [bell, button] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(WakeSocket { bell, button, heard: 0 })
    }

    /// Returns the descriptor that another process needs to ring.
    pub fn button(&self) -> BorrowedFd<'_> {
        self.button.as_fd()
    }

    /// Counts a ring, or a wake-up that may have been one. Empties the bell before it is full.
    pub fn note(&mut self) {
        self.heard += 1;
        if self.heard >= UNREAD {
            self.heard = 0;
            self.empty();
        }
    }

    /// Takes all rings out.
    pub fn empty(&self) {
        let mut rings = [0u8; 512];
        loop {
            let (fd, at) = (self.bell.as_raw_fd(), rings.as_mut_ptr().cast());
            note_calls(1);
            // SAFETY: an array of that length, exclusively ours.
            let n = unsafe { libc::recv(fd, at, rings.len(), libc::MSG_DONTWAIT) };
            // A peer that rings all the time is left for the next call.
            if usize::try_from(n).unwrap_or(0) < rings.len() {
                return;
            }
        }
    }
}

impl AsRawFd for WakeSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
}

/// The side that rings the bell of another process.
#[derive(Debug)]
pub struct Button(ForeignFd);

impl Button {
    /// Adopts a button that another process has sent.
    ///
    /// # Errors
    /// `InvalidInput` if the descriptor is no UNIX stream socket: a send on another kind could
    /// wait. The kernel answers these questions without asking the object behind the descriptor.
    pub fn adopt(fd: ForeignFd) -> io::Result<Button> {
        unix_socket(fd, libc::SOCK_STREAM).map(Button)
    }

    /// Closes a descriptor that was sent for this button. One of the same socket is closed here: that ends
    /// nothing, as this value keeps the socket open.
    pub fn close_copy(&self, fd: ForeignFd) {
        let own = cookie(self.0.as_fd());
        match own.is_ok() && own.ok() == cookie(fd.as_fd()).ok() {
            true => fd.close_here(),
            false => drop(fd),
        }
    }

    /// Rings. Returns false if the owner has taken the bell down or leaves no room.
    pub fn ring(&self) -> bool {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        note_calls(1);
        // SAFETY: the byte lives as long as the program.
        let n = unsafe { libc::send(self.0.as_fd().as_raw_fd(), [1u8].as_ptr().cast(), 1, flags) };
        n == 1
    }
}

/// The descriptor, if it is a UNIX socket of the type `kind`.
///
/// # Errors
/// `InvalidInput` if it is another file. The kernel answers without asking the object behind the
/// descriptor.
pub(super) fn unix_socket(fd: ForeignFd, kind: libc::c_int) -> io::Result<ForeignFd> {
    let is = |name, wanted| option(fd.as_fd(), name).is_ok_and(|value| value == wanted);
    if is(libc::SO_DOMAIN, libc::AF_UNIX) && is(libc::SO_TYPE, kind) {
        return Ok(fd);
    }
    Err(io::ErrorKind::InvalidInput.into())
}

fn option(fd: BorrowedFd<'_>, name: libc::c_int) -> io::Result<libc::c_int> {
    option_bytes(fd, name).map(libc::c_int::from_ne_bytes)
}

/// The number of a socket, which no other has (SO_COOKIE). Fails for other files.
fn cookie(fd: BorrowedFd<'_>) -> io::Result<u64> {
    option_bytes(fd, libc::SO_COOKIE).map(u64::from_ne_bytes)
}

fn option_bytes<const N: usize>(fd: BorrowedFd<'_>, name: libc::c_int) -> io::Result<[u8; N]> {
    let mut value = [0; N];
    let mut len = socklen(N);
    let (level, at) = (libc::SOL_SOCKET, value.as_mut_ptr().cast());
    // SAFETY: the kernel writes at most `len` bytes, those of the array.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, at, &raw mut len) })?;
    Ok(value)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::sys::{pair, recv_with_fds, send_with_fds, wait_readable};
    use std::time::Duration;

    fn passed(fd: BorrowedFd<'_>) -> ForeignFd {
        let (a, b) = pair().unwrap();
        send_with_fds(a.as_fd(), b"x", &[fd]).unwrap();
        recv_with_fds(b.as_fd(), &mut [0]).unwrap().1.unwrap().remove(0)
    }

    #[test]
    fn a_ring_shows_until_the_bell_is_emptied() {
        let mut bell = WakeSocket::new().unwrap();
        let button = Button::adopt(passed(bell.button())).unwrap();
        let rung = |bell: &WakeSocket| {
            wait_readable(bell.as_raw_fd(), Some(Duration::ZERO), None).unwrap()
        };
        assert!(!rung(&bell));
        (0..UNREAD).for_each(|_| assert!(button.ring()));
        assert!(rung(&bell));
        (0..UNREAD).for_each(|_| bell.note());
        assert!(!rung(&bell), "it was emptied");
    }

    /// The owner's tricks: no room, and an end that blocks. A ring waits for neither.
    #[test]
    fn a_ring_never_waits() {
        let bell = WakeSocket::new().unwrap();
        // SAFETY: a system call without pointers.
        check(unsafe { libc::fcntl(bell.button().as_raw_fd(), libc::F_SETFL, 0) }).unwrap();
        let button = Button::adopt(passed(bell.button())).unwrap();
        let rings = (0..1 << 20).take_while(|_| button.ring()).count();
        assert!(rings < 1 << 20, "the room is limited");
        bell.empty();
        assert!(button.ring(), "there is room again");
        drop(bell);
        assert!(!button.ring(), "it is gone");
    }

    #[test]
    fn a_descriptor_that_could_wait_is_no_button() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let (_, pipe) = std::io::pipe().unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let event = crate::sys::EventFd::new().unwrap();
        for fd in [file.as_fd(), pipe.as_fd(), tcp.as_fd(), event.as_fd()] {
            assert!(Button::adopt(passed(fd)).is_err());
        }
    }
}
