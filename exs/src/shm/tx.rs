//! What goes: work requests become records, and records are waited for.
//!
//! How payload travels is decided when its record is written:
//!
//! | payload | road |
//! |---|---|
//! | up to 8 KiB | in the record |
//! | in regions that can be shared with the peer | the record says where; the peer copies it |
//! | other | by the lane: this side copies it in, the peer out, both at a time |
//!
//! A peer that finds that it cannot read what it was pointed to asks for the bytes by
//! the lane ([`Word::LaneFor`]). As the lane has no frames of its own, its bytes are in
//! the order of the records: so a record that is to use it waits until none is out that
//! may yet turn to it.
//!
//! A SEND in its record is complete when it is handed over, as its memory is free. All
//! else is complete when the peer is done with the record, which is after the bytes were
//! placed: so the completion of a WRITE says that the peer has it (`Caps::write_acked`).

use std::collections::VecDeque;

use super::link::{End, Env, FOR_RECORDS, Link, Pass};
use super::record::{BY_LANE, Head, INVALIDATE, Kind, MAX_PAYLOAD, PIECE, Piece, SOLICITED};
use super::ring::{Area, LANE, Mem, Word};
use super::ring_window::RingWindow;
use crate::iwarp::TxWr;
use crate::mem::{Access, AccessFault, Key, MAX_SGE, Segment, Sgl};
use crate::rnic::{MESSAGE, SendOp, TermCode, Wc, WcOp, WcStatus};
use crate::sys::IoVec;

/// Payload that always travels in its record: a message with 8 KiB of data, and its header.
pub(super) const IN_RECORD: usize = MESSAGE as usize;
/// Bytes of the lane that are filled before the peer is told.
const STEP: u64 = 64 << 10;
/// Bytes of one answer to a READ.
const ANSWER: u64 = 8 << 10;
/// How far records go before memory may be worth giving back.
const TRIM: u64 = 4 << 10;

/// The peer asks for something that was never offered.
const UNEXPECTED: End = End::Violation(TermCode { layer: 0, etype: 2, code: 6 });
/// A READ of a key that was taken back.
const READ_STAG: End = End::Violation(TermCode { layer: 0, etype: 1, code: 0 });

/// How the payload of a WR travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Not decided.
    Posted,
    InRecord,
    Pieces,
    Lane,
    /// A READ: it comes.
    Answers,
}

/// A WR that is not complete.
struct Entry {
    wr: TxWr,
    len: u64,
    /// Its record.
    start: u64,
    end: u64,
    how: How,
    /// Bytes that have come (READ).
    got: u64,
}

impl Entry {
    fn is_send(&self) -> bool {
        matches!(self.wr.op, SendOp::Send { .. })
    }

    fn is_done(&self, consumed: u64) -> bool {
        match self.how {
            How::Posted => false,
            How::InRecord if self.is_send() => true,
            How::Answers if self.len > 0 => self.got == self.len,
            _ => consumed >= self.end,
        }
    }

    fn op(&self) -> WcOp {
        match self.wr.op {
            SendOp::Send { .. } => WcOp::Send,
            SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOp::Write,
            SendOp::Read { .. } => WcOp::Read,
        }
    }
}

/// The part of a sink that an answer fills.
pub(super) struct Sink<'a> {
    sgl: &'a Sgl,
    at: usize,
    len: usize,
}

impl Sink<'_> {
    /// Calls `f(segment, offset in it, bytes, bytes before them)`.
    pub(super) fn for_range(&self, mut f: impl FnMut(&Segment, usize, usize, u64)) {
        let mut done = 0;
        self.sgl.for_range(self.at, self.len, |seg, at, n| {
            f(seg, at, n, done);
            done += n as u64;
        });
    }
}

/// The sending half.
#[derive(Default)]
pub(super) struct Tx {
    /// WRs that are not complete, the oldest first; so many of them have records, and so
    /// many may have (the doorbell was rung for them).
    queue: VecDeque<Entry>,
    out: usize,
    rung: usize,
    /// The number of the oldest.
    first: u64,
    /// Where the next record goes, and up to where the peer is done.
    pub(super) pos: u64,
    pub(super) consumed: u64,
    pub(super) lap: RingWindow,
    /// The stretch of the ring in which memory was given back last.
    trimmed: u64,
    /// End of the last record that points to memory.
    pointed: u64,
    /// READs whose answer is not complete.
    reads: u32,
    filled: u64,
    /// Where that was when the lane's memory was given back last.
    emptied: u64,
    /// WRs whose payload goes by the lane: number, bytes that have gone.
    lane: VecDeque<(u64, u64)>,
    lane_for: u64,
    /// What was pointed to could not be read: no more of that.
    no_pieces: bool,
    /// A record waits for room.
    pub(super) full: bool,
    /// And answers to the peer's READs (which smaller records may get ahead of).
    unanswered: bool,
    fin: bool,
}

