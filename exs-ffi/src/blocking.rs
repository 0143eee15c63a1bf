//! Calls without a queue: they post the same operation on a queue of their own, and wait.
//!
//! A signal ends the wait: the call cancels the operation, which takes a bounded time, and the event
//! says how many bytes were moved by then. If none were, the call fails with EINTR. So no byte is
//! lost to a signal.

use std::cell::RefCell;
use std::ffi::c_int;
use std::time::Duration;

use exs::{Error, Event, EventQueue, Socket, Token, raw};

use crate::error::{Fail, Result};

/// The most bytes that one call moves, so that an int can hold their number; the same as in Linux.
pub(crate) const MOST: usize = 0x7fff_f000;

/// The token of an operation that is alone in its queue.
pub(crate) const TOKEN: Token = Token(0);

thread_local! {
    /// Queues for this thread's calls.
    static QUEUES: RefCell<Vec<EventQueue>> = const { RefCell::new(Vec::new()) };
}

/// How long a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// O_NONBLOCK, MSG_DONTWAIT: not at all.
    None,
    /// SO_SNDTIMEO, SO_RCVTIMEO: EAGAIN after that.
    Limited(Duration),
    /// For as long as it takes.
    Endless,
    /// Until the operation ends, even after a signal: the operation itself is bounded in time.
    Deaf,
}

/// Posts on a private queue, and waits for the operation's event.
pub(crate) fn run(
    socket: &Socket,
    patience: Patience,
    post: impl FnOnce(&EventQueue) -> Result<()>,
) -> Result<Event> {
    // The wait may fail to get what it needs. It must fail before the operation has the memory.
    raw::prepare_to_wait()?;
    let kept = QUEUES.try_with(|q| q.borrow_mut().pop()).ok().flatten();
    let queue = match kept {
        Some(queue) => queue,
        None => EventQueue::new(1)?,
    };
    let result = post(&queue).and_then(|()| wait(socket, &queue, patience));
    if queue.outstanding() == 0 {
        let _ = QUEUES.try_with(|q| q.borrow_mut().push(queue));
    }
    result
}

/// The event of the one operation of the queue.
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
        match raw::dequeue_exact(queue, &mut events, 1, 1, timeout) {
            Ok(0) => Some(libc::EAGAIN),
            Ok(_) => None,
            Err(Error::Interrupted) => Some(libc::EINTR),
            // A queue of the library gives no other error. If it did, the operation would still have
            // the memory, and the call must not return.
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

/// The error of a call whose wait has ended without a result.
pub(crate) fn refusal(errno: c_int) -> Fail {
    if errno == libc::EINTR {
        Fail::fixed(errno, "a signal came before anything was moved")
    } else {
        Fail::fixed(errno, "the call would have to wait")
    }
}

/// The result of a call: the number of bytes moved, even if it failed after them.
pub(crate) fn moved(event: Event) -> Result<c_int> {
    let n = event.bytes();
    if n == 0 {
        event.into_result()?;
    }
    Ok(c_int::try_from(n).unwrap_or(c_int::MAX))
}
