//! F5: shared memory, for two processes on one host, as an RNIC.
//!
//! [`ShmRnic`] meets the contract of [`Rnic`] without a network. A connection is a memfd with a
//! ring of records for each direction (`ring`, `record`). Both sides map it. Beside it, a UNIX
//! socket (`control`) serves for the start-up, passes descriptors, and shows each side at once
//! when the other has gone. No name outlives its process: the listener's name is abstract, and
//! vanishes with its socket.
//!
//! The rule of this floor: *only the owner of memory writes it*. A SEND or a WRITE is a record
//! that says where its payload lies. The receiving side checks its own keys and copies the payload
//! once (`rx`). So bounds, rights and the life of a window hold as strictly as on any RNIC. A peer
//! gets no more than a view of memory that it may read (`source`), and a peer of another user not
//! even that.
//!
//! What it promises beyond the trait:
//! - A small record moves with one cache line; no index moves with it.
//! - No system call while both sides are awake. A side that is about to sleep says so in the ring
//!   (`ShmLink::arm`). A message wakes it. Where that happens often, a bit in the doorbell bitmap
//!   and the doorbell of its process do. The same bits find work among many connections.
//! - WRITE WITH IMMEDIATE; the completion of a WRITE says that the peer has the bytes.
//! - Whatever the peer writes into the rings, it can end that connection and do nothing worse.
//!
//! The shape of its data: numbered tables as in the software RNIC; a queue pair is joined to a
//! link. `spec-notes/shm.md` has the layout, the rendezvous and the trust.
//!
//! What it must never know: EXS, its messages, sockets of a program. It reads no clock.

mod consumer_index;
mod control;
mod dial;
mod doorbells;
mod eager;
mod handover;
mod hot_set;
mod link;
mod listen;
mod memory;
mod pending;
mod qp;
mod queues;
mod record;
mod ring;
mod ring_window;
mod rx;
mod serve;
mod source;
mod tx;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use crate::iwarp::{MAX_INLINE, MAX_READS, RxBuf};
use crate::mem::{Access, Key, KeyTable, MAX_SGE, Segment};
use crate::rnic::deadlines::Deadlines;
use crate::rnic::objects::Objects;
use crate::rnic::table;
use crate::rnic::users::MrUsers;
use crate::rnic::{
    Caps, ConnParam, ConnReq, Cq, DetachedRequest, Disconnect, EagerRecv, EagerSend, HEAD,
    ListenOpts, Listener, Mr, Pd, Qp, QpAttr, Ready, RecvWr, Rnic, RnicError, RnicEvent, SendWr,
    Srq, Wc,
};
use crate::sys::{IoVec, RandomSource, effective_uid};
use crate::time::Time;
use serve::ShmSource;

/// An RNIC made of shared memory: see the module's essay.
pub struct ShmRnic {
    caps: Caps,
    registry: mio::Registry,
    token_base: usize,
    random: RandomSource,
    uid: u32,
    /// True: peers of our own user are trusted.
    trusting: bool,
    keys: KeyTable,
    /// The queue pairs whose work may refer to an MR, for each MR that any work names.
    users: MrUsers,
    objects: Objects<RxBuf>,
    qps: table::IdTable<qp::ShmQp>,
    listeners: table::IdTable<listen::ShmListener>,
    pending_peers: table::IdTable<listen::PendingPeer>,
    links: table::IdTable<Box<link::ShmLink>>,
    /// Connection requests that wait for the program's answer: the numbers of their links.
    requests: table::IdTable<u32>,
    /// Connecting peers whose HELLO has not come, the oldest first, each with the time when it was
    /// taken in. Some entries are stale: their HELLO has come since.
    awaiting_hello: VecDeque<(u32, Time)>,
    /// Limit of `awaiting_hello`, for each listener opened from now on.
    max_pending_peers: usize,
    /// Listeners that wait for a free descriptor.
    listeners_without_fds: Vec<u32>,
    /// Connecting peers whose HELLO waits for a free descriptor.
    peers_without_fds: Vec<u32>,
    timers: Deadlines<ShmSource>,
    ready: VecDeque<ShmSource>,
    /// Sources served since the hot set was polled last.
    served_since_poll: usize,
    /// The hot set, the oldest first. Every other open link is armed.
    hot: Vec<u32>,
    /// Index in `hot` of the link that `next_eager` looks at next.
    eager_turn: usize,
    /// Our doorbell bitmap, from the first peer that needs it on; and scratch space for the slots taken
    /// from it.
    bitmap: Option<doorbells::DoorbellBitmap>,
    taken_slots: Vec<u32>,
    peer_bitmaps: doorbells::PeerBitmaps,
    /// Rounds of eager receives, from 1 on: `resume_eager` begins one.
    pause_epoch: u64,
    events: VecDeque<RnicEvent>,
    /// Completions on their way from a link to their queues.
    wcs: Vec<Wc>,
}

