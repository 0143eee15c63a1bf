//! What the receiver and its RNIC do, and what must hold of receives and memory.

use crate::ids::{OpId, Outcome};
use crate::stream::{Advert, RemoteRing, RxAction};

use super::world::{Wrong, ensure};
use super::{Back, BackMsg, Plan, RecvState, RingMem, Window, World, WriteTo, value};

/// Buffers lie this far apart in the receiver's address space.
const STRIDE: u64 = 1 << 20;

/// The current inline bytes, by the stream position of the first.
#[derive(Clone, Copy)]
pub(super) struct Inline {
    pub(super) pos: u32,
    pub(super) len: u32,
}

impl World {
    /// What the receiver's RNIC does with a WRITE.
    pub(super) fn land(&mut self, to: &WriteTo, pos: u32, len: u32) -> Result<(), Wrong> {
        let (bytes, from) = match *to {
            WriteTo::Ring { offset, key } => {
                ensure!(self.ring.exists && self.ring.key == key, "WRITE to a ring that is gone");
                (&mut self.ring.bytes, offset)
            }
            WriteTo::Window { addr, key } => {
                let i = usize::try_from(addr / STRIDE).expect("small");
                let from = u32::try_from(addr % STRIDE).expect("small");
                let RecvState::Pending { buf, window, .. } = &mut self.recvs[i] else {
                    return Err(format!("WRITE to receive {i}, which is not pending"));
                };
                let Some(window) = window.as_ref().filter(|w| w.key == key) else {
                    return Err(format!("WRITE to receive {i} through a closed window"));
                };
                let inside = from >= window.from && from + len <= window.from + window.len;
                ensure!(inside, "WRITE to receive {i} out of bounds");
                (buf, from)
            }
        };
        Self::put(bytes, from, pos, len)
    }

    /// Writes stream bytes where nothing may be yet.
    fn put(bytes: &mut [u8], from: u32, pos: u32, len: u32) -> Result<(), Wrong> {
        for k in 0..len {
            let place = bytes.get_mut((from + k) as usize).ok_or("written out of bounds")?;
            ensure!(*place == 0, "byte {} overwrites a byte that is in use", pos + k);
            *place = value(pos + k);
        }
        Ok(())
    }

    /// Does what the receiver wants.
    pub(super) fn drain_rx(&mut self, plan: &Plan, inline: Option<Inline>) -> Result<(), Wrong> {
        let mut copied = 0;
        while let Some(action) = self.rx.poll() {
            match action {
                RxAction::Advertise { op, op_off, len, seq, phase, waitall } => {
                    let (addr, key) = self.open(op, op_off, len)?;
                    let advert = Advert { seq, phase, addr, key, len, waitall, invalidate: false };
                    self.answer(BackMsg::Advert(advert));
                }
                RxAction::Retract { op } => {
                    let (_, window) = self.pending(op)?;
                    ensure!(window.take().is_some(), "receive {op} has no window to close");
                }
                RxAction::CopyFromRing { ring_off, op, op_off, len } => {
                    self.copy_from_ring(plan, ring_off, op, op_off, len)?;
                }
                RxAction::CopyInline { from, op, op_off, len } => {
                    let at = inline.ok_or("no message at hand")?;
                    ensure!(from == copied && from + len <= at.len, "inline bytes skipped");
                    copied += len;
                    let off = u32::try_from(op_off).expect("small");
                    Self::put(self.pending(op)?.0, off, at.pos + from, len)?;
                }
                RxAction::StashInline { from, ring_off, len } => {
                    let at = inline.ok_or("no message at hand")?;
                    ensure!(from == copied && from + len <= at.len, "inline bytes skipped");
                    copied += len;
                    self.ring.exists = true;
                    Self::put(&mut self.ring.bytes, ring_off, at.pos + from, len)?;
                }
                RxAction::Ack => {
                    self.answer(BackMsg::Ack);
                    ensure!(self.back.back().is_some_and(|b| b.freed > 0), "an ACK of nothing");
                }
                RxAction::Withdraw => self.answer(BackMsg::Withdraw),
                RxAction::GrantRing => {
                    let RingMem { exists, key, grants, .. } = &mut self.ring;
                    (*exists, *grants) = (true, *grants + 1);
                    *key = *grants;
                    let ring = RemoteRing { addr: 0, key: *key };
                    self.answer(BackMsg::Ring(ring));
                }
                RxAction::DropRing => {
                    ensure!(self.ring.exists, "no ring to drop");
                    let full = self.ring.bytes.iter().any(|b| *b != 0);
                    ensure!(!full, "a ring is dropped with bytes in it");
                    (self.ring.exists, self.ring.key) = (false, 0);
                }
                RxAction::Done { op, bytes, outcome } => {
                    self.recv_ended(plan, op, bytes, outcome)?;
                }
            }
        }
        ensure!(inline.is_none_or(|at| at.len == copied), "inline bytes lost");
        Ok(())
    }

