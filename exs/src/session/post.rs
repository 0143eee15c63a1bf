//! What the user asks for.

use std::time::Duration;

use crate::ids::OpId;
use crate::mem::Key;
use crate::stream::RecvPost;
use crate::time::Time;

use super::eager::After;
use super::ops::{Fate, Group, Recv, Send, Side};
use super::proto::Proto;
use super::timers::Watched;
use super::{Buf, Done, IoVec, OpError, PostError, RecvOpts, SendSource, Session};

impl Session {
    /// Posts a send. Its memory is lent until the [`Done`].
    pub fn post_send(
        &mut self,
        now: Time,
        op: OpId,
        source: SendSource,
    ) -> Result<(), PostError<SendSource>> {
        let len = source.len();
        if let Err(error) = self.may_post_send(len) {
            return Err((error, source));
        }
        let file = matches!(source, SendSource::File(_));
        let deadline = self.timers.deadline(now, self.cfg.send_timeout);
        let id = self.sends.insert(Send {
            user: Some(op),
            source: Some(source),
            in_flight: 0,
            fate: None,
            failed: None,
            over: None,
            deadline,
        });
        if let Some(proto) = &mut self.proto {
            proto.post_send(id, len, file);
        }
        Ok(())
    }

    /// Whether a send of so many bytes would be taken now.
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

    /// There is a connection, or there was none yet, or why it ended.
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

    /// Posts a receive. Its memory is lent until the [`Done`]. (`now` matters if it
    /// [has a limit](Session::limits_recv).)
    pub fn post_recv(
        &mut self,
        now: Time,
        op: OpId,
        iov: IoVec,
        opts: RecvOpts,
    ) -> Result<After, PostError<IoVec>> {
        let down = self.life.is_gone();
        if self.life.recv_is_shut() || (down && self.met_end()) {
            self.done.push_back(Done { op, bytes: 0, total: 0, eof: true, result: Ok(()) });
            return Ok(self.after());
        }
        // What came before the connection went down can still be read. (Messages of no bytes
        // lie in no ring.)
        if !(down && self.holds_data() && !self.life.discards())
            && let Err(error) = self.may_talk()
        {
            return Err((error, iov));
        }
        let stream = self.proto.as_ref().is_some_and(Proto::is_stream);
        let deadline = self.timers.deadline(now, self.cfg.recv_timeout);
        let whole = Recv {
            user: op,
            group: None,
            len: iov.len(),
            iov,
            waitall: opts.waitall,
            window: None,
            bounce: None,
            copied: false,
            retracted: false,
            fate: None,
            deadline,
        };
        match whole.iov {
            IoVec::Many(ref pieces) if stream && opts.waitall && !opts.peek => {
                let pieces = pieces.clone();
                self.queue_parts(&whole, &pieces);
            }
            _ => {
                // A window covers one piece. (A seqpacket receive in several gets
                // a bounce buffer if a large message asks for it.)
                let advertise = !down && matches!(whole.iov, IoVec::One(_));
                self.queue_recv(whole, advertise, opts.peek);
            }
        }
        Ok(self.after())
    }

    /// Receives that are posted end after some time, so that it matters when that is.
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
    fn queue_recv(&mut self, recv: Recv, advertise: bool, peek: bool) {
        let (len, waitall) = (recv.len, recv.waitall);
        let id = self.recvs.insert(recv);
        if let Some(proto) = &mut self.proto {
            proto.post_recv(RecvPost { op: id, len, waitall, peek, advertise });
        }
    }

    /// One receive for each piece that has bytes (for one, if none has).
    fn queue_parts(&mut self, whole: &Recv, pieces: &[Buf]) {
        let full = pieces.iter().filter(|p| !p.seg.is_empty()).count();
        let parts = full.max(1);
        let group = Group { parts, bytes: 0, eof: false, error: None };
        let group = Some(self.groups.insert(group));
        let down = self.life.is_gone();
        let chosen = pieces.iter().filter(|p| full == 0 || !p.seg.is_empty()).take(parts);
        for piece in chosen {
            let part = Recv {
                user: whole.user,
                group,
                iov: IoVec::One(piece.clone()),
                len: piece.seg.len() as u64,
                waitall: true,
                window: None,
                bounce: None,
                copied: false,
                retracted: false,
                fate: None,
                deadline: whole.deadline,
            };
            self.queue_recv(part, !down, false);
        }
    }

    /// Posts a READ of the peer's memory.
    pub fn post_read(
        &mut self,
        _now: Time,
        op: OpId,
        raddr: u64,
        rkey: Key,
        sink: Buf,
    ) -> Result<(), PostError<Buf>> {
        match self.may_post_sided(true) {
            Ok(()) => self.queue_sided(op, Side::Read(sink), raddr, rkey),
            Err(error) => return Err((error, sink)),
        }
        Ok(())
    }

