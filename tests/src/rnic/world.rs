//! RNICs in one thread around a real reactor, and queue pairs to use them by.

mod steps;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use exs::mem::{Access, Key, Region, Segment};
use exs::rnic::{
    Caps, CmEvent, ConnParam, ConnReq, Cq, DetachedConnection, Disconnect, DisconnectCause,
    Listener, Pd, Qp, QpAttr, RecvWr, Rnic, RnicError, SendWr, Sge, Srq, Wc, WcStatus,
};
use exs::time::Time;

pub use super::tools::{Buf, listen_opts, param, pattern, read_wr, send_wr, write_wr};

/// What a driver supplies to run the suite, and what is different around it.
///
/// [`Caps`] has the differences that an RNIC reports itself. This trait has those that no RNIC
/// reports: its addresses, its speed, whether a kernel answers for it. The
/// defaults are those of the software RNIC, and the strictest. A test asks about the node
/// that the answer concerns, as the RNICs of a world may differ.
pub trait Harness {
    /// The driver.
    type Rnic: Rnic;
    /// Long transfers are cut down by this, in tests that do not lose their meaning then.
    const SHRINK: usize = 1;
    /// Bytes that take longer than one turn of a busy connection.
    const LONGER_THAN_A_TURN: usize = 3 << 19;
    /// Every connection asks for CRC.
    const CRC: bool = false;
    /// Memory is of the kind that other processes can be given to read.
    const SHARED: bool = false;
    /// It leaves messages where they are if it is asked to (`Rnic::pause_eager`).
    const SETS_ASIDE: bool = false;
    /// Makes the RNIC of a node, whose reactor tokens begin with `token_base`.
    fn make(node: usize, registry: mio::Registry, token_base: usize) -> Self::Rnic;
    /// An address that the RNICs listen on, with any port.
    fn local() -> SocketAddr {
        "127.0.0.1:0".parse().expect("an address")
    }
    /// An IPv6 address that the RNICs listen on, with any port, if there is one.
    fn local6() -> Option<SocketAddr> {
        Some("[::1]:0".parse().expect("an address"))
    }
    /// The node's connections are made by TCP: a TCP server that is no RNIC can be
    /// called by mistake.
    fn dials_by_tcp(_node: usize) -> bool {
        true
    }
    /// The node is software in this process: nothing moves while no thread calls it, and
    /// what TCP clients send to its listeners comes to it and to no kernel.
    fn is_software(_node: usize) -> bool {
        true
    }
    /// Why nothing of the suite can run here.
    fn missing() -> Option<String> {
        None
    }
    /// Why a test (`module::name`) cannot be passed here, though by the capabilities
    /// it should be: what a device is known to do wrong.
    fn known(_test: &str) -> Option<&'static str> {
        None
    }
}

/// Tokens of one RNIC: 2^32 of them.
const TOKENS: usize = 1 << 32;

/// WRs that the queues of the tests' QPs hold, where the RNIC can.
pub const DEPTH: usize = 256;

/// How long a test waits for something that must come: only a failing test waits
/// that long.
const PATIENCE: Duration = Duration::from_secs(120);

/// RNICs, their reactor, and the time.
pub struct World<H: Harness> {
    /// The RNICs.
    pub rnics: Vec<H::Rnic>,
    /// Connection events not yet looked at, by RNIC.
    pub cm: Vec<VecDeque<CmEvent>>,
    /// CQs that notified, by RNIC.
    pub notified: Vec<Vec<Cq>>,
    poll: mio::Poll,
    polled: mio::Events,
    start: Instant,
    ahead: Duration,
    /// An RNIC has more to do at once.
    more: bool,
    /// Receives that each queue pair's own queue holds: [`DEPTH`], or the limit of the device.
    pub recv_depth: usize,
}

/// A queue pair with all that belongs to it.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Which RNIC.
    pub node: usize,
    /// Its protection domain.
    pub pd: Pd,
    /// Where its sends complete.
    pub scq: Cq,
    /// Where its receives complete.
    pub rcq: Cq,
    /// Its shared receive queue, if it has one.
    pub srq: Option<Srq>,
    /// The queue pair.
    pub qp: Qp,
}

impl End {
    fn of(node: usize, attr: &QpAttr, qp: Qp) -> End {
        let &QpAttr { pd, send_cq: scq, recv_cq: rcq, srq, .. } = attr;
        End { node, pd, scq, rcq, srq, qp }
    }
}

/// Two connected ends; `a` connected to `b`.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// The initiator.
    pub a: End,
    /// The acceptor.
    pub b: End,
}

/// What [`World::end_in`] calls the queue pair that receives into this CQ.
pub fn context_of(rcq: Cq) -> u32 {
    1000 + rcq.0
}

