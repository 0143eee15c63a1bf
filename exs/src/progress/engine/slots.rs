//! The receive slots that the connections of a domain share.
//!
//! A message of a peer takes one slot of the shared receive queue (SRQ). The slot returns to the
//! queue when the engine has handled the message. Where an empty SRQ makes the peer wait
//! (`Caps::srq_waits`), a few slots for each connection suffice, and more only make the wait rare.
//! Where an empty SRQ costs the connection (siw), each credit of each peer needs a slot. If there
//! are too few, the engine refuses the connection.
//!
//! Slots come in chunks, each with one registration. When connections have gone, the last chunks
//! are freed. The RNIC does not give a posted receive back, so the engine stops posting the slots
//! of such a chunk as messages use them up. A chunk is freed when all its slots have come out. The
//! `wr_id` of a receive is the number of its slot: chunk times [`CHUNK`] plus the place in the
//! chunk, and above that the bits of `receives`.

use crate::mem::{Access, Segment};
use crate::progress::options::{DEFAULT_INLINE, MOST_INLINE};
use crate::rnic::{Caps, MESSAGE, Pd, RecvWr, Rnic, RnicError, STRICT_CREDITS, Sge, Srq};
use crate::session::Buf;
use crate::wire::exs::MAX_HEADER;

/// The most bytes of a slot: the header of a message (in a cache line), and its inline data.
pub(in crate::progress) const SLOT: u32 = MESSAGE;
const _: () = assert!(MAX_HEADER + MOST_INLINE <= SLOT as usize);
/// The bytes of a slot where each connection has slots of its own. They hold the inline data that a
/// peer sends unless it has an option for more, and half the memory.
const STRICT_SLOT: u32 = 64 + DEFAULT_INLINE;
const _: () = assert!(MAX_HEADER <= 64);
/// The slots of one registration.
pub(super) const CHUNK: usize = 256;
/// The most slots of a queue whose peers can wait.
const PATIENT_MAX: usize = 1024;
/// The most slots of a queue whose peers cannot wait: 130 MiB, for 4096 connections. Further
/// connections get another queue.
const STRICT_MAX: usize = 32 << 10;
/// The larger of the two.
pub(super) const MOST: usize = STRICT_MAX;
/// Used slots wait until there are this many, and are then posted again together, so that most
/// messages post none. A queue has this many more slots than credits.
const LAG: usize = 8;
/// The credits of a connection whose peer can wait for a slot.
const CREDITS_PATIENT: u16 = 32;
/// The same on a device that does not pin memory. A peer that sends small messages one after the
/// other can have this many under way before it must wait for new credits, and each message that waits
/// takes the general path. Most of them take no slot: they stay where they arrive until a thread takes
/// them.
const CREDITS_SOFTWARE: u16 = 256;
/// The most slots for each connection.
const SLOTS_EACH: usize = 128;

/// The receives that a peer may use before it must wait for new credits.
pub(super) fn credits(caps: &Caps) -> u16 {
    match (caps.srq_waits, caps.pins) {
        (true, false) => CREDITS_SOFTWARE,
        (true, true) => CREDITS_PATIENT,
        (false, _) => STRICT_CREDITS,
    }
}

/// The bytes of a slot.
pub(super) fn slot_len(caps: &Caps) -> u32 {
    if caps.srq_waits { SLOT } else { STRICT_SLOT }
}

/// Slots for each connection.
fn slots_each(caps: &Caps) -> usize {
    usize::from(credits(caps)).min(SLOTS_EACH)
}

/// The slots of a receive queue.
pub(super) struct Slots {
    srq: Srq,
    pd: Pd,
    /// The number of its first slot.
    base: u64,
    chunks: Vec<Buf>,
    /// The slots that exist.
    count: usize,
    /// The bytes of each.
    len: u32,
    /// The most slots that may exist.
    limit: usize,
    /// The slots that connections have between them.
    promised: usize,
    /// Slots from this place on are not posted again.
    keep: usize,
    /// Those that have come out of the queue and stay out.
    out: Vec<u64>,
    /// Slots that have come back, until there are `lag` of them to be posted again.
    back: Vec<u64>,
    lag: usize,
}

impl Slots {
    pub(super) fn new(rnic: &mut dyn Rnic, pd: Pd, base: u64) -> Result<Slots, RnicError> {
        let most = if rnic.caps().srq_waits { PATIENT_MAX } else { STRICT_MAX };
        Slots::up_to(rnic, pd, base, most)
    }

