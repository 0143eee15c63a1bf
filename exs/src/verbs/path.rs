//! The path of a connection: what EXS asks of the device. Where a program asks for nothing, the values
//! here suit connections with credits, whose peers post receives ahead.
//!
//! Partition, service level and MTU are properties of the route, and both queue pairs must agree on
//! them: a device refuses packets of another size than it expects. The request for a connection
//! carries the route's path record to the peer's connection manager, which sets the peer's queue pair
//! up by it. So EXS changes the record, and leaves the queue pairs to librdmacm.

use super::VerbsRnic;
use super::raw::{CmId, Device, PathRecord, mtu_bytes};
#[cfg(any(test, feature = "internals"))]
use crate::rnic::Qp;
use crate::rnic::{PathAttr, RnicError};

/// The bit of a P_Key for full members of its partition. Two keys are of one partition if the other
/// bits are the same.
const FULL_MEMBER: u16 = 0x8000;

/// Timeout of an acknowledgement: 4.096 us << 18 is a second. The device sends eight times.
const ACK_TIMEOUT: u8 = 18;
/// Code of InfiniBand for 0.64 ms: how long a peer waits for a receive that is about to be posted.
pub(super) const RNR_TIMER: u8 = 12;
/// How many times the device sends again. Seven is the most; for RNR it means for ever: credits say
/// how long.
const RETRIES: u8 = 7;

/// How many times the device sends again what was not acknowledged, and what found no receive.
pub(super) fn retries(path: &PathAttr) -> (u8, u8) {
    (path.retry_count.unwrap_or(RETRIES), path.rnr_retry_count.unwrap_or(RETRIES))
}

/// Changes the record of a route to what the options ask for, as far as the port has it.
///
/// # Errors
/// [`RnicError::Path`]: the port lacks it. The errors of `ibv_query_port`.
pub(super) fn change_route(
    record: &mut PathRecord,
    path: &PathAttr,
    device: Device,
    port: u8,
) -> Result<(), RnicError> {
    let refused = |option, why| RnicError::Path { option, device: device.name(), why };
    let attr = device.port(port).map_err(|e| RnicError::os("ibv_query_port", &e))?;
    if let Some(wanted) = path.pkey {
        let keys: Vec<u16> = (0..attr.pkeys).filter_map(|i| device.pkey(port, i)).collect();
        record.pkey = find_pkey(wanted, &keys).map_err(|why| refused("pkey", why))?;
    }
    if let Some(wanted) = path.mtu {
        record.mtu = mtu_code(wanted, attr.mtu).map_err(|why| refused("path_mtu", why))?;
    }
    record.service_level = path.service_level.unwrap_or(record.service_level);
    Ok(())
}

/// The P_Key of the same partition in a port's table, a full member's first.
fn find_pkey(wanted: u16, keys: &[u16]) -> Result<u16, String> {
    let same = |key: &&u16| **key & !FULL_MEMBER == wanted & !FULL_MEMBER;
    let of_partition = || keys.iter().filter(same);
    let found = of_partition().find(|key| **key & FULL_MEMBER != 0).or(of_partition().next());
    found.copied().ok_or_else(|| {
        let known: Vec<String> =
            keys.iter().filter(|k| **k != 0).map(|k| format!("{k:#06x}")).collect();
        format!(
            "its port has no P_Key of the partition of {wanted:#06x}, only {}; the subnet manager \
             assigns them, and RoCE has 0xffff only",
            known.join(", ")
        )
    })
}

/// The `ibv_mtu` of that many bytes, on a port with this active MTU.
fn mtu_code(wanted: u16, active: u32) -> Result<u8, String> {
    match (1..=5).find(|code| mtu_bytes(u32::from(*code)) == wanted) {
        Some(code) if u32::from(code) <= active => Ok(code),
        _ => Err(format!(
            "{wanted} bytes are more than the active MTU of its port, which is {} bytes: raise the \
             MTU of the network interface (ip link set mtu), or ask for less",
            mtu_bytes(active)
        )),
    }
}

impl VerbsRnic {
    /// # Errors
    /// [`RnicError::Path`]: an option asks for a property of the route, and this is an iWARP device.
    pub(super) fn check_path(&self, path: &PathAttr) -> Result<(), RnicError> {
        match path.route_option() {
            Some(option) if self.profile.is_iwarp() => Err(RnicError::Path {
                option,
                device: self.profile.name().to_owned(),
                why: "it is an iWARP device, which has neither partitions nor service levels nor an \
                      MTU of its own: TCP has its path; leave the option unset, or use another device"
                    .to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// The path that the device's queue pair has.
    ///
    /// # Errors
    /// It has none, or the device does not say so.
    #[cfg(any(test, feature = "internals"))]
    pub fn path(&self, qp: Qp) -> Result<PathAttr, RnicError> {
        let hw = self.qps.get(qp.0)?.hw.as_ref().ok_or_else(|| self.wrong_state(qp, "Rts"))?;
        hw.id.path().map_err(|e| RnicError::os("ibv_query_qp", &e))
    }

    /// Sets the acknowledgement timeout. Not on iWARP, whose TCP has timers of its own.
    pub(super) fn set_ack_timeout(&self, id: &CmId, path: &PathAttr) {
        if !self.profile.is_iwarp()
            && let Err(e) = id.ack_timeout(path.ack_timeout.unwrap_or(ACK_TIMEOUT))
        {
            crate::trace::debug!("{}: RDMA_OPTION_ID_ACK_TIMEOUT: {e}", self.profile.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_found_by_its_low_bits() {
        let keys = [0xffff, 0x0001, 0, 0x8001, 0x0002];
        for (wanted, found) in
            [(0xffff, 0xffff), (0x7fff, 0xffff), (1, 0x8001), (0x8001, 0x8001), (0x8002, 2)]
        {
            assert_eq!(find_pkey(wanted, &keys), Ok(found), "{wanted:#x}");
        }
        let why = find_pkey(0x8003, &keys).unwrap_err();
        assert!(why.contains("0x8003") && why.contains("0xffff, 0x0001, 0x8001, 0x0002"), "{why}");
    }

    #[test]
    fn an_mtu_is_within_that_of_the_port() {
        assert_eq!((mtu_code(256, 3), mtu_code(1024, 3)), (Ok(1), Ok(3)));
        assert_eq!(mtu_code(4096, 5), Ok(5));
        let why = mtu_code(2048, 3).unwrap_err();
        assert!(why.contains("2048") && why.contains("1024 bytes"), "{why}");
    }
}
