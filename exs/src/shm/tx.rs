//! The sending half: work requests become records, and wait for the peer.
//!
//! The route of a payload is chosen when its record is written:
//!
//! | payload | route |
//! |---|---|
//! | up to 8 KiB | in the record |
//! | in regions that can be shared with the peer | the record names the place; the peer copies it |
//! | other | by the lane: this side copies it in, the peer copies it out, both at a time |
//!
//! A peer that cannot read the place that a record names asks for the bytes by the lane
//! ([`Word::LaneFor`]). The lane has no frames of its own: its bytes are in the order of the
//! records. So a record that uses the lane waits until no earlier record can still turn to it.
//!
//! A SEND in its record is complete once the record is published, as its memory is free then.
//! Everything else is complete when the peer has consumed the record, which is after the bytes
//! were placed. So the completion of a WRITE says that the peer has the bytes
//! (`Caps::write_acked`).

use std::collections::VecDeque;

use super::answers::{AtomicOperands, OPERANDS_LEN};
use super::link::{Env, LinkError, LinkPhase, ShmLink, TransferOutcome};
use super::pending::{PayloadRoute, PendingWr, ReadSink};
use super::record::{
    BY_LANE, INVALIDATE, MAX_PAYLOAD, RecordHead, RecordKind, RecordPiece, SOLICITED,
};
use super::ring::{Area, LANE, Mem, Word};
use super::ring_window::RingWriter;
use super::sleep::FOR_RECORDS;
use crate::iwarp::TxWr;
use crate::mem::{AccessFault, Key, MAX_SGE};
use crate::rnic::{MESSAGE, SendOp, TermCode, Wc, WcOp, WcStatus};
use crate::sys::IoVec;

/// Bytes of payload that always travel in the record: a message with 8 KiB of data, and its header.
pub(super) const MAX_IN_RECORD: usize = MESSAGE as usize;
/// Bytes put into the lane before the peer is told.
const LANE_STEP: u64 = 64 << 10;
/// Bytes of records after which it may be worth giving memory back.
const TRIM_STEP: u64 = 4 << 10;

/// The peer asks for a payload that this side never offered.
const UNEXPECTED: LinkError = LinkError::Violation(TermCode { layer: 0, etype: 2, code: 6 });

/// The sending half.
#[derive(Default)]
pub(super) struct Tx {
    /// WRs that are not complete, the oldest first.
    queue: VecDeque<PendingWr>,
    /// WRs of `queue` that have records: the first ones.
    written: usize,
    /// WRs of `queue` that may have records: those before the last doorbell.
    doorbell_upto: usize,
    /// Number of the oldest WR in `queue`, counted over the life of the connection.
    first_number: u64,
    /// The ring of records.
    pub(super) ring: RingWriter,
    /// Page of the ring's stream (`TRIM_STEP`) at which memory was given back last.
    trimmed: u64,
    /// End of the last record that names pieces.
    last_piece_end: u64,
    /// READs and atomic operations whose answers are not complete.
    reads: u32,
    /// Bytes put into the lane.
    lane_filled: u64,
    /// `lane_filled` when the lane's memory was given back last.
    lane_trimmed: u64,
    /// WRs whose payload goes by the lane: number, bytes put into the lane.
    lane_queue: VecDeque<(u64, u64)>,
    /// [`Word::LaneFor`], as read last.
    lane_requested: u64,
    /// The peer could not read a piece: this side names none any more.
    no_pieces: bool,
    /// A record waits for room in the ring.
    pub(super) record_waits: bool,
    /// An answer to a READ of the peer waits for room. Smaller records may overtake it.
    answer_waits: bool,
    /// The last record was written.
    fin_sent: bool,
}

impl Tx {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    #[inline(always)]
    pub(super) fn push(&mut self, wr: TxWr) {
        let len = (wr.head.len() + wr.sgl.len()) as u64;
        self.queue.push_back(PendingWr {
            wr,
            len,
            start: 0,
            end: 0,
            route: PayloadRoute::Posted,
            received: 0,
        });
    }

    /// Gives memory that an idle connection does not need back to the kernel.
    pub(super) fn trim(&mut self, mem: &Mem) {
        let page = self.ring.pos / TRIM_STEP;
        if std::mem::replace(&mut self.trimmed, page) != page {
            mem.trim(self.ring.consumed, self.ring.pos);
        }
        // The peer has taken everything out of the lane.
        if self.lane_filled != self.lane_trimmed && mem.theirs(Word::Drained) == self.lane_filled {
            self.lane_trimmed = self.lane_filled;
            mem.trim_lane();
        }
    }

    /// Bytes put into the lane.
    pub(super) fn lane_filled(&self) -> u64 {
        self.lane_filled
    }

