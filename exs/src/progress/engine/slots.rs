//! The receive slots that connections of a device share.
//!
//! A message of a peer takes one slot of the shared receive queue (SRQ), and gives
//! it back when it has been handled. Where an empty SRQ makes the peer wait
//! (`Caps::srq_waits`), more slots than a few per connection only make that rare.
//! Where it costs the connection (siw), there must be a slot for every credit that
//! any peer holds: a connection that these cannot be found for is refused.
//!
//! Slots come in chunks, a registration each. When connections have gone, the last
//! chunks are given back: what was given to the RNIC cannot be had back, so their slots
//! are not posted again as messages use them up, and a chunk ends when all of it is out. A `wr_id` is a slot's number, which is
//! chunk times [`CHUNK`] plus the place in the chunk, and above that what `receives` puts there.

use crate::mem::{Access, Segment};
use crate::progress::options::MOST_INLINE;
use crate::rnic::{Caps, MESSAGE, Pd, RecvWr, Rnic, RnicError, Sge, Srq};
use crate::session::Buf;
use crate::wire::exs::MAX_HEADER;

/// Bytes of a slot: a message header (in a cache line) and what rides inside of the message.
pub(in crate::progress) const SLOT: u32 = MESSAGE;
const _: () = assert!(MAX_HEADER + MOST_INLINE <= SLOT as usize);
const SLOT_LEN: usize = SLOT as usize;
/// Slots of one registration.
pub(super) const CHUNK: usize = 256;
/// Slots of a device whose peers can wait, at most.
const PATIENT_MAX: usize = 1024;
/// Slots of a device whose peers cannot wait, at most: 256 MiB, 4096 connections.
const STRICT_MAX: usize = 32 << 10;
/// The larger of the two.
pub(super) const MOST: usize = STRICT_MAX;
/// Slots that have been used may wait for as many of their like, to be posted again beside the
/// way of a message: there are so many more of them than credits.
const LAG: usize = 8;
/// Credits of a connection, by whether its peer can wait for a slot.
const CREDITS_PATIENT: u16 = 32;
/// The same where memory is not pinned: a peer that sends small messages one after the
/// other has that many on their way before it must wait to hear.
const CREDITS_SOFTWARE: u16 = 128;
const CREDITS_STRICT: u16 = 8;

/// Receives that a peer may use before it hears of them again.
pub(super) fn credits(caps: &Caps) -> u16 {
    match (caps.srq_waits, caps.pins) {
        (true, false) => CREDITS_SOFTWARE,
        (true, true) => CREDITS_PATIENT,
        (false, _) => CREDITS_STRICT,
    }
}

/// The slots of a receive queue.
pub(super) struct Slots {
    srq: Srq,
    pd: Pd,
    /// What the numbers of its slots begin with.
    base: u64,
    chunks: Vec<Buf>,
    /// Slots that there are, and may be.
    count: usize,
    limit: usize,
    /// Credits that connections have between them.
    promised: usize,
    /// Slots from here on are not posted again; those of them that are out.
    keep: usize,
    out: Vec<u64>,
    /// Slots that have come back, to be posted again with the next of `lag`.
    back: Vec<u64>,
    lag: usize,
}

impl Slots {
    pub(super) fn new(rnic: &mut dyn Rnic, pd: Pd, base: u64) -> Result<Slots, RnicError> {
        let caps = rnic.caps();
        let most = if caps.srq_waits { PATIENT_MAX } else { STRICT_MAX };
        let limit = most.min(caps.max_srq_wr);
        let srq = rnic.create_srq(pd, limit)?;
        let lag = LAG.min(limit / 8);
        let mut slots = Slots {
            srq,
            pd,
            base,
            chunks: Vec::new(),
            count: 0,
            limit,
            promised: 0,
            keep: CHUNK,
            out: Vec::new(),
            back: Vec::with_capacity(lag),
            lag,
        };
        match slots.grow(rnic, 1) {
            Ok(()) => Ok(slots),
            Err(e) => {
                slots.end(rnic);
                Err(e)
            }
        }
    }

    pub(super) fn srq(&self) -> Srq {
        self.srq
    }

    /// What the numbers of its slots begin with.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// It has no connections.
    pub(super) fn is_unused(&self) -> bool {
        self.promised == 0
    }

    /// Sees to it that there are slots for one connection more.
    pub(super) fn promise(&mut self, rnic: &mut dyn Rnic) -> Result<(), RnicError> {
        let each = usize::from(credits(rnic.caps()));
        let asked = self.promised + each;
        if rnic.caps().srq_waits {
            // More would be better, but fewer will do.
            if let Err(e) = self.grow(rnic, (asked + self.lag).min(self.limit)) {
                crate::trace::warn!("{} slots it is: {e}", self.count);
            }
        } else if asked > self.limit {
            return Err(RnicError::Exhausted {
                what: "receives in the shared receive queue, of which each connection needs 8",
                asked: asked as u64,
                limit: self.limit as u64,
                errno: libc::ENOBUFS,
            });
        } else {
            let spare = self.limit - asked;
            if spare < self.lag {
                self.lag = spare;
                self.post_back(rnic)?;
            }
            self.grow(rnic, asked + self.lag)?;
        }
        self.promised = asked;
        Ok(())
    }

