//! Eager messages: small sends and small receives that need no list of things to do.
//!
//! Most of what a session keeps is for operations that wait: for credits, for an address, for a
//! completion. A small send that finds nothing before it waits for nothing: the port has its
//! bytes when [`Session::try_send_eager`] returns. So it needs no entry in any table. The peer
//! sees no difference: credits, acknowledgements and stream positions travel with the message
//! as with any other. If anything is in the way, the session declines, and the caller posts
//! the send.
//!
//! The data of a message that arrives for a receive that waits for nothing else are copied at
//! once. After most messages the sending half has nothing to do; [`After::Settled`] says so and
//! saves the caller a `drive`.

use crate::ids::Outcome;
use crate::mem::Segment;
use crate::rnic::{EagerSend, HEAD};
use crate::stream::EagerTarget;
use crate::sys::IoVec as Bytes;
use crate::time::Time;
use crate::wire::exs::{MAX_HEADER, Message};

use super::credits::Level;
use super::doorbell::Doorbell;
use super::proto::Proto;
use super::receiver::{RecvEnd, count_copy};
use super::rx::{MessageBytes, index};
use super::types::count;
use super::{Done, IoVec, Port, SendSource, Session};

// The header that the port asks for is a header of this protocol.
const _: () = assert!(MAX_HEADER == HEAD);

/// What became of a message whose data might go straight into a receive.
#[derive(Debug)]
pub(super) enum EagerDelivery {
    /// Nothing has happened: the message must go through the machine.
    Declined,
    /// This number of its bytes is in receives. The rest must go through the machine.
    Partly(u32),
    /// The data are in the receive. `Some`: the receive ended, and nothing else waits for
    /// `poll_done`.
    Delivered(Option<Done>),
}

/// A read of the program that is in the engine when messages come. Their bytes go straight to it, past
/// the receives that its stream has posted.
pub struct VisitRead<'a> {
    /// The receives that have not ended as far as the reader knows. If the session has fewer, the bytes
    /// of one that has ended come before those of a message.
    pub posted: usize,
    /// The bytes that the reader still has room for.
    pub room: usize,
    /// Takes bytes.
    pub take: &'a mut dyn FnMut(&[u8]),
}

/// What the caller of [`Session::handle_message`], [`Session::handle_eager`] or
/// [`Session::post_recv`] must do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum After {
    /// Nothing, apart from `poll_done`: `drive` would find nothing to do.
    Settled,
    /// Call `drive`.
    NeedsDrive,
}

impl Session {
    /// Sends `payload` at once, if it is small and nothing waits before it. Then the operation
    /// is over without a [`Done`]; after `Batched` the caller must ring the doorbell. After
    /// `Declined` nothing has happened, and the caller must post the send.
    ///
    /// `sends`: the operations whose bytes these are, one behind the other; more than one only on a
    /// stream, whose messages have no meaning of their own.
    pub fn try_send_eager(
        &mut self,
        port: &mut dyn Port,
        payload: &Bytes<'_>,
        sends: u64,
    ) -> EagerSend {
        self.assert_here();
        let Ok(len) = u32::try_from(payload.len()) else { return EagerSend::Declined };
        // Ends that wait for `poll_done` are reported first.
        let free = self.sender.is_idle() && self.done.is_empty();
        if !free
            || !self.is_flushed()
            || !self.life.is_open()
            || !self.credits.may(Level::Data)
            || self.unrung.has_deferred()
        {
            return EagerSend::Declined;
        }
        let sent = port.try_send_eager(payload, &mut |head| match self
            .proto
            .as_mut()
            .and_then(|proto| proto.try_send_eager(len))
        {
            Some(message) => self.header(message, head),
            None => 0,
        });
        if sent.is_taken() {
            self.counters.sends += sends;
            self.counters.tx_inline += u64::from(len);
        }
        sent
    }

