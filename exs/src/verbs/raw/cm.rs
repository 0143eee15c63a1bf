//! Connection management: librdmacm's event channel and its ids.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use super::abi as sys;
use super::profile::Profile;
use super::reaper::{self, IdToFree, QpToFree};
use super::{CompQueue, Device, Domain, SharedQueue, check, last};
use crate::sys::{ProcessNumber, RawAddr};

/// `RDMA_OPTION_ID` and its `RDMA_OPTION_ID_AFONLY`.
pub(super) const OPTION_ID: i32 = 0;
const ID_AFONLY: i32 = 2;

/// An event channel.
pub(in super::super) struct CmChannel {
    pub(super) raw: NonNull<sys::rdma_event_channel>,
    /// Held while an event is taken, and while a queue pair is detached from its id. librdmacm moves
    /// the queue pair of a rejected id to the error state before it hands out the event.
    event_lock: Mutex<()>,
}

// SAFETY: event channels may be used from any thread.
unsafe impl Send for CmChannel {}
// SAFETY: as for Send.
unsafe impl Sync for CmChannel {}

/// An event, copied out and acknowledged.
pub(in super::super) struct CmNote {
    /// Raw value of `rdma_cm_event_type`.
    pub(in super::super) event: u32,
    /// 0, a negative errno, or the CM's reason of a reject.
    pub(in super::super) status: i32,
    /// Serial of the id, or of the listening id for a connection request.
    pub(in super::super) serial: usize,
    /// The new id of a connection request; None: the event is another one.
    pub(in super::super) request: Option<CmId>,
    /// READs at a time that the peer lets us issue, and that it wants to issue.
    pub(in super::super) ord: u8,
    pub(in super::super) ird: u8,
    pub(in super::super) private_data: Vec<u8>,
}

impl CmChannel {
    pub(in super::super) fn new() -> io::Result<Arc<CmChannel>> {
        // SAFETY: no conditions.
        let channel = unsafe { sys::rdma_create_event_channel() };
        let raw = NonNull::new(channel).ok_or_else(last)?;
        let channel = CmChannel { raw, event_lock: Mutex::new(()) };
        super::nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    pub(in super::super) fn fd(&self) -> i32 {
        // SAFETY: a live channel; a plain number is read.
        unsafe { (*self.raw.as_ptr()).fd }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.event_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes its queue pair away from an id of this channel: librdmacm does not touch it any
    /// more.
    fn detach_qp(&self, id: NonNull<sys::rdma_cm_id>) -> Option<NonNull<sys::ibv_qp>> {
        let _held = self.lock();
        // SAFETY: a live id, which its caller alone uses. librdmacm reads the field while it
        // takes an event, which the lock excludes, and in calls on the id.
        NonNull::new(unsafe { std::mem::replace(&mut (*id.as_ptr()).qp, std::ptr::null_mut()) })
    }

    /// Takes the next event, if there is one.
    pub(in super::super) fn next(self: &Arc<Self>) -> Option<CmNote> {
        let mut event = std::ptr::null_mut();
        let held = self.lock();
        // SAFETY: a live channel; `event` is written if 0 is returned.
        if unsafe { sys::rdma_get_cm_event(self.raw.as_ptr(), &raw mut event) } != 0 {
            return None;
        }
        drop(held);
        // SAFETY: a valid event until it is acknowledged; the reference ends before.
        let taken = unsafe { &*event };
        // SAFETY: not acknowledged yet.
        let note = unsafe { self.copy(taken) };
        // SAFETY: the event just taken, acknowledged once.
        unsafe { sys::rdma_ack_cm_event(event) };
        Some(note)
    }

    /// # Safety
    /// `event` must not have been acknowledged.
    unsafe fn copy(self: &Arc<Self>, event: &sys::rdma_cm_event) -> CmNote {
        let request = event.event == sys::rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
        let known = if request { event.listen_id } else { event.id };
        // SAFETY: the id lives: to destroy it would wait for the acknowledgement. Its
        // context is a number of ours.
        let serial = unsafe { (*known).context }.addr();
        // SAFETY: connections of the port space TCP have the `conn` form.
        let conn = unsafe { &event.param.conn };
        let len = usize::from(conn.private_data_len);
        let private_data = if conn.private_data.is_null() || len == 0 {
            Vec::new()
        } else {
            // SAFETY: private data of that length lies in the event.
            unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len) }.to_vec()
        };
        CmNote {
            event: event.event,
            status: event.status,
            serial,
            request: if request { CmId::adopt(event.id, self) } else { None },
            ord: conn.initiator_depth,
            ird: conn.responder_resources,
            private_data,
        }
    }
}

