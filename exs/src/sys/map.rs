//! Mappings: anonymous memory, and memory of descriptors.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// Returns the bytes of a page.
pub(crate) fn page_size() -> usize {
    // SAFETY: no pointers.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // The call cannot fail. 64 KiB is the largest page.
    usize::try_from(size).unwrap_or(65_536)
}

/// Maps `len` zeroed bytes of private memory.
#[cfg(not(miri))]
pub fn map_anonymous(len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new private mapping at an address of the kernel's choice
    // disturbs no existing memory.
    let p = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if p == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(p.cast()).ok_or_else(|| io::Error::other("mmap returned the null page"))
}

/// Maps bytes of a file or a dma-buf, shared with its other users. `offset` is a multiple of the page
/// size.
#[cfg(not(miri))]
pub(crate) fn map_shared(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<NonNull<u8>> {
    let (flags, rights) = (libc::MAP_SHARED, libc::PROT_READ | libc::PROT_WRITE);
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs no existing memory.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, fd.as_raw_fd(), offset) };
    if p == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(p.cast()).ok_or_else(|| io::Error::other("mmap returned the null page"))
}

/// Miri has no such mappings.
#[cfg(miri)]
pub(crate) fn map_shared(_: BorrowedFd<'_>, _: u64, _: usize) -> io::Result<NonNull<u8>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Reserves addresses that no load or store can use.
#[cfg(not(miri))]
pub(crate) fn reserve_addresses(len: usize) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs no existing memory.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(p.cast()).ok_or_else(|| io::Error::other("mmap returned the null page"))
}

/// Under Miri the allocator stands in for the kernel.
#[cfg(miri)]
pub(crate) fn reserve_addresses(len: usize) -> io::Result<NonNull<u8>> {
    map_anonymous(len)
}

/// The size of a file or a dma-buf. None: it does not tell.
pub(crate) fn size_of_fd(fd: BorrowedFd<'_>) -> Option<u64> {
    // SAFETY: plain integers, for which all zeros are valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, and room for its attributes.
    let failed = unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) };
    u64::try_from(stat.st_size).ok().filter(|size| failed == 0 && *size > 0)
}

/// Unmaps memory of [`map_anonymous`], and of the others here.
///
/// # Safety
/// `base` and `len` must be one mapping of this process that is no longer used.
#[cfg(not(miri))]
pub(crate) unsafe fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise: exactly one of our mappings, unused from now.
    let rc = unsafe { libc::munmap(base.as_ptr().cast(), len) };
    debug_assert_eq!(rc, 0, "munmap of a region's own mapping");
}

/// Under Miri the allocator stands in for the kernel.
#[cfg(miri)]
pub fn map_anonymous(len: usize) -> io::Result<NonNull<u8>> {
    let layout = std::alloc::Layout::from_size_align(len, 4096).map_err(io::Error::other)?;
    // SAFETY: `Region::map` refuses zero lengths.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
        .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Under Miri the allocator stands in for the kernel.
///
/// # Safety
/// As for the real one.
#[cfg(miri)]
pub(crate) unsafe fn unmap(base: NonNull<u8>, len: usize) {
    let layout = std::alloc::Layout::from_size_align(len, 4096).expect("as allocated");
    // SAFETY: allocated with this layout by `map_anonymous`.
    unsafe { std::alloc::dealloc(base.as_ptr(), layout) };
}
