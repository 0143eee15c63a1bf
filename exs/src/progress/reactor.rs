//! The reactor: mio's poll, and the readiness that it found.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use crate::rnic::Ready;
use crate::sys::{HeldSignals, note_calls, wait_readable};

/// mio's poll, and the readiness that the engine has not handled yet.
pub(super) struct Reactor {
    poll: mio::Poll,
    events: mio::Events,
    /// (token, readiness), in the order in which the kernel reported them.
    pub(super) ready: Vec<(usize, Ready)>,
    /// The turns of the engine since the last poll.
    pub(super) unseen: u32,
}

/// The token of the waker. All other tokens belong to devices and kernel sockets.
pub(super) const WAKE: mio::Token = mio::Token(usize::MAX);

impl Reactor {
    pub(super) fn new() -> io::Result<Reactor> {
        let (events, ready) = (mio::Events::with_capacity(256), Vec::with_capacity(256));
        Ok(Reactor { poll: mio::Poll::new()?, events, ready, unseen: 0 })
    }

    pub(super) fn registry(&self) -> &mio::Registry {
        self.poll.registry()
    }

    /// Sleeps until a descriptor is ready, or until the waker or the timeout ends the sleep. Adds
    /// what it found to `ready`.
    pub(super) fn poll(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.unseen = 0;
        note_calls(1);
        self.poll.poll(&mut self.events, timeout)?;
        self.note();
        Ok(())
    }

    /// As `poll`, but lets in held signals during the sleep. It does not use epoll_pwait, which
    /// would end with EINTR for an ignored signal, too.
    pub(super) fn poll_letting_in(
        &mut self,
        timeout: Duration,
        held: Option<&HeldSignals>,
    ) -> io::Result<()> {
        if held.is_some() && !timeout.is_zero() {
            wait_readable(self.poll.as_raw_fd(), Some(timeout), held)?;
            return self.poll(Some(Duration::ZERO));
        }
        self.poll(Some(timeout))
    }

    fn note(&mut self) {
        for e in self.events.iter().filter(|e| e.token() != WAKE) {
            let ready = Ready {
                hup: e.is_read_closed() || e.is_write_closed() || e.is_error(),
                readable: e.is_readable() || e.is_read_closed() || e.is_error(),
                writable: e.is_writable() || e.is_write_closed() || e.is_error(),
            };
            self.ready.push((e.token().0, ready));
        }
    }
}

impl AsRawFd for Reactor {
    fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }
}
