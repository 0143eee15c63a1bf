//! Eager messages: from the sender's memory into a record, and from the record to the session,
//! without a work request, a receive or a completion.
//!
//! An eager message behaves as a posted one does. So it is sent eagerly only if nothing waits
//! before it on its connection, and if all of it fits a record.

use super::ShmRnic;
use super::consumer_index::RingReader;
use super::link::{LinkPhase, ShmLink};
use super::record::{RecordHead, RecordKind, SHORT_HEAD_LEN};
use super::ring::{Area, LINE, Mem};
use super::ring_window::RingWriter;
use super::sleep::FOR_RECORDS;
use super::tx::MAX_IN_RECORD;
use crate::driver::{LinkOwner, Source};
use crate::mem::Segment;
use crate::rnic::{EagerPayload, EagerRecv, EagerSend, HEAD, Qp, QpAttr};
use crate::sys::{Hint, IoVec, IoVecMut};

/// Hot links that one call of `next_eager` looks at. Each look reads a cache line from memory if
/// many links are hot. `poll_hot_set` finds messages on the others.
const MAX_POLLED: usize = 32;

/// Bytes of a message from which on the session borrows it in the ring and copies it to its place.
/// A shorter message is copied by way of the engine: to borrow it would cost more than the copy.
const MIN_BORROWED: usize = 1024;

/// Bytes of the next record that a sender takes from the peer's cache ahead. A processor keeps some
/// dozen such requests. More of them delay the record that follows: 4 KiB by a quarter.
const MOST_TAKEN: u64 = 2048;

impl ShmRnic {
    /// Sends a small message (`Rnic::try_send_eager`).
    pub(super) fn try_send_eager(
        &mut self,
        qp: Qp,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        let Some(id) = self.link_of(qp) else { return EagerSend::Declined };
        let full = self.hot_set_is_full();
        let Ok(link) = self.links.get_mut(id) else { return EagerSend::Declined };
        link.tx.ring.window.set_busy_links(self.parts.hot.len());
        let sent = link.write_eager(payload, head);
        if !sent.is_taken() {
            return sent;
        }
        match link.polling.hot {
            true => link.polling.misses = 0,
            // Its peer sets its bit: it waits for nothing that it did not wait for before.
            false if link.peer_has_bitmap() && full => {}
            false if link.base.attended => {}
            false => self.make_hot(id),
        }
        sent
    }

    /// Takes an eager message out of a hot link, of each link in turn (`Rnic::next_eager`). A link whose
    /// thread has just woken goes first.
    pub(super) fn next_eager(&mut self, out: &mut [u8]) -> Option<EagerRecv> {
        if let Some(id) = self.parts.woken {
            let taken = self.take_eager(id, out);
            if taken.is_some() {
                return taken;
            }
            self.parts.woken = None;
            if self.links.get(id).is_ok_and(|link| link.has_work()) {
                self.enqueue(Source::Link(id));
            }
        }
        let count = self.parts.hot.len();
        for _ in 0..count.min(MAX_POLLED) {
            let at = if self.parts.eager_turn < count { self.parts.eager_turn } else { 0 };
            self.parts.eager_turn = at + 1;
            let taken = self.take_eager(self.parts.hot[at], out);
            if taken.is_some() {
                return taken;
            }
        }
        None
    }

    fn take_eager(&mut self, id: u32, out: &mut [u8]) -> Option<EagerRecv> {
        let link = self.links.get_mut(id).ok()?;
        let LinkOwner::Qp(qp) = link.base.owner else { return None };
        if link.polling.paused_epoch == self.parts.pause_epoch || !link.has_message() {
            return None;
        }
        // Completions that came before the message must be polled before it.
        let QpAttr { recv_cq, context, .. } = self.qps.get(qp).ok()?.attr;
        let first = self.objects.cqs.get(recv_cq.0).is_ok_and(|cq| cq.is_empty());
        if !first || !self.reports.wcs.is_empty() {
            return None;
        }
        let (len, borrowed) = link.next_eager(out)?;
        let at = borrowed.map_or(EagerPayload::Copied, EagerPayload::Lent);
        Some(EagerRecv { qp: Qp(qp), context, len, at })
    }

    /// Leaves the next messages of a connection in the ring until `resume_eager`
    /// (`Rnic::pause_eager`). False if it is the only hot link: then its messages go on.
    pub(super) fn pause_eager(&mut self, qp: Qp) -> bool {
        let others = self.parts.hot.len() > 1;
        if others
            && let Some(id) = self.link_of(qp)
            && let Ok(link) = self.links.get_mut(id)
        {
            link.polling.paused_epoch = self.parts.pause_epoch;
        }
        others
    }

