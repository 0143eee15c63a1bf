//! The sending half: which way each message goes, and when.

use super::{
    ADVERT_WINDOW, PacketAdvert, PacketConfig, PacketPostError, PacketTxAction, PacketViolation,
};
use crate::ids::{OpId, Outcome};
use std::collections::VecDeque;

/// A posted operation that has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Item {
    /// Only one whose bytes are in memory may go eagerly.
    Send {
        op: OpId,
        len: u64,
        eager: bool,
    },
    Shutdown {
        op: OpId,
    },
}

impl Item {
    const fn op(self) -> OpId {
        match self {
            Item::Send { op, .. } | Item::Shutdown { op } => op,
        }
    }
}

/// The sending half of one direction of a seqpacket connection.
///
/// Call [`PacketTx::poll`] until it returns `None` after every other call, and put
/// messages on the queue pair in the order of the actions, control or not: the
/// receiver counts messages up to a WITHDRAWN.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PacketTx {
    config: PacketConfig,
    /// Not begun: sends, then shutdowns (nothing may be posted after one).
    queue: VecDeque<Item>,
    /// Handed out by `poll`, and waiting for `handle_sent`.
    flying: VecDeque<(OpId, u64)>,
    /// The receiver's ADVERTs for messages from `next` on, by rising number, all
    /// of this generation; at most `ADVERT_WINDOW`.
    pub(super) adverts: VecDeque<PacketAdvert>,
    /// Number of the next message.
    next: u64,
    /// Stash bytes of eager messages not acknowledged.
    used: u32,
    /// An RTS was sent for message `next` as it now stands.
    rts_sent: bool,
    /// Generation of the ADVERTs that count.
    generation: u32,
    /// A WITHDRAW of this generation waits for its answer.
    withdrawn_due: Option<u32>,
    fin_sent: bool,
    done: VecDeque<(OpId, u64, Outcome)>,
}

impl PacketTx {
    /// A new direction. `config` is the receiver's.
    pub fn new(config: PacketConfig) -> PacketTx {
        PacketTx {
            config,
            queue: VecDeque::new(),
            flying: VecDeque::new(),
            adverts: VecDeque::new(),
            next: 0,
            used: 0,
            rts_sent: false,
            generation: 0,
            withdrawn_due: None,
            fin_sent: false,
            done: VecDeque::new(),
        }
    }

    /// Queues a message. It ends with [`PacketTxAction::Done`].
    pub fn post_send(&mut self, op: OpId, len: u64) -> Result<(), PacketPostError> {
        self.post(op, len, true)
    }

    /// As `post_send`, for a message in a file: it is always written, as its bytes never pass
    /// through memory of this process.
    pub fn post_file(&mut self, op: OpId, len: u64) -> Result<(), PacketPostError> {
        self.post(op, len, false)
    }

    fn post(&mut self, op: OpId, len: u64, eager: bool) -> Result<(), PacketPostError> {
        if self.is_shut_down() {
            return Err(PacketPostError::ShutDown);
        }
        if len > self.config.max_msg {
            return Err(PacketPostError::TooLong { len, limit: self.config.max_msg });
        }
        self.queue.push_back(Item::Send { op, len, eager });
        Ok(())
    }

    /// Queues the end of this direction: FIN leaves after the sends posted before.
    /// A second shutdown is done when the first one is.
    pub fn shutdown(&mut self, op: OpId) {
        if self.fin_sent {
            self.done.push_back((op, 0, Outcome::Ok));
        } else {
            self.queue.push_back(Item::Shutdown { op });
        }
    }

    /// Cancels an operation; false if there is none, or it has ended. A send that has not begun ends
    /// as cancelled; a send on its way ends as if it had not been cancelled. A shutdown that is
    /// cancelled in time has no effect: sends may be posted again.
    pub fn cancel(&mut self, op: OpId) -> bool {
        let Some(i) = self.queue.iter().position(|item| item.op() == op) else {
            return self.flying.iter().any(|(flying, _)| *flying == op);
        };
        self.queue.remove(i);
        self.done.push_back((op, 0, Outcome::Cancelled));
        if i == 0 {
            // The RTS was for another message. The new head sends its own if it needs one, and
            // that replaces the first.
            self.rts_sent = false;
        }
        true
    }

    /// The receiver shows a buffer (rule 3).
    pub fn handle_advert(&mut self, advert: PacketAdvert) -> Result<(), PacketViolation> {
        if advert.generation != self.generation {
            // Numbers wrap: half of them are behind `next`, and half ahead.
            let behind = self.generation.wrapping_sub(advert.generation);
            return match behind <= u32::MAX / 2 {
                true => Ok(()),
                false => Err(PacketViolation::Unexpected("ADVERT of a generation to come")),
            };
        }
        // Its message went another way, as all did after FIN.
        if self.fin_sent || advert.msg < self.next {
            return Ok(());
        }
        if advert.msg - self.next >= ADVERT_WINDOW as u64 {
            return Err(PacketViolation::Unexpected("ADVERT too many messages ahead"));
        }
        // Most belong at the end. The answer to an RTS can arrive behind ADVERTs that were sent
        // ahead.
        match self.adverts.binary_search_by_key(&advert.msg, |a| a.msg) {
            Ok(_) => return Err(PacketViolation::Unexpected("second ADVERT for a message")),
            Err(at) => self.adverts.insert(at, advert),
        }
        Ok(())
    }

    /// The receiver freed stash bytes.
    pub fn handle_ack(&mut self, freed: u32) -> Result<(), PacketViolation> {
        let used = self.used;
        self.used = used.checked_sub(freed).ok_or(PacketViolation::AckOverrun { freed, used })?;
        Ok(())
    }

