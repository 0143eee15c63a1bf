//! What each event does, and what must hold while it does it.

use crate::ids::{OpId, Outcome};
use crate::stream::{Data, RxAction, StreamViolation, Target, TxAction};

use super::{
    Back, BackMsg, Event, Fwd, Plan, RecvState, RemoteRing, RingMem, SHUTDOWN, SendState, Window,
    World, WriteTo, value,
};
use crate::stream::Advert;

/// Why a world is wrong.
pub(super) type Wrong = String;

/// Buffers lie this far apart in the receiver's address space.
const STRIDE: u64 = 1 << 20;

macro_rules! ensure {
    ($cond:expr, $($why:tt)*) => {
        if !$cond {
            return Err(format!($($why)*));
        }
    };
}
pub(super) use ensure;

fn violated(by: &str) -> impl Fn(StreamViolation) -> Wrong {
    move |v| format!("{by} broke the protocol: {v}")
}

/// The inline bytes at hand, by the stream position of the first.
#[derive(Clone, Copy)]
struct Inline {
    pos: u32,
    len: u32,
}

impl World {
    /// Lets `event` happen.
    pub(super) fn apply(&mut self, plan: &Plan, event: Event) -> Result<(), Wrong> {
        let fresh = SendState::Pending { taken: 0, busy: 0, cancelled: false };
        match event {
            Event::PostSend(i) => {
                self.sends[usize::from(i)] = fresh;
                self.tx.post_send(i.into(), plan.sends[usize::from(i)].into());
            }
            Event::Shutdown => {
                self.shutdown = fresh;
                self.tx.shutdown(SHUTDOWN);
            }
            Event::PostRecv(i) => {
                let buf = vec![0; plan.recvs[usize::from(i)].len as usize];
                let state = RecvState::Pending { buf, window: None, opened: 0, cancelled: false };
                self.recvs[usize::from(i)] = state;
                self.rx.post_recv(Self::recv_post(plan, i));
            }
            Event::CancelSend(_)
            | Event::CancelRecv(_)
            | Event::CancelShutdown
            | Event::CancelAllRecvs => self.cancel(event)?,
            Event::Transfer => {
                let action = self.tx.poll(true);
                let Some(TxAction::Transfer { op, op_off, len, target, inline }) = action else {
                    return Err(format!("a Transfer was promised, not {action:?}"));
                };
                self.transfer(plan, op, op_off, len, target, inline)?;
            }
            Event::ToReceiver => {
                let msg = self.fwd.pop_front().ok_or("nothing on its way")?;
                self.to_receiver(plan, &msg)?;
            }
            Event::ToSender => {
                let msg = self.back.pop_front().ok_or("nothing on its way")?;
                self.to_sender(&msg)?;
            }
            Event::Local => {
                let (op, len) = self.local.pop_front().ok_or("nothing to complete")?;
                self.local_done(op, len)?;
            }
            Event::IdleSender => {
                self.idles -= 1;
                self.tx.idle_ring_release();
            }
            Event::IdleReceiver => {
                self.idles -= 1;
                self.rx.idle();
            }
        }
        self.drain_tx(plan)?;
        self.drain_rx(plan, None)
    }

    fn cancel(&mut self, event: Event) -> Result<(), Wrong> {
        let found = match event {
            Event::CancelSend(i) => {
                Self::mark_send(&mut self.sends[usize::from(i)]);
                self.tx.cancel(i.into())
            }
            Event::CancelShutdown => {
                Self::mark_send(&mut self.shutdown);
                self.tx.cancel(SHUTDOWN)
            }
            Event::CancelRecv(i) => {
                Self::mark_recv(&mut self.recvs[usize::from(i)]);
                self.rx.cancel(i.into())
            }
            _ => {
                self.recvs.iter_mut().for_each(Self::mark_recv);
                self.cancel_alls -= 1;
                self.rx.cancel_all();
                return Ok(());
            }
        };
        self.cancels -= 1;
        ensure!(found, "{event:?}: the machine does not know a pending operation");
        Ok(())
    }

    fn mark_send(send: &mut SendState) {
        if let SendState::Pending { cancelled, .. } = send {
            *cancelled = true;
        }
    }

    fn mark_recv(recv: &mut RecvState) {
        if let RecvState::Pending { cancelled, .. } = recv {
            *cancelled = true;
        }
    }

    fn transfer(
        &mut self,
        plan: &Plan,
        op: OpId,
        op_off: u64,
        len: u32,
        target: Target,
        inline: bool,
    ) -> Result<(), Wrong> {
        let i = usize::try_from(op).expect("small");
        // Sends go out in order: none after this one has begun, and those before
        // it take no more.
        for (j, send) in self.sends.iter().enumerate() {
            if let SendState::Pending { taken, cancelled, .. } = send {
                let full = *taken == plan.sends[j];
                ensure!(j >= i || full || *cancelled, "send {i} overtakes send {j}");
                ensure!(j <= i || *taken == 0, "send {i} goes on after send {j} has begun");
            }
        }
        let SendState::Pending { taken, busy, cancelled } = &mut self.sends[i] else {
            return Err(format!("chunk of send {i}, which has ended"));
        };
        ensure!(!*cancelled, "chunk of send {i}, which is cancelled");
        ensure!(op_off == u64::from(*taken), "send {i} skips or repeats bytes");
        ensure!(len > 0 && len <= plan.cfg.max_chunk, "chunk of {len} bytes");
        ensure!(*taken + len <= plan.sends[i], "send {i} goes beyond its end");
        *taken += len;
        let (pos, direct) = (self.sent, matches!(target, Target::Direct { .. }));
        self.sent += len;
        if inline {
            ensure!(len <= plan.cfg.inline_max, "{len} inline bytes");
            self.tx.handle_sent(op, len); // copied into the message
        } else {
            *busy += len;
            self.local.push_back((op, len));
            let to = match target {
                Target::Direct { addr, key } => WriteTo::Window { addr, key },
                Target::Ring { offset } => {
                    let key = self.tx.ring().ok_or("a WRITE to a ring without address")?.key;
                    WriteTo::Ring { offset, key }
                }
            };
            self.fwd.push_back(Fwd::Write { to, pos, len });
        }
        self.fwd.push_back(Fwd::Data { direct, inline, pos, len });
        Ok(())
    }

