//! The receiving half: it takes records in order, checks each, and places the payload.
//!
//! A record that carries all of its payload is handled at once. The payload of any other record is
//! fetched in steps, from a region that the peer shares or from the lane, within the budget of a
//! turn. The keys are checked again for each step. So a window that is closed is not touched from
//! then on. A record counts as consumed when all of its payload is placed.

use std::collections::VecDeque;

use super::answers::OwedAnswer;
use super::consumer_index::RingReader;
use super::link::{Env, LinkError, ShmLink, SocketInput, TransferOutcome};
use super::record::{
    BY_LANE, INVALIDATE, PIECE_LEN, RecordHead, RecordKind, RecordPiece, SOLICITED,
};
use super::ring::{Area, LANE, Mem, Word};
use super::sleep::{FOR_RECORDS, FOR_ROOM};
use super::source::ViewError;
use crate::iwarp::RxBuf;
use crate::mem::{Access, AccessFault, GrantedPart, Key, MAX_SGE, Scope};
use crate::rnic::{TermCode, WcOp, WcStatus};
use crate::sys::IoVecMut;

/// Bytes copied from the lane in one step: few enough that both sides copy at the same time.
const LANE_STEP: u64 = 64 << 10;
/// Bytes copied from a mapped region in one step: so many that the checks before it cost nothing.
const MAPPED_STEP: u64 = 256 << 10;
/// Bytes of a window that are more than a processor's cache holds. To copy past the cache is faster
/// if one transfer fills the window.
const NON_TEMPORAL_WINDOW: usize = 8 << 20;
/// Bytes of a record that may belong to such a transfer, which comes in records of a megabyte.
const NON_TEMPORAL_TRANSFER: u64 = 512 << 10;

/// A refusal, with the codes of RFC 5040 section 4.8 and RFC 5041 section 7.2.
pub(super) const fn code(layer: u8, etype: u8, code: u8) -> LinkError {
    LinkError::Violation(TermCode { layer, etype, code })
}
/// A record that cannot be valid.
pub(super) const INVALID_RECORD: LinkError = code(0, 2, 7);
/// A record that is not allowed at this moment: an answer without a READ, or a READ beyond the limit.
pub(super) const UNEXPECTED: LinkError = code(0, 2, 6);
const CANNOT_INVALIDATE: LinkError = code(0, 1, 9);
const TOO_LONG: LinkError = code(1, 2, 5);
/// Memory of our own was revoked.
const LOCAL_CATASTROPHIC: LinkError = code(0, 0, 0);

pub(super) fn access_error(fault: &AccessFault) -> LinkError {
    match fault {
        AccessFault::InvalidKey { .. } => code(0, 1, 0),
        AccessFault::Bounds { .. } => code(0, 1, 1),
        AccessFault::Rights { .. } => code(0, 1, 2),
        AccessFault::Wrap { .. } => code(0, 1, 4),
        AccessFault::Alignment { .. } => INVALID_RECORD,
    }
}

/// A record whose payload is being fetched.
struct IncomingRecord {
    head: RecordHead,
    end: u64,
    /// The receive that it fills or consumes; None for a WRITE.
    buf: Option<RxBuf>,
    pieces: [RecordPiece; MAX_SGE],
    /// Bytes of payload that are placed.
    done: u64,
    by_lane: bool,
}

/// The receiving half.
#[derive(Default)]
pub(super) struct Rx {
    /// The ring of records.
    pub(super) ring: RingReader,
    /// Bytes taken out of the lane.
    lane_drained: u64,
    /// The record whose payload is being fetched.
    current: Option<Box<IncomingRecord>>,
    /// READs and atomic operations of the peer that are not answered completely, the oldest first.
    pub(super) owed: VecDeque<OwedAnswer>,
    /// The peer's last record was taken.
    pub(super) fin_received: bool,
}

impl Rx {
    /// True if there is a record to take, or payload for the record that is being fetched.
    pub(super) fn has_work(&self, mem: &Mem, stalled: bool) -> bool {
        match &self.current {
            Some(c) => !c.by_lane || mem.theirs(Word::Filled) != self.lane_drained,
            None => {
                let found = !stalled && !self.fin_received && mem.has_record(self.ring.pos);
                if found {
                    mem.prefetch_next_line(self.ring.pos);
                }
                found
            }
        }
    }

