//! The types and constants of `<sys/exs.h>`, as C lays them out.
//!
//! `tests/header.rs` compares each size, offset and value with those of the C compiler.
#![allow(missing_docs)] // the header has the documentation

use libc::{c_int, c_uint, c_void, sockaddr_storage, socklen_t, timeval};

/// `exs_ahandle_t`
pub type AHandle = usize;

/// Constants with the header's names (without `EXS_` and a trailing family).
macro_rules! constants {
    ($($name:ident = $value:expr;)*) => {
        $(pub const $name: c_int = $value;)*
        /// Every constant, with its name in C.
        pub const CONSTANTS: &[(&str, i64)] = &[$((stringify!($name), $name as i64)),*];
    };
}

constants! {
    EXS_VERSION1 = 1;
    EXS_QHANDLE_INVALID = -1;
    EXS_MHANDLE_INVALID = -1;
    EXS_MHANDLE_UNREGISTERED = -2;
    EXS_IOVEC = 1;
    EXS_FDVEC = 2;
    EXS_IOV_MAX = 1024;
    EXS_POLLIN = 1;
    EXS_POLLOUT = 4;
    EXS_POLLERR = 8;
    EXS_POLLHUP = 16;
    EXS_SIG_DISABLE = 0;
    EXS_SIG_ENABLE = 1;
    EXS_EVT_POLL = 1;
    EXS_EVT_CONNECT = 2;
    EXS_EVT_ACCEPT = 3;
    EXS_EVT_SEND = 4;
    EXS_EVT_RECV = 5;
    EXS_EVT_SENDMSG = 6;
    EXS_EVT_RECVMSG = 7;
    EXS_EVT_SENDFILE = 8;
    EXS_EVT_SENDTIMEOUT = 9;
    EXS_EVT_RECVTIMEOUT = 10;
    EXS_EVT_SHUTDOWN = 11;
    EXS_EVT_CLOSE = 12;
    EXS_EVT_READ = 0x1001;
    EXS_EVT_WRITE = 0x1002;
    EXS_EVT_REVOKE = 0x1003;
    EXS_EVT_FETCH_ADD = 0x1004;
    EXS_EVT_COMPARE_SWAP = 0x1005;
    EXS_EVF_EOF = 1;
    EXS_EVF_TRUNC = 2;
    EXS_EVTVEC_MAX = 4096;
    EXS_QDEPTH_MAX = 1 << 20;
    EXS_QATTR_DEPTH = 1;
    EXS_QATTR_SIGNAL = 2;
    EXS_QATTR_EVENTS = 3;
    EXS_QATTR_WAIT = 4;
    EXS_WAIT_ADAPTIVE = 0;
    EXS_WAIT_NOTIFY = 1;
    EXS_WAIT_BUSY_POLL = 2;
    EXS_MRF_SHARED = 1;
    EXS_CLOSE_ABORT = 1;
    SO_ASYNC_SEND_TIMEOUT = 0x4558_0001;
    SO_ASYNC_RECV_TIMEOUT = 0x4558_0002;
    SO_ASYNC_RECV_ORDERED = 0x4558_0003;
    EXS_TIMEOUT_ONCE = 1;
    EXS_SHUT_WR = 1;
    EXS_CAF_FILDES = 1;
    EXS_CAF_AHANDLE = 2;
    EXS_REMOTE_SIZE = 24;
    EXS_RIGHT_READ = 1;
    EXS_RIGHT_WRITE = 2;
    EXS_RIGHT_ATOMIC = 4;
    EXS_ATOMICS_NONE = 0;
    EXS_ATOMICS_DEVICE = 1;
    EXS_ATOMICS_HOST = 2;
    SOL_EXS = 0x45_5853;
    EXS_SO_TRANSPORT = 1;
    EXS_SO_DEVICE = 2;
    EXS_SO_RING_SIZE = 3;
    EXS_SO_INLINE = 4;
    EXS_SO_MAX_MESSAGE = 5;
    EXS_SO_CONNECT_TIMEOUT = 6;
    EXS_SO_KEEP_ALIVE = 7;
    EXS_SO_DEAD_AFTER = 8;
    EXS_SO_CRC = 9;
    EXS_SO_ROUTE = 10;
    EXS_SO_POLLABLE = 11;
    EXS_SO_RETRY_COUNT = 12;
    EXS_SO_RNR_RETRY_COUNT = 13;
    EXS_SO_RNR_TIMER = 14;
    EXS_SO_ACK_TIMEOUT = 15;
    EXS_SO_ATOMICS = 16;
    EXS_SO_PEER_ATOMICS = 17;
    EXS_SO_PKEY = 18;
    EXS_SO_SERVICE_LEVEL = 19;
    EXS_SO_PATH_MTU = 20;
    EXS_MRF_UNMAPPED = 2;
}

/// `exs_iovec_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Iovec {
    pub exs_iov_base: *mut c_void,
    pub exs_iov_len: usize,
    pub exs_iov_mhandle: c_int,
    pub exs_iov_reserved: c_int,
}

