//! The calls that post operations.

use std::fs::File;
use std::net::Shutdown;
use std::sync::Arc;

use super::branch::ListenEnd;
use super::domain::Place;
use super::memory::Prepared;
use super::ops::{Op, TempMrs};
use super::sock::State;
use super::{Engine, Error, SockId};
use crate::ids::OpId;
use crate::progress::call::Call;
use crate::progress::event::{Bufs, EventKind, RawEvent};
use crate::progress::flags::{Interest, RecvFlags};
use crate::progress::grouping::{GroupUse, ServedBy};
use crate::progress::queue::QueueCore;
use crate::rnic::{FileRange, Mr};
use crate::session::{After, Buf, IoVec, OpError, RecvOpts, SendSource};
use crate::sys::cold_path;
use crate::time::Time;

/// A part of a file to send.
#[derive(Clone, Debug)]
pub struct FileSend {
    /// The file, open for reading.
    pub file: Arc<File>,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// The queue to which an operation's event goes, and the names that the event carries.
pub(crate) struct Ticket<'a> {
    pub(crate) queue: &'a Arc<QueueCore>,
    pub(crate) token: u64,
    /// A second name, for the raw layer. The event carries it, too.
    pub(crate) tag: [u64; 2],
    /// What serves a connection that begins by this operation.
    pub(crate) served_by: ServedBy,
}

impl Ticket<'_> {
    /// How the program uses a connection that begins by this operation.
    pub(super) fn group_use(&self) -> GroupUse {
        match self.served_by {
            ServedBy::QueueUse => self.queue.group_use(),
            ServedBy::EventLoop => GroupUse::Usual,
            ServedBy::Poller => GroupUse::Polled,
        }
    }
}

/// A ticket that owns its reference to the queue. The queue is None once an operation has taken the
/// reference.
#[derive(Debug)]
pub(crate) struct OwnTicket {
    pub(crate) queue: Option<Arc<QueueCore>>,
    pub(crate) token: u64,
    pub(crate) tag: [u64; 2],
}

impl Engine {
    /// Enters an operation into the table. Its place in the queue is reserved already.
    #[inline]
    pub(super) fn book(
        &mut self,
        sock: SockId,
        ticket: &Ticket<'_>,
        kind: EventKind,
        bufs: Bufs,
    ) -> OpId {
        match kind {
            EventKind::Recv => self.unattend_for_recv(sock, ticket.queue),
            _ => self.unattend_for(sock, ticket.queue),
        }
        self.ops.insert(Op::new(sock, ticket, kind, bufs))
    }

    /// Notes the memory that was prepared for an operation. If the session has refused the
    /// operation, returns the buffers and frees that memory.
    #[inline(always)]
    pub(super) fn conclude(
        &mut self,
        place: Place,
        op: OpId,
        (temp, bounce): (TempMrs, Option<super::ops::Bounce>),
        posted: Result<(), OpError>,
    ) -> Result<(), (Error, Bufs)> {
        match posted {
            Ok(()) => {
                let plain = bounce.is_none() && temp.as_slice().is_empty();
                if !plain && let Some(kept) = self.ops.keep(op) {
                    (kept.temp, kept.bounce) = (temp, bounce);
                }
                Ok(())
            }
            Err(e) => {
                cold_path();
                let bufs = self.ops.remove(op).map_or(Bufs::None, |op| op.bufs);
                self.devices[place.device].unprepare(place.domain, &temp, bounce);
                Err((Error::Op(e), bufs))
            }
        }
    }

    pub(crate) fn post_send(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        bufs: Bufs,
        call: &mut Call<'_>,
    ) -> Result<(), (Error, Bufs)> {
        match self.try_send_eager(id, ticket, bufs, call) {
            Ok(()) => Ok(()),
            Err(bufs) => self.send_later(id, ticket, bufs, call),
        }
    }

    /// Posts a send that takes the general path.
    #[inline(never)]
    pub(super) fn send_later(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        bufs: Bufs,
        call: &mut Call<'_>,
    ) -> Result<(), (Error, Bufs)> {
        let place = match self.sockets.checked(id) {
            Ok(d) => d,
            Err(e) => return Err((e, bufs)),
        };
        let p = match self.devices[place.device].prepare(place.domain, &bufs, false) {
            Ok(p) => p,
            Err(e) => return Err((e, bufs)),
        };
        let Prepared { iov, temp, bounce } = p;
        self.note_send(id, usize::try_from(iov.len()).unwrap_or(usize::MAX), call);
        let now = call.now();
        let op = self.book(id, ticket, EventKind::Send, bufs);
        let posted = self.sockets.session_post(id, |s| {
            s.post_send(now, op, SendSource::Memory(iov)).map_err(|(e, _)| e)
        });
        self.conclude(place, op, (temp, bounce), posted)
    }

