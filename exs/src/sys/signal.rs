//! Signals held back before a thread waits, so that none is missed.
//!
//! A handler that runs between the last poll of a queue and the sleep would not end the sleep. So
//! the thread blocks the signals before that poll. The system call that sleeps (ppoll(2), or
//! epoll_pwait(2) where the sleep is long) lets them in and then ends with EINTR.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use super::note_calls;

/// Signals raised by the thread's own faults. To block them would end the process, where a
/// handler may have a remedy.
const OWN_FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Blocks the calling thread's signals while it lives.
pub struct HeldSignals {
    before: libc::sigset_t,
    /// A signal mask belongs to one thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl HeldSignals {
    /// Blocks the signals.
    pub fn new() -> HeldSignals {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: fills the set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        for signal in OWN_FAULTS {
            // SAFETY: a set that was filled above, and numbers of signals.
            unsafe { libc::sigdelset(all.as_mut_ptr(), signal) };
        }
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // This call, and the later call that restores the mask.
        note_calls(2);
        // SAFETY: two sets, the first one filled. It fails only for an unknown `how`.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: filled by the call above.
        let before = unsafe { before.assume_init() };
        HeldSignals { before, _not_send: std::marker::PhantomData }
    }

    /// The signals that the thread holds back by itself.
    pub(super) fn before(&self) -> &libc::sigset_t {
        &self.before
    }

    /// Lets in the signals that are pending.
    ///
    /// # Errors
    /// `Interrupted` if a handler has run.
    pub(super) fn let_in(&self) -> io::Result<()> {
        poll(&mut [], Some(Duration::ZERO), Some(self)).map(drop)
    }

    /// Returns true if the program has a handler for one of the signals that are held back.
    pub(super) fn have_handler(&self) -> bool {
        let held = |n: &libc::c_int| !OWN_FAULTS.contains(n) && !member(&self.before, *n);
        (1..=libc::SIGRTMAX()).filter(held).any(has_handler)
    }

    /// Returns true if a signal is pending whose handler would have run without this block.
    pub fn pending(&self) -> bool {
        let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
        note_calls(1);
        // SAFETY: fills the set.
        unsafe { libc::sigpending(pending.as_mut_ptr()) };
        // SAFETY: filled by the call above.
        let pending = unsafe { pending.assume_init() };
        (1..=libc::SIGRTMAX())
            .any(|n| member(&pending, n) && !member(&self.before, n) && handled(n))
    }
}

impl Default for HeldSignals {
    fn default() -> HeldSignals {
        HeldSignals::new()
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // SAFETY: the kernel filled the set. Handlers of pending signals run now.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut())
        };
    }
}

fn member(set: &libc::sigset_t, signal: libc::c_int) -> bool {
    // SAFETY: reads a set that is initialised.
    unsafe { libc::sigismember(std::ptr::from_ref(set), signal) == 1 }
}

/// Returns true if the signal interrupts. A signal that is ignored, by intent or by default, does
/// not. A signal that ends the process counts as handled, so that it gets through.
fn handled(signal: libc::c_int) -> bool {
    let quiet = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT].contains(&signal);
    match action(signal) {
        None | Some(libc::SIG_IGN) => false,
        Some(libc::SIG_DFL) => !quiet,
        Some(_) => true,
    }
}

/// Returns true if the program has a handler for the signal.
fn has_handler(signal: libc::c_int) -> bool {
    !matches!(action(signal), None | Some(libc::SIG_IGN | libc::SIG_DFL))
}

/// What a signal does: SIG_IGN, SIG_DFL, or a handler. None: there is no such signal.
fn action(signal: libc::c_int) -> Option<libc::sighandler_t> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: changes nothing, and fills the structure.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: filled by the call above, which succeeded.
    Some(unsafe { action.assume_init() }.sa_sigaction)
}

/// Sleeps until the descriptor is readable (true) or the time is up (false). `timeout` None: no
/// limit. Lets in the signals that `held` holds back.
///
/// # Errors
/// `Interrupted` if a signal handler ran: poll(2) is never restarted.
pub fn wait_readable(
    fd: RawFd,
    timeout: Option<Duration>,
    held: Option<&HeldSignals>,
) -> io::Result<bool> {
    poll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], timeout, held)
}

/// As [`wait_readable`], for several descriptors: true if one is readable.
///
/// # Errors
/// As [`wait_readable`].
pub fn wait_any_readable(
    fds: &[RawFd],
    timeout: Option<Duration>,
    held: Option<&HeldSignals>,
) -> io::Result<bool> {
    let pollfd = |&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    poll(&mut fds.iter().map(pollfd).collect::<Vec<_>>(), timeout, held)
}

