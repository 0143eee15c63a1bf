//! An eventfd, and waiting on one descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::{HeldSignals, note_calls, wait_readable};

/// A counter in the kernel that can be polled: readable while it is not zero.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Makes an eventfd at zero, non-blocking, closed on exec.
    pub fn new() -> io::Result<EventFd> {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just made, with no other owner.
        Ok(EventFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes it readable.
    pub fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        note_calls(1);
        // SAFETY: reads 8 bytes from a live array. The only failure is a counter
        // at its maximum, which is readable already.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes it not readable.
    pub fn drain(&self) {
        let mut count = [0u8; 8];
        note_calls(1);
        // SAFETY: writes 8 bytes to a live array. EAGAIN means it was zero.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    /// Sleeps until it is readable (true) or the time is up (false). `timeout` None: no limit.
    ///
    /// # Errors
    /// `Interrupted` if a signal handler ran: poll(2) is never restarted.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        self.wait_letting_in(timeout, None)
    }

    /// As `wait`, and lets in the signals that `held` holds back.
    ///
    /// # Errors
    /// As `wait`.
    pub fn wait_letting_in(
        &self,
        timeout: Option<Duration>,
        held: Option<&HeldSignals>,
    ) -> io::Result<bool> {
        wait_readable(self.0.as_raw_fd(), timeout, held)
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eventfd_is_readable_between_signal_and_drain() {
        let e = EventFd::new().unwrap();
        assert!(!e.wait(Some(Duration::ZERO)).unwrap());
        e.signal();
        e.signal();
        assert!(e.wait(None).unwrap());
        e.drain();
        e.drain();
        assert!(!e.wait(Some(Duration::from_millis(1))).unwrap());
    }
}
