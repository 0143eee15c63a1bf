//! The path of an id's connection: options of the id, and attributes of its queue pair.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::abi as sys;
use super::check;
use super::cm::{CmId, OPTION_ID, gone};
#[cfg(any(test, feature = "internals"))]
use crate::rnic::PathAttr;

/// `RDMA_OPTION_ID_TOS` and `RDMA_OPTION_ID_ACK_TIMEOUT`.
const ID_TOS: i32 = 0;
const ID_ACK_TIMEOUT: i32 = 3;

impl CmId {
    /// Sets how long the device waits for an acknowledgement before it sends again: 4.096 us times 2 to
    /// the power of this. The id must not be connected yet. Devices without such a timer refuse.
    pub(in super::super) fn ack_timeout(&self, exponent: u8) -> io::Result<()> {
        let mut value = exponent;
        // SAFETY: a live id, and the option's one byte.
        check(unsafe {
            let at = (&raw mut value).cast();
            sys::rdma_set_option(self.id.as_ptr(), OPTION_ID, ID_ACK_TIMEOUT, at, 1)
        })
    }

    /// Sets the traffic class of the packets. On RoCE the service level follows from it.
    pub(in super::super) fn traffic_class(&self, class: u8) -> io::Result<()> {
        let mut value = class;
        // SAFETY: a live id, and the option's one byte.
        check(unsafe {
            let at = (&raw mut value).cast();
            sys::rdma_set_option(self.id.as_ptr(), OPTION_ID, ID_TOS, at, 1)
        })
    }

    /// Sets how long a peer that found no receive waits before it tries again, in the encoding of
    /// InfiniBand. librdmacm leaves it at 0, which means 655 ms.
    pub(in super::super) fn rnr_timer(&self, code: u8) -> io::Result<()> {
        let qp = NonNull::new(self.qp()).ok_or_else(gone)?;
        let mut attr = MaybeUninit::<sys::ibv_qp_attr>::zeroed();
        // SAFETY: in bounds of the structure, of which all bits zero are valid.
        unsafe { (*attr.as_mut_ptr()).min_rnr_timer = code };
        let mask = sys::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
        let mask = i32::try_from(mask).unwrap_or_default();
        // SAFETY: a live queue pair, and an initialised structure.
        match unsafe { sys::ibv_modify_qp(qp.as_ptr(), attr.as_mut_ptr(), mask) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// The path that the device's queue pair has.
    #[cfg(any(test, feature = "internals"))]
    pub(in super::super) fn path(&self) -> io::Result<PathAttr> {
        use sys::ibv_qp_attr_mask as mask;
        let qp = NonNull::new(self.qp()).ok_or_else(gone)?;
        let mut attr = MaybeUninit::<sys::ibv_qp_attr>::zeroed();
        let mut init = MaybeUninit::<sys::ibv_qp_init_attr>::zeroed();
        let wanted = mask::IBV_QP_AV.0
            | mask::IBV_QP_TIMEOUT.0
            | mask::IBV_QP_RETRY_CNT.0
            | mask::IBV_QP_RNR_RETRY.0
            | mask::IBV_QP_MIN_RNR_TIMER.0;
        let wanted = i32::try_from(wanted).unwrap_or_default();
        // SAFETY: a live queue pair, and room for both structures.
        let errno =
            unsafe { sys::ibv_query_qp(qp.as_ptr(), attr.as_mut_ptr(), wanted, init.as_mut_ptr()) };
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
        // SAFETY: all bits zero are valid, and the library has filled in what was asked for.
        let attr = unsafe { attr.assume_init() };
        Ok(PathAttr {
            traffic_class: Some(attr.ah_attr.grh.traffic_class),
            retry_count: Some(attr.retry_cnt),
            rnr_retry_count: Some(attr.rnr_retry),
            rnr_timer: Some(attr.min_rnr_timer),
            ack_timeout: Some(attr.timeout),
        })
    }
}