    /// A queue of at most `most` slots.
    pub(super) fn up_to(
        rnic: &mut dyn Rnic,
        pd: Pd,
        base: u64,
        most: usize,
    ) -> Result<Slots, RnicError> {
        let caps = rnic.caps();
        let (limit, len) = (most.min(caps.max_srq_wr), slot_len(caps));
        let srq = rnic.create_srq(pd, limit)?;
        let lag = LAG.min(limit / 8);
        let mut slots = Slots {
            srq,
            pd,
            base,
            chunks: Vec::new(),
            count: 0,
            len,
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

    /// The number of its first slot.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// True if it has no connections.
    pub(super) fn is_unused(&self) -> bool {
        self.promised == 0
    }

    /// True if there is room for one more connection.
    pub(super) fn has_room(&self, caps: &Caps) -> bool {
        caps.srq_waits || self.promised + slots_each(caps) <= self.limit
    }

    /// Makes sure that there are slots for one more connection.
    pub(super) fn promise(&mut self, rnic: &mut dyn Rnic) -> Result<(), RnicError> {
        let each = slots_each(rnic.caps());
        let asked = self.promised + each;
        if rnic.caps().srq_waits {
            // More slots would be better, but fewer will do.
            if let Err(e) = self.grow(rnic, (asked + self.lag).min(self.limit)) {
                crate::trace::warn!("there are only {} receive slots: {e}", self.count);
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

    /// Makes sure that there are up to `count` slots more for a busy connection. Returns how many.
    pub(super) fn promise_extra(
        &mut self,
        rnic: &mut dyn Rnic,
        count: usize,
    ) -> Result<usize, RnicError> {
        let count = count.min(self.limit.saturating_sub(self.promised + self.lag));
        self.grow(rnic, self.promised + count + self.lag)?;
        self.promised += count;
        Ok(count)
    }

    /// Busy connections have `count` slots less. Frees the memory of those that no queue pair has.
    /// True if none are left.
    pub(super) fn release_extra(&mut self, rnic: &mut dyn Rnic, count: usize) -> bool {
        self.promised -= count;
        let mut free = Vec::new();
        let unused = rnic.reclaim_receives(self.srq, u64::MAX, &mut free);
        // Queue pairs have the others, or a message lies there that the engine has not handled.
        let used = self.count - self.out.len() - self.back.len() - unused;
        let needed = self.promised.max(used);
        self.keep = match needed {
            0 => 0,
            _ => (needed + self.lag + CHUNK / 2).next_multiple_of(CHUNK).min(self.keep),
        };
        rnic.reclaim_receives(self.srq, self.base + self.keep as u64, &mut free);
        free.append(&mut self.back);
        for slot in free {
            // It exists, so this fails only if the device is gone.
            let _ = self.reuse(rnic, slot);
        }
        self.count == 0
    }

    /// A connection is gone: the slots that it no longer needs can go.
    pub(super) fn release(&mut self, caps: &Caps) {
        self.promised = self.promised.saturating_sub(slots_each(caps));
        // Half a chunk is spare, so that a connection that comes and goes moves no chunk.
        let keep = (self.promised + self.lag + CHUNK / 2).next_multiple_of(CHUNK);
        self.keep = keep.min(self.keep);
    }

    /// A slot has come back from the RNIC. Posts it again, together with others once there are
    /// `lag`.
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

    /// Posts a slot again, unless it belongs to a chunk that goes. Frees chunks whose slots are all
    /// out.
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

    /// Makes whole chunks until there are at least `want` slots.
    fn grow(&mut self, rnic: &mut dyn Rnic, want: usize) -> Result<(), RnicError> {
        let want = want.next_multiple_of(CHUNK).min(self.limit);
        self.keep = self.keep.max(want);
        // Slots that were about to go are needed again.
        while let Some(slot) = self.out.last().copied() {
            self.post(rnic, slot)?;
            self.out.pop();
        }
        while self.count < want {
            if self.count == self.chunks.len() * CHUNK {
                let seg =
                    super::device::map(CHUNK.min(self.limit - self.count) * self.len as usize)?;
                let mr = rnic.reg_mr(self.pd, &seg, Access::LOCAL)?;
                self.chunks.push(Buf { seg, mr });
            }
            self.post(rnic, self.base + self.count as u64)?;
            self.count += 1;
        }
        Ok(())
    }

    /// Frees the queue and its memory.
    pub(super) fn end(self, rnic: &mut dyn Rnic) {
        // The objects exist, and no QP uses them, so this cannot fail.
        let _ = rnic.destroy_srq(self.srq);
        for chunk in self.chunks {
            let _ = rnic.dereg_mr(chunk.mr);
        }
    }

    /// Posts a slot.
    pub(super) fn post(&mut self, rnic: &mut dyn Rnic, slot: u64) -> Result<(), RnicError> {
        let Some((chunk, at)) = self.find(slot) else {
            return Err(RnicError::NoSuch { what: "receive slot", id: u32::MAX });
        };
        let addr = chunk.seg.addr() + at as u64;
        let sge = Sge { addr, len: self.len.into(), lkey: chunk.mr.key };
        rnic.post_srq_recv(self.srq, &RecvWr { wr_id: slot, sges: &[sge] })
    }

    /// The chunk of a slot, and the offset of the slot in it.
    fn find(&self, slot: u64) -> Option<(&Buf, usize)> {
        let slot = usize::try_from(slot.checked_sub(self.base)?).ok()?;
        Some((self.chunks.get(slot / CHUNK)?, slot % CHUNK * self.len as usize))
    }

    /// The `len` bytes that arrived in a slot. None: there is no such slot, or it is shorter.
    pub(super) fn get(&self, slot: u64, len: u64) -> Option<Segment> {
        let len = usize::try_from(len).ok().filter(|len| *len <= self.len as usize)?;
        let (chunk, at) = self.find(slot)?;
        chunk.seg.slice(at, len).ok()
    }
}
