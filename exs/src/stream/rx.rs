//! The receiving half of a stream: rules R1, R4, R5 and the receiver's part of R6
//! to R9.

use std::collections::VecDeque;

use crate::ids::{OpId, Outcome};

use super::ring::RxRing;
use super::rules::{Rule, Rules};
use super::{Data, MAX_ADVERTS, RecvPost, RxAction, StreamConfig, StreamViolation, is_direct};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Recv {
    post: RecvPost,
    /// Bytes in its buffer.
    filled: u64,
    /// Bytes of the buffer, from `filled` on, that the peer may write: 0 means that
    /// it is not advertised.
    shown: u32,
    /// Ends as soon as the peer has let go of it.
    cancelled: bool,
}

impl Recv {
    const fn left(&self) -> u64 {
        self.post.len - self.filled
    }

    /// Nothing of the buffer is left to be shown.
    fn wholly_shown(&self) -> bool {
        u64::from(self.shown) == self.left()
    }
}

/// The receiving half of one direction of a stream.
///
/// After each call, `poll` until it gives nothing: the copies are due before the
/// next message is handled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StreamRx {
    rules: Rules,
    /// Pr: even direct, odd indirect.
    phase: u32,
    /// Sr: stream position of the next byte to come.
    seq: u64,
    ring: RxRing,
    /// Pending receives in order. The first `shown` of them are advertised.
    recvs: VecDeque<Recv>,
    shown: usize,
    /// Sum of their `shown`.
    shown_bytes: u64,
    /// Bytes of one ADVERT, at most (smaller only in tests).
    max_advert: u32,
    /// WITHDRAW is out, WITHDRAWN not yet in.
    withdrawing: bool,
    fin: bool,
    /// The peer may write into the ring.
    granted: bool,
    /// The ring's memory exists for inline data alone.
    stashed: bool,
    /// `idle` wants every freed byte acknowledged.
    ack_all: bool,
    /// Ack was polled, and the bytes not yet taken.
    ack_told: bool,
    out: VecDeque<RxAction>,
}

impl StreamRx {
    /// `cfg` tells of *our* ring (at least 1 byte) and of what both agreed on.
    #[must_use]
    pub fn new(cfg: StreamConfig) -> Self {
        Self {
            rules: Rules::default(),
            phase: 0,
            seq: 0,
            ring: RxRing::new(cfg.ring),
            recvs: VecDeque::new(),
            shown: 0,
            shown_bytes: 0,
            max_advert: u32::MAX,
            withdrawing: false,
            fin: false,
            granted: false,
            stashed: false,
            ack_all: false,
            ack_told: false,
            out: VecDeque::new(),
        }
    }

    /// Queues a receive. One of 0 bytes ends at once, whoever waits before it, as
    /// read(2) of 0 bytes does.
    pub fn post_recv(&mut self, post: RecvPost) {
        if post.len == 0 {
            self.out.push_back(RxAction::Done { op: post.op, bytes: 0, outcome: Outcome::Ok });
            return;
        }
        self.recvs.push_back(Recv { post, filled: 0, shown: 0, cancelled: false });
        self.pump();
    }

    /// Cancels; false if there is no such operation.
    ///
    /// A receive that is not advertised ends at once, with the bytes that it holds.
    /// One that is, ends when the peer has answered (R7), or before that if its data
    /// come first.
    pub fn cancel(&mut self, op: OpId) -> bool {
        let Some(at) = self.recvs.iter().position(|r| r.post.op == op) else { return false };
        if at >= self.shown || !self.rules.hold(Rule::AwaitWithdrawn) {
            self.end(at, Outcome::Cancelled);
            self.pump();
            return true;
        }
        self.recvs[at].cancelled = true;
        if !self.withdrawing {
            self.withdrawing = true;
            self.out.push_back(RxAction::Withdraw);
        }
        true
    }

    /// Cancels every receive.
    pub fn cancel_all(&mut self) {
        // Those that are not advertised first, so that none of them is advertised
        // in the place of another.
        while self.recvs.len() > self.shown {
            self.end(self.recvs.len() - 1, Outcome::Cancelled);
        }
        for at in (0..self.recvs.len()).rev() {
            let op = self.recvs[at].post.op;
            self.cancel(op);
        }
    }

