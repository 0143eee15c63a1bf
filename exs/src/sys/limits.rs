//! Limits of this process that devices and listeners need.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Descriptors below the limit from which on it is near.
const FAR: u64 = 128;

/// Returns how many bytes this process may lock in memory. None: there is no limit.
#[cfg(feature = "verbs")]
pub fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit, for which the pointer has room.
    let ret = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (ret == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Returns how many descriptors this process may have (RLIMIT_NOFILE).
fn most_descriptors() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit, for which the pointer has room.
    let ret = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if ret == 0 { limit.rlim_cur } else { u64::MAX }
}

/// True if this process surely may have more descriptors, as `fd`, which it got just now, is far below
/// the limit: the kernel gives the lowest number that is free.
pub fn has_descriptors(fd: BorrowedFd<'_>) -> bool {
    let number = u64::try_from(fd.as_raw_fd()).unwrap_or(u64::MAX);
    number.saturating_add(FAR) < most_descriptors()
}

/// Returns how many of `most` unproven callers may have a descriptor: at most a quarter of all
/// descriptors, because the callers that are served need some, too.
pub fn most_strangers(most: usize) -> usize {
    let quarter = usize::try_from(most_descriptors() / 4).unwrap_or(usize::MAX);
    most.min(quarter.max(1))
}
