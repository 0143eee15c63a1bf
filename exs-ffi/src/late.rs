//! Sends of calls that do not wait: O_NONBLOCK and MSG_DONTWAIT without a queue.
//!
//! Such a call has the caller's memory only until it returns, while data leave when the peer has
//! room for them. So, like send(2), it copies the data that it accepts, and sends the copy by an
//! operation of the library's own. The accepted data that have not left are bounded for each
//! socket ([`MOST_KEPT`]); without room a call fails with EAGAIN. When `exs_poll` reports
//! EXS_POLLOUT, all accepted data have left (the engine reports it when no send is under way), so
//! the next call finds room: a program that polls never spins.
//!
//! `exs_cancel` spares these operations, and time limits do not apply to them, because accepted
//! bytes must not be missing in the middle of a stream. They end with the connection at the
//! latest. If bytes are lost then, SO_ERROR reports it, and `exs_close`.
//!
//! Usually a copy has left before the call returns, and the call itself takes its event. The
//! watching thread looks for the events of a socket only after the first send that had not left.

use std::ffi::c_int;
use std::net::Shutdown;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use exs::__ffi as raw;
use exs::WaitPolicy;
use exs::{Buffer, Error, EventKind, EventQueue, Part, QueueOptions, Socket, SocketType, Token};

use crate::blocking::refusal;
use crate::error::{Fail, Result};
use crate::pollable::{self, Plug};
use crate::sockets::Entry;
use crate::timeouts::unlimited;
use crate::watch;

/// Most accepted bytes of one socket that have not left. A longer message is accepted if it is
/// the only one.
const MOST_KEPT: usize = 256 << 10;

/// Bytes that an operation counts beside its data, so that messages of no bytes have a bound.
const COST: usize = 512;

/// Time for which a call without room keeps looking for room.
const SOON: Duration = Duration::from_micros(100);
const PROBE: u32 = 16;

/// The sends under way of one socket.
#[derive(Default)]
pub(crate) struct Late {
    queue: OnceLock<EventQueue>,
    /// Bytes of the data, and [`COST`] for each send.
    kept: AtomicUsize,
    watched: AtomicBool,
    /// Sends in a row that found no room.
    misses: AtomicU32,
    /// The direction was ended behind the sends.
    ended: AtomicBool,
    /// Held while a thread takes events. A thread that finds none then sees the room that they
    /// returned.
    taking: Mutex<()>,
}

impl Late {
    fn queue(&self, socket: &Socket) -> Result<&EventQueue> {
        if let Some(queue) = self.queue.get() {
            return Ok(queue);
        }
        // Shutdowns, which keep no data, need places too.
        let depth = MOST_KEPT / COST + 16;
        let queue = EventQueue::with_options(
            &QueueOptions::default()
                .with_depth(depth)
                .with_wait(WaitPolicy::Notify)
                .with_shard(Some(raw::shard_of(socket))),
        )?;
        Ok(self.queue.get_or_init(|| queue))
    }

    /// Returns the queue of these sends. None before the first.
    pub(crate) fn own_queue(&self) -> Option<&EventQueue> {
        self.queue.get()
    }

    /// Takes room for `len` bytes, or for fewer if `cut` allows. Returns how many; None without
    /// room.
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

/// Takes the events that are there. With `turn` it first moves the data that can move.
pub(crate) fn reap(entry: &Entry, turn: bool) {
    let Some(queue) = entry.late.queue.get() else { return };
    let _taking = entry.late.taking.lock().unwrap_or_else(PoisonError::into_inner);
    let mut events = Vec::new();
    // It fails only for invalid arguments.
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
    // A long message is accepted only when nothing else is there.
    let least = if entry.kind == SocketType::Stream { MOST_KEPT / 2 } else { 0 };
    if entry.late.kept.load(Ordering::Acquire) <= least {
        pollable::unplug(entry, Plug::Full);
    }
}

/// Returns an error if accepted bytes were lost with the connection.
pub(crate) fn lost(entry: &Entry) -> Result<()> {
    reap(entry, false);
    let errno = if entry.late.queue.get().is_some() { entry.state().error } else { 0 };
    if errno == 0 {
        return Ok(());
    }
    Err(Fail::fixed(errno, "the connection ended before all accepted data were sent"))
}

/// Sends as much as there is room for, a message whole or not at all, and returns the bytes
/// accepted. With `shut` the direction ends after the last byte.
pub(crate) fn send(entry: &Entry, fd: c_int, parts: &[Part], shut: bool) -> Result<usize> {
    let queue = entry.late.queue(&entry.socket)?;
    let all = length(parts);
    let cut = entry.kind == SocketType::Stream;
    let taken = entry.late.reserve(all, cut).or_else(|| reserve_soon(entry, all, cut));
    let Some(taken) = taken else {
        fill(entry, fd);
        // There will be room, but not for this send.
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

/// Takes room that sends under way free at this moment, perhaps on another core: the socket is
/// full only if they make no progress. If that did not pay for a socket, only one call in
/// [`PROBE`] tries it.
fn reserve_soon(entry: &Entry, all: usize, cut: bool) -> Option<usize> {
    let (late, begun) = (&entry.late, Instant::now());
    let patient = late.misses.load(Ordering::Relaxed).is_multiple_of(PROBE);
    loop {
        reap(entry, true);
        if let Some(taken) = late.reserve(all, cut) {
            late.misses.store(0, Ordering::Relaxed);
            return Some(taken);
        }
        if !patient || begun.elapsed() >= SOON {
            late.misses.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        std::thread::yield_now();
    }
}

/// Marks the descriptor as not writable, because a send did not find room for all its bytes. It
/// becomes writable, with an edge for EPOLLET, when there is room.
fn fill(entry: &Entry, fd: c_int) {
    pollable::plug(entry, fd, Plug::Full);
    pollable::found_nothing(entry);
    // There may be room by now.
    reap(entry, false);
}

/// Ends a direction behind the accepted data, without waiting until they have left.
pub(crate) fn shutdown(entry: &Entry, how: Shutdown) -> Result<()> {
    let queue = entry.late.queue(&entry.socket)?;
    let post = || entry.socket.shutdown(queue, Token(0), how);
    let posted = match post() {
        // Taking the events of finished sends frees places.
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

/// Posts the copy. Its event returns `cost`.
fn post(entry: &Entry, queue: &EventQueue, bytes: Vec<u8>, cost: usize) -> Result<()> {
    let (token, buffer) = (Token(cost as u64), Buffer::from(bytes));
    let posted = unlimited(entry, || entry.socket.send(queue, token, buffer));
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

/// Copies the first `len` bytes of the parts. Returns true as well if a file was too short.
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
                    // SAFETY: `n` bytes that were just allocated, and `n` bytes of memory that
                    // the caller has promised for the call. Neither can be part of the other.
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

/// Asks the program's operations to end. Of the library's own operations this includes only a
/// connect, which the program asked for.
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
