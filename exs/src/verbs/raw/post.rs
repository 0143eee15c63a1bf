//! Work requests.

use std::io;
use std::ptr::NonNull;

use super::abi as sys;
use super::cm::{CmId, gone};
use super::profile::Profile;
use super::{Registration, Window};
use crate::mem::AtomicOp;

/// A segment of registered memory, with the device's own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct HwSge {
    pub(in super::super) addr: u64,
    pub(in super::super) len: u32,
    pub(in super::super) lkey: u32,
}

/// The operation of a send WR.
pub(in super::super) enum HwOp {
    Send { solicited: bool },
    SendInvalidate { key: u32, solicited: bool },
    Write { raddr: u64, rkey: u32 },
    WriteImm { raddr: u64, rkey: u32, imm: u32 },
    Read { raddr: u64, rkey: u32 },
    Atomic { raddr: u64, rkey: u32, op: AtomicOp },
    Bind { window: WindowRef, addr: u64, len: u64, access: u32 },
}

/// A window and its registration, in a staged bind.
#[derive(Clone, Copy)]
pub(in super::super) struct WindowRef {
    mw: *mut sys::ibv_mw,
    mr: *mut sys::ibv_mr,
    key: u32,
}

// SAFETY: no more than names of objects that may be used from any thread.
unsafe impl Send for WindowRef {}

impl HwOp {
    /// A bind of `window` to a part of `mr`. Both must live until it is posted.
    pub(in super::super) fn bind(
        window: &Window,
        mr: &Registration,
        addr: u64,
        len: u64,
        access: u32,
    ) -> HwOp {
        let window = WindowRef { mw: window.ptr(), mr: mr.ptr(), key: window.key() };
        HwOp::Bind { window, addr, len, access }
    }
}

/// A send WR that waits for the doorbell.
pub(in super::super) struct Staged {
    pub(in super::super) wr_id: u64,
    pub(in super::super) op: HwOp,
    /// The number of SGEs that are its own, of all staged ones.
    pub(in super::super) sges: usize,
    pub(in super::super) signaled: bool,
    pub(in super::super) inline: bool,
}

/// Memory in which a chain is built, kept from one doorbell to the next.
#[derive(Default)]
pub(in super::super) struct PostScratch {
    wrs: Vec<sys::ibv_send_wr>,
    sges: Vec<sys::ibv_sge>,
}

// SAFETY: the pointers in it are made and used within one call of `post`.
unsafe impl Send for PostScratch {}

fn hw(s: &HwSge) -> sys::ibv_sge {
    sys::ibv_sge { addr: s.addr, length: s.len, lkey: s.lkey }
}

fn blank() -> sys::ibv_send_wr {
    // SAFETY: a structure of numbers and pointers: all bits zero are valid.
    unsafe { std::mem::zeroed() }
}