    /// True if no payload is being fetched, and another record may come.
    pub(super) fn is_free(&self) -> bool {
        self.current.is_none() && !self.fin_received
    }

    /// True if nothing is under way but the next record.
    pub(super) fn rests(&self) -> bool {
        self.is_free() && self.owed.is_empty() && self.ring.borrowed == 0
    }

    /// Drops the record that is being fetched, and returns its receive.
    pub(super) fn abandon(&mut self) -> Option<RxBuf> {
        self.current.take().and_then(|c| c.buf)
    }

    /// True if the record that is being fetched fills memory of this MR.
    pub(super) fn uses(&self, key: Key) -> bool {
        let buf = self.current.as_ref().and_then(|c| c.buf.as_ref());
        buf.is_some_and(|b| b.lkeys.contains(&key))
    }
}

/// True if a record is part of a transfer that exceeds the caches.
fn exceeds_caches(head: &RecordHead, env: &Env<'_>) -> bool {
    matches!(head.kind, RecordKind::Write | RecordKind::WriteImm)
        && head.total >= NON_TEMPORAL_TRANSFER
        && env.keys.get(head.key).is_some_and(|window| window.segment.len() >= NON_TEMPORAL_WINDOW)
}

impl ShmLink {
    /// Takes records until there are none, about `budget` bytes have come, or a receive is missing
    /// (then `stalled` is set).
    pub(super) fn receive(
        &mut self,
        env: &mut Env<'_>,
        budget: usize,
    ) -> Result<TransferOutcome, LinkError> {
        let (mut left, before) = (budget as u64, self.rx.ring.pos);
        let mut pass = TransferOutcome::default();
        self.base.stalled = false;
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
            if self.rx.fin_received || !self.mem.has_record(self.rx.ring.pos) {
                break;
            }
            if left == 0 {
                pass.more = true;
                break;
            }
            let head = self.head()?;
            if !self.begin_record(&head, env)? {
                self.base.stalled = true;
                break;
            }
            left = left.saturating_sub(head.len());
        }
        pass.moved |= self.rx.ring.pos != before;
        self.report_consumed();
        Ok(pass)
    }

    #[inline(always)]
    pub(super) fn head(&self) -> Result<RecordHead, LinkError> {
        self.rx.ring.head(&self.mem).ok_or(INVALID_RECORD)
    }

    /// Takes the next record, or begins to fetch its payload. False if there is no receive
    /// for it.
    fn begin_record(&mut self, head: &RecordHead, env: &mut Env<'_>) -> Result<bool, LinkError> {
        match head.kind {
            RecordKind::Send | RecordKind::LongSend => {
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
            RecordKind::Write | RecordKind::WriteImm => {
                // The whole range is checked before any byte is placed.
                ShmLink::target(head, 0, head.total, env)?;
                let buf = match head.kind {
                    RecordKind::WriteImm => match env.take() {
                        Some(buf) => Some(buf),
                        None => return Ok(false),
                    },
                    _ => None,
                };
                self.place(head, buf, env)?;
            }
            RecordKind::Read => self.begin_read(head, env)?,
            RecordKind::Atomic => self.execute_atomic(head, env)?,
            RecordKind::Answer => {
                let at = self.rx.ring.pos + head.payload_at();
                let sink = self.tx.take_answer(head.inline as u64).ok_or(UNEXPECTED)?;
                sink.for_range(|seg, from, n, done| {
                    self.mem.get(Area::Ring, at + done, &seg.io_vec_mut(from, n));
                });
                self.rx.ring.pos += head.len();
            }
            RecordKind::Fin => {
                self.rx.fin_received = true;
                self.rx.ring.pos += head.len();
            }
            RecordKind::Skip => self.skip_to_start(head),
        }
        Ok(true)
    }

    fn begin_send(&self, head: &RecordHead, buf: &RxBuf, env: &Env<'_>) -> Result<(), LinkError> {
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

    /// `len` bytes of the memory that a WRITE names, from offset `at` on. None for an empty WRITE.
    fn target<'a>(
        head: &RecordHead,
        at: u64,
        len: u64,
        env: &Env<'a>,
    ) -> Result<Option<GrantedPart<'a>>, LinkError> {
        if head.total == 0 {
            return Ok(None);
        }
        let need = Access { remote_write: true, ..Access::default() };
        let addr = head.raddr.checked_add(at).ok_or(code(0, 1, 4))?;
        match env.keys.check_remote(env.pd, env.qp, head.key, addr, len, need) {
            Ok(part) => Ok(Some(part)),
            Err(fault) => Err(access_error(&fault)),
        }
    }

    /// Places the payload that is in the record, and begins to fetch the rest.
    fn place(
        &mut self,
        head: &RecordHead,
        buf: Option<RxBuf>,
        env: &mut Env<'_>,
    ) -> Result<(), LinkError> {
        let (pos, inline) = (self.rx.ring.pos, head.inline as u64);
        let at = pos + head.payload_at();
        match (&buf, head.kind) {
            (Some(buf), RecordKind::Send | RecordKind::LongSend) => {
                let mut done = 0;
                buf.sgl.for_range(0, head.inline, |seg, from, n| {
                    self.mem.get(Area::Ring, at + done, &seg.io_vec_mut(from, n));
                    done += n as u64;
                });
            }
            _ => {
                if let Some(part) = ShmLink::target(head, 0, inline, env)? {
                    self.mem.get(Area::Ring, at, &part.io_vec_mut(head.inline));
                }
            }
        }
        if inline == head.total {
            return self.complete(head, buf, env);
        }
        let mut pieces = [RecordPiece::default(); MAX_SGE];
        let mut sum = inline;
        for (i, piece) in pieces.iter_mut().enumerate().take(head.pieces) {
            let mut raw = [0; PIECE_LEN];
            let from = pos + head.pieces_at() + (i * PIECE_LEN) as u64;
            self.mem.get(Area::Ring, from, &IoVecMut::new(&mut raw));
            *piece = RecordPiece::parse(&raw);
            sum = sum.saturating_add(piece.len);
        }
        let by_lane = head.flags & BY_LANE != 0;
        if !by_lane && sum != head.total {
            // Kept so that its receive is flushed with the connection.
            self.suspend(head, buf, pieces, inline, by_lane);
            return Err(INVALID_RECORD);
        }
        self.suspend(head, buf, pieces, inline, by_lane);
        Ok(())
    }

    /// Keeps a record whose payload must be fetched.
    fn suspend(
        &mut self,
        head: &RecordHead,
        buf: Option<RxBuf>,
        pieces: [RecordPiece; MAX_SGE],
        done: u64,
        by_lane: bool,
    ) {
        let end = self.rx.ring.pos + head.len();
        self.rx.current =
            Some(Box::new(IncomingRecord { head: *head, end, buf, pieces, done, by_lane }));
    }

    /// Completes a record whose payload is placed, and advances to the next one.
    fn complete(
        &mut self,
        head: &RecordHead,
        buf: Option<RxBuf>,
        env: &mut Env<'_>,
    ) -> Result<(), LinkError> {
        if let Some(buf) = buf {
            let op =
                if head.kind == RecordKind::WriteImm { WcOp::RecvWriteImm } else { WcOp::Recv };
            let mut wc = env.wc(buf.wr_id, op, WcStatus::Success, head.total);
            wc.imm = (op == WcOp::RecvWriteImm).then_some(head.imm);
            wc.invalidated = (head.flags & INVALIDATE != 0).then_some(head.key);
            wc.solicited = head.flags & SOLICITED != 0;
            env.wcs.push(wc);
        }
        self.rx.ring.pos += head.len();
        Ok(())
    }

    /// Fetches payload of the current record. True if the record is complete, or if there is none.
    fn fetch(&mut self, env: &mut Env<'_>, budget: &mut u64) -> Result<bool, LinkError> {
        loop {
            let Some(mut current) = self.rx.current.take() else { return Ok(true) };
            if current.done == current.head.total {
                let IncomingRecord { head, buf, .. } = *current;
                self.complete(&head, buf, env)?;
                // The peer's memory is free as soon as it sees this.
                self.report_transfer(head.total);
                return Ok(true);
            }
            let step = if *budget == 0 {
                Ok(0)
            } else if current.by_lane {
                self.copy_from_lane(&mut current, env, *budget)
            } else {
                self.copy_from_region(&mut current, env, *budget)
            };
            self.rx.current = Some(current);
            let n = step?;
            if n == 0 {
                return Ok(false);
            }
            *budget = budget.saturating_sub(n);
        }
    }

    /// Calls `f` with the pieces of local memory for the next `n` bytes.
    fn with_sink(
        &mut self,
        current: &IncomingRecord,
        n: u64,
        env: &Env<'_>,
        f: impl FnOnce(&mut ShmLink, &mut [IoVecMut<'_>]) -> Result<(), ViewError>,
    ) -> Result<Result<(), ViewError>, LinkError> {
        let len = usize::try_from(n).map_err(|_| INVALID_RECORD)?;
        let buf = match (&current.buf, current.head.kind) {
            (Some(buf), RecordKind::LongSend) => buf,
            _ => {
                let target =
                    ShmLink::target(&current.head, current.done, n, env)?.ok_or(INVALID_RECORD)?;
                return Ok(f(self, &mut [target.io_vec_mut(len)]));
            }
        };
        let at = usize::try_from(current.done).map_err(|_| INVALID_RECORD)?;
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

    /// Copies what the lane holds, up to one step. Returns the bytes; 0 if the lane is empty.
    fn copy_from_lane(
        &mut self,
        c: &mut IncomingRecord,
        env: &Env<'_>,
        budget: u64,
    ) -> Result<u64, LinkError> {
        let there = self.mem.theirs(Word::Filled).wrapping_sub(self.rx.lane_drained);
        if there > LANE {
            return Err(INVALID_RECORD);
        }
        let n = there.min(c.head.total - c.done).min(budget).min(LANE_STEP);
        if n == 0 {
            return Ok(0);
        }
        let copied = self.with_sink(c, n, env, |link, parts| {
            let mut at = link.rx.lane_drained;
            for part in parts {
                link.mem.get(Area::Lane, at, part);
                at = at.wrapping_add(part.len() as u64);
            }
            Ok(())
        })?;
        debug_assert!(copied.is_ok());
        self.rx.lane_drained = self.rx.lane_drained.wrapping_add(n);
        self.mem.set(Word::Drained, self.rx.lane_drained);
        self.ring(FOR_ROOM);
        c.done += n;
        Ok(n)
    }

    /// Copies from a mapped region, up to one step. Returns the bytes; 0 if the payload must come by
    /// the lane, which is asked for then.
    fn copy_from_region(
        &mut self,
        c: &mut IncomingRecord,
        env: &Env<'_>,
        budget: u64,
    ) -> Result<u64, LinkError> {
        let mut offset = c.done - c.head.inline as u64;
        let at = c.pieces.iter().find(|p| {
            let here = offset < p.len;
            if !here {
                offset -= p.len;
            }
            here
        });
        let piece = *at.ok_or(INVALID_RECORD)?;
        self.take_region_message(piece.slot, piece.generation)?;
        let n = (piece.len - offset).min(budget).min(MAPPED_STEP);
        let non_temporal = exceeds_caches(&c.head, env);
        let copied = self.with_sink(c, n, env, |link, parts| {
            link.views.copy(&piece, offset, parts, non_temporal)
        })?;
        // The bytes were the sender's only if it had not ended the connection by now.
        Mem::settle_reads();
        if let Some(end) = self.peer_end() {
            return Err(end);
        }
        match copied {
            Ok(()) => {
                c.done += n;
                Ok(n)
            }
            Err(ViewError::Bounds) => Err(INVALID_RECORD),
            Err(ViewError::ByLane) => {
                (c.by_lane, c.done) = (true, c.head.inline as u64);
                self.mem.set(Word::LaneFor, c.end);
                self.ring(FOR_ROOM | FOR_RECORDS);
                Ok(0)
            }
        }
    }

    /// Makes sure that the message which shares a region was read. The peer sent it before it
    /// published the record that names the region, so it is in the socket at least.
    fn take_region_message(&mut self, slot: u32, generation: u32) -> Result<(), LinkError> {
        if self.views.has(slot, generation) {
            return Ok(());
        }
        self.socket.readable = true;
        match self.next_input() {
            SocketInput::Nothing => Ok(()),
            _ => Err(INVALID_RECORD),
        }
    }
}
