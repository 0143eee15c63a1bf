//! Socket addresses in the kernel's form.

use std::mem::size_of;
use std::net::SocketAddr;

/// A `sockaddr_in` or `sockaddr_in6`.
#[repr(C)]
pub(crate) union RawAddr {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddr {
    /// Returns the kernel's form of `addr` and its length in bytes.
    pub(crate) fn new(addr: &SocketAddr) -> (RawAddr, libc::socklen_t) {
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

    /// For C functions whose parameter is a pointer to mutable, although they only read.
    #[cfg(feature = "verbs")]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        std::ptr::from_mut(self).cast()
    }
}

/// Reads an address from the kernel or a library. None if its family has no ports.
///
/// # Safety
/// `at` must be valid for reads of as many bytes as the structure of its family has.
pub(crate) unsafe fn from_raw(at: *const libc::sockaddr) -> Option<SocketAddr> {
    use std::net::{SocketAddrV4, SocketAddrV6};
    // SAFETY: every address begins with its family; it may lie unaligned.
    let family = unsafe { at.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says so.
            let a = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = a.sin_addr.s_addr.to_ne_bytes();
            Some(SocketAddrV4::new(ip.into(), u16::from_be(a.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says so.
            let a = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            let (ip, port) = (a.sin6_addr.s6_addr, u16::from_be(a.sin6_port));
            Some(SocketAddrV6::new(ip.into(), port, a.sin6_flowinfo, a.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Converts the length of a small structure to the kernel's type.
pub(super) fn socklen(len: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(len).unwrap_or(libc::socklen_t::MAX)
}

/// Returns the address family of an address.
pub(super) fn family(addr: &SocketAddr) -> libc::sa_family_t {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    libc::sa_family_t::try_from(family).unwrap_or_default()
}