    /// Lets everything posted so far leave.
    pub(super) fn ring_doorbell(&mut self) {
        self.doorbell_upto = self.queue.len();
    }

    /// True if the words of the peer may have changed what this half can do.
    pub(super) fn has_work(&self, mem: &Mem) -> bool {
        self.waits_for_peer()
            && (mem.theirs(Word::Consumed) != self.ring.consumed
                || mem.theirs(Word::LaneFor) > self.lane_requested
                || self.lane_waits() && self.lane_room(mem) > 0)
    }

    /// True if a record or a payload waits for the peer.
    pub(super) fn waits_for_peer(&self) -> bool {
        self.written > 0 || self.waits_for_room() || self.lane_waits()
    }

    /// True if a record or an answer waits for room in the ring.
    pub(super) fn waits_for_room(&self) -> bool {
        self.record_waits || self.answer_waits
    }

    fn lane_waits(&self) -> bool {
        !self.lane_queue.is_empty()
    }

    fn lane_room(&self, mem: &Mem) -> u64 {
        LANE.saturating_sub(self.lane_filled.wrapping_sub(mem.theirs(Word::Drained)))
    }

    /// The memory of the oldest incomplete READ or atomic operation for the next `n` bytes of its
    /// answer. None if it awaits fewer bytes, or if there is none.
    pub(super) fn take_answer(&mut self, n: u64) -> Option<ReadSink<'_>> {
        let pending = |e: &&mut PendingWr| e.route == PayloadRoute::Answers && e.received < e.len;
        let entry = self.queue.iter_mut().take(self.written).find(pending)?;
        let at = usize::try_from(entry.received).ok()?;
        entry.received = entry.received.checked_add(n).filter(|sum| *sum <= entry.len)?;
        if entry.received == entry.len {
            self.reads -= 1;
        }
        Some(ReadSink { sgl: &entry.wr.sgl, at, len: usize::try_from(n).ok()? })
    }

    /// True if everything posted is complete, and the last record was written.
    pub(super) fn is_finished(&self) -> bool {
        self.fin_sent && self.queue.is_empty()
    }

    /// True if a WR still needs memory of this MR.
    pub(super) fn uses(&self, key: Key) -> bool {
        let mut live = self.queue.iter().filter(|e| e.route != PayloadRoute::InRecord);
        live.any(|e| e.wr.lkeys.contains(&key))
    }

    /// Empties the queue, and calls `f` with the result of each WR. `refused`: the position of the
    /// record that the peer has refused, and its status; `revoked`: the MR that was taken away.
    pub(super) fn flush(
        &mut self,
        refused: Option<(u64, WcStatus)>,
        revoked: Option<Key>,
        mut f: impl FnMut(u64, WcOp, WcStatus),
    ) {
        for e in self.queue.drain(..) {
            let status = match (refused, revoked) {
                (Some((at, status)), _) if e.route != PayloadRoute::Posted && e.start == at => {
                    status
                }
                (_, Some(key)) if e.wr.lkeys.contains(&key) => {
                    WcStatus::LocalProtection(AccessFault::InvalidKey { key })
                }
                _ => WcStatus::Flushed,
            };
            f(e.wr.wr_id, e.op(), status);
        }
        (self.written, self.doorbell_upto) = (0, 0);
        self.lane_queue.clear();
    }

    /// Takes complete WRs out of the queue, and makes their completions.
    fn retire(&mut self, env: &mut Env<'_>) {
        while self.written > 0
            && let Some(e) = self.queue.front()
            && e.is_done(self.ring.consumed)
        {
            if e.wr.signaled {
                let wc: Wc = env.wc(e.wr.wr_id, e.op(), WcStatus::Success, e.len);
                env.wcs.push(wc);
            }
            self.queue.pop_front();
            self.first_number += 1;
            self.written -= 1;
            self.doorbell_upto = self.doorbell_upto.saturating_sub(1);
        }
    }

    /// True if nothing posted earlier has yet to leave or to complete, and more may be posted.
    pub(super) fn is_drained(&self) -> bool {
        self.queue.is_empty() && !self.waits_for_room() && !self.fin_sent
    }

    /// True if nothing is under way but messages that are complete.
    pub(super) fn rests(&self) -> bool {
        self.is_drained() && !self.lane_waits() && self.reads == 0
    }

    /// Reads how far the peer is, and which payload it wants by the lane.
    ///
    /// # Errors
    /// The values are impossible.
    fn read_peer_words(&mut self, mem: &Mem) -> Result<(), LinkError> {
        self.ring.read_consumed(mem).ok_or(UNEXPECTED)?;
        let wanted = mem.theirs(Word::LaneFor);
        if wanted > self.lane_requested {
            self.lane_requested = wanted;
            let asked = |e: &PendingWr| e.route == PayloadRoute::Pieces && e.end == wanted;
            let at = self.queue.iter().take(self.written).position(asked).ok_or(UNEXPECTED)?;
            self.queue[at].route = PayloadRoute::Lane;
            self.lane_queue.push_front((self.first_number + at as u64, 0));
            self.no_pieces = true;
        }
        Ok(())
    }
}