    fn answer(&mut self, msg: BackMsg) {
        let freed = self.rx.take_freed();
        self.back.push_back(Back { freed, msg });
    }

    fn pending(&mut self, op: OpId) -> Result<(&mut Vec<u8>, &mut Option<Window>), Wrong> {
        match &mut self.recvs[usize::try_from(op).expect("small")] {
            RecvState::Pending { buf, window, .. } => Ok((buf, window)),
            _ => Err(format!("receive {op} is touched, but not pending")),
        }
    }

    fn open(&mut self, op: OpId, op_off: u64, len: u32) -> Result<(u64, u32), Wrong> {
        let i = usize::try_from(op).expect("small");
        let RecvState::Pending { buf, window, opened, .. } = &mut self.recvs[i] else {
            return Err(format!("receive {i} is advertised, but not pending"));
        };
        ensure!(window.is_none(), "receive {i} is advertised twice");
        let from = u32::try_from(op_off).expect("small");
        let written = buf.iter().take_while(|b| **b != 0).count();
        ensure!(written == from as usize, "receive {i} is advertised at the wrong byte");
        ensure!((from + len) as usize <= buf.len(), "receive {i} is advertised beyond its end");
        *opened += 1;
        *window = Some(Window { key: *opened, from, len });
        Ok((op * STRIDE + op_off, *opened))
    }

    fn copy_from_ring(
        &mut self,
        plan: &Plan,
        ring_off: u32,
        op: OpId,
        op_off: u64,
        len: u32,
    ) -> Result<(), Wrong> {
        let keep = usize::try_from(op).ok().is_some_and(|i| plan.recvs[i].peek);
        ensure!(self.ring.exists, "copied from a ring that is gone");
        let range = ring_off as usize..(ring_off + len) as usize;
        let bytes = self.ring.bytes.get_mut(range).ok_or("copied from beyond the ring")?;
        let taken = bytes.to_vec();
        if !keep {
            bytes.fill(0);
        }
        let (buf, _) = self.pending(op)?;
        for (k, byte) in taken.iter().enumerate() {
            let place = usize::try_from(op_off).expect("small") + k;
            let place = buf.get_mut(place).ok_or("copied beyond the receive's end")?;
            ensure!(*place == 0 && *byte != 0, "receive {op}: copied nothing, or over something");
            *place = *byte;
        }
        Ok(())
    }

    fn recv_ended(&mut self, plan: &Plan, op: OpId, bytes: u64, how: Outcome) -> Result<(), Wrong> {
        let i = usize::try_from(op).expect("small");
        let state = std::mem::replace(&mut self.recvs[i], RecvState::Ended);
        let RecvState::Pending { buf, window, cancelled, .. } = state else {
            return Err(format!("receive {i} ends without being pending"));
        };
        ensure!(window.is_none(), "receive {i} ends with its window open");
        let count = u32::try_from(bytes).expect("small");
        for (k, byte) in (0..).zip(buf) {
            let want = if k < count { value(self.delivered + k) } else { 0 };
            ensure!(byte == want, "receive {i}: byte {k} is {byte}, not {want}");
        }
        let post = plan.recvs[i];
        if !post.peek {
            self.delivered += count;
        }
        match how {
            Outcome::Cancelled => ensure!(cancelled, "receive {i} was never cancelled"),
            Outcome::Ok if self.rx.at_eof() || post.len == 0 => {}
            Outcome::Ok => {
                let want = match (post.waitall, post.peek) {
                    (false, _) => 1,
                    (true, false) => post.len,
                    (true, true) => post.len.min(plan.cfg.ring),
                };
                // A peek that the end cuts short sees what is there.
                let cut = post.peek && self.rx.fin_seen();
                ensure!(count >= want || cut, "receive {i} is Ok with {count} bytes");
            }
        }
        Ok(())
    }
}
