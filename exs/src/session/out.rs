//! Messages and WRs on their way to the port.

use std::collections::VecDeque;

use crate::rnic::{FileRange, RnicError, SendOp, SendWr, Sge};
use crate::wire::exs::{MAX_HEADER, Message, Piggyback};

use crate::sys::IoVec;

use super::adverts::MAX_COMPANY;
use super::credits::Level;
use super::doorbell::Doorbell;
use super::sendq::{PostedWr, WrPurpose};
use super::{OpError, Port, Session};

/// Control messages that wait for credits or for room in the send queue.
///
/// Messages of one direction leave in order. There is no order between the two directions, so a
/// long chunk does not hold up ADVERTs.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// About data that arrive: ADVERT, RING, WITHDRAW.
    rx: VecDeque<Message>,
    /// About data that leave: FIN, WITHDRAWN, ..., and last CLOSE and CLOSE_ACK.
    tx: VecDeque<Message>,
    /// The initiator's first message is due.
    ready_due: bool,
    /// The peer must learn of the ring's freed bytes.
    ack_due: bool,
    ping_due: bool,
    pong_due: bool,
    /// The peer must learn that this side could use more credits.
    more_due: bool,
    /// Messages that the peer must be asked for, to use up receives. 0: none.
    use_due: u16,
    /// A message waits for credits or for the send queue, and that is counted.
    credit_stall: bool,
    queue_stall: bool,
}

impl Outbox {
    pub(super) fn queue_rx(&mut self, message: Message) {
        self.rx.push_back(message);
    }

    pub(super) fn queue_tx(&mut self, message: Message) {
        self.tx.push_back(message);
    }

    pub(super) fn queue_ready(&mut self) {
        self.ready_due = true;
    }

    pub(super) fn request_ack(&mut self) {
        self.ack_due = true;
    }

    pub(super) fn request_ping(&mut self) {
        self.ping_due = true;
    }

    pub(super) fn request_pong(&mut self) {
        self.pong_due = true;
    }

    pub(super) fn request_more(&mut self) {
        self.more_due = true;
    }

    pub(super) fn request_use(&mut self, messages: u16) {
        self.use_due = messages;
    }

    /// The peer must learn of the ring's freed bytes.
    pub(super) fn is_ack_due(&self) -> bool {
        self.ack_due
    }

    /// Messages about data that arrive.
    pub(super) fn rx_len(&self) -> usize {
        self.rx.len()
    }

    pub(super) fn rx_messages(&self) -> impl Iterator<Item = &Message> {
        self.rx.iter()
    }

    /// Messages that wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.rx.len() + self.tx.len()
    }

    /// The next message about data that arrive.
    pub(super) fn first_rx(&self) -> Option<Message> {
        self.rx.front().copied()
    }

    /// The next message about data that arrive has left with another one.
    pub(super) fn drop_rx(&mut self) {
        self.rx.pop_front();
    }

    /// No message is waiting that data must not overtake.
    pub(super) fn is_flushed(&self) -> bool {
        self.rx.is_empty() && self.tx_is_flushed()
    }

    /// The same, apart from messages about data that arrive.
    pub(super) fn tx_is_flushed(&self) -> bool {
        self.tx.is_empty() && !self.ready_due
    }

    /// ADVERTs wait to leave.
    fn has_adverts(&self) -> bool {
        self.rx.iter().any(|m| matches!(m, Message::Advert(_)))
    }

    /// Only messages about data that arrive are due.
    pub(super) fn only_rx(&self) -> bool {
        self.tx_is_flushed() && !self.has_other()
    }

    /// No message is due at all.
    pub(super) fn is_empty(&self) -> bool {
        self.is_flushed() && !self.has_other()
    }

    /// A message is due that other messages may overtake.
    fn has_other(&self) -> bool {
        self.ack_due || self.ping_due || self.pong_due || self.more_due || self.use_due > 0
    }

    /// No data arrive any more.
    pub(super) fn clear_rx(&mut self) {
        self.rx.clear();
    }

    /// Whether a message waits for credits, and whether it waits for room in the send queue.
    pub(super) fn stalls(&self) -> (bool, bool) {
        (self.credit_stall, self.queue_stall)
    }

    /// The connection is over: no message leaves any more.
    pub(super) fn clear(&mut self) {
        *self = Outbox::default();
    }
}

/// Messages about data that arrive which wait here; more stay in the machine.
pub(super) const RX_QUEUE: usize = 64;

