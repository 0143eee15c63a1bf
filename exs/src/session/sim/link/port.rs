//! The port of one end: what a session may ask of its queue pair, checked.

use std::sync::Arc;

use crate::mem::{Access, Key, Region, Segment};
use crate::rnic::{
    Caps, Disconnect, DisconnectCause, EagerSend, ExtraReceives, HEAD, Mr, QpState, RnicError,
    SendOp, SendWr, Sge, WcOp, WcStatus, check_atomic,
};
use crate::session::{Buf, Port};
use crate::sys::IoVec;

use super::{Frame, NO_WR, Net, Posted, Side, Track, Window};

/// One end as its session sees it.
pub(in crate::session::sim) struct LinkEnd<'a> {
    pub(in crate::session::sim) net: &'a mut Net,
    pub(in crate::session::sim) side: usize,
}

impl LinkEnd<'_> {
    fn me(&mut self) -> &mut Side {
        &mut self.net.sides[self.side]
    }

    fn local(&mut self, sge: &Sge) -> Segment {
        let mr = self.me().mrs.get(&sge.lkey).expect("an lkey that is no registration").clone();
        let offset = usize::try_from(sge.addr - mr.addr()).unwrap();
        mr.slice(offset, usize::try_from(sge.len).unwrap()).expect("outside of its registration")
    }
}

impl Port for LinkEnd<'_> {
    fn caps(&self) -> &Caps {
        &self.net.sides[self.side].caps
    }

    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), RnicError> {
        let state = self.me().state;
        if state != QpState::Rts {
            return Err(RnicError::State { qp: 0, state, need: "Rts" });
        }
        let parts: Vec<Segment> = wr.sges.iter().map(|sge| self.local(sge)).collect();
        let bytes = parts.iter().map(Segment::len).sum::<usize>();
        let s = self.me();
        assert!(s.tracks.len() < s.max_send_wr, "the send queue overflows");
        assert!(wr.sges.len() <= s.caps.max_sge, "{} segments", wr.sges.len());
        // Real RNICs have no limit below the size of a slot; here it is tiny.
        let send = matches!(wr.op, SendOp::Send { .. });
        assert!(send || bytes as u64 <= s.caps.max_msg);
        let copied = wr.head.len() + if wr.inline { bytes } else { 0 };
        assert!(copied <= s.caps.max_inline, "{copied} bytes inline");
        assert!(wr.file.as_ref().is_none_or(|f| f.len <= s.caps.max_msg));
        let (op, sink) = match wr.op {
            SendOp::Send { .. } => (WcOp::Send, None),
            SendOp::Write { .. } | SendOp::WriteImm { .. } => (WcOp::Write, None),
            SendOp::Read { .. } => {
                assert!(parts.len() <= 1 && wr.head.is_empty());
                s.reads += 1;
                assert!(s.reads <= s.ord, "more READs than agreed");
                (WcOp::Read, parts.first().cloned())
            }
            SendOp::Atomic { raddr, .. } => {
                check_atomic(&s.caps, raddr, wr)?;
                s.reads += 1;
                assert!(s.reads <= s.ord, "more READs and atomic operations than agreed");
                (WcOp::Atomic, parts.first().cloned())
            }
        };
        if matches!(wr.op, SendOp::WriteImm { .. }) {
            assert!(s.caps.write_imm);
        }
        s.tracks.push_back(Track {
            wr: wr.wr_id,
            op,
            signaled: wr.signaled,
            status: None,
            bytes: 0,
            sink,
        });
        let (mut copied, mut later) = (wr.head.to_vec(), parts);
        if wr.inline {
            for part in later.drain(..) {
                let mut bytes = vec![0; part.len()];
                part.read_at(0, &mut bytes);
                copied.extend(bytes);
            }
        }
        if matches!(op, WcOp::Read | WcOp::Atomic) {
            later.clear();
        }
        let posted =
            Posted { wr: wr.wr_id, op: wr.op, copied, parts: later, file: wr.file.clone() };
        s.posted.push_back(posted);
        Ok(())
    }

    fn try_send_eager(
        &mut self,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        // Nothing overtakes what was posted, and an RNIC may refuse for reasons of its own.
        let s = self.me();
        let clear = s.state == QpState::Rts && s.posted.iter().all(|p| p.wr == NO_WR);
        let passes = self.net.passes;
        if !clear || passes == 0 {
            return EagerSend::Declined;
        }
        if !self.net.rng.one_in(passes) {
            return if self.net.rng.one_in(2) { EagerSend::NoRoom } else { EagerSend::Declined };
        }
        let mut bytes = [0; HEAD];
        let len = head(&mut bytes);
        if len == 0 {
            return EagerSend::Declined;
        }
        let mut data = bytes[..len].to_vec();
        payload.append_to(&mut data);
        self.net.pass(self.side, data)
    }

    fn add_receives(&mut self, count: u16) -> u16 {
        let most = usize::from(count).min(self.me().slots.most - self.me().slots.len());
        let count = if self.me().slots.scarce && self.net.rng.one_in(4) {
            self.net.rng.size(0, most)
        } else {
            most
        };
        u16::try_from(self.me().slots.add(count)).unwrap()
    }

    fn drop_receives(&mut self) -> ExtraReceives {
        self.me().slots.drop_extra()
    }

    fn bind(&mut self, mr: Mr, addr: u64, len: u64, access: Access) -> Result<Key, RnicError> {
        let segment = self.local(&Sge { addr, len, lkey: mr.key });
        let key = self.net.key();
        let s = self.me();
        if s.binding_export {
            s.exports.push(key);
        }
        s.windows.insert(key, Window { segment, access });
        Ok(key)
    }

    fn invalidate_is_costly(&self, _key: Key) -> bool {
        self.net.closes
    }

    fn invalidate(&mut self, key: Key) {
        let s = self.me();
        let open = s.windows.remove(&key).is_some();
        assert!(open || s.closed.contains(&key), "key {key} is not open");
    }

    fn alloc(&mut self, len: usize) -> Result<Buf, RnicError> {
        self.me().allocs += 1;
        let seg = Region::from_vec(vec![0xA5; len]).segment(0, len).unwrap();
        let side = self.side;
        Ok(self.net.register(side, seg))
    }

    fn free(&mut self, buf: Buf) {
        self.me().allocs -= 1;
        let side = self.side;
        self.net.deregister(side, &buf);
        // A late reader gets rubbish.
        buf.seg.write_at(0, &vec![0x5A; buf.seg.len()]);
        assert!(Arc::strong_count(buf.seg.region()) == 1, "memory of the port's is still held");
    }

    fn disconnect(&mut self, how: Disconnect) {
        let side = self.side;
        match how {
            Disconnect::Orderly | Disconnect::Answered => {
                if self.me().state == QpState::Rts {
                    self.me().state = QpState::Closing;
                    self.me().answered = how == Disconnect::Answered;
                    self.net.flush(side, true);
                }
            }
            Disconnect::Abort => {
                if self.me().state == QpState::Error {
                    return;
                }
                // A reset overtakes, or does not.
                if self.net.rng.one_in(2) {
                    self.net.sides[1 - side].inbound.clear();
                }
                self.net.send(side, Frame::Reset(WcStatus::Flushed));
                self.net.break_qp(side, WcStatus::Flushed, DisconnectCause::Aborted);
            }
        }
    }
}