impl Tx {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn push(&mut self, wr: TxWr) {
        let len = (wr.head.len() + wr.sgl.len()) as u64;
        self.queue.push_back(Entry { wr, len, start: 0, end: 0, how: How::Posted, got: 0 });
    }

    /// Gives memory back that an idle connection does not need, if there may be some.
    pub(super) fn trim(&mut self, mem: &Mem) {
        let page = self.pos / TRIM;
        if std::mem::replace(&mut self.trimmed, page) != page {
            mem.trim(self.consumed, self.pos);
        }
        // A lane with nothing in it that is on its way.
        if self.filled != self.emptied && mem.theirs(Word::Drained) == self.filled {
            self.emptied = self.filled;
            mem.trim_lane();
        }
    }

    /// The doorbell: what was posted may leave.
    pub(super) fn ring(&mut self) {
        self.rung = self.queue.len();
    }

    /// There may be something to do, by the words of the peer.
    pub(super) fn peek(&self, mem: &Mem) -> bool {
        self.waits_for_peer()
            && (mem.theirs(Word::Consumed) != self.consumed
                || mem.theirs(Word::LaneFor) > self.lane_for
                || self.lane_waits() && self.lane_room(mem) > 0)
    }

    /// Something waits for the peer to take records, or payload.
    pub(super) fn waits_for_peer(&self) -> bool {
        self.out > 0 || self.lacks_room() || self.lane_waits()
    }

    /// Something waits for room in the ring.
    pub(super) fn lacks_room(&self) -> bool {
        self.full || self.unanswered
    }

    fn lane_waits(&self) -> bool {
        !self.lane.is_empty()
    }

    fn lane_room(&self, mem: &Mem) -> u64 {
        LANE.saturating_sub(self.filled.wrapping_sub(mem.theirs(Word::Drained)))
    }

    /// The oldest READ's memory for the next `n` bytes of its answer; None if there is no
    /// READ that has so many to come.
    pub(super) fn answered(&mut self, n: u64) -> Option<Sink<'_>> {
        let pending = |e: &&mut Entry| e.how == How::Answers && e.got < e.len;
        let entry = self.queue.iter_mut().take(self.out).find(pending)?;
        let at = usize::try_from(entry.got).ok()?;
        entry.got = entry.got.checked_add(n).filter(|got| *got <= entry.len)?;
        if entry.got == entry.len {
            self.reads -= 1;
        }
        Some(Sink { sgl: &entry.wr.sgl, at, len: usize::try_from(n).ok()? })
    }

    /// All that was posted has left and is complete, and the last record too.
    pub(super) fn is_over(&self) -> bool {
        self.fin && self.queue.is_empty()
    }

    /// True if a WR's memory is of this MR, and still needed.
    pub(super) fn uses(&self, key: Key) -> bool {
        let mut live = self.queue.iter().filter(|e| e.how != How::InRecord);
        live.any(|e| e.wr.lkeys.contains(&key))
    }

    /// Empties the queue: how each WR ended. `refused`: the peer has refused the record at
    /// this position; `revoked`: this MR was taken away.
    pub(super) fn flush(
        &mut self,
        refused: Option<(u64, WcStatus)>,
        revoked: Option<Key>,
        mut f: impl FnMut(u64, WcOp, WcStatus),
    ) {
        for e in self.queue.drain(..) {
            let status = match (refused, revoked) {
                (Some((at, status)), _) if e.how != How::Posted && e.start == at => status,
                (_, Some(key)) if e.wr.lkeys.contains(&key) => {
                    WcStatus::LocalProtection(AccessFault::InvalidKey { key })
                }
                _ => WcStatus::Flushed,
            };
            f(e.wr.wr_id, e.op(), status);
        }
        (self.out, self.rung) = (0, 0);
        self.lane.clear();
    }

    /// Takes out what is complete.
    fn retire(&mut self, env: &mut Env<'_>) {
        while self.out > 0
            && let Some(e) = self.queue.front()
            && e.is_done(self.consumed)
        {
            if e.wr.signaled {
                let wc: Wc = env.wc(e.wr.wr_id, e.op(), WcStatus::Success, e.len);
                env.wcs.push(wc);
            }
            self.queue.pop_front();
            self.first += 1;
            self.out -= 1;
            self.rung = self.rung.saturating_sub(1);
        }
    }

    /// Nothing is before what is posted next.
    pub(super) fn is_clear(&self) -> bool {
        self.queue.is_empty() && !self.lacks_room() && !self.fin
    }

    /// Looks how far the peer is.
    fn look(&mut self, mem: &Mem) -> Result<(), End> {
        self.catch_up(mem).ok_or(UNEXPECTED)?;
        let wanted = mem.theirs(Word::LaneFor);
        if wanted > self.lane_for {
            self.lane_for = wanted;
            let asked = |e: &Entry| e.how == How::Pieces && e.end == wanted;
            let at = self.queue.iter().take(self.out).position(asked).ok_or(UNEXPECTED)?;
            self.queue[at].how = How::Lane;
            self.lane.push_front((self.first + at as u64, 0));
            self.no_pieces = true;
        }
        Ok(())
    }
}

