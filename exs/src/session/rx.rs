//! Messages and data that arrive.

use crate::mem::Segment;
use crate::packet::PacketAdvert;
use crate::rnic::RnicError;
use crate::stream::RemoteRing;
use crate::time::Time;
use crate::trace::debug;
use crate::wire::exs::{Immediate, MAX_HEADER, Message};

use super::eager::{After, EagerDelivery, VisitRead};
use super::out::RX_QUEUE;
use super::proto::{Proto, RxStep, ShownAs};
use super::receiver::{RecvEnd, count_copy};
use super::sender::Ends;
use super::types::count;
use super::{Done, OpError, Port, Session, Violation};

/// Bytes that are copied in one piece on their way to a read.
const PIECE: usize = 256;

/// Where the bytes of a message are.
#[derive(Clone, Copy, Debug)]
pub enum MessageBytes<'a> {
    /// In a receive, or in this side's ring.
    Memory(&'a Segment),
    /// In a copy of the caller's.
    Copy(&'a [u8]),
}

impl MessageBytes<'_> {
    pub(super) fn len(self) -> usize {
        match self {
            MessageBytes::Memory(seg) => seg.len(),
            MessageBytes::Copy(bytes) => bytes.len(),
        }
    }

    pub(super) fn copy_to(self, from: usize, dst: &Segment, to: usize, len: usize) {
        match self {
            MessageBytes::Memory(seg) => seg.copy_to(from, dst, to, len),
            MessageBytes::Copy(bytes) => dst.write_at(to, &bytes[from..from + len]),
        }
    }

    /// Gives `len` bytes to `take`, in one piece or in several. Memory that the peer can write is copied
    /// before.
    pub(super) fn give(self, from: usize, len: usize, take: &mut dyn FnMut(&[u8])) {
        let seg = match self {
            MessageBytes::Copy(bytes) => return take(&bytes[from..from + len]),
            MessageBytes::Memory(seg) => seg,
        };
        let (mut done, mut piece) = (0, [0; PIECE]);
        while done < len {
            let n = PIECE.min(len - done);
            seg.read_at(from + done, &mut piece[..n]);
            take(&piece[..n]);
            done += n;
        }
    }
}

/// The message that is being handled: where it is, and where its data begin.
type AtHand<'a> = Option<(MessageBytes<'a>, usize)>;

impl Session {
    /// Takes a message that lies in `slot`: exactly the received bytes. Afterwards the slot is
    /// free. The caller must repost the slot, or have a spare one posted beyond the credits,
    /// before the next `drive`, which returns the credit.
    pub fn handle_message(&mut self, now: Time, port: &mut dyn Port, slot: &Segment) -> After {
        let ended = self.receive(now, port, MessageBytes::Memory(slot), None);
        self.done.extend(ended);
        self.after()
    }

    /// As [`Session::handle_message`], for a message that took no slot, and whose memory can be
    /// the peer's. Gives the receive that the message ended, if no other operation ended with
    /// it; other ends wait for [`Session::poll_done`]. The bytes of a message may go to `read`.
    pub fn handle_eager(
        &mut self,
        now: Time,
        port: &mut dyn Port,
        bytes: MessageBytes<'_>,
        read: Option<&mut VisitRead<'_>>,
    ) -> (Option<Done>, After) {
        let ended = self.receive(now, port, bytes, read);
        (ended, self.after())
    }

