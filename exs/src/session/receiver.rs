//! The receives that have not ended, their windows and bounce buffers.

use crate::ids::{OpId, Outcome};
use crate::mem::{Access, Key};
use crate::rnic::RnicError;
use crate::time::Time;

use super::rx::MessageBytes;
use super::sender::Ends;
use super::table::Table;
use super::types::count;
use super::{Buf, Counters, Done, IoVec, OpError, Port};

/// Why a receive ends before its time.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    /// With this error.
    Error(OpError),
    /// As at the end of the data: the program wants no more.
    End,
}

/// A receive, or a part of one. It is small because it is moved; rare parts are boxed.
#[derive(Debug)]
struct PostedRecv {
    user: OpId,
    /// The receive that this is a part of.
    group: Option<u64>,
    iov: IoVec,
    /// Length of `iov` in bytes.
    len: u64,
    waitall: bool,
    /// The window that the peer may write through; none if the peer was shown nothing.
    window: Option<Key>,
    /// What the peer writes to in place of a buffer in several pieces.
    bounce: Option<Box<Buf>>,
    /// The data came inside of a message, so `bounce` holds nothing.
    copied: bool,
    /// Its window was closed before it ended.
    retracted: bool,
    fate: Option<Box<Fate>>,
    /// When it must have ended.
    deadline: Option<Time>,
}

impl PostedRecv {
    /// It has one piece of memory, which the peer was not shown, and ends by itself.
    fn is_plain(&self) -> bool {
        matches!(self.iov, IoVec::One(_))
            && self.group.is_none()
            && self.window.is_none()
            && self.bounce.is_none()
            && self.fate.is_none()
            && !self.retracted
    }
}

/// A WAITALL receive into several pieces: the machine has one receive for each piece, so that
/// each can be shown to the peer.
#[derive(Debug)]
struct Group {
    /// Parts that have not ended.
    parts: usize,
    bytes: u64,
    eof: bool,
    error: Option<OpError>,
}

/// The end of a receive as the machine says it.
pub(super) struct RecvEnd {
    pub(super) op: u64,
    pub(super) bytes: u64,
    /// True length of a seqpacket message; none for a stream.
    pub(super) total: Option<u64>,
    pub(super) eof: bool,
    pub(super) outcome: Outcome,
}

/// The end of a receive as the caller gets it.
struct RecvResult {
    bytes: u64,
    total: u64,
    eof: bool,
    error: Option<OpError>,
}

/// The receiving half's operations.
#[derive(Debug)]
pub(super) struct Receiver {
    recvs: Table<PostedRecv>,
    groups: Table<Group>,
}

impl Receiver {
    pub(super) fn new() -> Receiver {
        Receiver { recvs: Table::new(), groups: Table::new() }
    }

