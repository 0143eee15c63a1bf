//! Devices: their attributes, and their asynchronous events.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::abi as sys;
use super::profile::Profile;
use crate::mem::Atomics;

/// An open device. librdmacm has opened it, and keeps it open as long as the process lives. So this
/// is only a name for it, and may be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Device(NonNull<sys::ibv_context>);

// SAFETY: contexts are thread-safe (ibv_open_device(3)), and live for ever.
unsafe impl Send for Device {}
// SAFETY: as for Send.
unsafe impl Sync for Device {}

/// The attributes of a device (`ibv_device_attr_ex`), as far as the driver uses them.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Attr {
    pub(in super::super) firmware: String,
    pub(in super::super) guid: u64,
    pub(in super::super) vendor: (u32, u32),
    pub(in super::super) iwarp: bool,
    pub(in super::super) max_qp: u32,
    pub(in super::super) max_qp_wr: u32,
    pub(in super::super) max_sge: u32,
    pub(in super::super) max_cqe: u32,
    pub(in super::super) max_mr: u32,
    pub(in super::super) max_mr_size: u64,
    pub(in super::super) max_srq: u32,
    pub(in super::super) max_srq_wr: u32,
    /// READs that a QP answers and issues at a time.
    pub(in super::super) max_ird: u32,
    pub(in super::super) max_ord: u32,
    /// Type-2 memory windows.
    pub(in super::super) windows: bool,
    /// Atomic operations that it executes for its peers.
    pub(in super::super) atomics: Atomics,
    /// On-demand paging for all operations of the driver on reliable connections.
    pub(in super::super) odp: bool,
    pub(in super::super) ports: u8,
}

/// Receives of a shared receive queue, below which the driver uses none.
const LEAST_SRQ_WR: u32 = 256;

impl Attr {
    /// True if the device has shared receive queues that are long enough.
    pub(in super::super) fn has_srq(&self) -> bool {
        self.max_srq > 0 && self.max_srq_wr >= LEAST_SRQ_WR
    }

    /// The kernel's Soft-RoCE, by its vendor ID.
    pub(in super::super) fn is_rxe(&self) -> bool {
        self.vendor.0 == 0xff_ffff && !self.iwarp
    }

    /// The kernel's Soft-iWARP, by its vendor ID ("bmt").
    pub(in super::super) fn is_siw(&self) -> bool {
        self.vendor.0 == 0x62_6d74 && self.iwarp
    }
}

/// The attributes of a port.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct PortAttr {
    /// Raw value of `ibv_port_state`: 4 is active.
    pub(in super::super) state: u32,
    /// Raw value of `ibv_mtu`: 1 is 256 bytes, 5 is 4096.
    pub(in super::super) mtu: u32,
    /// 1 InfiniBand, 2 Ethernet.
    pub(in super::super) link_layer: u8,
    pub(in super::super) width: u8,
    pub(in super::super) speed: u8,
    pub(in super::super) max_msg: u32,
    /// Entries of its table of P_Keys.
    pub(in super::super) pkeys: u16,
}

/// An asynchronous event. The type is the raw integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct AsyncNote {
    pub(in super::super) event: i32,
    /// Serial of the id whose queue pair the event concerns; None: it concerns none. By the time that
    /// the event is handled, another queue pair may have that number.
    pub(in super::super) serial: Option<usize>,
    /// The port that the event concerns; None: it concerns none.
    pub(in super::super) port: Option<i32>,
}

impl AsyncNote {
    /// The event's name in `verbs.h`.
    pub(in super::super) fn name(&self) -> &'static str {
        match self.event {
            0 => "IBV_EVENT_CQ_ERR",
            1 => "IBV_EVENT_QP_FATAL",
            2 => "IBV_EVENT_QP_REQ_ERR",
            3 => "IBV_EVENT_QP_ACCESS_ERR",
            4 => "IBV_EVENT_COMM_EST",
            8 => "IBV_EVENT_DEVICE_FATAL",
            9 => "IBV_EVENT_PORT_ACTIVE",
            10 => "IBV_EVENT_PORT_ERR",
            14 => "IBV_EVENT_SRQ_ERR",
            16 => "IBV_EVENT_QP_LAST_WQE_REACHED",
            18 => "IBV_EVENT_GID_CHANGE",
            _ => "an event of libibverbs",
        }
    }
}

