//! What comes: records in order, each checked, and its payload placed by this side.
//!
//! A record that carries all of its payload is dealt with at once. For another the
//! payload is fetched piece by piece (from a region that the peer shares, or from the lane), within
//! the budget of a turn, and the keys are looked at again for each piece: so a window that
//! is closed stays untouched from then on. A record counts as consumed when it is done.

use std::collections::VecDeque;

use super::link::{End, Env, FOR_RECORDS, FOR_ROOM, Link, Note, Pass};
use super::record::{BY_LANE, Head, INVALIDATE, Kind, PIECE, Piece, SOLICITED};
use super::ring::{Area, LANE, Mem, Word};
use super::source::Unread;
use super::tell::Told;
use crate::iwarp::RxBuf;
use crate::mem::{Access, AccessFault, GrantedPart, Key, MAX_SGE, Scope};
use crate::rnic::{TermCode, WcOp, WcStatus};
use crate::sys::IoVecMut;

/// Bytes that are copied in one go: from the lane few enough for its two sides to work at
/// the same time, and from a mapped region enough that the checks before each cost nothing.
const STEP: u64 = 64 << 10;
const MAPPED_STEP: u64 = 256 << 10;
/// Memory that is more than a processor's cache holds, if one transfer fills it: to copy past the
/// cache is faster. A transfer comes in records of a megabyte; shorter ones are none of such.
const MUCH: usize = 8 << 20;
const MUCH_AT_ONCE: u64 = 512 << 10;

/// What is refused, in the words of RFC 5040 section 4.8 and RFC 5041 section 7.2.
const fn code(layer: u8, etype: u8, code: u8) -> End {
    End::Violation(TermCode { layer, etype, code })
}
/// A record that makes no sense.
const NONSENSE: End = code(0, 2, 7);
/// Something that only the other side could do, or too much of it.
const UNEXPECTED: End = code(0, 2, 6);
const CANNOT_INVALIDATE: End = code(0, 1, 9);
const TOO_LONG: End = code(1, 2, 5);
/// Our own memory was taken away.
const LOCAL_CATASTROPHIC: End = code(0, 0, 0);

fn refused(fault: &AccessFault) -> End {
    match fault {
        AccessFault::InvalidKey { .. } => code(0, 1, 0),
        AccessFault::Bounds { .. } => code(0, 1, 1),
        AccessFault::Rights { .. } => code(0, 1, 2),
        AccessFault::Wrap { .. } => code(0, 1, 4),
    }
}

/// A READ of the peer's that is being answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) raddr: u64,
    pub(super) key: Key,
    pub(super) left: u64,
}

/// A record whose payload is on its way.
struct Incoming {
    head: Head,
    end: u64,
    /// The receive that it fills or consumes.
    buf: Option<RxBuf>,
    pieces: [Piece; MAX_SGE],
    done: u64,
    by_lane: bool,
}

/// The receiving half.
#[derive(Default)]
pub(super) struct Rx {
    /// Where the next record is.
    pub(super) pos: u64,
    pub(super) told: Told,
    /// Bytes of the last record, while it is lent: they are not told as taken yet.
    pub(super) lent: u64,
    drained: u64,
    current: Option<Box<Incoming>>,
    /// READs to be answered, the oldest first.
    pub(super) reads: VecDeque<Asked>,
    /// The peer's last record has come.
    pub(super) fin: bool,
}

impl Rx {
    /// There is something to do: a record, or payload of the one under way.
    pub(super) fn peek(&self, mem: &Mem, stalled: bool) -> bool {
        match &self.current {
            Some(c) => !c.by_lane || mem.theirs(Word::Filled) != self.drained,
            None => {
                let found = !stalled && !self.fin && mem.arrived(self.pos);
                if found {
                    mem.fetch_behind(self.pos);
                }
                found
            }
        }
    }

    /// No record is under way, and one may come.
    pub(super) fn is_free(&self) -> bool {
        self.current.is_none() && !self.fin
    }

    /// The receive that a record under way fills, if it ends early.
    pub(super) fn abandon(&mut self) -> Option<RxBuf> {
        self.current.take().and_then(|c| c.buf)
    }