    #[inline]
    fn receive(
        &mut self,
        now: Time,
        port: &mut dyn Port,
        came: MessageBytes<'_>,
        read: Option<&mut VisitRead<'_>>,
    ) -> Option<Done> {
        self.assert_here();
        if !self.hears(now) {
            return None;
        }
        let (mut copy, len) = ([0; MAX_HEADER], came.len().min(MAX_HEADER));
        let head = match came {
            // The peer may be writing there.
            MessageBytes::Memory(seg) => {
                seg.read_at(0, &mut copy[..len]);
                &copy[..len]
            }
            MessageBytes::Copy(bytes) => &bytes[..len],
        };
        let handled = Message::parse_prefix(head, came.len()).map_err(Violation::from).and_then(
            |(message, pb, header)| {
                self.credits.handle_received()?;
                self.credits.handle_returned(pb.credits)?;
                self.begin(&message)?;
                self.note_message(&message);
                if let Some(proto) = &mut self.proto
                    && pb.freed > 0
                {
                    proto.handle_ack(pb.freed)?;
                    self.timers.moved(now);
                }
                let eager = matches!(message, Message::Eager { .. });
                let (mut message, mut header) = (message, header);
                if let Message::Data { direct: false, inline: true, len } | Message::Eager { len } =
                    message
                {
                    if let Some(read) = read
                        && !eager
                        && self.try_deliver_to_read(now, (came, header), len, read)
                    {
                        return Ok((EagerDelivery::Delivered(None), header));
                    }
                    match self.try_deliver_eager(now, port, (came, header), len, eager) {
                        EagerDelivery::Declined => {}
                        EagerDelivery::Partly(n) => {
                            let rest = len - n;
                            message = Message::Data { direct: false, inline: true, len: rest };
                            header += index(n);
                        }
                        delivered @ EagerDelivery::Delivered(_) => return Ok((delivered, header)),
                    }
                }
                self.handle(now, message)?;
                if let Message::Advert(first) = message {
                    self.handle_further(first, came, header)?;
                }
                Ok((EagerDelivery::Declined, header))
            },
        );
        match handled {
            Ok((EagerDelivery::Delivered(ended), _)) => return ended,
            // The steps of this message come first in the machine's queue, and all are taken.
            Ok((_, header)) => self.drive_rx(port, Some((came, header))),
            Err(violation) => self.fail(OpError::Protocol(violation)),
        }
        None
    }

    /// A WRITE WITH IMMEDIATE has consumed a slot. The caller must repost the slot before the next
    /// `drive`.
    pub fn handle_write_imm(&mut self, now: Time, imm: u32) {
        if !self.hears(now) {
            return;
        }
        let Immediate { direct, len } = Immediate::parse(imm);
        self.extra.note_messages(1);
        let handled =
            self.credits.handle_received().and_then(|()| match self.life.awaits_ready() {
                false => self.handle_data(now, direct, false, len),
                true => Err(Violation::Unexpected("immediate data before READY")),
            });
        if let Err(violation) = handled {
            self.fail(OpError::Protocol(violation));
        }
    }

    /// Notes a sign of life. False if the session takes no more messages.
    fn hears(&mut self, now: Time) -> bool {
        self.timers.heard(now);
        if self.life.is_over() || self.proto.is_none() {
            return false;
        }
        self.counters.messages_received += 1;
        true
    }

    /// READY is the first message of the side that connects, and comes only once.
    fn begin(&mut self, message: &Message) -> Result<(), Violation> {
        let first = self.life.awaits_ready();
        if matches!(message, Message::Ready) != first {
            return Err(Violation::Unexpected("READY, or something before it"));
        }
        if first {
            self.ready();
        }
        Ok(())
    }

    /// READY has come.
    #[cold]
    fn ready(&mut self) {
        self.life.on_ready();
        self.timers.handshake = None;
        self.span.log(|| debug!("READY has come: the connection can be used"));
    }

    fn handle(&mut self, now: Time, message: Message) -> Result<(), Violation> {
        match message {
            Message::Ready | Message::Credit | Message::Pong => return Ok(()),
            Message::Ping => self.out.request_pong(),
            Message::More => self.handle_more()?,
            Message::Use { messages } => self.handle_use(messages)?,
            Message::Confirm { number } => self.handle_confirm(number)?,
            Message::Confirmed { number } => self.handle_confirmed(number)?,
            Message::Close => self.handle_close(now)?,
            Message::CloseAck => self.handle_close_ack()?,
            Message::Abort { code } => self.fail(OpError::PeerAborted { code }),
            Message::Data { direct, inline, len } => {
                if self.proto.as_ref().is_some_and(|p| !p.is_stream()) {
                    return Err(Violation::Unexpected("DATA on a seqpacket socket"));
                }
                self.handle_data(now, direct, inline, len)?;
            }
            Message::Fin => {
                self.proto.as_mut().map_or(Ok(()), Proto::handle_fin)?;
            }
            _ => self.handle_own(now, message)?,
        }
        Ok(())
    }

