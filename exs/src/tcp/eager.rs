//! Eager messages: into a batch that leaves with the doorbell, and out of the lookahead without a
//! receive and a completion.
//!
//! Bytes that were read ahead are kept for their connection until they are taken out, message by
//! message. Bytes that are no eager message go to the engine ([`SoftRnic::deliver_unparsed`]), before
//! anything else is read.

use super::SoftRnic;
use super::group::GroupStream;
use super::link::SoftLink;
use crate::driver::{Conn, LinkOwner, SOURCES_PER_TURN, Source};
use crate::rnic::{EagerPayload, EagerRecv, EagerSend, HEAD, Qp};
use crate::sys::IoVec;
use crate::time::Time;

/// Bytes of the lookahead that were read and not handled: from `at` to `end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnparsedBytes {
    pub(super) link: u32,
    pub(super) at: usize,
    pub(super) end: usize,
}

impl SoftLink {
    /// True if nothing can be read, nothing must leave, and nothing waits to be reported.
    fn is_at_rest(&self) -> bool {
        let input = self.ready.readable || self.ready.hup || self.base.stalled;
        let output = self.outbound.doorbell_rung || self.engine.owes();
        let news = self.stream.grouped().is_some_and(GroupStream::has_news);
        let watch = self.short_write.cut || self.lacks_watch() || news;
        // The engine neither holds a part of a message nor has completions or events, and its
        // connection is open.
        !input && !output && !watch && self.engine.can_recv_eager()
    }
}

impl SoftRnic {
    /// True if the turn of a link would find nothing. Mostly the link became ready since messages came,
    /// which were all taken out as eager ones.
    pub(super) fn needs_no_turn(&self, id: u32) -> bool {
        let Ok(link) = self.links.get(id) else { return false };
        let LinkOwner::Qp(qp) = link.base.owner else { return false };
        link.is_at_rest() && self.qps.get(qp).is_ok_and(|pair| pair.own.files.is_none())
    }

    /// Sends an eager message (`Rnic::try_send_eager`).
    pub(super) fn try_send_eager(
        &mut self,
        qp: Qp,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        let Ok(pair) = self.qps.get(qp.0) else { return EagerSend::Declined };
        let Conn::Link(id) = pair.conn else { return EagerSend::Declined };
        if pair.own.files.is_some() || pair.own.closing {
            return EagerSend::Declined;
        }
        let Ok(link) = self.links.get_mut(id) else { return EagerSend::Declined };
        if link.can_send_eager()
            && link.engine.try_send_eager(&mut self.parts.tx_pool, payload, head)
        {
            return EagerSend::Batched;
        }
        EagerSend::Declined
    }

    /// Takes an eager message out of what was read, or can be read (`Rnic::next_eager`).
    pub(super) fn next_eager(&mut self, out: &mut [u8]) -> Option<EagerRecv> {
        if self.parts.unparsed.is_none() && self.parts.groups.input.is_none() {
            // Links that were read keep their places until their turns. So the look for the next one
            // begins where the last one ended.
            let (ready, last) = (self.turns.ready.len().min(SOURCES_PER_TURN), self.parts.read_at);
            let mut places = (0..ready).map(|n| (last + n) % ready);
            self.parts.read_at = places.find(|at| self.read_ready(*at)).unwrap_or(0);
        }
        if self.parts.unparsed.is_none() {
            self.next_of_group();
        }
        loop {
            let taken = self.parse_eager(out).or_else(|| {
                // A read mostly ends in the middle of a message if there is more to read.
                if self.read_rest_of_eager(out.len()) { self.parse_eager(out) } else { None }
            });
            let waits = self.parts.unparsed.is_some_and(|u| self.has_completions(u.link));
            if taken.is_some() || waits {
                return taken;
            }
            // The next source gets its turn, unless other links of the group have messages.
            self.deliver_one();
            if !self.next_of_group() {
                // The credit of what was taken.
                self.write_groups();
                return None;
            }
        }
    }

    /// Reads ahead on the ready source at this place, if it is a link that may have bytes.
    fn read_ready(&mut self, at: usize) -> bool {
        match self.turns.ready[at] {
            Source::Link(id) => {
                self.links.get(id).is_ok_and(SoftLink::may_read) && self.read_eager(id)
            }
            Source::Group(id) => self.read_group(id).is_some(),
            _ => false,
        }
    }

