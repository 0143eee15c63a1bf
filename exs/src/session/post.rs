//! Posts, shutdowns and cancellations of the program.

use std::time::Duration;

use crate::ids::OpId;
use crate::mem::{AtomicOp, Atomics, Key};
use crate::stream::RecvPost;
use crate::time::Time;

use super::eager::After;
use super::proto::Proto;
use super::receiver::Fate;
use super::sender::{EndEarly, Ends};
use super::sided::Side;
use super::timers::Watched;
use super::{Buf, Done, IoVec, OpError, PostError, RecvOpts, SendSource, Session};

impl Session {
    /// Posts a send. Its memory is lent until the [`Done`].
    ///
    /// # Errors
    /// Why the send is not taken, and its memory.
    pub fn post_send(
        &mut self,
        now: Time,
        op: OpId,
        source: SendSource,
    ) -> Result<(), PostError<SendSource>> {
        self.assert_here();
        let len = source.len();
        if let Err(error) = self.may_post_send(len) {
            return Err((error, source));
        }
        let file = matches!(source, SendSource::File(_));
        let deadline = self.timers.deadline(now, self.cfg.send_timeout);
        let id = self.sender.post(op, source, deadline);
        if let Some(proto) = &mut self.proto {
            proto.post_send(id, len, file);
        }
        Ok(())
    }

    /// Whether a send of `len` bytes would be taken now.
    ///
    /// # Errors
    /// Why not.
    pub fn may_post_send(&self, len: u64) -> Result<(), OpError> {
        self.may_talk()?;
        if self.life.peer_closed() {
            return Err(OpError::PeerClosed);
        }
        match &self.proto {
            Some(proto) if proto.is_shut() => Err(OpError::Shutdown),
            Some(Proto::Packet(p)) if len > p.max_out => {
                Err(OpError::TooLong { len, limit: p.max_out })
            }
            Some(_) => Ok(()),
            None => Err(OpError::NotConnected),
        }
    }

    /// Ok while there is a connection.
    ///
    /// # Errors
    /// Why it ended, or that there was none yet.
    fn may_talk(&self) -> Result<(), OpError> {
        if let Some(reason) = self.life.reason() {
            return Err(reason.clone());
        }
        if self.life.is_closing() {
            return Err(OpError::Shutdown);
        }
        if self.life.is_idle() {
            return Err(OpError::NotConnected);
        }
        Ok(())
    }

    /// Posts a receive. Its memory is lent until the [`Done`]. `now` matters only if receives
    /// [have a limit](Session::limits_recv).
    ///
    /// # Errors
    /// Why the receive is not taken, and its memory.
    pub fn post_recv(
        &mut self,
        now: Time,
        op: OpId,
        iov: IoVec,
        opts: RecvOpts,
    ) -> Result<After, PostError<IoVec>> {
        self.assert_here();
        let down = self.life.is_gone();
        if self.life.recv_is_shut() || (down && self.met_end()) {
            self.done.push_back(Done { op, bytes: 0, total: 0, eof: true, result: Ok(()) });
            return Ok(self.after());
        }
        // Data that arrived before the connection went down can still be read. Messages of no
        // bytes lie in no ring.
        if !(down && self.holds_data() && !self.life.discards())
            && let Err(error) = self.may_talk()
        {
            return Err((error, iov));
        }
        let stream = self.proto.as_ref().is_some_and(Proto::is_stream);
        let deadline = self.timers.deadline(now, self.cfg.recv_timeout);
        match iov {
            IoVec::Many(ref pieces) if stream && opts.waitall && !opts.peek => {
                self.queue_parts(op, pieces, deadline);
            }
            _ => {
                // A window covers one piece. A seqpacket receive in several gets a bounce buffer
                // if a large message asks for it.
                let advertise = !down && matches!(iov, IoVec::One(_));
                let len = iov.len();
                let id = self.receiver.post(op, (iov, len), opts.waitall, deadline);
                self.queue_recv(RecvPost {
                    op: id,
                    len,
                    waitall: opts.waitall,
                    peek: opts.peek,
                    advertise,
                });
            }
        }
        Ok(self.after_recv())
    }