impl Staged {
    fn fill(&self, sg_list: *mut sys::ibv_sge) -> sys::ibv_send_wr {
        use sys::ibv_wr_opcode as op;
        let mut wr = blank();
        wr.wr_id = self.wr_id;
        wr.sg_list = sg_list;
        wr.num_sge = i32::try_from(self.sges).unwrap_or(0);
        let mut flags = 0;
        if self.signaled {
            flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        if self.inline {
            flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let at = |remote_addr, rkey| sys::wr_t { rdma: sys::rdma_t { remote_addr, rkey } };
        let extra = |n| sys::imm_data_invalidated_rkey_union_t { invalidated_rkey: n };
        let solicit = |yes: bool| if yes { sys::ibv_send_flags::IBV_SEND_SOLICITED.0 } else { 0 };
        wr.opcode = match self.op {
            HwOp::Send { solicited } => {
                flags |= solicit(solicited);
                op::IBV_WR_SEND
            }
            HwOp::SendInvalidate { key, solicited } => {
                flags |= solicit(solicited);
                wr.imm_data_invalidated_rkey_union = extra(key);
                op::IBV_WR_SEND_WITH_INV
            }
            HwOp::Write { raddr, rkey } => {
                wr.wr = at(raddr, rkey);
                op::IBV_WR_RDMA_WRITE
            }
            HwOp::WriteImm { raddr, rkey, imm } => {
                wr.wr = at(raddr, rkey);
                wr.imm_data_invalidated_rkey_union = extra(imm.to_be());
                op::IBV_WR_RDMA_WRITE_WITH_IMM
            }
            HwOp::Read { raddr, rkey } => {
                wr.wr = at(raddr, rkey);
                op::IBV_WR_RDMA_READ
            }
            HwOp::Atomic { raddr: remote_addr, rkey, op: AtomicOp::FetchAdd(compare_add) } => {
                let atomic = sys::atomic_t { remote_addr, compare_add, swap: 0, rkey };
                wr.wr = sys::wr_t { atomic };
                op::IBV_WR_ATOMIC_FETCH_AND_ADD
            }
            HwOp::Atomic {
                raddr: remote_addr,
                rkey,
                op: AtomicOp::CompareSwap { expected, new },
            } => {
                let compare_add = expected;
                let atomic = sys::atomic_t { remote_addr, compare_add, swap: new, rkey };
                wr.wr = sys::wr_t { atomic };
                op::IBV_WR_ATOMIC_CMP_AND_SWP
            }
            HwOp::Bind { window, addr, len, access } => {
                let info = sys::ibv_mw_bind_info {
                    mr: window.mr,
                    addr,
                    length: len,
                    mw_access_flags: access,
                };
                let bind = sys::bind_mw_t { mw: window.mw, rkey: window.key, bind_info: info };
                wr.bind_mw_tso_union = sys::bind_mw_tso_union_t { bind_mw: bind };
                op::IBV_WR_BIND_MW
            }
        };
        wr.send_flags = flags;
        wr
    }
}

/// Posts one work request of one segment.
fn one(
    staged: &Staged,
    sge: &HwSge,
    post: impl FnOnce(*mut sys::ibv_send_wr, *mut *mut sys::ibv_send_wr) -> i32,
) -> io::Result<()> {
    debug_assert_eq!(staged.sges, 1, "and no other number");
    let mut sge = hw(sge);
    let mut wr = staged.fill(&raw mut sge);
    let mut bad = std::ptr::null_mut();
    super::check(post(&raw mut wr, &raw mut bad))
}

/// Posts a chain of work requests with one doorbell. The error has the number that the device took,
/// and why it refused the next one.
fn chain(
    staged: &[Staged],
    sges: &[HwSge],
    scratch: &mut PostScratch,
    post: impl FnOnce(*mut sys::ibv_send_wr, *mut *mut sys::ibv_send_wr) -> i32,
) -> Result<(), (usize, io::Error)> {
    if staged.is_empty() {
        return Ok(());
    }
    scratch.sges.clear();
    scratch.sges.extend(sges.iter().map(hw));
    scratch.wrs.clear();
    let base = scratch.sges.as_mut_ptr();
    let mut used = 0;
    for s in staged {
        Profile::current().post(s.sges).map_err(|e| (0, e))?;
        if matches!(s.op, HwOp::Atomic { .. }) {
            Profile::current().atomic().map_err(|e| (0, e))?;
        }
        assert!(used + s.sges <= sges.len(), "a staged request's SGEs are staged with it");
        // In bounds: just asserted.
        scratch.wrs.push(s.fill(base.wrapping_add(used)));
        used += s.sges;
    }
    let first = scratch.wrs.as_mut_ptr();
    for i in 0..scratch.wrs.len() - 1 {
        // In bounds: there is one more behind it.
        scratch.wrs[i].next = first.wrapping_add(i + 1);
    }
    let mut bad = std::ptr::null_mut();
    match post(first, &raw mut bad) {
        0 => Ok(()),
        n => {
            let posted = scratch.wrs.iter().position(|w| std::ptr::eq(w, bad)).unwrap_or(0);
            let errno = if n > 0 { n } else { libc::EIO };
            Err((posted, io::Error::from_raw_os_error(errno)))
        }
    }
}

/// Posts one receive.
pub(super) fn recv(
    wr_id: u64,
    sges: &[HwSge],
    post: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
) -> io::Result<()> {
    const MAX_SGES: usize = 8;
    Profile::current().post(sges.len())?;
    let mut list = [sys::ibv_sge { addr: 0, length: 0, lkey: 0 }; MAX_SGES];
    let n = sges.len().min(MAX_SGES);
    for (to, from) in list.iter_mut().zip(sges) {
        *to = hw(from);
    }
    let mut wr = sys::ibv_recv_wr {
        wr_id,
        next: std::ptr::null_mut(),
        sg_list: list.as_mut_ptr(),
        num_sge: i32::try_from(n).unwrap_or(0),
    };
    let mut bad = std::ptr::null_mut();
    super::check(post(&raw mut wr, &raw mut bad))
}

impl CmId {
    /// Posts staged sends with one doorbell. The error has the number that the device took.
    pub(in super::super) fn post_send(
        &self,
        staged: &[Staged],
        sges: &[HwSge],
        scratch: &mut PostScratch,
    ) -> Result<(), (usize, io::Error)> {
        let qp = NonNull::new(self.qp()).ok_or_else(|| (0, gone()))?;
        // SAFETY: a live queue pair, of whose device this is the call.
        let call = unsafe { (*context(qp)).ops.post_send };
        let call = call.ok_or_else(|| (0, gone()))?;
        chain(staged, sges, scratch, |wr, bad| {
            // SAFETY: a live queue pair, and a well-formed chain for the time of the call.
            unsafe { call(qp.as_ptr(), wr, bad) }
        })
    }

    /// Posts a send of one segment by itself.
    pub(in super::super) fn post_one(&self, staged: &Staged, sge: &HwSge) -> io::Result<()> {
        let qp = NonNull::new(self.qp()).ok_or_else(gone)?;
        // SAFETY: a live queue pair, of whose device this is the call.
        let call = unsafe { (*context(qp)).ops.post_send }.ok_or_else(gone)?;
        one(staged, sge, |wr, bad| {
            // SAFETY: a live queue pair, and a well-formed request for the time of the call.
            unsafe { call(qp.as_ptr(), wr, bad) }
        })
    }

    /// Posts a receive to the queue pair's own queue.
    pub(in super::super) fn post_recv(&self, wr_id: u64, sges: &[HwSge]) -> io::Result<()> {
        let qp = NonNull::new(self.qp()).ok_or_else(gone)?;
        // SAFETY: a live queue pair, of whose device this is the call.
        let call = unsafe { (*context(qp)).ops.post_recv }.ok_or_else(gone)?;
        recv(wr_id, sges, |wr, bad| {
            // SAFETY: a live queue pair, and a well-formed request.
            unsafe { call(qp.as_ptr(), wr, bad) }
        })
    }
}

fn context(qp: NonNull<sys::ibv_qp>) -> *const sys::ibv_context {
    // SAFETY: a live queue pair, by its holder; a pointer is read.
    unsafe { (*qp.as_ptr()).context }
}
