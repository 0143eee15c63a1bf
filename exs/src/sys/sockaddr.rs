//! Addresses of kernel sockets, of any family.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes of the longest address (`struct sockaddr_storage`).
pub const SOCKADDR_MAX: usize = 128;
/// Offset of the path in a `struct sockaddr_un`.
const UNIX_PATH: usize = 2;
/// Bytes of the path in a `struct sockaddr_un`.
const UNIX_PATH_MAX: usize = 108;

/// The address of an ordinary kernel socket: IP, UNIX-domain, or of any other family
/// in the kernel's own form (`struct sockaddr`).
///
/// ```
/// use exs::KernelAddr;
/// let ip = KernelAddr::from("127.0.0.1:80".parse::<std::net::SocketAddr>().unwrap());
/// assert_eq!(ip.as_ip().unwrap().port(), 80);
/// let path = KernelAddr::unix("/run/echo.sock")?;
/// assert_eq!(path.as_unix_path().unwrap().to_str(), Some("/run/echo.sock"));
/// let (bytes, len) = path.to_sockaddr();
/// assert_eq!(KernelAddr::from_sockaddr(&bytes[..len])?, path);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct KernelAddr(Repr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    /// By far the most frequent form, and without an allocation.
    Ip(SocketAddr),
    Other(Box<[u8]>),
}

