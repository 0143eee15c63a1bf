//! Addresses as people write them: `192.0.2.1:7471`, `[2001:db8::1]:7471`,
//! `[fe80::1%eth0]:7471`, `host:7471`, `host:http`. [`exs::Host`] reads them; here is what only the
//! programs need.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use exs::Host;

/// The time that an address may be silent before the next one is tried, too (RFC 8305 section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// All addresses that `text` (HOST:PORT) names, in the order in which they should be tried.
///
/// # Errors
/// The text is no address: the message says why, and how addresses are written.
pub fn all(text: &str) -> Result<Vec<SocketAddr>, String> {
    let found = text.parse::<Host>().and_then(|host| host.resolve());
    found.map_err(|e| e.to_string())
}

/// The first of [`all`]: for a server's own address. A `clap` value parser.
///
/// # Errors
/// As [`all`].
pub fn one(text: &str) -> Result<SocketAddr, String> {
    all(text)?.first().copied().ok_or_else(|| format!("`{text}` has no address"))
}

/// A host to connect to. A `clap` value parser.
///
/// # Errors
/// As [`all`], but for what only the resolver knows.
pub fn host(text: &str) -> Result<Host, String> {
    text.parse::<Host>().map_err(|e| e.to_string())
}

/// An address, with a port or without.
///
/// # Errors
/// As [`all`].
pub fn with_or_without_port(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    // Without brackets an IPv6 address has no port.
    let ip = bare.split('%').next().unwrap_or_default().parse::<IpAddr>().is_ok();
    if !ip && text.contains(':') {
        return one(text);
    }
    let found = Host::new(bare, 0).and_then(|host| host.resolve()).map_err(|e| e.to_string())?;
    found.first().copied().ok_or_else(|| format!("`{text}` has no address"))
}

/// A TCP connection to the first address of `text` that answers. As EXS does for its own connections
/// (RFC 8305), it does not wait for a silent address before it tries the next one.
///
/// # Errors
/// Those of [`all`], or the reason at each address.
pub fn call_tcp(text: &str) -> Result<TcpStream, String> {
    let (tell, told) = channel();
    let mut addrs = all(text)?.into_iter().peekable();
    let (mut failed, mut running) = (Vec::new(), 0);
    while addrs.peek().is_some() || running > 0 {
        if let Some(addr) = addrs.next() {
            let tell = tell.clone();
            // A thread whose call comes too late closes its connection.
            thread::spawn(move || tell.send((addr, TcpStream::connect(addr))));
            running += 1;
        }
        let ended = match addrs.peek() {
            Some(_) => told.recv_timeout(ATTEMPT_DELAY),
            None => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match ended {
            Ok((_, Ok(stream))) => return Ok(stream),
            Ok((addr, Err(e))) => {
                // The caller's error names `text`.
                let named = addr.to_string() == text;
                failed.push(if named { e.to_string() } else { format!("{addr}: {e}") });
                running -= 1;
            }
            Err(_) => {}
        }
    }
    Err(match failed.is_empty() {
        true => "it has no address".to_owned(),
        false => failed.join("; "),
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

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
        let said = all("127.0.0.1:no-such-service").unwrap_err();
        assert!(said.contains("/etc/services"), "{said}");
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
        let SocketAddr::V6(addr) = with_or_without_port("fe80::1%lo").unwrap() else { panic!() };
        assert_eq!(addr.scope_id(), 1);
        assert!(with_or_without_port("192.0.2.7:port").is_err());
    }

    #[test]
    fn a_tcp_call_says_why_no_address_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        assert_eq!(call_tcp(&addr.to_string()).unwrap().peer_addr().unwrap(), addr);
        drop(listener);
        let said = call_tcp(&addr.to_string()).unwrap_err();
        assert!(said.contains("refused") && !said.contains(&addr.to_string()), "{said}");
        // A name may have several addresses, each with a reason of its own.
        let said = call_tcp(&format!("localhost:{}", addr.port())).unwrap_err();
        assert!(said.contains(&format!("{addr}: ")) && said.contains("refused"), "{said}");
    }
}
