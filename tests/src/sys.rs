//! What the tests need of libc and cannot get from std.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;

use exs::Buffer;
use exs::mem::Region;

/// Takes `len` bytes of whole pages away from whoever reads them.
fn forbid(at: *const u8, len: usize) {
    let at = at.cast_mut().cast();
    // SAFETY: the callers name pages of mappings of theirs. Nothing but the kernel looks at
    // them afterwards: a test that did would end by SIGSEGV, and that is all.
    let failed = unsafe { libc::mprotect(at, len, libc::PROT_NONE) };
    assert_eq!(failed, 0, "mprotect: {}", io::Error::last_os_error());
}

/// Mapped memory of which the kernel reads the first half only, as after an mprotect(2) or
/// munmap(2) of a program's.
pub fn half_unreadable(len: usize) -> Arc<Region> {
    let region = Region::map(len).expect("memory");
    forbid(region.as_ptr().wrapping_add(len / 2), len - len / 2);
    region
}

/// The same for a buffer that is the whole of a `MemoryRegion`.
pub fn make_half_unreadable(buffer: &mut Buffer) {
    let half = buffer.len() / 2;
    forbid(buffer.as_ptr().wrapping_add(half), buffer.len() - half);
}
