//! Queue pairs, and the work posted to them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use super::SoftRnic;
use super::files::FileQueue;
use super::memory::SoftWindow;
use super::timers::SoftSource;
use crate::iwarp::{Inline, MAX_INLINE, RxBuf, TxWr};
use crate::mem::{Access, Key, MAX_SGE, Sgl};
use crate::rnic::{
    Qp, QpAttr, QpState, RecvWr, RnicError, SendOp, SendWr, Sge, Wc, WcOp, WcStatus,
};

/// What a queue pair is connected by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SoftConn {
    /// Nothing yet.
    None,
    /// A TCP connect under way.
    Dial(u32),
    /// A TCP connection with an engine.
    Link(u32),
    /// Nothing any more: the connection has ended.
    Dead,
}

/// A queue pair.
pub(super) struct SoftQp {
    pub(super) attr: QpAttr,
    pub(super) conn: SoftConn,
    /// Receives posted before there was an engine to hold them.
    pub(super) early_recvs: VecDeque<RxBuf>,
    pub(super) windows: Vec<SoftWindow>,
    /// Our address and the peer's; None until it is connected.
    pub(super) addrs: Option<(SocketAddr, SocketAddr)>,
    /// WRs with a file as their source that the engine cannot take, and those behind them. Boxed, as
    /// most queue pairs never have one.
    pub(super) files: Option<Box<FileQueue>>,
    /// An orderly disconnect was asked for, and waits until `files` is empty.
    pub(super) closing: bool,
    /// Limit of the connection attempt.
    pub(super) timeout: Duration,
}

impl SoftRnic {
    pub(super) fn create_qp(&mut self, attr: &QpAttr) -> Result<Qp, RnicError> {
        self.objects.check_qp(attr)?;
        let qp = self.qps.insert(SoftQp {
            attr: *attr,
            conn: SoftConn::None,
            early_recvs: VecDeque::new(),
            windows: Vec::new(),
            addrs: None,
            files: None,
            closing: false,
            timeout: Duration::ZERO,
        })?;
        self.objects.join(qp, attr)?;
        Ok(Qp(qp))
    }

