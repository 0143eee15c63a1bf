//! What each event does, and what must hold of sends and messages meanwhile.

use crate::ids::{OpId, Outcome};
use crate::stream::{ChunkTarget, Data, StreamViolation, TxAction};

use super::receiver::Inline;
use super::{Back, BackMsg, Event, Fwd, Plan, RecvState, SHUTDOWN, SendState, World, WriteTo};

/// Why a world is wrong.
pub(super) type Wrong = String;

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
                self.deliver(plan, &msg)?;
            }
            Event::ToSender => {
                let msg = self.back.pop_front().ok_or("nothing on its way")?;
                self.answer_arrives(&msg)?;
            }
            Event::Local => {
                let (op, len) = self.local.pop_front().ok_or("nothing to complete")?;
                self.local_done(op, len)?;
            }
            Event::IdleSender => {
                self.idles -= 1;
                self.tx.idle_ring_release();
            }
            Event::GiveUp => self.tx.give_up(),
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
        target: ChunkTarget,
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
        let (pos, direct) = (self.sent, matches!(target, ChunkTarget::Direct { .. }));
        self.sent += len;
        if inline {
            ensure!(len <= plan.cfg.inline_max, "{len} inline bytes");
            self.tx.handle_sent(op, len); // copied into the message
        } else {
            *busy += len;
            self.local.push_back((op, len));
            let to = match target {
                ChunkTarget::Direct { addr, key, .. } => WriteTo::Window { addr, key },
                ChunkTarget::Ring { offset } => {
                    let key = self.tx.ring().ok_or("a WRITE to a ring without address")?.key;
                    WriteTo::Ring { offset, key }
                }
            };
            self.fwd.push_back(Fwd::Write { to, pos, len });
        }
        self.fwd.push_back(Fwd::Data { direct, inline, pos, len });
        Ok(())
    }

    fn deliver(&mut self, plan: &Plan, msg: &Fwd) -> Result<(), Wrong> {
        let err = violated("the sender");
        match *msg {
            Fwd::Write { ref to, pos, len } => {
                self.land(to, pos, len)?;
                if !plan.split_write {
                    let data = self.fwd.pop_front().ok_or("a WRITE without DATA")?;
                    return self.deliver(plan, &data);
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

    fn answer_arrives(&mut self, back: &Back) -> Result<(), Wrong> {
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
                TxAction::Transfer { .. } => return Err("a Transfer without can_transfer".into()),
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
}
