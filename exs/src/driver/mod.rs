//! F4b: one driver for all RNICs in software.
//!
//! [`Driver`] meets the contract of [`Rnic`] over a [`Link`], the one thing that a transport
//! supplies: `tcp` has links of TCP with an iWARP engine, `shm` has links of shared memory. The
//! driver owns everything around the links: the tables of objects, the keys, the queues, listeners and
//! start-ups, the order in which sources have their turn, and their deadlines.
//!
//! The shape of its data: numbered tables (`table`) of protection domains, CQs, SRQs, queue pairs,
//! listeners and links. A queue pair is joined to a connection that has no link yet, or to a link.
//! A link has an owner ([`LinkOwner`]). Sources that have something to do are on one ready list.
//! Each gets a turn of bounded size, so that none starves another.
//!
//! A transport implements three traits, each a superset of the one before: [`Link`] (a link in the
//! tables), [`LinkSetup`] (how it comes up), [`Traffic`] (how it moves data). Their functions are
//! called by static dispatch: the compiler makes one driver for each transport.
//!
//! What it promises beyond the trait:
//! - Everything that a connecting peer can tie up is limited (`listen`, `startups`).
//! - A request that a listener got can be answered by another instance, and a connection at rest can
//!   move there (`handover`).
//!
//! What it must never know: which transport it serves, EXS, its messages. It reads no clock: time
//! comes in with the calls.

mod attend;
pub(crate) mod deadlines;
mod delivery;
mod handover;
mod link;
mod listen;
mod memory;
mod objects;
mod qp;
mod queues;
mod setups;
mod share;
mod startups;
mod turns;
mod users;

use std::any::Any;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use link::{Acceptor, Conn, Link, LinkBase, LinkOwner, LinkSetup, Traffic};
#[cfg(all(test, not(miri)))]
pub(crate) use listen::STARVED_PAUSE;
pub use qp::QueuePair;
pub(crate) use qp::flushed;
pub(crate) use turns::SOURCES_PER_TURN;
pub use turns::{ReactorShare, Source};

use crate::iwarp::RxBuf;
use crate::mem::{Access, Key, Segment};
use crate::rnic::table::IdTable;
use crate::rnic::{
    Attended, AttendedBlock, AttendedEnd, AttendedWait, Caps, ConnParam, ConnReq, Cq, DeferredEnd,
    DeferredWrite, DetachedConnection, DetachedRequest, Disconnect, EagerRecv, EagerSend, HEAD,
    LentConnection, ListenOpts, Listener, Mr, Pd, PolledSleep, Qp, QpAttr, Ready, RecvWr, Rnic,
    RnicError, RnicEvent, SendWr, SharedPort, Srq, StarvedListener, TakesGroups, Wc,
};
use crate::sys::{IoVec, RandomSource, SharedStream};
use crate::time::Time;

/// Events and completions that the driver reports.
#[derive(Default)]
pub(crate) struct Reports {
    pub(crate) events: VecDeque<RnicEvent>,
    /// Completions on their way from a link to their queues.
    pub(crate) wcs: Vec<Wc>,
}

/// An RNIC made of software, over links of one kind: see the module's essay.
pub struct Driver<L: Link> {
    pub(crate) caps: Caps,
    pub(crate) reactor: ReactorShare,
    pub(crate) memory: memory::Memory,
    pub(crate) objects: objects::Objects<RxBuf>,
    pub(crate) qps: IdTable<QueuePair<L>>,
    pub(crate) links: IdTable<L>,
    pub(crate) listening: listen::Listening<L::Acceptor>,
    pub(crate) turns: turns::Turns,
    pub(crate) setups: setups::HotSetups,
    pub(crate) reports: Reports,
    /// The transport's own part.
    pub(crate) parts: L::Parts,
}

impl<L: Link> Driver<L> {
    /// A driver whose descriptors are registered with `registry` under tokens from `token_base` up
    /// to 2^32 further. Keys are drawn from `random`.
    pub(crate) fn with_parts(
        caps: Caps,
        registry: mio::Registry,
        token_base: usize,
        random: RandomSource,
        parts: L::Parts,
    ) -> Driver<L> {
        Driver {
            caps,
            reactor: ReactorShare::new(registry, token_base),
            memory: memory::Memory::new(random),
            objects: objects::Objects::new(),
            qps: IdTable::new("queue pair"),
            links: IdTable::new("connection"),
            listening: listen::Listening::new(),
            turns: turns::Turns::default(),
            setups: setups::HotSetups::default(),
            reports: Reports::default(),
            parts,
        }
    }

    /// The number of the link of a queue pair.
    #[inline]
    pub(crate) fn link_of(&self, qp: Qp) -> Option<u32> {
        match self.qps.get(qp.0) {
            Ok(QueuePair { conn: Conn::Link(id), .. }) => Some(*id),
            _ => None,
        }
    }
}