    pub(super) fn destroy_qp(&mut self, id: Qp) -> Result<(), RnicError> {
        self.qps.get(id.0)?;
        self.drop_windows(id.0, |_| true);
        let qp = self.qps.remove(id.0)?;
        match qp.conn {
            SoftConn::Dial(dial) => self.drop_dial(dial),
            SoftConn::Link(link) => self.drop_link(link, true),
            SoftConn::None | SoftConn::Dead => {}
        }
        if let Some(files) = qp.files {
            self.file_pool.take_back(*files);
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
            SoftConn::None => QpState::Init,
            SoftConn::Dial(_) => QpState::Connecting,
            SoftConn::Dead => QpState::Error,
            SoftConn::Link(link) => match self.links.get(link)?.engine.state() {
                QpState::Rts if qp.closing => QpState::Closing,
                state => state,
            },
        })
    }

    #[cold]
    pub(super) fn wrong_state(&self, qp: Qp, need: &'static str) -> RnicError {
        let state = self.qp_state(qp).unwrap_or(QpState::Error);
        RnicError::State { qp: qp.0, state, need }
    }

    /// The queue pair, if its connection has not ended and is not closing.
    pub(super) fn live_qp(&self, id: Qp, need: &'static str) -> Result<&SoftQp, RnicError> {
        let qp = self.qps.get(id.0)?;
        match self.qp_state(id)? {
            QpState::Error | QpState::Closing => Err(self.wrong_state(id, need)),
            _ => Ok(qp),
        }
    }

    /// Puts a queue pair's link on the ready list.
    pub(super) fn touch(&mut self, qp: u32) {
        if let Ok(SoftQp { conn: SoftConn::Link(link), .. }) = self.qps.get(qp) {
            self.enqueue(SoftSource::Link(*link));
        }
    }

    /// Checks the segments of a WR and collects them.
    fn resolve(
        &self,
        pd: u32,
        sink_of: Option<u32>,
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
            let segment = match sink_of {
                // The sink of a READ is open to the peer. So it may be a window of this QP, which no
                // other peer can reach.
                Some(qp) => {
                    self.keys.check_remote(pd, qp, sge.lkey, sge.addr, sge.len, need)?.to_segment()
                }
                None => self.keys.check_local(pd, sge.lkey, sge.addr, sge.len, need)?,
            };
            *key = sge.lkey;
            let pushed = sgl.push(segment);
            debug_assert!(pushed.is_ok(), "the list has MAX_SGE places");
        }
        Ok((sgl, lkeys))
    }

    pub(super) fn resolve_recv(&self, pd: u32, wr: &RecvWr<'_>) -> Result<RxBuf, RnicError> {
        let (sgl, lkeys) = self.resolve(pd, None, wr.sges, Access::LOCAL)?;
        self.check_size(sgl.len() as u64)?;
        Ok(RxBuf { wr_id: wr.wr_id, sgl, lkeys })
    }

    fn check_size(&self, asked: u64) -> Result<(), RnicError> {
        let limit = self.caps.max_msg;
        if asked <= limit {
            return Ok(());
        }
        Err(RnicError::Limit { what: "bytes per work request", asked, limit })
    }

    fn resolve_send(&self, pd: u32, qp: u32, wr: &SendWr<'_>) -> Result<TxWr, RnicError> {
        let mut need = Access::LOCAL_READ;
        match wr.op {
            SendOp::Read { .. } => {
                // The peer's READ RESPONSE is a tagged message to the sink: hence the remote right
                // (RFC 5040 section 5.3), and a single segment.
                need = Access { local_write: true, remote_write: true, remote_read: false };
                if wr.sges.len() > 1 {
                    let (asked, limit) = (wr.sges.len() as u64, 1);
                    return Err(RnicError::Limit { what: "segments per READ", asked, limit });
                }
                if !wr.head.is_empty() || wr.inline || wr.file.is_some() {
                    return Err(RnicError::Unsupported("READ with inline data or a file"));
                }
            }
            SendOp::WriteImm { .. } => {
                return Err(RnicError::Unsupported("WRITE WITH IMMEDIATE"));
            }
            SendOp::Send { .. } if wr.file.is_some() => {
                return Err(RnicError::Unsupported("SEND from a file"));
            }
            SendOp::Send { .. } | SendOp::Write { .. } => {}
        }
        let sink_of = matches!(wr.op, SendOp::Read { .. }).then_some(qp);
        let (mut sgl, mut lkeys) = self.resolve(pd, sink_of, wr.sges, need)?;
        let by_value = wr.head.len() + if wr.inline { sgl.len() } else { 0 };
        let mut head = Inline::EMPTY;
        if !head.push(wr.head) || (wr.inline && !head.push_sgl(&sgl)) {
            let (asked, limit) = (by_value as u64, MAX_INLINE as u64);
            return Err(RnicError::Limit { what: "bytes of inline data", asked, limit });
        }
        if wr.inline {
            (sgl, lkeys) = (Sgl::new(), [0; MAX_SGE]);
        }
        let file_len = wr.file.as_ref().map_or(0, |f| f.len);
        self.check_size((head.len() as u64 + sgl.len() as u64).saturating_add(file_len))?;
        let file = wr.file.clone();
        Ok(TxWr { wr_id: wr.wr_id, op: wr.op, head, sgl, lkeys, file, signaled: wr.signaled })
    }

    pub(super) fn post_send(&mut self, id: Qp, wr: &SendWr<'_>) -> Result<(), RnicError> {
        let qp = self.qps.get(id.0)?;
        let SoftConn::Link(link) = qp.conn else {
            return Err(self.wrong_state(id, "Rts"));
        };
        if qp.closing {
            return Err(self.wrong_state(id, "Rts"));
        }
        let tx = self.resolve_send(qp.attr.pd.0, id.0, wr)?;
        self.objects.cqs.get(qp.attr.send_cq.0)?.check_room()?;
        if !matches!(tx.op, SendOp::Read { .. }) {
            // The sink of a READ belongs to a window, or to an MR that is open to all peers.
            self.users.note(id.0, &tx.lkeys);
        }
        let qp = self.qps.get(id.0)?;
        let engine = &mut self.links.get_mut(link)?.engine;
        // In order: behind a WR that waits in `files`, all others wait too.
        if (tx.file.is_some() && engine.crc()) || qp.files.is_some() {
            if engine.state() != QpState::Rts {
                return Err(self.wrong_state(id, "Rts"));
            }
            self.queue_behind_file(id.0, tx)?;
        } else {
            engine.post_send(tx)?;
        }
        // Nothing leaves before the doorbell, or before other work of this connection takes it along.
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
        let conn = qp.conn;
        self.users.note(id.0, &buf.lkeys);
        if let SoftConn::Link(link) = conn {
            return self.links.get_mut(link)?.engine.post_recv(buf);
        }
        let qp = self.qps.get_mut(id.0)?;
        if qp.early_recvs.len() >= qp.attr.max_recv_wr {
            return Err(RnicError::QueueFull { what: "receive queue", depth: qp.attr.max_recv_wr });
        }
        qp.early_recvs.push_back(buf);
        Ok(())
    }

    /// Marks a queue pair that has no engine as dead, and flushes its receives.
    pub(super) fn kill_qp(&mut self, id: u32) {
        let Ok(qp) = self.qps.get_mut(id) else { return };
        qp.conn = SoftConn::Dead;
        for buf in std::mem::take(&mut qp.early_recvs) {
            self.complete(flushed(id, buf.wr_id, WcOp::Recv));
        }
    }
}

/// The completion of a flushed WR.
pub(super) fn flushed(qp: u32, wr_id: u64, op: WcOp) -> Wc {
    Wc {
        wr_id,
        qp: Qp(qp),
        status: WcStatus::Flushed,
        op,
        byte_len: 0,
        imm: None,
        invalidated: None,
        solicited: false,
    }
}
