//! The receiving half of a stream: rules R1, R4, R5 and the receiver's part of R6
//! to R9.
//!
//! This file holds the state and the calls of the session. `window.rs` decides what the peer may
//! write to, `deliver.rs` where bytes that arrived go.

mod deliver;
mod loan;
#[cfg(test)]
mod tests;
mod window;

pub use deliver::EagerTarget;
pub use loan::RxLoan;

use std::collections::VecDeque;

use crate::ids::{OpId, Outcome};

use super::ring::RxRing;
use super::rules::{Rule, Rules};
use super::{Data, MAX_MISSES, RecvPost, RxAction, StreamConfig, StreamViolation};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Recv {
    post: RecvPost,
    /// Bytes in its buffer.
    filled: u64,
    /// Bytes of the buffer, from `filled` on, that the peer may write: 0 means that
    /// it is not advertised.
    shown: u32,
    /// Cancelled: ends as soon as the peer has answered the withdrawal.
    cancelled: bool,
    /// It is large, not shown, and counted in `large_hidden`.
    counted: bool,
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
    /// A receive of at most this many bytes is worth no ADVERT of its own.
    small: u32,
    /// Larger ones that are not shown.
    large_hidden: usize,
    /// Bytes of one ADVERT, at most (smaller only in tests).
    max_advert: u32,
    /// WITHDRAW is out, WITHDRAWN not yet in.
    withdrawing: bool,
    /// Direct phases in a row whose ADVERTs missed: indirect data crossed them.
    misses: u32,
    /// From this many misses on, ADVERTs are held back (fewer only in tests).
    max_misses: u32,
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
    /// `cfg`: this side's ring (at least 1 byte), and the numbers that both sides agreed on.
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
            small: cfg.inline_max,
            large_hidden: 0,
            max_advert: u32::MAX,
            withdrawing: false,
            misses: 0,
            max_misses: MAX_MISSES,
            fin: false,
            granted: false,
            stashed: false,
            ack_all: false,
            ack_told: false,
            out: VecDeque::new(),
        }
    }

    /// Queues a receive. One of 0 bytes ends at once, even if others wait before it, as read(2) of
    /// 0 bytes does.
    pub fn post_recv(&mut self, post: RecvPost) {
        if post.len == 0 {
            self.out.push_back(RxAction::Done { op: post.op, bytes: 0, outcome: Outcome::Ok });
            return;
        }
        let counted = post.len > u64::from(self.small) && post.advertise && !post.peek;
        self.large_hidden += usize::from(counted);
        self.recvs.push_back(Recv { post, filled: 0, shown: 0, cancelled: false, counted });
        self.pump_if_due();
    }

    /// Cancels; false if there is no such operation.
    ///
    /// A receive that is not advertised ends at once, with the bytes that it holds. An advertised
    /// one ends when the peer has answered (R7), or when its data arrive, if they are first.
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
    #[cfg(any(test, feature = "internals"))]
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

    /// DATA arrived (R4, R5). Poll its actions out before the next message is handled.
    ///
    /// # Errors
    /// The peer broke the rules; nothing has changed.
    pub fn handle_data(&mut self, data: Data) -> Result<(), StreamViolation> {
        if self.fin || data.len == 0 {
            return Err(StreamViolation::Unexpected("DATA after FIN or of 0 bytes"));
        }
        if data.direct {
            self.direct(data)?
        } else {
            self.indirect(data)?
        }
        self.pump();
        Ok(())
    }

    /// WITHDRAWN arrived (R7): the peer has let go of every buffer.
    ///
    /// # Errors
    /// No withdrawal is out.
    pub fn handle_withdrawn(&mut self) -> Result<(), StreamViolation> {
        if !self.withdrawing {
            return Err(StreamViolation::Unexpected("WITHDRAWN"));
        }
        self.withdrawing = false;
        self.unadvertise();
        self.pump();
        Ok(())
    }

    /// FIN arrived (R8).
    ///
    /// # Errors
    /// It is the second one.
    pub fn handle_fin(&mut self) -> Result<(), StreamViolation> {
        if self.fin {
            return Err(StreamViolation::Unexpected("FIN"));
        }
        self.fin = true;
        self.pump();
        Ok(())
    }

    /// RING_REQ arrived (R9).
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

    /// RING_RELEASE arrived (R9).
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

    /// No data have arrived for long. Acknowledges freed bytes, since the peer must see an empty
    /// ring before it can give the ring back; advertises what was held back; drops an empty ring
    /// that was made for inline data only.
    pub fn idle(&mut self) {
        self.misses = 0;
        self.pump();
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

    /// `poll` would come to nothing.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.out.is_empty() && !self.wants_ack()
    }

    /// Ring bytes freed since the last call, for the next message to the peer. 0 while they are
    /// held back (R1).
    pub fn take_freed(&mut self) -> u32 {
        // If the bytes are held back, an Ack that was polled before is due again afterwards.
        self.ack_told = false;
        if self.holding() {
            return 0;
        }
        self.ack_all = false;
        self.ring.take_freed()
    }

    /// Bytes that a receive would get without waiting.
    #[must_use]
    pub fn buffered(&self) -> u32 {
        self.ring.fill()
    }

    /// Position of the next byte to come.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.seq
    }

    /// FIN has arrived.
    #[must_use]
    pub fn has_fin(&self) -> bool {
        self.fin
    }

    /// A receive would not wait: there are bytes, or the end.
    #[must_use]
    pub fn readable(&self) -> bool {
        self.ring.fill() > 0 || self.fin
    }

    /// FIN has arrived, and every byte before it is delivered.
    #[must_use]
    pub fn at_eof(&self) -> bool {
        self.fin && self.ring.fill() == 0
    }

    /// The receives that are advertised, and the bytes that the peer may write there.
    #[must_use]
    pub fn shown(&self) -> (usize, u64) {
        (self.shown, self.shown_bytes)
    }

    /// Operations that have not ended.
    #[must_use]
    #[cfg(any(test, feature = "internals"))]
    pub fn pending(&self) -> usize {
        self.recvs.len()
    }

    /// The connection is gone. Gives every operation that has not ended, with the bytes that it
    /// holds. A Retract is queued for each advertised one, so poll until there is nothing, and
    /// only then end these.
    pub fn abort(&mut self) -> Vec<(OpId, u64)> {
        for recv in self.recvs.iter().take(self.shown) {
            self.out.push_back(RxAction::Retract { op: recv.post.op });
        }
        self.shown = 0;
        self.large_hidden = 0;
        self.shown_bytes = 0;
        self.recvs.drain(..).map(|r| (r.post.op, r.filled)).collect()
    }

    /// As `pump`, which mostly finds that no receive is to be advertised, and neither bytes nor
    /// the end are there.
    #[inline]
    fn pump_if_due(&mut self) {
        if self.large_hidden > 0 || self.ring.fill() > 0 || self.fin {
            self.pump();
        }
    }

    /// Does all that the state allows.
    fn pump(&mut self) {
        while self.advertise_one() || self.serve_one() {}
        // R9: after FIN the peer writes nothing into the ring.
        if self.at_eof() && (self.granted || self.stashed) {
            self.granted = false;
            self.stashed = false;
            self.out.push_back(RxAction::DropRing);
        }
    }

    /// R1: after many misses in a row, ADVERTs and ACKs wait until the sender has used up the ring.
    /// Then no bytes can be on their way, and the ADVERTs cannot miss.
    fn holding(&self) -> bool {
        let could = self.recvs.front().is_some_and(|r| r.post.advertise && !r.post.peek);
        let full = self.ring.is_used_up() && self.rules.hold(Rule::HoldEnds);
        self.misses >= self.max_misses && could && !self.withdrawing && !self.fin && !full
    }

    /// R6: so much is free that the sender should know, or the sender may need it now.
    fn wants_ack(&self) -> bool {
        let freed = self.ring.freed();
        if freed == 0 || self.ack_told || !self.rules.hold(Rule::AckFreed) {
            return false;
        }
        let enough = self.ring.has_much_freed() || self.ack_all;
        // Such a peek waits for more bytes without freeing any: the sender must have
        // all the room there is.
        let peeking = self.recvs.front().is_some_and(|r| r.post.peek && r.post.waitall);
        (enough && !self.holding()) || (peeking && self.rules.hold(Rule::AckForPeek))
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

    /// Holds ADVERTs back after `max` misses in a row.
    pub(super) fn limit_misses(&mut self, max: u32) {
        self.max_misses = max;
    }

    /// ADVERTs are held back, for the checker.
    pub(super) fn is_holding(&self) -> bool {
        self.holding()
    }

    /// As if `phase` phases had gone by.
    pub(super) fn start_phase(&mut self, phase: u32) {
        self.phase = phase;
    }

    /// Phase and position, for the checker.
    pub(super) fn phase_and_seq(&self) -> (u32, u64) {
        (self.phase, self.seq)
    }

    /// FIN has arrived, for the checker.
    pub(super) fn fin_seen(&self) -> bool {
        self.fin
    }

    /// Ring bytes that the sender does not know to be free, for the checker.
    pub(super) fn ring_used(&self) -> u32 {
        self.ring.fill() + self.ring.freed()
    }
}
