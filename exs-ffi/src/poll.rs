//! Readiness: exs_poll, connects that nobody waits for, and descriptors that poll(2)
//! is to be used on.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use exs::{Error, EventKind, EventQueue, Interest, QueueOptions, Readiness, Token, WaitPolicy};

use crate::abi::*;
use crate::blocking::{self, Patience, TOKEN, refusal};
use crate::error::{Fail, Result, border};
use crate::event::{Call, revents};
use crate::ptr::Out;
use crate::sockets::{self, Entry, Target};
use crate::{kernel, late, queues, watch};

fn interest(events: c_int) -> Result<Interest> {
    if events & !(EXS_POLLIN | EXS_POLLOUT) != 0 || events == 0 {
        return Err(Fail::fixed(
            libc::EINVAL,
            "exs_poll waits for EXS_POLLIN, EXS_POLLOUT, or both",
        ));
    }
    Ok(Interest { readable: events & EXS_POLLIN != 0, writable: events & EXS_POLLOUT != 0 })
}

/// `exs_poll`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_poll(
    place: Out<Pollfd>,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
) -> c_int {
    border(|| {
        if flags != 0 {
            return Err(Fail::fixed(libc::EINVAL, "exs_poll has no flags"));
        }
        let mut p = place.read()?;
        let (fd, events) = (p.exs_pfd_fd, p.exs_pfd_events);
        let want = interest(events)?;
        let target = sockets::find(fd)?;
        if let Some(q) = queues::way(queue)? {
            let extra = u16::try_from(events).unwrap_or(0);
            let call = Call { extra, ..Call::new(EXS_EVT_POLL, fd) };
            let token = Token(ahandle as u64);
            return match target {
                Target::Exs(entry) => {
                    entry.socket.poll(&call.on(&q.queue, place.name()), token, want)?;
                    Ok(0)
                }
                Target::Kernel | Target::File => {
                    let answer = kernel::Answer { call, queue: &q, place: place.name(), token };
                    kernel::poll(fd, want, &answer)
                }
            };
        }
        p.exs_pfd_revents = match target {
            Target::Exs(entry) => {
                let post = |q: &EventQueue| Ok(entry.socket.poll(q, TOKEN, want)?);
                let found = blocking::run(&entry.socket, Patience::Endless, post)?;
                let ready = found.readiness();
                found.into_result()?;
                revents(ready, events)
            }
            Target::Kernel | Target::File => poll_now(fd, events)?,
        };
        place.write(p)?;
        Ok(1)
    })
}

/// poll(2) on one descriptor.
fn poll_now(fd: c_int, events: c_int) -> Result<c_int> {
    let mut pfd = libc::pollfd { fd, events: i16::try_from(events).unwrap_or(0), revents: 0 };
    // SAFETY: one pollfd that is alive for the call.
    if unsafe { libc::poll(&raw mut pfd, 1, -1) } < 0 {
        return Err(refusal(libc::EINTR));
    }
    Ok(c_int::from(pfd.revents) & (events | EXS_POLLERR | EXS_POLLHUP))
}

/// `exs_cancel`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_cancel(fd: c_int, flags: c_int, ahandle: AHandle) -> c_int {
    border(|| {
        let by_handle = flags & EXS_CAF_AHANDLE != 0;
        if flags & !(EXS_CAF_FILDES | EXS_CAF_AHANDLE) != 0 || flags == 0 {
            return Err(Fail::fixed(libc::EINVAL, "EXS_CAF_FILDES or EXS_CAF_AHANDLE"));
        }
        let token = Token(ahandle as u64);
        let n = match sockets::find(fd)? {
            Target::Exs(entry) => cancel(&entry, by_handle.then_some(token)),
            Target::Kernel | Target::File => kernel::cancel(fd, by_handle.then_some(token))?,
        };
        Ok(c_int::try_from(n).unwrap_or(c_int::MAX))
    })
}

/// Cancels the program's operations; of the library's own, only a connect, which the
/// program asked for.
fn cancel(entry: &Entry, token: Option<Token>) -> usize {
    let connecting = token.is_none() && entry.state().connecting;
    let n = late::cancel(entry, token, INNER.get().filter(|_| !connecting));
    if connecting {
        taken_by(entry);
    }
    n
}

// ---- The library's own operations -------------------------------------------
//
// A queue of the library's own takes the events of connects that nobody waits for, and
// of polls that make a descriptor ready. The watching thread reads it.

/// Connects that nobody waits for, polls of pollable sockets: token is the inode.
static INNER: OnceLock<EventQueue> = OnceLock::new();
/// Sockets that poll(2) is to be used on: while there are none, nobody pays for them.
static POLLABLE: AtomicUsize = AtomicUsize::new(0);

fn inner() -> Result<&'static EventQueue> {
    if let Some(q) = INNER.get() {
        return Ok(q);
    }
    let options = QueueOptions { depth: 1 << 24, wait: WaitPolicy::Notify };
    let q = EventQueue::with_options(&options)?;
    let q = INNER.get_or_init(|| q);
    watch::inner(q.as_raw_fd())?;
    Ok(q)
}