    /// A connection is gone.
    pub(super) fn release(&mut self, caps: &Caps) {
        self.promised = self.promised.saturating_sub(credits(caps).into());
        // Half a chunk to spare, lest a connection that comes and goes move a chunk.
        let keep = (self.promised + self.lag + CHUNK / 2).next_multiple_of(CHUNK);
        self.keep = keep.min(self.keep);
    }

    /// A slot has come back from the RNIC: it is posted again, with the next of `lag`.
    pub(super) fn give_back(&mut self, rnic: &mut dyn Rnic, slot: u64) -> Result<(), RnicError> {
        self.back.push(slot);
        if self.back.len() < self.lag { Ok(()) } else { self.post_back(rnic) }
    }

    fn post_back(&mut self, rnic: &mut dyn Rnic) -> Result<(), RnicError> {
        let mut back = std::mem::take(&mut self.back);
        let posted = back.drain(..).try_for_each(|slot| self.reuse(rnic, slot));
        self.back = back;
        posted
    }

    /// Posts a slot again, if it is to stay.
    fn reuse(&mut self, rnic: &mut dyn Rnic, slot: u64) -> Result<(), RnicError> {
        if slot < self.base + self.keep as u64 {
            return self.post(rnic, slot);
        }
        self.out.push(slot);
        while self.count > self.keep {
            let chunk = (self.count - 1) / CHUNK;
            let first = self.base + (chunk * CHUNK) as u64;
            let whole = self.count - chunk * CHUNK;
            if self.out.iter().filter(|s| **s >= first).count() < whole {
                break;
            }
            self.out.retain(|s| *s < first);
            self.count = chunk * CHUNK;
            if let Some(chunk) = self.chunks.pop() {
                rnic.dereg_mr(chunk.mr)?;
            }
        }
        Ok(())
    }

    /// Has `want` slots at least, and whole chunks of them.
    fn grow(&mut self, rnic: &mut dyn Rnic, want: usize) -> Result<(), RnicError> {
        let want = want.next_multiple_of(CHUNK).min(self.limit);
        self.keep = self.keep.max(want);
        // Those that were to go are needed again.
        while let Some(slot) = self.out.last().copied() {
            self.post(rnic, slot)?;
            self.out.pop();
        }
        while self.count < want {
            if self.count == self.chunks.len() * CHUNK {
                let seg = super::device::map(CHUNK.min(self.limit - self.count) * SLOT_LEN)?;
                let mr = rnic.reg_mr(self.pd, &seg, Access::LOCAL)?;
                self.chunks.push(Buf { seg, mr });
            }
            self.post(rnic, self.base + self.count as u64)?;
            self.count += 1;
        }
        Ok(())
    }

    /// Gives all back.
    pub(super) fn end(self, rnic: &mut dyn Rnic) {
        // They exist, and no QP uses them: there is nothing to go wrong.
        let _ = rnic.destroy_srq(self.srq);
        for chunk in self.chunks {
            let _ = rnic.dereg_mr(chunk.mr);
        }
    }

    /// Gives a slot to the RNIC.
    pub(super) fn post(&mut self, rnic: &mut dyn Rnic, slot: u64) -> Result<(), RnicError> {
        let Some((chunk, at)) = self.find(slot) else {
            return Err(RnicError::NoSuch { what: "receive slot", id: u32::MAX });
        };
        let addr = chunk.seg.addr() + at as u64;
        let sge = Sge { addr, len: SLOT.into(), lkey: chunk.mr.key };
        rnic.post_srq_recv(self.srq, &RecvWr { wr_id: slot, sges: &[sge] })
    }

    /// The chunk of a slot, and where in it the slot begins.
    fn find(&self, slot: u64) -> Option<(&Buf, usize)> {
        let slot = usize::try_from(slot.checked_sub(self.base)?).ok()?;
        Some((self.chunks.get(slot / CHUNK)?, slot % CHUNK * SLOT_LEN))
    }

    /// What arrived in a slot; None if the numbers are not of a slot of ours.
    pub(super) fn get(&self, slot: u64, len: u64) -> Option<Segment> {
        let len = usize::try_from(len).ok().filter(|len| *len <= SLOT_LEN)?;
        let (chunk, at) = self.find(slot)?;
        chunk.seg.slice(at, len).ok()
    }
}
