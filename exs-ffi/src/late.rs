//! Sends of calls that do not wait: O_NONBLOCK and MSG_DONTWAIT without a queue.
//!
//! Such a call has the caller's memory only until it returns, but data leave when the peer has room.
//! So, like send(2), it copies the bytes that it takes, and an operation of the library sends the copy.
//! The bytes that were taken and have not left are bounded for each socket ([`MOST_KEPT`]); a call that
//! finds no room fails with EAGAIN. When `exs_poll` reports EXS_POLLOUT, no send is in flight and all
//! bytes have left, so the next call finds room: a program that polls never spins.
//!
//! The program does not see these operations. `exs_cancel` spares them and time limits do not apply
//! to them, because bytes that were taken must not be missing in the middle of a stream. They end with
//! the connection at the latest. SO_ERROR and `exs_close` report bytes that are lost by that.
//!
//! Mostly a copy has left before the call returns, and the call itself takes its event. The watching
//! thread looks after a socket from the first copy on that has not left in time.

use std::ffi::c_int;
use std::net::Shutdown;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use exs::{Buffer, Error, EventKind, EventQueue, Part, QueueOptions, SendFlags, SocketType, Token};
use exs::{WaitPolicy, raw};

use crate::blocking::refusal;
use crate::error::{Fail, Result};
use crate::pollable::{self, Plug};
use crate::sockets::Entry;
use crate::timeouts::unlimited;
use crate::watch;

/// The most bytes of one socket that were taken and have not left. A longer message is taken if it is
/// the only one.
const MOST_KEPT: usize = 256 << 10;

/// The cost of an operation besides its bytes, which bounds the number of empty messages.
const COST: usize = 512;

/// How long a call that finds no room looks for some.
const SOON: Duration = Duration::from_micros(100);
const PROBE: u32 = 16;

/// The sends of one socket in flight.
#[derive(Default)]
pub(crate) struct Late {
    queue: OnceLock<EventQueue>,
    /// Their bytes, and [`COST`] for each.
    kept: AtomicUsize,
    watched: AtomicBool,
    /// Calls in a row that found no room.
    vain: AtomicU32,
    /// The program has ended the direction behind them.
    ended: AtomicBool,
    /// Held while a thread takes events: a thread that finds none then sees the room that they gave back.
    taking: Mutex<()>,
}

impl Late {
    fn queue(&self) -> Result<&EventQueue> {
        if let Some(queue) = self.queue.get() {
            return Ok(queue);
        }
        // Shutdowns, which keep no bytes, need places too.
        let depth = MOST_KEPT / COST + 16;
        let queue = EventQueue::with_options(
            &QueueOptions::default().with_depth(depth).with_wait(WaitPolicy::Notify),
        )?;
        Ok(self.queue.get_or_init(|| queue))
    }

    /// The queue of their events; None before the first.
    pub(crate) fn own_queue(&self) -> Option<&EventQueue> {
        self.queue.get()
    }

    /// Takes room for `len` bytes, or for fewer if they may be cut; returns how many.
    fn reserve(&self, len: usize, cut: bool) -> Option<usize> {
        let mut kept = self.kept.load(Ordering::Acquire);
        loop {
            let room = MOST_KEPT.checked_sub(kept);
            let take = match room {
                Some(room) if len <= room => len,
                Some(room) if cut && room > COST => room,
                _ if kept == 0 => len,
                _ => return None,
            };
            let now = kept + take + COST;
            match self.kept.compare_exchange(kept, now, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(take),
                Err(other) => kept = other,
            }
        }
    }

    fn release(&self, cost: usize) {
        self.kept.fetch_sub(cost, Ordering::AcqRel);
    }
}

