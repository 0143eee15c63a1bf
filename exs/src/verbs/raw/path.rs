//! The path of an id's connection: options of the id, its path record, and attributes of its queue
//! pair.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::abi as sys;
use super::cm::{CmId, OPTION_ID, gone};
use super::{Device, check};
#[cfg(any(test, feature = "internals"))]
use crate::rnic::PathAttr;

/// `RDMA_OPTION_ID_TOS` and `RDMA_OPTION_ID_ACK_TIMEOUT`.
const ID_TOS: i32 = 0;
const ID_ACK_TIMEOUT: i32 = 3;
/// `RDMA_OPTION_IB` and its `RDMA_OPTION_IB_PATH`.
const OPTION_IB: i32 = 1;
const IB_PATH: i32 = 1;
/// `IBV_PATH_FLAG_GMP`, `_PRIMARY` and `_BIDIRECTIONAL`: the kernel takes a record with all of these.
const PATH_FLAGS: u32 = 1 | 2 | 8 | 32;
/// Bytes of a path record with its flags (`ibv_path_data`).
const PATH_DATA: usize = 72;
/// The selector "exactly" of MTU, rate and lifetime.
const EXACTLY: u8 = 2 << 6;

/// A path record: a route of InfiniBand or RoCE (InfiniBand Architecture Specification, volume 1,
/// PathRecord of subnet administration).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct PathRecord {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: bool,
    rate: u8,
    packet_life_time: u8,
    pub(in super::super) pkey: u16,
    pub(in super::super) service_level: u8,
    /// A raw value of `ibv_mtu`: 1 is 256 bytes, 5 is 4096.
    pub(in super::super) mtu: u8,
}

impl PathRecord {
    /// # Safety
    /// A live record.
    unsafe fn of(raw: &sys::ibv_sa_path_rec) -> PathRecord {
        PathRecord {
            // SAFETY: all forms of the union are 16 bytes, and any bytes are valid.
            dgid: unsafe { raw.dgid.raw },
            // SAFETY: as above.
            sgid: unsafe { raw.sgid.raw },
            dlid: u16::from_be(raw.dlid),
            slid: u16::from_be(raw.slid),
            flow_label: u32::from_be(raw.flow_label),
            hop_limit: raw.hop_limit,
            traffic_class: raw.traffic_class,
            reversible: raw.reversible != 0,
            rate: raw.rate,
            packet_life_time: raw.packet_life_time,
            pkey: u16::from_be(raw.pkey),
            service_level: raw.sl,
            mtu: raw.mtu,
        }
    }

    /// The record as the kernel takes it: `ibv_path_data`, whose second part is as on the wire.
    fn data(&self) -> [u8; PATH_DATA] {
        let mut out = [0; PATH_DATA];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &PATH_FLAGS.to_ne_bytes());
        // The record follows its flags and 4 reserved bytes. Its first 8 bytes are the service.
        put(16, &self.dgid);
        put(32, &self.sgid);
        put(48, &self.dlid.to_be_bytes());
        put(50, &self.slid.to_be_bytes());
        let flow_and_hops = self.flow_label << 8 | u32::from(self.hop_limit);
        put(52, &flow_and_hops.to_be_bytes());
        // One path.
        put(56, &[self.traffic_class, u8::from(self.reversible) << 7 | 1]);
        put(58, &self.pkey.to_be_bytes());
        put(60, &u16::from(self.service_level).to_be_bytes());
        put(62, &[EXACTLY | self.mtu, EXACTLY | self.rate, EXACTLY | self.packet_life_time]);
        out
    }
}

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

    /// The path record of the id: of its resolved route, or of the request that it came with. None: it
    /// has none, as on iWARP.
    pub(in super::super) fn path_record(&self) -> Option<PathRecord> {
        // SAFETY: a live id. A route has as many records as it says, which librdmacm writes before
        // it hands out the event of the route, or of the request.
        unsafe {
            let route = &raw const (*self.id.as_ptr()).route;
            match ((*route).num_paths, NonNull::new((*route).path_rec)) {
                (1.., Some(record)) => Some(PathRecord::of(record.as_ref())),
                _ => None,
            }
        }
    }

    /// Takes this record for the route, instead of resolving it. The address must be resolved. The
    /// event is that of a resolved route.
    pub(in super::super) fn set_path_record(&self, record: &PathRecord) -> io::Result<()> {
        let mut data = record.data();
        // SAFETY: a live id, and as many bytes as the option has.
        check(unsafe {
            let at = data.as_mut_ptr().cast();
            sys::rdma_set_option(self.id.as_ptr(), OPTION_IB, IB_PATH, at, PATH_DATA)
        })
    }

    /// The path that the device's queue pair has, and the service level of its route: not every device
    /// tells that of the queue pair.
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
            | mask::IBV_QP_MIN_RNR_TIMER.0
            | mask::IBV_QP_PATH_MTU.0
            | mask::IBV_QP_PKEY_INDEX.0;
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
            pkey: self.device().and_then(|d| d.pkey(self.port(), attr.pkey_index)),
            service_level: self.path_record().map(|r| r.service_level),
            mtu: Some(mtu_bytes(attr.path_mtu)),
        })
    }
}

impl Device {
    /// The P_Key at an index of a port's table. None: there is no such index.
    pub(in super::super) fn pkey(self, port: u8, index: u16) -> Option<u16> {
        let mut key = 0;
        // SAFETY: the context is open; a number is written if 0 is returned.
        let ret = unsafe { sys::ibv_query_pkey(self.ptr(), port, index.into(), &raw mut key) };
        (ret == 0).then(|| u16::from_be(key))
    }
}

/// The bytes of a raw value of `ibv_mtu`.
pub(in super::super) fn mtu_bytes(raw: u32) -> u16 {
    128 << raw.min(5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_laid_out_as_on_the_wire() {
        let record = PathRecord {
            dgid: [0xd; 16],
            sgid: [0x5; 16],
            dlid: 0x0102,
            slid: 0x0304,
            flow_label: 0xa_bcde,
            hop_limit: 64,
            traffic_class: 0x68,
            reversible: true,
            rate: 3,
            packet_life_time: 18,
            pkey: 0x8001,
            service_level: 5,
            mtu: 3,
        };
        let data = record.data();
        assert_eq!(data[..4], 43u32.to_ne_bytes(), "GMP, primary, both directions");
        assert_eq!(data[4..16], [0; 12], "reserved, and no service");
        assert_eq!((&data[16..32], &data[32..48]), (&[0xd; 16][..], &[0x5; 16][..]));
        assert_eq!(data[48..52], [1, 2, 3, 4]);
        assert_eq!(data[52..56], [0x0a, 0xbc, 0xde, 64]);
        assert_eq!(data[56..62], [0x68, 0x81, 0x80, 0x01, 0, 5]);
        assert_eq!(data[62..65], [0x83, 0x83, 0x92]);
        assert_eq!(data[65..], [0; 7]);
    }

    #[test]
    fn each_mtu_has_its_bytes() {
        assert_eq!([1, 2, 3, 4, 5].map(mtu_bytes), [256, 512, 1024, 2048, 4096]);
    }
}