    /// Posts a WRITE to the peer's memory. With `confirm` it is done only when the
    /// bytes are there.
    pub fn post_write(
        &mut self,
        _now: Time,
        op: OpId,
        raddr: u64,
        rkey: Key,
        iov: IoVec,
        confirm: bool,
    ) -> Result<(), PostError<IoVec>> {
        match self.may_post_sided(confirm && !self.confirms.by_message) {
            Ok(()) => self.queue_sided(op, Side::Write(iov, confirm), raddr, rkey),
            Err(error) => return Err((error, iov)),
        }
        Ok(())
    }

    fn may_post_sided(&self, reads: bool) -> Result<(), OpError> {
        self.may_talk()?;
        if self.life.peer_closed() {
            return Err(OpError::PeerClosed);
        }
        if reads && self.ord == 0 {
            return Err(OpError::Unsupported("RDMA READ (none was agreed on at its start)"));
        }
        Ok(())
    }

    /// Ends our direction after all sends posted; done when they are, and FIN is said.
    pub fn shutdown_send(&mut self, _now: Time, op: OpId) -> Result<(), OpError> {
        self.may_talk()?;
        self.life.shut_send();
        self.queue_shutdown(Some(op));
        Ok(())
    }

    pub(super) fn queue_shutdown(&mut self, user: Option<OpId>) {
        let id = self.sends.insert(Send {
            user,
            source: None,
            in_flight: 0,
            fate: None,
            failed: None,
            over: None,
            deadline: None,
        });
        if let Some(proto) = &mut self.proto {
            proto.shutdown(id);
        }
    }

    /// The user wants no more data: receives that wait, and those to come, meet the
    /// end. What the peer sends stays where it is, and stops it when the ring is full.
    pub fn shutdown_recv(&mut self, now: Time) {
        self.life.shut_recv();
        let ids: Vec<u64> = self.recvs.iter().map(|(id, _)| id).collect();
        for id in ids.into_iter().rev() {
            self.end_recv(now, id, Fate::End);
        }
    }

    /// Cancels an operation; false if there is none of that name (any more). It ends
    /// soon, with an error unless it was too late; a receive that the peer may be
    /// writing to ends when the peer has let go of it.
    pub fn cancel(&mut self, now: Time, op: OpId) -> bool {
        if let Some(id) = self.sends.find_id(|s| s.user == Some(op)) {
            self.end_send(now, id, OpError::Cancelled);
            return true;
        }
        if let Some(id) = self.sided.find_id(|s| s.user == op) {
            self.cancel_sided(id, OpError::Cancelled);
            return true;
        }
        self.end_recvs_of(now, op, &Fate::Error(OpError::Cancelled))
    }

    /// Ends all parts of a receive, the last first, so that none is shown to the
    /// peer in the place of another.
    pub(super) fn end_recvs_of(&mut self, now: Time, op: OpId, fate: &Fate) -> bool {
        let of_op = self.recvs.iter().filter(|(_, r)| r.user == op);
        let ids: Vec<u64> = of_op.map(|(id, _)| id).collect();
        let found = !ids.is_empty();
        for id in ids.into_iter().rev() {
            self.end_recv(now, id, fate.clone());
        }
        found
    }

    /// Ends one receive before its time.
    fn end_recv(&mut self, now: Time, id: u64, fate: Fate) {
        let Some(recv) = self.recvs.get_mut(id) else { return };
        recv.deadline = None;
        if recv.fate.is_some() {
            return; // it is ending
        }
        recv.fate = Some(Box::new(fate));
        if let Some(proto) = &mut self.proto {
            proto.cancel_recv(id);
        }
        self.watch(now, Watched::Recv(id));
    }

    /// Ends one send before its time.
    pub(super) fn end_send(&mut self, now: Time, id: u64, why: OpError) {
        let Some(send) = self.sends.get_mut(id) else { return };
        send.deadline = None;
        if send.fate.is_some() {
            return; // it is ending
        }
        send.fate = Some(why);
        if send.source.is_none() && send.over.is_some() {
            // Its FIN is out, and it only waited to be told.
            return self.finish_send(id);
        }
        if let Some(proto) = &mut self.proto {
            proto.cancel_send(id);
        }
        self.watch(now, Watched::Send(id));
    }

    /// Changes the time limits of operations posted from now on.
    pub fn set_timeouts(&mut self, send: Option<Duration>, recv: Option<Duration>) {
        (self.cfg.send_timeout, self.cfg.recv_timeout) = (send, recv);
        self.timers.mixed = true;
    }

    /// Changes when a silent peer is probed, and when it is given up.
    pub fn set_keepalive(&mut self, keepalive: Option<Duration>, dead_after: Option<Duration>) {
        (self.cfg.keepalive, self.cfg.dead_after) = (keepalive, dead_after);
    }
}
