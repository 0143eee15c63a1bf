//! The reasons why calls are refused and connections end.

use std::fmt;
use std::time::Duration;

use super::QpState;
use crate::mem::AccessFault;

/// Layer, type and code of a TERMINATE (RFC 5040 section 4.8), sent by the peer or by this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TermCode {
    /// 0 RDMAP, 1 DDP, 2 MPA (LLP).
    pub layer: u8,
    /// Error type inside the layer.
    pub etype: u8,
    /// Error code inside the type.
    pub code: u8,
}

impl TermCode {
    /// Makes a code from its three numbers, in the order that a TERMINATE has them.
    pub const fn new(layer: u8, etype: u8, code: u8) -> TermCode {
        TermCode { layer, etype, code }
    }

    /// Returns true if it refuses a READ or WRITE: RDMAP's "remote protection error", or DDP's
    /// "tagged buffer error".
    pub fn refuses_access(self) -> bool {
        matches!((self.layer, self.etype), (0 | 1, 1))
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DisconnectCause {
    /// Both sides ended it in order.
    Orderly,
    /// This side cut it.
    Aborted,
    /// The connection broke: errno (ECONNRESET, ETIMEDOUT, EHOSTUNREACH, ...).
    Broken(i32),
    /// The peer sent a TERMINATE.
    TerminatedByPeer(TermCode),
    /// The peer broke a rule, and this side sent a TERMINATE.
    TerminatedByUs(TermCode),
    /// A device could not go on with the connection. The number is its `ibv_wc_status`.
    Device(u32),
    /// The device is gone.
    DeviceRemoved,
}

/// The name of an `ibv_wc_status`.
pub fn wc_status_name(status: u32) -> &'static str {
    const NAMES: [&str; 24] = [
        "IBV_WC_SUCCESS",
        "IBV_WC_LOC_LEN_ERR",
        "IBV_WC_LOC_QP_OP_ERR",
        "IBV_WC_LOC_EEC_OP_ERR",
        "IBV_WC_LOC_PROT_ERR",
        "IBV_WC_WR_FLUSH_ERR",
        "IBV_WC_MW_BIND_ERR",
        "IBV_WC_BAD_RESP_ERR",
        "IBV_WC_LOC_ACCESS_ERR",
        "IBV_WC_REM_INV_REQ_ERR",
        "IBV_WC_REM_ACCESS_ERR",
        "IBV_WC_REM_OP_ERR",
        "IBV_WC_RETRY_EXC_ERR",
        "IBV_WC_RNR_RETRY_EXC_ERR",
        "IBV_WC_LOC_RDD_VIOL_ERR",
        "IBV_WC_REM_INV_RD_REQ_ERR",
        "IBV_WC_REM_ABORT_ERR",
        "IBV_WC_INV_EECN_ERR",
        "IBV_WC_INV_EEC_STATE_ERR",
        "IBV_WC_FATAL_ERR",
        "IBV_WC_RESP_TIMEOUT_ERR",
        "IBV_WC_GENERAL_ERR",
        "IBV_WC_TM_ERR",
        "IBV_WC_TM_RNDV_INCOMPLETE",
    ];
    usize::try_from(status).ok().and_then(|n| NAMES.get(n)).unwrap_or(&"unknown to this version")
}

impl fmt::Display for DisconnectCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DisconnectCause::Orderly => {
                write!(f, "it ended, but not by a close of the peer's (its process may be gone)")
            }
            DisconnectCause::Aborted => write!(f, "this side cut it"),
            DisconnectCause::Broken(errno) => {
                write!(f, "{}", std::io::Error::from_raw_os_error(*errno))
            }
            DisconnectCause::TerminatedByPeer(code) => {
                write!(f, "the peer's RNIC refused what this side sent: TERMINATE {code}")
            }
            DisconnectCause::TerminatedByUs(code) => {
                write!(f, "this side's RNIC refused what the peer sent: TERMINATE {code}")
            }
            DisconnectCause::Device(status) => write!(
                f,
                "the device gave it up: {} (ibv_wc_status {status})",
                wc_status_name(*status)
            ),
            DisconnectCause::DeviceRemoved => {
                write!(f, "the RDMA device was removed or has failed: see `rdma link` and dmesg")
            }
        }
    }
}

impl fmt::Display for TermCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TermCode { layer, etype, code } = self;
        write!(f, "layer {layer}, type {etype}, code {code:#04x} (RFC 5040 section 4.8)")
    }
}

