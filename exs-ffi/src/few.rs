//! Sends and receives of few bytes, by calls without a queue that need no operation.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use exs::__ffi as raw;
use exs::{Buffer, Error, SocketType};
use libc::MSG_DONTWAIT;

use crate::arrivals::Arrivals;
use crate::blocking::{Patience, refusal};
use crate::data::Memory;
use crate::error::Result;
use crate::sockets::Entry;
use crate::timeouts::Way;
use crate::{options, pollable, told};

/// Sends few bytes, if that completes at once.
pub(crate) fn send_now(entry: &Entry, buffer: &Buffer) -> bool {
    match Arrivals::is_looped(entry) {
        true => raw::send_in_loop(&entry.socket, buffer),
        false => raw::send_at_once(&entry.socket, buffer),
    }
}

/// The memory of a receive on a stream that asks for nothing special and has no time limit. None: it must
/// be posted.
fn plain<'m>(entry: &Entry, memory: &'m Memory, flags: c_int) -> Option<&'m Buffer> {
    let plain = flags & !libc::MSG_NOSIGNAL == 0 && entry.kind == SocketType::Stream;
    match memory {
        Memory::One(buffer) if plain && !entry.limits.any() => Some(buffer),
        _ => None,
    }
}

/// Receives without a queue what has come, if the descriptor does not block, and no operation is needed
/// for it. None: nothing was done.
pub(crate) fn recv_at_once(
    entry: &Entry,
    memory: &Memory,
    flags: c_int,
    fd: c_int,
) -> Option<Result<c_int>> {
    let buffer = plain(entry, memory, flags & !MSG_DONTWAIT)?;
    if flags & MSG_DONTWAIT == 0 && !entry.never_waits.load(Ordering::Relaxed) {
        return None;
    }
    match pollable::recv_at_once(entry, buffer, fd)? {
        // The descriptor may block by now.
        0 if options::patience(entry, fd, flags, Way::Recv) != Patience::None => None,
        0 => Some(Err(refusal(libc::EAGAIN))),
        n => Some(Ok(c_int::try_from(n).unwrap_or(c_int::MAX))),
    }
}

/// Waits for a small message without an operation, if threads of several connections block, and the call
/// may wait for as long as it takes. None: nothing was done.
pub(crate) fn recv_passing(
    entry: &Entry,
    memory: &Memory,
    flags: c_int,
    fd: c_int,
) -> Option<Result<c_int>> {
    let buffer = plain(entry, memory, flags)?;
    if !raw::may_pass(&entry.socket) {
        return None;
    }
    if options::patience(entry, fd, flags, Way::Recv) != Patience::Endless {
        return None;
    }
    match raw::recv_passing(&entry.socket, buffer) {
        Ok(0) => None,
        Ok(n) => {
            pollable::took_what_came(entry, fd);
            Some(Ok(c_int::try_from(n).unwrap_or(c_int::MAX)))
        }
        Err(Error::Interrupted) => Some(Err(refusal(libc::EINTR))),
        Err(error) => {
            pollable::refresh(entry, fd);
            Some(told::recv(entry, Err(error.into()), 0))
        }
    }
}
