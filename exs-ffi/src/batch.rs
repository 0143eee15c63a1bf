//! Several sends or receives in one call.

use std::ffi::c_int;

use exs::__ffi::{Posting, recv_batch, send_batch};
use exs::{EventQueue, RecvFlags, Token};
use libc::{MSG_PEEK, MSG_WAITALL};

use crate::abi::*;
use crate::data::{not_ours, recv_flags, send_flags};
use crate::error::{Fail, Result, border};
use crate::event::{self, Call};
use crate::ptr::{Bytes, In};
use crate::sockets::{self, Entry, Target};
use crate::timeouts::{Way, posting};
use crate::{memory, pollable, queues};

/// The arguments that both calls share.
struct Batch {
    fd: c_int,
    pieces: In<Iovec>,
    ahandles: In<AHandle>,
    count: c_int,
    queue: c_int,
}

impl Batch {
    /// The operations. The first that cannot be made ends the list, and fails if it is the first of
    /// all.
    fn postings(&self, kind: c_int) -> Result<Vec<Posting>> {
        let call = Call::new(kind, self.fd);
        let pieces = self.pieces.list(self.count, EXS_IOV_MAX)?;
        let ahandles = self.ahandles.list(self.count, EXS_IOV_MAX)?;
        let mut postings = Vec::with_capacity(usize::try_from(self.count).unwrap_or(0));
        for (piece, ahandle) in pieces.zip(ahandles) {
            let at = Bytes::of(&piece);
            let buffer = match memory::buffer(at, piece.exs_iov_len, piece.exs_iov_mhandle) {
                Ok(buffer) => buffer,
                Err(e) if postings.is_empty() => return Err(e),
                Err(_) => break,
            };
            let (token, tag) = (Token(ahandle as u64), call.tag(event::place(at)));
            postings.push(Posting { token, tag, buffer });
        }
        Ok(postings)
    }

    /// Posts the operations by `post`, and returns how many were posted.
    fn run(
        &self,
        kind: c_int,
        way: Way,
        post: impl FnOnce(
            &Entry,
            &EventQueue,
            &mut Vec<Posting>,
        ) -> std::result::Result<usize, exs::Error>,
    ) -> Result<c_int> {
        let Target::Exs(entry) = sockets::find(self.fd)? else { return not_ours(self.fd) };
        let why = "a batch has no call that waits for it: give it an event queue";
        let queue = queues::way(self.queue)?.ok_or(Fail::fixed(libc::EINVAL, why))?;
        let mut postings = self.postings(kind)?;
        let posted = posting(&entry, way, || post(&entry, &queue.queue, &mut postings))?;
        if kind == EXS_EVT_RECV {
            pollable::by_queue(&entry, self.fd);
        }
        Ok(c_int::try_from(posted).unwrap_or(c_int::MAX))
    }
}

/// `exs_send_batch`
///
/// # Safety
/// As the header says: the memory is the operations' until their events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_send_batch(
    fd: c_int,
    pieces: In<Iovec>,
    ahandles: In<AHandle>,
    count: c_int,
    flags: c_int,
    queue: c_int,
) -> c_int {
    border(|| {
        send_flags(flags)?;
        let batch = Batch { fd, pieces, ahandles, count, queue };
        batch.run(EXS_EVT_SEND, Way::Send, |entry, queue, postings| {
            send_batch(&entry.socket, queue, postings)
        })
    })
}

/// `exs_recv_batch`
///
/// # Safety
/// As the header says: the memory is the operations' until their events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_recv_batch(
    fd: c_int,
    pieces: In<Iovec>,
    ahandles: In<AHandle>,
    count: c_int,
    flags: c_int,
    queue: c_int,
) -> c_int {
    border(|| {
        recv_flags(flags)?;
        let batch = Batch { fd, pieces, ahandles, count, queue };
        let flags =
            RecvFlags::NONE.with_waitall(flags & MSG_WAITALL != 0).with_peek(flags & MSG_PEEK != 0);
        batch.run(EXS_EVT_RECV, Way::Recv, |entry, queue, postings| {
            recv_batch(&entry.socket, queue, postings, flags)
        })
    })
}
