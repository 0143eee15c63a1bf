//! A device: an RNIC and the objects that EXS keeps on it.
//!
//! The engine makes these objects when it first uses the device, since a host may have adapters
//! that no socket of this program ever needs. One completion queue serves all connections. The
//! objects of a protection domain are in `domain`.

use std::collections::HashMap;
use std::sync::Arc;

use super::answers::AnswerBurst;
use super::domain::{Domain, Place, Pools};
use super::receives::Receives;
use super::slots::credits;
use crate::mem::{Access, Buffer, Key, Region, ReleaseRegistration, Segment};
use crate::progress::Error;
use crate::progress::busy::BusyWindow;
use crate::progress::options::Transport;
use crate::rnic::{
    Caps, ConnReq, Cq, DetachedConnection, Disconnect, EagerSend, ExtraReceives, FileRange, HEAD,
    Listener, Mr, Qp, QpAttr, Rnic, RnicError, SendWr, Wc,
};
use crate::session::{Buf, Port};
use crate::sys::{IoVec, Staging};
use crate::time::Time;

/// The most completions, of all connections, that may wait at a time. Every turn takes them out,
/// but one turn may serve thousands of connections.
const CQ_DEPTH: usize = 1 << 20;
/// The most outstanding send WRs of one connection. The RNIC may allow fewer.
const MAX_SEND_WR: usize = 256;

/// Maps memory of the library's own.
pub(super) fn map(len: usize) -> Result<Segment, RnicError> {
    Region::map(len)
        .and_then(|region| region.segment(0, len))
        .map_err(|_| RnicError::Os { call: "mmap", errno: libc::ENOMEM })
}

/// Maps memory of the library's own that the shm driver can share with a peer on this host.
pub(super) fn map_shared(len: usize) -> Result<Segment, RnicError> {
    Region::map_shared(len)
        .and_then(|region| region.segment(0, len))
        .map_err(|_| RnicError::Os { call: "mmap", errno: libc::ENOMEM })
}

/// An RNIC and the engine's objects on it.
pub(crate) struct Device {
    pub(super) index: usize,
    pub(super) rnic: Box<dyn Rnic>,
    pub(super) transport: Transport,
    /// The device was removed: the engine begins nothing new on it.
    pub(super) gone: bool,
    /// The queue of all its completions. None: the device has not been used yet.
    cq: Option<Cq>,
    domains: Vec<Domain>,
    /// The number of the next domain.
    next_domain: u32,
    /// Bytes of files that other threads fetch for connections.
    pub(super) staging: Staging<Qp>,
    /// The errno of reads that have ended early, by queue pair and `wr_id`.
    pub(super) short_files: HashMap<(Qp, u64), i32>,
    registrar: Registrar,
    /// Some connections share a stream to their peer, as the last run has found.
    pub(super) shares_streams: bool,
    /// The answers that may leave together.
    pub(super) answers: AnswerBurst,
}

/// The shard's name among the registrations of a region, and the list to which they return when
/// they end.
#[derive(Clone)]
pub(super) struct Registrar {
    context: u64,
    home: Arc<dyn ReleaseRegistration>,
}

impl Registrar {
    /// `context` is the number of the shard, which no other shard of the process ever has.
    pub(super) fn new(context: u64, home: Arc<dyn ReleaseRegistration>) -> Registrar {
        Registrar { context, home }
    }

    pub(super) fn context(&self) -> u64 {
        self.context
    }
}

const UNUSED: RnicError = RnicError::NoSuch { what: "protection domain in use", id: 0 };

impl Device {
    pub(super) fn new(
        index: usize,
        rnic: Box<dyn Rnic>,
        transport: Transport,
        registrar: &Registrar,
    ) -> Device {
        let (cq, domains) = (None, Vec::new());
        let (staging, short_files) = (Staging::default(), HashMap::new());
        Device {
            index,
            rnic,
            transport,
            gone: false,
            cq,
            domains,
            next_domain: 0,
            staging,
            short_files,
            registrar: registrar.clone(),
            shares_streams: false,
            answers: AnswerBurst::default(),
        }
    }

