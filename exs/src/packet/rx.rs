//! The receiving half: which receive each message fills, and which buffers to show.

use super::{ADVERT_WINDOW, EAGER_RUN, PacketConfig, PacketRxAction, PacketViolation};
use crate::ids::{OpId, Outcome};
use std::collections::VecDeque;

/// A posted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PacketRecv {
    pub(super) op: OpId,
    len: u64,
    peek: bool,
    /// May be shown before a message asks for it.
    ahead: bool,
    /// Its ADVERT may be in the sender's hands.
    pub(super) advertised: bool,
    /// Cancelled: ends as soon as the sender has forgotten the ADVERTs, unless a message comes
    /// first.
    cancelled: bool,
}

/// The receiving half of one direction of a seqpacket connection.
///
/// Call [`PacketRx::poll`] until it returns `None` after every other call, before
/// you drop the message that you gave it.
///
/// Three invariants carry the rest: receives wait only while the stash is empty,
/// so the receive with `i` others before it is for message `arrived + i`; nothing
/// behind a peek is advertised; and what lies in `queue[..considered]` are receives
/// (no peeks) on which rule 4 has been decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PacketRx {
    config: PacketConfig,
    pub(super) queue: VecDeque<PacketRecv>,
    considered: usize,
    /// Messages that have arrived, which is the number of the next one.
    arrived: u64,
    /// Lengths of the stashed messages.
    stash: VecDeque<u32>,
    /// Stash bytes of these messages.
    stashed: u32,
    /// Stash bytes consumed and not yet acknowledged.
    freed: u32,
    /// `poll` has given an Ack since the last `take_freed`.
    ack_due: bool,
    /// Length of the next message, if it waits at the sender.
    rts: Option<u64>,
    fin: bool,
    generation: u32,
    withdrawing: bool,
    /// Eager messages since the last message that was written, or that an RTS asked for.
    pub(super) eager_run: u8,
    actions: VecDeque<PacketRxAction>,
}

impl PacketRx {
    /// A new direction. `config` is this side's, as the sender knows it.
    pub fn new(config: PacketConfig) -> PacketRx {
        PacketRx {
            config,
            queue: VecDeque::new(),
            considered: 0,
            arrived: 0,
            stash: VecDeque::new(),
            stashed: 0,
            freed: 0,
            ack_due: false,
            rts: None,
            fin: false,
            generation: 0,
            withdrawing: false,
            eager_run: 0,
            actions: VecDeque::new(),
        }
    }

    /// Queues a receive of `len` bytes. It ends with [`PacketRxAction::Done`].
    ///
    /// Without `advertise` its buffer is not shown ahead of time. If a large message waits for it,
    /// [`PacketRxAction::Advertise`] comes all the same, since such a message can arrive in no
    /// other way. For a buffer in several pieces, a buffer in one piece must then stand in until
    /// the `Done`.
    ///
    /// A `peek` takes no message. It gets a copy of the next one if that is small,
    /// and otherwise 0 bytes and the true length, from the sender's RTS.
    pub fn post_recv(&mut self, op: OpId, len: u64, advertise: bool, peek: bool) {
        self.queue.push_back(PacketRecv {
            op,
            len,
            peek,
            ahead: advertise,
            advertised: false,
            cancelled: false,
        });
        self.settle();
    }

    /// Cancels a receive; false if there is none, or it has ended. It ends at once if the sender
    /// cannot know of it; otherwise after the withdrawal, unless a message fills it before (rule
    /// 7).
    pub fn cancel(&mut self, op: OpId) -> bool {
        let Some(i) = self.queue.iter().position(|r| r.op == op) else {
            return false;
        };
        // Its removal would give the receives behind it other numbers than those in their
        // ADVERTs. None is advertised behind a peek.
        if self.queue.range(i..).any(|r| r.advertised) {
            self.queue[i].cancelled = true;
            if !self.withdrawing {
                self.withdrawing = true;
                self.act(PacketRxAction::Withdraw { generation: self.generation });
            }
        } else {
            self.queue.remove(i);
            if i < self.considered {
                self.considered -= 1;
            }
            self.done(op, 0, 0, Outcome::Cancelled);
            self.settle();
        }
        true
    }