    fn handle_data(
        &mut self,
        now: Time,
        direct: bool,
        inline: bool,
        len: u32,
    ) -> Result<(), Violation> {
        let Some(proto) = &mut self.proto else { return Ok(()) };
        let stream = proto.is_stream();
        if !stream && !direct {
            return Err(Violation::Unexpected("data in the ring of a seqpacket socket"));
        }
        proto.handle_data(direct, inline, len)?;
        let counter = match (inline, direct) {
            (true, _) => &mut self.counters.rx_inline,
            (false, true) => &mut self.counters.rx_direct,
            (false, false) => &mut self.counters.rx_indirect,
        };
        count(counter, len.into());
        self.timers.moved(now);
        Ok(())
    }

    /// Messages that only one of the protocols has.
    fn handle_own(&mut self, now: Time, message: Message) -> Result<(), Violation> {
        match (&mut self.proto, message) {
            (Some(Proto::Stream(_)), Message::Advert(a)) => self.handle_advert(a)?,
            (Some(Proto::Stream(s)), Message::RingReq) => s.rx.handle_ring_request()?,
            (Some(Proto::Stream(s)), Message::RingRelease) => s.rx.handle_ring_release()?,
            (Some(Proto::Stream(s)), Message::Ring { addr, key }) => {
                s.tx.handle_ring(RemoteRing { addr, key })?;
                self.timers.moved(now);
            }
            (Some(Proto::Stream(s)), Message::Withdraw { .. }) => s.tx.handle_withdraw()?,
            (Some(Proto::Stream(s)), Message::Withdrawn { .. }) => s.rx.handle_withdrawn()?,
            (Some(Proto::Packet(p)), Message::Eager { len }) => {
                p.rx.handle_eager(len)?;
                count(&mut self.counters.rx_inline, len.into());
                self.timers.moved(now);
            }
            (Some(Proto::Packet(p)), Message::Rts { msg, total }) => p.rx.handle_rts(msg, total)?,
            (Some(Proto::Packet(p)), Message::PacketAdvert { msg, generation, addr, key, len }) => {
                p.tx.handle_advert(PacketAdvert { msg, generation, addr, key, len })?;
                count(&mut self.counters.adverts_received, 1);
            }
            (Some(Proto::Packet(p)), Message::PacketData { len, total }) => {
                p.rx.handle_data(len, total)?;
                count(&mut self.counters.rx_direct, len);
            }
            (Some(Proto::Packet(p)), Message::Withdraw { generation }) => {
                p.tx.handle_withdraw(generation)?;
            }
            (Some(Proto::Packet(p)), Message::Withdrawn { generation, next_msg }) => {
                p.rx.handle_withdrawn(generation, next_msg)?;
            }
            _ => return Err(Violation::Unexpected("message of the other kind of socket")),
        }
        Ok(())
    }

    /// Does what the receiving half wants. With a current message it does all, since the message
    /// is gone afterwards; without one, it stops when enough ADVERTs wait.
    pub(super) fn drive_rx(&mut self, port: &mut dyn Port, at_hand: AtHand<'_>) {
        while at_hand.is_some() || self.out.rx_len() < RX_QUEUE {
            let Some(step) = self.proto.as_mut().and_then(Proto::rx_step) else { break };
            self.rx_step(port, step, at_hand);
        }
    }