impl KernelAddr {
    /// Makes an address from the bytes of a `struct sockaddr` of any family.
    ///
    /// # Errors
    /// `InvalidInput` if they are too few for their family, or more than 128.
    pub fn from_sockaddr(bytes: &[u8]) -> io::Result<KernelAddr> {
        if bytes.len() > SOCKADDR_MAX {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let family = bytes.get(..2).map(|b| u16::from_ne_bytes([b[0], b[1]]));
        let repr = match family.map(i32::from) {
            Some(libc::AF_INET) => v4(bytes).map(Repr::Ip),
            Some(libc::AF_INET6) => v6(bytes).map(Repr::Ip),
            Some(_) => Some(Repr::Other(bytes.into())),
            None => None,
        };
        repr.map(KernelAddr).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
    }

    /// Returns the kernel's form and its length in bytes.
    pub fn to_sockaddr(&self) -> ([u8; SOCKADDR_MAX], usize) {
        let mut out = [0; SOCKADDR_MAX];
        let len = match &self.0 {
            Repr::Other(bytes) => {
                out[..bytes.len()].copy_from_slice(bytes);
                bytes.len()
            }
            Repr::Ip(ip) => {
                let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
                let family = u16::try_from(family).unwrap_or_default();
                out[..2].copy_from_slice(&family.to_ne_bytes());
                out[2..4].copy_from_slice(&ip.port().to_be_bytes());
                match ip {
                    SocketAddr::V4(a) => {
                        out[4..8].copy_from_slice(&a.ip().octets());
                        16
                    }
                    SocketAddr::V6(a) => {
                        out[4..8].copy_from_slice(&a.flowinfo().to_ne_bytes());
                        out[8..24].copy_from_slice(&a.ip().octets());
                        out[24..28].copy_from_slice(&a.scope_id().to_ne_bytes());
                        28
                    }
                }
            }
        };
        (out, len)
    }

    /// Makes a UNIX-domain address in the file system.
    ///
    /// # Errors
    /// `InvalidInput` if the path is empty, holds a zero byte, or has more than 107
    /// bytes.
    pub fn unix(path: impl AsRef<Path>) -> io::Result<KernelAddr> {
        let path = path.as_ref().as_os_str().as_bytes();
        if path.is_empty() || path.contains(&0) || path.len() >= UNIX_PATH_MAX {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(KernelAddr::unix_bytes(path, &[0]))
    }

    /// Makes a UNIX-domain address in Linux's abstract name space.
    ///
    /// # Errors
    /// `InvalidInput` if the name has more than 107 bytes.
    pub fn unix_abstract(name: &[u8]) -> io::Result<KernelAddr> {
        if name.len() >= UNIX_PATH_MAX {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(KernelAddr::unix_bytes(&[0], name))
    }

    /// Makes the address of a UNIX-domain socket that was never bound.
    pub(super) fn nameless() -> KernelAddr {
        KernelAddr::unix_bytes(&[], &[])
    }

    fn unix_bytes(first: &[u8], then: &[u8]) -> KernelAddr {
        let family = u16::try_from(libc::AF_UNIX).unwrap_or_default();
        KernelAddr(Repr::Other([&family.to_ne_bytes(), first, then].concat().into()))
    }

    /// False for a UNIX-domain socket that was never bound.
    pub(crate) fn is_named(&self) -> bool {
        self.unix_name().is_none_or(|name| !name.is_empty())
    }

    /// Returns the IP address and port. None for other families.
    pub fn as_ip(&self) -> Option<SocketAddr> {
        match &self.0 {
            Repr::Ip(ip) => Some(*ip),
            Repr::Other(_) => None,
        }
    }

    /// Returns the path of a UNIX-domain address in the file system. None for other addresses.
    pub fn as_unix_path(&self) -> Option<&Path> {
        let name = self.unix_name()?;
        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        (end > 0).then(|| Path::new(OsStr::from_bytes(&name[..end])))
    }

    /// Returns the name of a UNIX-domain address, without the family; empty if it has none. None
    /// for other families.
    fn unix_name(&self) -> Option<&[u8]> {
        match &self.0 {
            Repr::Other(b) if i32::from(u16::from_ne_bytes([b[0], b[1]])) == libc::AF_UNIX => {
                Some(&b[UNIX_PATH..])
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for KernelAddr {
    fn from(ip: SocketAddr) -> KernelAddr {
        KernelAddr(Repr::Ip(ip))
    }
}

impl fmt::Debug for KernelAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for KernelAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0, self.as_unix_path(), self.unix_name()) {
            (Repr::Ip(ip), ..) => ip.fmt(f),
            (_, Some(path), _) => write!(f, "unix:{}", path.display()),
            (_, None, Some([0, name @ ..])) => write!(f, "unix:@{}", name.escape_ascii()),
            (_, None, Some(_)) => f.write_str("unix:(no name)"),
            (Repr::Other(b), None, None) => write!(f, "sockaddr:{}", b.escape_ascii()),
        }
    }
}

fn port(b: &[u8]) -> u16 {
    u16::from_be_bytes([b[2], b[3]])
}

fn word(b: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn v4(b: &[u8]) -> Option<SocketAddr> {
    let ip = <[u8; 4]>::try_from(b.get(4..8)?).ok()?;
    Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(ip)), port(b)))
}

fn v6(b: &[u8]) -> Option<SocketAddr> {
    let ip = <[u8; 16]>::try_from(b.get(8..24)?).ok()?;
    // The scope came with RFC 2553: an old program's structure may lack it.
    let scope = if b.len() >= 28 { word(b, 24) } else { 0 };
    Some(SocketAddrV6::new(Ipv6Addr::from(ip), port(b), word(b, 4), scope).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_convert_to_the_kernels_form_and_back() {
        let ips = ["1.2.3.4:5", "[2001:db8::7]:65535", "0.0.0.0:0"];
        for addr in ips.iter().map(|a| KernelAddr::from(a.parse::<SocketAddr>().unwrap())) {
            let (bytes, len) = addr.to_sockaddr();
            assert_eq!(KernelAddr::from_sockaddr(&bytes[..len]).unwrap(), addr);
        }
        let scoped: KernelAddr =
            SocketAddr::from(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 9, 7, 3)).into();
        let (bytes, len) = scoped.to_sockaddr();
        assert_eq!(KernelAddr::from_sockaddr(&bytes[..len]).unwrap(), scoped);
        assert_eq!(bytes[2..4], 9u16.to_be_bytes());
    }

    #[test]
    fn unix_names() {
        let path = KernelAddr::unix("/a/b").unwrap();
        assert_eq!((path.to_string().as_str(), path.as_ip()), ("unix:/a/b", None));
        let (bytes, len) = path.to_sockaddr();
        assert_eq!((bytes[len - 1], len), (0, 2 + 4 + 1));
        let name = KernelAddr::unix_abstract(b"x").unwrap();
        assert_eq!((name.to_string().as_str(), name.as_unix_path()), ("unix:@x", None));
        let none = KernelAddr::from_sockaddr(&bytes[..2]).unwrap();
        assert_eq!((none.to_string().as_str(), none.as_unix_path()), ("unix:(no name)", None));
        assert!(KernelAddr::unix("a".repeat(108)).is_err());
        assert!(KernelAddr::unix("").is_err() && KernelAddr::unix("a\0b").is_err());
    }

    #[test]
    fn bytes_that_are_no_address_are_refused() {
        assert!(KernelAddr::from_sockaddr(&[]).is_err());
        assert!(KernelAddr::from_sockaddr(&[1]).is_err());
        assert!(KernelAddr::from_sockaddr(&[0; 129]).is_err());
        let (bytes, len) =
            KernelAddr::from("1.2.3.4:5".parse::<SocketAddr>().unwrap()).to_sockaddr();
        assert!(KernelAddr::from_sockaddr(&bytes[..len - 9]).is_err());
    }
}