    /// A small message arrived, inside its announcement (rule 6).
    pub fn handle_eager(&mut self, len: u32) -> Result<(), PacketViolation> {
        let used = self.stashed + self.freed;
        if !self.config.takes_eager(used, len) {
            return Err(PacketViolation::EagerOverrun { len, room: self.config.eager_room(used) });
        }
        self.check_open("EAGER after FIN")?;
        self.count_eager();
        if self.stash.is_empty() {
            while self.queue.front().is_some_and(|r| r.peek)
                && let Some(peek) = self.queue.pop_front()
            {
                self.copy_inline(&peek, len);
            }
        }
        match self.pop() {
            Some(recv) => {
                self.retract(&recv);
                self.copy_inline(&recv, len);
                self.free(len);
            }
            None => {
                self.stash.push_back(len);
                self.stashed += PacketConfig::stash_cost(len);
                self.act(PacketRxAction::Stash { len });
            }
        }
        self.settle();
        Ok(())
    }

    /// Puts an eager message straight into the first receive, if no message waits, and that receive
    /// was not shown and has room for all. The state is then as after `handle_eager` and `poll`,
    /// without the copy and the end among the actions. Gives the receive. None: nothing has
    /// happened.
    pub fn try_eager(&mut self, len: u32) -> Option<OpId> {
        let fits = self.config.takes_eager(self.stashed + self.freed, len);
        if !fits || self.fin || !self.actions.is_empty() || !self.stash.is_empty() {
            return None;
        }
        let PacketRecv { op, len: room, peek, advertised, cancelled, .. } = *self.queue.front()?;
        if peek || advertised || cancelled || u64::from(len) > room {
            return None;
        }
        self.pop();
        self.count_eager();
        self.free(len);
        self.settle();
        Some(op)
    }

    /// Message `msg` waits for its ADVERT. A second RTS for the same number replaces the first:
    /// the sender has cancelled that message.
    pub fn handle_rts(&mut self, msg: u64, total: u64) -> Result<(), PacketViolation> {
        self.check_total(total)?;
        if self.fin || msg != self.arrived {
            return Err(PacketViolation::Unexpected("RTS"));
        }
        self.rts = Some(total);
        self.eager_run = 0;
        self.settle();
        Ok(())
    }

    /// A message was written into the first receive.
    pub fn handle_data(&mut self, len: u64, total: u64) -> Result<(), PacketViolation> {
        self.check_total(total)?;
        let room = match self.queue.front() {
            Some(r) if r.advertised => self.room(r),
            _ => return Err(PacketViolation::WriteOverrun { len, room: 0 }),
        };
        if len > room {
            return Err(PacketViolation::WriteOverrun { len, room });
        }
        if len != total.min(room) {
            return Err(PacketViolation::Unexpected("DATA with less than its message"));
        }
        self.check_open("DATA after FIN")?;
        self.count();
        self.eager_run = 0;
        if let Some(recv) = self.pop() {
            self.retract(&recv);
            self.done(recv.op, len, total, Outcome::Ok);
        }
        self.settle();
        Ok(())
    }

    /// The sender has forgotten all ADVERTs up to `generation`.
    pub fn handle_withdrawn(
        &mut self,
        generation: u32,
        next_msg: u64,
    ) -> Result<(), PacketViolation> {
        // The answer arrives behind all that the sender sent before, so both sides have counted
        // the same messages.
        if !self.withdrawing || generation != self.generation || next_msg != self.arrived {
            return Err(PacketViolation::Unexpected("WITHDRAWN"));
        }
        self.withdrawing = false;
        self.generation = generation.wrapping_add(1);
        self.considered = 0;
        let actions = &mut self.actions;
        self.queue.retain_mut(|r| {
            if std::mem::take(&mut r.advertised) {
                actions.push_back(PacketRxAction::Retract { op: r.op });
            }
            if r.cancelled {
                actions.push_back(PacketRxAction::Done {
                    op: r.op,
                    bytes: 0,
                    total: 0,
                    eof: false,
                    outcome: Outcome::Cancelled,
                });
            }
            !r.cancelled
        });
        self.settle();
        Ok(())
    }

