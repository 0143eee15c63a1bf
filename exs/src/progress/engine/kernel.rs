//! Kernel sockets: the engine's side of their table (`plain`).
//!
//! Kernel sockets use no sessions and no devices. They share two things with the sockets of EXS:
//! the table of operations, and the event queues.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::ops::{Op, OpTable};
use super::parts::{Cut, Part, Short};
use super::post::{OwnTicket, Ticket};
use super::{Engine, Error, SockId};
use crate::ids::OpId;
use crate::mem::Buffer;
use crate::plain::{
    Direct, End, Failure, KernelDone, Kind, Pieces, Plain, Posted, Request, Target,
};
use crate::progress::call::Call;
use crate::progress::event::{Bufs, EventKind, Guest, RawEvent, Readiness};
use crate::progress::queue::QueueCore;
use crate::rnic::FileRange;
use crate::session::OpError;
use crate::sys::KernelAddr;
use crate::time::Time;

/// The first reactor token of kernel sockets. Lower tokens belong to devices.
pub(in crate::progress) const KERNEL_TOKENS: usize = 1 << 62;
/// The socket number of their operations in the table. No socket of EXS has it.
pub(super) const NO_SOCK: SockId = SockId { index: u32::MAX, generation: 0 };

impl Engine {
    /// Posts an operation on a kernel socket. `request` makes it from the memory of the buffers.
    pub(crate) fn post_kernel(
        &mut self,
        (target, limit): (&Target<'_>, Option<Duration>),
        ticket: &Ticket<'_>,
        kind: EventKind,
        bufs: Bufs,
        now: Time,
        request: impl FnOnce(Pieces) -> Request,
    ) {
        let request = request(pieces(&bufs));
        let op = self.book(NO_SOCK, ticket, kind, bufs);
        let number = target.fd.as_raw_fd();
        let posted = Posted { op, number, limit: limit.map(|d| (now + d, d)), group: 0 };
        self.plain.post(now, posted, target, request);
    }

    /// Sends on a descriptor that was a TCP socket when the library last looked. Returns the buffer
    /// if the caller must look again.
    pub(crate) fn send_kernel_at_once(
        &mut self,
        fd: BorrowedFd<'_>,
        ticket: &mut OwnTicket,
        buffer: Buffer,
        call: &mut Call<'_>,
    ) -> Result<(), Buffer> {
        let (piece, now) = (buffer.segment(), call.now());
        let direct = self.plain.send_direct(now, fd, &piece);
        if matches!(direct, Direct::No) {
            return Err(buffer);
        }
        let Some(queue) = ticket.queue.take() else { return Err(buffer) };
        let names = (ticket.token, ticket.tag);
        let op = self.ops.insert(Op::of(NO_SOCK, queue, names, EventKind::Send, Bufs::One(buffer)));
        let posted = Posted { op, number: fd.as_raw_fd(), limit: None, group: 0 };
        match direct {
            Direct::Kept { burst } => {
                // True: the call has nothing to settle.
                if self.plain.post_kept(now, burst, posted, piece) {
                    call.pass();
                }
            }
            Direct::Sent(sent) => {
                self.plain.post_sent(now, posted, fd, Pieces::One(piece), sent);
            }
            Direct::Seen(target) => {
                let request = Request::Send { pieces: Pieces::One(piece), to: None, flags: 0 };
                self.plain.post(now, posted, &target, request);
            }
            Direct::No => {}
        }
        Ok(())
    }

    /// Posts the parts of one send on a kernel socket. With `shut`, ends the direction after them.
    pub(crate) fn post_kernel_parts(
        &mut self,
        (target, limit): (&Target<'_>, Option<Duration>),
        ticket: &Ticket<'_>,
        (mut parts, short): (Vec<Part>, Option<Short>),
        shut: bool,
        now: Time,
    ) {
        let number = target.fd.as_raw_fd();
        let cut = Cut::at(short, &mut parts);
        let shut = shut && cut.is_none();
        let count = parts.len() + usize::from(shut);
        let group = self.open_group(None, ticket, count, (false, cut));
        let mut left = count;
        for part in parts {
            left -= 1;
            // More data follow, so the kernel may wait and make fewer packets. Not for datagrams: a
            // datagram that waits would not leave with a shutdown.
            let more = left > 0 && target.kind == Kind::Stream;
            let flags = if more { libc::MSG_MORE } else { 0 };
            let (bufs, request) = match part {
                Part::Memory(list) => {
                    let bufs = Bufs::Many(list);
                    let pieces = pieces(&bufs);
                    (bufs, Request::Send { pieces, to: None, flags })
                }
                Part::File { file, offset, len } => {
                    (Bufs::None, Request::File(FileRange { file: file.into(), offset, len }))
                }
            };
            self.post_kernel_part((target, limit), group, ticket, (number, bufs, request), now);
        }
        if shut {
            let request = (number, Bufs::None, Request::Shutdown(libc::SHUT_WR));
            self.post_kernel_part((target, limit), group, ticket, request, now);
        }
    }

    fn post_kernel_part(
        &mut self,
        (target, limit): (&Target<'_>, Option<Duration>),
        group: OpId,
        ticket: &Ticket<'_>,
        (number, bufs, request): (i32, Bufs, Request),
        now: Time,
    ) {
        let op = self.book(NO_SOCK, ticket, EventKind::SendFile, bufs);
        self.ops.join_group(group, op);
        let posted = Posted { op, number, limit: limit.map(|d| (now + d, d)), group };
        self.plain.post(now, posted, target, request);
    }

    /// Cancels the operations that were posted with a descriptor: all of them, or those with a
    /// token. Returns their number.
    pub(crate) fn cancel_kernel(
        &mut self,
        target: &Target<'_>,
        token: Option<u64>,
        now: Time,
    ) -> usize {
        let ops = &self.ops;
        let named = |op: OpId| token.is_none_or(|t| ops.get(op).is_some_and(|o| o.token == t));
        self.plain.cancel(now, target, named)
    }

    /// Turns the operations that have ended into events.
    pub(super) fn reap_kernel(&mut self, now: Time) {
        while let Some(next) = self.plain.next_done() {
            match self.ops.get(next.op) {
                Some(op) if op.group == 0 => {
                    let queue = op.queue();
                    self.deliver_run(&queue);
                }
                _ => self.reap_part(now),
            }
        }
    }

    /// Takes the next operation that has ended. It is a part of a send, or the engine no longer
    /// knows it.
    fn reap_part(&mut self, now: Time) {
        let Some(KernelDone { op, end, .. }) = self.plain.poll_done() else { return };
        let Some(op) = self.ops.remove(op) else { return };
        let result = end.result.map_err(|why| error(why, op.kind));
        self.finish_part(op.group, op.bufs, end.bytes, result, now);
    }

    /// Delivers the events of the next operations that have ended, while they go to this queue.
    fn deliver_run(&mut self, queue: &Arc<QueueCore>) {
        let (plain, ops) = (&mut self.plain, &mut self.ops);
        self.delivery.deliver_all(queue, std::iter::from_fn(|| next_event(plain, ops, queue)));
    }
}

/// Takes the next operation that has ended, if its event goes to this queue. Returns the event.
#[inline(always)]
fn next_event(plain: &mut Plain, ops: &mut OpTable, queue: &Arc<QueueCore>) -> Option<RawEvent> {
    let next = plain.next_done()?;
    if !ops.get(next.op).is_some_and(|op| op.group == 0 && op.goes_to(queue)) {
        return None;
    }
    let KernelDone { op, end, .. } = plain.poll_done()?;
    let (_, mut event) = ops.remove(op)?.into_event();
    let End { bytes, total, eof, from, accepted, revents, lease, result } = end;
    (event.bytes, event.total, event.eof) = (bytes, total, eof);
    event.readiness = readiness(revents);
    if from.is_some() || accepted.is_some() || lease.is_some() {
        event.guest = Some(Box::new(Guest { lease, ..guest(from, accepted) }));
    }
    event.error = result.err().map(|why| Box::new(error(why, event.kind)));
    Some(event)
}

fn guest(from: Option<Box<KernelAddr>>, accepted: Option<Box<(OwnedFd, KernelAddr)>>) -> Guest {
    let (descriptor, peer) = match accepted.map(|a| *a) {
        Some((fd, peer)) => (Some(fd.into()), Some(peer)),
        None => (None, from.map(|peer| *peer)),
    };
    Guest { accepted: None, descriptor, peer, lease: None }
}

/// The memory of an operation. The caller drops it before it makes the event, so that the event's
/// buffers are the only owners.
fn pieces(bufs: &Bufs) -> Pieces {
    match bufs {
        Bufs::One(b) => Pieces::One(b.segment()),
        Bufs::Many(list) => Pieces::Many(list.iter().map(crate::mem::Buffer::segment).collect()),
        Bufs::None => Pieces::Many(Box::default()),
    }
}

fn readiness(revents: i16) -> Readiness {
    let any = |bits: i16| revents & bits != 0;
    Readiness {
        // A program learns of the end of a stream by reading.
        readable: any(libc::POLLIN | libc::POLLHUP),
        writable: any(libc::POLLOUT),
        error: any(libc::POLLERR | libc::POLLHUP | libc::POLLNVAL),
    }
}

#[cold]
fn error(why: Failure, kind: EventKind) -> Error {
    match why {
        Failure::Cancelled => Error::Op(OpError::Cancelled),
        Failure::TimedOut(after) => Error::Op(OpError::TimedOut { what: verb(kind), after }),
        Failure::Os { call, errno } => Error::Os { call, errno },
        Failure::FileRead { errno } => Error::Op(OpError::FileRead { errno }),
        Failure::FileTooShort { had, asked } => Error::Op(OpError::FileTooShort { had, asked }),
    }
}

fn verb(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Connect => "connect",
        EventKind::Accept => "accept",
        EventKind::Recv => "receive",
        EventKind::Poll => "poll",
        _ => "send",
    }
}
