//! A host to connect to: addresses, or names that a resolver turns into addresses.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use super::Error;
use crate::sys::{self, ResolveError};

/// The forms of a host in text, for error messages.
const FORMS: &str =
    "write 192.0.2.1:7471, [2001:db8::1]:7471, [fe80::1%eth0]:7471, host:7471 or host:service";

/// A host to connect to: its name and port, or its addresses. As text: `HOST:PORT`, where PORT is a
/// number or the name of a service, and an IPv6 address stands in brackets (RFC 3986 section 3.2.2),
/// with its interface behind a `%` if it is link-local (RFC 4007 section 11).
///
/// ```
/// use exs::Host;
/// let server: Host = "server.example:7471".parse()?;
/// assert_eq!(server.to_string(), "server.example:7471");
/// let here: Host = "[::1]:7471".parse()?; // an address needs no resolver
/// assert_eq!(here.resolve()?, ["[::1]:7471".parse().unwrap()]);
/// assert!("server.example".parse::<Host>().is_err()); // the port is missing
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    naming: Naming,
    /// Addresses of IPv6 do not count.
    only_ipv4: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Naming {
    Addresses(Vec<SocketAddr>),
    Name { host: String, service: String },
}

/// What a connect has to do first.
pub(super) enum Lookup {
    /// Nothing: these are the addresses.
    Done(Vec<SocketAddr>),
    /// To ask the resolver for this host and service.
    Ask(String, String),
}

impl Host {
    /// A host by its addresses, in the order of preference. A connect fails if there are none.
    pub fn from_addresses(addrs: impl IntoIterator<Item = SocketAddr>) -> Host {
        Host { naming: Naming::Addresses(addrs.into_iter().collect()), only_ipv4: false }
    }

