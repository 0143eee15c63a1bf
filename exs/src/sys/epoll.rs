//! A set of descriptors as one descriptor, and a timer as a descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::{HeldSignals, note_calls};

/// An epoll instance: readable while one of its descriptors is.
#[derive(Debug)]
pub struct EpollSet(OwnedFd);

impl EpollSet {
    /// Makes a set of these descriptors.
    ///
    /// # Errors
    /// The kernel's: no descriptor is left (EMFILE), or too many sets lie in each other (ELOOP).
    pub fn new(fds: &[RawFd]) -> io::Result<EpollSet> {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just made, with no other owner.
        let set = EpollSet(unsafe { OwnedFd::from_raw_fd(fd) });
        for &fd in fds {
            let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 0 };
            control(&set.0, libc::EPOLL_CTL_ADD, fd, &mut event)?;
        }
        Ok(set)
    }
}

impl AsFd for EpollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes another descriptor of the file that this descriptor has open.
///
/// # Errors
/// The kernel's: no descriptor is left (EMFILE), or this one is not open (EBADF).
#[cfg(feature = "tokio")]
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just made, with no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Registers a descriptor with an epoll instance, edge-triggered, for reading. If the same file is
/// registered so with several instances, an event wakes one of those in which a thread waits: the one
/// that has been registered for the longest time.
///
/// # Errors
/// The kernel's: no memory is left (ENOMEM), or no room for registrations (ENOSPC).
pub fn watch_exclusively(epoll: &impl AsRawFd, fd: BorrowedFd<'_>, token: usize) -> io::Result<()> {
    let events = libc::EPOLLIN | libc::EPOLLET | libc::EPOLLEXCLUSIVE;
    let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: token as u64 };
    control(epoll, libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event)
}

/// Takes a descriptor out of an epoll instance, if it is there.
pub fn unwatch(epoll: &impl AsRawFd, fd: BorrowedFd<'_>) {
    let mut unused = libc::epoll_event { events: 0, u64: 0 };
    let _ = control(epoll, libc::EPOLL_CTL_DEL, fd.as_raw_fd(), &mut unused);
}

/// The most events that one call takes from an epoll instance.
pub const MOST_EPOLL_EVENTS: usize = 64;

/// Takes what an epoll instance has found: tokens, and bits of EPOLL*. Sleeps until there is
/// something, or until the time is up. Of the threads that sleep here, an event wakes one. Linux
/// takes the thread that came last.
///
/// Lets in the signals that `held` holds back. The kernel also ends this sleep where no handler ran:
/// for an ignored signal that was pending when the sleep began, and for a process that was stopped
/// and goes on. If the program has no handler, the call then returns without events.
///
/// # Errors
/// The kernel's: this is no epoll instance. `Interrupted` if a signal handler ran.
pub fn take_epoll_events(
    epoll: RawFd,
    timeout: Duration,
    held: Option<&HeldSignals>,
) -> io::Result<Vec<(usize, u32)>> {
    const MOST: u8 = 64;
    const _: () = assert!(MOST as usize == MOST_EPOLL_EVENTS, "the size of the buffer");
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST_EPOLL_EVENTS];
    if let Some(held) = held {
        held.let_in()?;
    }
    let mask = held.map_or(std::ptr::null(), |held| std::ptr::from_ref(held.before()));
    // The kernel counts milliseconds. The sleep is not shorter than asked.
    let millis = timeout.as_nanos().div_ceil(1_000_000);
    let millis = libc::c_int::try_from(millis).unwrap_or(libc::c_int::MAX);
    note_calls(1);
    // SAFETY: room for as many events as the call is told, and a signal mask or null, alive for the
    // call. A null mask leaves the thread's own.
    let n = unsafe { libc::epoll_pwait(epoll, events.as_mut_ptr(), MOST.into(), millis, mask) };
    let Ok(found) = usize::try_from(n) else {
        let error = io::Error::last_os_error();
        let none_ran = error.kind() == io::ErrorKind::Interrupted
            && held.is_some_and(|held| !held.have_handler());
        return if none_ran { Ok(Vec::new()) } else { Err(error) };
    };
    let token = |event: &libc::epoll_event| usize::try_from(event.u64).unwrap_or(usize::MAX);
    Ok(events[..found].iter().map(|event| (token(event), event.events)).collect())
}

fn control(
    epoll: &impl AsRawFd,
    what: libc::c_int,
    fd: RawFd,
    event: &mut libc::epoll_event,
) -> io::Result<()> {
    // SAFETY: an event that is alive for the call. A number that is no descriptor is an error.
    let rc = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), what, fd, std::ptr::from_mut(event)) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A timer of the kernel's: readable from its time on, until it is set again.
#[derive(Debug)]
pub struct TimerFd(OwnedFd);

impl TimerFd {
    /// Makes a timer that is not set.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<TimerFd> {
        // SAFETY: takes no pointers.
        let fd = unsafe {
            libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just made, with no other owner.
        Ok(TimerFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sets the timer: it becomes readable after this time.
    pub fn set(&self, after: Duration) {
        // A time of zero would stop it.
        let after = after.max(Duration::from_nanos(1));
        let value = libc::timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(after.subsec_nanos()),
        };
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = libc::itimerspec { it_interval: zero, it_value: value };
        note_calls(1);
        // SAFETY: a live timer, and a specification that is alive for the call. It fails for times
        // out of range only, which a Duration of whole seconds and nanoseconds is not.
        unsafe {
            libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const spec, std::ptr::null_mut());
        }
    }
}

impl AsRawFd for TimerFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::sys::{EventFd, wait_readable};

    fn readable(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
        wait_readable(fd.as_raw_fd(), Some(timeout), None).unwrap()
    }

    #[test]
    fn a_set_is_readable_while_one_of_its_descriptors_is() {
        let (a, b) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        let inner = EpollSet::new(&[a.as_raw_fd()]).unwrap();
        let set = EpollSet::new(&[inner.as_fd().as_raw_fd(), b.as_raw_fd()]).unwrap();
        assert!(!readable(set.as_fd(), Duration::ZERO));
        for fd in [&a, &b] {
            fd.signal();
            assert!(readable(set.as_fd(), Duration::ZERO));
            fd.drain();
            assert!(!readable(set.as_fd(), Duration::ZERO));
        }
        assert!(EpollSet::new(&[-1]).is_err());
    }

    #[test]
    fn a_timer_is_readable_from_its_time_on() {
        let timer = TimerFd::new().unwrap();
        let set = EpollSet::new(&[timer.as_raw_fd()]).unwrap();
        assert!(!readable(set.as_fd(), Duration::ZERO));
        timer.set(Duration::ZERO);
        assert!(readable(set.as_fd(), Duration::from_secs(60)));
        timer.set(Duration::from_secs(3600));
        assert!(!readable(set.as_fd(), Duration::ZERO));
    }
}
