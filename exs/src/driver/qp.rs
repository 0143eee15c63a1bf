//! Queue pairs, and the work posted to them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use super::Driver;
use super::link::{Conn, Link, LinkSetup};
use super::memory::MemoryWindow;
use super::turns::Source;
use crate::iwarp::{Inline, MAX_INLINE, RxBuf, TxWr};
use crate::mem::{Access, Key, MAX_SGE, Sgl};
use crate::rnic::{
    Qp, QpAttr, QpState, RecvWr, RnicError, SendOp, SendWr, Sge, Wc, WcOp, WcStatus, check_atomic,
};

/// A queue pair.
pub struct QueuePair<L: Link> {
    pub(crate) attr: QpAttr,
    pub(crate) conn: Conn,
    /// Receives that no link holds; empty if the queue pair has an SRQ.
    pub(crate) recvs: VecDeque<RxBuf>,
    pub(super) windows: Vec<MemoryWindow>,
    /// Our address and the peer's; None until it is connected.
    pub(crate) addrs: Option<(SocketAddr, SocketAddr)>,
    /// Limit of the connection attempt.
    pub(crate) timeout: Duration,
    /// The transport's own part.
    pub(crate) own: L::OfQp,
}

impl<L: LinkSetup> Driver<L> {
    pub(super) fn add_qp(&mut self, attr: &QpAttr) -> Result<Qp, RnicError> {
        self.objects.check_qp(attr)?;
        let qp = self.qps.insert(QueuePair {
            attr: *attr,
            conn: Conn::None,
            recvs: VecDeque::new(),
            windows: Vec::new(),
            addrs: None,
            timeout: Duration::ZERO,
            own: L::OfQp::default(),
        })?;
        self.objects.join(qp, attr)?;
        Ok(Qp(qp))
    }

    pub(super) fn drop_qp(&mut self, id: Qp) -> Result<(), RnicError> {
        self.qps.get(id.0)?;
        self.drop_windows(id.0, |_| true);
        let qp = self.qps.remove(id.0)?;
        match qp.conn {
            Conn::Opening(opening) => L::drop_opening(self, opening),
            Conn::Link(link) => self.cut_link(link),
            Conn::None | Conn::Dead => {}
        }
        L::drop_qp(&mut self.parts, qp.own);
        self.objects.leave(id.0, &qp.attr)?;
        if let Some(srq) = qp.attr.srq {
            // A link may have been woken for a receive that this queue pair leaves.
            self.wake_srq(srq.0);
        }
        Ok(())
    }
}

impl<L: Link> Driver<L> {
    pub(crate) fn state_of(&self, id: Qp) -> Result<QpState, RnicError> {
        let qp = self.qps.get(id.0)?;
        Ok(match qp.conn {
            Conn::None => QpState::Init,
            Conn::Opening(_) => QpState::Connecting,
            Conn::Dead => QpState::Error,
            Conn::Link(link) => self.links.get(link)?.state(&qp.own),
        })
    }

    #[cold]
    pub(crate) fn wrong_state(&self, qp: Qp, need: &'static str) -> RnicError {
        let state = self.state_of(qp).unwrap_or(QpState::Error);
        RnicError::State { qp: qp.0, state, need }
    }

    /// The queue pair, if its connection has not ended and is not closing.
    pub(super) fn live_qp(&self, id: Qp, need: &'static str) -> Result<&QueuePair<L>, RnicError> {
        let qp = self.qps.get(id.0)?;
        match self.state_of(id)? {
            QpState::Error | QpState::Closing => Err(self.wrong_state(id, need)),
            _ => Ok(qp),
        }
    }

    /// Checks that a queue pair is in `Init`.
    pub(super) fn check_init(&self, qp: Qp) -> Result<(), RnicError> {
        match self.state_of(qp)? {
            QpState::Init => Ok(()),
            _ => Err(self.wrong_state(qp, "Init")),
        }
    }

    /// Puts a queue pair's link on the ready list.
    pub(crate) fn touch(&mut self, qp: u32) {
        if let Ok(QueuePair { conn: Conn::Link(link), .. }) = self.qps.get(qp) {
            self.enqueue(Source::Link(*link));
        }
    }