/// Says of each descriptor whether there is something to read: bytes, the end of the stream, or an
/// error. It does not wait. If the kernel cannot say, each counts as readable.
pub(crate) fn which_are_readable(fds: &[impl AsRawFd]) -> Vec<bool> {
    if fds.is_empty() {
        return Vec::new();
    }
    let events = libc::POLLIN | libc::POLLRDHUP;
    let pollfd = |fd: &_| libc::pollfd { fd: AsRawFd::as_raw_fd(fd), events, revents: 0 };
    let mut fds: Vec<_> = fds.iter().map(pollfd).collect();
    let asked = poll(&mut fds, Some(Duration::ZERO), None).is_ok();
    fds.iter().map(|fd| !asked || fd.revents != 0).collect()
}

/// What [`wait_ready`] found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// The descriptor is readable, or its peer has gone.
    pub(crate) readable: bool,
    /// It is writable, or broken.
    pub(crate) writable: bool,
    /// Its peer has gone, or another thread has closed it.
    pub(crate) hup: bool,
    /// The other descriptor is readable.
    pub(crate) bell: bool,
}

/// Sleeps until `fd` is readable (or writable, with `write`), or until `bell` is readable. Lets in
/// the signals that `held` holds back.
///
/// # Errors
/// As [`wait_readable`].
pub(crate) fn wait_ready(
    (fd, write): (RawFd, bool),
    bell: RawFd,
    timeout: Option<Duration>,
    held: Option<&HeldSignals>,
) -> io::Result<Found> {
    let events = libc::POLLIN | libc::POLLRDHUP | if write { libc::POLLOUT } else { 0 };
    let mut fds = [
        libc::pollfd { fd, events, revents: 0 },
        libc::pollfd { fd: bell, events: libc::POLLIN, revents: 0 },
    ];
    poll(&mut fds, timeout, held)?;
    let has = |bits: libc::c_short| fds[0].revents & bits != 0;
    let hup = has(libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP | libc::POLLNVAL);
    Ok(Found {
        readable: hup || has(libc::POLLIN),
        writable: has(libc::POLLOUT | libc::POLLHUP | libc::POLLERR),
        hup,
        bell: fds[1].revents != 0,
    })
}

fn poll(
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
    held: Option<&HeldSignals>,
) -> io::Result<bool> {
    let ts = timeout.map(|t| libc::timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    let ts = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let mask = held.map_or(std::ptr::null(), |h| &raw const h.before);
    let count = libc::nfds_t::try_from(fds.len()).unwrap_or(libc::nfds_t::MAX);
    note_calls(1);
    // SAFETY: a slice of that many pollfds, and a timespec and a signal mask (or null), all alive
    // for the call; a null mask leaves the thread's own. No slice has more elements than an
    // nfds_t counts.
    match unsafe { libc::ppoll(fds.as_mut_ptr(), count, ts, mask) } {
        n if n < 0 => Err(io::Error::last_os_error()),
        n => Ok(n > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{EpollSet, EventFd, take_epoll_events};
    use std::os::fd::{AsFd, AsRawFd};

    extern "C" fn nothing(_: libc::c_int) {}

    fn raise(signal: libc::c_int) {
        // SAFETY: takes no pointers.
        let me = unsafe { libc::pthread_self() };
        // SAFETY: sends this thread a signal that has a handler, or is ignored.
        unsafe { libc::pthread_kill(me, signal) };
    }

    #[test]
    fn a_signal_before_the_sleep_ends_the_sleep() {
        // SAFETY: installs a handler that does nothing, for a signal that no other test
        // of this crate uses.
        unsafe { libc::signal(libc::SIGRTMIN() + 3, nothing as *const () as libc::sighandler_t) };
        let fd = EventFd::new().unwrap();
        let held = HeldSignals::new();
        assert!(!held.pending());
        raise(libc::SIGRTMIN() + 3);
        assert!(held.pending());
        let slept = wait_readable(fd.as_raw_fd(), None, Some(&held));
        assert_eq!(slept.unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert!(!held.pending(), "its handler has run");
        raise(libc::SIGRTMIN() + 3);
        let set = EpollSet::new(&[fd.as_raw_fd()]).unwrap();
        let long = Duration::from_secs(600);
        let slept = take_epoll_events(set.as_fd().as_raw_fd(), long, Some(&held));
        assert_eq!(slept.unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert!(!held.pending() && held.have_handler());
    }

    #[test]
    fn an_ignored_signal_does_not_interrupt() {
        let fd = EventFd::new().unwrap();
        let held = HeldSignals::new();
        raise(libc::SIGURG);
        assert!(!held.pending());
        let slept = wait_readable(fd.as_raw_fd(), Some(Duration::from_millis(1)), Some(&held));
        assert!(!slept.unwrap());
        let set = EpollSet::new(&[fd.as_raw_fd()]).unwrap();
        raise(libc::SIGURG);
        let moment = Duration::from_millis(1);
        let slept = take_epoll_events(set.as_fd().as_raw_fd(), moment, Some(&held));
        assert!(slept.unwrap().is_empty());
        fd.signal();
        let found = take_epoll_events(set.as_fd().as_raw_fd(), moment, Some(&held));
        assert_eq!(found.unwrap(), [(0, libc::EPOLLIN.cast_unsigned())]);
    }
}
