//! Where bytes that arrived go: to the first receive, or to the ring and from there.

use crate::ids::{OpId, Outcome};

use super::super::rules::Rule;
use super::super::{Data, RxAction, StreamViolation, is_direct};
use super::{Recv, StreamRx};

/// Where the data of an eager message go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EagerTarget {
    /// The receive.
    pub op: OpId,
    /// Where in its buffer.
    pub op_off: u64,
    /// Bytes that go there, of those that came.
    pub len: u32,
    /// It ends with them.
    pub ends: bool,
}

impl StreamRx {
    /// R5: direct data belong to the first receive, whose ADVERT the sender used.
    pub(super) fn direct(&mut self, data: Data) -> Result<(), StreamViolation> {
        let len = data.len;
        let room = self.recvs.front().map_or(0, |r| r.shown);
        if len > room {
            return Err(StreamViolation::DirectOverrun { len, room: room.into() });
        }
        self.misses = 0;
        let recv = &mut self.recvs[0];
        let (op, op_off) = (recv.post.op, recv.filled);
        recv.filled += u64::from(len);
        recv.shown -= len;
        self.seq = self.seq.wrapping_add(len.into());
        self.shown_bytes -= u64::from(len);
        if data.inline {
            self.out.push_back(RxAction::CopyInline { from: 0, op, op_off, len });
        }
        let recv = &mut self.recvs[0];
        if recv.shown > 0 && recv.post.waitall {
            return Ok(()); // partly filled, and still the sender's first ADVERT too
        }
        if recv.left() == 0 || !recv.post.waitall {
            self.end(0, Outcome::Ok);
            return Ok(());
        }
        // The receive is longer than one ADVERT can show: this one is used up, the next follows.
        let cancelled = recv.cancelled;
        self.hide(0);
        self.shown -= 1;
        if cancelled {
            self.end(0, Outcome::Cancelled);
        }
        Ok(())
    }

    /// R4: indirect data end a direct phase.
    pub(super) fn indirect(&mut self, data: Data) -> Result<(), StreamViolation> {
        let (len, room) = (data.len, self.ring.room());
        if len > room {
            return Err(StreamViolation::RingOverrun { len, room });
        }
        if !data.inline && !self.granted {
            return Err(StreamViolation::Unexpected("DATA in a ring that was not granted"));
        }
        if is_direct(self.phase) {
            self.misses = if self.shown > 0 { (self.misses + 1).min(self.max_misses) } else { 0 };
            if self.rules.hold(Rule::Unadvertise) {
                self.unadvertise();
            }
            self.phase = self.phase.wrapping_add(1);
        }
        self.seq = self.seq.wrapping_add(len.into());
        let stash = if data.inline { self.place_inline(len) } else { 0 };
        if stash < len && data.inline {
            let (ring_off, rest) = (self.ring.write_at(), len - stash);
            self.stashed = true;
            self.out.push_back(RxAction::StashInline { from: stash, ring_off, len: rest });
        }
        self.ring.push(len - stash);
        Ok(())
    }

    /// Copies inline data straight to the receives that wait, as long as no older byte is in the
    /// ring; gives the bytes copied. The ring's positions advance as if the bytes had passed
    /// through it, since the sender counts so.
    fn place_inline(&mut self, len: u32) -> u32 {
        let mut from = 0;
        while from < len && self.ring.fill() == 0 {
            let Some(recv) = self.recvs.front_mut().filter(|r| !r.post.peek) else { break };
            let n = u32::try_from(recv.left()).unwrap_or(u32::MAX).min(len - from);
            let (op, op_off) = (recv.post.op, recv.filled);
            recv.filled += u64::from(n);
            let ends = recv.left() == 0 || !recv.post.waitall;
            self.out.push_back(RxAction::CopyInline { from, op, op_off, len: n });
            self.ring.push(n);
            self.ring.consume(n);
            from += n;
            if ends {
                self.end(0, Outcome::Ok);
            }
        }
        from
    }

