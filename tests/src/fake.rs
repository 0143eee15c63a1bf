//! RDMA devices that are software RNICs in disguise, which fail when told to.
//!
//! They stand in for devices in tests of choosing: each has addresses of its own
//! (out of 127/8, say) and, like RoCE, port numbers of its own, or takes the host's
//! TCP ports, as iWARP does. A [`Control`] says what happens at each address.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use exs::mem::Segment;
use exs::progress::{Context, Devices, Error};
use exs::rnic::{
    Access, Caps, CmEvent, ConnParam, ConnReq, Cq, Disconnect, DisconnectCause, Key, ListenOpts,
    Listener, Mr, Pd, Qp, QpAttr, QpState, Ready, RecvWr, Rnic, RnicError, RnicEvent, SendWr, Srq,
    Wc,
};
use exs::tcp::SoftRnic;
use exs::time::Time;

mod control;

pub use control::{Control, Deed, Objects};

/// What a device is like.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Its name.
    pub name: &'static str,
    /// The addresses that are its own, and that it reaches.
    pub owns: fn(IpAddr) -> bool,
    /// It has port numbers of its own (RoCE), which no other device has. Underneath they are ports of
    /// TCP, by this number. 0: it takes those of TCP (iWARP).
    pub ports: u16,
    /// Changes what it claims to be able to do.
    pub caps: fn(&mut Caps),
    /// What happens at an address.
    pub control: Arc<Control>,
}

/// A context with a software RNIC and these devices, as the one of this process.
pub fn install(specs: &[Spec]) {
    let specs = specs.to_vec();
    install_with(soft, specs);
}

/// A context whose software RNIC claims other capabilities, as the one of this process.
pub fn install_soft(caps: fn(&mut Caps)) {
    let spec = Spec { name: "soft", owns: |_| true, ports: 0, caps, control: Arc::default() };
    install_with(move |r, base| Ok(Box::new(Fake::new(r, base, spec)?)), Vec::new());
}

fn install_with(
    soft: impl FnOnce(mio::Registry, usize) -> Result<Box<dyn Rnic>, Error> + Send + 'static,
    specs: Vec<Spec>,
) {
    for spec in &specs {
        spec.control.plugged.fetch_add(1, Ordering::SeqCst);
    }
    let devices = Devices::new(soft, move |registry, tokens| {
        let mut all: Vec<Box<dyn Rnic>> = Vec::new();
        for spec in &specs {
            let plugged = spec.control.plugged.load(Ordering::SeqCst);
            if spec.control.told.swap(plugged, Ordering::SeqCst) < plugged {
                let (registry, base) = (registry.try_clone().unwrap(), tokens.next().unwrap());
                *spec.control.objects.lock().unwrap() = Objects::default();
                all.push(Box::new(Fake::new(registry, base, spec.clone())?));
            }
        }
        Ok(all)
    });
    Context::install(Context::new(devices).unwrap()).unwrap();
}

fn soft(registry: mio::Registry, base: usize) -> Result<Box<dyn Rnic>, Error> {
    Ok(Box::new(SoftRnic::with_kernel_keys(registry, base).expect("random numbers")))
}

const fn os(call: &'static str, errno: i32) -> RnicError {
    RnicError::Os { call, errno }
}
const GONE: RnicError = os("a device that is gone", libc::ENODEV);

/// Bytes of a large registration: a chunk of receives. The ring of a connection is shorter.
const LARGE: usize = (1 << 20) + 1;

/// A device.
struct Fake {
    inner: SoftRnic,
    /// Bytes of each registration.
    sizes: HashMap<Mr, usize>,
    /// The keys of windows that it has told, and those inside; and those of closed windows.
    keys: HashMap<Key, Key>,
    free_keys: Vec<Key>,
    caps: Caps,
    spec: Spec,
    /// The receive queues of queue pairs.
    queues: HashMap<Qp, Srq>,
    /// Receives that each queue has lost, and those it loses when receives are next posted.
    lost: HashMap<Srq, (usize, usize)>,
    /// Queue pairs that have connected, and those of them that live.
    dialled: HashSet<Qp>,
    live: HashSet<Qp>,
    /// Connects that no answer comes to.
    waiting: Vec<(Qp, Time, Duration)>,
    events: VecDeque<RnicEvent>,
    /// Accepted connections that the device has not reported as established yet.
    held: VecDeque<CmEvent>,
    now: Time,
    gone: bool,
    said: bool,
}

