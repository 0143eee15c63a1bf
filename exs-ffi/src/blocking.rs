//! Calls without a queue: they post the same operation on a private queue, and wait.
//!
//! A signal ends the wait: the call cancels the operation, which takes a bounded time, and the
//! event reports what had been moved by then. If nothing was moved, the call fails with EINTR. So
//! a signal never loses a byte.

use std::ffi::c_int;
use std::time::Duration;

use exs::__ffi as raw;
use exs::{Error, Event, EventQueue, Socket, Token};

use crate::error::{Fail, Result};

/// Most bytes that one call moves, so that an int can hold their number. Linux has the same
/// limit.
pub(crate) const MOST: usize = 0x7fff_f000;

/// The token of an operation that is alone on its queue.
pub(crate) const TOKEN: Token = Token(0);

/// How long a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// O_NONBLOCK, MSG_DONTWAIT: not at all.
    None,
    /// SO_SNDTIMEO, SO_RCVTIMEO: EAGAIN after that.
    Limited(Duration),
    /// For as long as it takes.
    Endless,
    /// Not even a signal ends it: the operation is bounded in time by itself.
    Deaf,
}

/// Posts on a private queue, and waits for the operation's event.
pub(crate) fn run(
    socket: &Socket,
    patience: Patience,
    post: impl FnOnce(&EventQueue) -> Result<()>,
) -> Result<Event> {
    // If the objects for waiting cannot be made, the call must fail before the operation has the
    // memory.
    run_on(raw::private_queue(socket)?, socket, patience, post)
}

/// The same, on this private queue.
pub(crate) fn run_on(
    queue: EventQueue,
    socket: &Socket,
    patience: Patience,
    post: impl FnOnce(&EventQueue) -> Result<()>,
) -> Result<Event> {
    let result = post(&queue).and_then(|()| wait(socket, &queue, patience));
    raw::keep_private_queue(queue);
    result
}

/// Waits for the event of the queue's one operation.
fn wait(socket: &Socket, queue: &EventQueue, patience: Patience) -> Result<Event> {
    let timeout = match patience {
        Patience::None => Some(Duration::ZERO),
        Patience::Limited(t) => Some(t),
        Patience::Endless | Patience::Deaf => None,
    };
    let mut events = Vec::with_capacity(1);
    let given_up = if patience == Patience::Deaf {
        None
    } else {
        let mut dequeue = |timeout| raw::dequeue_of(queue, socket, &mut events, timeout);
        // A leader that the kernel does not schedule for the whole limit takes nothing from the
        // devices. Data that have arrived count, as they do in kernel sockets, so the caller looks
        // once itself before it cancels the operation.
        let first = dequeue(timeout);
        let found = match (patience, &first) {
            (Patience::Limited(_), Ok(0)) => dequeue(Some(Duration::ZERO)),
            _ => first,
        };
        match found {
            Ok(0) => Some(libc::EAGAIN),
            Ok(_) => None,
            Err(Error::Interrupted) => Some(libc::EINTR),
            // A private queue has no other errors. If it had one, the operation would still hold
            // the memory, and no call may return then.
            Err(_) => None,
        }
    };
    if given_up.is_some() {
        raw::cancel_on(socket, queue);
    }
    let event = loop {
        if let Some(event) = events.pop() {
            break event;
        }
        if let Ok(event) = queue.next() {
            break event;
        }
    };
    match given_up {
        Some(errno) if event.error().is_some_and(Error::is_cancelled) && event.bytes() == 0 => {
            Err(refusal(errno))
        }
        _ => Ok(event),
    }
}

/// Returns the error of a call that moved nothing.
pub(crate) fn refusal(errno: c_int) -> Fail {
    if errno == libc::EINTR {
        Fail::fixed(errno, "a signal arrived before any byte was moved")
    } else {
        Fail::fixed(errno, "the call would have to wait")
    }
}

/// Returns the result of a call that moves bytes: their number, even if the operation then
/// failed.
pub(crate) fn moved(event: Event) -> Result<c_int> {
    let n = event.bytes();
    if n == 0 {
        event.into_result()?;
    }
    Ok(c_int::try_from(n).unwrap_or(c_int::MAX))
}
