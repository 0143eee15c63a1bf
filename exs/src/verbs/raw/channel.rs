//! Completion queues, and the channel of their notifications.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Device;
use super::abi as sys;
use super::profile::Profile;

/// Notifications that may stay unacknowledged. Each acknowledgement takes a mutex.
const ACK_BATCH: u32 = 64;
/// `IBV_WC_RECV`.
const RECV: u32 = 128;
/// Completions that one poll takes at most.
pub(in super::super) const BATCH: usize = 32;
const BATCH_ENTRIES: i32 = 32;

/// A completion channel.
pub(in super::super) struct CompChannel(NonNull<sys::ibv_comp_channel>);

// SAFETY: channels may be used from any thread.
unsafe impl Send for CompChannel {}
// SAFETY: as for Send.
unsafe impl Sync for CompChannel {}

impl CompChannel {
    pub(in super::super) fn new(device: Device) -> io::Result<Arc<CompChannel>> {
        // SAFETY: the device is open.
        let channel = unsafe { sys::ibv_create_comp_channel(device.ptr()) };
        let channel = NonNull::new(channel).map(CompChannel).ok_or_else(super::last)?;
        super::nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    pub(in super::super) fn fd(&self) -> i32 {
        // SAFETY: a live channel; a plain number is read.
        unsafe { (*self.0.as_ptr()).fd }
    }

    /// Takes a notification: the tag of its queue. The caller must pass it to [`CompQueue::notified`] of
    /// that queue.
    pub(in super::super) fn next(&self) -> Option<usize> {
        let (mut cq, mut tag) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live channel; both are written if 0 is returned.
        let ret = unsafe { sys::ibv_get_cq_event(self.0.as_ptr(), &raw mut cq, &raw mut tag) };
        (ret == 0).then(|| tag.addr())
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        // SAFETY: ours; queues on it hold it by its `Arc`.
        unsafe { sys::ibv_destroy_comp_channel(self.0.as_ptr()) };
    }
}

/// A completion as the device reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct RawWc {
    pub(in super::super) wr_id: u64,
    /// Raw value of `ibv_wc_status`.
    pub(in super::super) status: u32,
    /// Raw value of `ibv_wc_opcode`. Undefined if the status is not success.
    pub(in super::super) opcode: u32,
    pub(in super::super) byte_len: u32,
    pub(in super::super) qp_num: u32,
    pub(in super::super) imm: Option<u32>,
    /// Raw value of `ibv_wc_flags`.
    flags: u32,
    /// The immediate data, or the key that was invalidated.
    extra: u32,
}

/// A completion queue of a device.
pub(in super::super) struct CompQueue {
    cq: NonNull<sys::ibv_cq>,
    unacked: AtomicU32,
    _channel: Option<Arc<CompChannel>>,
}

// SAFETY: completion queues may be used from any thread.
unsafe impl Send for CompQueue {}
// SAFETY: as for Send.
unsafe impl Sync for CompQueue {}

impl CompQueue {
    /// Makes a queue of at least `depth` entries, which notifies with `tag`.
    pub(in super::super) fn new(
        device: Device,
        depth: u32,
        channel: &Arc<CompChannel>,
        tag: usize,
    ) -> io::Result<Arc<CompQueue>> {
        Profile::current().create_cq(depth)?;
        CompQueue::make(device, depth, Some(channel), tag).map(Arc::new)
    }

    /// Makes a queue that never notifies.
    pub(super) fn silent(device: Device, depth: u32) -> io::Result<CompQueue> {
        CompQueue::make(device, depth, None, 0)
    }

    fn make(
        device: Device,
        depth: u32,
        channel: Option<&Arc<CompChannel>>,
        tag: usize,
    ) -> io::Result<CompQueue> {
        let depth = i32::try_from(depth).unwrap_or(i32::MAX);
        let tag = std::ptr::without_provenance_mut(tag);
        let notify = channel.map_or(std::ptr::null_mut(), |c| c.0.as_ptr());
        super::forget_last();
        // SAFETY: the device is open, the channel lives; the tag is never followed.
        let cq = unsafe { sys::ibv_create_cq(device.ptr(), depth, tag, notify, 0) };
        match NonNull::new(cq) {
            Some(cq) => {
                let unacked = AtomicU32::new(0);
                Ok(CompQueue { cq, unacked, _channel: channel.map(Arc::clone) })
            }
            None => Err(super::last()),
        }
    }

