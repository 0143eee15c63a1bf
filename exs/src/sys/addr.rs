//! Socket addresses as the kernel has them.

use std::mem::size_of;
use std::net::SocketAddr;

/// A `sockaddr_in` or `sockaddr_in6`.
#[repr(C)]
pub(super) union RawAddr {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddr {
    /// The kernel's form of `addr`, and its length.
    pub(super) fn new(addr: &SocketAddr) -> (RawAddr, libc::socklen_t) {
        match addr {
            SocketAddr::V4(a) => {
                let v4 = libc::sockaddr_in {
                    sin_family: family(addr),
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                    sin_zero: [0; 8],
                };
                (RawAddr { v4 }, socklen(size_of::<libc::sockaddr_in>()))
            }
            SocketAddr::V6(a) => {
                let v6 = libc::sockaddr_in6 {
                    sin6_family: family(addr),
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: a.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                };
                (RawAddr { v6 }, socklen(size_of::<libc::sockaddr_in6>()))
            }
        }
    }

    pub(super) fn as_ptr(&self) -> *const libc::sockaddr {
        std::ptr::from_ref(self).cast()
    }
}

/// The length of a small structure as the kernel wants it.
pub(super) fn socklen(len: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(len).unwrap_or(libc::socklen_t::MAX)
}

/// The address family of an address.
pub(super) fn family(addr: &SocketAddr) -> libc::sa_family_t {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    libc::sa_family_t::try_from(family).unwrap_or_default()
}