    /// Reads the rest of an incomplete message, if all of it fits into `room` bytes. True if bytes
    /// came. Bytes behind anything but a message are better read straight into their place.
    fn read_rest_of_eager(&mut self, room: usize) -> bool {
        let Some(UnparsedBytes { link: id, at, end }) = self.parts.unparsed else { return false };
        let tail = end - at;
        let Ok(link) = self.links.get_mut(id) else { return false };
        if !link.ready.readable || !link.engine.begins_eager(&self.parts.lookahead[at..end], room) {
            return false;
        }
        self.parts.lookahead.copy_within(at..end, 0);
        let (read, more) = (link.read_more(&mut self.parts.lookahead[tail..]), link.ready.readable);
        let n = *read.as_ref().unwrap_or(&0);
        self.parts.unparsed = Some(UnparsedBytes { link: id, at: 0, end: tail + n });
        if more {
            self.enqueue(Source::Link(id));
        }
        if let Err(end) = read {
            // First the bytes before the end: they may say why it came.
            self.deliver_unparsed();
            if let Ok(link) = self.links.get_mut(id) {
                link.handle_read_end(end);
            }
        }
        n > 0
    }

    fn parse_eager(&mut self, out: &mut [u8]) -> Option<EagerRecv> {
        let mut unparsed = self.parts.unparsed?;
        let (qp, context) = self.eager_receiver(unparsed.link)?;
        let link = self.links.get_mut(unparsed.link).ok()?;
        let got = link.engine.next_eager(&self.parts.lookahead[unparsed.at..unparsed.end], out)?;
        unparsed.at += got.used;
        self.parts.unparsed = (unparsed.at < unparsed.end).then_some(unparsed);
        Some(EagerRecv { qp: Qp(qp), context, len: got.len, at: EagerPayload::Copied })
    }

    /// The queue pair of a link, and the number that its user gave it. None if completions for it wait
    /// to be polled: they come before a message.
    fn eager_receiver(&self, link: u32) -> Option<(u32, u32)> {
        let LinkOwner::Qp(qp) = self.links.get(link).ok()?.base.owner else { return None };
        let attr = &self.qps.get(qp).ok()?.attr;
        self.objects.cqs.get(attr.recv_cq.0).ok()?.is_empty().then_some((qp, attr.context))
    }

    /// True if completions of a link's queue pair wait to be polled.
    fn has_completions(&self, link: u32) -> bool {
        let Some(LinkOwner::Qp(qp)) = self.links.get(link).ok().map(|l| l.base.owner) else {
            return false;
        };
        let cq = self.qps.get(qp).and_then(|pair| self.objects.cqs.get(pair.attr.recv_cq.0));
        cq.is_ok_and(|cq| !cq.is_empty())
    }

    /// Reads ahead on a link that may have eager messages. True if bytes came.
    pub(super) fn read_eager(&mut self, id: u32) -> bool {
        let read = self.parts.unparsed.is_some() || self.parts.groups.input.is_some();
        if read || self.eager_receiver(id).is_none() {
            return false;
        }
        let Ok(link) = self.links.get_mut(id) else { return false };
        let n = link.read_ahead(&mut self.parts.lookahead);
        if n == 0 {
            return false;
        }
        link.idle = false;
        let more = link.ready.readable;
        self.parts.unparsed = Some(UnparsedBytes { link: id, at: 0, end: n });
        self.make_hot(Source::Link(id));
        if more {
            self.enqueue(Source::Link(id));
        }
        true
    }

    /// Hands the engines all that was read ahead and is no eager message.
    pub(super) fn deliver_unparsed(&mut self) {
        self.deliver_one();
        while self.parts.groups.input.is_some() && self.next_of_group() {
            self.deliver_one();
        }
    }

    /// Does so for one link.
    fn deliver_one(&mut self) {
        let Some(UnparsedBytes { link: id, at, end }) = self.parts.unparsed.take() else { return };
        self.with_receives(id, |link, lookahead, keys, srq| {
            link.deliver_rest(&lookahead[at..end], keys, srq);
        });
        self.enqueue(Source::Link(id));
    }

    /// Does the same at the end of a round in which not all messages were asked for.
    pub(super) fn end_eager_round(&mut self, now: Time) {
        let link = self.parts.unparsed.map(|unparsed| unparsed.link);
        self.deliver_unparsed();
        if let Some(link) = link {
            self.finish_turn(link, now);
        }
    }
}