impl<L: Traffic> Rnic for Driver<L> {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn alloc_pd(&mut self) -> Result<Pd, RnicError> {
        self.objects.alloc_pd()
    }
    fn dealloc_pd(&mut self, pd: Pd) -> Result<(), RnicError> {
        self.objects.dealloc_pd(pd)
    }
    fn reg_mr(&mut self, pd: Pd, memory: &Segment, access: Access) -> Result<Mr, RnicError> {
        self.register(pd, memory, access)
    }
    fn dereg_mr(&mut self, mr: Mr) -> Result<(), RnicError> {
        self.deregister(mr)
    }
    fn create_cq(&mut self, depth: usize) -> Result<Cq, RnicError> {
        self.objects.create_cq(depth)
    }
    #[cfg(any(test, feature = "internals"))]
    fn destroy_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.objects.destroy_cq(cq)
    }
    fn poll_cq(&mut self, cq: Cq, max: usize, out: &mut Vec<Wc>) -> Result<usize, RnicError> {
        self.take_wcs(cq, max, out)
    }
    #[cfg(any(test, feature = "internals"))]
    fn arm_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.objects.arm_cq(cq)
    }
    fn create_srq(&mut self, pd: Pd, max_wr: usize) -> Result<Srq, RnicError> {
        self.objects.create_srq(pd, max_wr)
    }
    fn destroy_srq(&mut self, srq: Srq) -> Result<(), RnicError> {
        self.objects.destroy_srq(srq)
    }
    fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        self.push_srq_recv(srq, wr)
    }
    fn create_qp(&mut self, attr: &QpAttr) -> Result<Qp, RnicError> {
        self.add_qp(attr)
    }
    fn destroy_qp(&mut self, qp: Qp) -> Result<(), RnicError> {
        self.drop_qp(qp)
    }
    #[cfg(any(test, feature = "internals"))]
    fn qp_state(&self, qp: Qp) -> Result<crate::rnic::QpState, RnicError> {
        self.state_of(qp)
    }

    fn post_send(&mut self, qp: Qp, wr: &SendWr<'_>) -> Result<(), RnicError> {
        self.add_send(qp, wr)
    }
    #[cfg(any(test, feature = "internals"))]
    fn post_recv(&mut self, qp: Qp, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        self.add_recv(qp, wr)
    }
    fn bind_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Key, RnicError> {
        self.open_window(qp, mr, addr, len, access)
    }
    fn invalidate_mw(&mut self, qp: Qp, key: Key) -> Result<(), RnicError> {
        self.close_window(qp, key)
    }
    fn flush(&mut self, qp: Qp, now: Time) {
        if let Some(id) = self.link_of(qp) {
            L::flush(self, id, now);
        }
    }
    fn shares_stream(&self, qp: Qp) -> bool {
        self.link_of(qp).is_some_and(|id| L::shares_stream(self, id))
    }
    fn flush_later(&mut self, qp: Qp, now: Time) -> bool {
        self.link_of(qp).is_some_and(|id| L::flush_later(self, id, now))
    }
    fn hold_writes(&mut self) -> bool {
        L::hold_writes(self)
    }
    fn release_writes(&mut self) {
        L::release_writes(self);
    }
    fn try_send_eager(
        &mut self,
        qp: Qp,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        L::try_send_eager(self, qp, payload, head)
    }
    fn next_eager(&mut self, out: &mut [u8]) -> Option<EagerRecv> {
        L::next_eager(self, out)
    }
    fn release_eager(&mut self, qp: Qp) {
        L::release_eager(self, qp);
    }
    fn pause_eager(&mut self, qp: Qp) -> bool {
        L::pause_eager(self, qp)
    }
    fn resume_eager(&mut self) {
        L::resume_eager(self);
    }
    fn is_quiet(&self) -> bool {
        self.reports.events.is_empty() && self.objects.no_wc_waits()
    }

    fn listen(&mut self, addr: SocketAddr, opts: &ListenOpts) -> Result<Listener, RnicError> {
        self.add_listener(addr, opts)
    }
    fn listener_addr(&self, listener: Listener) -> Result<SocketAddr, RnicError> {
        Ok(self.listening.listeners.get(listener.0)?.addr)
    }
    fn close_listener(&mut self, listener: Listener) -> Result<(), RnicError> {
        self.drop_listener(listener)
    }
    fn share_listener(&mut self, listener: Listener) -> Result<SharedPort, RnicError> {
        self.share_port(listener)
    }
    fn join_listener(&mut self, shared: SharedPort) -> Result<Listener, RnicError> {
        self.join_port(shared)
    }
    fn take_groups(&mut self, listener: Listener, takes: TakesGroups) {
        L::take_groups(self, listener.0, takes);
    }
    fn rest_listener(&mut self, listener: Listener, rests: bool) -> Result<(), RnicError> {
        self.rest(listener, rests)
    }
    fn connect(
        &mut self,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        self.dial(qp, addr, param, now)
    }
    fn reaches(&self, addr: SocketAddr, _: Option<SocketAddr>) -> Result<(), RnicError> {
        L::reaches(addr)
    }
    fn accept(
        &mut self,
        req: ConnReq,
        qp: Qp,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        self.accept_request(req, qp, param, now)
    }
    fn reject(&mut self, req: ConnReq, private_data: &[u8], now: Time) -> Result<(), RnicError> {
        self.reject_request(req, private_data, now)
    }
    fn detach_request(&mut self, req: ConnReq) -> Result<DetachedRequest, RnicError> {
        self.give_request(req)
    }
    fn adopt_request(&mut self, request: DetachedRequest) -> Result<ConnReq, RnicError> {
        self.take_request(request)
    }
    fn detach_connection(&mut self, qp: Qp) -> Result<DetachedConnection, RnicError> {
        self.give_connection(qp)
    }
    fn adopt_connection(
        &mut self,
        attr: &QpAttr,
        connection: DetachedConnection,
        region: Option<Mr>,
    ) -> Result<Qp, RnicError> {
        self.take_connection(attr, connection, region)
    }
    fn is_key_free(&self, key: Key) -> bool {
        self.memory.keys.is_free(key)
    }
    fn fail_attempts(&mut self, starved: &StarvedListener, now: Time) {
        L::fail_attempts(self, starved, now);
    }
    fn disconnect(&mut self, qp: Qp, how: Disconnect, now: Time) -> Result<(), RnicError> {
        match self.qps.get(qp.0)?.conn {
            Conn::None | Conn::Dead => return Err(self.wrong_state(qp, "a connection")),
            Conn::Opening(id) => {
                let (call, errno) = ("connect", libc::ECANCELED);
                L::fail_opening(self, id, RnicError::Os { call, errno });
            }
            Conn::Link(id) => return L::disconnect(self, qp, id, how, now),
        }
        Ok(())
    }
    fn addrs(&self, qp: Qp) -> Result<(SocketAddr, SocketAddr), RnicError> {
        self.qps.get(qp.0)?.addrs.ok_or_else(|| self.wrong_state(qp, "Rts"))
    }

    fn handle_ready(&mut self, token: usize, ready: Ready) {
        self.note_token(token, ready);
    }
    fn progress(&mut self, now: Time) -> bool {
        self.take_turns(now)
    }
    fn spin(&mut self, now: Time) -> bool {
        self.poll_setups(now) | L::spin(self, now)
    }
    fn spins_by_reactor(&self) -> bool {
        L::spins_by_reactor(self)
    }
    fn poll_memory(&mut self) -> Option<bool> {
        L::poll_memory(self)
    }
    fn poll_syscall(&mut self) -> Option<bool> {
        L::poll_syscall(self)
    }
    fn prepare_sleep(&mut self) -> bool {
        self.setups.leave_to_reactor();
        L::prepare_sleep(self)
    }
    fn defer_flush(&mut self, qp: Qp, now: Time) -> Option<DeferredWrite> {
        self.link_of(qp).and_then(|id| L::defer_flush(self, id, now))
    }
    fn end_deferred(&mut self, end: DeferredEnd, now: Time) {
        L::end_deferred(self, end, now);
    }
    fn forget_deferred(&mut self) {
        L::forget_deferred(self);
    }
    fn attend(&mut self, qp: Qp) -> bool {
        self.attend_link(qp)
    }
    fn keep_apart(&mut self, qp: Qp) {
        if let Some(id) = self.link_of(qp) {
            L::keep_apart(self, id);
        }
    }
    fn unattend(&mut self, qp: Qp) -> bool {
        self.unattend_link(qp)
    }
    fn sleep_attended(&mut self, qp: Qp, how: AttendedBlock) -> Option<AttendedWait> {
        self.announce_attended_sleep(qp, how)
    }
    fn poll_attended(&mut self, qp: Qp) -> Option<bool> {
        self.links.get(self.link_of(qp)?).ok()?.poll_attended()
    }
    fn peek_attended(&mut self, qp: Qp) -> Option<Attended> {
        self.look_at_attended(qp)
    }
    fn lend_stream(&mut self, qp: Qp) -> Option<Arc<SharedStream>> {
        self.lend_stream_of(qp)
    }
    fn lend(&mut self, qp: Qp) -> Option<Box<dyn LentConnection>> {
        let lent = L::lend(self, self.link_of(qp)?)?;
        Some(Box::new(lent))
    }
    fn end_loan(&mut self, qp: Qp, loan: Box<dyn LentConnection>, reads: bool, now: Time) {
        let loan: Box<dyn Any> = loan;
        if let (Some(id), Ok(loan)) = (self.link_of(qp), loan.downcast()) {
            L::end_loan(self, id, *loan, reads, now);
        }
    }
    fn wake_attended(&mut self, qp: Qp, end: AttendedEnd<'_>) {
        self.note_attended(qp, end);
    }
    fn can_sleep_polled(&self, qp: Qp) -> bool {
        let link = self.link_of(qp).and_then(|id| self.links.get(id).ok());
        link.is_some_and(Traffic::can_sleep_polled)
    }
    fn sleep_polled(&mut self, qp: Qp, end: BorrowedFd<'_>) -> PolledSleep {
        self.announce_polled_sleep(qp, end)
    }
    fn take_polled_rings(&mut self, qp: Qp) -> u32 {
        self.polled_rings(qp)
    }
    fn next_timeout(&self) -> Option<Time> {
        self.next_due()
    }
    fn poll_event(&mut self) -> Option<RnicEvent> {
        self.reports.events.pop_front()
    }
}