    pub(super) fn ptr(&self) -> *mut sys::ibv_cq {
        self.cq.as_ptr()
    }

    /// Requests a notification of the next completion.
    pub(in super::super) fn arm(&self) -> io::Result<()> {
        // SAFETY: a live queue.
        super::check(unsafe { sys::ibv_req_notify_cq(self.ptr(), 0) })
    }

    /// Counts a notification, which is acknowledged with others.
    pub(in super::super) fn notified(&self) {
        if self.unacked.fetch_add(1, Ordering::Relaxed) + 1 >= ACK_BATCH {
            self.ack();
        }
    }

    fn ack(&self) {
        let n = self.unacked.swap(0, Ordering::Relaxed);
        if n > 0 {
            // SAFETY: a live queue, and as many notifications as were taken.
            unsafe { sys::ibv_ack_cq_events(self.ptr(), n) };
        }
    }

    /// Appends completions to `out`. Returns their number.
    pub(in super::super) fn poll(&self, out: &mut Vec<RawWc>) -> io::Result<usize> {
        let mut wcs: [MaybeUninit<sys::ibv_wc>; BATCH] = [const { MaybeUninit::uninit() }; BATCH];
        // SAFETY: a live queue, and room for BATCH completions.
        let n = unsafe { sys::ibv_poll_cq(self.ptr(), BATCH_ENTRIES, wcs.as_mut_ptr().cast()) };
        let n = usize::try_from(n).map_err(|_| io::Error::from_raw_os_error(libc::EIO))?;
        for wc in wcs.iter().take(n) {
            // SAFETY: the first `n` were written.
            out.push(RawWc::new(unsafe { wc.assume_init_ref() }));
        }
        Ok(n)
    }
}

impl RawWc {
    fn new(wc: &sys::ibv_wc) -> RawWc {
        // SAFETY: both members are 32 bits of plain number, whichever was written.
        let extra = unsafe { wc.imm_data_invalidated_rkey_union.invalidated_rkey };
        let has = |flag: sys::ibv_wc_flags| wc.wc_flags & flag.0 != 0;
        let ok = wc.status == 0;
        RawWc {
            wr_id: wc.wr_id,
            status: wc.status,
            opcode: wc.opcode,
            byte_len: wc.byte_len,
            qp_num: wc.qp_num,
            imm: (ok && has(sys::ibv_wc_flags::IBV_WC_WITH_IMM)).then(|| u32::from_be(extra)),
            flags: wc.wc_flags,
            extra,
        }
    }

    /// True for a receive that a plain SEND has filled, without immediate data and invalidation.
    pub(in super::super) fn is_plain(&self, rxe: bool) -> bool {
        self.status == 0 && self.opcode == RECV && self.invalidated(rxe).is_none()
    }

    /// The key that a SEND has invalidated. rxe marks it by its kernel's flag
    /// (`IB_WC_WITH_INVALIDATE`). To libibverbs that is `IBV_WC_IP_CSUM_OK`, which means nothing else on
    /// reliable connections.
    pub(in super::super) fn invalidated(&self, rxe: bool) -> Option<u32> {
        let flag = match rxe {
            true => sys::ibv_wc_flags::IBV_WC_IP_CSUM_OK,
            false => sys::ibv_wc_flags::IBV_WC_WITH_INV,
        };
        (self.status == 0 && self.flags & flag.0 != 0).then_some(self.extra)
    }
}

impl Drop for CompQueue {
    fn drop(&mut self) {
        // The destruction waits for notifications that are not acknowledged.
        self.ack();
        // SAFETY: ours; queue pairs on it were destroyed before (`queues.rs`).
        let ret = unsafe { sys::ibv_destroy_cq(self.cq.as_ptr()) };
        debug_assert_eq!(ret, 0, "ibv_destroy_cq");
    }
}
