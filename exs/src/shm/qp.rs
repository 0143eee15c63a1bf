//! Queue pairs, and the work posted to them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use super::ShmRnic;
use super::link::LinkPhase;
use super::memory::MemoryWindow;
use super::record::MAX_MSG;
use crate::iwarp::{Inline, MAX_INLINE, RxBuf, TxWr};
use crate::mem::{Access, Key, MAX_SGE, Sgl};
use crate::rnic::{
    Qp, QpAttr, QpState, RecvWr, RnicError, SendOp, SendWr, Sge, Wc, WcOp, WcStatus,
};

/// What a queue pair is connected by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShmConn {
    /// Nothing yet.
    None,
    /// A link, which may still be starting up.
    Link(u32),
    /// Nothing any more: the connection has ended.
    Dead,
}

/// A queue pair.
pub(super) struct ShmQp {
    pub(super) attr: QpAttr,
    pub(super) conn: ShmConn,
    /// Receives posted to this queue pair; empty if it has an SRQ.
    pub(super) recvs: VecDeque<RxBuf>,
    pub(super) windows: Vec<MemoryWindow>,
    /// Our address and the peer's; None until it is connected.
    pub(super) addrs: Option<(SocketAddr, SocketAddr)>,
    /// Limit of the connection attempt.
    pub(super) timeout: Duration,
    /// Holds the port that the program bound; None: it bound none.
    pub(super) port: Option<std::os::fd::OwnedFd>,
}

impl ShmRnic {
    pub(super) fn create_qp(&mut self, attr: &QpAttr) -> Result<Qp, RnicError> {
        self.objects.check_qp(attr)?;
        let qp = self.qps.insert(ShmQp {
            attr: *attr,
            conn: ShmConn::None,
            recvs: VecDeque::new(),
            windows: Vec::new(),
            addrs: None,
            timeout: Duration::ZERO,
            port: None,
        })?;
        self.objects.join(qp, attr)?;
        Ok(Qp(qp))
    }

    pub(super) fn destroy_qp(&mut self, id: Qp) -> Result<(), RnicError> {
        self.qps.get(id.0)?;
        self.drop_windows(id.0, |_| true);
        let qp = self.qps.remove(id.0)?;
        if let ShmConn::Link(link) = qp.conn {
            self.abandon_link(link);
        }
        self.objects.leave(id.0, &qp.attr)?;
        if let Some(srq) = qp.attr.srq {
            // A link may have been woken for a receive that this queue pair leaves.
            self.wake_srq(srq.0);
        }
        Ok(())
    }

    pub(super) fn qp_state(&self, id: Qp) -> Result<QpState, RnicError> {
        let qp = self.qps.get(id.0)?;
        Ok(match qp.conn {
            ShmConn::None => QpState::Init,
            ShmConn::Dead => QpState::Error,
            ShmConn::Link(link) => {
                let link = self.links.get(link)?;
                match link.phase {
                    LinkPhase::Closing => QpState::Closing,
                    LinkPhase::Open => QpState::Rts,
                    _ => QpState::Connecting,
                }
            }
        })
    }

    #[cold]
    pub(super) fn wrong_state(&self, qp: Qp, need: &'static str) -> RnicError {
        let state = self.qp_state(qp).unwrap_or(QpState::Error);
        RnicError::State { qp: qp.0, state, need }
    }

    /// The queue pair, if its connection has not ended and is not closing.
    pub(super) fn live_qp(&self, id: Qp, need: &'static str) -> Result<&ShmQp, RnicError> {
        let qp = self.qps.get(id.0)?;
        match self.qp_state(id)? {
            QpState::Error | QpState::Closing => Err(self.wrong_state(id, need)),
            _ => Ok(qp),
        }
    }

    /// Checks the segments of a WR and collects them.
    fn resolve(
        &self,
        pd: u32,
        sges: &[Sge],
        need: Access,
    ) -> Result<(Sgl, [Key; MAX_SGE]), RnicError> {
        if sges.len() > MAX_SGE {
            let (asked, limit) = (sges.len() as u64, MAX_SGE as u64);
            return Err(RnicError::Limit { what: "segments per work request", asked, limit });
        }
        let (mut sgl, mut lkeys) = (Sgl::new(), [0; MAX_SGE]);
        // Empty segments name no memory: there is nothing to check, and a list drops them.
        for (key, sge) in lkeys.iter_mut().zip(sges.iter().filter(|s| s.len > 0)) {
            let segment = self.keys.check_local(pd, sge.lkey, sge.addr, sge.len, need)?;
            *key = sge.lkey;
            let pushed = sgl.push(segment);
            debug_assert!(pushed.is_ok(), "the list has MAX_SGE places");
        }
        Ok((sgl, lkeys))
    }

