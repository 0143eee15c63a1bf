//! What the tests need of libc and cannot get from std.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;

use exs::mem::Region;

/// Mapped memory of which the kernel reads the first half only, as after an mprotect(2) or
/// munmap(2) of a program's.
pub fn half_unreadable(len: usize) -> Arc<Region> {
    let region = Region::map(len).expect("memory");
    let half = len / 2;
    let from = region.as_ptr().wrapping_add(half).cast();
    // SAFETY: the range lies in the region, which is a mapping of its own. Nothing but the
    // kernel looks at its second half: a test that did would end by SIGSEGV, and that is all.
    let failed = unsafe { libc::mprotect(from, len - half, libc::PROT_NONE) };
    assert_eq!(failed, 0, "mprotect: {}", io::Error::last_os_error());
    region
}
