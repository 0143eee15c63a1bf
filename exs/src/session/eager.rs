//! The short way of small messages.
//!
//! Most of what a session keeps is for operations that wait: for credits, for an address,
//! for a completion. A small send that finds nothing before it waits for nothing: its
//! bytes are in the peer's hands when [`Session::try_send_eager`] returns. So there is no entry
//! for it in any table, and nothing to look after when it is gone. The protocol sees no
//! difference: credits, acknowledgements and the stream's positions go with the message as
//! on the long way, which is taken whenever anything at all is in the way.
//!
//! A message that comes with the data of a receive that waits for nothing else needs no
//! list of things to do either. And after most messages there is nothing to do for the
//! sending half; [`Session::is_settled`] says so, and saves the caller a `drive`.

use crate::ids::Outcome;
use crate::rnic::{EagerSend, HEAD};
use crate::stream::Landed;
use crate::sys::IoVec as Bytes;
use crate::time::Time;
use crate::wire::exs::{MAX_HEADER, Message};

use super::flow::Level;
use super::ops::Recv;
use super::proto::Proto;
use super::rx::{Came, index};
use super::types::count;
use super::{Done, IoVec, Link, Port, Session, Source};

// The header that the port asks for is one of ours.
const _: () = assert!(MAX_HEADER == HEAD);

/// What came of the short way of a message.
#[derive(Debug)]
pub(super) enum Short {
    /// Nothing has happened.
    No,
    /// Its data are where they belong, and a receive may have ended by that.
    EagerRecv(Option<Done>),
}

impl Session {
    /// Sends `payload` at once, if it is small and nothing is before it: the operation is
    /// over, without a [`Done`], and perhaps the doorbell is to be rung for it.
    /// Else nothing has happened, and it is to be posted.
    pub fn try_send_eager(&mut self, port: &mut dyn Port, payload: &Bytes<'_>) -> EagerSend {
        let Ok(len) = u32::try_from(payload.len()) else { return EagerSend::Declined };
        // (What has ended is told of first.)
        let free = self.sends.is_empty() && self.done.is_empty() && self.job.is_none();
        if !free
            || !self.is_flushed()
            || !self.is_open()
            || !self.flow.may(Level::Data)
            || self.idle_posted
        {
            return EagerSend::Declined;
        }
        let sent = port.try_send_eager(payload, &mut |head| match self
            .proto
            .as_mut()
            .and_then(|proto| proto.pass_send(len))
        {
            Some(message) => self.header(message, head),
            None => 0,
        });
        if sent != EagerSend::Declined {
            self.counters.sends += 1;
            self.counters.tx_inline += u64::from(len);
        }
        sent
    }

    /// The short way of a message with data of a send that had to wait. False: nothing has
    /// happened.
    pub(super) fn inline_now(
        &mut self,
        port: &mut dyn Port,
        op: u64,
        off: u64,
        len: u32,
        message: Message,
    ) -> bool {
        if self.idle_posted {
            return false;
        }
        let source = self.sends.get(op).and_then(|s| s.source.as_ref());
        let Some(Source::Memory(IoVec::One(buf))) = source else {
            return false;
        };
        let (seg, off) = (buf.seg.clone(), usize::try_from(off).unwrap_or(usize::MAX));
        let payload = seg.io_vec(off, index(len));
        let sent = port.try_send_eager(&payload, &mut |head| self.header(message, head));
        if !self.note_passed(sent, true) {
            return false;
        }
        if let Some(proto) = &mut self.proto {
            proto.handle_sent(op, len.into());
        }
        self.counters.tx_inline += u64::from(len);
        true
    }

    /// The short way of data that came (`eager`: as a message of their own): into a receive that
    /// waits for them alone. What else comes of it is for the next `drive`.
    #[inline]
    pub(super) fn take_now(
        &mut self,
        now: Time,
        port: &mut dyn Port,
        (came, header): (Came<'_>, usize),
        len: u32,
        eager: bool,
    ) -> Short {
        let Some(proto) = &mut self.proto else { return Short::No };
        let Some(Landed { op, op_off, ends }) = proto.pass_data(len, eager) else {
            return Short::No;
        };
        count(&mut self.counters.rx_inline, len.into());
        self.timers.moved(now);
        let bytes = op_off + u64::from(len);
        let plain = ends && self.done.is_empty();
        if plain
            && let Some(recv) = self.recvs.take_first_if(op, Recv::is_plain)
            && let IoVec::One(buf) = &recv.iov
        {
            came.copy_to(
                header,
                &buf.seg,
                usize::try_from(op_off).unwrap_or(usize::MAX),
                index(len),
            );
            self.count_copy(len.into());
            self.counters.recvs += 1;
            return Short::EagerRecv(Some(Done::whole(recv.user, bytes)));
        }
        self.copy_in(came, header, op, op_off, len);
        if ends {
            self.recv_done(port, op, bytes, eager.then_some(bytes), false, Outcome::Ok);
        }
        Short::EagerRecv(None)
    }

    /// What `drive` is to say of a message that took the short way; false if it did not.
    pub(super) fn note_passed(&mut self, sent: EagerSend, urgent: bool) -> bool {
        if sent == EagerSend::Batched {
            (self.posted, self.soon) = (true, true);
            self.urgent |= urgent;
        }
        sent != EagerSend::Declined
    }

    /// No receive waits for data.
    pub fn has_no_posted_recv(&self) -> bool {
        self.recvs.is_empty()
    }

    /// Connected, and nothing has begun to end that.
    #[inline]
    fn is_open(&self) -> bool {
        self.link == Link::Up && self.ending.is_quiet()
    }

    /// `drive` would find nothing to do, and no time limit has come nearer, but perhaps
    /// that of an idle ring. (False says nothing.)
    pub fn is_settled(&self) -> bool {
        self.sends.is_empty()
            && self.job.is_none()
            && self.proto.as_ref().is_some_and(Proto::is_quiet)
            && (self.out.is_empty() || self.out.only_rx() && self.gathers())
            && !self.flow.must_return()
            && self.is_open()
            && self.sided.is_empty()
            && self.trash.is_empty()
            && self.confirms.is_idle()
            && self.timers.is_calm()
            && self.is_trusting()
            && self.cfg.recv_timeout.is_none()
    }
}
