//! The addresses of this host.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

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
            && let Some(addr) = address(entry.ifa_addr, port)
            && !found.contains(&addr)
        {
            found.push(addr);
        }
        at = entry.ifa_next;
    }
    // SAFETY: what getifaddrs returned, freed once.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

/// The address of an interface, if it is of a family that we know.
fn address(raw: *const libc::sockaddr, port: u16) -> Option<SocketAddr> {
    // SAFETY: null, or an address of getifaddrs, which begins with its family.
    let family = i32::from(unsafe { raw.as_ref() }?.sa_family);
    if family == libc::AF_INET {
        // SAFETY: an address of this family has this layout; it may lie unaligned.
        let v4 = unsafe { raw.cast::<libc::sockaddr_in>().read_unaligned() };
        let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
        Some(SocketAddr::new(IpAddr::V4(ip), port))
    } else if family == libc::AF_INET6 {
        // SAFETY: as above.
        let v6 = unsafe { raw.cast::<libc::sockaddr_in6>().read_unaligned() };
        let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
        Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id)))
    } else {
        None
    }
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