    /// The answers of a connection and of those that share its stream. None: it has a stream of its own.
    #[inline]
    pub(super) fn answers_of(&mut self, qp: Option<Qp>) -> Option<&mut AnswerBurst> {
        let shares = self.shares_streams && qp.is_some_and(|qp| self.rnic.shares_stream(qp));
        shares.then_some(&mut self.answers)
    }

    /// A message has come for a connection that was counted last in `counted`.
    #[inline]
    pub(super) fn note_message(&mut self, qp: Qp, counted: &mut BusyWindow) {
        if let Some(answers) = self.answers_of(Some(qp)) {
            answers.ask(counted);
        }
    }

    /// True if no domain has users or registrations, so that nothing can refer to the device any
    /// more.
    pub(super) fn is_unused(&self) -> bool {
        self.domains.iter().all(Domain::is_unused)
    }

    /// True if devices of several shards can accept at one port.
    pub(super) fn shares_ports(&self) -> bool {
        self.is_software()
    }

    /// True if the device is made of software.
    pub(super) fn is_software(&self) -> bool {
        matches!(self.transport, Transport::Soft | Transport::Shm)
    }

    /// The same device, in the place of a removed device. Its domains continue the numbering of the
    /// old device, so that no number means two domains.
    pub(super) fn in_place_of(self, old: &Device) -> Device {
        Device { next_domain: old.next_domain, ..self }
    }

    pub(super) fn name(&self) -> &str {
        &self.rnic.caps().name
    }

    /// Enters the domain of a trust group, and makes it if need be. The caller must leave it by
    /// `leave`.
    pub(super) fn enter(&mut self, group: Option<&str>) -> Result<u32, RnicError> {
        let rnic = self.rnic.as_mut();
        if self.cq.is_none() {
            self.cq = Some(rnic.create_cq(CQ_DEPTH)?);
        }
        let id = match self.domains.iter().find(|d| d.is_of(group)) {
            Some(d) => d.id,
            None => {
                let id = self.next_domain;
                self.domains.push(Domain::new(rnic, id, group)?);
                self.next_domain += 1;
                id
            }
        };
        let (rnic, domain) = self.domain(id)?;
        domain.users += 1;
        if let Err(e) = domain.open(rnic) {
            self.leave(id);
            return Err(e);
        }
        Ok(id)
    }

    /// Leaves a domain. Frees the objects that nothing uses any more.
    pub(super) fn leave(&mut self, id: u32) {
        if let Ok((_, domain)) = self.domain(id) {
            domain.users -= 1;
        }
        self.tidy(id);
    }

    fn tidy(&mut self, id: u32) {
        if let Ok((rnic, domain)) = self.domain(id)
            && domain.close(rnic)
        {
            self.domains.retain(|d| d.id != id);
        }
    }

    pub(super) fn domain(&mut self, id: u32) -> Result<(&mut dyn Rnic, &mut Domain), RnicError> {
        // A device has few domains, and the first is the usual answer.
        let domain = self.domains.iter_mut().find(|d| d.id == id).ok_or(UNUSED)?;
        Ok((self.rnic.as_mut(), domain))
    }

    /// The pools of a domain that has connections.
    pub(super) fn pools(&mut self, id: u32) -> Result<(&mut dyn Rnic, &mut Pools), RnicError> {
        let (rnic, domain) = self.domain(id)?;
        Ok((rnic, domain.pools.as_mut().ok_or(UNUSED)?))
    }

    /// The pools of all domains.
    pub(super) fn all_pools(&mut self) -> impl Iterator<Item = &mut Pools> {
        self.domains.iter_mut().filter_map(|d| d.pools.as_mut())
    }

    /// Takes up to `max` completions out of the queue. Returns their number.
    pub(super) fn poll_cq(&mut self, max: usize, out: &mut Vec<Wc>) -> usize {
        // The queue exists, so the call cannot fail.
        self.cq.map_or(0, |cq| self.rnic.poll_cq(cq, max, out).unwrap_or(0))
    }