/// Takes the events that are there. With `turn` it moves first what can be moved.
pub(crate) fn reap(entry: &Entry, turn: bool) {
    let Some(queue) = entry.late.queue.get() else { return };
    let _taking = entry.late.taking.lock().unwrap_or_else(PoisonError::into_inner);
    let mut events = Vec::new();
    // Fails only for arguments that make no sense.
    let _ = queue.dequeue_into(&mut events, usize::from(turn), usize::MAX, Some(Duration::ZERO));
    for event in events {
        entry.late.release(usize::try_from(event.token().0).unwrap_or(0));
        if event.kind() == EventKind::Send
            && let Some(e) = event.error()
        {
            let mut state = entry.state();
            if !state.told {
                state.error = e.errno();
            }
        }
    }
    // A long message is taken only when nothing else is there.
    let least = if entry.kind == SocketType::Stream { MOST_KEPT / 2 } else { 0 };
    if entry.late.kept.load(Ordering::Acquire) <= least {
        pollable::unplug(entry, Plug::Full);
    }
}

/// The error of a connection that broke before all taken bytes had left; None: it did not.
pub(crate) fn lost(entry: &Entry) -> Result<()> {
    reap(entry, false);
    let errno = if entry.late.queue.get().is_some() { entry.state().error } else { 0 };
    if errno == 0 {
        return Ok(());
    }
    Err(Fail::fixed(errno, "the connection ended before all that calls had taken was sent"))
}

/// Takes the bytes that there is room for, a message whole or not at all, and returns their number.
/// With `shut` the direction ends after the last byte.
pub(crate) fn send(entry: &Entry, fd: c_int, parts: &[Part], shut: bool) -> Result<usize> {
    let queue = entry.late.queue()?;
    let all = length(parts);
    let cut = entry.kind == SocketType::Stream;
    let taken = entry.late.reserve(all, cut).or_else(|| reserve_soon(entry, all, cut));
    let Some(taken) = taken else {
        fill(entry, fd);
        // Once the direction has ended, room that comes is not for this call.
        if entry.late.ended.load(Ordering::Acquire) {
            return Err(Fail::fixed(libc::EPIPE, "this direction of the socket was shut down"));
        }
        return Err(refusal(libc::EAGAIN));
    };
    let cost = taken + COST;
    let sent = copy(parts, taken).and_then(|(bytes, short)| {
        let n = bytes.len();
        if short && (n == 0 || !cut) {
            return Err(Fail::fixed(libc::EIO, "the file is shorter than the list says"));
        }
        post(entry, queue, bytes, cost).map(|()| n)
    });
    let n = sent.inspect_err(|_| entry.late.release(cost))?;
    if shut && n == all {
        // If the connection is gone by now, the next call reports it.
        let _ = entry.socket.shutdown(queue, Token(0), Shutdown::Write);
        entry.late.ended.store(true, Ordering::Release);
    }
    reap(entry, true);
    if entry.late.kept.load(Ordering::Acquire) > 0
        && !entry.late.watched.swap(true, Ordering::AcqRel)
    {
        watch::late(raw::inner_fd(queue), entry.inode())?;
    }
    if n < all {
        fill(entry, fd);
    }
    Ok(n)
}

