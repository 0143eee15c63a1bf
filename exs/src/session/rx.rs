//! Messages and data that come.

use crate::ids::Outcome;
use crate::mem::{Access, Key, Segment};
use crate::packet::PacketAdvert;
use crate::rnic::{Mr, RnicError};
use crate::stream::RemoteRing;
use crate::time::Time;
use crate::wire::exs::{Immediate, MAX_HEADER, Message};

use super::eager::{After, EagerDelivery};
use super::ops::Fate;
use super::out::RX_QUEUE;
use super::proto::{Proto, RxStep, ShownAs};
use super::types::count;
use super::{Buf, Done, IoVec, OpError, Port, Session, Violation};

/// Our ring or stash.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) buf: Buf,
    /// The peer's window onto it, once it has asked.
    pub(super) key: Option<Key>,
}

/// Where the bytes of a message are.
#[derive(Clone, Copy, Debug)]
pub enum MessageBytes<'a> {
    /// In a receive, or in our ring.
    Memory(&'a Segment),
    /// In a copy that is the caller's.
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
}

/// A message at hand: where it is, and where its data begin.
type AtHand<'a> = Option<(MessageBytes<'a>, usize)>;

impl Session {
    /// Takes a message that lies in `slot`: exactly the received bytes. Afterwards the slot is
    /// free. The caller must repost the slot, or have a spare one posted beyond the credits,
    /// before the next `drive`, which returns the credit.
    pub fn handle_message(&mut self, now: Time, port: &mut dyn Port, slot: &Segment) -> After {
        let ended = self.receive(now, port, MessageBytes::Memory(slot));
        self.done.extend(ended);
        self.after()
    }

    /// As [`Session::handle_message`], for a message that took no slot, and whose memory can be
    /// the peer's. Gives the receive that the message ended, if no other operation ended with
    /// it; other ends wait for [`Session::poll_done`].
    pub fn handle_eager(
        &mut self,
        now: Time,
        port: &mut dyn Port,
        bytes: MessageBytes<'_>,
    ) -> (Option<Done>, After) {
        let ended = self.receive(now, port, bytes);
        (ended, self.after())
    }

    #[inline]
    fn receive(&mut self, now: Time, port: &mut dyn Port, came: MessageBytes<'_>) -> Option<Done> {
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
                self.flow.handle_received()?;
                self.flow.handle_returned(pb.credits)?;
                self.begin(&message)?;
                if let Some(proto) = &mut self.proto
                    && pb.freed > 0
                {
                    proto.handle_ack(pb.freed)?;
                    self.timers.moved(now);
                }
                let eager = matches!(message, Message::Eager { .. });
                if let Message::Data { direct: false, inline: true, len } | Message::Eager { len } =
                    message
                    && let EagerDelivery::Delivered(ended) =
                        self.try_deliver_eager(now, port, (came, header), len, eager)
                {
                    return Ok((EagerDelivery::Delivered(ended), header));
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
            // The steps at hand come first in the machine's queue, and all are taken.
            Ok((EagerDelivery::Declined, header)) => self.drive_rx(port, Some((came, header))),
            Err(violation) => self.fail(OpError::Protocol(violation)),
        }
        None
    }

    /// A WRITE WITH IMMEDIATE has consumed a slot, which must be posted again before
    /// the next `drive`.
    pub fn handle_write_imm(&mut self, now: Time, imm: u32) {
        if !self.hears(now) {
            return;
        }
        let Immediate { direct, len } = Immediate::parse(imm);
        let handled = self.flow.handle_received().and_then(|()| match self.life.awaits_ready() {
            false => self.handle_data(now, direct, false, len),
            true => Err(Violation::Unexpected("immediate data before READY")),
        });
        if let Err(violation) = handled {
            self.fail(OpError::Protocol(violation));
        }
    }

    /// A sign of life; false if what comes is of no interest any more.
    fn hears(&mut self, now: Time) -> bool {
        self.timers.heard(now);
        if self.life.is_over() || self.proto.is_none() {
            return false;
        }
        self.counters.messages_received += 1;
        true
    }

    /// READY is the initiator's first message, and no other is.
    fn begin(&mut self, message: &Message) -> Result<(), Violation> {
        let first = self.life.awaits_ready();
        if matches!(message, Message::Ready) != first {
            return Err(Violation::Unexpected("READY, or something before it"));
        }
        if first {
            self.life.on_ready();
            self.timers.handshake = None;
        }
        Ok(())
    }