impl ShmRnic {
    /// Makes an RNIC whose descriptors are registered with `registry` under tokens from
    /// `token_base` up to 2^32 further. Keys are drawn from `random`.
    pub fn new(registry: mio::Registry, token_base: usize, random: RandomSource) -> ShmRnic {
        ShmRnic {
            caps: Caps {
                name: "shm".to_owned(),
                write_imm: true,
                initiator_first: false,
                read_sink_remote_write: false,
                write_acked: true,
                file_source: false,
                windows: true,
                srq_waits: true,
                small_reads: true,
                pins: false,
                owns_tcp_port: false,
                within_host: true,
                doorbell_calls: false,
                random_keys: true,
                pads_private_data: false,
                tells_solicited: true,
                tells_reasons: true,
                max_sge: MAX_SGE,
                max_inline: MAX_INLINE,
                max_msg: record::MAX_MSG,
                max_ord: MAX_READS,
                max_ird: MAX_READS,
                max_private_data: control::MAX_PRIVATE_DATA,
                max_send_wr: 256,
                max_srq_wr: usize::MAX,
            },
            registry,
            token_base,
            random,
            uid: effective_uid(),
            trusting: true,
            keys: KeyTable::new(),
            users: MrUsers::default(),
            objects: Objects::new(),
            qps: table::IdTable::new("queue pair"),
            listeners: table::IdTable::new("listener"),
            pending_peers: table::IdTable::new("caller"),
            links: table::IdTable::new("connection"),
            requests: table::IdTable::new("connection request"),
            awaiting_hello: VecDeque::new(),
            max_pending_peers: listen::MAX_PENDING_PEERS,
            listeners_without_fds: Vec::new(),
            peers_without_fds: Vec::new(),
            timers: Deadlines::default(),
            ready: VecDeque::new(),
            served_since_poll: 0,
            hot: Vec::new(),
            bitmap: None,
            taken_slots: Vec::new(),
            peer_bitmaps: doorbells::PeerBitmaps::default(),
            eager_turn: 0,
            pause_epoch: 1,
            events: VecDeque::new(),
            wcs: Vec::new(),
        }
    }

    /// An RNIC with keys from the kernel's generator.
    pub fn with_kernel_keys(registry: mio::Registry, token_base: usize) -> io::Result<ShmRnic> {
        Ok(ShmRnic::new(registry, token_base, RandomSource::kernel()?))
    }

    /// Treats every peer as one of another user: shares nothing with it but the rings, and reads
    /// nothing of it but what they hold.
    #[cfg(any(test, feature = "internals"))]
    pub fn distrust_peers(&mut self) {
        self.trusting = false;
    }

    /// Limits, for later listeners, the connecting peers whose HELLO has not come. The oldest is
    /// dropped for one more.
    #[cfg(any(test, feature = "internals"))]
    pub fn limit_pending_peers(&mut self, max: usize) {
        self.max_pending_peers = max;
    }

    fn token(&self, source: ShmSource) -> mio::Token {
        mio::Token(self.token_base + source.token())
    }
}