    fn to_receiver(&mut self, plan: &Plan, msg: &Fwd) -> Result<(), Wrong> {
        let err = violated("the sender");
        match *msg {
            Fwd::Write { ref to, pos, len } => {
                self.land(to, pos, len)?;
                if !plan.split_write {
                    let data = self.fwd.pop_front().ok_or("a WRITE without DATA")?;
                    return self.to_receiver(plan, &data);
                }
            }
            Fwd::Data { direct, inline, pos, len } => {
                self.rx.handle_data(Data { direct, inline, len }).map_err(err)?;
                return self.drain_rx(plan, inline.then_some(Inline { pos, len }));
            }
            Fwd::Fin => self.rx.handle_fin().map_err(err)?,
            Fwd::RingReq => self.rx.handle_ring_request().map_err(err)?,
            Fwd::RingRelease => self.rx.handle_ring_release().map_err(err)?,
            Fwd::Withdrawn => self.rx.handle_withdrawn().map_err(err)?,
        }
        Ok(())
    }

    /// What the receiver's RNIC does with a WRITE.
    fn land(&mut self, to: &WriteTo, pos: u32, len: u32) -> Result<(), Wrong> {
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
            ensure!(*place == 0, "byte {} overwrites one that is in use", pos + k);
            *place = value(pos + k);
        }
        Ok(())
    }

    fn to_sender(&mut self, back: &Back) -> Result<(), Wrong> {
        let err = violated("the receiver");
        self.tx.handle_ack(back.freed).map_err(&err)?;
        match back.msg {
            BackMsg::Advert(advert) => self.tx.handle_advert(advert).map_err(err),
            BackMsg::Ack => Ok(()),
            BackMsg::Ring(ring) => self.tx.handle_ring(ring).map_err(err),
            BackMsg::Withdraw => self.tx.handle_withdraw().map_err(err),
        }
    }

    fn local_done(&mut self, op: OpId, len: u32) -> Result<(), Wrong> {
        let i = usize::try_from(op).expect("small");
        let SendState::Pending { busy, .. } = &mut self.sends[i] else {
            return Err(format!("send {i} ended while its memory was in use"));
        };
        *busy -= len;
        self.tx.handle_sent(op, len);
        Ok(())
    }

    /// Does what the sender wants, except Transfers.
    fn drain_tx(&mut self, plan: &Plan) -> Result<(), Wrong> {
        while let Some(action) = self.tx.poll(false) {
            let msg = match action {
                TxAction::Transfer { .. } => return Err("a Transfer nobody asked for".into()),
                TxAction::RequestRing => Fwd::RingReq,
                TxAction::ReleaseRing => Fwd::RingRelease,
                TxAction::Withdrawn => Fwd::Withdrawn,
                TxAction::Fin => Fwd::Fin,
                TxAction::Done { op, bytes, outcome } => {
                    self.send_ended(plan, op, bytes, outcome)?;
                    continue;
                }
            };
            self.fwd.push_back(msg);
        }
        Ok(())
    }

    fn send_ended(&mut self, plan: &Plan, op: OpId, bytes: u64, how: Outcome) -> Result<(), Wrong> {
        let (state, want, before) = if op == SHUTDOWN {
            (&mut self.shutdown, 0, self.sends.as_slice())
        } else {
            let i = usize::try_from(op).expect("small");
            let (before, rest) = self.sends.split_at_mut(i);
            (&mut rest[0], plan.sends[i], &*before)
        };
        let SendState::Pending { taken, busy, cancelled } = *state else {
            return Err(format!("send {op} ends without being pending"));
        };
        let earlier = before.iter().any(|s| matches!(s, SendState::Pending { .. }));
        ensure!(busy == 0, "send {op} ends while its memory is in use");
        ensure!(u64::from(taken) == bytes, "send {op} moved {taken} bytes and says {bytes}");
        match how {
            Outcome::Ok => {
                ensure!(taken == want, "send {op} is Ok with {taken} of {want} bytes");
                ensure!(!earlier, "send {op} ends before an earlier one");
            }
            Outcome::Cancelled => ensure!(cancelled, "send {op} was never cancelled"),
        }
        *state = SendState::Ended;
        Ok(())
    }

    /// Does what the receiver wants.
    fn drain_rx(&mut self, plan: &Plan, inline: Option<Inline>) -> Result<(), Wrong> {
        let mut copied = 0;
        while let Some(action) = self.rx.poll() {
            match action {
                RxAction::Advertise { op, op_off, len, seq, phase, waitall } => {
                    let (addr, key) = self.open(op, op_off, len)?;
                    let advert = Advert { seq, phase, addr, key, len, waitall };
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