/// `IBV_EVENT_QP_LAST_WQE_REACHED`.
const LAST_WQE: i32 = 16;
/// Events whose element is a QP.
const QP_EVENTS: [i32; 8] = [1, 2, 3, 4, 5, 6, 7, 16];
/// Events whose element is a port.
const PORT_EVENTS: [i32; 7] = [9, 10, 11, 12, 13, 17, 18];

/// The meaning of a raw `ibv_atomic_cap`. A value that is not known promises nothing.
fn atomics(cap: u32) -> Atomics {
    match cap {
        sys::ibv_atomic_cap::IBV_ATOMIC_HCA => Atomics::Device,
        sys::ibv_atomic_cap::IBV_ATOMIC_GLOB => Atomics::Host,
        _ => Atomics::None,
    }
}

fn count(n: std::os::raw::c_int) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

impl Device {
    /// The devices that librdmacm knows and that are not in `known`. ENODEV means "none".
    pub(in super::super) fn not_among(known: &[Device]) -> io::Result<Vec<Device>> {
        let mut n = 0;
        // SAFETY: the count is written; the result is null or a list of that length,
        // whose devices stay open as long as it is not freed.
        let list = unsafe { sys::rdma_get_devices(&raw mut n) };
        if list.is_null() {
            let e = super::last();
            return match e.raw_os_error() {
                None | Some(0 | libc::ENODEV | libc::ENOENT | libc::ENOSYS) => Ok(Vec::new()),
                _ => Err(e),
            };
        }
        let n = usize::try_from(n).unwrap_or(0);
        // SAFETY: a list of `n` pointers, as above.
        let found = unsafe { std::slice::from_raw_parts(list, n) };
        let found = found.iter().filter_map(|ctx| NonNull::new(*ctx)).map(Device);
        let new: Vec<Device> = found.filter(|d| !known.contains(d)).collect();
        if new.is_empty() {
            // SAFETY: the list from above, once. Its devices stay open: each of them is on
            // an earlier list, which was not freed.
            unsafe { sys::rdma_free_devices(list) };
        }
        Ok(new)
    }

    /// The device of a context pointer of librdmacm's.
    pub(super) fn from_raw(ctx: *mut sys::ibv_context) -> Option<Device> {
        NonNull::new(ctx).map(Device)
    }

    pub(super) fn ptr(self) -> *mut sys::ibv_context {
        self.0.as_ptr()
    }