impl ShmLink {
    /// Writes records and payload up to about `budget` bytes, and completes what the peer has taken.
    pub(super) fn transmit(
        &mut self,
        env: &mut Env<'_>,
        budget: usize,
    ) -> Result<TransferOutcome, LinkError> {
        self.tx.read_peer_words(&self.mem)?;
        let (pos, filled) = (self.tx.ring.pos, self.tx.lane_filled);
        let mut left = budget as u64;
        self.answer(env, &mut left)?;
        self.tx.answer_waits = self.owes_answers();
        self.tx.retire(env);
        while self.tx.written < self.tx.doorbell_upto && self.write_record(self.tx.written) {
            self.tx.written += 1;
        }
        if self.tx.ring.pos != pos {
            self.ring(FOR_RECORDS);
        }
        self.fill_lane(&mut left)?;
        self.send_fin();
        self.tx.retire(env);
        let moved = self.tx.ring.pos != pos || self.tx.lane_filled != filled;
        Ok(TransferOutcome { more: left == 0, moved })
    }

    /// Writes a record, for which the caller has reserved the room.
    pub(super) fn append(
        &mut self,
        head: &RecordHead,
        payload: impl FnOnce(&Mem, u64),
        pieces: &[RecordPiece],
    ) {
        self.tx.ring.append(head, payload, pieces, &self.mem);
    }

    /// Writes the record of the WR at this index. False if it has to wait.
    fn write_record(&mut self, at: usize) -> bool {
        let e = &self.tx.queue[at];
        let (mut kind, mut flags, mut key, mut raddr, mut imm) = (RecordKind::LongSend, 0, 0, 0, 0);
        let mut atomic = None;
        match e.wr.op {
            SendOp::Send { invalidate, solicited } => {
                flags = if solicited { SOLICITED } else { 0 };
                if let Some(k) = invalidate {
                    (flags, key) = (flags | INVALIDATE, k);
                }
            }
            SendOp::Write { raddr: a, rkey } => (kind, raddr, key) = (RecordKind::Write, a, rkey),
            SendOp::WriteImm { raddr: a, rkey, imm: i } => {
                (kind, raddr, key, imm) = (RecordKind::WriteImm, a, rkey, i);
            }
            SendOp::Read { raddr: a, rkey } => {
                if e.len > 0 && self.tx.reads >= self.peer.ord {
                    return false;
                }
                (kind, raddr, key) = (RecordKind::Read, a, rkey);
            }
            SendOp::Atomic { raddr: a, rkey, op } => {
                if self.tx.reads >= self.peer.ord {
                    return false;
                }
                (kind, raddr, key) = (RecordKind::Atomic, a, rkey);
                atomic = Some(AtomicOperands::of(op));
            }
        }
        let (total, inline) = (e.len, atomic.map_or(e.wr.head.len(), |_| OPERANDS_LEN));
        let mut head = RecordHead { kind, flags, pieces: 0, inline, raddr, total, key, imm };
        let mut pieces = [RecordPiece::default(); MAX_SGE];
        let route = match self.choose_route(at, &mut head, &mut pieces) {
            Some(route) => route,
            None => return false,
        };
        if !self.reserve_or_wait(head.len()) {
            return false;
        }
        let (pos, whole) = (self.tx.ring.pos, route == PayloadRoute::InRecord);
        let queue = std::mem::take(&mut self.tx.queue);
        let wr = &queue[at].wr;
        let operands = atomic.map(|a| a.emit());
        let payload = |mem: &Mem, mut at: u64| {
            let first = operands.as_ref().map_or(wr.head.as_slice(), |o| o.as_slice());
            mem.put(Area::Ring, at, &IoVec::new(first));
            at += wr.head.len() as u64;
            for seg in wr.sgl.iter().filter(|_| whole) {
                mem.put(Area::Ring, at, &seg.io_vec(0, seg.len()));
                at += seg.len() as u64;
            }
        };
        self.append(&head, payload, &pieces[..head.pieces]);
        self.tx.queue = queue;
        let number = self.tx.first_number + at as u64;
        match route {
            PayloadRoute::Pieces => {
                self.tx.last_piece_end = self.tx.ring.pos;
                self.shares.note(&pieces[..head.pieces], self.tx.ring.pos);
            }
            PayloadRoute::Lane => self.tx.lane_queue.push_back((number, 0)),
            PayloadRoute::Answers if total > 0 => self.tx.reads += 1,
            _ => {}
        }
        let end = self.tx.ring.pos;
        let e = &mut self.tx.queue[at];
        (e.start, e.end, e.route) = (pos, end, route);
        true
    }

