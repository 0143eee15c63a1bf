//! The reactor: mio's poll, and the readiness that it found.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use crate::rnic::Ready;
use crate::sys::{HeldSignals, MOST_EPOLL_EVENTS, note_calls, take_epoll_events, wait_readable};

/// mio's poll, and the readiness that the engine has not handled yet.
pub(super) struct Reactor {
    poll: mio::Poll,
    events: mio::Events,
    /// (token, readiness), in the order in which the kernel reported them.
    pub(super) ready: Vec<(usize, Ready)>,
    /// The turns of the engine since the last poll.
    pub(super) unseen: u32,
    /// The last answer of the kernel was full, so more descriptors may be ready.
    full: bool,
}

/// A sleep with held signals that is at least as long may end a millisecond late. In return, it is a
/// sleep in epoll_pwait(2), which does not wake the background thread that sleeps there, too.
const LONG_SLEEP: Duration = Duration::from_millis(20);

/// The token of the waker. All other tokens belong to devices and kernel sockets.
pub(super) const WAKE: mio::Token = mio::Token(usize::MAX);

impl Reactor {
    pub(super) fn new() -> io::Result<Reactor> {
        let (events, ready) = (mio::Events::with_capacity(256), Vec::with_capacity(256));
        Ok(Reactor { poll: mio::Poll::new()?, events, ready, unseen: 0, full: false })
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

    /// As `poll`, but lets in held signals during the sleep.
    pub(super) fn poll_letting_in(
        &mut self,
        timeout: Duration,
        held: Option<&HeldSignals>,
    ) -> io::Result<()> {
        if held.is_some() && timeout >= LONG_SLEEP {
            self.unseen = 0;
            let taken = take_ready(self.poll.as_raw_fd(), timeout, held)?;
            self.full = taken.full;
            self.ready.extend(taken.ready);
            return Ok(());
        }
        if held.is_some() && !timeout.is_zero() {
            wait_readable(self.poll.as_raw_fd(), Some(timeout), held)?;
            return self.poll(Some(Duration::ZERO));
        }
        self.poll(Some(timeout))
    }

    /// True if more descriptors may be ready than the last answer of the kernel had room for. The
    /// kernel tells a program that waits for the reactor itself nothing of those that are left.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    fn note(&mut self) {
        let mut told = 0;
        for e in &self.events {
            told += 1;
            if e.token() == WAKE {
                continue;
            }
            let ready = Ready {
                hup: e.is_read_closed() || e.is_write_closed() || e.is_error(),
                readable: e.is_readable() || e.is_read_closed() || e.is_error(),
                writable: e.is_writable() || e.is_write_closed() || e.is_error(),
            };
            self.ready.push((e.token().0, ready));
        }
        self.full = told == self.events.capacity();
    }
}

/// What a thread has taken from a reactor that another thread may have.
#[derive(Debug, Default)]
pub(super) struct TakenReady {
    pub(super) ready: Vec<(usize, Ready)>,
    /// There was no room for more, so more descriptors may be ready.
    full: bool,
}

/// Takes what has become ready from a reactor with this descriptor. Sleeps for `timeout` at most until
/// there is something, and lets in held signals meanwhile.
pub(super) fn take_ready(
    reactor: RawFd,
    timeout: Duration,
    held: Option<&HeldSignals>,
) -> io::Result<TakenReady> {
    let found = take_epoll_events(reactor, timeout, held)?;
    let full = found.len() == MOST_EPOLL_EVENTS;
    let news = found.into_iter().filter(|(token, _)| *token != WAKE.0);
    Ok(TakenReady { ready: news.map(|(token, bits)| (token, ready_of(bits))).collect(), full })
}

/// Logs an error of the reactor, for a thread of the library, which has no caller to return it to. An
/// interruption by a signal is no error.
pub(super) fn warn_of_error<T>(asked: &io::Result<T>) {
    if let Err(e) = asked
        && e.kind() != io::ErrorKind::Interrupted
    {
        crate::trace::warn!("the reactor failed: {e}");
    }
}

/// What these bits of an epoll event say, as mio reads them.
fn ready_of(bits: u32) -> Ready {
    let has = |bit: libc::c_int| bits & bit.cast_unsigned() != 0;
    let hup = has(libc::EPOLLHUP | libc::EPOLLERR) || has(libc::EPOLLIN) && has(libc::EPOLLRDHUP);
    Ready {
        hup,
        readable: has(libc::EPOLLIN | libc::EPOLLPRI) || hup,
        writable: has(libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR),
    }
}

impl AsRawFd for Reactor {
    fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use mio::unix::SourceFd;
    use mio::{Interest, Token};

    use super::*;
    use crate::sys::EventFd;

    #[test]
    fn another_thread_takes_what_is_ready_once() {
        let reactor = Reactor::new().unwrap();
        let bell = EventFd::new().unwrap();
        let source = &mut SourceFd(&bell.as_raw_fd());
        reactor.registry().register(source, Token(7), Interest::READABLE).unwrap();
        let waker = mio::Waker::new(reactor.registry(), WAKE).unwrap();
        let take = || take_ready(reactor.as_raw_fd(), Duration::ZERO, None).unwrap().ready;
        assert_eq!(take(), []);
        bell.signal();
        waker.wake().unwrap();
        let ready = Ready { hup: false, readable: true, writable: false };
        assert_eq!(take(), [(7, ready)]);
        assert_eq!(take(), []);
        assert!(take_ready(bell.as_raw_fd(), Duration::ZERO, None).is_err());
    }

    #[test]
    fn events_say_what_mio_reads_from_them() {
        let says = |bits: libc::c_int| {
            let Ready { hup, readable, writable } = ready_of(bits.cast_unsigned());
            (hup, readable, writable)
        };
        assert_eq!(says(libc::EPOLLIN), (false, true, false));
        assert_eq!(says(libc::EPOLLOUT), (false, false, true));
        assert_eq!(says(libc::EPOLLIN | libc::EPOLLRDHUP), (true, true, false));
        assert_eq!(says(libc::EPOLLHUP), (true, true, true));
        assert_eq!(says(libc::EPOLLERR), (true, true, true));
    }

    #[test]
    fn a_full_answer_is_not_the_whole_answer() {
        let mut reactor = Reactor::new().unwrap();
        let bells: Vec<_> = (0..300).map(|_| EventFd::new().unwrap()).collect();
        for (n, bell) in bells.iter().enumerate() {
            let source = &mut SourceFd(&bell.as_raw_fd());
            reactor.registry().register(source, Token(n), Interest::READABLE).unwrap();
            bell.signal();
        }
        let mut found = Vec::new();
        for full in [true, false, false] {
            reactor.poll(Some(Duration::ZERO)).unwrap();
            assert_eq!(reactor.is_full(), full);
            found.extend(reactor.ready.drain(..).map(|(token, _)| token));
        }
        found.sort_unstable();
        assert!(found.into_iter().eq(0..300));
    }
}
