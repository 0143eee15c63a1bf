//! The sending half of a stream: rules R2, R3, R10 and the sender's part of R6 to R9.
//!
//! This file holds the state and the calls of the session. `schedule.rs` decides which bytes go
//! where, and when an operation has ended; `patience.rs` when a send waits for an ADVERT;
//! `file.rs` cuts chunks of files short.

mod file;
mod loan;
mod patience;
mod schedule;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use crate::ids::{OpId, Outcome};

pub use loan::TxLoan;
use patience::Patience;

use super::ring::TxRing;
use super::rules::{Rule, Rules};
use super::{
    Advert, MAX_ADVERTS, RemoteRing, StreamConfig, StreamViolation, TxAction, is_direct, is_later,
};

/// What an operation asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Want {
    /// Move this many bytes.
    Send(u64),
    /// End the stream after all that was queued before.
    Fin,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TxOp {
    op: OpId,
    want: Want,
    /// Bytes that went out in Transfers.
    taken: u64,
    /// Bytes of these whose local memory is free again.
    handled: u64,
    /// Takes no new chunk.
    cancelled: bool,
    /// Its bytes are in memory, not in a file, so they may ride inside the announcement.
    inline: bool,
}

/// Whether the sender has the ring's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RingGrant {
    Unknown,
    Asked,
    Granted(RemoteRing),
}

/// The sending half of one direction of a stream.
///
/// After each call, `poll` until it gives nothing. Messages must reach the peer in the order in
/// which their actions were polled: while a control message waits for credits, the session must
/// ask for no Transfer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StreamTx {
    cfg: StreamConfig,
    rules: Rules,
    /// Ps: even direct, odd indirect.
    phase: u32,
    /// Ss: stream position of the next byte.
    seq: u64,
    ring: TxRing,
    grant: RingGrant,
    /// ADVERTs that count, oldest first; the first may be partly used. Empty in
    /// every odd phase.
    adverts: VecDeque<Advert>,
    patience: Patience,
    /// Operations that have not ended, in order.
    ops: VecDeque<TxOp>,
    /// The ADVERT that the last chunk of a file went into, as it was before.
    file_advert: Option<Advert>,
    /// The first of `ops` that may still take chunks: those before it only wait for
    /// local completions.
    cur: usize,
    fin_sent: bool,
    /// WITHDRAWN is queued in `out`.
    answering: bool,
    /// Control actions and ends, to be polled before any Transfer.
    out: VecDeque<TxAction>,
}

impl StreamTx {
    /// `cfg`: the peer's ring (at least 1 byte), and the numbers that both sides agreed on.
    #[must_use]
    pub fn new(cfg: StreamConfig) -> Self {
        Self {
            cfg,
            rules: Rules::default(),
            phase: 0,
            seq: 0,
            ring: TxRing::new(cfg.ring),
            grant: RingGrant::Unknown,
            adverts: VecDeque::new(),
            patience: Patience::default(),
            ops: VecDeque::new(),
            file_advert: None,
            cur: 0,
            fin_sent: false,
            answering: false,
            out: VecDeque::new(),
        }
    }

    /// Queues a send of `len` bytes. One of 0 bytes ends as soon as those before it have ended,
    /// without a message. After `shutdown` a send ends at once, cancelled, with 0 bytes; the
    /// session refuses it before.
    pub fn post_send(&mut self, op: OpId, len: u64) {
        if self.is_shut() {
            self.done(op, 0, Outcome::Cancelled);
            return;
        }
        self.queue(op, Want::Send(len), true);
    }

    /// Queues the end of the stream after every send queued before. Done when FIN is
    /// polled and all before it has ended. A second one ends with the first.
    pub fn shutdown(&mut self, op: OpId) {
        self.queue(op, Want::Fin, true);
    }

    /// Cancels; false if there is no such operation.
    ///
    /// A send that has not begun, or a shutdown before its FIN, ends at once. A send that has begun
    /// takes no new chunk and ends, with the bytes moved, when the chunks that are out are handled;
    /// the stream goes on after these bytes. If all its bytes are out already, it ends as if it
    /// had not been cancelled.
    pub fn cancel(&mut self, op: OpId) -> bool {
        let Some(at) = self.ops.iter().position(|o| o.op == op) else { return false };
        let entry = &mut self.ops[at];
        if at >= self.cur && entry.taken == 0 {
            self.ops.remove(at);
            self.done(op, 0, Outcome::Cancelled);
        } else if at >= self.cur {
            entry.cancelled = true;
        }
        self.settle();
        true
    }

    /// ADVERT arrived (R2).
    ///
    /// # Errors
    /// The ADVERT could not have been sent by a peer that keeps the rules.
    pub fn handle_advert(&mut self, advert: Advert) -> Result<(), StreamViolation> {
        if !is_direct(advert.phase) || advert.len == 0 {
            return Err(StreamViolation::Unexpected("ADVERT of an odd phase or of 0 bytes"));
        }
        if self.fin_sent {
            return Ok(());
        }
        if is_later(self.phase, advert.phase) && self.rules.hold(Rule::OldPhaseDropped) {
            self.note_missed_advert(&advert);
            return Ok(());
        }
        if is_later(advert.phase, self.phase) {
            // The peer leaves an even phase only on indirect data, which would have made this
            // side's phase odd.
            if is_direct(self.phase) {
                return Err(StreamViolation::Unexpected("ADVERT of a phase to come"));
            }
            if advert.seq != self.seq && self.rules.hold(Rule::SeqMatches) {
                // Indirect bytes are on their way to the peer, and will end that
                // phase there. Later ADVERTs of it carry estimates, which might
                // match by accident.
                if self.rules.hold(Rule::PhaseSpoiled) {
                    self.phase = advert.phase.wrapping_add(1);
                    self.note_missed_advert(&advert);
                    self.settle();
                }
                return Ok(());
            }
            self.phase = advert.phase;
        }
        if self.adverts.len() >= MAX_ADVERTS {
            return Err(StreamViolation::Unexpected("ADVERT: too many at once"));
        }
        let waited = self.is_waiting();
        self.adverts.push_back(advert);
        self.note_advert(waited);
        self.settle();
        Ok(())
    }

