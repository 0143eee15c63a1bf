//! Which bytes go where (R3), and when an operation has ended.

use crate::ids::Outcome;

use super::super::rules::Rule;
use super::super::{ChunkTarget, TxAction, is_direct};
use super::{RingGrant, StreamTx, Want};

/// A Transfer that could be made now.
pub(super) struct Chunk {
    len: u32,
    direct: bool,
    inline: bool,
}

impl StreamTx {
    /// R3: the largest chunk that the first unfinished send could move now, if the
    /// ring's address were known.
    pub(super) fn next_chunk(&self) -> Option<Chunk> {
        let entry = self.ops.get(self.cur)?;
        let Want::Send(total) = entry.want else { return None };
        let left = u32::try_from(total - entry.taken).unwrap_or(u32::MAX).min(self.cfg.max_chunk);
        let (room, direct) = match self.adverts.front() {
            Some(advert) => (advert.len, true),
            None if self.is_waiting() => return None,
            None => (self.ring.room(), false),
        };
        let len = left.min(room);
        let inline = entry.inline && len <= self.cfg.inline_max;
        (len > 0).then_some(Chunk { len, direct, inline })
    }

    /// A send has bytes that no transfer has taken yet.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        let send = self.ops.get(self.cur);
        send.is_some_and(|e| matches!(e.want, Want::Send(total) if total > e.taken))
    }

    /// Only a WRITE into the ring needs the ring's address.
    pub(super) fn may_send(&self, chunk: &Chunk) -> bool {
        chunk.direct || chunk.inline || matches!(self.grant, RingGrant::Granted(_))
    }

    /// Bytes that can ride in one announcement.
    #[must_use]
    pub fn eager_max(&self) -> u32 {
        self.cfg.inline_max.min(self.cfg.max_chunk)
    }

    /// Takes the place of a send of `len` bytes that rides in its announcement and is over as soon
    /// as that is written: true if direct (R3). The state is then as if the send had been posted,
    /// polled and handled. None: nothing has happened, and the send must be posted.
    pub fn try_eager(&mut self, len: u32) -> Option<bool> {
        let idle = self.ops.is_empty() && self.out.is_empty() && !self.fin_sent;
        if !idle || len == 0 || len > self.eager_max() {
            return None;
        }
        let direct = match self.adverts.front() {
            Some(advert) if advert.len >= len => true,
            None if self.ring.room() >= len => false,
            _ => return None,
        };
        self.file_advert = None;
        let _target = if direct { self.take_advert(len) } else { self.take_ring(len) };
        self.seq = self.seq.wrapping_add(len.into());
        Some(direct)
    }

    /// Takes the chunk that `next_chunk` found.
    pub(super) fn transfer(&mut self, chunk: &Chunk) -> TxAction {
        let len = chunk.len;
        let file = !self.ops[self.cur].inline;
        self.file_advert = self.adverts.front().filter(|_| file && chunk.direct).copied();
        let target = if chunk.direct { self.take_advert(len) } else { self.take_ring(len) };
        self.seq = self.seq.wrapping_add(len.into());
        let entry = &mut self.ops[self.cur];
        let (op, op_off) = (entry.op, entry.taken);
        entry.taken += u64::from(len);
        self.settle();
        TxAction::Transfer { op, op_off, len, target, inline: chunk.inline }
    }

    /// R3, direct: a partly filled WAITALL buffer stays first. Any other is spent, since its receive
    /// ends with these bytes.
    fn take_advert(&mut self, len: u32) -> ChunkTarget {
        self.patience.reach();
        let front = &mut self.adverts[0];
        let (addr, key, invalidate) = (front.addr, front.key, front.invalidate);
        // The number is the peer's: its own RNIC refuses a wrapped address.
        front.addr = front.addr.wrapping_add(u64::from(len));
        front.len -= len;
        let stays = front.waitall && self.rules.hold(Rule::WaitallStays);
        let spent = front.len == 0 || !stays;
        if spent {
            self.adverts.pop_front();
        }
        ChunkTarget::Direct { addr, key, close: spent && invalidate }
    }

    /// R3, indirect.
    fn take_ring(&mut self, len: u32) -> ChunkTarget {
        if is_direct(self.phase) {
            self.phase = self.phase.wrapping_add(1);
            self.patience.end_phase();
        }
        ChunkTarget::Ring { offset: self.ring.take(len) }
    }

    /// Updates what follows from the state. Every change of the state calls it.
    pub(super) fn settle(&mut self) {
        self.advance();
        self.reap();
        // R9: ask for the ring only when a WRITE into it is all that could be done.
        let blocked = self.next_chunk().is_some_and(|c| !self.may_send(&c));
        if blocked && self.grant == RingGrant::Unknown {
            self.grant = RingGrant::Asked;
            self.out.push_back(TxAction::RequestRing);
        }
    }

    /// Moves `cur` past operations that take no more chunks; FIN goes out here.
    fn advance(&mut self) {
        while let Some(entry) = self.ops.get(self.cur) {
            match entry.want {
                Want::Send(total) if entry.taken < total && !entry.cancelled => return,
                Want::Send(_) => {}
                Want::Fin if self.fin_sent => {}
                Want::Fin => {
                    self.fin_sent = true;
                    self.adverts.clear();
                    self.out.push_back(TxAction::Fin);
                }
            }
            self.cur += 1;
        }
    }

    /// Ends operations in order, as far as their local memory is free.
    fn reap(&mut self) {
        while self.cur > 0 {
            let Some(entry) = self.ops.front() else { return };
            if entry.handled < entry.taken {
                return;
            }
            let full = match entry.want {
                Want::Send(total) => entry.handled == total,
                Want::Fin => true,
            };
            let outcome = if full { Outcome::Ok } else { Outcome::Cancelled };
            let (op, bytes) = (entry.op, entry.handled);
            self.ops.pop_front();
            self.cur -= 1;
            self.done(op, bytes, outcome);
        }
    }
}