    /// WITHDRAW arrived: the receiver takes its ADVERTs back (rule 7).
    pub fn handle_withdraw(&mut self, generation: u32) -> Result<(), PacketViolation> {
        if generation != self.generation || self.withdrawn_due.is_some() {
            return Err(PacketViolation::Unexpected("WITHDRAW"));
        }
        self.adverts.clear();
        self.generation = generation.wrapping_add(1);
        self.withdrawn_due = Some(generation);
        Ok(())
    }

    /// The local memory of an [`PacketTxAction::Eager`] or [`PacketTxAction::Write`]
    /// is free again.
    pub fn handle_sent(&mut self, op: OpId) {
        // Completions come in order, so this finds it at the front.
        if let Some(i) = self.flying.iter().position(|(flying, _)| *flying == op)
            && let Some((op, len)) = self.flying.remove(i)
        {
            self.done.push_back((op, len, Outcome::Ok));
        }
    }

    /// The next thing to do. Without `can_transfer` (no credit, or no room in the send queue) only
    /// WITHDRAWN and ends of operations come out. WITHDRAWN uses the credits that are reserved for
    /// control, as a receiver waits for it.
    pub fn poll(&mut self, can_transfer: bool) -> Option<PacketTxAction> {
        if let Some((op, bytes, outcome)) = self.done.pop_front() {
            return Some(PacketTxAction::Done { op, bytes, outcome });
        }
        if let Some(generation) = self.withdrawn_due.take() {
            return Some(PacketTxAction::Withdrawn { next_msg: self.next, generation });
        }
        let action = if can_transfer { self.next_transfer()? } else { return None };
        match action {
            PacketTxAction::Eager { op, len } => {
                self.used += PacketConfig::stash_cost(len);
                self.start(op, u64::from(len));
            }
            PacketTxAction::Write { op, total, .. } => self.start(op, total),
            PacketTxAction::Rts { .. } => self.rts_sent = true,
            PacketTxAction::Fin => {
                self.fin_sent = true;
                self.adverts.clear();
                // Only shutdowns can be left: sends are refused after one.
                let ended = self.queue.drain(..).map(|item| (item.op(), 0, Outcome::Ok));
                self.done.extend(ended);
            }
            PacketTxAction::Withdrawn { .. } | PacketTxAction::Done { .. } => {}
        }
        Some(action)
    }

    /// Takes the place of a message that rides in its announcement and is over as soon as that is
    /// written. The state is then as if it had been posted, polled and handled. False: nothing has
    /// happened, and the message must be posted.
    pub fn try_eager(&mut self, len: u32) -> bool {
        if !self.is_idle() || self.fin_sent || !self.config.takes_eager(self.used, len) {
            return false;
        }
        self.used += PacketConfig::stash_cost(len);
        self.count();
        true
    }

    /// `poll(true)` would give a message that `poll(false)` would not.
    pub fn wants_transfer(&self) -> bool {
        self.next_transfer().is_some()
    }

    /// A message has not been handed out yet.
    pub fn has_unsent(&self) -> bool {
        self.queue.front().is_some_and(|item| !matches!(item, Item::Shutdown { .. }))
    }

    /// Every send and shutdown has ended, locally, and `poll` would give nothing.
    pub fn is_idle(&self) -> bool {
        let told = self.done.is_empty() && self.withdrawn_due.is_none();
        self.queue.is_empty() && self.flying.is_empty() && told
    }

    /// No more sends are taken.
    pub fn is_shut_down(&self) -> bool {
        self.fin_sent || matches!(self.queue.back(), Some(Item::Shutdown { .. }))
    }

    /// The connection is gone: hands back the operations that have not ended,
    /// oldest first. Those that ended before are still there to `poll`.
    pub fn abort(&mut self) -> Vec<OpId> {
        self.withdrawn_due = None;
        self.adverts.clear();
        let flying = self.flying.drain(..).map(|(op, _)| op);
        flying.chain(self.queue.drain(..).map(Item::op)).collect()
    }

    /// Rules 1 and 2 for the head of the queue: small, and the stash takes it:
    /// eager. Its ADVERT is there: write. Large: ask once. Else wait.
    fn next_transfer(&self) -> Option<PacketTxAction> {
        let (op, total, eager) = match *self.queue.front()? {
            Item::Send { op, len, eager } => (op, len, eager),
            Item::Shutdown { .. } => return Some(PacketTxAction::Fin),
        };
        let small = self.config.as_eager(total).filter(|_| eager);
        if let Some(len) = small
            && self.config.stash_takes(self.used, len)
        {
            return Some(PacketTxAction::Eager { op, len });
        }
        if let Some(advert) = self.adverts.front()
            && advert.msg == self.next
        {
            let PacketAdvert { addr, key, .. } = *advert;
            return Some(PacketTxAction::Write {
                op,
                addr,
                key,
                len: total.min(advert.len),
                total,
            });
        }
        // A small message only waits for an ACK, and that comes without asking.
        (small.is_none() && !self.rts_sent).then_some(PacketTxAction::Rts { msg: self.next, total })
    }

    /// The head of the queue is on its way, as message `next`.
    fn start(&mut self, op: OpId, len: u64) {
        self.queue.pop_front();
        self.flying.push_back((op, len));
        self.count();
    }

    /// Message `next` has gone; its ADVERT is void.
    fn count(&mut self) {
        if self.adverts.front().is_some_and(|advert| advert.msg == self.next) {
            self.adverts.pop_front();
        }
        self.next += 1;
        self.rts_sent = false;
    }
}