impl Drop for CmChannel {
    fn drop(&mut self) {
        // SAFETY: ours; ids on it hold it by its `Arc`.
        unsafe { sys::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}

/// The attributes of a queue pair to make.
pub(in super::super) struct QpShape<'a> {
    pub(in super::super) pd: &'a Arc<Domain>,
    pub(in super::super) send_cq: &'a Arc<CompQueue>,
    pub(in super::super) recv_cq: &'a Arc<CompQueue>,
    pub(in super::super) srq: Option<&'a Arc<SharedQueue>>,
    pub(in super::super) max_send_wr: u32,
    pub(in super::super) max_recv_wr: u32,
    pub(in super::super) max_sge: u32,
    pub(in super::super) max_inline: u32,
}

/// The parameters of connect and accept.
pub(in super::super) struct ConnAttr<'a> {
    pub(in super::super) private_data: &'a [u8],
    pub(in super::super) ird: u8,
    pub(in super::super) ord: u8,
    /// How many times the device sends again what was not acknowledged, and what found no receive.
    pub(in super::super) retries: (u8, u8),
}

/// Objects that a queue pair uses, and must not outlive.
pub(super) struct QpObjects(
    #[expect(dead_code, reason = "held, not read")]
    (Arc<Domain>, Arc<CompQueue>, Arc<CompQueue>, Option<Arc<SharedQueue>>),
);

/// An id: a connection, perhaps with its queue pair, or a listener. The reaper frees it, as that
/// may take long.
pub(in super::super) struct CmId {
    pub(super) id: NonNull<sys::rdma_cm_id>,
    serial: usize,
    users: Option<QpObjects>,
    pub(super) channel: Arc<CmChannel>,
    end: IdEnd,
}

/// How an id is freed.
enum IdEnd {
    /// In the background. No thread waits for it.
    Background,
    /// In the background. The receiver learns when it is done.
    Reported(mpsc::Sender<()>),
    /// At once: the id was bound or resolved at most, so the kernel waits for nothing.
    AtOnce,
}

// SAFETY: an id may be used from any thread (rdma_cm(7)).
unsafe impl Send for CmId {}
// SAFETY: all calls on one id are made under the lock of the engine that has it, except `connect`.
// That may run in a thread of its own while another handles the events of the id, as librdmacm's own
// users do. It writes only the parameters of the connection request. Before the connection is made no
// other call uses the id, except to put its queue pair into the error state, and the queue pair is
// another object.
unsafe impl Sync for CmId {}

/// Serials name ids in events. Addresses would not do: they are used again.
fn next_serial() -> usize {
    static NEXT: ProcessNumber = ProcessNumber::new(1);
    usize::try_from(NEXT.add(1)).expect("fewer ids than addresses")
}

impl CmId {
    pub(in super::super) fn new(channel: &Arc<CmChannel>) -> io::Result<CmId> {
        let serial = next_serial();
        let (mut id, tag) = (std::ptr::null_mut(), std::ptr::without_provenance_mut(serial));
        let space = sys::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: a live channel; the tag is never followed; `id` is written on success.
        check(unsafe { sys::rdma_create_id(channel.raw.as_ptr(), &raw mut id, tag, space) })?;
        let id = NonNull::new(id).ok_or_else(last)?;
        Ok(CmId { id, serial, users: None, channel: Arc::clone(channel), end: IdEnd::Background })
    }

    /// Takes over the id of a connection request.
    fn adopt(id: *mut sys::rdma_cm_id, channel: &Arc<CmChannel>) -> Option<CmId> {
        let serial = next_serial();
        let id = NonNull::new(id)?;
        // SAFETY: an id of librdmacm's that is ours from now on.
        unsafe { (*id.as_ptr()).context = std::ptr::without_provenance_mut(serial) };
        Some(CmId { id, serial, users: None, channel: Arc::clone(channel), end: IdEnd::Background })
    }

    pub(in super::super) fn serial(&self) -> usize {
        self.serial
    }

    /// The device the id is bound to.
    pub(in super::super) fn device(&self) -> Option<Device> {
        // SAFETY: a live id; a pointer is read.
        Device::from_raw(unsafe { (*self.id.as_ptr()).verbs })
    }