/// The watching thread: events of the library's own operations.
pub(crate) fn inner_events() {
    static ONE: Mutex<()> = Mutex::new(());
    let Some(queue) = INNER.get() else { return };
    // One thread at a time: SO_ERROR, which looks here too, must not overtake an event.
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut events = Vec::new();
    // Fails only for arguments that make no sense.
    let _ = queue.dequeue_into(&mut events, 0, usize::MAX, Some(Duration::ZERO));
    for event in events {
        let Some(entry) = sockets::by_inode(event.token().0) else { continue };
        if event.kind() == EventKind::Connect {
            let mut state = entry.state();
            state.connecting = false;
            state.error = event.error().map_or(0, Error::errno);
            drop(state);
            taken_by(&entry);
        } else if event.error().is_none() {
            signal(&entry, event.readiness());
        }
    }
}

/// A connect that is not waited for: EINPROGRESS.
pub(crate) fn connect(entry: &Entry, fd: c_int, addr: SocketAddr) -> Result<c_int> {
    let queue = inner()?;
    let mut state = entry.state();
    if state.connecting {
        return Err(Fail::fixed(libc::EALREADY, "the socket is connecting already"));
    }
    let call = Call::new(EXS_EVT_CONNECT, fd).on(queue, 0);
    entry.socket.connect(&call, Token(entry.inode()), addr)?;
    state.connecting = true;
    Err(Fail::fixed(libc::EINPROGRESS, "connecting: exs_poll says when it is over, SO_ERROR how"))
}

// A pollable socket's descriptor is readable while a byte waits in it, which our end has
// written. The byte is taken back before a receive or accept is posted, and written again
// as soon as there is (still) something.

/// Makes the descriptor of a socket tell poll(2) of its readiness, or no more.
pub(crate) fn set_pollable(entry: &Entry, fd: c_int, on: bool) -> Result<()> {
    if entry.pollable.swap(on, Ordering::AcqRel) == on {
        return Ok(());
    }
    if on {
        POLLABLE.fetch_add(1, Ordering::AcqRel);
        inner()?;
        taken_by(entry);
    } else {
        POLLABLE.fetch_sub(1, Ordering::AcqRel);
        unsignal(entry, fd);
    }
    Ok(())
}

/// A receive or an accept is about to be posted by this descriptor.
pub(crate) fn taking(entry: &Entry, fd: c_int) {
    if POLLABLE.load(Ordering::Relaxed) > 0 && entry.pollable.load(Ordering::Acquire) {
        unsignal(entry, fd);
    }
}

/// One has ended: there may be more.
pub(crate) fn taken_by(entry: &Entry) {
    if POLLABLE.load(Ordering::Relaxed) == 0 || !entry.pollable.load(Ordering::Acquire) {
        return;
    }
    let Some(queue) = INNER.get() else { return };
    // One poll at a time: the one before has told already, or tells what this would.
    exs::raw::cancel_on(&entry.socket, queue);
    let _ = entry.socket.poll(queue, Token(entry.inode()), Interest::READABLE);
}

/// The same, for an event of a socket that is known by its number.
pub(crate) fn taken(fd: c_int) {
    if POLLABLE.load(Ordering::Relaxed) > 0
        && let Ok(Target::Exs(entry)) = sockets::find(fd)
    {
        taken_by(&entry);
    }
}

/// Makes the program's end readable.
fn signal(entry: &Entry, ready: Readiness) {
    if !entry.pollable.load(Ordering::Acquire) || !(ready.readable || ready.error) {
        return;
    }
    if entry.signalled.swap(true, Ordering::AcqRel) {
        return;
    }
    let ours = entry.ours().as_raw_fd();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: sends one byte that is alive for the call. If it fails, the program's end is
    // closed, or so full that it is readable.
    unsafe { libc::send(ours, (&raw const SIGN).cast(), 1, flags) };
}

static SIGN: u8 = 1;

/// Takes back what was written there. It lies at the program's end, which is reached by
/// a copy of its number, once that is seen to be still the same socket's.
fn unsignal(entry: &Entry, fd: c_int) {
    if !entry.signalled.swap(false, Ordering::AcqRel) {
        return;
    }
    // SAFETY: takes no pointers.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return;
    }
    // SAFETY: just made, and nobody else's.
    let own = unsafe { OwnedFd::from_raw_fd(copy) };
    if sockets::stat(copy).is_ok_and(|st| st.st_ino == entry.inode()) {
        let mut bytes = [0u8; 16];
        let (to, flags) = (bytes.as_mut_ptr().cast(), libc::MSG_DONTWAIT);
        // SAFETY: room for 16 bytes; there may be none.
        unsafe { libc::recv(own.as_raw_fd(), to, bytes.len(), flags) };
    }
}