    /// FIN arrived: no more messages follow (rule 8).
    pub fn handle_fin(&mut self) -> Result<(), PacketViolation> {
        if self.fin {
            return Err(PacketViolation::Unexpected("second FIN"));
        }
        self.fin = true;
        // The message that asked was cancelled.
        self.rts = None;
        self.settle();
        Ok(())
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<PacketRxAction> {
        self.actions.pop_front()
    }

    /// `poll` would give nothing.
    pub fn is_quiet(&self) -> bool {
        self.actions.is_empty()
    }

    /// Stash bytes to acknowledge with the message that is about to leave.
    pub fn take_freed(&mut self) -> u32 {
        self.ack_due = false;
        std::mem::take(&mut self.freed)
    }

    /// A receive posted now would have a message (or the end) to fill it.
    pub fn readable(&self) -> bool {
        let unclaimed = self.rts.is_some() && self.queue.is_empty();
        !self.stash.is_empty() || self.fin || unclaimed
    }

    /// Grows with each message that arrives, and when a large one announces itself.
    pub fn arrivals(&self) -> u64 {
        2 * self.arrived + u64::from(self.rts.is_some())
    }

    /// Bytes of the message that the next receive gets.
    pub fn next_len(&self) -> u64 {
        self.stash.front().map_or(self.rts.unwrap_or(0), |len| u64::from(*len))
    }

    /// FIN has arrived.
    pub fn has_fin(&self) -> bool {
        self.fin
    }

    /// A whole message lies in the stash.
    pub fn holds_message(&self) -> bool {
        !self.stash.is_empty()
    }

    /// FIN has arrived, and every message before it is delivered.
    pub fn at_eof(&self) -> bool {
        self.fin && self.stash.is_empty()
    }

    /// Every receive has ended.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.actions.is_empty()
    }

    /// The connection is gone: hands back the receives that have not ended, oldest
    /// first. Poll once more, for the windows to close, before ending them.
    pub fn abort(&mut self) -> Vec<OpId> {
        let mut unsent = Vec::new();
        self.actions.retain(|action| match action {
            PacketRxAction::Advertise { op, .. } => {
                unsent.push(*op);
                false
            }
            PacketRxAction::Ack | PacketRxAction::Withdraw { .. } => false,
            _ => true,
        });
        self.withdrawing = false;
        self.considered = 0;
        self.rts = None;
        let mut ops = Vec::with_capacity(self.queue.len());
        while let Some(recv) = self.queue.pop_front() {
            if !unsent.contains(&recv.op) {
                self.retract(&recv);
            }
            ops.push(recv.op);
        }
        ops
    }

    /// Serves the receives that wait, then shows the buffers that may be shown. Every change calls
    /// it.
    fn settle(&mut self) {
        while let Some(front) = self.queue.front() {
            if let Some(stashed) = self.stash.front().copied() {
                self.unstash(stashed);
            } else if let (true, Some(total)) = (front.peek, self.rts) {
                let op = front.op;
                self.queue.pop_front();
                self.done(op, 0, total, Outcome::Ok);
            } else if self.fin {
                self.end_front();
            } else {
                break;
            }
        }
        self.advertise();
    }

    /// Gives the oldest stashed message to the first receive.
    fn unstash(&mut self, stashed: u32) {
        let Some(recv) = self.pop() else { return };
        let len = clip(stashed, recv.len);
        self.act(PacketRxAction::Unstash { op: recv.op, len, stashed, keep: recv.peek });
        if !recv.peek {
            self.stash.pop_front();
            self.stashed -= PacketConfig::stash_cost(stashed);
            self.free(stashed);
        }
        self.done(recv.op, u64::from(len), u64::from(stashed), Outcome::Ok);
    }