    pub(in super::super) fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let (mut raw, _) = RawAddr::new(&addr);
        // SAFETY: a live id and a valid address.
        check(unsafe { sys::rdma_bind_addr(self.id.as_ptr(), raw.as_mut_ptr().cast()) })
    }

    pub(in super::super) fn listen(&self, backlog: u32) -> io::Result<()> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: a live id.
        check(unsafe { sys::rdma_listen(self.id.as_ptr(), backlog) })
    }

    pub(in super::super) fn resolve_addr(
        &self,
        bind: Option<SocketAddr>,
        addr: SocketAddr,
        timeout: Duration,
    ) -> io::Result<()> {
        let mut from = bind.map(|a| RawAddr::new(&a).0);
        let from = from.as_mut().map_or(std::ptr::null_mut(), |a| a.as_mut_ptr());
        let (mut to, _) = RawAddr::new(&addr);
        let ms = millis(timeout);
        // SAFETY: a live id and valid addresses.
        check(unsafe {
            sys::rdma_resolve_addr(self.id.as_ptr(), from.cast(), to.as_mut_ptr().cast(), ms)
        })
    }

    pub(in super::super) fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        // SAFETY: a live id.
        check(unsafe { sys::rdma_resolve_route(self.id.as_ptr(), millis(timeout)) })
    }

    /// Keeps IPv4 connections away from an IPv6 wildcard.
    pub(in super::super) fn v6_only(&self) -> io::Result<()> {
        let mut yes: std::os::raw::c_int = 1;
        // SAFETY: a live id, and the option's int.
        check(unsafe {
            let at = (&raw mut yes).cast();
            sys::rdma_set_option(self.id.as_ptr(), OPTION_ID, ID_AFONLY, at, size_of_val(&yes))
        })
    }

    /// The port of the device that the id is bound to.
    pub(in super::super) fn port(&self) -> u8 {
        // SAFETY: a live id; a plain number is read.
        unsafe { (*self.id.as_ptr()).port_num }
    }

    /// Makes the queue pair. Returns the bytes that may be posted inline.
    pub(in super::super) fn create_qp(&mut self, shape: &QpShape<'_>) -> io::Result<u32> {
        let mut attr = sys::ibv_qp_init_attr {
            qp_context: std::ptr::without_provenance_mut(self.serial),
            send_cq: shape.send_cq.ptr(),
            recv_cq: shape.recv_cq.ptr(),
            srq: shape.srq.map_or(std::ptr::null_mut(), |s| s.ptr()),
            cap: sys::ibv_qp_cap {
                max_send_wr: shape.max_send_wr,
                max_recv_wr: if shape.srq.is_some() { 0 } else { shape.max_recv_wr },
                max_send_sge: shape.max_sge,
                max_recv_sge: if shape.srq.is_some() { 0 } else { shape.max_sge },
                max_inline_data: shape.max_inline,
            },
            qp_type: sys::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        Profile::current().create_qp(
            (attr.cap.max_send_wr, attr.cap.max_recv_wr),
            (attr.cap.max_send_sge, attr.cap.max_recv_sge),
            attr.cap.max_inline_data,
        )?;
        super::forget_last();
        // SAFETY: a live id without a queue pair, a live domain, and a structure that
        // names live objects, which `users` keeps alive from here on.
        check(unsafe { sys::rdma_create_qp(self.id.as_ptr(), shape.pd.ptr(), &raw mut attr) })?;
        self.users = Some(QpObjects((
            Arc::clone(shape.pd),
            Arc::clone(shape.send_cq),
            Arc::clone(shape.recv_cq),
            shape.srq.map(Arc::clone),
        )));
        Ok(attr.cap.max_inline_data)
    }

    pub(super) fn qp(&self) -> *mut sys::ibv_qp {
        // SAFETY: a live id; a pointer is read.
        unsafe { (*self.id.as_ptr()).qp }
    }

    /// The number of the queue pair, if there is one.
    pub(in super::super) fn qp_num(&self) -> Option<u32> {
        // SAFETY: a live queue pair; a plain number is read.
        NonNull::new(self.qp()).map(|qp| unsafe { (*qp.as_ptr()).qp_num })
    }

    /// Moves the queue pair to the error state, which flushes all its work.
    pub(in super::super) fn fail_qp(&self) {
        let Some(qp) = NonNull::new(self.qp()) else { return };
        let mut attr = MaybeUninit::<sys::ibv_qp_attr>::zeroed();
        // SAFETY: in bounds of the structure, of which all bits zero are valid.
        unsafe { (*attr.as_mut_ptr()).qp_state = sys::ibv_qp_state::IBV_QPS_ERR };
        let mask = i32::try_from(sys::ibv_qp_attr_mask::IBV_QP_STATE.0).unwrap_or(1);
        // SAFETY: a live queue pair. It fails if the state is that already, or if the
        // device is gone; both are as good.
        unsafe { sys::ibv_modify_qp(qp.as_ptr(), attr.as_mut_ptr(), mask) };
    }

    /// Frees the queue pair. From then on its work touches no memory, and completes no more.
    pub(in super::super) fn destroy_qp(&mut self) {
        drop(self.detach_qp());
    }

    fn detach_qp(&mut self) -> QpToFree {
        QpToFree { qp: self.channel.detach_qp(self.id), users: self.users.take() }
    }

    /// Frees an id that was bound or resolved at most, before this returns.
    pub(in super::super) fn free(mut self) {
        self.end = IdEnd::AtOnce;
    }

    /// Frees a listener, and waits up to `patience` for that. False if it is not freed by then, and its
    /// port is still taken.
    pub(in super::super) fn close(mut self, patience: Duration) -> bool {
        let (done_tx, done_rx) = mpsc::channel();
        self.end = IdEnd::Reported(done_tx);
        drop(self);
        // No message is ever sent: the sender is dropped when the id is freed.
        done_rx.recv_timeout(patience) != Err(mpsc::RecvTimeoutError::Timeout)
    }

    pub(in super::super) fn connect(&self, attr: &ConnAttr<'_>) -> io::Result<()> {
        let mut param = conn_param(attr);
        Profile::current().connect(attr.ird, attr.ord)?;
        // SAFETY: a live id; the private data outlive the call.
        check(unsafe { sys::rdma_connect(self.id.as_ptr(), &raw mut param) })
    }

    pub(in super::super) fn accept(&self, attr: &ConnAttr<'_>) -> io::Result<()> {
        let mut param = conn_param(attr);
        Profile::current().connect(attr.ird, attr.ord)?;
        // SAFETY: a live id; the private data outlive the call.
        check(unsafe { sys::rdma_accept(self.id.as_ptr(), &raw mut param) })
    }

    pub(in super::super) fn reject(&self, private_data: &[u8]) -> io::Result<()> {
        let len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
        // SAFETY: a live id; the private data outlive the call.
        check(unsafe { sys::rdma_reject(self.id.as_ptr(), private_data.as_ptr().cast(), len) })
    }

    /// Asks for the end of the connection. The queue pair goes to the error state.
    pub(in super::super) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: a live id.
        check(unsafe { sys::rdma_disconnect(self.id.as_ptr()) })
    }

    pub(in super::super) fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: a live id; in bounds of it.
        let at = unsafe { &raw const (*self.id.as_ptr()).route.addr }.cast::<sys::rdma_addr>();
        // SAFETY: as above: the source is the first of a route's addresses.
        let at = unsafe { &raw const (*at).src_addr_union };
        // SAFETY: a storage that holds any family's address, zero if there is none.
        unsafe { crate::sys::from_raw(at.cast()) }
    }

    pub(in super::super) fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: a live id; in bounds of it.
        let at = unsafe { &raw const (*self.id.as_ptr()).route.addr }.cast::<sys::rdma_addr>();
        // SAFETY: as above: the destination comes next.
        let at = unsafe { &raw const (*at).dst_addr_union };
        // SAFETY: a storage that holds any family's address, zero if there is none.
        unsafe { crate::sys::from_raw(at.cast()) }
    }
}

/// The error of a call on an id without a queue pair.
pub(super) fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOTCONN)
}

fn millis(d: Duration) -> i32 {
    i32::try_from(d.as_millis()).unwrap_or(i32::MAX).max(1)
}

fn conn_param(attr: &ConnAttr<'_>) -> sys::rdma_conn_param {
    sys::rdma_conn_param {
        private_data: attr.private_data.as_ptr().cast(),
        private_data_len: u8::try_from(attr.private_data.len()).unwrap_or(u8::MAX),
        responder_resources: attr.ird,
        initiator_depth: attr.ord,
        flow_control: 1,
        retry_count: attr.retries.0,
        rnr_retry_count: attr.retries.1,
        srq: 0,
        qp_num: 0,
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        let (now, done_tx) = match std::mem::replace(&mut self.end, IdEnd::Background) {
            IdEnd::AtOnce => (true, None),
            IdEnd::Background => (false, None),
            IdEnd::Reported(done_tx) => (false, Some(done_tx)),
        };
        let pair = self.detach_qp();
        let id = IdToFree { pair, id: self.id, channel: Arc::clone(&self.channel), done_tx };
        if now { drop(id) } else { reaper::free_soon(id) }
    }
}