    /// Adds a receive of `len` bytes, which is the length of `iov`.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        user: OpId,
        (iov, len): (IoVec, u64),
        waitall: bool,
        deadline: Option<Time>,
    ) -> u64 {
        self.add(user, None, (iov, len), waitall, deadline)
    }

    /// Adds a WAITALL receive of `parts` parts: its group, for `post_part`.
    pub(super) fn post_group(&mut self, parts: usize) -> u64 {
        self.groups.insert(Group { parts, bytes: 0, eof: false, error: None })
    }

    /// Adds a part of a receive.
    pub(super) fn post_part(
        &mut self,
        user: OpId,
        group: u64,
        piece: Buf,
        deadline: Option<Time>,
    ) -> u64 {
        let len = piece.seg.len() as u64;
        self.add(user, Some(group), (IoVec::One(piece), len), true, deadline)
    }

    #[inline(always)]
    fn add(
        &mut self,
        user: OpId,
        group: Option<u64>,
        (iov, len): (IoVec, u64),
        waitall: bool,
        deadline: Option<Time>,
    ) -> u64 {
        self.recvs.insert(PostedRecv {
            user,
            group,
            iov,
            len,
            waitall,
            window: None,
            bounce: None,
            copied: false,
            retracted: false,
            fate: None,
            deadline,
        })
    }

    /// The receives that have not ended.
    pub(super) fn in_flight(&self) -> usize {
        self.recvs.len()
    }

    /// No receive has not ended.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.recvs.is_empty()
    }

    /// No receive has not ended, nor any part of one.
    pub(super) fn holds_nothing(&self) -> bool {
        self.recvs.is_empty() && self.groups.is_empty()
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.recvs.get(id).is_some()
    }

    /// All receives, the last first: ended in this order, none is shown to the peer in the place
    /// of another.
    pub(super) fn last_first(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.recvs.iter().map(|(id, _)| id).collect();
        ids.reverse();
        ids
    }

    /// The parts of an operation, the last first.
    pub(super) fn parts_last_first(&self, user: OpId) -> Vec<u64> {
        let of_user = self.recvs.iter().filter(|(_, r)| r.user == user);
        let mut ids: Vec<u64> = of_user.map(|(id, _)| id).collect();
        ids.reverse();
        ids
    }

    /// The deadlines in order of posting.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = Option<Time>> {
        self.recvs.iter().map(|(_, r)| r.deadline)
    }

    /// An operation whose deadline has come.
    pub(super) fn overdue(&self, now: Time) -> Option<OpId> {
        let late = |r: &PostedRecv| r.deadline.is_some_and(|at| at <= now);
        self.recvs.iter().find(|(_, r)| late(r)).map(|(_, r)| r.user)
    }

    /// Begins to end a receive before its time. False if there is none, or it is ending.
    pub(super) fn end_early(&mut self, id: u64, fate: Fate) -> bool {
        let Some(recv) = self.recvs.get_mut(id) else { return false };
        recv.deadline = None;
        let begins = recv.fate.is_none();
        if begins {
            recv.fate = Some(Box::new(fate));
        }
        begins
    }

    /// Takes the oldest receive out, if it is this one and needs nothing but data: its memory
    /// and the caller's operation.
    #[inline]
    pub(super) fn take_plain(&mut self, op: u64) -> Option<(Buf, OpId)> {
        let recv = self.recvs.take_first_if(op, PostedRecv::is_plain)?;
        match recv.iov {
            IoVec::One(buf) => Some((buf, recv.user)),
            IoVec::Many(_) => None,
        }
    }

    /// Opens a receive's buffer to the peer: address and key. `None` if there is no such
    /// receive.
    ///
    /// # Errors
    /// The port has no memory for a buffer in several pieces, or no window.
    pub(super) fn show(
        &mut self,
        port: &mut dyn Port,
        op: u64,
        off: u64,
        len: u64,
    ) -> Result<Option<(u64, Key)>, RnicError> {
        let Some(recv) = self.recvs.get_mut(op) else { return Ok(None) };
        if len == 0 {
            // An empty packet buffer: there is nothing to write, so no window.
            return Ok(Some((0, 0)));
        }
        let buf = match (&recv.iov, &recv.bounce) {
            (IoVec::One(buf), _) => buf.clone(),
            // Shown before, and withdrawn: the machine always shows as much.
            (IoVec::Many(_), Some(bounce)) => (**bounce).clone(),
            (IoVec::Many(_), None) => match usize::try_from(len) {
                Ok(len) => port.alloc(len)?,
                Err(_) => {
                    return Err(RnicError::Limit {
                        what: "bytes of one receive in several pieces",
                        asked: len,
                        limit: usize::MAX as u64,
                    });
                }
            },
        };
        let (addr, mr) = (buf.seg.addr() + off, buf.mr);
        if matches!(recv.iov, IoVec::Many(_)) {
            recv.bounce = Some(Box::new(buf));
        }
        let key = port.lend(mr, addr, len, Access::REMOTE_WRITE)?;
        recv.window = Some(key);
        Ok(Some((addr, key)))
    }

    /// Closes the window onto a receive's buffer.
    pub(super) fn retract(&mut self, port: &mut dyn Port, op: u64) {
        if let Some(recv) = self.recvs.get_mut(op)
            && let Some(key) = recv.window.take()
        {
            recv.retracted = true;
            port.invalidate(key);
        }
    }

    /// Copies from a message or the ring into a receive's buffer.
    #[inline]
    pub(super) fn copy_in(
        &mut self,
        (src, from): (MessageBytes<'_>, usize),
        op: u64,
        off: u64,
        len: u32,
        counters: &mut Counters,
    ) {
        let Some(recv) = self.recvs.get_mut(op) else { return };
        recv.copied = true;
        if std::mem::take(&mut recv.retracted) {
            counters.adverts_stale += 1;
        }
        let mut at = from;
        recv.iov.for_range(off, len.into(), |piece, to, n| {
            src.copy_to(at, &piece.seg, to, n);
            at += n;
        });
        count_copy(counters, len.into());
    }

    /// The machine has ended a receive, or a part of one. `at_end`: the peer sends nothing more,
    /// and all that it sent is delivered.
    #[inline]
    pub(super) fn done(
        &mut self,
        port: &mut dyn Port,
        end: RecvEnd,
        at_end: bool,
        ends: &mut Ends<'_>,
    ) {
        let RecvEnd { op, bytes, total, eof, outcome } = end;
        let Some(recv) = self.recvs.get(op) else { return };
        // A stream's machine does not say that data have ended: a receive gets nothing, or less
        // than all that it waited for, only at the end.
        let short = bytes == 0 || (recv.waitall && bytes < recv.len && at_end);
        let stream_end = total.is_none() && recv.len > 0 && short;
        let (eof, error) = match (outcome, recv.fate.as_deref()) {
            (Outcome::Ok, _) => (eof || stream_end, None),
            (Outcome::Cancelled, Some(Fate::End)) => (bytes == 0, None),
            (Outcome::Cancelled, Some(Fate::Error(error))) => (false, Some(error.clone())),
            (Outcome::Cancelled, None) => (false, Some(OpError::Cancelled)),
        };
        let total = total.unwrap_or(bytes);
        self.finish(port, op, RecvResult { bytes, total, eof, error }, ends);
    }

    /// The connection is over: ends the receives that the machine gave up, with the bytes they
    /// hold. A receive that was being ended already keeps its own reason.
    pub(super) fn abort(
        &mut self,
        port: &mut dyn Port,
        ended: Vec<(u64, u64)>,
        reason: &OpError,
        ends: &mut Ends<'_>,
    ) {
        for (id, bytes) in ended {
            let error = match self.recvs.get(id).and_then(|r| r.fate.as_deref()) {
                Some(Fate::Error(error)) => Some(error.clone()),
                Some(Fate::End) => None,
                None => Some(reason.clone()),
            };
            let eof = error.is_none() && bytes == 0;
            self.finish(port, id, RecvResult { bytes, total: bytes, eof, error }, ends);
        }
    }

    /// Gives a receive's memory back and reports its end.
    fn finish(
        &mut self,
        port: &mut dyn Port,
        op: u64,
        RecvResult { bytes, total, eof, error }: RecvResult,
        ends: &mut Ends<'_>,
    ) {
        let Some(mut recv) = self.recvs.remove(op) else { return };
        if let Some(key) = recv.window.take() {
            port.invalidate(key);
        }
        if let Some(bounce) = recv.bounce.take() {
            if !recv.copied && bytes > 0 {
                let mut at = 0;
                recv.iov.for_range(0, bytes, |piece, to, n| {
                    bounce.seg.copy_to(at, &piece.seg, to, n);
                    at += n;
                });
                count_copy(ends.counters, bytes);
            }
            port.free(*bounce);
        }
        let result = error.map_or(Ok(()), Err);
        let mut done = Done { op: recv.user, bytes, total, eof, result };
        if let Some(id) = recv.group {
            let Some(group) = self.groups.get_mut(id) else { return };
            group.parts -= 1;
            group.bytes += bytes;
            group.eof |= eof;
            group.error = group.error.take().or(done.result.err());
            if group.parts > 0 {
                return;
            }
            let Some(group) = self.groups.remove(id) else { return };
            (done.bytes, done.total, done.eof) = (group.bytes, group.bytes, group.eof);
            done.result = group.error.map_or(Ok(()), Err);
        }
        ends.counters.recvs += 1;
        ends.done.push_back(done);
    }
}

pub(super) fn count_copy(counters: &mut Counters, len: u64) {
    if len > 0 {
        count(&mut counters.copies, 1);
        count(&mut counters.copied_bytes, len);
    }
}
