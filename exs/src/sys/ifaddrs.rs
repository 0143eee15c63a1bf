//! The addresses of this host.

use std::io;
use std::net::SocketAddr;

/// Returns the addresses of all interfaces that are up, each once, with `port`.
pub fn local_addrs(port: u16) -> io::Result<Vec<SocketAddr>> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the C library stores the head of its list in our pointer.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = head;
    // SAFETY: the list is from getifaddrs, and each entry is valid until freeifaddrs below.
    while let Some(entry) = unsafe { at.as_ref() } {
        let up = libc::c_uint::try_from(libc::IFF_UP).unwrap_or(0);
        if entry.ifa_flags & up != 0
            && !entry.ifa_addr.is_null()
            // SAFETY: the kernel's address is complete for its family.
            && let Some(mut addr) = unsafe { super::addr::from_raw(entry.ifa_addr) }
        {
            addr.set_port(port);
            if !found.contains(&addr) {
                found.push(addr);
            }
        }
        at = entry.ifa_next;
    }
    // SAFETY: getifaddrs returned the list, and it is freed once.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_can_be_bound() {
        let found = local_addrs(0).unwrap();
        assert!(found.contains(&"127.0.0.1:0".parse().unwrap()), "{found:?}");
        for addr in found.iter().filter(|a| a.ip().is_loopback()) {
            std::net::TcpListener::bind(addr).unwrap();
        }
    }
}