    /// DATA came (R4, R5). Poll its actions out before the next message is handled.
    ///
    /// # Errors
    /// The peer broke the rules; nothing has changed.
    pub fn handle_data(&mut self, data: Data) -> Result<(), StreamViolation> {
        if self.fin || data.len == 0 {
            return Err(StreamViolation::Unexpected("DATA after FIN or of 0 bytes"));
        }
        if data.direct { self.direct(data)? } else { self.indirect(data)? }
        self.pump();
        Ok(())
    }

    /// WITHDRAWN came (R7): the peer has let go of every buffer.
    ///
    /// # Errors
    /// Nobody asked for it.
    pub fn handle_withdrawn(&mut self) -> Result<(), StreamViolation> {
        if !self.withdrawing {
            return Err(StreamViolation::Unexpected("WITHDRAWN"));
        }
        self.withdrawing = false;
        self.unadvertise();
        self.pump();
        Ok(())
    }

    /// FIN came (R8).
    ///
    /// # Errors
    /// It came before.
    pub fn handle_fin(&mut self) -> Result<(), StreamViolation> {
        if self.fin {
            return Err(StreamViolation::Unexpected("FIN"));
        }
        self.fin = true;
        self.pump();
        Ok(())
    }

    /// RING_REQ came (R9).
    ///
    /// # Errors
    /// The peer has the ring already, or no use for it.
    pub fn handle_ring_request(&mut self) -> Result<(), StreamViolation> {
        if self.granted || self.fin {
            return Err(StreamViolation::Unexpected("RING_REQ"));
        }
        self.granted = true;
        self.out.push_back(RxAction::GrantRing);
        Ok(())
    }

    /// RING_RELEASE came (R9).
    ///
    /// # Errors
    /// The peer does not have the ring, or cannot know that it is empty.
    pub fn handle_ring_release(&mut self) -> Result<(), StreamViolation> {
        if !self.granted || self.fin || !self.ring.is_clean() {
            return Err(StreamViolation::Unexpected("RING_RELEASE"));
        }
        self.granted = false;
        self.stashed = false;
        self.out.push_back(RxAction::DropRing);
        Ok(())
    }