    fn handle(&mut self, now: Time, message: Message) -> Result<(), Violation> {
        match message {
            Message::Ready | Message::Credit | Message::Pong => return Ok(()),
            Message::Ping => self.out.pong_due = true,
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

    /// Does what the receiving half wants. With a message at hand all of it, for the
    /// message is gone after that; else no more ADVERTs than may wait.
    pub(super) fn drive_rx(&mut self, port: &mut dyn Port, at_hand: AtHand<'_>) {
        while at_hand.is_some() || self.out.rx.len() < RX_QUEUE {
            let Some(step) = self.proto.as_mut().and_then(Proto::rx_step) else { break };
            self.rx_step(port, step, at_hand);
        }
    }

    pub(super) fn rx_step(&mut self, port: &mut dyn Port, step: RxStep, at_hand: AtHand<'_>) {
        match step {
            RxStep::Show { op, off, len, advert } => self.show(port, op, off, len, advert),
            RxStep::Retract { op } => {
                if let Some(recv) = self.recvs.get_mut(op)
                    && let Some(key) = recv.window.take()
                {
                    recv.retracted = true;
                    port.invalidate(key);
                }
            }
            RxStep::CopyRing { ring_off, op, off, len } => {
                self.copy_ring(ring_off, op, off, len);
            }
            RxStep::CopyMessage { from, op, off, len } => {
                if let Some((came, header)) = at_hand {
                    let from = header + index(from);
                    self.copy_in(came, from, op, off, len);
                }
            }
            RxStep::Stash { from, ring_off, len } => {
                if let Some((came, header)) = at_hand {
                    self.stash(port, came, header + index(from), ring_off, len);
                }
            }
            RxStep::Say(message) => self.out.rx.push_back(message),
            RxStep::Ack => self.out.ack_due = true,
            RxStep::GrantRing => self.grant_ring(port),
            RxStep::DropRing => self.drop_ring(port),
            RxStep::Done { op, bytes, total, eof, outcome } => {
                self.recv_done(port, op, bytes, total, eof, outcome);
            }
        }
    }

    /// Opens a receive's buffer to the peer.
    fn show(&mut self, port: &mut dyn Port, op: u64, off: u64, len: u64, advert: ShownAs) {
        if self.life.is_over() {
            return; // nobody is there to see it
        }
        let Some(recv) = self.recvs.get_mut(op) else { return };
        if len == 0 {
            // An empty packet buffer: there is nothing to write, so no window.
            return self.out.rx.push_back(advert.advert(0, 0, 0, false));
        }
        let buf = match (&recv.iov, &recv.bounce) {
            (IoVec::One(buf), _) => Ok(buf.clone()),
            // Shown before, and withdrawn: the machine always shows as much.
            (IoVec::Many(_), Some(bounce)) => Ok((**bounce).clone()),
            (IoVec::Many(_), None) => match usize::try_from(len) {
                Ok(len) => port.alloc(len),
                Err(_) => Err(RnicError::Limit {
                    what: "bytes of one receive in several pieces",
                    asked: len,
                    limit: usize::MAX as u64,
                }),
            },
        };
        let bound = buf.and_then(|buf| {
            let (addr, mr): (u64, Mr) = (buf.seg.addr() + off, buf.mr);
            if matches!(recv.iov, IoVec::Many(_)) {
                recv.bounce = Some(Box::new(buf));
            }
            port.lend(mr, addr, len, Access::REMOTE_WRITE).map(|key| (addr, key))
        });
        match bound {
            Ok((addr, key)) => {
                recv.window = Some(key);
                let invalidate = self.asks_close && port.spares_close(key);
                self.out.rx.push_back(advert.advert(addr, key, len, invalidate));
            }
            Err(error) => self.memory_refused(error),
        }
    }

    fn copy_ring(&mut self, ring_off: u32, op: u64, off: u64, len: u32) {
        let Some(ring) = &self.ring else { return };
        let seg = ring.buf.seg.clone();
        let (first, rest) = split(&seg, ring_off, len);
        self.copy_in(MessageBytes::Memory(&seg), index(ring_off), op, off, first);
        self.copy_in(MessageBytes::Memory(&seg), 0, op, off + u64::from(first), rest);
    }

    /// Copies into a receive's buffer.
    #[inline]
    pub(super) fn copy_in(
        &mut self,
        src: MessageBytes<'_>,
        from: usize,
        op: u64,
        off: u64,
        len: u32,
    ) {
        let Some(recv) = self.recvs.get_mut(op) else { return };
        recv.copied = true;
        if std::mem::take(&mut recv.retracted) {
            self.counters.adverts_stale += 1;
        }
        let mut at = from;
        recv.iov.for_range(off, len.into(), |piece, to, n| {
            src.copy_to(at, &piece.seg, to, n);
            at += n;
        });
        self.count_copy(len.into());
    }

    pub(super) fn count_copy(&mut self, len: u64) {
        if len > 0 {
            count(&mut self.counters.copies, 1);
            count(&mut self.counters.copied_bytes, len);
        }
    }

    fn stash(
        &mut self,
        port: &mut dyn Port,
        came: MessageBytes<'_>,
        from: usize,
        ring_off: u32,
        len: u32,
    ) {
        if len == 0 || !self.make_ring(port) {
            return;
        }
        if let Some(ring) = &self.ring {
            let (first, rest) = split(&ring.buf.seg, ring_off, len);
            came.copy_to(from, &ring.buf.seg, index(ring_off), index(first));
            came.copy_to(from + index(first), &ring.buf.seg, 0, index(rest));
            self.count_copy(len.into());
        }
    }

    /// The port has no memory, or no window for it.
    fn memory_refused(&mut self, error: RnicError) {
        match error {
            // The queue pair is going down already, and that is going to be reported.
            RnicError::State { .. } => self.life.on_refused(),
            _ => self.fail(OpError::LocalMemory(error)),
        }
    }

    /// False if there is no memory; then the connection fails.
    fn make_ring(&mut self, port: &mut dyn Port) -> bool {
        if self.ring.is_none() {
            match port.alloc(index(self.cfg.ring.max(1))) {
                Ok(buf) => self.ring = Some(Ring { buf, key: None }),
                Err(error) => self.memory_refused(error),
            }
        }
        self.ring.is_some()
    }

    fn grant_ring(&mut self, port: &mut dyn Port) {
        if self.life.is_over() || !self.make_ring(port) {
            return;
        }
        let Some(ring) = &mut self.ring else { return };
        let (addr, len) = (ring.buf.seg.addr(), ring.buf.seg.len() as u64);
        match port.lend(ring.buf.mr, addr, len, Access::REMOTE_WRITE) {
            Ok(key) => {
                ring.key = Some(key);
                self.counters.rings_granted += 1;
                self.out.rx.push_back(Message::Ring { addr, key });
            }
            Err(error) => self.memory_refused(error),
        }
    }

    pub(super) fn drop_ring(&mut self, port: &mut dyn Port) {
        if let Some(ring) = self.ring.take() {
            if let Some(key) = ring.key {
                port.invalidate(key);
            }
            port.free(ring.buf);
        }
    }

    /// Ends a receive, or a part of one.
    #[inline]
    pub(super) fn recv_done(
        &mut self,
        port: &mut dyn Port,
        op: u64,
        bytes: u64,
        total: Option<u64>,
        eof: bool,
        outcome: Outcome,
    ) {
        let Some(recv) = self.recvs.get(op) else { return };
        // A stream's machine does not say it: nothing, or less than all that was
        // waited for, comes only at the end.
        let at_end = self.proto.as_ref().is_some_and(Proto::at_eof);
        let short = bytes == 0 || (recv.waitall && bytes < recv.len && at_end);
        let stream_end = total.is_none() && recv.len > 0 && short;
        let (eof, error) = match (outcome, recv.fate.as_deref()) {
            (Outcome::Ok, _) => (eof || stream_end, None),
            (Outcome::Cancelled, Some(Fate::End)) => (bytes == 0, None),
            (Outcome::Cancelled, Some(Fate::Error(error))) => (false, Some(error.clone())),
            (Outcome::Cancelled, None) => (false, Some(OpError::Cancelled)),
        };
        self.finish_recv(port, op, bytes, total.unwrap_or(bytes), eof, error);
    }

    /// Gives a receive's memory back and tells the user.
    pub(super) fn finish_recv(
        &mut self,
        port: &mut dyn Port,
        op: u64,
        bytes: u64,
        total: u64,
        eof: bool,
        error: Option<OpError>,
    ) {
        let Some(mut recv) = self.recvs.remove(op) else { return };
        if let Some(key) = recv.window.take() {
            port.invalidate(key);
        }
        if let Some(bounce) = recv.bounce.take() {
            if !recv.copied && bytes > 0 {
                let mut at = 0;
                recv.iov.for_range(0, bytes, |piece, to, n| {
                    bounce.seg.copy_to(at, &piece.seg, to, n);
                    at += n;
                });
                self.count_copy(bytes);
            }
            port.free(*bounce);
        }
        let result = error.map_or(Ok(()), Err);
        let mut done = Done { op: recv.user, bytes, total, eof, result };
        if let Some(id) = recv.group {
            let Some(group) = self.groups.get_mut(id) else { return };
            group.parts -= 1;
            group.bytes += bytes;
            group.eof |= eof;
            group.error = group.error.take().or(done.result.err());
            if group.parts > 0 {
                return;
            }
            let Some(group) = self.groups.remove(id) else { return };
            (done.bytes, done.total, done.eof) = (group.bytes, group.bytes, group.eof);
            done.result = group.error.map_or(Ok(()), Err);
        }
        self.counters.recvs += 1;
        self.done.push_back(done);
    }
}

/// Cuts a range of the ring at its end.
fn split(ring: &Segment, off: u32, len: u32) -> (u32, u32) {
    let to_end = ring.len().saturating_sub(index(off));
    let first = u32::try_from(to_end).unwrap_or(u32::MAX).min(len);
    (first, len - first)
}

/// A 32-bit number as an index: `usize` has at least 32 bits wherever EXS runs.
pub(super) fn index(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