    /// What the caller must do after a receive was posted. All that was due before has been done, or
    /// waits for the peer, so only what the machine wants of this receive is new.
    #[inline]
    pub(super) fn after_recv(&self) -> After {
        let settled = self.proto.as_ref().is_some_and(Proto::rx_is_quiet)
            && self.out.rx_len() == 0
            && self.cfg.recv_timeout.is_none();
        if settled { After::Settled } else { self.after() }
    }

    /// Receives have a time limit, so the time of posting matters.
    pub fn limits_recv(&self) -> bool {
        self.cfg.recv_timeout.is_some()
    }

    fn holds_data(&self) -> bool {
        self.proto.as_ref().is_some_and(Proto::holds_data)
    }

    /// Every byte before the peer's FIN is delivered.
    fn met_end(&self) -> bool {
        self.proto.as_ref().is_some_and(Proto::at_eof)
    }

    #[inline(always)]
    fn queue_recv(&mut self, post: RecvPost) {
        if let Some(proto) = &mut self.proto {
            proto.post_recv(post);
        }
    }

    /// Queues one receive for each piece that has bytes, or for one if none has.
    fn queue_parts(&mut self, op: OpId, pieces: &[Buf], deadline: Option<Time>) {
        let full = pieces.iter().filter(|p| !p.seg.is_empty()).count();
        let parts = full.max(1);
        let group = self.receiver.post_group(parts);
        let advertise = !self.life.is_gone();
        let chosen = pieces.iter().filter(|p| full == 0 || !p.seg.is_empty()).take(parts);
        for piece in chosen {
            let len = piece.seg.len() as u64;
            let id = self.receiver.post_part(op, group, piece.clone(), deadline);
            self.queue_recv(RecvPost { op: id, len, waitall: true, peek: false, advertise });
        }
    }

    /// Posts a READ of the peer's memory.
    ///
    /// # Errors
    /// Why it is not taken, and its memory.
    pub fn post_read(
        &mut self,
        _now: Time,
        op: OpId,
        raddr: u64,
        rkey: Key,
        sink: Buf,
    ) -> Result<(), PostError<Buf>> {
        self.assert_here();
        match self.may_post_sided(true) {
            Ok(()) => self.sided.post(op, Side::Read(sink), raddr, rkey),
            Err(error) => return Err((error, sink)),
        }
        Ok(())
    }

    /// Posts a WRITE to the peer's memory. With `confirm` it is done only when the bytes are there.
    ///
    /// # Errors
    /// Why it is not taken, and its memory.
    pub fn post_write(
        &mut self,
        _now: Time,
        op: OpId,
        raddr: u64,
        rkey: Key,
        iov: IoVec,
        confirm: bool,
    ) -> Result<(), PostError<IoVec>> {
        self.assert_here();
        match self.may_post_sided(confirm && !self.sided.confirms().by_message()) {
            Ok(()) => self.sided.post(op, Side::Write(iov, confirm), raddr, rkey),
            Err(error) => return Err((error, iov)),
        }
        Ok(())
    }

