//! The short way of a small message: from the sender's memory into a record, and from
//! the record to whoever asks, without a work request, a receive or a completion.
//!
//! It is taken only where it cannot be told from the long way: nothing is before the
//! message on its connection, and all of it lies in its record.

use super::ShmRnic;
use super::link::{FOR_RECORDS, FOR_ROOM, Link, Owner, Phase};
use super::qp::Conn;
use super::record::{Head, Kind, SHORT};
use super::ring::{Area, LINE};
use super::tx::IN_RECORD;
use crate::mem::Segment;
use crate::rnic::{EagerPayload, EagerRecv, EagerSend, HEAD, Qp, QpAttr};
use crate::sys::{Hint, IoVec, IoVecMut};

/// Connections that are looked at for a message that takes the short way: who is not among
/// them is found by the look around. (Each look is a cache line from memory if they are many.)
const LOOKS: usize = 32;

/// A message of so many bytes is copied from where it lies to where it belongs, and not by way
/// of the engine; for a shorter one that is not worth what it takes to lend it.
const WORTH_LENDING: usize = 1024;

impl ShmRnic {
    /// Sends a small message (`Rnic::try_send_eager`).
    pub(super) fn try_send_eager(
        &mut self,
        qp: Qp,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        let Ok(Conn::Link(id)) = self.qps.get(qp.0).map(|q| q.conn) else {
            return EagerSend::Declined;
        };
        let enough = self.looks_at_enough();
        let Ok(link) = self.links.get_mut(id) else { return EagerSend::Declined };
        link.tx.lap.share(self.hot.len());
        if !link.pass(payload, head) {
            return EagerSend::Declined;
        }
        match link.hot {
            true => link.misses = 0,
            // (What is marked has nothing more to wait for than before.)
            false if link.given && enough => {}
            false => self.warm(id),
        }
        EagerSend::Sent
    }

    /// Takes a message out of a connection that is looked at (`Rnic::next_eager`), of
    /// each in turn.
    pub(super) fn next_eager(&mut self, out: &mut [u8]) -> Option<EagerRecv> {
        let count = self.hot.len();
        for _ in 0..count.min(LOOKS) {
            let at = if self.turn_of < count { self.turn_of } else { 0 };
            self.turn_of = at + 1;
            let Ok(link) = self.links.get_mut(self.hot[at]) else { continue };
            let Owner::Qp(qp) = link.owner else { continue };
            if link.aside == self.taking || !link.has_message() {
                continue;
            }
            // What came before it is taken out before it.
            let Ok(QpAttr { recv_cq, context, .. }) = self.qps.get(qp).map(|pair| pair.attr) else {
                continue;
            };
            let first = self.objects.cqs.get(recv_cq.0).is_ok_and(|cq| cq.is_empty());
            if first
                && self.wcs.is_empty()
                && let Some((len, lent)) = link.next_eager(out)
            {
                let at = lent.map_or(EagerPayload::Copied, EagerPayload::Lent);
                return Some(EagerRecv { qp: Qp(qp), context, len, at });
            }
        }
        None
    }

    /// The next messages of a connection stay where they are for now (`Rnic::pause_eager`).
    pub(super) fn pause_eager(&mut self, qp: Qp) -> bool {
        let others = self.hot.len() > 1;
        if others
            && let Ok(Conn::Link(id)) = self.qps.get(qp.0).map(|q| q.conn)
            && let Ok(link) = self.links.get_mut(id)
        {
            link.aside = self.taking;
        }
        others
    }

    /// A message that was lent may be written over (`Rnic::release_eager`).
    pub(super) fn release_eager(&mut self, qp: Qp) {
        let Ok(Conn::Link(id)) = self.qps.get(qp.0).map(|q| q.conn) else { return };
        let Ok(link) = self.links.get_mut(id) else { return };
        link.rx.lent = 0;
        link.tell_in_time();
    }
}

impl Link {
    fn pass(
        &mut self,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> bool {
        // The peer looks at this line: it costs most of the way, so begin with it.
        self.mem.hint(Hint::Take, self.tx.pos, LINE);
        let open = self.phase == Phase::Open && !self.closing && !self.hung_up;
        let most = payload.len() + HEAD;
        if !open || most > IN_RECORD || !self.tx.is_clear() || self.their_end().is_some() {
            return false;
        }
        if !self.make_room(Head::short(Kind::Send, 0, most).len()) {
            return false;
        }
        let mut header = [0; HEAD];
        let len = head(&mut header);
        if len == 0 {
            return false;
        }
        let record = Head::short(Kind::Send, 0, len + payload.len());
        let pos = self.tx.pos;
        self.mem.put_head(pos, record.word(), &header, len);
        self.mem.put(Area::Ring, pos + (SHORT + len) as u64, payload);
        self.mem.hand_over(pos);
        self.tx.pos += record.len();
        // Whoever has just heard something answers: the peer probably waits for this.
        if std::mem::replace(&mut self.answered, self.rx.pos) != self.rx.pos {
            self.mem.hint(Hint::Give, pos, record.len());
        }
        // What was taken is told with it.
        let room = if self.rx.lags() { FOR_ROOM } else { 0 };
        self.publish_consumed();
        self.ring(FOR_RECORDS | room);
        // The next one is probably as long, and its lines are in the peer's cache: they are
        // ours by then. But for the first, at which the peer looks.
        let next = self.tx.next(record.len(), &self.mem);
        self.mem.hint(Hint::Take, next + LINE, record.len() - LINE);
        true
    }

    fn has_message(&self) -> bool {
        let free = self.phase == Phase::Open && !self.stalled && self.rx.is_free();
        free && self.mem.arrived(self.rx.pos)
    }

    fn next_eager(&mut self, out: &mut [u8]) -> Option<(usize, Option<Segment>)> {
        // What makes no sense is for the long way to say.
        let mut head = self.head().ok()?;
        if head.kind == Kind::Skip {
            self.skip(&head);
            head = self.has_message().then(|| self.head().ok())??;
        }
        if head.kind != Kind::Send || head.flags != 0 {
            return None;
        }
        let (at, out) = (self.rx.pos + head.payload_at(), out.get_mut(..head.inline)?);
        let lent = if out.len() < WORTH_LENDING { None } else { self.mem.lend(at, out.len()) };
        match lent {
            Some(_) => self.rx.lent = head.len(),
            None => self.mem.get(Area::Ring, at, &IoVecMut::new(out)),
        }
        self.rx.pos += head.len();
        self.misses = 0;
        self.tell_in_time();
        Some((head.inline, lent))
    }
}