    /// Chooses how the payload of a WR travels; None if the WR must wait.
    fn choose_route(
        &mut self,
        at: usize,
        head: &mut RecordHead,
        pieces: &mut [RecordPiece; MAX_SGE],
    ) -> Option<PayloadRoute> {
        let len = usize::try_from(head.total).ok()?;
        if matches!(head.kind, RecordKind::Read | RecordKind::Atomic) {
            return Some(PayloadRoute::Answers);
        }
        let in_record = |head: &mut RecordHead| {
            head.inline = len;
            if head.kind == RecordKind::LongSend && head.flags & INVALIDATE == 0 {
                *head = RecordHead::short(RecordKind::Send, head.flags, len);
            }
            Some(PayloadRoute::InRecord)
        };
        if len <= MAX_IN_RECORD {
            return in_record(head);
        }
        if self.peer.trusted && !self.tx.no_pieces && self.find_pieces(at, head, pieces) {
            return Some(PayloadRoute::Pieces);
        }
        if len <= MAX_PAYLOAD {
            return in_record(head);
        }
        (self.tx.ring.consumed >= self.tx.last_piece_end).then(|| {
            head.flags |= BY_LANE;
            PayloadRoute::Lane
        })
    }

    /// Fills `pieces` with the places where the peer can read the segments of a WR. False if there is
    /// a segment that the peer cannot read in place.
    fn find_pieces(
        &mut self,
        at: usize,
        head: &mut RecordHead,
        pieces: &mut [RecordPiece; MAX_SGE],
    ) -> bool {
        let Some(sock) = self.socket.sock.as_ref().map(std::os::fd::AsFd::as_fd) else {
            return false;
        };
        let count = self.tx.queue[at].wr.sgl.iter().count();
        let end = self.tx.ring.pos + RecordHead { pieces: count, ..*head }.len();
        for (i, seg) in self.tx.queue[at].wr.sgl.iter().enumerate() {
            pieces[i] = match self.shares.piece(seg, end, self.tx.ring.consumed, sock) {
                Some(piece) => piece,
                None => return false,
            };
        }
        head.pieces = count;
        true
    }

    /// Puts payload into the lane, up to `left` bytes.
    fn fill_lane(&mut self, left: &mut u64) -> Result<(), LinkError> {
        while let Some((number, done)) = self.tx.lane_queue.front().copied() {
            let used = self.tx.lane_filled.wrapping_sub(self.mem.theirs(Word::Drained));
            let room = LANE.checked_sub(used).ok_or(UNEXPECTED)?;
            let at =
                usize::try_from(number.wrapping_sub(self.tx.first_number)).unwrap_or(usize::MAX);
            let Some(e) = self.tx.queue.get(at) else {
                self.tx.lane_queue.pop_front();
                continue;
            };
            let n = (e.wr.sgl.len() as u64 - done).min(room).min(LANE_STEP).min(*left);
            if n == 0 {
                return Ok(());
            }
            let (from, count) = (usize::try_from(done), usize::try_from(n));
            let (from, count) = (from.map_err(|_| UNEXPECTED)?, count.map_err(|_| UNEXPECTED)?);
            let mut to = self.tx.lane_filled;
            e.wr.sgl.for_range(from, count, |seg, at, n| {
                self.mem.put(Area::Lane, to, &seg.io_vec(at, n));
                to = to.wrapping_add(n as u64);
            });
            let whole = done + n == e.wr.sgl.len() as u64;
            self.tx.lane_filled = to;
            self.mem.set(Word::Filled, to);
            self.ring(FOR_RECORDS);
            *left -= n;
            match self.tx.lane_queue.front_mut() {
                Some(job) if !whole => job.1 += n,
                _ => drop(self.tx.lane_queue.pop_front()),
            }
        }
        Ok(())
    }

    /// Writes the last record once everything else has left.
    fn send_fin(&mut self) {
        let all = self.tx.written == self.tx.queue.len() && !self.owes_answers();
        let head = RecordHead::short(RecordKind::Fin, 0, 0);
        if self.phase == LinkPhase::Closing
            && !self.tx.fin_sent
            && all
            && !self.tx.lane_waits()
            && self.reserve_or_wait(head.len())
        {
            self.append(&head, |_, _| {}, &[]);
            self.tx.fin_sent = true;
            if self.rx.fin_received && self.tx.is_finished() {
                self.ring_at_end();
            } else {
                self.ring(FOR_RECORDS);
            }
        }
    }
}