    pub(super) fn resolve_recv(&self, pd: u32, wr: &RecvWr<'_>) -> Result<RxBuf, RnicError> {
        let (sgl, lkeys) = self.resolve(pd, wr.sges, Access::LOCAL)?;
        check_size(sgl.len() as u64)?;
        Ok(RxBuf { wr_id: wr.wr_id, sgl, lkeys })
    }

    fn resolve_send(&self, pd: u32, wr: &SendWr<'_>) -> Result<TxWr, RnicError> {
        let is_read = matches!(wr.op, SendOp::Read { .. });
        if wr.file.is_some() {
            return Err(RnicError::Unsupported("WRITE from a file"));
        }
        if is_read && (!wr.head.is_empty() || wr.inline) {
            return Err(RnicError::Unsupported("READ with inline data"));
        }
        let need = if is_read { Access::LOCAL } else { Access::LOCAL_READ };
        let (mut sgl, mut lkeys) = self.resolve(pd, wr.sges, need)?;
        let by_value = wr.head.len() + if wr.inline { sgl.len() } else { 0 };
        let mut head = Inline::EMPTY;
        if !head.push(wr.head) || (wr.inline && !head.push_sgl(&sgl)) {
            let (asked, limit) = (by_value as u64, MAX_INLINE as u64);
            return Err(RnicError::Limit { what: "bytes of inline data", asked, limit });
        }
        if wr.inline {
            (sgl, lkeys) = (Sgl::new(), [0; MAX_SGE]);
        }
        check_size(head.len() as u64 + sgl.len() as u64)?;
        let (wr_id, op, signaled) = (wr.wr_id, wr.op, wr.signaled);
        Ok(TxWr { wr_id, op, head, sgl, lkeys, file: None, signaled })
    }

    pub(super) fn post_send(&mut self, id: Qp, wr: &SendWr<'_>) -> Result<(), RnicError> {
        let qp = self.qps.get(id.0)?;
        let ShmConn::Link(link) = qp.conn else {
            return Err(self.wrong_state(id, "Rts"));
        };
        let l = self.links.get(link)?;
        if l.phase != LinkPhase::Open {
            return Err(self.wrong_state(id, "Rts"));
        }
        let depth = qp.attr.max_send_wr;
        if l.tx.len() >= depth {
            return Err(RnicError::QueueFull { what: "send queue", depth });
        }
        let tx = self.resolve_send(qp.attr.pd.0, wr)?;
        self.objects.cqs.get(qp.attr.send_cq.0)?.check_room()?;
        self.users.note(id.0, &tx.lkeys);
        // Nothing leaves before the doorbell.
        self.links.get_mut(link)?.tx.push(tx);
        Ok(())
    }

    #[cfg(any(test, feature = "internals"))]
    pub(super) fn post_recv(&mut self, id: Qp, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        let qp = self.live_qp(id, "Init, Connecting or Rts")?;
        if qp.attr.srq.is_some() {
            return Err(RnicError::Unsupported("receive queue of its own on a QP with an SRQ"));
        }
        let buf = self.resolve_recv(qp.attr.pd.0, wr)?;
        self.objects.cqs.get(qp.attr.recv_cq.0)?.check_room()?;
        let depth = qp.attr.max_recv_wr;
        if qp.recvs.len() >= depth {
            return Err(RnicError::QueueFull { what: "receive queue", depth });
        }
        self.users.note(id.0, &buf.lkeys);
        let qp = self.qps.get_mut(id.0)?;
        qp.recvs.push_back(buf);
        if let ShmConn::Link(link) = qp.conn
            && self.links.get(link).is_ok_and(|l| l.stalled)
        {
            self.enqueue(super::serve::ShmSource::Link(link));
        }
        Ok(())
    }

    /// Marks a queue pair as dead, and flushes its receives.
    pub(super) fn kill_qp(&mut self, id: u32) {
        let Ok(qp) = self.qps.get_mut(id) else { return };
        (qp.conn, qp.port) = (ShmConn::Dead, None);
        for buf in std::mem::take(&mut qp.recvs) {
            self.complete(flushed(id, buf.wr_id, WcOp::Recv));
        }
    }
}

fn check_size(asked: u64) -> Result<(), RnicError> {
    if asked <= MAX_MSG {
        return Ok(());
    }
    Err(RnicError::Limit { what: "bytes per work request", asked, limit: MAX_MSG })
}

/// The completion of a flushed WR.
pub(super) fn flushed(qp: u32, wr_id: u64, op: WcOp) -> Wc {
    let status = WcStatus::Flushed;
    let (byte_len, imm, invalidated, solicited) = (0, None, None, false);
    Wc { wr_id, qp: Qp(qp), status, op, byte_len, imm, invalidated, solicited }
}