impl<H: Harness> World<H> {
    /// A world of this many RNICs.
    pub fn new(rnics: usize) -> World<H> {
        let poll = mio::Poll::new().expect("a reactor");
        let mut world = World {
            rnics: Vec::new(),
            cm: Vec::new(),
            notified: Vec::new(),
            poll,
            polled: mio::Events::with_capacity(256),
            start: Instant::now(),
            ahead: Duration::ZERO,
            more: false,
            recv_depth: DEPTH,
        };
        for i in 0..rnics {
            let registry = world.poll.registry().try_clone().expect("a registry");
            // Not from zero: a driver that forgets its base is found out.
            world.rnics.push(H::make(i, registry, (i + 1) * TOKENS));
            world.cm.push(VecDeque::new());
            world.notified.push(Vec::new());
        }
        world
    }

    /// Capabilities of a node.
    pub fn caps(&self, node: usize) -> &Caps {
        self.rnics[node].caps()
    }

    /// Whether a side learns of what the other did, and why. It takes both: one to
    /// tell, one to listen.
    pub fn tells_reasons(&self) -> bool {
        self.rnics.iter().all(|r| r.caps().tells_reasons)
    }

    /// A length of `len` at most that is long for these RNICs too, and that one WR
    /// may move.
    pub fn long(&self, len: usize) -> usize {
        let most = self.rnics.iter().map(|r| r.caps().max_msg).min().unwrap_or(u64::MAX);
        (len / H::SHRINK).min(usize::try_from(most).unwrap_or(usize::MAX))
    }