/// The parts of a WR that vary.
pub(super) struct Wr<'a> {
    pub(super) op: SendOp,
    pub(super) head: &'a [u8],
    pub(super) sges: &'a [Sge],
    pub(super) file: Option<FileRange>,
    pub(super) inline: bool,
    pub(super) signalled: bool,
}

impl Wr<'_> {
    pub(super) const SEND: SendOp = SendOp::Send { invalidate: None, solicited: false };
}

impl Session {
    /// Posts a WR; there must be room. False if the port refused it: then the connection is
    /// going down.
    pub(super) fn post_wr(
        &mut self,
        port: &mut dyn Port,
        wr: Wr<'_>,
        entry: PostedWr,
        bell: Doorbell,
    ) -> bool {
        let signaled = wr.signalled || self.sendq.must_signal();
        let wr = SendWr {
            wr_id: self.sendq.next_id(),
            op: wr.op,
            head: wr.head,
            sges: wr.sges,
            file: wr.file,
            inline: wr.inline,
            signaled,
        };
        match port.post_send(&wr) {
            Ok(()) => {
                self.sendq.push(entry, signaled);
                self.unrung.note(bell);
                true
            }
            Err(error) => {
                self.trash.extend(entry.bounce);
                match error {
                    // The queue pair is going down, and the port is about to report it.
                    RnicError::State { .. } => self.life.on_refused(),
                    RnicError::Memory(_) => self.fail(OpError::LocalMemory(error)),
                    _ => self.fail(OpError::Rnic(error)),
                }
                false
            }
        }
    }

    /// Whether a message of this level may leave. If not, counts the stall.
    pub(super) fn may_send(&mut self, level: Level) -> bool {
        let (credit, room) = (self.credits.may(level), self.sendq.room() > 0);
        if !credit && !self.out.credit_stall {
            self.counters.credit_stalls += 1;
        }
        self.out.credit_stall = !credit;
        if room {
            self.out.queue_stall = false;
        } else {
            self.note_full_queue();
        }
        // The peer may in turn be waiting for the message that was deferred.
        if !(credit && room) {
            self.unrung.hurry_deferred();
        }
        credit && room && self.life.may_talk()
    }

    /// Counts a stall at the send queue, once until it has room.
    pub(super) fn note_full_queue(&mut self) {
        if !std::mem::replace(&mut self.out.queue_stall, true) {
            self.counters.queue_stalls += 1;
        }
    }

    /// The header of a message that leaves now. It returns the credits and the freed ring bytes
    /// that this side owes.
    ///
    /// Freed ring bytes stay behind ADVERTs that wait, for credits for instance: the last of
    /// these takes them. A sender that has room in the ring and no ADVERT goes on by the ring, so
    /// the ADVERTs would miss, and with few credits a busy stream would never turn direct.
    #[inline(always)]
    pub(super) fn header(&mut self, message: Message, head: &mut [u8; MAX_HEADER]) -> usize {
        let mut freed = 0;
        if !self.out.has_adverts() {
            freed = self.proto.as_mut().map_or(0, |p| p.take_freed());
            self.out.ack_due = false;
        }
        let credits = self.credits.take_owed();
        self.header_with(message, Piggyback { credits, freed }, head)
    }

    fn header_with(
        &mut self,
        message: Message,
        pb: Piggyback,
        head: &mut [u8; MAX_HEADER],
    ) -> usize {
        self.credits.spend();
        self.counters.messages_sent += 1;
        message.emit(pb, head)
    }

    /// Sends a message without data, if it may leave.
    pub(super) fn say(&mut self, port: &mut dyn Port, message: Message, level: Level) -> bool {
        self.say_with(port, (message, &[]), level, WrPurpose::Message, Wr::SEND)
    }