    /// Posts a receive. The usual receive has one buffer, in memory that is already registered
    /// here.
    pub(crate) fn post_recv(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        bufs: Bufs,
        flags: RecvFlags,
        call: &mut Call<'_>,
    ) -> Result<(), (Error, Bufs)> {
        self.unattend_for_recv(id, ticket.queue);
        let s = self.sockets.get_mut(id);
        if let Some(s) = s
            && let Bufs::One(buffer) = &bufs
            && let Some(key) = self.devices.first_key(buffer, s.place)
            && let watched = (s.watch.is_some(), !s.polls.is_empty())
            && let Ok(session) = s.open_session()
        {
            let buf = Buf { seg: buffer.segment(), mr: Mr { key } };
            // A descriptor or a poll must learn that the bytes are gone.
            if !flags.peek
                && watched == (false, false)
                && let Some((bytes, after)) = session.try_recv_eager(&buf.seg, flags.waitall)
            {
                let mut event = RawEvent::with(ticket.token, ticket.tag, EventKind::Recv, bufs);
                (event.bytes, event.total) = (bytes, bytes);
                self.delivery.deliver(ticket.queue, event);
                match after {
                    After::Settled => call.pass(),
                    After::NeedsDrive => self.sockets.mark(id.index),
                }
                return Ok(());
            }
            let iov = IoVec::One(buf);
            let now = if session.limits_recv() { call.now() } else { Time::ZERO };
            let op = self.ops.insert(Op::new(id, ticket, EventKind::Recv, bufs));
            let opts = RecvOpts { waitall: flags.waitall, peek: flags.peek };
            let error = match session.post_recv(now, op, iov, opts) {
                // Most receives wait, and the peer need not be told.
                Ok(After::Settled) if !session.has_done() => {
                    call.pass();
                    return Ok(());
                }
                Ok(_) => None,
                Err((error, _)) => Some(error),
            };
            self.sockets.mark(id.index);
            let refused = |error| {
                let bufs = self.ops.remove(op).map_or(Bufs::None, |op| op.bufs);
                Err((Error::Op(error), bufs))
            };
            return error.map_or(Ok(()), refused);
        }
        self.recv_into_other(id, ticket, bufs, flags, call)
    }

    /// Posts a receive whose memory must be prepared.
    #[inline(never)]
    fn recv_into_other(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        bufs: Bufs,
        flags: RecvFlags,
        call: &mut Call<'_>,
    ) -> Result<(), (Error, Bufs)> {
        let place = match self.sockets.checked(id) {
            Ok(d) => d,
            Err(e) => {
                cold_path();
                return Err((e, bufs));
            }
        };
        let p = match self.devices[place.device].prepare(place.domain, &bufs, true) {
            Ok(p) => p,
            Err(e) => {
                cold_path();
                return Err((e, bufs));
            }
        };
        let Prepared { iov, temp, bounce } = p;
        let op = self.book(id, ticket, EventKind::Recv, bufs);
        let opts = RecvOpts { waitall: flags.waitall, peek: flags.peek };
        let (settled, posted) = match self.sockets.find(id) {
            Ok(s) => match s.open_session() {
                Ok(session) => {
                    let now = if session.limits_recv() { call.now() } else { Time::ZERO };
                    let posted = session.post_recv(now, op, iov, opts).map_err(|(e, _)| e);
                    // Most receives wait, and the peer need not be told.
                    let settled = posted == Ok(After::Settled) && !session.has_done();
                    (settled, posted.map(|_| ()))
                }
                Err(e) => (true, Err(e)),
            },
            Err(_) => (true, Err(OpError::Shutdown)),
        };
        match settled {
            true => call.pass(),
            false => self.sockets.mark(id.index),
        }
        self.conclude(place, op, (temp, bounce), posted)
    }

    pub(crate) fn post_file(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        file: FileSend,
        now: Time,
    ) -> Result<(), Error> {
        let place = self.sockets.checked(id)?;
        let op = self.book(id, ticket, EventKind::SendFile, Bufs::None);
        let range = FileRange { file: file.file.into(), offset: file.offset, len: file.len };
        let posted = self.sockets.session_post(id, |s| {
            s.post_send(now, op, SendSource::File(range)).map_err(|(e, _)| e)
        });
        self.conclude(place, op, (TempMrs::None, None), posted).map_err(|(e, _)| e)
    }

    pub(crate) fn post_poll(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        want: Interest,
    ) -> Result<(), Error> {
        self.sockets.find(id)?;
        let op = self.book(id, ticket, EventKind::Poll, Bufs::None);
        self.sockets.find(id)?.polls.push((op, want));
        self.sockets.mark(id.index);
        Ok(())
    }

    pub(crate) fn shutdown(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        how: Shutdown,
        now: Time,
    ) -> Result<(), Error> {
        if self.sockets.is_listening(id) {
            // As shutdown(2) of a listener: its receiving side is the side that listens.
            let op = self.book(id, ticket, EventKind::Shutdown, Bufs::None);
            if how != Shutdown::Write {
                self.shut_listener(id, now);
            }
            self.complete(op, Ok(()));
            return Ok(());
        }
        self.sockets.checked(id)?;
        let op = self.book(id, ticket, EventKind::Shutdown, Bufs::None);
        if how != Shutdown::Write {
            self.end_pass(id, Ok(()));
        }
        let posted = self.sockets.session_post(id, |s| {
            if how != Shutdown::Write {
                s.shutdown_recv(now);
            }
            if how == Shutdown::Read { Ok(()) } else { s.shutdown_send(now, op) }
        });
        match posted {
            Ok(()) if how == Shutdown::Read => self.complete(op, Ok(())),
            Ok(()) => {}
            Err(e) => {
                self.ops.remove(op);
                return Err(Error::Op(e));
            }
        }
        Ok(())
    }