impl Link {
    /// Writes what may leave, and takes note of what has arrived.
    pub(super) fn transmit(&mut self, env: &mut Env<'_>, budget: usize) -> Result<Pass, End> {
        self.tx.look(&self.mem)?;
        let (pos, filled) = (self.tx.pos, self.tx.filled);
        let mut left = budget as u64;
        self.answer(env, &mut left)?;
        self.tx.unanswered = !self.rx.reads.is_empty();
        self.tx.retire(env);
        while self.tx.out < self.tx.rung && self.publish(self.tx.out) {
            self.tx.out += 1;
        }
        if self.tx.pos != pos {
            self.ring(FOR_RECORDS);
        }
        self.fill_lane(&mut left)?;
        self.finish();
        self.tx.retire(env);
        let moved = self.tx.pos != pos || self.tx.filled != filled;
        Ok(Pass { more: left == 0, moved })
    }

    /// Writes a record and hands it over.
    pub(super) fn write(&mut self, head: &Head, payload: impl FnOnce(&Mem, u64), pieces: &[Piece]) {
        let pos = self.tx.pos;
        let (raw, len) = head.emit();
        self.mem.put(Area::Ring, pos + 8, &IoVec::new(&raw[..len]));
        payload(&self.mem, pos + head.payload_at());
        for (i, piece) in pieces.iter().enumerate() {
            let at = pos + head.pieces_at() + (i * PIECE) as u64;
            self.mem.put(Area::Ring, at, &IoVec::new(&piece.emit()));
        }
        self.mem.hand_over(pos);
        self.tx.pos += head.len();
    }

    /// Writes the record of a WR, if it can leave now.
    fn publish(&mut self, at: usize) -> bool {
        let e = &self.tx.queue[at];
        let (mut kind, mut flags, mut key, mut raddr, mut imm) = (Kind::LongSend, 0, 0, 0, 0);
        match e.wr.op {
            SendOp::Send { invalidate, solicited } => {
                flags = if solicited { SOLICITED } else { 0 };
                if let Some(k) = invalidate {
                    (flags, key) = (flags | INVALIDATE, k);
                }
            }
            SendOp::Write { raddr: a, rkey } => (kind, raddr, key) = (Kind::Write, a, rkey),
            SendOp::WriteImm { raddr: a, rkey, imm: i } => {
                (kind, raddr, key, imm) = (Kind::WriteImm, a, rkey, i);
            }
            SendOp::Read { raddr: a, rkey } => {
                if e.len > 0 && self.tx.reads >= self.ord {
                    return false;
                }
                (kind, raddr, key) = (Kind::Read, a, rkey);
            }
        }
        let (total, inline) = (e.len, e.wr.head.len());
        let mut head = Head { kind, flags, pieces: 0, inline, raddr, total, key, imm };
        let mut pieces = [Piece::default(); MAX_SGE];
        let how = match self.road(at, &mut head, &mut pieces) {
            Some(how) => how,
            None => return false,
        };
        if !self.has_room(head.len()) {
            return false;
        }
        let (pos, whole) = (self.tx.pos, how == How::InRecord);
        let queue = std::mem::take(&mut self.tx.queue);
        let wr = &queue[at].wr;
        let payload = |mem: &Mem, mut at: u64| {
            mem.put(Area::Ring, at, &IoVec::new(wr.head.as_slice()));
            at += wr.head.len() as u64;
            for seg in wr.sgl.iter().filter(|_| whole) {
                mem.put(Area::Ring, at, &seg.io_vec(0, seg.len()));
                at += seg.len() as u64;
            }
        };
        self.write(&head, payload, &pieces[..head.pieces]);
        self.tx.queue = queue;
        let number = self.tx.first + at as u64;
        match how {
            How::Pieces => {
                self.tx.pointed = self.tx.pos;
                self.shares.note(&pieces[..head.pieces], self.tx.pos);
            }
            How::Lane => self.tx.lane.push_back((number, 0)),
            How::Answers if total > 0 => self.tx.reads += 1,
            _ => {}
        }
        let end = self.tx.pos;
        let e = &mut self.tx.queue[at];
        (e.start, e.end, e.how) = (pos, end, how);
        true
    }

