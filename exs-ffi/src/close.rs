//! Closing, and the calls of the descriptor itself.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use exs::__ffi::{self as raw, Place};
use exs::{Error, EventKind, OpError, Readiness, Token};

use crate::abi::*;
use crate::arrivals::Arrivals;
use crate::blocking::{self, Patience, TOKEN};
use crate::connect::os;
use crate::data::not_ours;
use crate::error::{Fail, Result, border};
use crate::event::Call;
use crate::kernel;
use crate::late;
use crate::queues::{self, Queue};
use crate::sockets::{self, Entry, Target};

/// `exs_close`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_close(
    fd: c_int,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
) -> c_int {
    border(|| {
        if flags & !EXS_CLOSE_ABORT != 0 {
            return Err(Fail::fixed(libc::EINVAL, "exs_close knows the flag EXS_CLOSE_ABORT only"));
        }
        let target = sockets::find(fd)?;
        let way = queues::way(queue)?;
        let place = match &way {
            // The event must have its room before the descriptor is gone.
            Some(q) => Some(book(q, fd)?),
            None => None,
        };
        let token = Token(ahandle as u64);
        match target {
            Target::Exs(entry) => close(&entry, fd, flags & EXS_CLOSE_ABORT != 0, place, token),
            Target::Kernel(_) => {
                // First, so that its operations end now and the peer sees the end.
                kernel::cancel(fd, None)?;
                close_fd(fd)?;
                finish(place, token)
            }
            Target::File => not_ours(fd),
        }
    })
}

fn book(q: &Queue, fd: c_int) -> Result<Place> {
    Ok(Place::book(&Call::new(EXS_EVT_CLOSE, fd).on(&q.queue, 0))?)
}

fn finish(place: Option<Place>, token: Token) -> Result<c_int> {
    if let Some(place) = place {
        place.complete(token, EventKind::Close, Ok(Readiness::default()))?;
    }
    Ok(0)
}

fn close_fd(fd: c_int) -> Result<c_int> {
    // SAFETY: takes no pointers. By this call the program says that it owns the descriptor.
    os("close", unsafe { libc::close(fd) })
}

fn close(
    entry: &Entry,
    fd: c_int,
    abort: bool,
    place: Option<Place>,
    token: Token,
) -> Result<c_int> {
    {
        // Under this lock no other thread takes the hang-up for the program's own close(2).
        let mut state = entry.state();
        let unread = raw::standing(&entry.socket).available > 0;
        if !entry.face.closes(unread, || close_fd(fd))? || !sockets::remove(entry, &mut state) {
            drop(state);
            return finish(place, token);
        }
        state.exports.clear();
        Arrivals::close(entry);
    }
    if abort || entry.cut.load(Ordering::Relaxed) {
        entry.socket.abort();
    }
    match place {
        Some(place) => {
            place.close(&entry.socket, token)?;
        }
        // SO_LINGER's time bounds the wait. Like close(2), it goes on after a signal.
        None => {
            let post = |q: &exs::EventQueue| Ok(entry.socket.close(q, TOKEN)?);
            let closed = blocking::run(&entry.socket, Patience::Deaf, post)?;
            if !abort {
                over(closed)?;
                late::lost(entry)?;
            }
        }
    }
    Ok(0)
}

/// Returns the result that close(2) would have. A connection that the peer has cut is no error of
/// the close. Sent data that were thrown away, because the peer did not take them in time, are an
/// error.
fn over(closed: exs::Event) -> Result<()> {
    match closed.into_result() {
        Err(Error::Op(
            OpError::Reset { .. } | OpError::PeerAborted { .. } | OpError::PeerClosed,
        )) => Ok(()),
        other => other.map(drop).map_err(Into::into),
    }
}

/// The fixed part of `exs_fcntl`, which has a `...` in C: see `c/variadic.c`. The descriptor of
/// an EXS socket is a real one, so the kernel does the work.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exsffi_fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    border(|| {
        // SAFETY: the caller's promise is that of fcntl(2).
        os("fcntl", unsafe { libc::fcntl(fd, command, argument) })
    })
}