    /// Nothing has come for long: acknowledges what is freed (the peer must see an
    /// empty ring before it can give it back), and drops an empty ring that was made
    /// for inline data only.
    pub fn idle(&mut self) {
        self.ack_all = self.ring.freed() > 0;
        if self.stashed && !self.granted && self.ring.fill() == 0 {
            self.stashed = false;
            self.out.push_back(RxAction::DropRing);
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<RxAction> {
        let action = self.out.pop_front();
        if action.is_none() && self.wants_ack() {
            self.ack_told = true;
            return Some(RxAction::Ack);
        }
        action
    }

    /// Ring bytes freed since the last call. Whatever message goes to the peer next
    /// may carry them.
    pub fn take_freed(&mut self) -> u32 {
        self.ack_all = false;
        self.ack_told = false;
        self.ring.take_freed()
    }

    /// Bytes that a receive would get without waiting.
    #[must_use]
    pub fn buffered(&self) -> u32 {
        self.ring.fill()
    }

    /// A receive would not wait: there are bytes, or the end.
    #[must_use]
    pub fn readable(&self) -> bool {
        self.ring.fill() > 0 || self.fin
    }

    /// FIN has come, and every byte before it is delivered.
    #[must_use]
    pub fn at_eof(&self) -> bool {
        self.fin && self.ring.fill() == 0
    }

    /// Operations that have not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.recvs.len()
    }

    /// The connection is gone: every operation that has not ended, with the bytes
    /// that it holds. A Retract is queued for each one that was advertised, so poll
    /// until there is nothing, and only then end these.
    pub fn abort(&mut self) -> Vec<(OpId, u64)> {
        for recv in self.recvs.iter().take(self.shown) {
            self.out.push_back(RxAction::Retract { op: recv.post.op });
        }
        self.shown = 0;
        self.shown_bytes = 0;
        self.recvs.drain(..).map(|r| (r.post.op, r.filled)).collect()
    }

    /// R5: direct data belong to the first receive, whose ADVERT the sender used.
    fn direct(&mut self, data: Data) -> Result<(), StreamViolation> {
        let len = data.len;
        let room = self.recvs.front().map_or(0, |r| r.shown);
        if len > room {
            return Err(StreamViolation::DirectOverrun { len, room: room.into() });
        }
        let recv = &mut self.recvs[0];
        let (op, op_off) = (recv.post.op, recv.filled);
        recv.filled += u64::from(len);
        recv.shown -= len;
        self.seq += u64::from(len);
        self.shown_bytes -= u64::from(len);
        if data.inline {
            self.out.push_back(RxAction::CopyInline { from: 0, op, op_off, len });
        }
        let recv = &mut self.recvs[0];
        if recv.shown > 0 && recv.post.waitall {
            return Ok(()); // partly filled, and still first at the sender's too
        }
        let ends = recv.left() == 0 || !recv.post.waitall;
        let cancelled = recv.cancelled;
        self.hide(0);
        self.shown -= 1;
        if ends {
            self.end(0, Outcome::Ok);
        } else if cancelled {
            self.end(0, Outcome::Cancelled);
        }
        Ok(())
    }

    /// R4: indirect data end a direct phase.
    fn indirect(&mut self, data: Data) -> Result<(), StreamViolation> {
        let (len, room) = (data.len, self.ring.room());
        if len > room {
            return Err(StreamViolation::RingOverrun { len, room });
        }
        if !data.inline && !self.granted {
            return Err(StreamViolation::Unexpected("DATA in a ring that was not granted"));
        }
        if is_direct(self.phase) {
            if self.rules.hold(Rule::Unadvertise) {
                self.unadvertise();
            }
            self.phase = self.phase.wrapping_add(1);
        }
        self.seq += u64::from(len);
        let stash = if data.inline { self.place_inline(len) } else { 0 };
        if stash < len && data.inline {
            let (ring_off, rest) = (self.ring.write_at(), len - stash);
            self.stashed = true;
            self.out.push_back(RxAction::StashInline { from: stash, ring_off, len: rest });
        }
        self.ring.push(len - stash);
        Ok(())
    }

    /// Copies inline data straight to the receives that wait, as long as no older
    /// byte is in the ring; gives how much. The ring's positions advance as if the
    /// bytes had passed through it, for so the sender counts.
    fn place_inline(&mut self, len: u32) -> u32 {
        let mut from = 0;
        while from < len && self.ring.fill() == 0 {
            let Some(recv) = self.recvs.front_mut().filter(|r| !r.post.peek) else { break };
            let n = u32::try_from(recv.left()).unwrap_or(u32::MAX).min(len - from);
            let (op, op_off) = (recv.post.op, recv.filled);
            recv.filled += u64::from(n);
            let ends = recv.left() == 0 || !recv.post.waitall;
            self.out.push_back(RxAction::CopyInline { from, op, op_off, len: n });
            self.ring.push(n);
            self.ring.consume(n);
            from += n;
            if ends {
                self.end(0, Outcome::Ok);
            }
        }
        from
    }

    /// Takes back every ADVERT; receives that were only waiting for that end.
    fn unadvertise(&mut self) {
        let count = std::mem::take(&mut self.shown);
        for at in 0..count {
            self.hide(at);
        }
        let mut at = 0;
        for _ in 0..count {
            if self.recvs[at].cancelled {
                self.end(at, Outcome::Cancelled);
            } else {
                at += 1;
            }
        }
    }

    /// Closes the window onto a receive; the caller counts `shown`.
    fn hide(&mut self, at: usize) {
        let recv = &mut self.recvs[at];
        self.shown_bytes -= u64::from(recv.shown);
        recv.shown = 0;
        self.out.push_back(RxAction::Retract { op: recv.post.op });
    }

    /// Ends a receive; its window is closed first.
    fn end(&mut self, at: usize, outcome: Outcome) {
        if at < self.shown {
            if self.rules.hold(Rule::RetractFirst) {
                self.hide(at);
            }
            self.shown -= 1;
        }
        if let Some(recv) = self.recvs.remove(at) {
            let (op, bytes) = (recv.post.op, recv.filled);
            self.out.push_back(RxAction::Done { op, bytes, outcome });
        }
    }

    /// Does all that the state allows.
    fn pump(&mut self) {
        while self.advertise_one() || self.serve_one() {}
        // R9: after FIN nobody writes into the ring.
        if self.at_eof() && (self.granted || self.stashed) {
            self.granted = false;
            self.stashed = false;
            self.out.push_back(RxAction::DropRing);
        }
    }

    /// R1.
    fn advertise_one(&mut self) -> bool {
        let quiet = self.withdrawing && self.rules.hold(Rule::QuietWhileWithdrawing);
        let bytes_wait = self.ring.fill() > 0 && self.rules.hold(Rule::RingEmpty);
        if quiet || bytes_wait || self.fin || self.shown >= MAX_ADVERTS {
            return false;
        }
        let mut at = self.shown;
        if !self.rules.hold(Rule::EarlierAdvertised) {
            // As if a receive that cannot be advertised were not in the way.
            at += self.recvs.iter().skip(at).take_while(|r| !r.post.advertise).count();
        }
        if at > 0 && self.recvs.get(at - 1).is_some_and(|r| r.shown > 0 && !r.wholly_shown()) {
            return false;
        }
        let Some(recv) = self.recvs.get_mut(at) else { return false };
        if !recv.post.advertise || recv.post.peek || recv.cancelled {
            return false;
        }
        let len = u32::try_from(recv.left()).unwrap_or(u32::MAX).min(self.max_advert);
        recv.shown = len;
        if !is_direct(self.phase) {
            self.phase = self.phase.wrapping_add(1);
        }
        // Exact for the first of a phase, for nothing is shown then.
        let seq = self.seq.wrapping_add(self.shown_bytes);
        self.shown += 1;
        self.shown_bytes += u64::from(len);
        self.out.push_back(RxAction::Advertise {
            op: recv.post.op,
            op_off: recv.filled,
            len,
            seq,
            phase: self.phase,
            waitall: recv.post.waitall,
        });
        true
    }

    /// Gives the first receive what the ring holds, or the end; false if that is
    /// nothing.
    fn serve_one(&mut self) -> bool {
        let fill = self.ring.fill();
        let Some(recv) = self.recvs.front() else { return false };
        let ending = self.fin && self.rules.hold(Rule::FinCompletes);
        let take = u32::try_from(recv.left()).unwrap_or(u32::MAX).min(fill);
        if fill == 0 {
            if ending {
                let outcome = if recv.cancelled { Outcome::Cancelled } else { Outcome::Ok };
                self.end(0, outcome);
            }
            return ending;
        }
        if recv.post.peek {
            // More than the ring holds will never be there to be looked at.
            let want = recv.left().min(u64::from(self.ring.size()));
            if recv.post.waitall && u64::from(take) < want && !ending {
                return false;
            }
        }
        let peek = recv.post.peek;
        let ends = !recv.post.waitall || u64::from(take) == recv.left() || peek;
        self.copy_out(take);
        if !peek {
            self.ring.consume(take);
        }
        if ends {
            self.end(0, Outcome::Ok);
        }
        true
    }

    /// Copies the oldest `len` ring bytes to the first receive.
    fn copy_out(&mut self, len: u32) {
        let recv = &mut self.recvs[0];
        for (ring_off, len) in self.ring.oldest(len) {
            if len > 0 {
                let (op, op_off) = (recv.post.op, recv.filled);
                recv.filled += u64::from(len);
                self.out.push_back(RxAction::CopyFromRing { ring_off, op, op_off, len });
            }
        }
    }

    /// R6: enough is free that the sender should know, or it may be needed now.
    fn wants_ack(&self) -> bool {
        let freed = self.ring.freed();
        if freed == 0 || self.ack_told || !self.rules.hold(Rule::AckFreed) {
            return false;
        }
        let enough = freed >= (self.ring.size() / 4).max(1);
        // Such a peek waits for more bytes without freeing any: the sender must have
        // all the room there is.
        let peeking = self.recvs.front().is_some_and(|r| r.post.peek && r.post.waitall);
        enough || self.ack_all || (peeking && self.rules.hold(Rule::AckForPeek))
    }
}

#[cfg(test)]
impl StreamRx {
    pub(super) fn break_rule(&mut self, rule: Option<Rule>) {
        self.rules.broken = rule;
    }

    /// Shows at most this many bytes in one ADVERT.
    pub(super) fn limit_adverts(&mut self, max: u32) {
        self.max_advert = max;
    }

    /// Phase and position, for the checker.
    pub(super) fn place(&self) -> (u32, u64) {
        (self.phase, self.seq)
    }

    /// FIN has come, for the checker.
    pub(super) fn fin_seen(&self) -> bool {
        self.fin
    }

    /// Ring bytes that the sender does not know to be free, for the checker.
    pub(super) fn ring_used(&self) -> u32 {
        self.ring.fill() + self.ring.freed()
    }
}