    /// Decides how the payload travels; None if it must wait.
    fn road(&mut self, at: usize, head: &mut Head, pieces: &mut [Piece; MAX_SGE]) -> Option<How> {
        let len = usize::try_from(head.total).ok()?;
        if head.kind == Kind::Read {
            return Some(How::Answers);
        }
        let in_record = |head: &mut Head| {
            head.inline = len;
            if head.kind == Kind::LongSend && head.flags & INVALIDATE == 0 {
                *head = Head::short(Kind::Send, head.flags, len);
            }
            Some(How::InRecord)
        };
        if len <= IN_RECORD {
            return in_record(head);
        }
        if self.trusted && !self.tx.no_pieces && self.point(at, head, pieces) {
            return Some(How::Pieces);
        }
        if len <= MAX_PAYLOAD {
            return in_record(head);
        }
        (self.tx.consumed >= self.tx.pointed).then(|| {
            head.flags |= BY_LANE;
            How::Lane
        })
    }

    /// Finds where the peer can read each segment of a WR.
    fn point(&mut self, at: usize, head: &mut Head, pieces: &mut [Piece; MAX_SGE]) -> bool {
        let Some(sock) = self.sock.as_ref().map(std::os::fd::AsFd::as_fd) else { return false };
        let count = self.tx.queue[at].wr.sgl.iter().count();
        let end = self.tx.pos + Head { pieces: count, ..*head }.len();
        for (i, seg) in self.tx.queue[at].wr.sgl.iter().enumerate() {
            pieces[i] = match self.shares.piece(seg, end, self.tx.consumed, sock) {
                Some(piece) => piece,
                None => return false,
            };
        }
        head.pieces = count;
        true
    }

    /// Answers READs of the peer's.
    fn answer(&mut self, env: &Env<'_>, left: &mut u64) -> Result<(), End> {
        while let Some(&asked) = self.rx.reads.front() {
            let n = asked.left.min(ANSWER);
            let inline = usize::try_from(n).map_err(|_| UNEXPECTED)?;
            let head = Head::short(Kind::Answer, 0, inline);
            if *left == 0 || !self.make_room(head.len()) {
                return Ok(());
            }
            // Looked up for each answer: a key may be taken back in between.
            let need = Access { remote_read: true, ..Access::default() };
            let source = env.keys.check_remote(env.pd, env.qp, asked.key, asked.raddr, n, need);
            let source = source.map_err(|_| READ_STAG)?;
            self.write(&head, |mem, at| mem.put(Area::Ring, at, &source.io_vec(inline)), &[]);
            *left = left.saturating_sub(n);
            match self.rx.reads.front_mut() {
                Some(a) if a.left > n => (a.left, a.raddr) = (a.left - n, a.raddr + n),
                _ => drop(self.rx.reads.pop_front()),
            }
        }
        Ok(())
    }

    /// Puts payload into the lane.
    fn fill_lane(&mut self, left: &mut u64) -> Result<(), End> {
        while let Some((number, done)) = self.tx.lane.front().copied() {
            let used = self.tx.filled.wrapping_sub(self.mem.theirs(Word::Drained));
            let room = LANE.checked_sub(used).ok_or(UNEXPECTED)?;
            let at = usize::try_from(number.wrapping_sub(self.tx.first)).unwrap_or(usize::MAX);
            let Some(e) = self.tx.queue.get(at) else {
                self.tx.lane.pop_front();
                continue;
            };
            let n = (e.wr.sgl.len() as u64 - done).min(room).min(STEP).min(*left);
            if n == 0 {
                return Ok(());
            }
            let (from, count) = (usize::try_from(done), usize::try_from(n));
            let (from, count) = (from.map_err(|_| UNEXPECTED)?, count.map_err(|_| UNEXPECTED)?);
            let mut to = self.tx.filled;
            e.wr.sgl.for_range(from, count, |seg, at, n| {
                self.mem.put(Area::Lane, to, &seg.io_vec(at, n));
                to = to.wrapping_add(n as u64);
            });
            let whole = done + n == e.wr.sgl.len() as u64;
            self.tx.filled = to;
            self.mem.set(Word::Filled, to);
            self.ring(FOR_RECORDS);
            *left -= n;
            match self.tx.lane.front_mut() {
                Some(job) if !whole => job.1 += n,
                _ => drop(self.tx.lane.pop_front()),
            }
        }
        Ok(())
    }

    /// Ends our side, when all of it has left.
    fn finish(&mut self) {
        let all = self.tx.out == self.tx.queue.len() && self.rx.reads.is_empty();
        let head = Head::short(Kind::Fin, 0, 0);
        if self.closing && !self.tx.fin && all && !self.tx.lane_waits() && self.has_room(head.len())
        {
            self.write(&head, |_, _| {}, &[]);
            self.tx.fin = true;
            self.ring(FOR_RECORDS);
        }
    }
}