    /// Checks the segments of a WR and collects them. `sink_of`: the queue pair for whose READ they
    /// are open to its peer.
    #[inline(always)]
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
        let keys = &self.memory.keys;
        let (mut sgl, mut lkeys) = (Sgl::new(), [0; MAX_SGE]);
        // Empty segments name no memory: there is nothing to check, and a list drops them.
        for (key, sge) in lkeys.iter_mut().zip(sges.iter().filter(|s| s.len > 0)) {
            let segment = match sink_of {
                // It may be a window of this QP, which no other peer can reach.
                Some(qp) => {
                    keys.check_remote(pd, qp, sge.lkey, sge.addr, sge.len, need)?.to_segment()
                }
                None => keys.check_local(pd, sge.lkey, sge.addr, sge.len, need)?,
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

    /// True if the peer must be able to write the memory that a READ fills, as on iWARP: its READ
    /// RESPONSE is a tagged message to that memory (RFC 5040 section 5.3).
    fn sink_is_remote(&self, op: SendOp) -> bool {
        matches!(op, SendOp::Read { .. }) && self.caps.read_sink_remote_write
    }

    /// Checks that this RNIC has the operation of a WR. Returns the rights that it needs of its
    /// memory.
    fn check_op(&self, wr: &SendWr<'_>) -> Result<Access, RnicError> {
        let need = match wr.op {
            SendOp::Read { .. } => {
                if !wr.head.is_empty() || wr.inline || wr.file.is_some() {
                    return Err(RnicError::Unsupported("READ with inline data or a file"));
                }
                if !self.caps.read_sink_remote_write {
                    return Ok(Access::LOCAL);
                }
                if wr.sges.len() > 1 {
                    let (asked, limit) = (wr.sges.len() as u64, 1);
                    return Err(RnicError::Limit { what: "segments per READ", asked, limit });
                }
                Access::REMOTE_WRITE
            }
            SendOp::Atomic { raddr, .. } => {
                check_atomic(&self.caps, raddr, wr)?;
                return Ok(Access::LOCAL);
            }
            SendOp::WriteImm { .. } if !self.caps.write_imm => {
                return Err(RnicError::Unsupported("WRITE WITH IMMEDIATE"));
            }
            _ => Access::LOCAL_READ,
        };
        match (wr.op, &wr.file) {
            (_, None) => Ok(need),
            (SendOp::Write { .. }, Some(_)) if self.caps.file_source => Ok(need),
            (SendOp::Write { .. }, _) => Err(RnicError::Unsupported("WRITE from a file")),
            _ => Err(RnicError::Unsupported("SEND from a file")),
        }
    }

    #[inline(always)]
    fn resolve_send(&self, pd: u32, qp: u32, wr: &SendWr<'_>) -> Result<TxWr, RnicError> {
        let need = self.check_op(wr)?;
        let sink_of = self.sink_is_remote(wr.op).then_some(qp);
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

    pub(super) fn add_send(&mut self, id: Qp, wr: &SendWr<'_>) -> Result<(), RnicError> {
        let qp = self.qps.get(id.0)?;
        let Conn::Link(link) = qp.conn else {
            return Err(self.wrong_state(id, "Rts"));
        };
        if !self.links.get(link)?.check_post(qp)? {
            return Err(self.wrong_state(id, "Rts"));
        }
        let tx = self.resolve_send(qp.attr.pd.0, id.0, wr)?;
        self.objects.cqs.get(qp.attr.send_cq.0)?.check_room()?;
        if !self.sink_is_remote(wr.op) {
            // Such a sink belongs to a window, or to an MR that is open to all peers.
            self.memory.users.note(id.0, &tx.lkeys);
        }
        L::post(self, id.0, link, tx)
    }

    #[cfg(any(test, feature = "internals"))]
    pub(super) fn add_recv(&mut self, id: Qp, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        let qp = self.live_qp(id, "Init, Connecting or Rts")?;
        if qp.attr.srq.is_some() {
            return Err(RnicError::Unsupported("receive queue of its own on a QP with an SRQ"));
        }
        let buf = self.resolve_recv(qp.attr.pd.0, wr)?;
        self.objects.cqs.get(qp.attr.recv_cq.0)?.check_room()?;
        let conn = qp.conn;
        self.memory.users.note(id.0, &buf.lkeys);
        let kept = match conn {
            Conn::Link(link) => self.links.get_mut(link)?.take_recv(buf)?,
            _ => Some(buf),
        };
        let Some(buf) = kept else { return Ok(()) };
        let qp = self.qps.get_mut(id.0)?;
        if qp.recvs.len() >= qp.attr.max_recv_wr {
            return Err(RnicError::QueueFull { what: "receive queue", depth: qp.attr.max_recv_wr });
        }
        qp.recvs.push_back(buf);
        if let Conn::Link(link) = conn
            && self.links.get(link).is_ok_and(|l| l.base().stalled)
        {
            self.enqueue(Source::Link(link));
        }
        Ok(())
    }

    /// Marks a queue pair as dead, and flushes the receives that no link holds.
    pub(crate) fn kill_qp(&mut self, id: u32) {
        let Ok(qp) = self.qps.get_mut(id) else { return };
        qp.conn = Conn::Dead;
        L::end_qp(&mut qp.own);
        for buf in std::mem::take(&mut qp.recvs) {
            self.complete(flushed(id, buf.wr_id, WcOp::Recv));
        }
    }
}

/// The completion of a flushed WR.
pub(crate) fn flushed(qp: u32, wr_id: u64, op: WcOp) -> Wc {
    let status = WcStatus::Flushed;
    let (byte_len, imm, invalidated, solicited) = (0, None, None, false);
    Wc { wr_id, qp: Qp(qp), status, op, byte_len, imm, invalidated, solicited }
}
