//! Limits and addresses of this machine that RDMA devices ask for.

use std::io;
use std::net::{IpAddr, SocketAddr};

/// How many bytes this process may lock in memory; `None` if as many as it likes.
pub fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a structure of ours to write to.
    let ret = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (ret == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The IP addresses of this host's interfaces.
pub fn local_addrs() -> io::Result<Vec<IpAddr>> {
    let mut list = std::ptr::null_mut();
    // SAFETY: `list` is written on success.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut found, mut at) = (Vec::new(), list);
    while !at.is_null() {
        // SAFETY: an entry of the list, which is freed below.
        let entry = unsafe { &*at };
        if !entry.ifa_addr.is_null() {
            // SAFETY: an address of an interface; those of IP families are read no
            // further than their own structures go.
            let addr = unsafe { super::addr::addr_from_storage(entry.ifa_addr.cast()) };
            found.extend(addr.map(|a: SocketAddr| a.ip()));
        }
        at = entry.ifa_next;
    }
    // SAFETY: the list from above, freed once.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}
