//! Two kinds of RNICs in one world.

use std::net::SocketAddr;

use exs::mem::{Access, Key, Segment};
use exs::rnic::{
    Caps, ConnParam, ConnReq, Cq, Disconnect, EagerRecv, ListenOpts, Listener, Mr, Pd, Qp, QpAttr,
    QpState, Ready, RecvWr, Rnic, RnicError, RnicEvent, SendWr, Srq, Wc,
};
use exs::time::Time;

/// One of two RNICs, which passes every call on to it.
#[derive(Debug)]
pub enum EitherRnic<A, B> {
    /// One.
    A(A),
    /// The other.
    B(B),
}

/// The same call of whichever it is.
macro_rules! each {
    ($either:expr, $rnic:ident => $call:expr) => {
        match $either {
            EitherRnic::A($rnic) => $call,
            EitherRnic::B($rnic) => $call,
        }
    };
}

impl<A: Rnic, B: Rnic> Rnic for EitherRnic<A, B> {
    fn caps(&self) -> &Caps {
        each!(self, r => r.caps())
    }
    fn alloc_pd(&mut self) -> Result<Pd, RnicError> {
        each!(self, r => r.alloc_pd())
    }
    fn dealloc_pd(&mut self, pd: Pd) -> Result<(), RnicError> {
        each!(self, r => r.dealloc_pd(pd))
    }
    fn reg_mr(&mut self, pd: Pd, memory: &Segment, access: Access) -> Result<Mr, RnicError> {
        each!(self, r => r.reg_mr(pd, memory, access))
    }
    fn dereg_mr(&mut self, mr: Mr) -> Result<(), RnicError> {
        each!(self, r => r.dereg_mr(mr))
    }
    fn create_cq(&mut self, depth: usize) -> Result<Cq, RnicError> {
        each!(self, r => r.create_cq(depth))
    }
    fn destroy_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        each!(self, r => r.destroy_cq(cq))
    }
    fn poll_cq(&mut self, cq: Cq, max: usize, out: &mut Vec<Wc>) -> Result<usize, RnicError> {
        each!(self, r => r.poll_cq(cq, max, out))
    }
    fn arm_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        each!(self, r => r.arm_cq(cq))
    }
    fn create_srq(&mut self, pd: Pd, max_wr: usize) -> Result<Srq, RnicError> {
        each!(self, r => r.create_srq(pd, max_wr))
    }
    fn destroy_srq(&mut self, srq: Srq) -> Result<(), RnicError> {
        each!(self, r => r.destroy_srq(srq))
    }
    fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        each!(self, r => r.post_srq_recv(srq, wr))
    }
    fn lost_receives(&self, srq: Srq) -> usize {
        each!(self, r => r.lost_receives(srq))
    }
    fn create_qp(&mut self, attr: &QpAttr) -> Result<Qp, RnicError> {
        each!(self, r => r.create_qp(attr))
    }
    fn destroy_qp(&mut self, qp: Qp) -> Result<(), RnicError> {
        each!(self, r => r.destroy_qp(qp))
    }
    fn qp_state(&self, qp: Qp) -> Result<QpState, RnicError> {
        each!(self, r => r.qp_state(qp))
    }
    fn post_send(&mut self, qp: Qp, wr: &SendWr<'_>) -> Result<(), RnicError> {
        each!(self, r => r.post_send(qp, wr))
    }
    fn post_recv(&mut self, qp: Qp, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        each!(self, r => r.post_recv(qp, wr))
    }
    fn bind_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Key, RnicError> {
        each!(self, r => r.bind_mw(qp, mr, addr, len, access))
    }
    fn lend_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Key, RnicError> {
        each!(self, r => r.lend_mw(qp, mr, addr, len, access))
    }
    fn invalidate_mw(&mut self, qp: Qp, key: Key) -> Result<(), RnicError> {
        each!(self, r => r.invalidate_mw(qp, key))
    }
    fn flush(&mut self, qp: Qp, now: Time) {
        each!(self, r => r.flush(qp, now))
    }
    // No eager sends: their tests have two ends that send alike.
    fn next_eager(&mut self, out: &mut [u8]) -> Option<EagerRecv> {
        each!(self, r => r.next_eager(out))
    }
    fn release_eager(&mut self, qp: Qp) {
        each!(self, r => r.release_eager(qp))
    }
    fn pause_eager(&mut self, qp: Qp) -> bool {
        each!(self, r => r.pause_eager(qp))
    }
    fn resume_eager(&mut self) {
        each!(self, r => r.resume_eager())
    }
    fn is_quiet(&self) -> bool {
        each!(self, r => r.is_quiet())
    }
    fn invalidate_is_costly(&self, key: Key) -> bool {
        each!(self, r => r.invalidate_is_costly(key))
    }
    fn poll_syscall(&mut self) -> Option<bool> {
        each!(self, r => r.poll_syscall())
    }
    fn listen(&mut self, addr: SocketAddr, opts: &ListenOpts) -> Result<Listener, RnicError> {
        each!(self, r => r.listen(addr, opts))
    }
    fn listener_addr(&self, listener: Listener) -> Result<SocketAddr, RnicError> {
        each!(self, r => r.listener_addr(listener))
    }
    fn close_listener(&mut self, listener: Listener) -> Result<(), RnicError> {
        each!(self, r => r.close_listener(listener))
    }
    fn connect(
        &mut self,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        each!(self, r => r.connect(qp, addr, param, now))
    }
    fn reaches(&self, addr: SocketAddr, bind: Option<SocketAddr>) -> Result<(), RnicError> {
        each!(self, r => r.reaches(addr, bind))
    }
    fn accept(
        &mut self,
        req: ConnReq,
        qp: Qp,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        each!(self, r => r.accept(req, qp, param, now))
    }
    fn reject(&mut self, req: ConnReq, private_data: &[u8], now: Time) -> Result<(), RnicError> {
        each!(self, r => r.reject(req, private_data, now))
    }
    fn disconnect(&mut self, qp: Qp, how: Disconnect, now: Time) -> Result<(), RnicError> {
        each!(self, r => r.disconnect(qp, how, now))
    }
    fn addrs(&self, qp: Qp) -> Result<(SocketAddr, SocketAddr), RnicError> {
        each!(self, r => r.addrs(qp))
    }
    fn handle_ready(&mut self, token: usize, ready: Ready) {
        each!(self, r => r.handle_ready(token, ready))
    }
    fn progress(&mut self, now: Time) -> bool {
        each!(self, r => r.progress(now))
    }
    fn spin(&mut self, now: Time) -> bool {
        each!(self, r => r.spin(now))
    }
    fn poll_memory(&mut self) -> Option<bool> {
        each!(self, r => r.poll_memory())
    }
    fn prepare_sleep(&mut self) -> bool {
        each!(self, r => r.prepare_sleep())
    }
    fn next_timeout(&self) -> Option<Time> {
        each!(self, r => r.next_timeout())
    }
    fn poll_event(&mut self) -> Option<RnicEvent> {
        each!(self, r => r.poll_event())
    }
}
