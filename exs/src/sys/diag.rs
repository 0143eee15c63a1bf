//! The user of a TCP port's listener, from the kernel (sock_diag(7)).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const TCP_LISTEN: u8 = 10;
/// Bytes of nlmsghdr and inet_diag_req_v2.
const REQUEST: usize = 16 + 56;
/// Offsets of the state and of the user in the answer (nlmsghdr, inet_diag_msg).
const STATE_AT: usize = 17;
const UID_AT: usize = 80;

fn request(addr: &SocketAddr) -> [u8; REQUEST] {
    let mut r = [0; REQUEST];
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    r[..4].copy_from_slice(&u32::try_from(REQUEST).unwrap_or(0).to_ne_bytes());
    r[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    r[6..8].copy_from_slice(&u16::try_from(libc::NLM_F_REQUEST).unwrap_or(0).to_ne_bytes());
    r[16] = family.to_le_bytes()[0];
    r[17] = libc::IPPROTO_TCP.to_le_bytes()[0];
    r[20..24].fill(0xFF); // in any state
    // The address that it is bound to. The address that it is connected to stays zero, as for a
    // caller.
    r[24..26].copy_from_slice(&addr.port().to_be_bytes());
    match addr.ip() {
        IpAddr::V4(ip) => r[28..32].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => r[28..44].copy_from_slice(&ip.octets()),
    }
    if let SocketAddr::V6(a) = addr {
        r[60..64].copy_from_slice(&a.scope_id().to_ne_bytes());
    }
    r[64..72].fill(0xFF); // no cookie
    r
}

/// Returns the user whose socket takes TCP connections to `addr`, by the lookup that TCP itself
/// would do. None if there is no such socket.
///
/// # Errors
/// The kernel has no sock_diag, or a sandbox forbids it.
pub fn listener_uid(addr: &SocketAddr) -> io::Result<Option<u32>> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: a system call without pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just made, with no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let request = request(addr);
    // SAFETY: pointer and length are those of a live array.
    let sent = unsafe {
        libc::send(fd.as_raw_fd(), request.as_ptr().cast(), request.len(), libc::MSG_DONTWAIT)
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = [0u8; 512];
    let (at, len) = (answer.as_mut_ptr().cast(), answer.len());
    // The kernel answers before it returns from the request.
    // SAFETY: pointer and length are those of an exclusive array.
    let n = unsafe { libc::recv(fd.as_raw_fd(), at, len, libc::MSG_DONTWAIT) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    let answer = &answer[..n];
    let word = |at: usize| {
        let bytes = answer.get(at..at + 4).and_then(|b| b.try_into().ok());
        bytes.map(u32::from_ne_bytes).ok_or(io::ErrorKind::InvalidData)
    };
    let kind = word(4)? & 0xFFFF;
    if kind == u32::from(SOCK_DIAG_BY_FAMILY) {
        let listens = answer.get(STATE_AT) == Some(&TCP_LISTEN);
        return Ok(if listens { Some(word(UID_AT)?) } else { None });
    }
    match word(16)?.cast_signed().wrapping_neg() {
        libc::ENOENT => Ok(None),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn listeners_are_found_as_tcp_would_find_them() {
        let us = super::super::effective_uid();
        for (bound, called) in [
            ("127.0.0.1", "127.0.0.1"),
            ("0.0.0.0", "127.0.0.1"),
            ("::", "127.0.0.1"),
            ("::1", "::1"),
        ] {
            let Ok(listener) = TcpListener::bind((bound, 0)) else { continue };
            let port = listener.local_addr().unwrap().port();
            let called = SocketAddr::new(called.parse().unwrap(), port);
            match listener_uid(&called) {
                Ok(uid) => assert_eq!(uid, Some(us), "{bound} {called}"),
                Err(e) => return eprintln!("not here: {e}"),
            }
            let elsewhere = SocketAddr::new(called.ip(), port ^ 1);
            if TcpListener::bind(elsewhere).is_ok() {
                assert_eq!(listener_uid(&elsewhere).unwrap(), None);
            }
        }
    }
}
