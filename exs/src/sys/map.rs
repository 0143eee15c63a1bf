//! Anonymous memory.

use std::io;
use std::ptr::NonNull;

/// Returns the bytes of a page.
pub(super) fn page_size() -> usize {
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

/// Unmaps memory of [`map_anonymous`].
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
