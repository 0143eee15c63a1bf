//! Addresses as people write them: `192.0.2.1:7471`, `[2001:db8::1]:7471`,
//! `[fe80::1%eth0]:7471`, `host:7471`, `host:http`.

use std::net::{IpAddr, SocketAddr};

use dns_lookup::{AddrInfoHints, SockType, getaddrinfo};

/// What an address looks like, for error messages.
const FORMS: &str =
    "write 192.0.2.1:7471, [2001:db8::1]:7471, [fe80::1%eth0]:7471, host:7471 or host:service";

/// All addresses that `text` names, in the order in which they should be tried: HOST:PORT,
/// where PORT may be the name of a service, and an IPv6 address stands in brackets, with its
/// interface behind a `%` if it is link-local.
///
/// # Errors
/// The text is no address: the message says why, and how addresses are written.
pub fn all(text: &str) -> Result<Vec<SocketAddr>, String> {
    let wrong = |why: String| format!("`{text}` is no HOST:PORT: {why}; {FORMS}");
    let (host, port) = split(text).map_err(wrong)?;
    let Some(port) = port else { return Err(wrong("the port is missing".to_owned())) };
    look_up(host, port).map_err(wrong)
}

/// The first of [`all`]: for a server's own address. A `clap` value parser.
///
/// # Errors
/// As [`all`].
pub fn one(text: &str) -> Result<SocketAddr, String> {
    all(text)?.first().copied().ok_or_else(|| format!("`{text}` has no address"))
}

/// An address, with a port or without.
///
/// # Errors
/// As [`all`].
pub fn with_or_without_port(text: &str) -> Result<SocketAddr, String> {
    let wrong = |why: String| format!("`{text}` is no ADDRESS or ADDRESS:PORT: {why}");
    // Without brackets an IPv6 address has no port.
    let bare = text.split('%').next().unwrap_or_default().parse::<IpAddr>().is_ok();
    let (host, port) = if bare { (text, None) } else { split(text).map_err(wrong)? };
    let found = look_up(host, port.unwrap_or("0")).map_err(wrong)?;
    found.first().copied().ok_or_else(|| wrong("it has no address".to_owned()))
}

/// Calls `connect` for each address of a name until it succeeds; the last error if it does not.
///
/// # Errors
/// Those of [`all`], or of `connect`.
pub fn try_each<T, E: From<String>>(
    text: &str,
    mut connect: impl FnMut(SocketAddr) -> Result<T, E>,
) -> Result<T, E> {
    let mut last = E::from(format!("`{text}` has no address"));
    for addr in all(text)? {
        match connect(addr) {
            Ok(done) => return Ok(done),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Host and port; the brackets are taken off.
fn split(text: &str) -> Result<(&str, Option<&str>), String> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("the `]` is missing")?;
        match rest.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if rest.is_empty() => (host, None),
            None => return Err(format!("`{rest}` follows the `]`")),
        }
    } else {
        match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err("an IPv6 address with a port stands in brackets".to_owned());
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    if host.is_empty() {
        return Err(
            "the host is missing (0.0.0.0 and [::] are all addresses of this host)".to_owned()
        );
    }
    if port.is_some_and(str::is_empty) {
        return Err("the port is missing".to_owned());
    }
    Ok((host, port))
}

/// Asks the system's resolver, which knows of scopes and services, too.
fn look_up(host: &str, port: &str) -> Result<Vec<SocketAddr>, String> {
    // A number that is none of a port would be cut off to 16 bits.
    let number = port.bytes().all(|b| b.is_ascii_digit());
    if number && port.parse::<u16>().is_err() {
        return Err(format!("ports are numbers from 0 to 65535, and {port} is none"));
    }
    let hints = AddrInfoHints { socktype: SockType::Stream.into(), ..AddrInfoHints::default() };
    // A NUL would be an error there, of another kind.
    if host.contains('\0') || port.contains('\0') {
        return Err("it has a NUL byte".to_owned());
    }
    let found = getaddrinfo(Some(host), Some(port), Some(hints)).map_err(|e| {
        let e = std::io::Error::from(e);
        let service = if number { "" } else { " (services by name are those of /etc/services)" };
        format!(
            "{}{service}",
            e.to_string().trim_start_matches("failed to lookup address information: ")
        )
    })?;
    let mut addrs = Vec::new();
    for addr in found.flatten().map(|info| info.sockaddr) {
        if !addrs.contains(&addr) {
            addrs.push(addr);
        }
    }
    Ok(addrs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_ports() {
        for (text, ip, port) in [
            ("192.0.2.7:7471", "192.0.2.7", 7471),
            ("[2001:db8::1]:7", "2001:db8::1", 7),
            ("[::]:0", "::", 0),
        ] {
            let addr = one(text).unwrap();
            assert_eq!((addr.ip().to_string().as_str(), addr.port()), (ip, port), "{text}");
        }
        assert!(all("localhost:7471").unwrap().iter().all(|a| a.ip().is_loopback()));
    }

    #[test]
    fn a_link_local_address_has_its_interface() {
        // Every network namespace has the interface lo, and its number is 1.
        for text in ["[fe80::1%lo]:7471", "[fe80::1%1]:7471"] {
            let SocketAddr::V6(addr) = one(text).unwrap() else { panic!("{text}") };
            assert_eq!((addr.scope_id(), addr.port()), (1, 7471), "{text}");
        }
        let SocketAddr::V6(addr) = with_or_without_port("fe80::1%lo").unwrap() else { panic!() };
        assert_eq!(addr.scope_id(), 1);
        assert!(one("[fe80::1%no-such-interface]:1").is_err());
    }

    #[test]
    fn a_port_may_be_a_service() {
        let known = std::fs::read_to_string("/etc/services").unwrap_or_default();
        if !known.lines().any(|l| l.starts_with("http")) {
            return println!("skipped: /etc/services knows no http");
        }
        assert_eq!(one("127.0.0.1:http").unwrap().port(), 80);
        assert_eq!(one("[::1]:http").unwrap().port(), 80);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, why) in [
            ("192.0.2.7", "the port is missing"),
            ("192.0.2.7:", "the port is missing"),
            (":7471", "the host is missing"),
            ("::1:7471", "in brackets"),
            ("[::1:7471", "`]` is missing"),
            ("[::1]7471", "follows the `]`"),
            ("127.0.0.1:65536", "0 to 65535"),
            ("127.0.0.1:no-such-service", "/etc/services"),
            ("-", "the port is missing"),
        ] {
            let said = all(text).unwrap_err();
            assert!(said.contains(why) && said.contains("[fe80::1%eth0]:7471"), "{said}");
        }
    }

    #[test]
    fn addresses_need_no_port_where_it_does_not_matter() {
        for (text, ip, port) in [
            ("192.0.2.7", "192.0.2.7", 0),
            ("192.0.2.7:7471", "192.0.2.7", 7471),
            ("::1", "::1", 0),
            ("[::1]", "::1", 0),
            ("[2001:db8::1]:7", "2001:db8::1", 7),
        ] {
            let addr = with_or_without_port(text).unwrap();
            assert_eq!((addr.ip().to_string().as_str(), addr.port()), (ip, port));
        }
        assert!(with_or_without_port("192.0.2.7:port").is_err());
    }
}