impl Fake {
    fn new(registry: mio::Registry, base: usize, spec: Spec) -> Result<Fake, Error> {
        let inner = SoftRnic::with_kernel_keys(registry, base).expect("random numbers");
        let mut caps = inner.caps().clone();
        (caps.name, caps.owns_tcp_port) = (spec.name.to_owned(), spec.ports == 0);
        (spec.caps)(&mut caps);
        Ok(Fake {
            inner,
            keys: HashMap::new(),
            free_keys: Vec::new(),
            sizes: HashMap::new(),
            queues: HashMap::new(),
            lost: HashMap::new(),
            caps,
            spec,
            dialled: HashSet::new(),
            live: HashSet::new(),
            waiting: Vec::new(),
            events: VecDeque::new(),
            held: VecDeque::new(),
            now: Time::ZERO,
            gone: false,
            said: false,
        })
    }

    /// From a port of the device to one of TCP, and back. Ports that the kernel gives out become ports
    /// that it never gives out, since thousands of connections of other tests may have all the others.
    fn port(&self, mut addr: SocketAddr) -> SocketAddr {
        if addr.port() != 0 && self.spec.ports != 0 {
            addr.set_port(!(addr.port() ^ self.spec.ports));
        }
        addr
    }

    fn alive(&self) -> Result<(), RnicError> {
        if self.gone { Err(GONE) } else { Ok(()) }
    }

    /// Ends everything, if the device was pulled out.
    fn look(&mut self) {
        if self.spec.control.removed.load(Ordering::SeqCst) && !self.gone {
            self.gone = true;
            for qp in self.live.iter().copied().collect::<Vec<_>>() {
                self.inner.disconnect(qp, Disconnect::Abort, self.now).unwrap();
            }
            for (qp, ..) in self.waiting.drain(..) {
                let error = GONE;
                self.events.push_back(RnicEvent::Cm(CmEvent::ConnectFailed { qp, error }));
            }
        }
    }

    /// Keeps the event that an accepted connection is established, while the test wants it so.
    fn hold(&mut self, event: RnicEvent) -> Option<RnicEvent> {
        match event {
            RnicEvent::Cm(event @ CmEvent::Established { qp, .. })
                if !self.dialled.contains(&qp) && self.spec.control.holds(self.held.len()) =>
            {
                self.held.push_back(event);
                None
            }
            other => Some(other),
        }
    }

    /// An event of the RNIC inside, as of the device.
    fn translate(&mut self, event: RnicEvent) -> RnicEvent {
        let RnicEvent::Cm(event) = event else { return event };
        RnicEvent::Cm(match event {
            CmEvent::ConnectRequest { listener, req, peer, local, private_data } => {
                let local = self.port(local);
                CmEvent::ConnectRequest { listener, req, peer, local, private_data }
            }
            CmEvent::Established { qp, .. } => {
                self.live.insert(qp);
                event
            }
            CmEvent::Disconnected { qp, cause } => {
                self.live.remove(&qp);
                let cause = if self.gone { DisconnectCause::DeviceRemoved } else { cause };
                CmEvent::Disconnected { qp, cause }
            }
            other => other,
        })
    }
}