    /// Gives the end to the first receive.
    fn end_front(&mut self) {
        let Some(recv) = self.pop() else { return };
        self.retract(&recv);
        let outcome = if recv.cancelled { Outcome::Cancelled } else { Outcome::Ok };
        self.act(PacketRxAction::Done {
            op: recv.op,
            bytes: 0,
            total: 0,
            eof: !recv.cancelled,
            outcome,
        });
    }

    /// Rules 4 and 5.
    fn advertise(&mut self) {
        if self.withdrawing {
            return;
        }
        // Any receive will do for a message that waits. A peek in front of it would have ended
        // with the RTS.
        if self.rts.is_some() && self.queue.front().is_some_and(|r| !r.advertised) {
            self.show(0);
            self.considered = self.considered.max(1);
        }
        // The last messages were all small: they would not use an ADVERT.
        if self.eager_run >= EAGER_RUN {
            return;
        }
        while self.considered < self.queue.len().min(ADVERT_WINDOW) {
            let recv = &self.queue[self.considered];
            if recv.peek {
                break;
            }
            if recv.ahead && !recv.advertised && self.config.as_eager(recv.len).is_none() {
                self.show(self.considered);
            }
            self.considered += 1;
        }
    }

    fn show(&mut self, i: usize) {
        let len = self.room(&self.queue[i]);
        let recv = &mut self.queue[i];
        recv.advertised = true;
        let advert = PacketRxAction::Advertise {
            op: recv.op,
            msg: self.arrived + i as u64,
            generation: self.generation,
            len,
        };
        self.act(advert);
    }

    fn check_open(&self, late: &'static str) -> Result<(), PacketViolation> {
        if self.fin { Err(PacketViolation::Unexpected(late)) } else { Ok(()) }
    }

    /// Message `arrived` has arrived.
    fn count(&mut self) {
        self.rts = None;
        self.arrived += 1;
    }

    fn count_eager(&mut self) {
        self.count();
        self.eager_run = self.eager_run.saturating_add(1).min(EAGER_RUN);
    }

    fn check_total(&self, total: u64) -> Result<(), PacketViolation> {
        let limit = self.config.max_msg;
        if total > limit { Err(PacketViolation::TooLong { total, limit }) } else { Ok(()) }
    }

    /// Bytes that are shown of a receive.
    fn room(&self, recv: &PacketRecv) -> u64 {
        recv.len.min(self.config.max_msg)
    }

    fn pop(&mut self) -> Option<PacketRecv> {
        self.considered = self.considered.saturating_sub(1);
        self.queue.pop_front()
    }

    fn copy_inline(&mut self, recv: &PacketRecv, total: u32) {
        let len = clip(total, recv.len);
        self.act(PacketRxAction::CopyInline { op: recv.op, len });
        self.done(recv.op, u64::from(len), u64::from(total), Outcome::Ok);
    }

    /// An eager message was consumed (rule 6). An ACK is due when half of the stash could be used
    /// again. No eager message costs more, so a sender that waits for room gets it once its
    /// messages are consumed.
    fn free(&mut self, len: u32) {
        self.freed += PacketConfig::stash_cost(len);
        if self.freed >= self.config.stash / 2 && !self.ack_due {
            self.ack_due = true;
            self.act(PacketRxAction::Ack);
        }
    }

    fn retract(&mut self, recv: &PacketRecv) {
        if recv.advertised {
            self.act(PacketRxAction::Retract { op: recv.op });
        }
    }

    fn done(&mut self, op: OpId, bytes: u64, total: u64, outcome: Outcome) {
        self.act(PacketRxAction::Done { op, bytes, total, eof: false, outcome });
    }

    fn act(&mut self, action: PacketRxAction) {
        self.actions.push_back(action);
    }
}

/// Bytes of a message of `total` that go into a buffer of `room`.
fn clip(total: u32, room: u64) -> u32 {
    u32::try_from(room).map_or(total, |room| room.min(total))
}