    /// Takes the memory of an MR away: true if a record under way was to fill it.
    pub(super) fn uses(&self, key: Key) -> bool {
        let buf = self.current.as_ref().and_then(|c| c.buf.as_ref());
        buf.is_some_and(|b| b.lkeys.contains(&key))
    }
}

/// The payload of a record is a part of more than caches hold.
fn is_much(head: &Head, env: &Env<'_>) -> bool {
    matches!(head.kind, Kind::Write | Kind::WriteImm)
        && head.total >= MUCH_AT_ONCE
        && env.keys.get(head.key).is_some_and(|window| window.segment.len() >= MUCH)
}

impl Link {
    /// Deals with records until there are none, the budget is used up, or a receive is
    /// missing.
    pub(super) fn receive(&mut self, env: &mut Env<'_>, budget: usize) -> Result<Pass, End> {
        let (mut left, before) = (budget as u64, self.rx.pos);
        let mut pass = Pass::default();
        self.stalled = false;
        loop {
            if self.rx.current.is_some() {
                let had = left;
                let done = self.fetch(env, &mut left)?;
                pass.moved |= had != left || done;
                if !done {
                    pass.more = left == 0;
                    break;
                }
            }
            if self.rx.fin || !self.mem.arrived(self.rx.pos) {
                break;
            }
            if left == 0 {
                pass.more = true;
                break;
            }
            let head = self.head()?;
            if !self.begin(&head, env)? {
                self.stalled = true;
                break;
            }
            left = left.saturating_sub(head.len());
        }
        pass.moved |= self.rx.pos != before;
        self.tell_consumed();
        Ok(pass)
    }

    #[inline(always)]
    pub(super) fn head(&self) -> Result<Head, End> {
        Head::parse(&self.mem.head_at(self.rx.pos)).ok_or(NONSENSE)
    }

    /// Deals with the record at hand; false if there is no receive for it.
    fn begin(&mut self, head: &Head, env: &mut Env<'_>) -> Result<bool, End> {
        match head.kind {
            Kind::Send | Kind::LongSend => {
                let Some(buf) = env.take() else { return Ok(false) };
                if let Err(end) = self.begin_send(head, &buf, env) {
                    let status = match end {
                        TOO_LONG => WcStatus::LocalLength,
                        _ => WcStatus::Flushed,
                    };
                    env.wcs.push(env.wc(buf.wr_id, WcOp::Recv, status, 0));
                    return Err(end);
                }
                self.place(head, Some(buf), env)?;
            }
            Kind::Write | Kind::WriteImm => {
                // All of it is checked before any of it is placed.
                Link::target(head, 0, head.total, env)?;
                let buf = match head.kind {
                    Kind::WriteImm => match env.take() {
                        Some(buf) => Some(buf),
                        None => return Ok(false),
                    },
                    _ => None,
                };
                self.place(head, buf, env)?;
            }
            Kind::Read => self.asked(head, env)?,
            Kind::Answer => {
                let at = self.rx.pos + head.payload_at();
                let sink = self.tx.answered(head.inline as u64).ok_or(UNEXPECTED)?;
                sink.for_range(|seg, from, n, done| {
                    self.mem.get(Area::Ring, at + done, &seg.io_vec_mut(from, n));
                });
                self.rx.pos += head.len();
            }
            Kind::Fin => {
                self.rx.fin = true;
                self.rx.pos += head.len();
            }
            Kind::Skip => self.skip(head),
        }
        Ok(true)
    }

    fn begin_send(&self, head: &Head, buf: &RxBuf, env: &Env<'_>) -> Result<(), End> {
        if head.total > buf.sgl.len() as u64 {
            return Err(TOO_LONG);
        }
        let window = Scope::QueuePair(env.pd, env.qp);
        let own = |key| env.keys.get(key).is_some_and(|g| g.scope == window);
        if head.flags & INVALIDATE != 0 && !own(head.key) {
            return Err(CANNOT_INVALIDATE);
        }
        Ok(())
    }

    fn asked(&mut self, head: &Head, env: &Env<'_>) -> Result<(), End> {
        if self.rx.reads.len() >= self.ird as usize {
            return Err(UNEXPECTED);
        }
        if head.total > 0 {
            let (key, addr, len) = (head.key, head.raddr, head.total);
            let need = Access { remote_read: true, ..Access::default() };
            let granted = env.keys.check_remote(env.pd, env.qp, key, addr, len, need);
            granted.map_err(|fault| refused(&fault))?;
            self.rx.reads.push_back(Asked { raddr: addr, key, left: len });
        }
        self.rx.pos += head.len();
        Ok(())
    }