    /// Posts an atomic operation on a word of the peer's memory. `old` gets the value before it.
    /// [`Done::total`](super::Done::total) is that value.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn post_atomic(
        &mut self,
        op: OpId,
        raddr: u64,
        rkey: Key,
        what: AtomicOp,
        old: Buf,
    ) -> Result<(), OpError> {
        self.assert_here();
        self.may_post_sided(true)?;
        if self.cfg.atomics == Atomics::None {
            return Err(OpError::Unsupported(
                "atomic operations (the device of this connection has none: see `exs-info`)",
            ));
        }
        if self.peer.atomics() == Atomics::None {
            return Err(OpError::Unsupported(
                "atomic operations (the peer's device executes none, or its EXS is older)",
            ));
        }
        self.sided.post(op, Side::Atomic(what, old), raddr, rkey);
        Ok(())
    }

    fn may_post_sided(&self, reads: bool) -> Result<(), OpError> {
        self.may_talk()?;
        if self.life.peer_closed() {
            return Err(OpError::PeerClosed);
        }
        if reads && !self.sided.can_read() {
            return Err(OpError::Unsupported("RDMA READ (none was agreed on at its start)"));
        }
        Ok(())
    }

    /// Ends the sending direction after all sends posted. Done when they have ended and FIN is
    /// out.
    ///
    /// # Errors
    /// There is no connection.
    pub fn shutdown_send(&mut self, _now: Time, op: OpId) -> Result<(), OpError> {
        self.assert_here();
        self.may_talk()?;
        self.life.shut_send();
        self.queue_shutdown(Some(op));
        Ok(())
    }

    pub(super) fn queue_shutdown(&mut self, user: Option<OpId>) {
        let id = self.sender.post_shutdown(user);
        if let Some(proto) = &mut self.proto {
            proto.shutdown(id);
        }
    }

    /// The program wants no more data: receives that wait, and those posted later, meet the end.
    /// Data that the peer sends stay in the ring, and the peer stops when the ring is full.
    pub fn shutdown_recv(&mut self, now: Time) {
        self.assert_here();
        self.life.shut_recv();
        for id in self.receiver.last_first() {
            self.end_recv(now, id, Fate::End);
        }
    }

    /// Cancels an operation. False if there is none, or it has ended. It ends soon, with an error
    /// unless the cancellation came too late. A receive that the peer may be writing to ends when
    /// the peer has answered the withdrawal.
    pub fn cancel(&mut self, now: Time, op: OpId) -> bool {
        self.assert_here();
        if let Some(id) = self.sender.find(op) {
            self.end_send(now, id, OpError::Cancelled);
            return true;
        }
        if let Some(id) = self.sided.find(op) {
            self.cancel_sided(id, OpError::Cancelled);
            return true;
        }
        self.end_recvs_of(now, op, &Fate::Error(OpError::Cancelled))
    }

    /// Ends all parts of a receive, the last first, so that none is shown to the peer in the place
    /// of another. False if there are none.
    pub(super) fn end_recvs_of(&mut self, now: Time, op: OpId, fate: &Fate) -> bool {
        let ids = self.receiver.parts_last_first(op);
        let found = !ids.is_empty();
        for id in ids {
            self.end_recv(now, id, fate.clone());
        }
        found
    }

    /// Ends one receive before its time.
    fn end_recv(&mut self, now: Time, id: u64, fate: Fate) {
        if !self.receiver.end_early(id, fate) {
            return;
        }
        if let Some(proto) = &mut self.proto {
            proto.cancel_recv(id);
        }
        self.watch(now, Watched::Recv(id));
    }

    /// Ends one send before its time.
    pub(super) fn end_send(&mut self, now: Time, id: u64, why: OpError) {
        match self.sender.end_early(id, why) {
            EndEarly::Nothing => return,
            EndEarly::Finish => {
                let mut ends = Ends { done: &mut self.done, counters: &mut self.counters };
                return self.sender.finish(id, &mut ends);
            }
            EndEarly::Cancel => {}
        }
        if let Some(proto) = &mut self.proto {
            proto.cancel_send(id);
        }
        self.watch(now, Watched::Send(id));
    }

    /// Changes the time limits of operations posted from now on.
    pub fn set_timeouts(&mut self, send: Option<Duration>, recv: Option<Duration>) {
        self.assert_here();
        (self.cfg.send_timeout, self.cfg.recv_timeout) = (send, recv);
        self.timers.mixed = true;
    }

    /// Changes after which silence the peer is probed, and after which it counts as dead.
    pub fn set_keepalive(&mut self, keepalive: Option<Duration>, dead_after: Option<Duration>) {
        self.assert_here();
        (self.cfg.keepalive, self.cfg.dead_after) = (keepalive, dead_after);
    }
}
