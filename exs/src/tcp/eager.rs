//! The short way of small messages: into a batch that leaves with the doorbell, and out of
//! the lookahead without a receive and a completion.
//!
//! What was read ahead is kept for the connection that it came on until it is taken out
//! message by message, or, with whatever is no plain message, goes the long way
//! ([`SoftRnic::finish_ahead`], before anything else is read).

use super::SoftRnic;
use super::link::Owner;
use super::qp::Conn;
use super::serve::TURN;
use super::timers::Source;
use crate::rnic::{EagerPayload, EagerRecv, EagerSend, HEAD, Qp};
use crate::sys::IoVec;
use crate::time::Time;

/// Bytes in the lookahead that were read and not dealt with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    link: u32,
    at: usize,
    end: usize,
}

impl SoftRnic {
    /// Sends a small message (`Rnic::try_send_eager`).
    pub(super) fn try_send_eager(
        &mut self,
        qp: Qp,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        let Ok(pair) = self.qps.get(qp.0) else { return EagerSend::Declined };
        let Conn::Link(id) = pair.conn else { return EagerSend::Declined };
        if pair.files.is_some() || pair.closing {
            return EagerSend::Declined;
        }
        let Ok(link) = self.links.get_mut(id) else { return EagerSend::Declined };
        if link.can_send_eager() && link.engine.try_send_eager(&mut self.tx_pool, payload, head) {
            return EagerSend::Batched;
        }
        EagerSend::Declined
    }

    /// Takes a message out of what was read, or can be (`Rnic::next_eager`).
    pub(super) fn next_eager(&mut self, out: &mut [u8]) -> Option<EagerRecv> {
        if self.ahead.is_none() {
            let ready = self.ready.len().min(TURN);
            (0..ready).any(|at| match self.ready[at] {
                Source::Link(id) => self.fetch(id),
                _ => false,
            });
        }
        let taken = self.take_ahead(out).or_else(|| {
            // A read mostly ends in the middle of a message if there is more to read.
            if self.refill(out.len()) { self.take_ahead(out) } else { None }
        });
        if taken.is_none() {
            // Once: then it is the others' turn.
            self.finish_ahead();
        }
        taken
    }

    /// Reads on behind a message that is not whole, if there is `room` for all of it. True
    /// if something came. (What follows the beginning of anything else is better read
    /// straight into its place.)
    fn refill(&mut self, room: usize) -> bool {
        let Some(Ahead { link: id, at, end }) = self.ahead else { return false };
        let tail = end - at;
        let Ok(link) = self.links.get_mut(id) else { return false };
        if !link.readable || !link.engine.begins_eager(&self.lookahead[at..end], room) {
            return false;
        }
        self.lookahead.copy_within(at..end, 0);
        let (read, more) = (link.look_further(&mut self.lookahead[tail..]), link.readable);
        let n = *read.as_ref().unwrap_or(&0);
        self.ahead = Some(Ahead { link: id, at: 0, end: tail + n });
        if more {
            self.enqueue(Source::Link(id));
        }
        if let Err(end) = read {
            // First what came before it: it may say why.
            self.finish_ahead();
            if let Ok(link) = self.links.get_mut(id) {
                link.note_end(end);
            }
        }
        n > 0
    }

    fn take_ahead(&mut self, out: &mut [u8]) -> Option<EagerRecv> {
        let mut ahead = self.ahead?;
        let (qp, context) = self.taker(ahead.link)?;
        let link = self.links.get_mut(ahead.link).ok()?;
        let got = link.engine.next_eager(&self.lookahead[ahead.at..ahead.end], out)?;
        ahead.at += got.used;
        self.ahead = (ahead.at < ahead.end).then_some(ahead);
        Some(EagerRecv { qp: Qp(qp), context, len: got.len, at: EagerPayload::Copied })
    }

    /// The queue pair of a link, and its user's name for it, if all that has come for it is
    /// taken out.
    fn taker(&self, link: u32) -> Option<(u32, u32)> {
        let Owner::Qp(qp) = self.links.get(link).ok()?.owner else { return None };
        let attr = &self.qps.get(qp).ok()?.attr;
        self.objects.cqs.get(attr.recv_cq.0).ok()?.is_empty().then_some((qp, attr.context))
    }

    /// Reads ahead on a link, if it may have messages. True if something came.
    pub(super) fn fetch(&mut self, id: u32) -> bool {
        if self.ahead.is_some() || self.taker(id).is_none() {
            return false;
        }
        let Ok(link) = self.links.get_mut(id) else { return false };
        let n = link.look_ahead(&mut self.lookahead);
        if n == 0 {
            return false;
        }
        link.idle = false;
        let more = link.readable;
        self.ahead = Some(Ahead { link: id, at: 0, end: n });
        self.warm(id);
        if more {
            self.enqueue(Source::Link(id));
        }
        true
    }

    /// What was read ahead and is no message for the short way goes the long way.
    pub(super) fn finish_ahead(&mut self) {
        let Some(Ahead { link: id, at, end }) = self.ahead.take() else { return };
        self.feed(id, |link, lookahead, keys, srq| {
            link.leave_ahead(&lookahead[at..end], keys, srq);
        });
        self.enqueue(Source::Link(id));
    }

    /// The same at the end of a round in which nobody asked for messages, or not for all.
    pub(super) fn settle_ahead(&mut self, now: Time) {
        if let Some(Ahead { link, .. }) = self.ahead {
            self.finish_ahead();
            self.settle(link, now);
        }
    }
}