    /// The time.
    pub fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed() + self.ahead
    }

    /// Pushes the time ahead.
    pub fn skip(&mut self, by: Duration) {
        self.ahead += by;
    }

    /// The next connection event of an RNIC.
    pub fn event(&mut self, node: usize) -> CmEvent {
        self.until("a connection event", |w| w.cm[node].pop_front())
    }

    /// Takes out the events of one QP: true if `want` was among them.
    pub fn event_of<T>(
        &mut self,
        node: usize,
        what: &str,
        mut want: impl FnMut(&CmEvent) -> Option<T>,
    ) -> T {
        self.until(what, |w| {
            let at = w.cm[node].iter().position(|e| want(e).is_some())?;
            want(&w.cm[node].remove(at)?)
        })
    }

    /// Waits for an end's `Disconnected`.
    pub fn disconnected(&mut self, end: End) -> DisconnectCause {
        self.event_of(end.node, "Disconnected", |e| match e {
            CmEvent::Disconnected { qp, cause } if *qp == end.qp => Some(*cause),
            _ => None,
        })
    }

    /// Waits for a connection request: (request, private data).
    pub fn request(&mut self, node: usize) -> (ConnReq, Vec<u8>) {
        self.event_of(node, "ConnectRequest", |e| match e {
            CmEvent::ConnectRequest { req, private_data, .. } => Some((*req, private_data.clone())),
            _ => None,
        })
    }

    /// Waits for an end's `Established`: (private data, ord, ird).
    pub fn established(&mut self, end: End) -> (Vec<u8>, u32, u32) {
        self.event_of(end.node, "Established", |e| match e {
            CmEvent::Established { qp, private_data, ord, ird } if *qp == end.qp => {
                Some((private_data.clone(), *ord, *ird))
            }
            _ => None,
        })
    }

    /// Waits for an end's `Disconnected`, of a cause that is right. An RNIC that does
    /// not tell reasons may call it anything.
    pub fn ended(&mut self, end: End, cause: impl FnOnce(DisconnectCause) -> bool) {
        let tells = self.tells_reasons();
        let got = self.disconnected(end);
        assert!(!tells || cause(got), "{end:?}: {got:?}");
    }

    /// Checks private data as they arrived at a node.
    pub fn assert_private(&self, node: usize, got: &[u8], want: &[u8]) {
        if !self.caps(node).pads_private_data {
            return assert_eq!(got, want);
        }
        assert!(got.len() >= want.len(), "{} bytes of {}", got.len(), want.len());
        let (data, pad) = got.split_at(want.len());
        assert_eq!(data, want);
        assert!(pad.iter().all(|b| *b == 0), "padded with something else than zeros: {pad:?}");
    }

    /// Makes a queue pair with CQs of its own.
    pub fn end(&mut self, node: usize) -> End {
        let pd = self.rnics[node].alloc_pd().expect("alloc_pd");
        self.end_in(node, pd, None)
    }

    /// Makes a queue pair in a domain, on a shared receive queue if given.
    pub fn end_in(&mut self, node: usize, pd: Pd, srq: Option<Srq>) -> End {
        let mut attr = self.attr(node, pd, srq);
        let rnic = &mut self.rnics[node];
        let mut made = rnic.create_qp(&attr);
        if let Err(RnicError::Limit { what: "receive queue depth", limit, .. }) = made {
            attr.max_recv_wr = usize::try_from(limit).expect("below the depth asked for");
            made = rnic.create_qp(&attr);
            self.recv_depth = self.recv_depth.min(attr.max_recv_wr);
        }
        End::of(node, &attr, made.expect("create_qp"))
    }

    /// Makes a queue pair with CQs of its own, on an SRQ if the connection was on one, for a connection
    /// that another RNIC has given away.
    pub fn adopt(&mut self, node: usize, connection: DetachedConnection, on_srq: bool) -> End {
        let adopted = self.try_adopt(node, connection, on_srq, None);
        adopted.expect("adopt_connection")
    }

    /// The same. The windows of the connection are onto `memory`, which is registered anew.
    pub fn try_adopt(
        &mut self,
        node: usize,
        connection: DetachedConnection,
        on_srq: bool,
        memory: Option<&Segment>,
    ) -> Result<End, RnicError> {
        let rnic = &mut self.rnics[node];
        let pd = rnic.alloc_pd().expect("alloc_pd");
        let srq = on_srq.then(|| rnic.create_srq(pd, DEPTH).expect("create_srq"));
        let region = memory.map(|seg| rnic.reg_mr(pd, seg, Access::LOCAL).expect("reg_mr"));
        let attr = self.attr(node, pd, srq);
        let adopted = self.rnics[node].adopt_connection(&attr, connection, region);
        adopted.map(|qp| End::of(node, &attr, qp))
    }

    /// The attributes of a queue pair with new CQs.
    fn attr(&mut self, node: usize, pd: Pd, srq: Option<Srq>) -> QpAttr {
        let rnic = &mut self.rnics[node];
        let send_cq = rnic.create_cq(1024).expect("create_cq");
        let recv_cq = rnic.create_cq(1024).expect("create_cq");
        let max_send_wr = rnic.caps().max_send_wr.min(DEPTH);
        let (max_recv_wr, context) = (DEPTH, context_of(recv_cq));
        QpAttr { pd, send_cq, recv_cq, srq, max_send_wr, max_recv_wr, context }
    }

    /// Listens on any port.
    pub fn listen(&mut self, node: usize, addr: SocketAddr) -> (Listener, SocketAddr) {
        let listener = self.rnics[node].listen(addr, &listen_opts()).expect("listen");
        let addr = self.rnics[node].listener_addr(listener).expect("listener_addr");
        (listener, addr)
    }

    /// Two fresh RNICs' ends, connected.
    pub fn pair() -> (World<H>, Pair) {
        let mut world = World::new(2);
        let (a, b) = (world.end(0), world.end(1));
        let pair = world.join(a, b, &param(&[]));
        (world, pair)
    }

    /// Connects two ends. The initiator speaks first where the RNIC asks for it.
    pub fn join(&mut self, a: End, b: End, param: &ConnParam<'_>) -> Pair {
        let pair = self.join_silently(a, b, param);
        if self.caps(a.node).initiator_first || self.caps(b.node).initiator_first {
            self.recv(b, u64::MAX, &[]);
            self.send(a, &SendWr { signaled: false, ..send_wr(u64::MAX, &[]) });
            assert_eq!(self.received(b).wr_id, u64::MAX);
        }
        pair
    }

    /// Connects two ends; no message has gone yet.
    pub fn join_silently(&mut self, a: End, b: End, param: &ConnParam<'_>) -> Pair {
        let (listener, addr) = self.listen(b.node, H::local());
        let now = self.now();
        let param = ConnParam { crc: param.crc || H::CRC, ..*param };
        self.rnics[a.node].connect(a.qp, addr, &param, now).expect("connect");
        let (req, _) = self.request(b.node);
        let now = self.now();
        self.rnics[b.node].accept(req, b.qp, &param, now).expect("accept");
        self.established(a);
        self.established(b);
        self.rnics[b.node].close_listener(listener).expect("close_listener");
        Pair { a, b }
    }

    /// Registers bytes in an end's domain.
    pub fn buf(&mut self, end: End, bytes: Vec<u8>, access: Access) -> Buf {
        let region = match H::SHARED && !bytes.is_empty() {
            true => Region::map_shared(bytes.len()).expect("memory"),
            false => Region::from_vec(bytes.clone()),
        };
        let segment = region.segment(0, region.len()).expect("the whole region");
        segment.write_at(0, &bytes);
        let mr = self.rnics[end.node].reg_mr(end.pd, &segment, access).expect("reg_mr");
        Buf { region, mr }
    }

    /// Registers zeroed bytes for everything.
    pub fn zeros(&mut self, end: End, len: usize) -> Buf {
        self.buf(end, vec![0; len], Access::ALL)
    }

    /// Posts a send and rings the doorbell.
    pub fn send(&mut self, end: End, wr: &SendWr<'_>) {
        let now = self.now();
        self.rnics[end.node].post_send(end.qp, wr).expect("post_send");
        self.rnics[end.node].flush(end.qp, now);
    }

    /// Posts a receive to the end's own or shared queue.
    pub fn recv(&mut self, end: End, wr_id: u64, sges: &[Sge]) {
        let wr = RecvWr { wr_id, sges };
        match end.srq {
            Some(srq) => self.rnics[end.node].post_srq_recv(srq, &wr).expect("post_srq_recv"),
            None => self.rnics[end.node].post_recv(end.qp, &wr).expect("post_recv"),
        }
    }

    fn take(&mut self, node: usize, cq: Cq) -> Option<Wc> {
        let mut out = Vec::new();
        let quiet = self.rnics[node].is_quiet();
        let n = self.rnics[node].poll_cq(cq, 1, &mut out).expect("poll_cq");
        assert_eq!(n, out.len());
        assert!(!quiet || n == 0, "what was quiet has a completion");
        out.pop()
    }

    /// The completions that are there, without waiting.
    pub fn drain(&mut self, end: End) -> (Vec<Wc>, Vec<Wc>) {
        let (mut sends, mut recvs) = (Vec::new(), Vec::new());
        let rnic = &mut self.rnics[end.node];
        let quiet = rnic.is_quiet();
        rnic.poll_cq(end.scq, usize::MAX, &mut sends).expect("poll_cq");
        rnic.poll_cq(end.rcq, usize::MAX, &mut recvs).expect("poll_cq");
        assert!(!quiet || sends.is_empty() && recvs.is_empty(), "what was quiet has completions");
        (sends, recvs)
    }

    /// Waits for the next completion of a send, WRITE or READ.
    pub fn completed(&mut self, end: End) -> Wc {
        self.until("a send's completion", |w| w.take(end.node, end.scq))
    }

    /// Waits for the next completion of a receive.
    pub fn received(&mut self, end: End) -> Wc {
        self.until("a receive's completion", |w| w.take(end.node, end.rcq))
    }

    /// Opens a window by [`Rnic::bind_mw`], and lets the peer know of it: a bind takes
    /// effect before what is posted after it, and not before data that takes another way.
    pub fn bind(&mut self, pair: (End, End), of: &Buf, part: Sge, access: Access) -> Key {
        let (end, peer) = pair;
        let (addr, len) = (part.addr, part.len);
        let key = self.rnics[end.node].bind_mw(end.qp, of.mr, addr, len, access).expect("bind_mw");
        self.hint(end, peer);
        key
    }

    /// A message without bytes, delivered.
    pub fn hint(&mut self, from: End, to: End) {
        self.recv(to, 4343, &[]);
        self.send(from, &SendWr { signaled: false, ..send_wr(0, &[]) });
        let wc = self.received(to);
        assert_eq!((wc.wr_id, wc.status), (4343, WcStatus::Success));
    }

    /// Sends a few bytes each way: the connection is alive.
    pub fn assert_alive(&mut self, pair: Pair) {
        self.assert_moves(pair, 100);
    }
    /// Sends that many bytes each way.
    pub fn assert_moves(&mut self, pair: Pair, len: usize) {
        for (from, to) in [(pair.a, pair.b), (pair.b, pair.a)] {
            let src = self.buf(from, pattern(9, len), Access::LOCAL_READ);
            let dst = self.zeros(to, len);
            self.recv(to, 4242, &[dst.sge()]);
            self.send(from, &send_wr(2424, &[src.sge()]));
            let wc = self.received(to);
            assert_eq!((wc.wr_id, wc.status, wc.byte_len), (4242, WcStatus::Success, len as u64));
            assert_eq!(dst.bytes(), src.bytes());
            let wc = self.completed(from);
            assert_eq!((wc.wr_id, wc.status), (2424, WcStatus::Success));
            self.rnics[from.node].dereg_mr(src.mr).expect("dereg_mr");
            self.rnics[to.node].dereg_mr(dst.mr).expect("dereg_mr");
        }
    }

    /// Asks for the end of a connection.
    pub fn disconnect(&mut self, end: End, how: Disconnect) {
        let now = self.now();
        self.rnics[end.node].disconnect(end.qp, how, now).expect("disconnect");
    }
}