impl Rnic for Fake {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn alloc_pd(&mut self) -> Result<Pd, RnicError> {
        self.alive()?;
        self.spec.control.count(self.inner.alloc_pd(), |o| o.pds += 1)
    }
    fn dealloc_pd(&mut self, pd: Pd) -> Result<(), RnicError> {
        self.spec.control.count(self.inner.dealloc_pd(pd), |o| o.pds = o.pds.saturating_sub(1))
    }
    fn reg_mr(&mut self, pd: Pd, memory: &Segment, access: Access) -> Result<Mr, RnicError> {
        self.alive()?;
        let (mr, len) = (self.inner.reg_mr(pd, memory, access)?, memory.len());
        self.sizes.insert(mr, len);
        let mut objects = self.spec.control.objects.lock().unwrap();
        (objects.mrs, objects.made) = (objects.mrs + 1, objects.made + 1);
        objects.large += usize::from(len >= LARGE);
        Ok(mr)
    }
    fn dereg_mr(&mut self, mr: Mr) -> Result<(), RnicError> {
        self.inner.dereg_mr(mr)?;
        let large = self.sizes.remove(&mr).is_some_and(|len| len >= LARGE);
        let mut objects = self.spec.control.objects.lock().unwrap();
        objects.mrs = objects.mrs.saturating_sub(1);
        objects.large = objects.large.saturating_sub(large.into());
        drop(objects);
        self.alive()
    }
    fn create_cq(&mut self, depth: usize) -> Result<Cq, RnicError> {
        self.inner.create_cq(depth)
    }
    fn destroy_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.inner.destroy_cq(cq)
    }
    fn poll_cq(&mut self, cq: Cq, max: usize, out: &mut Vec<Wc>) -> Result<usize, RnicError> {
        self.inner.poll_cq(cq, max, out)
    }
    fn arm_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.inner.arm_cq(cq)
    }
    fn create_srq(&mut self, pd: Pd, max_wr: usize) -> Result<Srq, RnicError> {
        assert!(max_wr <= self.caps.max_srq_wr, "{max_wr}");
        let most = self.spec.control.most_srqs.load(Ordering::SeqCst);
        if most > 0 && self.spec.control.objects().srqs >= most {
            return Err(RnicError::Os { call: "ibv_create_srq", errno: libc::ENOMEM });
        }
        self.spec.control.count(self.inner.create_srq(pd, max_wr), |o| o.srqs += 1)
    }
    fn destroy_srq(&mut self, srq: Srq) -> Result<(), RnicError> {
        self.lost.remove(&srq);
        self.spec.control.count(self.inner.destroy_srq(srq), |o| o.srqs = o.srqs.saturating_sub(1))
    }
    fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        self.alive()?;
        if let Some((_, next @ 1..)) = self.lost.get_mut(&srq) {
            *next -= 1;
            return Ok(());
        }
        self.inner.post_srq_recv(srq, wr)
    }
    fn lost_receives(&self, srq: Srq) -> usize {
        self.lost.get(&srq).map_or(0, |(lost, _)| *lost)
    }
    fn create_qp(&mut self, attr: &QpAttr) -> Result<Qp, RnicError> {
        self.alive()?;
        assert!(attr.max_send_wr <= self.caps.max_send_wr, "{attr:?}");
        let qp = self.spec.control.count(self.inner.create_qp(attr), |o| o.qps += 1)?;
        self.queues.extend(attr.srq.map(|srq| (qp, srq)));
        Ok(qp)
    }
    fn destroy_qp(&mut self, qp: Qp) -> Result<(), RnicError> {
        self.dialled.remove(&qp);
        self.live.remove(&qp);
        self.waiting.retain(|(w, ..)| *w != qp);
        self.held.retain(|event| !matches!(event, CmEvent::Established { qp: q, .. } if *q == qp));
        if let Some(srq) = self.queues.remove(&qp)
            && self.spec.control.loses_receives.load(Ordering::SeqCst)
        {
            let (lost, next) = self.lost.entry(srq).or_default();
            (*lost, *next) = (*lost + 1, *next + 1);
        }
        self.spec.control.count(self.inner.destroy_qp(qp), |o| o.qps = o.qps.saturating_sub(1))
    }
    fn qp_state(&self, qp: Qp) -> Result<QpState, RnicError> {
        self.inner.qp_state(qp)
    }
    fn post_send(&mut self, qp: Qp, wr: &SendWr<'_>) -> Result<(), RnicError> {
        assert!(wr.sges.len() <= self.caps.max_sge, "{wr:?}");
        assert!(wr.file.is_none() || self.caps.file_source, "{wr:?}");
        let len: u64 = wr.sges.iter().map(|s| s.len).sum();
        assert!(len <= self.caps.max_msg, "{wr:?}");
        assert!(!wr.inline || wr.head.len() as u64 + len <= self.caps.max_inline as u64, "{wr:?}");
        self.inner.post_send(qp, wr)
    }
    fn post_recv(&mut self, qp: Qp, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        self.inner.post_recv(qp, wr)
    }
    fn bind_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Key, RnicError> {
        let key = self.inner.bind_mw(qp, mr, addr, len, access)?;
        let again = self.spec.control.saves_keys.load(Ordering::SeqCst);
        let told = again.then(|| self.free_keys.pop()).flatten().unwrap_or(key);
        self.keys.insert(told, key);
        Ok(told)
    }
    fn lend_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Key, RnicError> {
        self.inner.lend_mw(qp, mr, addr, len, access)
    }
    fn invalidate_mw(&mut self, qp: Qp, key: Key) -> Result<(), RnicError> {
        let Some(inner) = self.keys.remove(&key) else {
            return self.inner.invalidate_mw(qp, key);
        };
        self.free_keys.push(key);
        self.inner.invalidate_mw(qp, inner)
    }
    fn flush(&mut self, qp: Qp, now: Time) {
        self.spec.control.rings.fetch_add(1, Ordering::SeqCst);
        self.inner.flush(qp, now);
    }

    fn listen(&mut self, addr: SocketAddr, opts: &ListenOpts) -> Result<Listener, RnicError> {
        self.alive()?;
        if !addr.ip().is_unspecified() && !(self.spec.owns)(addr.ip()) {
            return Err(os("bind", libc::EADDRNOTAVAIL));
        }
        let mut addr = addr;
        if addr.port() == 0 && self.spec.ports != 0 {
            // As `Socket::bind` chooses it.
            let (_held, port) = exs::sys::reserve_port(addr).expect("a free port");
            addr.set_port(port);
        }
        self.inner.listen(self.port(addr), opts)
    }
    fn listener_addr(&self, listener: Listener) -> Result<SocketAddr, RnicError> {
        Ok(self.port(self.inner.listener_addr(listener)?))
    }
    fn close_listener(&mut self, listener: Listener) -> Result<(), RnicError> {
        self.inner.close_listener(listener)
    }
    fn connect(
        &mut self,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        self.alive()?;
        self.spec.control.tried.lock().unwrap().push((addr, param.timeout));
        let deed = self.spec.control.deeds.lock().unwrap().get(&addr.ip()).copied();
        match deed {
            Some(Deed::Failure) => return Err(os("connect", libc::ENETDOWN)),
            Some(Deed::Refusal) => {
                let error = os("connect", libc::ECONNREFUSED);
                self.events.push_back(RnicEvent::Cm(CmEvent::ConnectFailed { qp, error }));
            }
            Some(Deed::Silence) => self.waiting.push((qp, now + param.timeout, param.timeout)),
            None => {
                self.inner.connect(qp, self.port(addr), param, now)?;
                self.dialled.insert(qp);
            }
        }
        Ok(())
    }
    fn reaches(&self, addr: SocketAddr, _: Option<SocketAddr>) -> Result<(), RnicError> {
        let own = (self.spec.owns)(addr.ip());
        if own { Ok(()) } else { Err(os("route", libc::EHOSTUNREACH)) }
    }
    fn accept(
        &mut self,
        req: ConnReq,
        qp: Qp,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        self.inner.accept(req, qp, param, now)
    }
    fn reject(&mut self, req: ConnReq, private_data: &[u8], now: Time) -> Result<(), RnicError> {
        self.inner.reject(req, private_data, now)
    }
    fn disconnect(&mut self, qp: Qp, how: Disconnect, now: Time) -> Result<(), RnicError> {
        self.inner.disconnect(qp, how, now)
    }
    fn addrs(&self, qp: Qp) -> Result<(SocketAddr, SocketAddr), RnicError> {
        let (ours, theirs) = self.inner.addrs(qp)?;
        let dialled = self.dialled.contains(&qp);
        Ok(if dialled { (ours, self.port(theirs)) } else { (self.port(ours), theirs) })
    }

    fn handle_ready(&mut self, token: usize, ready: Ready) {
        self.inner.handle_ready(token, ready);
    }
    fn progress(&mut self, now: Time) -> bool {
        self.now = now;
        let due = self.waiting.extract_if(.., |(_, at, _)| *at <= now);
        for (qp, _, time) in due {
            let error = RnicError::Timeout(time);
            self.events.push_back(RnicEvent::Cm(CmEvent::ConnectFailed { qp, error }));
        }
        self.inner.progress(now)
    }
    fn spin(&mut self, now: Time) -> bool {
        self.inner.spin(now)
    }
    fn next_timeout(&self) -> Option<Time> {
        let waiting = self.waiting.iter().map(|(_, at, _)| *at);
        waiting.chain(self.inner.next_timeout()).min()
    }
    fn poll_event(&mut self) -> Option<RnicEvent> {
        self.look();
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if !self.spec.control.holds(self.held.len().saturating_sub(1))
            && let Some(event) = self.held.pop_front()
        {
            return Some(RnicEvent::Cm(event));
        }
        while let Some(event) = self.inner.poll_event() {
            let event = self.translate(event);
            if let Some(event) = self.hold(event) {
                return Some(event);
            }
        }
        let last =
            self.gone && self.live.is_empty() && !std::mem::replace(&mut self.said, self.gone);
        last.then_some(RnicEvent::DeviceRemoved)
    }
}