impl Rnic for ShmRnic {
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
        self.reg_mr(pd, memory, access)
    }
    fn dereg_mr(&mut self, mr: Mr) -> Result<(), RnicError> {
        self.dereg_mr(mr)
    }
    fn create_cq(&mut self, depth: usize) -> Result<Cq, RnicError> {
        self.objects.create_cq(depth)
    }
    #[cfg(any(test, feature = "internals"))]
    fn destroy_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.objects.destroy_cq(cq)
    }
    fn poll_cq(&mut self, cq: Cq, max: usize, out: &mut Vec<Wc>) -> Result<usize, RnicError> {
        self.poll_cq(cq, max, out)
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
        self.post_srq_recv(srq, wr)
    }
    fn create_qp(&mut self, attr: &QpAttr) -> Result<Qp, RnicError> {
        self.create_qp(attr)
    }
    fn destroy_qp(&mut self, qp: Qp) -> Result<(), RnicError> {
        self.destroy_qp(qp)
    }
    #[cfg(any(test, feature = "internals"))]
    fn qp_state(&self, qp: Qp) -> Result<crate::rnic::QpState, RnicError> {
        self.qp_state(qp)
    }

    fn post_send(&mut self, qp: Qp, wr: &SendWr<'_>) -> Result<(), RnicError> {
        self.post_send(qp, wr)
    }
    #[cfg(any(test, feature = "internals"))]
    fn post_recv(&mut self, qp: Qp, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        self.post_recv(qp, wr)
    }
    fn bind_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Key, RnicError> {
        self.bind_mw(qp, mr, addr, len, access)
    }
    fn invalidate_mw(&mut self, qp: Qp, key: Key) -> Result<(), RnicError> {
        self.invalidate_mw(qp, key)
    }
    fn flush(&mut self, qp: Qp, now: Time) {
        self.flush(qp, now);
    }
    fn try_send_eager(
        &mut self,
        qp: Qp,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        self.try_send_eager(qp, payload, head)
    }
    fn next_eager(&mut self, out: &mut [u8]) -> Option<EagerRecv> {
        self.next_eager(out)
    }
    fn release_eager(&mut self, qp: Qp) {
        self.release_eager(qp);
    }
    fn pause_eager(&mut self, qp: Qp) -> bool {
        self.pause_eager(qp)
    }
    fn resume_eager(&mut self) {
        self.pause_epoch += 1;
    }

    fn listen(&mut self, addr: SocketAddr, opts: &ListenOpts) -> Result<Listener, RnicError> {
        self.listen(addr, opts)
    }
    fn listener_addr(&self, listener: Listener) -> Result<SocketAddr, RnicError> {
        self.listener_addr(listener)
    }
    fn close_listener(&mut self, listener: Listener) -> Result<(), RnicError> {
        self.close_listener(listener)
    }
    fn connect(
        &mut self,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        self.connect(qp, addr, param, now)
    }
    fn reaches(&self, addr: SocketAddr, _: Option<SocketAddr>) -> Result<(), RnicError> {
        dial::is_here(addr)
    }
    fn accept(
        &mut self,
        req: ConnReq,
        qp: Qp,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        self.accept(req, qp, param, now)
    }
    fn reject(&mut self, req: ConnReq, private_data: &[u8], _: Time) -> Result<(), RnicError> {
        self.reject(req, private_data)
    }
    fn detach_request(&mut self, req: ConnReq) -> Result<DetachedRequest, RnicError> {
        self.detach_request(req)
    }
    fn adopt_request(&mut self, request: DetachedRequest) -> Result<ConnReq, RnicError> {
        self.adopt_request(request)
    }
    fn disconnect(&mut self, qp: Qp, how: Disconnect, now: Time) -> Result<(), RnicError> {
        self.disconnect(qp, how, now)
    }
    fn addrs(&self, qp: Qp) -> Result<(SocketAddr, SocketAddr), RnicError> {
        self.qps.get(qp.0)?.addrs.ok_or_else(|| self.wrong_state(qp, "Rts"))
    }

    fn handle_ready(&mut self, token: usize, ready: Ready) {
        self.handle_ready(token, ready);
    }
    fn progress(&mut self, now: Time) -> bool {
        self.progress(now)
    }
    fn spin(&mut self, _: Time) -> bool {
        self.poll_hot_set()
    }
    fn poll_memory(&mut self) -> Option<bool> {
        self.has_news()
    }
    fn prepare_sleep(&mut self) -> bool {
        self.prepare_sleep()
    }
    fn next_timeout(&self) -> Option<Time> {
        // Work that waits for its turn is due now.
        if self.ready.is_empty() { self.timers.next() } else { Some(Time::ZERO) }
    }
    fn is_quiet(&self) -> bool {
        self.events.is_empty() && self.objects.no_wc_waits()
    }
    fn poll_event(&mut self) -> Option<RnicEvent> {
        self.events.pop_front()
    }
}