    /// "rxe0", "mlx5_0".
    pub(in super::super) fn name(self) -> String {
        // SAFETY: the context lives for ever, its device with it; the name is a
        // string inside of the device.
        let name = unsafe { sys::ibv_get_device_name((*self.ptr()).device) };
        if name.is_null() {
            return "?".to_owned();
        }
        // SAFETY: a terminated string, see above.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// What the device can do.
    pub(in super::super) fn attr(self) -> io::Result<Attr> {
        let mut out = MaybeUninit::<sys::ibv_device_attr_ex>::zeroed();
        // SAFETY: the context is open; `out` is a zeroed structure of that type, of
        // plain numbers, for which all bits zero are valid.
        super::check(unsafe {
            sys::ibv_query_device_ex(self.ptr(), std::ptr::null(), out.as_mut_ptr())
        })?;
        // SAFETY: zeroed, then filled.
        let a = unsafe { out.assume_init_ref() };
        let o = &a.orig_attr;
        // SAFETY: the context lives for ever, and its device with it; a pointer is read.
        let device: *mut sys::ibv_device = unsafe { (*self.ptr()).device };
        // SAFETY: as above.
        let transport = unsafe { (*device).transport_type };
        let firmware: Vec<u8> =
            o.fw_ver.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect();
        let flags = o.device_cap_flags;
        let windows = sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0
            | sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
        // SEND, RECV, WRITE, READ, SRQ_RECV.
        let odp_ops = 1 | 2 | 4 | 8 | 32;
        let mut attr = Attr {
            firmware: String::from_utf8_lossy(&firmware).into_owned(),
            guid: u64::from_be(o.node_guid),
            vendor: (o.vendor_id, o.vendor_part_id),
            iwarp: transport == sys::ibv_transport_type::IBV_TRANSPORT_IWARP,
            max_qp: count(o.max_qp),
            max_qp_wr: count(o.max_qp_wr),
            max_sge: count(o.max_sge),
            max_cqe: count(o.max_cqe),
            max_mr: count(o.max_mr),
            max_mr_size: o.max_mr_size,
            max_srq: count(o.max_srq),
            max_srq_wr: count(o.max_srq_wr),
            max_ird: count(o.max_qp_rd_atom),
            max_ord: count(o.max_qp_init_rd_atom),
            windows: flags & windows != 0,
            atomics: atomics(o.atomic_cap),
            odp: a.odp_caps.general_caps & 1 != 0
                && a.odp_caps.per_transport_caps.rc_odp_caps & odp_ops == odp_ops,
            ports: o.phys_port_cnt,
        };
        Profile::current().lower(&mut attr);
        Ok(attr)
    }

    /// What a port is like.
    pub(in super::super) fn port(self, number: u8) -> io::Result<PortAttr> {
        let mut out = MaybeUninit::<sys::ibv_port_attr>::zeroed();
        // SAFETY: as for `attr`.
        super::check(unsafe { sys::___ibv_query_port(self.ptr(), number, out.as_mut_ptr()) })?;
        // SAFETY: zeroed, then filled; plain numbers.
        let p = unsafe { out.assume_init_ref() };
        Ok(PortAttr {
            state: p.state,
            mtu: p.active_mtu,
            link_layer: p.link_layer,
            width: p.active_width,
            speed: p.active_speed,
            max_msg: p.max_msg_sz,
            pkeys: p.pkey_tbl_len,
        })
    }

    /// The descriptor of asynchronous events.
    pub(in super::super) fn async_fd(self) -> io::Result<i32> {
        // SAFETY: the context lives for ever; a plain number is read.
        let fd = unsafe { (*self.ptr()).async_fd };
        super::nonblocking(fd)?;
        Ok(fd)
    }

    /// The next asynchronous event, if there is one.
    pub(in super::super) fn next_async(self) -> Option<AsyncNote> {
        let mut event = MaybeUninit::<sys::ibv_async_event>::zeroed();
        // SAFETY: the context is open; `event` is written if 0 is returned.
        if unsafe { sys::ibv_get_async_event(self.ptr(), event.as_mut_ptr()) } != 0 {
            return None;
        }
        let at = event.as_mut_ptr();
        // SAFETY: in bounds of the structure; read as the integer that C has there,
        // since its value may be none of the Rust enum's.
        let kind = unsafe { (&raw const (*at).event_type).cast::<i32>().read() };
        let (mut serial, mut port) = (None, None);
        if QP_EVENTS.contains(&kind) {
            // SAFETY: for these events the element is a QP, which cannot be destroyed
            // before its event is acknowledged below; its context is a number of ours.
            serial = Some(unsafe { (*(*at).element.qp).qp_context }.addr());
        } else if PORT_EVENTS.contains(&kind) {
            // SAFETY: for these events the element is a port number.
            port = Some(unsafe { (*at).element.port_num });
        }
        // SAFETY: the event just taken, acknowledged once.
        unsafe { sys::ibv_ack_async_event(at) };
        if kind == LAST_WQE && !Profile::current().reports_last_wqe() {
            return self.next_async();
        }
        Some(AsyncNote { event: kind, serial, port })
    }
}