    /// Frees the ring space of a borrowed message (`Rnic::release_eager`).
    pub(super) fn release_eager(&mut self, qp: Qp) {
        let Some(id) = self.link_of(qp) else { return };
        let Ok(link) = self.links.get_mut(id) else { return };
        link.rx.ring.borrowed = 0;
        link.report_consumed_lazily();
    }
}

impl RingWriter {
    /// Makes sure that a message of `most` bytes at most has room.
    #[inline]
    pub(super) fn reserve_message(&mut self, most: usize, mem: &Mem) -> bool {
        self.reserve(RecordHead::short(RecordKind::Send, 0, most).len(), mem)
    }

    /// Publishes a message that has room: the first `len` bytes of `header`, and `payload` behind them.
    /// `read`: the position of this side's reader.
    #[inline(always)]
    pub(super) fn write_message(
        &mut self,
        (header, len): (&[u8; HEAD], usize),
        payload: &IoVec<'_>,
        read: u64,
        mem: &Mem,
    ) -> RecordHead {
        let record = RecordHead::short(RecordKind::Send, 0, len + payload.len());
        let pos = self.pos;
        mem.put_head(pos, record.word(), header, len);
        mem.put(Area::Ring, pos + (SHORT_HEAD_LEN + len) as u64, payload);
        mem.publish(pos);
        self.pos += record.len();
        // This side has just received something, so this is an answer, and the peer probably waits.
        if std::mem::replace(&mut self.read_at_message, read) != read {
            mem.hint(Hint::Give, pos, record.len());
        }
        record
    }
}

impl RingReader {
    /// The head of the next record, which is there. None if it cannot be valid.
    #[inline(always)]
    pub(super) fn head(&self, mem: &Mem) -> Option<RecordHead> {
        RecordHead::parse(&mem.head_at(self.pos))
    }

    /// The head of the next record, if it is a message without anything beside it. A record is there. It
    /// may be a skip, which is followed.
    pub(super) fn next_message(&mut self, mem: &Mem) -> Option<RecordHead> {
        // `receive` refuses an invalid record.
        let mut head = self.head(mem)?;
        if head.kind == RecordKind::Skip {
            self.skip_to_start(&head, mem);
            head = mem.has_record(self.pos).then(|| self.head(mem))??;
        }
        (head.kind == RecordKind::Send && head.flags == 0).then_some(head)
    }
}

impl ShmLink {
    fn write_eager(
        &mut self,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        // The peer polls this line, so to get it is most of the cost: begin with that.
        self.mem.hint(Hint::Take, self.tx.ring.pos, LINE);
        let open = self.phase == LinkPhase::Open && !self.socket.hung_up;
        let most = payload.len() + HEAD;
        if !open || most > MAX_IN_RECORD || !self.tx.is_drained() || self.peer_end().is_some() {
            return EagerSend::Declined;
        }
        if !self.tx.ring.reserve_message(most, &self.mem) {
            return EagerSend::NoRoom;
        }
        let mut header = [0; HEAD];
        let len = head(&mut header);
        if len == 0 {
            return EagerSend::Declined;
        }
        let read = self.rx.ring.pos;
        let record = self.tx.ring.write_message((&header, len), payload, read, &self.mem);
        // The consumer index leaves with the message.
        let room = self.rx.ring.publish(&self.mem);
        self.ring_for_message(payload.len(), FOR_RECORDS | room);
        // The next record is probably as long. Its lines are in the peer's cache; they will be ours
        // by then. All but the first line, which the peer polls.
        let next = self.tx.ring.next_pos(record.len(), &self.mem);
        self.mem.hint(Hint::Take, next + LINE, (record.len() - LINE).min(MOST_TAKEN));
        EagerSend::Sent
    }

    fn has_message(&self) -> bool {
        let free = self.phase.is_connected() && !self.base.stalled && self.rx.is_free();
        free && !self.is_lent() && self.mem.has_record(self.rx.ring.pos)
    }

    fn next_eager(&mut self, out: &mut [u8]) -> Option<(usize, Option<Segment>)> {
        let ring = &mut self.rx.ring;
        let head = ring.next_message(&self.mem)?;
        let (at, out) = (ring.pos + head.payload_at(), out.get_mut(..head.inline)?);
        let borrowed =
            if out.len() < MIN_BORROWED { None } else { self.mem.segment_at(at, out.len()) };
        match borrowed {
            Some(_) => ring.borrowed = head.len(),
            None => self.mem.get(Area::Ring, at, &IoVecMut::new(out)),
        }
        ring.pos += head.len();
        self.polling.misses = 0;
        self.report_consumed_lazily();
        Some((head.inline, borrowed))
    }
}