    /// `freed` ring bytes were acknowledged, in a message of any kind (R6).
    ///
    /// # Errors
    /// More than are in use.
    pub fn handle_ack(&mut self, freed: u32) -> Result<(), StreamViolation> {
        let used = self.ring.used();
        if freed > used {
            return Err(StreamViolation::AckOverrun { freed, used });
        }
        self.ring.give_back(freed);
        self.settle();
        Ok(())
    }

    /// RING arrived (R9).
    ///
    /// # Errors
    /// No RING_REQ is out, or the ring goes round the end of the memory.
    pub fn handle_ring(&mut self, ring: RemoteRing) -> Result<(), StreamViolation> {
        if self.grant != RingGrant::Asked {
            return Err(StreamViolation::Unexpected("RING"));
        }
        if ring.addr.checked_add(self.cfg.ring.into()).is_none() {
            return Err(StreamViolation::Unexpected("RING that goes round the end of the memory"));
        }
        self.grant = RingGrant::Granted(ring);
        Ok(())
    }

    /// WITHDRAW arrived (R7): forgets every ADVERT, and answers.
    ///
    /// # Errors
    /// The last one is not answered yet.
    pub fn handle_withdraw(&mut self) -> Result<(), StreamViolation> {
        if self.answering {
            return Err(StreamViolation::Unexpected("WITHDRAW"));
        }
        if self.rules.hold(Rule::WithdrawForgets) {
            self.adverts.clear();
            self.patience.forget();
            self.file_advert = None;
        }
        self.answering = true;
        self.out.push_back(TxAction::Withdrawn);
        self.settle();
        Ok(())
    }

    /// The local memory of `len` bytes that went out in a Transfer is free again.
    pub fn handle_sent(&mut self, op: OpId, len: u32) {
        let Some(entry) = self.ops.iter_mut().find(|o| o.op == op) else { return };
        debug_assert!(entry.handled + u64::from(len) <= entry.taken, "more handled than sent");
        entry.handled = (entry.handled + u64::from(len)).min(entry.taken);
        self.settle();
    }

    /// The ring was idle for long: gives it back if it is granted and empty, and no send waits
    /// (R9).
    pub fn idle_ring_release(&mut self) {
        let granted = matches!(self.grant, RingGrant::Granted(_));
        let empty = self.ring.used() == 0 || !self.rules.hold(Rule::ReleaseEmpty);
        if granted && empty && !self.fin_sent && self.cur == self.ops.len() {
            self.grant = RingGrant::Unknown;
            self.out.push_back(TxAction::ReleaseRing);
        }
    }

    /// The next thing to do; a Transfer only if `can_transfer`.
    pub fn poll(&mut self, can_transfer: bool) -> Option<TxAction> {
        if let Some(action) = self.out.pop_front() {
            if action == TxAction::Withdrawn {
                self.answering = false;
            }
            return Some(action);
        }
        let chunk = self.next_chunk().filter(|c| can_transfer && self.may_send(c))?;
        Some(self.transfer(&chunk))
    }

    /// `poll(true)` would give a Transfer in the end.
    #[must_use]
    pub fn wants_transfer(&self) -> bool {
        self.next_chunk().is_some_and(|c| self.may_send(&c))
    }

    /// Operations that have not ended.
    #[must_use]
    #[cfg(any(test, feature = "internals"))]
    pub fn pending(&self) -> usize {
        self.ops.len()
    }

    /// All operations have ended, and `poll` would give nothing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.ops.is_empty() && self.out.is_empty()
    }

    /// The ring's address, which `ChunkTarget::Ring` counts from.
    #[must_use]
    pub fn ring(&self) -> Option<RemoteRing> {
        match self.grant {
            RingGrant::Granted(ring) => Some(ring),
            RingGrant::Unknown | RingGrant::Asked => None,
        }
    }

    /// A shutdown was asked for: no send is taken any more.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.fin_sent || self.ops.back().is_some_and(|o| o.want == Want::Fin)
    }

    /// The connection is gone. Gives every operation that has not ended, with the bytes that it
    /// moved. Ends of others stay for `poll`.
    pub fn abort(&mut self) -> Vec<(OpId, u64)> {
        self.cur = 0;
        self.fin_sent = true;
        self.adverts.clear();
        self.ops.drain(..).map(|o| (o.op, o.handled)).collect()
    }

    fn queue(&mut self, op: OpId, want: Want, inline: bool) {
        self.ops.push_back(TxOp { op, want, taken: 0, handled: 0, cancelled: false, inline });
        self.settle();
    }

    fn done(&mut self, op: OpId, bytes: u64, outcome: Outcome) {
        self.out.push_back(TxAction::Done { op, bytes, outcome });
    }
}

#[cfg(test)]
impl StreamTx {
    pub(super) fn break_rule(&mut self, rule: Option<Rule>) {
        self.rules.broken = rule;
    }

    /// As if `phase` phases had gone by.
    pub(super) fn start_phase(&mut self, phase: u32) {
        self.phase = phase;
    }

    /// Phase and position, for the checker.
    pub(super) fn phase_and_seq(&self) -> (u32, u64) {
        (self.phase, self.seq)
    }

    /// Ring bytes not known to be free, for the checker.
    pub(super) fn ring_used(&self) -> u32 {
        self.ring.used()
    }
}
