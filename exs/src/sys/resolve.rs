//! Names of hosts and services, by the system's resolver.

use std::ffi::{CStr, CString};
use std::io;
use std::net::SocketAddr;

use super::addr::from_raw;
use super::helpers::Helpers;

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolveError {
    /// The resolver's code (`EAI_NONAME`, ...).
    pub code: i32,
    /// The kernel's error if the code is `EAI_SYSTEM`; else 0.
    pub os: i32,
}

impl ResolveError {
    /// The resolver's own words for the error.
    pub fn text(&self) -> String {
        if self.code == libc::EAI_SYSTEM {
            return io::Error::from_raw_os_error(self.os).to_string();
        }
        // SAFETY: takes a number only.
        let text = unsafe { libc::gai_strerror(self.code) };
        // SAFETY: gai_strerror returns a constant string for any number.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    }

    /// The errno that comes nearest.
    pub fn errno(&self) -> i32 {
        match self.code {
            libc::EAI_SYSTEM => self.os,
            libc::EAI_MEMORY => libc::ENOMEM,
            // No name server has answered.
            libc::EAI_AGAIN => libc::ETIMEDOUT,
            libc::EAI_SERVICE | libc::EAI_FAMILY | libc::EAI_SOCKTYPE | libc::EAI_BADFLAGS => {
                libc::EINVAL
            }
            _ => libc::EHOSTUNREACH,
        }
    }

    /// True if the service is the part that is not known.
    pub fn is_service(&self) -> bool {
        self.code == libc::EAI_SERVICE
    }
}

/// Asks for the addresses of a host and a service, in the order of RFC 6724. A link-local address
/// may have its interface behind a `%`. May wait for name servers, unless `numeric` is set: then
/// host and service must be numbers.
///
/// # Errors
/// The resolver's.
pub fn resolve(host: &str, service: &str, numeric: bool) -> Result<Vec<SocketAddr>, ResolveError> {
    let no_name = |_| ResolveError { code: libc::EAI_NONAME, os: 0 };
    let (host, service) =
        (CString::new(host).map_err(no_name)?, CString::new(service).map_err(no_name)?);
    // SAFETY: `addrinfo` is plain integers and pointers: all zeros is "no hints".
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_socktype = libc::SOCK_STREAM;
    if numeric {
        hints.ai_flags = libc::AI_NUMERICHOST | libc::AI_NUMERICSERV;
    }
    let mut head: *mut libc::addrinfo = std::ptr::null_mut();
    // SAFETY: both strings end with a NUL, the hints are complete, and the C library stores the
    // head of its list in our pointer.
    let code = unsafe {
        libc::getaddrinfo(host.as_ptr(), service.as_ptr(), &raw const hints, &raw mut head)
    };
    if code != 0 {
        let os = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(ResolveError { code, os: if code == libc::EAI_SYSTEM { os } else { 0 } });
    }
    let (mut found, mut at) = (Vec::new(), head.cast_const());
    // SAFETY: the list is from getaddrinfo, and each entry is valid until freeaddrinfo below.
    while let Some(entry) = unsafe { at.as_ref() } {
        // SAFETY: the address is complete for its family.
        if let Some(addr) = unsafe { from_raw(entry.ai_addr) }
            && !found.contains(&addr)
        {
            found.push(addr);
        }
        at = entry.ai_next;
    }
    // SAFETY: getaddrinfo returned the list, and it is freed once.
    unsafe { libc::freeaddrinfo(head) };
    Ok(found)
}

/// Threads that wait for name servers: a few tens of names at a time, of all sockets of the process.
static RESOLVERS: Helpers = Helpers::new("exs-resolve", 32);

/// As [`resolve`], in a helper thread, which calls `done` with the result. The thread may wait for
/// name servers for a minute. Beyond 32 names at a time, names wait for each other.
pub fn resolve_later(
    host: String,
    service: String,
    done: impl FnOnce(Result<Vec<SocketAddr>, ResolveError>) + Send + 'static,
) {
    RESOLVERS.run(Box::new(move || done(resolve(&host, &service, false))));
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_need_no_name_server() {
        let found = resolve("192.0.2.7", "7471", true).unwrap();
        assert_eq!(found, ["192.0.2.7:7471".parse().unwrap()]);
        let found = resolve("fe80::1%lo", "7471", true).unwrap();
        assert_eq!(found, ["[fe80::1%1]:7471".parse().unwrap()], "lo is number 1 everywhere");
        let e = resolve("localhost", "7471", true).unwrap_err();
        assert_eq!((e.code, e.errno()), (libc::EAI_NONAME, libc::EHOSTUNREACH));
        assert!(!e.text().is_empty() && !e.is_service());
        assert!(resolve("a\0b", "7471", false).is_err());
    }

    #[test]
    fn a_helper_thread_resolves() {
        let (tell, told) = std::sync::mpsc::channel();
        resolve_later("localhost".to_owned(), "7471".to_owned(), move |found| {
            tell.send(found).unwrap();
        });
        let found = told.recv().unwrap().unwrap();
        assert!(!found.is_empty() && found.iter().all(|a| a.ip().is_loopback()), "{found:?}");
    }
}
