//! How calls without a queue report the end of a connection. As with TCP, one call reports its error:
//! the call that finds it first, or SO_ERROR. From then on receives find the end of the data, sends
//! fail with EPIPE, and there is no connection any more (ENOTCONN).
//!
//! Each operation with a queue has an event and an error of its own.

use std::ffi::c_int;

use exs::raw;

use crate::blocking::refusal;
use crate::error::{Fail, Result};
use crate::pollable;
use crate::sockets::Entry;

/// The state of a connect that no call waits for. The next connect reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialled {
    /// There is none, or a call has reported its end.
    #[default]
    Nothing,
    /// It is under way.
    Yet,
    /// It has ended, well or (SO_ERROR) not.
    Over,
}

/// True if this call is the first to report the break; `None`: the connection has not broken.
fn first(entry: &Entry) -> Option<bool> {
    raw::failure(&entry.socket)?;
    let mut state = entry.state();
    state.error = 0;
    let first = !std::mem::replace(&mut state.told, true);
    drop(state);
    pollable::forgive(entry);
    Some(first)
}

/// The result of a receive.
pub(crate) fn recv<T>(entry: &Entry, got: Result<T>, end: T) -> Result<T> {
    match got {
        Err(e) if e.errno() == libc::ENOTCONN && is_dialling(entry) => Err(refusal(libc::EAGAIN)),
        Err(e) if !e.is_refusal() && first(entry) == Some(false) => {
            drop(e);
            Ok(end)
        }
        other => other,
    }
}

/// The result of a send.
pub(crate) fn send<T>(entry: &Entry, sent: Result<T>) -> Result<T> {
    match sent {
        Err(e) if e.errno() == libc::ENOTCONN && is_dialling(entry) => Err(refusal(libc::EAGAIN)),
        Err(e) if !e.is_refusal() && first(entry) == Some(false) => {
            Err(Fail::fixed(libc::EPIPE, "the connection has broken, as was told before"))
        }
        other => other,
    }
}

fn is_dialling(entry: &Entry) -> bool {
    entry.state().dialled == Dialled::Yet
}

/// SO_ERROR.
pub(crate) fn take(entry: &Entry) -> c_int {
    let broken = raw::failure(&entry.socket);
    let mut state = entry.state();
    let told = broken.is_some() && std::mem::replace(&mut state.told, true);
    match (std::mem::take(&mut state.error), broken) {
        (0, Some(errno)) if !told => errno,
        (errno, _) => errno,
    }
}

/// Refuses a call that needs a connection if that has broken.
pub(crate) fn connected(entry: &Entry) -> Result<()> {
    match raw::failure(&entry.socket) {
        Some(_) => Err(Fail::fixed(libc::ENOTCONN, "the connection has broken")),
        None => Ok(()),
    }
}

/// The end of the connect before, once; None: there is nothing to report.
pub(crate) fn dialled(entry: &Entry) -> Option<Result<c_int>> {
    let mut state = entry.state();
    if state.dialled != Dialled::Over {
        return None;
    }
    state.dialled = Dialled::Nothing;
    match std::mem::take(&mut state.error) {
        0 => entry.socket.peer_addr().is_ok().then_some(Ok(0)),
        errno => Some(Err(Fail::fixed(errno, "the connect that was under way has failed"))),
    }
}