/// Why an RNIC refused a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RnicError {
    /// The object does not exist, or no longer exists.
    #[error("no such {what} ({id})")]
    NoSuch {
        /// Kind of object.
        what: &'static str,
        /// Its number.
        id: u32,
    },
    /// The object is in use.
    #[error("{what} {id} is still in use by {users} others")]
    Busy {
        /// Kind of object.
        what: &'static str,
        /// Its number.
        id: u32,
        /// Number of objects that use it.
        users: usize,
    },
    /// The QP is in another state than the call needs.
    #[error("queue pair {qp} is in state {state:?}; the call needs {need}")]
    State {
        /// Which.
        qp: u32,
        /// Its state.
        state: QpState,
        /// The states that the call accepts.
        need: &'static str,
    },
    /// A queue is full. The caller must take completions out first.
    #[error("the {what} is full ({depth} work requests): dequeue completions first")]
    QueueFull {
        /// Which queue.
        what: &'static str,
        /// Its depth.
        depth: usize,
    },
    /// The local memory was refused.
    #[error("local memory refused: {0}")]
    Memory(AccessFault),
    /// The call is over a limit of the RNIC.
    #[error("{what}: {asked} is over this RNIC's limit of {limit}")]
    Limit {
        /// The limited quantity.
        what: &'static str,
        /// The number that was asked for.
        asked: u64,
        /// The limit.
        limit: u64,
    },
    /// There are too many objects already.
    #[error(
        "{what}: {asked} is over this RNIC's limit of {limit}; close connections that are not needed first"
    )]
    Exhausted {
        /// The kind of object.
        what: &'static str,
        /// The number that there would be.
        asked: u64,
        /// The limit.
        limit: u64,
        /// EMFILE for objects, ENOBUFS for memory.
        errno: i32,
    },
    /// This RNIC lacks a function.
    #[error("this RNIC has no {0}")]
    Unsupported(&'static str),
    /// The peer's start-up does not follow the protocol.
    #[error("the peer does not speak iWARP as expected: {0}")]
    Protocol(String),
    /// A system call failed.
    #[error("{call}: {}", kernel_text(*.errno))]
    Os {
        /// The system call or step.
        call: &'static str,
        /// Its errno.
        errno: i32,
    },
    /// The device must pin memory, and the user's limit on locked memory is too low.
    #[error(
        "cannot register {len} bytes: the limit on locked memory is {limit} bytes (RLIMIT_MEMLOCK); \
         raise it (`ulimit -l unlimited`, /etc/security/limits.conf, or LimitMEMLOCK= of systemd)"
    )]
    MemLock {
        /// Number of bytes to register.
        len: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The kernel does not let a device use the memory.
    #[error(
        "cannot register {len} bytes: {} (the kernel pins no pages of a file on disk that is mapped \
         shared, nor memory of another device: map the file privately, or from tmpfs or hugetlbfs, \
         or use a MemoryRegion of EXS)",
        kernel_text(*.errno)
    )]
    Unpinnable {
        /// Number of bytes to register.
        len: u64,
        /// The errno of ibv_reg_mr(3).
        errno: i32,
    },
    /// A device cannot give a connection the path that an option of
    /// [`PathOptions`](crate::PathOptions) asks for.
    #[error("the option {option} cannot be used on {device}: {why}")]
    Path {
        /// The option.
        option: &'static str,
        /// The device.
        device: String,
        /// The reason, and what can be done.
        why: String,
    },
    /// The memory is a dma-buf, which this RNIC cannot use.
    #[error("cannot register {len} bytes of a dma-buf: {}: {why}", kernel_text(*.errno))]
    DmaBuf {
        /// Number of bytes to register.
        len: u64,
        /// The errno of ibv_reg_dmabuf_mr(3), or EOPNOTSUPP.
        errno: i32,
        /// The reason, and what can be done.
        why: &'static str,
    },
    /// This host lacks a library of rdma-core, or has one that is too old.
    #[error("{name} cannot be used: {why}")]
    NoLibrary {
        /// The library.
        name: &'static str,
        /// The reason.
        why: String,
    },
    /// No answer came in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

/// Describes an errno of the kernel, and the remedy where the user has one.
pub fn kernel_text(errno: i32) -> String {
    let what = std::io::Error::from_raw_os_error(errno);
    match errno {
        // Each connection has a descriptor, and most shells allow 1024.
        libc::EMFILE => format!(
            "{what}: this process may have no more (RLIMIT_NOFILE): raise its limit (ulimit -n)"
        ),
        libc::ENFILE => format!("{what} on this system: raise its limit (sysctl fs.file-max)"),
        _ => what.to_string(),
    }
}

impl From<AccessFault> for RnicError {
    fn from(fault: AccessFault) -> RnicError {
        RnicError::Memory(fault)
    }
}

impl RnicError {
    /// An [`RnicError::Os`] from an `io::Error`.
    #[cold]
    pub fn os(call: &'static str, e: &std::io::Error) -> RnicError {
        RnicError::Os { call, errno: e.raw_os_error().unwrap_or(libc::EIO) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_of_descriptors_names_its_limit() {
        let full = RnicError::Os { call: "socket", errno: libc::EMFILE }.to_string();
        assert!(full.starts_with("socket: ") && full.contains("RLIMIT_NOFILE"), "{full}");
    }
}
