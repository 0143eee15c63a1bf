//! The end of a connection for calls without a queue. As with TCP, its error is reported once, by
//! the call that finds it first or by SO_ERROR. Afterwards receives find the end of the data,
//! sends fail with EPIPE, and other calls with ENOTCONN.
//!
//! Operations with a queue have an event each, with an error each; nothing changes for them.

use std::ffi::c_int;

use exs::__ffi as raw;

use crate::blocking::refusal;
use crate::error::{Fail, Result};
use crate::pollable;
use crate::sockets::Entry;

/// The state of a connect without a waiting call. The next connect gets its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialled {
    /// There is none, or its result was reported.
    #[default]
    Nothing,
    /// It is under way.
    Yet,
    /// It has ended, with success or with an error (SO_ERROR).
    Over,
}

/// Returns true if this call is the first to report the break. None: the connection has not
/// broken.
fn first(entry: &Entry) -> Option<bool> {
    raw::failure(&entry.socket)?;
    let mut state = entry.state();
    state.error = 0;
    let first = !std::mem::replace(&mut state.told, true);
    drop(state);
    pollable::forgive(entry);
    Some(first)
}

/// Converts the result of a receive.
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

/// Converts the result of a send.
pub(crate) fn send<T>(entry: &Entry, sent: Result<T>) -> Result<T> {
    match sent {
        Err(e) if e.errno() == libc::ENOTCONN && is_dialling(entry) => Err(refusal(libc::EAGAIN)),
        Err(e) if !e.is_refusal() && first(entry) == Some(false) => Err(Fail::fixed(
            libc::EPIPE,
            "the connection broke, and an earlier call has reported the reason",
        )),
        other => other,
    }
}

fn is_dialling(entry: &Entry) -> bool {
    entry.state().dialled == Dialled::Yet
}

/// Returns SO_ERROR and clears it.
pub(crate) fn take(entry: &Entry) -> c_int {
    let broken = raw::failure(&entry.socket);
    let mut state = entry.state();
    let told = broken.is_some() && std::mem::replace(&mut state.told, true);
    match (std::mem::take(&mut state.error), broken) {
        (0, Some(errno)) if !told => errno,
        (errno, _) => errno,
    }
}

/// Fails for a broken connection: a call that needs a connection has none.
pub(crate) fn connected(entry: &Entry) -> Result<()> {
    match raw::failure(&entry.socket) {
        Some(_) => Err(Fail::fixed(libc::ENOTCONN, "the connection has broken")),
        None => Ok(()),
    }
}

/// Returns the result of the last connect, once. None: there is nothing to report.
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