    /// The memory that a WRITE names, from `at` bytes in it.
    fn target<'a>(
        head: &Head,
        at: u64,
        len: u64,
        env: &Env<'a>,
    ) -> Result<Option<GrantedPart<'a>>, End> {
        if head.total == 0 {
            return Ok(None);
        }
        let need = Access { remote_write: true, ..Access::default() };
        let addr = head.raddr.checked_add(at).ok_or(code(0, 1, 4))?;
        match env.keys.check_remote(env.pd, env.qp, head.key, addr, len, need) {
            Ok(part) => Ok(Some(part)),
            Err(fault) => Err(refused(&fault)),
        }
    }

    /// Places the payload that is in the record, and sees to the rest.
    fn place(&mut self, head: &Head, buf: Option<RxBuf>, env: &mut Env<'_>) -> Result<(), End> {
        let (pos, inline) = (self.rx.pos, head.inline as u64);
        let at = pos + head.payload_at();
        match (&buf, head.kind) {
            (Some(buf), Kind::Send | Kind::LongSend) => {
                let mut done = 0;
                buf.sgl.for_range(0, head.inline, |seg, from, n| {
                    self.mem.get(Area::Ring, at + done, &seg.io_vec_mut(from, n));
                    done += n as u64;
                });
            }
            _ => {
                if let Some(part) = Link::target(head, 0, inline, env)? {
                    self.mem.get(Area::Ring, at, &part.io_vec_mut(head.inline));
                }
            }
        }
        if inline == head.total {
            return self.complete(head, buf, env);
        }
        let mut pieces = [Piece::default(); MAX_SGE];
        let mut sum = inline;
        for (i, piece) in pieces.iter_mut().enumerate().take(head.pieces) {
            let mut raw = [0; PIECE];
            let from = pos + head.pieces_at() + (i * PIECE) as u64;
            self.mem.get(Area::Ring, from, &IoVecMut::new(&mut raw));
            *piece = Piece::parse(&raw);
            sum = sum.saturating_add(piece.len);
        }
        let by_lane = head.flags & BY_LANE != 0;
        if !by_lane && sum != head.total {
            // (The receive is flushed with the connection.)
            self.keep(head, buf, pieces, inline, by_lane);
            return Err(NONSENSE);
        }
        self.keep(head, buf, pieces, inline, by_lane);
        Ok(())
    }

    fn keep(
        &mut self,
        head: &Head,
        buf: Option<RxBuf>,
        pieces: [Piece; MAX_SGE],
        done: u64,
        by_lane: bool,
    ) {
        let end = self.rx.pos + head.len();
        self.rx.current = Some(Box::new(Incoming { head: *head, end, buf, pieces, done, by_lane }));
    }

    /// The record is done: on to the next.
    fn complete(&mut self, head: &Head, buf: Option<RxBuf>, env: &mut Env<'_>) -> Result<(), End> {
        if let Some(buf) = buf {
            let op = if head.kind == Kind::WriteImm { WcOp::RecvWriteImm } else { WcOp::Recv };
            let mut wc = env.wc(buf.wr_id, op, WcStatus::Success, head.total);
            wc.imm = (op == WcOp::RecvWriteImm).then_some(head.imm);
            wc.invalidated = (head.flags & INVALIDATE != 0).then_some(head.key);
            wc.solicited = head.flags & SOLICITED != 0;
            env.wcs.push(wc);
        }
        self.rx.pos += head.len();
        Ok(())
    }

    /// Fetches payload of the record under way; true if it is complete.
    fn fetch(&mut self, env: &mut Env<'_>, budget: &mut u64) -> Result<bool, End> {
        loop {
            let Some(mut current) = self.rx.current.take() else { return Ok(true) };
            if current.done == current.head.total {
                let Incoming { head, buf, .. } = *current;
                self.complete(&head, buf, env)?;
                // The peer's memory is free as soon as it sees this.
                self.tell_of(head.total);
                return Ok(true);
            }
            let step = if *budget == 0 {
                Ok(0)
            } else if current.by_lane {
                self.take_lane(&mut current, env, *budget)
            } else {
                self.take_memory(&mut current, env, *budget)
            };
            self.rx.current = Some(current);
            let n = step?;
            if n == 0 {
                return Ok(false);
            }
            *budget = budget.saturating_sub(n);
        }
    }

    /// Calls `f` with the pieces of local memory that the next `n` bytes belong to.
    fn sink(
        &mut self,
        current: &Incoming,
        n: u64,
        env: &Env<'_>,
        f: impl FnOnce(&mut Link, &mut [IoVecMut<'_>]) -> Result<(), Unread>,
    ) -> Result<Result<(), Unread>, End> {
        let len = usize::try_from(n).map_err(|_| NONSENSE)?;
        let buf = match (&current.buf, current.head.kind) {
            (Some(buf), Kind::LongSend) => buf,
            _ => {
                let target = Link::target(&current.head, current.done, n, env)?.ok_or(NONSENSE)?;
                return Ok(f(self, &mut [target.io_vec_mut(len)]));
            }
        };
        let at = usize::try_from(current.done).map_err(|_| NONSENSE)?;
        if at + len > buf.sgl.len() {
            return Err(LOCAL_CATASTROPHIC);
        }
        let mut parts: [IoVecMut<'_>; MAX_SGE] = Default::default();
        let (mut used, mut skip, mut left) = (0, at, len);
        for seg in buf.sgl.iter() {
            let from = skip.min(seg.len());
            let take = (seg.len() - from).min(left);
            if take > 0 {
                parts[used] = seg.io_vec_mut(from, take);
                used += 1;
            }
            (skip, left) = (skip - from, left - take);
        }
        Ok(f(self, &mut parts[..used]))
    }

    fn take_lane(&mut self, c: &mut Incoming, env: &Env<'_>, budget: u64) -> Result<u64, End> {
        let there = self.mem.theirs(Word::Filled).wrapping_sub(self.rx.drained);
        if there > LANE {
            return Err(NONSENSE);
        }
        let n = there.min(c.head.total - c.done).min(budget).min(STEP);
        if n == 0 {
            return Ok(0);
        }
        let copied = self.sink(c, n, env, |link, parts| {
            let mut at = link.rx.drained;
            for part in parts {
                link.mem.get(Area::Lane, at, part);
                at = at.wrapping_add(part.len() as u64);
            }
            Ok(())
        })?;
        debug_assert!(copied.is_ok());
        self.rx.drained = self.rx.drained.wrapping_add(n);
        self.mem.set(Word::Drained, self.rx.drained);
        self.ring(FOR_ROOM);
        c.done += n;
        Ok(n)
    }

    fn take_memory(&mut self, c: &mut Incoming, env: &Env<'_>, budget: u64) -> Result<u64, End> {
        let mut offset = c.done - c.head.inline as u64;
        let at = c.pieces.iter().find(|p| {
            let here = offset < p.len;
            if !here {
                offset -= p.len;
            }
            here
        });
        let piece = *at.ok_or(NONSENSE)?;
        self.await_region(piece.slot, piece.generation)?;
        let n = (piece.len - offset).min(budget).min(MAPPED_STEP);
        let much = is_much(&c.head, env);
        let copied =
            self.sink(c, n, env, |link, parts| link.views.copy(&piece, offset, parts, much))?;
        // The bytes are the sender's only if it had not let go of them by then.
        Mem::settle_reads();
        if let Some(end) = self.their_end() {
            return Err(end);
        }
        match copied {
            Ok(()) => {
                c.done += n;
                Ok(n)
            }
            Err(Unread::Bounds) => Err(NONSENSE),
            Err(Unread::ByLane) => {
                (c.by_lane, c.done) = (true, c.head.inline as u64);
                self.mem.set(Word::LaneFor, c.end);
                self.ring(FOR_ROOM | FOR_RECORDS);
                Ok(0)
            }
        }
    }

    /// A region was shared before the record that names it was handed over: its message
    /// is in the socket, if it has not been taken out yet.
    fn await_region(&mut self, slot: u32, generation: u32) -> Result<(), End> {
        if self.views.has(slot, generation) {
            return Ok(());
        }
        self.readable = true;
        match self.next_note() {
            Note::Nothing => Ok(()),
            _ => Err(NONSENSE),
        }
    }
}