    /// Takes inline data for the ring straight to the first receive, if no byte waits before them
    /// and no receive is advertised. If the receive has no room for all, call it again for the rest
    /// of the same data, until it declines: then `handle_data` takes the rest. The state is at last
    /// as after `handle_data` and `poll`, without the actions. None: nothing has happened.
    #[inline]
    pub fn try_eager(&mut self, len: u32) -> Option<EagerTarget> {
        if !self.passes_ring(len) {
            return None;
        }
        let recv = self.recvs.front_mut()?;
        if recv.post.peek || recv.cancelled {
            return None;
        }
        let taken = u32::try_from(recv.left()).unwrap_or(u32::MAX).min(len);
        let (op, op_off) = (recv.post.op, recv.filled);
        recv.filled += u64::from(taken);
        let ends = recv.left() == 0 || !recv.post.waitall;
        self.pass(taken);
        if ends && let Some(recv) = self.recvs.pop_front() {
            self.large_hidden -= usize::from(recv.counted);
        }
        if taken == len {
            self.pump_if_due();
        }
        Some(EagerTarget { op, op_off, len: taken, ends })
    }

    /// Lets inline data for the ring pass by the receives, to the program itself. The state is as after
    /// `try_eager` with a receive of `len` bytes before all others. False: nothing has happened.
    #[inline]
    pub fn try_pass(&mut self, len: u32) -> bool {
        let begun = |recv: &Recv| recv.filled > 0 || recv.post.peek || recv.cancelled;
        if !self.passes_ring(len) || self.recvs.front().is_some_and(begun) {
            return false;
        }
        self.pass(len);
        self.pump_if_due();
        true
    }

    /// True if inline data of `len` bytes may go by the ring: no byte waits before them, and no receive
    /// is advertised.
    #[inline]
    fn passes_ring(&self, len: u32) -> bool {
        let busy = !self.out.is_empty() || self.withdrawing || self.shown > 0;
        !busy && !self.fin && len > 0 && self.ring.fill() == 0 && len <= self.ring.room()
    }

    /// Inline data have gone by the ring.
    #[inline]
    fn pass(&mut self, len: u32) {
        if is_direct(self.phase) {
            self.misses = 0;
            self.phase = self.phase.wrapping_add(1);
        }
        self.seq = self.seq.wrapping_add(len.into());
        self.ring.pass(len);
    }

    /// Takes the place of a receive of `len` bytes that finds its bytes in the ring, and nothing
    /// before it: the pieces of the ring to be copied to it. It has ended then. The state is as after
    /// `post_recv` and `poll`, but for an Ack. None: nothing has happened, and the receive must be
    /// posted.
    #[inline]
    pub fn try_take(&mut self, len: u64, waitall: bool) -> Option<[(u32, u32); 2]> {
        let fill = self.ring.fill();
        let busy = !self.recvs.is_empty() || !self.out.is_empty() || self.withdrawing || self.fin;
        if busy || fill == 0 || len == 0 || (waitall && len > u64::from(fill)) {
            return None;
        }
        let taken = u32::try_from(len).unwrap_or(u32::MAX).min(fill);
        let pieces = self.ring.oldest(taken);
        self.ring.consume(taken);
        Some(pieces)
    }

    /// Gives the first receive what the ring holds, or the end. False if there is neither.
    pub(super) fn serve_one(&mut self) -> bool {
        let fill = self.ring.fill();
        let Some(recv) = self.recvs.front() else { return false };
        let ending = self.fin && self.rules.hold(Rule::FinCompletes);
        let take = u32::try_from(recv.left()).unwrap_or(u32::MAX).min(fill);
        if fill == 0 {
            if ending {
                let outcome = if recv.cancelled { Outcome::Cancelled } else { Outcome::Ok };
                self.end(0, outcome);
            }
            return ending;
        }
        if recv.post.peek {
            // A peek cannot wait for more than the ring can hold.
            let want = recv.left().min(u64::from(self.ring.size()));
            if recv.post.waitall && u64::from(take) < want && !ending {
                return false;
            }
        }
        let peek = recv.post.peek;
        let ends = !recv.post.waitall || u64::from(take) == recv.left() || peek;
        self.copy_out(take);
        if !peek {
            self.ring.consume(take);
        }
        if ends {
            self.end(0, Outcome::Ok);
        }
        true
    }

    /// Copies the oldest `len` ring bytes to the first receive.
    fn copy_out(&mut self, len: u32) {
        let recv = &mut self.recvs[0];
        for (ring_off, len) in self.ring.oldest(len) {
            if len > 0 {
                let (op, op_off) = (recv.post.op, recv.filled);
                recv.filled += u64::from(len);
                self.out.push_back(RxAction::CopyFromRing { ring_off, op, op_off, len });
            }
        }
    }
}
