//! Readiness: exs_poll, exs_cancel, and connects without a waiting call.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::time::Duration;

use exs::__ffi::ProcessLock;
use exs::{Error, EventKind, EventQueue, Interest, QueueOptions, Token, WaitPolicy};

use crate::abi::*;
use crate::blocking::{self, Patience, TOKEN, refusal};
use crate::connect::Peer;
use crate::error::{Fail, Result, border};
use crate::event::{Call, revents};
use crate::pollable::{self, Plug};
use crate::ptr::Out;
use crate::sockets::{self, Entry, Target};
use crate::told::Dialled;
use crate::{kernel, late, queues, watch};

fn interest(events: c_int) -> Result<Interest> {
    if events & !(EXS_POLLIN | EXS_POLLOUT) != 0 || events == 0 {
        return Err(Fail::fixed(
            libc::EINVAL,
            "exs_poll waits for EXS_POLLIN, EXS_POLLOUT, or both",
        ));
    }
    Ok(Interest::default()
        .with_readable(events & EXS_POLLIN != 0)
        .with_writable(events & EXS_POLLOUT != 0))
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
                Target::Kernel(_) | Target::File => {
                    let answer = kernel::Answer { call, queue: q, place: place.name(), token };
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
            Target::Kernel(_) | Target::File => {
                exs::__ffi::kernel::send_kept();
                poll_now(fd, events)?
            }
        };
        place.write(p)?;
        Ok(1)
    })
}

/// Calls poll(2) on one descriptor.
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
            Target::Exs(entry) => late::cancel(&entry, by_handle.then_some(token), INNER.get()),
            Target::Kernel(_) | Target::File => kernel::cancel(fd, by_handle.then_some(token))?,
        };
        Ok(c_int::try_from(n).unwrap_or(c_int::MAX))
    })
}

// ---- The library's own operations -------------------------------------------
//
// A queue of the library's own takes the events of connects for which no call waits. The watching
// thread reads it.

/// The queue of these connects. The token is the socket's inode.
pub(crate) static INNER: OnceLock<EventQueue> = OnceLock::new();

/// Returns the queue; makes it if there is none.
pub(crate) fn inner() -> Result<&'static EventQueue> {
    static ONE: ProcessLock<()> = ProcessLock::new(());
    if let Some(q) = INNER.get() {
        return Ok(q);
    }
    let _one = ONE.lock();
    if let Some(q) = INNER.get() {
        return Ok(q);
    }
    let options = QueueOptions::default()
        .with_depth(1 << 24)
        .with_wait(WaitPolicy::Notify)
        .with_shard(Some(exs::__ffi::FIRST_SHARD));
    let q = exs::__ffi::queue_for_descriptors(&options)?;
    watch::inner(exs::__ffi::inner_fd(&q))?;
    Ok(INNER.get_or_init(|| q))
}

/// Handles the events of the library's own operations. The watching thread calls it.
pub(crate) fn inner_events() {
    static ONE: ProcessLock<()> = ProcessLock::new(());
    let Some(queue) = INNER.get() else { return };
    // One thread at a time: SO_ERROR, which also calls this, must not overtake an event.
    let _one = ONE.lock();
    let mut events = Vec::new();
    // It fails only for invalid arguments.
    let _ = queue.dequeue_into(&mut events, 0, usize::MAX, Some(Duration::ZERO));
    for event in events {
        let Some(entry) = sockets::by_inode(event.token().0) else { continue };
        debug_assert_eq!(event.kind(), EventKind::Connect);
        let mut state = entry.state();
        state.dialled = Dialled::Over;
        state.error = event.error().map_or(0, Error::errno);
        drop(state);
        pollable::unplug(&entry, Plug::Dialling);
    }
}

/// Starts a connect without waiting: EINPROGRESS.
pub(crate) fn connect(entry: &Entry, fd: c_int, to: &Peer) -> Result<c_int> {
    let queue = inner()?;
    let mut state = entry.state();
    if state.dialled == Dialled::Yet {
        return Err(Fail::fixed(libc::EALREADY, "the socket is connecting already"));
    }
    let call = Call::new(EXS_EVT_CONNECT, fd).on(queue, 0);
    to.connect_for_thread(&entry.socket, &call, Token(entry.inode()))?;
    state.dialled = Dialled::Yet;
    drop(state);
    // An earlier attempt may have left readiness there.
    pollable::refresh(entry, fd);
    pollable::plug(entry, fd, Plug::Dialling);
    pollable::found_nothing(entry);
    // The attempt may have ended already.
    if entry.state().dialled != Dialled::Yet {
        pollable::unplug(entry, Plug::Dialling);
    }
    Err(Fail::fixed(
        libc::EINPROGRESS,
        "connecting: exs_poll reports the end of the attempt, SO_ERROR its result",
    ))
}
