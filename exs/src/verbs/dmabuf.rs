//! Registrations of dma-bufs: memory of other devices.
//!
//! The kernel takes the descriptor, and the device reaches the memory by itself. Windows cannot be
//! bound to such a registration, and it is never paged on demand: the kernel refuses these flags.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::raw::{Domain, Registration};
use super::registrar::KNOWN_TO_DMABUFS;
use crate::mem::Segment;
use crate::rnic::RnicError;

/// Registers a segment of a region over a dma-buf, which begins at `start` of it.
///
/// # Errors
/// [`RnicError::DmaBuf`].
pub(super) fn register(
    pd: &Arc<Domain>,
    segment: &Segment,
    (fd, start): (BorrowedFd<'_>, u64),
    access: u32,
) -> Result<Registration, RnicError> {
    let (access, len) = (access & KNOWN_TO_DMABUFS, segment.len());
    let place = (fd, start + segment.offset() as u64);
    let made = Registration::of_dmabuf(pd, place, (segment.addr(), len), access);
    made.or_else(|e| {
        // Its pages may be ordinary ones.
        let mapped = segment.region().is_mapped();
        let usual = || Registration::new(pd, segment.addr(), len, access).ok();
        mapped.then(usual).flatten().ok_or_else(|| refused(&e, len))
    })
}

/// Why a dma-buf could not be registered.
fn refused(e: &io::Error, len: usize) -> RnicError {
    let (errno, why) = match e.raw_os_error().unwrap_or(libc::EIO) {
        libc::ENOSYS => (
            libc::EOPNOTSUPP,
            "libibverbs of this host is too old: ibv_reg_dmabuf_mr came with rdma-core 34",
        ),
        errno @ (libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => (
            errno,
            "the device or its driver takes none: use an adapter whose driver does (mlx5, irdma and \
             efa, with Linux 5.12 or newer), or memory of the host",
        ),
        errno @ (libc::EINVAL | libc::EBADF) => (
            errno,
            "the descriptor is no dma-buf, or the dma-buf is shorter, or its exporter lets this \
             device not reach it",
        ),
        errno => (errno, "the exporter or the device refused it: see dmesg"),
    };
    RnicError::DmaBuf { len: len as u64, errno, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_is_missing() {
        for (errno, shown, text) in [
            (libc::ENOSYS, libc::EOPNOTSUPP, "rdma-core 34"),
            (libc::EOPNOTSUPP, libc::EOPNOTSUPP, "the device or its driver takes none"),
            (libc::EBADF, libc::EBADF, "no dma-buf"),
            (libc::ENOMEM, libc::ENOMEM, "dmesg"),
        ] {
            let e = refused(&io::Error::from_raw_os_error(errno), 4096);
            assert!(matches!(e, RnicError::DmaBuf { errno: n, len: 4096, .. } if n == shown));
            assert!(e.to_string().contains(text), "{e}");
        }
    }
}