    /// A message in a receive slot has been handled, so the slot can be used again.
    pub(super) fn return_slot(&mut self, slot: u64) {
        let gone = self.gone;
        // If its domain is gone, so is the slot.
        if let Ok((rnic, pools)) = self.pools(Receives::domain_of(slot)) {
            // The SRQ has room, since this slot came out of it.
            let posted = pools.receives.give_back(rnic, slot);
            debug_assert!(posted.is_ok() || gone, "{posted:?}");
        }
    }

    /// The `len` bytes that arrived in a slot.
    pub(super) fn slot(&mut self, slot: u64, len: u64) -> Option<Segment> {
        self.pools(Receives::domain_of(slot)).ok()?.1.receives.get(slot, len)
    }

    /// The credits of each connection.
    pub(super) fn credits(caps: &Caps) -> u16 {
        credits(caps)
    }

    /// The send WRs that each connection may have outstanding.
    pub(super) fn send_depth(caps: &Caps) -> usize {
        caps.max_send_wr.clamp(4, MAX_SEND_WR)
    }

    /// Makes a queue pair for a connection, and slots for the messages of its peer. The caller has
    /// entered the domain. `sock` is the number of the connection's socket.
    pub(super) fn create_qp(&mut self, id: u32, sock: u32) -> Result<Qp, RnicError> {
        self.add_qp(id, sock, |rnic, attr| rnic.create_qp(attr))
    }

    fn add_qp(
        &mut self,
        id: u32,
        sock: u32,
        make: impl FnOnce(&mut dyn Rnic, &QpAttr) -> Result<Qp, RnicError>,
    ) -> Result<Qp, RnicError> {
        let cq = self.cq.ok_or(UNUSED)?;
        let (rnic, domain) = self.domain(id)?;
        let (pd, pools) = (domain.pd, domain.pools.as_mut().ok_or(UNUSED)?);
        let qp = pools.receives.equip(rnic, |rnic, srq| {
            let attr = QpAttr {
                pd,
                send_cq: cq,
                recv_cq: cq,
                srq: Some(srq),
                max_send_wr: Device::send_depth(rnic.caps()),
                max_recv_wr: 0,
                context: sock,
            };
            make(rnic, &attr)
        })?;
        domain.users += 1;
        Ok(qp)
    }

    /// Destroys the queue pair of a connection, and leaves the domain.
    pub(super) fn destroy_qp(&mut self, domain: u32, qp: Qp) {
        self.drop_files(domain, qp);
        if let Ok((rnic, pools)) = self.pools(domain) {
            // The queue pair exists, so this cannot fail.
            let _ = rnic.destroy_qp(qp);
            pools.receives.release(rnic, qp);
        }
        self.leave(domain);
    }

    /// Takes a connection at rest out of the device, and leaves the domain.
    pub(super) fn detach_connection(
        &mut self,
        domain: u32,
        qp: Qp,
    ) -> Result<DetachedConnection, RnicError> {
        let connection = self.rnic.detach_connection(qp)?;
        if let Ok((rnic, pools)) = self.pools(domain) {
            pools.receives.release(rnic, qp);
        }
        self.leave(domain);
        Ok(connection)
    }

    /// As [`create_qp`](Device::create_qp), for a connection of another shard.
    pub(super) fn adopt_connection(
        &mut self,
        id: u32,
        sock: u32,
        connection: DetachedConnection,
        ring: Option<Mr>,
    ) -> Result<Qp, RnicError> {
        self.add_qp(id, sock, |rnic, attr| rnic.adopt_connection(attr, connection, ring))
    }

    pub(super) fn reg_mr(
        &mut self,
        domain: u32,
        seg: &Segment,
        access: Access,
    ) -> Result<Mr, RnicError> {
        let (rnic, domain) = self.domain(domain)?;
        let mr = rnic.reg_mr(domain.pd, seg, access)?;
        domain.registrations += 1;
        Ok(mr)
    }

    /// Ends a registration. It exists, so this fails only if the device is gone.
    pub(super) fn dereg_mr(&mut self, domain: u32, mr: Mr) {
        let gone = self.gone;
        let Ok((rnic, d)) = self.domain(domain) else { return };
        let ended = rnic.dereg_mr(mr);
        debug_assert!(ended.is_ok() || gone, "{ended:?}");
        d.registrations -= 1;
        self.tidy(domain);
    }