    /// Cancels the chosen operations of the socket. Returns how many operations were asked to end.
    /// Each of them still has its event.
    pub(crate) fn cancel_where(
        &mut self,
        id: SockId,
        now: Time,
        chosen: impl Fn(&Op) -> bool,
    ) -> Result<usize, Error> {
        self.sockets.find(id)?;
        let mut count = 0;
        for op in self.ops.of_socket(id, chosen) {
            // The parts of a send count as one operation.
            let part = self.ops.get_mut(op).is_some_and(|op| op.group != 0);
            let asked = self.cancel_op(id, op, now) || self.ops.groups.contains(op);
            count += usize::from(asked && !part);
        }
        self.sockets.mark(id.index);
        Ok(count)
    }

    fn cancel_op(&mut self, id: SockId, op: OpId, now: Time) -> bool {
        let cancelled = || Err(Error::Op(OpError::Cancelled));
        let Ok(s) = self.sockets.find(id) else { return false };
        if let Some(i) = s.polls.iter().position(|(p, _)| *p == op) {
            s.polls.remove(i);
            self.complete(op, cancelled());
            return true;
        }
        if let Some(a) = &mut s.accepts
            && a.withdraw(op)
        {
            self.complete(op, cancelled());
            return true;
        }
        if matches!(s.state, State::Connecting { op: c, .. } if c == op) {
            self.connect_failed(id, Error::Op(OpError::Cancelled), now);
            return true;
        }
        s.session.as_mut().is_some_and(|x| x.cancel(now, op))
    }

    /// Closes a socket: in order if the linger time allows, see `Session::close`. Listeners and
    /// sockets without a connection are closed at once. Without a ticket, no event reports the
    /// close.
    pub(crate) fn close(
        &mut self,
        id: SockId,
        ticket: Option<&Ticket<'_>>,
        now: Time,
    ) -> Result<(), Error> {
        if self.sockets.find(id)?.state == State::Closed {
            return Err(Error::State {
                call: "close",
                need: "is open",
                is: "is closed",
                errno: libc::EBADF,
            });
        }
        self.recall(id, now);
        let op = ticket.map_or(0, |t| self.book(id, t, EventKind::Close, Bufs::None));
        self.attendances().end_left(id);
        self.end_pass(id, Err(OpError::Cancelled));
        self.end_listening(id, now, ListenEnd::Closed);
        if matches!(self.sockets.find(id)?.state, State::Connecting { .. }) {
            self.connect_failed(id, Error::Op(OpError::Cancelled), now);
        }
        let s = self.sockets.find(id)?;
        let linger = s.opts.linger;
        let had_session = match (&mut s.session, &s.state) {
            (Some(session), State::Open) => {
                s.facts.log(|| crate::trace::debug!("the program closes"));
                session.close(now, op, linger);
                true
            }
            _ => false,
        };
        s.state = State::Closed;
        let polls = std::mem::take(&mut s.polls);
        for (p, _) in polls {
            self.complete(p, Err(Error::Op(OpError::Cancelled)));
        }
        if !had_session {
            self.complete(op, Ok(()));
        }
        self.sockets.mark(id.index);
        Ok(())
    }

    /// Ends the connection at once.
    pub(crate) fn abort(&mut self, id: SockId, now: Time) -> Result<(), Error> {
        if matches!(self.sockets.find(id)?.state, State::Connecting { .. }) {
            self.connect_failed(id, Error::Op(OpError::Aborted), now);
        }
        self.recall(id, now);
        self.end_pass(id, Err(OpError::Aborted));
        let s = &mut self.sockets[id.index];
        if let (Some(session), Some(qp)) = (s.session.as_mut(), s.qp) {
            let d = &mut self.devices[s.place.device];
            session.abort(&mut d.port(s.place.domain, qp, now), OpError::Aborted);
        }
        self.sockets.mark(id.index);
        Ok(())
    }

    /// Resets a connection that the program has not taken, and never will. A TCP peer sees the same
    /// when its connection waits in the backlog of a listener that is closed.
    pub(super) fn reset_untaken(&mut self, id: SockId, now: Time) {
        // If the socket is gone, it has been reset.
        let _ = self.abort(id, now);
        self.release_socket(id, now);
    }

    /// The last handle is gone: closes the socket in the background.
    pub(in crate::progress) fn release_socket(&mut self, id: SockId, now: Time) {
        let Ok(s) = self.sockets.find(id) else { return };
        s.holder.let_go();
        if s.state != State::Closed {
            // The socket is open, so it can be closed.
            let _ = self.close(id, None, now);
        }
        self.sockets.mark(id.index);
    }
}