    pub(super) fn rx_step(&mut self, port: &mut dyn Port, step: RxStep, at_hand: AtHand<'_>) {
        match step {
            RxStep::Show { op, off, len, advert } => self.show(port, op, off, len, advert),
            RxStep::Retract { op } => {
                self.receiver.retract(port, op);
            }
            RxStep::CopyRing { ring_off, op, off, len } => {
                self.copy_ring(ring_off, op, off, len);
            }
            RxStep::CopyMessage { from, op, off, len } => {
                if let Some((came, header)) = at_hand {
                    let src = (came, header + index(from));
                    self.receiver.copy_in(src, op, off, len, &mut self.counters);
                }
            }
            RxStep::Stash { from, ring_off, len } => {
                if let Some((came, header)) = at_hand {
                    self.stash(port, (came, header + index(from)), ring_off, len);
                }
            }
            RxStep::Say(message) => self.out.queue_rx(message),
            RxStep::Ack => self.out.request_ack(),
            RxStep::GrantRing => self.grant_ring(port),
            RxStep::DropRing => self.ring.free(port),
            RxStep::Done { op, bytes, total, eof, outcome } => {
                self.recv_done(port, RecvEnd { op, bytes, total, eof, outcome });
            }
        }
    }

    /// Opens a receive's buffer to the peer.
    fn show(&mut self, port: &mut dyn Port, op: u64, off: u64, len: u64, advert: ShownAs) {
        if self.life.is_over() {
            return; // the peer is not there to see it
        }
        match self.receiver.show(port, op, off, len) {
            Ok(Some((addr, key))) => {
                let by_peer =
                    self.peer.closes_windows() && len > 0 && port.invalidate_is_costly(key);
                self.out.queue_rx(advert.advert(addr, key, len, by_peer));
            }
            Ok(None) => {}
            Err(error) => self.memory_refused(error),
        }
    }

    fn stash(
        &mut self,
        port: &mut dyn Port,
        src: (MessageBytes<'_>, usize),
        ring_off: u32,
        len: u32,
    ) {
        if len == 0 {
            return;
        }
        match self.ring.make(port, self.cfg.ring) {
            Ok(()) => {
                self.ring.stash(src, ring_off, len);
                count_copy(&mut self.counters, len.into());
            }
            Err(error) => self.memory_refused(error),
        }
    }

    /// Copies from the ring, round its end, to a receive.
    fn copy_ring(&mut self, ring_off: u32, op: u64, off: u64, len: u32) {
        let Some((seg, first, rest)) = self.ring.range(ring_off, len) else { return };
        let (ring, counters) = (MessageBytes::Memory(seg), &mut self.counters);
        self.receiver.copy_in((ring, index(ring_off)), op, off, first, counters);
        self.receiver.copy_in((ring, 0), op, off + u64::from(first), rest, counters);
    }

    /// The port has no memory, or no window for it.
    fn memory_refused(&mut self, error: RnicError) {
        match error {
            // The queue pair is going down, and the port is about to report it.
            RnicError::State { .. } => self.life.on_refused(),
            _ => self.fail(OpError::LocalMemory(error)),
        }
    }

    fn grant_ring(&mut self, port: &mut dyn Port) {
        if self.life.is_over() {
            return;
        }
        match self.ring.grant(port, self.cfg.ring) {
            Ok((addr, key)) => {
                self.counters.rings_granted += 1;
                self.out.queue_rx(Message::Ring { addr, key });
            }
            Err(error) => self.memory_refused(error),
        }
    }

    /// The machine has ended a receive, or a part of one.
    #[inline]
    pub(super) fn recv_done(&mut self, port: &mut dyn Port, end: RecvEnd) {
        let at_end = self.proto.as_ref().is_some_and(Proto::at_eof);
        let mut ends = Ends { done: &mut self.done, counters: &mut self.counters };
        self.receiver.done(port, end, at_end, &mut ends);
    }
}

/// A 32-bit number as an index: `usize` has at least 32 bits wherever EXS runs.
pub(super) fn index(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
