//! The addresses of this host.

use std::io;
use std::net::SocketAddr;

/// The addresses of all interfaces that are up, each with `port`, without doubles.
pub fn local_addrs(port: u16) -> io::Result<Vec<SocketAddr>> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the kernel's answer is put behind a pointer of ours.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = head;
    // SAFETY: a list that getifaddrs made, each entry of which is valid until
    // freeifaddrs, below.
    while let Some(entry) = unsafe { at.as_ref() } {
        let up = libc::c_uint::try_from(libc::IFF_UP).unwrap_or(0);
        if entry.ifa_flags & up != 0
            && !entry.ifa_addr.is_null()
            // SAFETY: an address of the kernel's, complete for its family.
            && let Some(mut addr) = unsafe { super::addr::from_raw(entry.ifa_addr) }
        {
            addr.set_port(port);
            if !found.contains(&addr) {
                found.push(addr);
            }
        }
        at = entry.ifa_next;
    }
    // SAFETY: what getifaddrs returned, freed once.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_can_be_bound() {
        let found = local_addrs(0).unwrap();
        assert!(found.contains(&"127.0.0.1:0".parse().unwrap()), "{found:?}");
        for addr in found.iter().filter(|a| a.ip().is_loopback()) {
            std::net::TcpListener::bind(addr).unwrap();
        }
    }
}
