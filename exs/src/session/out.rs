//! Messages and WRs on their way to the port.

use std::collections::VecDeque;

use crate::rnic::{FileRange, RnicError, SendOp, SendWr, Sge};
use crate::wire::exs::{MAX_HEADER, Message, Piggyback};

use crate::sys::IoVec;

use super::adverts::MAX_COMPANY;
use super::flow::Level;
use super::sendq::{PostedWr, WrPurpose};
use super::{OpError, Port, Session};

/// Control messages that wait for credits or for room in the send queue.
///
/// Messages of one direction leave in order. Those of the two directions need no
/// order among each other, so a chunk that takes long does not hold up ADVERTs.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// About data that come: ADVERT, RING, WITHDRAW.
    pub(super) rx: VecDeque<Message>,
    /// About data that go: FIN, WITHDRAWN, ..., and last CLOSE and CLOSE_ACK.
    pub(super) tx: VecDeque<Message>,
    /// The initiator's first message.
    pub(super) ready_due: bool,
    /// The ring's freed bytes should be known to the peer.
    pub(super) ack_due: bool,
    pub(super) ping_due: bool,
    pub(super) pong_due: bool,
    /// For the counters: something waits already.
    credit_stall: bool,
    queue_stall: bool,
}

impl Outbox {
    /// No message is waiting that data must not overtake.
    pub(super) fn is_flushed(&self) -> bool {
        self.rx.is_empty() && self.tx_is_flushed()
    }

    /// But for what waits for the receiving half.
    pub(super) fn tx_is_flushed(&self) -> bool {
        self.tx.is_empty() && !self.ready_due
    }

    /// ADVERTs wait to leave.
    fn has_adverts(&self) -> bool {
        self.rx.iter().any(|m| matches!(m, Message::Advert(_)))
    }

    /// Nothing is due but what waits for the receiving half.
    pub(super) fn only_rx(&self) -> bool {
        self.tx_is_flushed() && !self.ack_due && !self.ping_due && !self.pong_due
    }

    /// No message is due at all.
    pub(super) fn is_empty(&self) -> bool {
        self.is_flushed() && !self.ack_due && !self.ping_due && !self.pong_due
    }

    /// The connection is over: nothing leaves any more.
    pub(super) fn clear(&mut self) {
        *self = Outbox::default();
    }
}

/// ADVERTs and the like that wait here; more stay in the machine.
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
    /// Posts a WR; there is room. False if the port refused it: then the connection
    /// is as good as gone.
    pub(super) fn post_wr(&mut self, port: &mut dyn Port, wr: Wr<'_>, entry: PostedWr) -> bool {
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
                self.posted = true;
                true
            }
            Err(error) => {
                self.trash.extend(entry.bounce);
                match error {
                    // It is going down already, and that is going to be reported.
                    RnicError::State { .. } => self.life.on_refused(),
                    RnicError::Memory(_) => self.fail(OpError::LocalMemory(error)),
                    _ => self.fail(OpError::Rnic(error)),
                }
                false
            }
        }
    }

    /// Whether a message of this level may leave, and notes it if not.
    pub(super) fn may_send(&mut self, level: Level) -> bool {
        let (credit, room) = (self.flow.may(level), self.sendq.room() > 0);
        if !credit && !self.out.credit_stall {
            self.counters.credit_stalls += 1;
        }
        self.out.credit_stall = !credit;
        if room {
            self.out.queue_stall = false;
        } else {
            self.note_full_queue();
        }
        // What was left lying may be all that the peer is waiting for, too.
        if self.idle_posted && !(credit && room) {
            (self.posted, self.soon, self.idle_posted) = (true, true, false);
        }
        credit && room && self.life.may_talk()
    }

    /// For the counters.
    pub(super) fn note_full_queue(&mut self) {
        if !std::mem::replace(&mut self.out.queue_stall, true) {
            self.counters.queue_stalls += 1;
        }
    }

    /// The header of a message that leaves now: it takes along what we owe.
    ///
    /// But freed ring bytes stay behind ADVERTs that wait (for credits, say): the last of these
    /// takes them. A sender that has room in the ring and no ADVERT goes on by the ring, and
    /// the ADVERTs find it gone: with few credits a busy stream would never turn direct.
    #[inline(always)]
    pub(super) fn header(&mut self, message: Message, head: &mut [u8; MAX_HEADER]) -> usize {
        let mut freed = 0;
        if !self.out.has_adverts() {
            freed = self.proto.as_mut().map_or(0, |p| p.take_freed());
            self.out.ack_due = false;
        }
        let credits = self.flow.take_owed();
        self.header_with(message, Piggyback { credits, freed }, head)
    }

    fn header_with(
        &mut self,
        message: Message,
        pb: Piggyback,
        head: &mut [u8; MAX_HEADER],
    ) -> usize {
        self.flow.spend();
        self.counters.messages_sent += 1;
        message.emit(pb, head)
    }

    /// Sends a message without data, if it may leave.
    pub(super) fn say(&mut self, port: &mut dyn Port, message: Message, level: Level) -> bool {
        self.say_with(port, (message, &[]), level, WrPurpose::Message, Wr::SEND)
    }

    /// As `say`, for the message that ends something (`what`), which is then told, or has
    /// something behind it.
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
        // The peer may be waiting for what we owe.
        let pressing = self.out.ack_due || self.flow.peer_is_short();
        let quiet = matches!(message, Message::Advert(_) | Message::Ready | Message::Credit);
        let relaxed = quiet && !pressing;
        // Data for a receive this small ride in their announcement, ADVERT or not: it
        // is worth no doorbell of its own. But then nobody knows when it leaves, so it
        // must take nothing along that we owe, nor may what waits behind it wait for
        // that (`may_send`).
        let small = matches!(message, Message::Advert(a) if a.len <= self.cfg.inline_max);
        let idle = small && !pressing && !self.flow.must_return();
        // What may wait for company does: it might wake a peer for nothing.
        let alone = !relaxed || message == Message::Credit;
        if what == WrPurpose::Message && alone && !self.idle_posted {
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
        let sent = self.post_wr(port, wr, what.into());
        self.urgent |= sent && !relaxed;
        self.soon |= sent && !idle;
        self.idle_posted |= sent && idle;
        sent
    }

    /// Sends what waits, as far as it may leave. Nothing of the outgoing direction
    /// while a chunk of it is being posted.
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
        while self.job.is_none()
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

    /// The next message about data that come, which may leave: an ADVERT takes others along.
    /// (What the port refuses is lost, and the connection with it.)
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

    /// Returns credits and acknowledges ring space, if no other message has done so.
    pub(super) fn flush_debts(&mut self, port: &mut dyn Port) {
        if self.out.ack_due && !self.out.has_adverts() {
            self.say(port, Message::Credit, Level::Control);
        }
        if self.flow.must_return() {
            self.say(port, Message::Credit, Level::Return);
        }
    }
}