/// Takes room that sends in flight free at this very moment, on another core perhaps. Only when they
/// have come to rest is the socket known to be full. If the wait has not paid for a socket, only one
/// call in [`PROBE`] waits.
fn reserve_soon(entry: &Entry, all: usize, cut: bool) -> Option<usize> {
    let (late, begun) = (&entry.late, Instant::now());
    let patient = late.vain.load(Ordering::Relaxed).is_multiple_of(PROBE);
    loop {
        reap(entry, true);
        if let Some(taken) = late.reserve(all, cut) {
            late.vain.store(0, Ordering::Relaxed);
            return Some(taken);
        }
        if !patient || begun.elapsed() >= SOON {
            late.vain.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        std::thread::yield_now();
    }
}

/// Makes the descriptor not writable, because a send did not find room for all its bytes. It becomes
/// writable when there is room (for EPOLLET by an edge).
fn fill(entry: &Entry, fd: c_int) {
    pollable::plug(entry, fd, Plug::Full);
    raw::found_nothing(&entry.socket);
    // There may be room again by now.
    reap(entry, false);
}

/// Ends a direction behind the taken bytes, without waiting for them to leave.
pub(crate) fn shutdown(entry: &Entry, how: Shutdown) -> Result<()> {
    let queue = entry.late.queue()?;
    let post = || entry.socket.shutdown(queue, Token(0), how);
    let posted = match post() {
        // Taking events frees places.
        Err(Error::WouldBlock { .. }) => {
            reap(entry, true);
            post()
        }
        other => other,
    };
    posted.map_err(refused)?;
    if how != Shutdown::Read {
        entry.late.ended.store(true, Ordering::Release);
    }
    reap(entry, true);
    Ok(())
}

/// Posts the copy. Its event gives the room back.
fn post(entry: &Entry, queue: &EventQueue, bytes: Vec<u8>, cost: usize) -> Result<()> {
    let (token, buffer) = (Token(cost as u64), Buffer::from(bytes));
    let posted = unlimited(entry, || entry.socket.send(queue, token, buffer, SendFlags::NONE));
    posted.map_err(|r| refused(r.error))
}

fn refused(error: Error) -> Fail {
    match error {
        Error::WouldBlock { .. } => refusal(libc::EAGAIN),
        error => error.into(),
    }
}

fn length(parts: &[Part]) -> usize {
    let of = |part: &Part| match part {
        Part::Memory(list) => list.iter().map(|b| b.len()).sum(),
        Part::File { len, .. } => usize::try_from(*len).unwrap_or(usize::MAX),
        _ => 0,
    };
    parts.iter().map(of).fold(0, usize::saturating_add)
}

/// The first bytes of the parts; true if a file was shorter than its part.
fn copy(parts: &[Part], len: usize) -> Result<(Vec<u8>, bool)> {
    let mut out = Vec::with_capacity(len);
    for part in parts {
        match part {
            Part::Memory(list) => {
                for buffer in list {
                    let n = buffer.len().min(len - out.len());
                    let begin = out.len();
                    out.resize(begin + n, 0);
                    let to = out[begin..].as_mut_ptr();
                    // SAFETY: `n` bytes that were made just now, and `n` of memory that
                    // the caller has promised for the call; one cannot be part of the other.
                    unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), to, n) };
                }
            }
            Part::File { file, offset, len: whole } => {
                let n = usize::try_from(*whole).unwrap_or(usize::MAX).min(len - out.len());
                let begin = out.len();
                out.resize(begin + n, 0);
                let mut at = 0;
                while at < n {
                    match file.read_at(&mut out[begin + at..], offset + at as u64) {
                        Ok(0) => {
                            out.truncate(begin + at);
                            return Ok((out, true));
                        }
                        Ok(m) => at += m,
                        Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(Fail::io("reading the file", &e)),
                    }
                }
            }
            _ => return Err(Fail::fixed(libc::EOPNOTSUPP, crate::kernel::NO_SUCH_PART)),
        }
    }
    Ok((out, false))
}

/// Asks the program's operations to end; of the library's own, only a connect, which the
/// program has asked for.
pub(crate) fn cancel(entry: &Entry, token: Option<Token>, inner: Option<&EventQueue>) -> usize {
    let own: Vec<&EventQueue> = entry.late.own_queue().into_iter().chain(inner).collect();
    raw::cancel_but(&entry.socket, token, &own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_and_comes_back() {
        let late = Late::default();
        assert_eq!(late.reserve(1 << 30, true), Some(MOST_KEPT));
        assert_eq!(late.reserve(1, true), None);
        assert_eq!(late.reserve(0, false), None, "messages of no bytes, too");
        late.release(MOST_KEPT + COST);
        let mut n = 0;
        while late.reserve(0, false).is_some() {
            n += 1;
        }
        assert!(n <= MOST_KEPT / COST + 1, "{n} messages of no bytes");
        (0..n).for_each(|_| late.release(COST));
        assert_eq!(late.kept.load(Ordering::Acquire), 0);
    }

    #[test]
    fn a_long_message_is_taken_if_it_is_the_only_one() {
        let late = Late::default();
        assert_eq!(late.reserve(MOST_KEPT * 3, false), Some(MOST_KEPT * 3));
        assert_eq!(late.reserve(1, false), None);
        late.release(MOST_KEPT * 3 + COST);
        assert_eq!(late.reserve(1, false), Some(1));
        assert_eq!(late.reserve(MOST_KEPT, false), None);
        assert_eq!(late.reserve(MOST_KEPT - 2 * COST, false), Some(MOST_KEPT - 2 * COST));
    }
}