/// `exs_fdvec_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Fdvec {
    pub exs_fdv_fd: c_int,
    pub exs_fdv_reserved: c_int,
    pub exs_fdv_offset: i64,
    pub exs_fdv_length: u64,
}

/// The union of `exs_xferfile_t`
#[derive(Clone, Copy)]
#[repr(C)]
pub union XferfileUnion {
    pub exs_xf_iovec: Iovec,
    pub exs_xf_fdvec: Fdvec,
}

/// `exs_xferfile_t`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Xferfile {
    pub exs_xf_type: c_int,
    pub exs_xf_reserved: c_int,
    pub exs_xf_union: XferfileUnion,
}

/// `exs_msghdr_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Msghdr {
    pub exs_msg_name: *mut c_void,
    pub exs_msg_namelen: socklen_t,
    pub exs_msg_iovlen: c_int,
    pub exs_msg_iov: *mut Iovec,
    pub exs_msg_control: *mut c_void,
    pub exs_msg_controllen: usize,
    pub exs_msg_flags: c_int,
    pub exs_msg_reserved: c_int,
}

/// `exs_acceptaddr_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Acceptaddr {
    pub exs_aa_addr: sockaddr_storage,
    pub exs_aa_addrlen: socklen_t,
    pub exs_aa_reserved: c_int,
}

/// `exs_pollfd_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Pollfd {
    pub exs_pfd_fd: c_int,
    pub exs_pfd_events: c_int,
    pub exs_pfd_revents: c_int,
    pub exs_pfd_reserved: c_int,
}

/// `exs_signal_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Signal {
    pub exs_sig_action: c_int,
    pub exs_sig_signo: c_int,
    pub exs_sig_value: usize,
    pub exs_sig_reserved: [u64; 2],
}

/// `exs_timeout_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Timeout {
    pub exs_to_time: timeval,
    pub exs_to_flags: c_int,
    pub exs_to_reserved: c_int,
}

/// `exs_evt_xfer_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EvtXfer {
    pub exs_evt_length: usize,
    pub exs_evt_buffer: *mut c_void,
    pub exs_evt_total: u64,
}

/// `exs_evt_xfermsg_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EvtXfermsg {
    pub exs_evt_length: usize,
    pub exs_evt_msghdr: *mut Msghdr,
    pub exs_evt_total: u64,
}

/// `exs_evt_xferfile_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EvtXferfile {
    pub exs_evt_length: usize,
    pub exs_evt_xferfile: *mut Xferfile,
}

/// `exs_evt_accept_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EvtAccept {
    pub exs_evt_newsocket: c_int,
    pub exs_evt_reserved: c_int,
    pub exs_evt_acceptaddr: *mut Acceptaddr,
}

/// `exs_evt_poll_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EvtPoll {
    pub exs_evt_revents: c_int,
    pub exs_evt_reserved: c_int,
    pub exs_evt_pollfd: *mut Pollfd,
}

/// `exs_evt_atomic_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EvtAtomic {
    pub exs_evt_length: usize,
    pub exs_evt_place: *mut u64,
    pub exs_evt_old: u64,
}

/// The union of `exs_event_t`
#[derive(Clone, Copy)]
#[repr(C)]
pub union EventUnion {
    pub exs_evt_xfer: EvtXfer,
    pub exs_evt_xfermsg: EvtXfermsg,
    pub exs_evt_xferfile: EvtXferfile,
    pub exs_evt_accept: EvtAccept,
    pub exs_evt_poll: EvtPoll,
    pub exs_evt_atomic: EvtAtomic,
    pub exs_evt_reserved: [u64; 6],
}

/// `exs_event_t`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Event {
    pub exs_evt_type: c_int,
    pub exs_evt_errno: c_int,
    pub exs_evt_socket: c_int,
    pub exs_evt_flags: c_uint,
    pub exs_evt_ahandle: AHandle,
    pub exs_evt_union: EventUnion,
}

/// `exs_remote_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Remote {
    pub exs_remote_bytes: [u8; EXS_REMOTE_SIZE as usize],
}

/// `exs_counters_t`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Counters {
    pub sends: u64,
    pub recvs: u64,
    pub one_sided: u64,
    pub sent_direct: u64,
    pub sent_indirect: u64,
    pub sent_inline: u64,
    pub received_direct: u64,
    pub received_indirect: u64,
    pub received_inline: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub copies: u64,
    pub copied_bytes: u64,
    pub adverts_sent: u64,
    pub adverts_received: u64,
    pub adverts_stale: u64,
    pub credit_stalls: u64,
    pub queue_stalls: u64,
    pub messages_sent: u64,
    pub messages_received: u64,
    pub events: u64,
    pub engine_runs: u64,
    pub sleeps: u64,
    pub in_flight: u64,
    pub receives_added: u64,
    pub receives_dropped: u64,
}