    /// As `say`, for a message with bytes `behind` it, or whose completion ends more than the
    /// message (`what`).
    pub(super) fn say_with(
        &mut self,
        port: &mut dyn Port,
        (message, behind): (Message, &[u8]),
        level: Level,
        what: WrPurpose,
        op: SendOp,
    ) -> bool {
        if !self.may_send(level) {
            return false;
        }
        // The peer may be waiting for what this side owes.
        let pressing = self.out.ack_due || self.credits.peer_is_short();
        let due = match message {
            _ if pressing => Doorbell::Now,
            Message::Ready => Doorbell::Next,
            // A program that meets the end most likely closes next.
            Message::CloseAck if !self.life.is_closing() => Doorbell::Next,
            Message::Advert(_) | Message::Credit => Doorbell::Soon,
            _ => Doorbell::Now,
        };
        let relaxed = due < Doorbell::Now;
        // Data for a receive this small ride in their announcement, ADVERT or not: the ADVERT
        // is worth no doorbell of its own. But then its time of leaving is unknown. So it must
        // return no credits and no ring bytes, and a message that waits behind it must not wait
        // for it (`may_send`).
        let small = matches!(message, Message::Advert(a) if a.len <= self.cfg.inline_max);
        let idle = small && !pressing && !self.credits.must_return();
        // An ADVERT waits for others, as it might wake a peer for nothing.
        let alone = !relaxed || message == Message::Credit;
        if what == WrPurpose::Message && alone && !self.unrung.has_deferred() {
            let payload = IoVec::new(behind);
            let sent = port.try_send_eager(&payload, &mut |head| self.header(message, head));
            if self.note_eager(sent, !relaxed) {
                return true;
            }
        }
        let mut first = [0; MAX_HEADER];
        let len = match idle {
            true => self.header_with(message, Piggyback::default(), &mut first),
            false => self.header(message, &mut first),
        };
        let mut head = [0; MAX_HEADER + MAX_COMPANY];
        head[..len].copy_from_slice(&first[..len]);
        head[len..len + behind.len()].copy_from_slice(behind);
        let len = len + behind.len();
        let signalled = what != WrPurpose::Message;
        let wr = Wr { op, head: &head[..len], sges: &[], file: None, inline: false, signalled };
        let bell = if idle { Doorbell::Piggyback } else { due };
        self.post_wr(port, wr, what.into(), bell)
    }

    /// Sends the messages that wait, as far as they may leave: none about data that leave while a
    /// chunk is being posted.
    pub(super) fn flush_outbox(&mut self, port: &mut dyn Port) {
        if self.out.ready_due {
            if !self.say(port, Message::Ready, Level::Control) {
                return;
            }
            self.out.ready_due = false;
        }
        while !self.out.rx.is_empty() && !self.gathers() {
            if !self.may_send(Level::Control) || !self.say_next_of_rx(port) {
                return;
            }
        }
        while !self.sender.has_job()
            && let Some(message) = self.out.tx.front().copied()
        {
            if !self.say(port, message, Level::Control) {
                return;
            }
            self.out.tx.pop_front();
            match message {
                Message::Close => self.life.on_close_sent(),
                Message::CloseAck => self.life.on_answer_sent(),
                _ => {}
            }
        }
        if self.out.pong_due && self.say(port, Message::Pong, Level::Control) {
            self.out.pong_due = false;
        }
        if self.out.ping_due && self.say(port, Message::Ping, Level::Control) {
            self.out.ping_due = false;
        }
    }

    /// Sends the next message about data that arrive. An ADVERT takes others along. A message
    /// that the port refuses is lost, and the connection with it.
    fn say_next_of_rx(&mut self, port: &mut dyn Port) -> bool {
        let Some(message) = self.out.rx.pop_front() else { return false };
        let most = self.most_further(message, port);
        let company = self.out.take_company(message, most);
        if matches!(message, Message::Advert(_) | Message::PacketAdvert { .. }) {
            self.counters.adverts_sent += 1 + company.count as u64;
        }
        let whole = (message, company.bytes());
        self.say_with(port, whole, Level::Control, WrPurpose::Message, Wr::SEND)
    }

    /// Sends what is due about extra receives (`extra.rs`).
    pub(super) fn flush_extra(&mut self, port: &mut dyn Port) {
        if self.out.more_due && self.say(port, Message::More, Level::Control) {
            self.out.more_due = false;
        }
        let messages = u32::from(self.out.use_due);
        if messages > 0 && self.say(port, Message::Use { messages }, Level::Control) {
            self.out.use_due = 0;
        }
    }

    /// Returns credits and acknowledges ring bytes, if no other message has done so.
    pub(super) fn flush_debts(&mut self, port: &mut dyn Port) {
        if self.out.ack_due && !self.out.has_adverts() {
            self.say(port, Message::Credit, Level::Control);
        }
        if self.credits.must_return() {
            self.say(port, Message::Credit, Level::Return);
        }
        // Any message uses up a receive of the peer's; these say nothing.
        while self.credits.must_use()
            && self.credits.may(Level::Data)
            && self.life.is_open()
            && self.say(port, Message::Credit, Level::Data)
        {}
    }
}
