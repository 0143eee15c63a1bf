//! Registration of memory, with what the device offers: pinned, or paged on demand.

use std::sync::Arc;

use super::raw::{Attr, Domain, Registration};
use crate::mem::{Access, Segment};
use crate::rnic::RnicError;

/// `IBV_ACCESS_` bits.
const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 2;
const REMOTE_READ: u32 = 4;
const REMOTE_ATOMIC: u32 = 8;
const MW_BIND: u32 = 16;
pub(super) const ON_DEMAND: u32 = 64;
/// The bits that the kernel knows of registrations of dma-bufs.
pub(super) const KNOWN_TO_DMABUFS: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;

/// Registers memory in the ways of one device.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryRegistrar {
    /// The device binds windows.
    windows: bool,
    /// The device can page on demand where pinning is refused.
    odp: bool,
}

impl MemoryRegistrar {
    pub(super) fn new(attr: &Attr) -> MemoryRegistrar {
        MemoryRegistrar { windows: attr.windows, odp: attr.odp }
    }

    pub(super) fn binds_windows(self) -> bool {
        self.windows
    }

    /// Registers with pinned pages, or with paging on demand if pinning is refused. True beside the
    /// registration if no window can be bound to it.
    pub(super) fn pin(
        self,
        pd: &Arc<Domain>,
        segment: &Segment,
        access: Access,
    ) -> Result<(Registration, bool), RnicError> {
        let access = bits(access);
        if segment.region().dmabuf().is_some() {
            return register(pd, segment, access).map(|reg| (reg, true));
        }
        let window = if self.windows { MW_BIND } else { 0 };
        match register(pd, segment, access | window) {
            // To the kernel, the right to bind windows is a right to write. Memory that the program
            // itself may only read has to do without it.
            Err(RnicError::Os { errno: libc::EFAULT, .. }) if access == 0 && window != 0 => {
                register(pd, segment, access).map(|reg| (reg, true))
            }
            Err(e) if self.odp && may_be_paged(&e) => {
                register(pd, segment, access | ON_DEMAND).map(|reg| (reg, true))
            }
            Err(RnicError::Os { errno: errno @ (libc::EFAULT | libc::EOPNOTSUPP), .. }) => {
                Err(RnicError::Unpinnable { len: segment.len() as u64, errno })
            }
            other => other.map(|reg| (reg, false)),
        }
    }

    /// Registers a part of what is registered, or all of it once more, for a peer. `unpinned`: `pin`
    /// has said so of the first registration.
    pub(super) fn for_peer(
        self,
        pd: &Arc<Domain>,
        segment: &Segment,
        access: Access,
        unpinned: bool,
    ) -> Result<Registration, RnicError> {
        let odp = if unpinned && self.odp { ON_DEMAND } else { 0 };
        register(pd, segment, bits(access) | odp)
    }

    /// Registers memory that the device only reads, and no peer reaches.
    pub(super) fn for_sends(
        self,
        pd: &Arc<Domain>,
        segment: &Segment,
    ) -> Result<Registration, RnicError> {
        match register(pd, segment, 0) {
            Err(RnicError::MemLock { .. }) if self.odp => register(pd, segment, ON_DEMAND),
            other => other,
        }
    }
}

fn bits(access: Access) -> u32 {
    let mut bits = 0;
    if access.writes() {
        bits |= LOCAL_WRITE;
    }
    if access.remote_write {
        bits |= REMOTE_WRITE;
    }
    if access.remote_read {
        bits |= REMOTE_READ;
    }
    if access.remote_atomic {
        bits |= REMOTE_ATOMIC;
    }
    bits
}

/// The rights of a window in the verbs' bits: a window has no local ones.
pub(super) fn window_bits(access: Access) -> u32 {
    bits(access) & !LOCAL_WRITE
}

/// Registers a segment. The error says what to do if the limit on locked memory forbids it.
fn register(pd: &Arc<Domain>, segment: &Segment, access: u32) -> Result<Registration, RnicError> {
    if let Some(place) = segment.region().dmabuf() {
        return super::dmabuf::register(pd, segment, place, access);
    }
    Registration::new(pd, segment.addr(), segment.len(), access).map_err(|e| {
        match (e.raw_os_error(), crate::sys::memlock_limit()) {
            (Some(libc::ENOMEM | libc::EAGAIN), Some(limit)) => {
                RnicError::MemLock { len: segment.len() as u64, limit }
            }
            _ => RnicError::os("ibv_reg_mr", &e),
        }
    })
}

/// True if pinning was refused for a reason that does not concern paging on demand: a limit, or pages
/// of a file that the kernel does not pin.
fn may_be_paged(e: &RnicError) -> bool {
    matches!(
        e,
        RnicError::MemLock { .. } | RnicError::Os { errno: libc::EFAULT | libc::EOPNOTSUPP, .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_the_bits_of_the_verbs() {
        assert_eq!(bits(Access::LOCAL_READ), 0);
        assert_eq!(bits(Access::LOCAL), LOCAL_WRITE);
        let all = Access { remote_read: true, remote_atomic: true, ..Access::REMOTE_WRITE };
        let remote = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
        assert_eq!(bits(all), LOCAL_WRITE | remote);
        assert_eq!(window_bits(all), remote);
    }
}