    /// Bytes of sends that may leave together in one eager message; 0: each send is a message.
    pub fn may_join_eager(&self) -> usize {
        match &self.proto {
            Some(Proto::Stream(stream)) => index(stream.tx.eager_max()),
            _ => 0,
        }
    }

    /// Sends the data of a send that had to wait inside one eager message. If the port does not take
    /// it, nothing has happened.
    pub(super) fn try_send_inline_eager(
        &mut self,
        port: &mut dyn Port,
        op: u64,
        off: u64,
        len: u32,
        message: Message,
    ) -> EagerSend {
        if self.unrung.has_deferred() {
            return EagerSend::Declined;
        }
        let Some(SendSource::Memory(IoVec::One(buf))) = self.sender.source(op) else {
            return EagerSend::Declined;
        };
        let (seg, off) = (buf.seg.clone(), usize::try_from(off).unwrap_or(usize::MAX));
        let payload = seg.io_vec(off, index(len));
        let sent = port.try_send_eager(&payload, &mut |head| self.header(message, head));
        if !self.note_eager(sent, true) {
            return sent;
        }
        if let Some(proto) = &mut self.proto {
            proto.handle_sent(op, len.into());
        }
        self.counters.tx_inline += u64::from(len);
        sent
    }

    /// Puts data that arrived into the receives that wait for them alone. `packet`: the data are a
    /// message of their own. What the port must do besides is for the next `drive`.
    #[inline]
    pub(super) fn try_deliver_eager(
        &mut self,
        now: Time,
        port: &mut dyn Port,
        (bytes_in, header): (MessageBytes<'_>, usize),
        len: u32,
        packet: bool,
    ) -> EagerDelivery {
        let (mut from, mut only) = (0, None);
        while from < len {
            let Some(proto) = &mut self.proto else { break };
            let Some(target) = proto.try_recv_eager(len - from, packet) else { break };
            let ended = self.fill_eager(port, (bytes_in, header + index(from)), target, packet);
            from += target.len;
            // The last end is for the caller, if no other waits.
            match ended {
                Some(done) if from < len || !self.done.is_empty() => self.done.push_back(done),
                ended => only = ended,
            }
        }
        if from == 0 {
            return EagerDelivery::Declined;
        }
        count(&mut self.counters.rx_inline, from.into());
        self.timers.moved(now);
        match from == len {
            true => EagerDelivery::Delivered(only),
            false => EagerDelivery::Partly(from),
        }
    }

    /// Gives data that arrived to a read that takes them at once. False: nothing has happened.
    #[inline]
    pub(super) fn try_deliver_to_read(
        &mut self,
        now: Time,
        (bytes_in, header): (MessageBytes<'_>, usize),
        len: u32,
        read: &mut VisitRead<'_>,
    ) -> bool {
        let Some(Proto::Stream(stream)) = &mut self.proto else { return false };
        let whole = header + index(len) <= bytes_in.len() && index(len) <= read.room;
        let next = self.receiver.in_flight() == read.posted && whole;
        if !next || !stream.rx.try_pass(len) {
            return false;
        }
        bytes_in.give(header, index(len), read.take);
        read.room -= index(len);
        self.counters.recvs += 1;
        count_copy(&mut self.counters, len.into());
        count(&mut self.counters.rx_inline, len.into());
        self.timers.moved(now);
        true
    }

    /// Puts data into one receive. Gives its end, if it ends and there is nothing else to do for it.
    #[inline(always)]
    fn fill_eager(
        &mut self,
        port: &mut dyn Port,
        (bytes_in, from): (MessageBytes<'_>, usize),
        EagerTarget { op, op_off, len, ends }: EagerTarget,
        packet: bool,
    ) -> Option<Done> {
        let bytes = op_off + u64::from(len);
        if ends && let Some((buf, user)) = self.receiver.take_plain(op) {
            let to = usize::try_from(op_off).unwrap_or(usize::MAX);
            bytes_in.copy_to(from, &buf.seg, to, index(len));
            count_copy(&mut self.counters, len.into());
            self.counters.recvs += 1;
            return Some(Done::whole(user, bytes));
        }
        self.receiver.copy_in((bytes_in, from), op, op_off, len, &mut self.counters);
        if ends {
            let total = packet.then_some(bytes);
            let end = RecvEnd { op, bytes, total, eof: false, outcome: Outcome::Ok };
            self.recv_done(port, end);
        }
        None
    }

    /// Fills a receive whose bytes lie in the ring, if nothing is before it: how many, and what the
    /// caller must do. The operation is over without a [`Done`]. None: nothing has happened, and the
    /// receive must be posted.
    #[inline]
    pub fn try_recv_eager(&mut self, memory: &Segment, waitall: bool) -> Option<(u64, After)> {
        self.assert_here();
        if !self.life.is_open() || self.life.recv_is_shut() || !self.done.is_empty() {
            return None;
        }
        let proto = self.proto.as_mut()?;
        let pieces = proto.try_take(memory.len() as u64, waitall)?;
        let len = self.ring.copy_pieces(pieces, memory);
        count_copy(&mut self.counters, len);
        self.counters.recvs += 1;
        // An idle ring goes when the data in it have been read.
        let after = if self.timers.is_calm() { self.after_recv() } else { self.after() };
        Some((len, after))
    }

    /// Notes for the doorbell what became of an eager message. False if the port declined it.
    pub(super) fn note_eager(&mut self, sent: EagerSend, urgent: bool) -> bool {
        if sent == EagerSend::Batched {
            self.unrung.note(if urgent { Doorbell::Now } else { Doorbell::Soon });
        }
        sent.is_taken()
    }

    /// No receive waits for data: an eager message would have to go to the ring.
    pub fn has_no_posted_recv(&self) -> bool {
        self.receiver.is_empty()
    }

    /// What the caller must do after a message or a post.
    pub(super) fn after(&self) -> After {
        match self.has_nothing_due() {
            true => After::Settled,
            false => After::NeedsDrive,
        }
    }

    /// `drive` would change nothing, and no deadline has come nearer, apart from that of an idle
    /// ring. False says nothing: `drive` can still find nothing to do.
    fn has_nothing_due(&self) -> bool {
        self.has_nothing_to_send()
            && self.timers.is_calm()
            && self.is_trusting()
            && self.cfg.recv_timeout.is_none()
    }

    fn has_nothing_to_send(&self) -> bool {
        self.sender.is_idle()
            && self.proto.as_ref().is_some_and(Proto::is_quiet)
            && (self.out.is_empty() || self.out.only_rx() && self.gathers())
            && !self.credits.must_return()
            && !self.credits.must_use()
            && self.extra.is_settled()
            && self.life.is_open()
            && self.sided.is_idle()
            && self.trash.is_empty()
    }

    /// Nothing is under way: no operation that has not ended, nothing to be sent, and no memory open
    /// to the peer.
    pub fn is_resting(&self) -> bool {
        self.only_receives() && self.receiver.is_empty()
    }

    /// True if nothing is under way, and the next small message may pass by the receives, to a thread that
    /// waits for it ([`VisitRead`]).
    pub fn may_pass(&self) -> bool {
        let is_stream = matches!(self.proto, Some(Proto::Stream(_)));
        is_stream && self.is_resting() && !self.readable() && self.cfg.recv_timeout.is_none()
    }

    /// The operations that have not ended.
    pub fn operations(&self) -> usize {
        self.sender.in_flight() + self.receiver.in_flight() + self.sided.in_flight()
    }

    /// Nothing is under way but this number of receives.
    pub fn has_only_receives(&self, number: usize) -> bool {
        self.receiver.in_flight() == number && self.only_receives()
    }

    /// Nothing is under way but receives.
    pub fn only_receives(&self) -> bool {
        self.has_nothing_to_send() && self.sided.is_empty() && self.sided.has_no_exports()
    }
}