    /// Refuses a connection request.
    pub(super) fn reject(&mut self, req: ConnReq, private_data: &[u8], now: Time) {
        // Fails only if the peer has hung up.
        let _ = self.rnic.reject(req, private_data, now);
    }

    /// Closes a listener, and leaves its domain.
    pub(super) fn end_listener(&mut self, domain: u32, listener: Listener) {
        // The listener exists, so this fails only if the device is gone.
        let _ = self.rnic.close_listener(listener);
        self.leave(domain);
    }

    /// The error of an operation that needs this device, which was removed.
    #[cold]
    pub(super) fn removed(&self) -> Error {
        Error::NoDevice { why: format!("the RDMA device {} was removed", self.name()) }
    }

    /// The port of a connection's session.
    pub(super) fn port(&mut self, domain: u32, qp: Qp, now: Time) -> SockPort<'_> {
        SockPort { device: self, domain, qp, now }
    }

    /// The window of `buffer`, under the registration of its whole region in this domain. Makes
    /// that registration if need be.
    pub(super) fn durable(&mut self, domain: u32, buffer: &Buffer) -> Result<Buf, Error> {
        let context = self.registrar.context;
        let place = Place { device: self.index, domain };
        let key = buffer.registration::<RnicError>(context, place.tag(), || {
            let mr = self.reg_mr(domain, &buffer.region_segment(), Access::LOCAL)?;
            Ok((mr.key, Arc::clone(&self.registrar.home)))
        })?;
        Ok(Buf { seg: buffer.segment(), mr: Mr { key } })
    }
}

/// The device, as the session of one connection sees it.
pub(super) struct SockPort<'a> {
    device: &'a mut Device,
    domain: u32,
    qp: Qp,
    now: Time,
}

impl Port for SockPort<'_> {
    fn caps(&self) -> &Caps {
        self.device.rnic.caps()
    }

    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), RnicError> {
        match &wr.file {
            Some(range) => self.device.post_file(self.domain, self.qp, wr, range),
            None => self.device.rnic.post_send(self.qp, wr),
        }
    }

    fn try_send_eager(
        &mut self,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        self.device.rnic.try_send_eager(self.qp, payload, head)
    }

    fn file_room(&mut self, range: &FileRange) -> u64 {
        self.device.file_room(self.domain, self.qp, range)
    }

    fn add_receives(&mut self, count: u16) -> u16 {
        let Ok((rnic, pools)) = self.device.pools(self.domain) else { return 0 };
        pools.receives.add(rnic, self.qp, count)
    }

    fn drop_receives(&mut self) -> ExtraReceives {
        match self.device.pools(self.domain) {
            Ok((rnic, pools)) => pools.receives.drop_extra(rnic, self.qp),
            Err(_) => ExtraReceives::default(),
        }
    }

    fn bind(&mut self, mr: Mr, addr: u64, len: u64, access: Access) -> Result<Key, RnicError> {
        self.device.rnic.bind_mw(self.qp, mr, addr, len, access)
    }

    fn lend(&mut self, mr: Mr, addr: u64, len: u64, access: Access) -> Result<Key, RnicError> {
        self.device.rnic.lend_mw(self.qp, mr, addr, len, access)
    }

    fn invalidate_is_costly(&self, key: Key) -> bool {
        self.device.rnic.invalidate_is_costly(key)
    }

    fn invalidate(&mut self, key: Key) {
        // Fails only if the peer has invalidated the window, or if the queue pair is gone, and its
        // windows with it.
        let _ = self.device.rnic.invalidate_mw(self.qp, key);
    }

    fn alloc(&mut self, len: usize) -> Result<Buf, RnicError> {
        let seg = map(len)?;
        let mr = self.device.reg_mr(self.domain, &seg, Access::LOCAL)?;
        Ok(Buf { seg, mr })
    }

    fn free(&mut self, buf: Buf) {
        self.device.dereg_mr(self.domain, buf.mr);
    }

    fn disconnect(&mut self, how: Disconnect) {
        // Fails only if the queue pair is gone already.
        let _ = self.device.rnic.disconnect(self.qp, how, self.now);
    }
}
