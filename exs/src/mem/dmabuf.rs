//! Memory of another device: dma-bufs.
//!
//! A dma-buf is memory of a driver (of a GPU, say), as a descriptor. Devices reach it by the descriptor.
//! Processors reach it only if its exporter lets them map it. A region of such memory is one of two
//! kinds:
//! - *mapped*: it is like any other region. All transports take it.
//! - *unmapped*: its addresses are reserved, and name its bytes to devices and peers, but no load or
//!   store may use them. Whatever touches memory by the processor asks
//!   [`Region::is_mapped`](super::Region::is_mapped) first.

#[cfg(feature = "verbs")]
use std::os::fd::BorrowedFd;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use super::MemError;
use crate::sys;

/// The descriptor of a dma-buf, and the addresses of a part of it.
pub(super) struct DmaBuf {
    /// For devices: the kernel keeps what is mapped.
    #[cfg(feature = "verbs")]
    place: (OwnedFd, u64),
    /// The pages around the part: its own mapping, or its own reservation.
    pages: NonNull<u8>,
    page_len: usize,
    mapped: bool,
}

impl DmaBuf {
    /// Maps `len` bytes at `offset`, or reserves addresses for them. Returns the first address, too.
    pub(super) fn new(
        fd: OwnedFd,
        offset: u64,
        len: usize,
    ) -> Result<(NonNull<u8>, DmaBuf), MemError> {
        let bad = || MemError::BadLength { len };
        if len == 0 || isize::try_from(len).is_err() {
            return Err(bad());
        }
        if let Some(size) = sys::size_of_fd(fd.as_fd())
            && offset.checked_add(len as u64).is_none_or(|end| end > size)
        {
            let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
            let (offset, region) = (number(offset), number(size));
            return Err(MemError::OutOfBounds { offset, len, region });
        }
        // Devices want the address in its page to be that of the dma-buf.
        let page = sys::page_size() as u64;
        let in_page = usize::try_from(offset % page).map_err(|_| bad())?;
        let page_len = len.checked_add(in_page).ok_or_else(bad)?;
        let (pages, mapped) = match sys::map_shared(fd.as_fd(), offset - in_page as u64, page_len) {
            Ok(pages) => (pages, true),
            Err(e) => {
                crate::trace::debug!("a dma-buf is used without a mapping: {e}");
                let reserved = sys::reserve_addresses(page_len);
                let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::ENOMEM);
                (reserved.map_err(|e| MemError::Map { len, errno: errno(e) })?, false)
            }
        };
        let first = pages.map_addr(|a| a.saturating_add(in_page));
        let buf = DmaBuf {
            #[cfg(feature = "verbs")]
            place: (fd, offset),
            pages,
            page_len,
            mapped,
        };
        Ok((first, buf))
    }

    pub(super) fn is_mapped(&self) -> bool {
        self.mapped
    }

    /// The descriptor, and the offset of the region's first byte in it.
    #[cfg(feature = "verbs")]
    pub(super) fn place(&self) -> (BorrowedFd<'_>, u64) {
        (self.place.0.as_fd(), self.place.1)
    }

    /// The pages to unmap at the end of the region.
    pub(super) fn pages(&self) -> (NonNull<u8>, usize) {
        (self.pages, self.page_len)
    }
}
