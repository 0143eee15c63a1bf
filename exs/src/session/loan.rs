//! A connection at rest, lent to the threads that block on it.
//!
//! A small message changes few numbers of a session: the credits, the positions in the stream, and
//! what was counted. While nothing else is under way, these can be lent, so that threads send and
//! receive small messages without the session. It stands still meanwhile: its owner must end the loan
//! before it calls anything else. Whatever is not a small message of a stream, or needs more than
//! these numbers, is for the session.

use super::Session;
use super::credits::{Credits, Level};
use super::proto::Proto;
use super::rx::index;
use super::types::count;
use crate::stream::{RxLoan, TxLoan};
use crate::time::Time;
use crate::wire::exs::{MAX_HEADER, Message, Piggyback};

/// Messages of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moved {
    messages: u64,
    bytes: u64,
}

impl Moved {
    fn add(&mut self, bytes: u32) {
        self.messages += 1;
        self.bytes += u64::from(bytes);
    }
}

/// What a session lends ([`Session::lend`]).
#[derive(Clone, Debug)]
pub struct SessionLoan {
    credits: Credits,
    tx: TxLoan,
    rx: RxLoan,
    sent: Moved,
    received: Moved,
}

impl SessionLoan {
    /// Writes the header of a message with `len` bytes of data, which leaves now. Returns the length
    /// of the header. None: the session must send it, and the loan must not be used again.
    #[inline]
    pub fn send(&mut self, len: u32, head: &mut [u8; MAX_HEADER]) -> Option<usize> {
        if !self.credits.may(Level::Data) || !self.tx.send(len) {
            return None;
        }
        let back = Piggyback { credits: self.credits.take_owed(), freed: self.rx.take_freed() };
        self.credits.spend();
        self.sent.add(len);
        Some(Message::Data { direct: false, inline: true, len }.emit(back, head))
    }

    /// Takes a message that has come. Returns its data. None: the session must take it, and the loan
    /// must not be used again.
    #[inline]
    pub fn receive<'m>(&mut self, message: &'m [u8]) -> Option<&'m [u8]> {
        let head = &message[..message.len().min(MAX_HEADER)];
        let (what, back, header) = Message::parse_prefix(head, message.len()).ok()?;
        let Message::Data { direct: false, inline: true, len } = what else { return None };
        self.credits.handle_received().ok()?;
        self.credits.handle_returned(back.credits).ok()?;
        self.tx.handle_ack(back.freed).ok()?;
        if !self.rx.pass(len) {
            return None;
        }
        self.received.add(len);
        message.get(header..header + index(len))
    }

    /// True if the peer waits for credits or for room, or may soon: the session must return them, so
    /// the loan must end.
    #[inline]
    pub fn owes(&self) -> bool {
        self.credits.must_return() || self.credits.peer_is_short() || self.rx.wants_ack()
    }
}

impl Session {
    /// Lends the connection. None: something is under way, or data wait.
    pub fn lend(&mut self) -> Option<SessionLoan> {
        self.assert_here();
        let free =
            self.may_pass() && self.done.is_empty() && self.is_flushed() && self.timers.is_calm();
        if !free || self.unrung.has_deferred() || self.credits.must_use() {
            return None;
        }
        let Some(Proto::Stream(stream)) = &self.proto else { return None };
        let (tx, rx) = (stream.tx.lend()?, stream.rx.lend()?);
        let (sent, received) = (Moved::default(), Moved::default());
        let loan = SessionLoan { credits: self.credits.clone(), tx, rx, sent, received };
        self.lent = !loan.owes() && self.credits.has_retired();
        self.lent.then_some(loan)
    }

    /// A lent connection must be taken back before anything else.
    #[inline]
    pub(super) fn assert_here(&self) {
        debug_assert!(!self.lent, "the connection is lent");
    }

    /// Takes the connection back.
    pub fn end_loan(&mut self, loan: SessionLoan, now: Time) {
        let SessionLoan { credits, tx, rx, sent, received } = loan;
        (self.credits, self.lent) = (credits, false);
        if let Some(Proto::Stream(stream)) = &mut self.proto {
            stream.tx.end_loan(tx);
            stream.rx.end_loan(rx);
        }
        let counters = &mut self.counters;
        count(&mut counters.sends, sent.messages);
        count(&mut counters.messages_sent, sent.messages);
        count(&mut counters.tx_inline, sent.bytes);
        count(&mut counters.recvs, received.messages);
        count(&mut counters.messages_received, received.messages);
        count(&mut counters.rx_inline, received.bytes);
        count(&mut counters.copies, received.messages);
        count(&mut counters.copied_bytes, received.bytes);
        self.extra.note_messages(received.messages);
        if received.messages > 0 {
            self.timers.heard(now);
        }
        if received.messages + sent.messages > 0 {
            self.timers.moved(now);
        }
    }
}