    /// The same host without its IPv6 addresses, as a program with sockets of AF_INET needs it.
    ///
    /// ```
    /// let server: exs::Host = "server.example:7471".parse()?;
    /// assert_eq!(server.only_ipv4()?.to_string(), "server.example:7471");
    /// assert!("[::1]:7471".parse::<exs::Host>()?.only_ipv4().is_err());
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Resolve`] (EAFNOSUPPORT) if the host was given by IPv6 addresses only. A name that has
    /// no others is found out when it is resolved.
    pub fn only_ipv4(mut self) -> Result<Host, Error> {
        self.only_ipv4 = true;
        if let Naming::Addresses(all) = &self.naming {
            self.naming = Naming::Addresses(self.usable(all.clone())?);
        }
        Ok(self)
    }

    /// The addresses that count.
    pub(super) fn usable(&self, mut addrs: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Error> {
        if self.only_ipv4 {
            addrs.retain(SocketAddr::is_ipv4);
            if addrs.is_empty() {
                let why = "it has no IPv4 address, and the socket is of AF_INET".to_owned();
                let errno = libc::EAFNOSUPPORT;
                return Err(Error::Resolve { host: self.to_string(), why, errno });
            }
        }
        Ok(addrs)
    }

    /// A host by its name, without brackets, and the number of a port.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name is empty, or has a NUL byte; or it is a link-local address
    /// without an interface, or with an interface that is not there.
    pub fn new(host: &str, port: u16) -> Result<Host, Error> {
        let service = port.to_string();
        Host::of(host, &service).map_err(|why| wrong(&shown(host, &service), &why))
    }

    fn of(host: &str, service: &str) -> Result<Host, String> {
        if host.is_empty() {
            let all = "(0.0.0.0 and [::] are all addresses of this host)";
            return Err(format!("the host is missing {all}"));
        }
        if host.contains('\0') || service.contains('\0') {
            return Err("it has a NUL byte".to_owned());
        }
        let number = service.bytes().all(|b| b.is_ascii_digit());
        // The resolver would cut the number off to 16 bits.
        if number && service.parse::<u16>().is_err() {
            return Err(format!("ports are numbers from 0 to 65535, and {service} is none"));
        }
        let (ip, interface) = match host.split_once('%') {
            Some((ip, interface)) => (ip, Some(interface)),
            None => (host, None),
        };
        if !number || ip.parse::<IpAddr>().is_err() {
            let naming = Naming::Name { host: host.to_owned(), service: service.to_owned() };
            return Ok(Host { naming, only_ipv4: false });
        }
        // The numbers of interfaces come from the kernel, which does not wait.
        let found = sys::resolve(host, service, true).map_err(|e| match interface {
            Some(name) => format!("this host has no interface {name} (`ip link` lists them)"),
            None => e.text(),
        })?;
        found.iter().try_for_each(|addr| check_scope(*addr))?;
        Ok(Host::from_addresses(found))
    }

    /// Its addresses, in the order in which a connect tries them if all were of one family (RFC
    /// 6724). It waits for the system's resolver, unless the host was given by addresses.
    ///
    /// # Errors
    /// [`Error::Resolve`] if the name has no address, or no name server answers.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, Error> {
        match &self.naming {
            Naming::Addresses(list) => Ok(list.clone()),
            Naming::Name { host, service } => {
                let found = sys::resolve(host, service, false);
                self.usable(found.map_err(|e| self.unresolved(&e))?)
            }
        }
    }

    pub(super) fn lookup(&self) -> Lookup {
        match &self.naming {
            Naming::Addresses(list) => Lookup::Done(list.clone()),
            Naming::Name { host, service } => Lookup::Ask(host.clone(), service.clone()),
        }
    }

    /// Its address, if it was given by a single one.
    pub(super) fn single(&self) -> Option<SocketAddr> {
        match &self.naming {
            Naming::Addresses(list) if list.len() == 1 => list.first().copied(),
            _ => None,
        }
    }

    /// The error of a name that the resolver does not know.
    pub(super) fn unresolved(&self, e: &ResolveError) -> Error {
        let hint = match (e.is_service(), e.errno()) {
            (true, _) => " (services by name are those of /etc/services)",
            (_, libc::ETIMEDOUT) => {
                " (no name server answers: look at /etc/resolv.conf, or give an address)"
            }
            _ => "",
        };
        Error::Resolve {
            host: self.to_string(),
            why: format!("{}{hint}", e.text()),
            errno: e.errno(),
        }
    }
}

/// `HOST:SERVICE`, with brackets around an IPv6 address.
fn shown(host: &str, service: &str) -> String {
    if host.contains(':') { format!("[{host}]:{service}") } else { format!("{host}:{service}") }
}

fn wrong(text: &str, why: &str) -> Error {
    Error::invalid(format!("`{text}` is no HOST:PORT: {why}; {FORMS}"))
}

/// Refuses a link-local address without its interface: each link has such addresses of its own
/// (RFC 4007 section 6).
pub(super) fn check_scope(addr: SocketAddr) -> Result<(), String> {
    match addr {
        SocketAddr::V6(a) if a.ip().is_unicast_link_local() && a.scope_id() == 0 => {
            let (ip, port) = (a.ip(), a.port());
            Err(format!(
                "{ip} is a link-local address, and each link has its own: add the interface, as in \
                 [{ip}%eth0]:{port} (`ip -6 addr` lists them)"
            ))
        }
        _ => Ok(()),
    }
}

impl FromStr for Host {
    type Err = Error;

    fn from_str(text: &str) -> Result<Host, Error> {
        let parts = split(text).and_then(|(host, port)| Host::of(host, port));
        parts.map_err(|why| wrong(text, &why))
    }
}

/// Host and port. The brackets are taken off.
fn split(text: &str) -> Result<(&str, &str), String> {
    let missing = || "the port is missing".to_owned();
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("the `]` is missing")?;
        match rest.strip_prefix(':') {
            Some(port) => (host, port),
            None if rest.is_empty() => return Err(missing()),
            None => return Err(format!("`{rest}` follows the `]`")),
        }
    } else {
        match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err("an IPv6 address with a port stands in brackets".to_owned());
            }
            Some(both) => both,
            None => return Err(missing()),
        }
    };
    if port.is_empty() { Err(missing()) } else { Ok((host, port)) }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.naming {
            Naming::Name { host, service } => f.write_str(&shown(host, service)),
            Naming::Addresses(list) => {
                let each: Vec<String> = list.iter().map(SocketAddr::to_string).collect();
                f.write_str(&each.join(" or "))
            }
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_known_at_once_and_names_are_not() {
        for text in ["192.0.2.7:7471", "[2001:db8::1]:7", "[::]:0", "[fe80::1%1]:9"] {
            let addr = host(text).single().unwrap();
            assert_eq!(addr.to_string(), text);
            assert_eq!(
                (host(text).to_string(), host(text).resolve().unwrap()),
                (text.into(), vec![addr])
            );
        }
        for text in ["server:7471", "a.example:http", "192.0.2.7:http"] {
            assert!(host(text).single().is_none() && host(text).to_string() == text);
            assert!(matches!(host(text).lookup(), Lookup::Ask(..)));
        }
        assert_eq!(Host::new("::1", 7).unwrap(), host("[::1]:7"));
        assert_eq!(Host::new("server", 7).unwrap(), host("server:7"));
        let four = host("localhost:7").only_ipv4().unwrap().resolve().unwrap();
        assert_eq!(four, ["127.0.0.1:7".parse().unwrap()]);
        let both = Host::from_addresses(["[::1]:7", "127.0.0.1:7"].map(|a| a.parse().unwrap()));
        assert_eq!(both.only_ipv4().unwrap(), host("127.0.0.1:7").only_ipv4().unwrap());
        let none = host("[::1]:7").only_ipv4().unwrap_err();
        assert_eq!(none.errno(), libc::EAFNOSUPPORT, "{none}");
        assert!(host("localhost:7").resolve().unwrap().iter().all(|a| a.ip().is_loopback()));
    }

    #[test]
    fn a_link_local_address_has_its_interface() {
        // Every network namespace has the interface lo, and its number is 1.
        assert_eq!(host("[fe80::1%lo]:7471"), host("[fe80::1%1]:7471"));
        let said = "[fe80::1]:7471".parse::<Host>().unwrap_err().to_string();
        assert!(said.contains("[fe80::1%eth0]:7471"), "{said}");
        let said = Host::new("fe80::1%no-such", 1).unwrap_err().to_string();
        assert!(said.contains("no interface no-such"), "{said}");
        assert!(check_scope("[fe80::1%3]:1".parse().unwrap()).is_ok());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, why) in [
            ("192.0.2.7", "the port is missing"),
            ("192.0.2.7:", "the port is missing"),
            ("[::1]", "the port is missing"),
            (":7471", "the host is missing"),
            ("::1:7471", "in brackets"),
            ("[::1:7471", "`]` is missing"),
            ("[::1]7471", "follows the `]`"),
            ("127.0.0.1:65536", "0 to 65535"),
            ("a\0b:1", "NUL"),
        ] {
            let said = text.parse::<Host>().unwrap_err().to_string();
            assert!(said.contains(why) && said.contains("host:service"), "{said}");
        }
    }
}
