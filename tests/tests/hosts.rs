//! Connects by name: two network namespaces, joined by a cable, with names of their own. Some
//! addresses answer, some refuse, and some swallow everything.
//!
//! Needs root and iproute2, as `netns` does. The names of a namespace are in /etc/netns, which `ip
//! netns exec` shows as /etc.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use exs::{Error, EventKind, Host, Options, Socket, SocketType, Transport};
use exs_tests::harness::{Cable, Ledger, Watchdog, peer};
use exs_tests::skip::skip;

/// The name of the server.
const NAME: &str = "server.exs.example";
/// An address of the link that no host has.
const SILENT: &str = "fd93::99";

/// The files of /etc that an end of the cable sees. Removed when dropped.
struct Names(PathBuf);

impl Names {
    fn new(cable: &Cable, hosts: &str) -> Names {
        let dir = PathBuf::from("/etc/netns").join(cable.name(1));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("hosts"), hosts).unwrap();
        // A name server that does not answer.
        std::fs::write(dir.join("resolv.conf"), "nameserver 10.93.0.99\n").unwrap();
        std::fs::write(dir.join("nsswitch.conf"), "hosts: files dns\n").unwrap();
        Names(dir)
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        // The directory of all namespaces goes with its last entry, if that was ours.
        let _ = std::fs::remove_dir("/etc/netns");
    }
}

fn socket(limit: Duration) -> Socket {
    // The other ways would look for devices that the machine may have.
    let options = Options::default().with_transport(Transport::Soft).with_connect_timeout(limit);
    Socket::with_options(SocketType::Stream, options).unwrap()
}

/// Connects to `host` by one operation, which has one event.
fn connect(socket: &Socket, host: &str) -> Result<(), Error> {
    let mut ledger = Ledger::new();
    let token = ledger.post("connect", |q, t| socket.connect_host(q, t, host));
    let event = ledger.wait(token);
    assert_eq!(event.kind(), EventKind::Connect);
    ledger.finish();
    event.into_result().map(|_| ())
}

/// Not a test in the parent: the part of the processes at both ends.
#[test]
fn child() {
    let Some(words) = peer::part() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let _dog = Watchdog::new(&format!("the child {words:?}"));
    match words[..] {
        ["listen", addr] => {
            let socket = socket(Duration::from_secs(30));
            let addr = addr.parse::<Host>().unwrap().resolve().unwrap()[0];
            socket.bind(addr).unwrap();
            socket.listen(4).unwrap();
            peer::say(&format!("at {}", socket.local_addr().unwrap()));
            let (connection, from) = socket.blocking().accept().unwrap();
            peer::say(&format!("from {from}"));
            connection.blocking().send_all(b"welcome").unwrap();
            connection.blocking().close().unwrap();
        }
        ["reach", host, first] => {
            // Otherwise the test would show nothing.
            let addrs = host.parse::<Host>().unwrap().resolve().unwrap();
            assert_eq!(addrs[0].ip().to_string(), first, "{addrs:?}");
            let socket = socket(Duration::from_secs(30));
            connect(&socket, host).unwrap();
            let mut text = [0; 7];
            socket.blocking().recv_exact(&mut text).unwrap();
            assert_eq!(&text, b"welcome");
            peer::say(&format!("reached {}", socket.peer_addr().unwrap()));
        }
        ["fail", host, limit] => {
            let limit = Duration::from_millis(limit.parse().unwrap());
            let error = connect(&socket(limit), host).unwrap_err();
            peer::say(&format!("failed {} {error}", error.errno()));
        }
        ["cancel", host] => {
            let socket = socket(Duration::from_secs(600));
            let mut ledger = Ledger::new();
            let token = ledger.post("connect", |q, t| socket.connect_host(q, t, host));
            assert_eq!(socket.cancel(token), 1);
            let event = ledger.wait(token);
            assert!(event.error().unwrap().is_cancelled(), "{event:?}");
            ledger.finish();
            // The socket is as before.
            assert!(socket.blocking().connect("127.0.0.1:1").is_err());
            peer::say("cancelled");
        }
        _ => panic!("{words:?}"),
    }
}

/// A cable whose second end knows the server by these addresses.
fn cable(test: &str, addrs: &[&str]) -> Option<(Cable, Names)> {
    let cable = match Cable::new(test) {
        Ok(cable) => cable,
        Err(why) => {
            skip(&format!("no network namespaces here: {why}"));
            return None;
        }
    };
    let hosts: String = addrs.iter().map(|addr| format!("{addr} {NAME}\n")).collect();
    let names = Names::new(&cable, &hosts);
    for silent in [SILENT, "10.93.0.99"] {
        cable.swallow(1, silent).unwrap();
    }
    Some((cable, names))
}

/// The server listens at `addr`; the client knows it by `addrs`, of which it prefers `first`.
fn reaches(
    test: &str,
    addr: &str,
    addrs: &[&str],
    first: &str,
) -> Option<(SocketAddr, SocketAddr)> {
    let _dog = Watchdog::new(test);
    let (cable, _names) = cable(test, addrs)?;
    let server = cable.start(0, "child", &format!("listen {addr}"));
    let at: SocketAddr = server.expect("at").parse().unwrap();
    let client = cable.start(1, "child", &format!("reach {NAME}:{} {first}", at.port()));
    let reached = client.expect("reached").parse().unwrap();
    let from = server.expect("from").parse().unwrap();
    client.finish();
    server.finish();
    Some((reached, from))
}

#[test]
fn a_silent_first_address_does_not_stop_the_connect() {
    if let Some((reached, _)) = reaches("hs", "10.93.0.1:0", &[SILENT, "10.93.0.1"], SILENT) {
        assert_eq!(reached.ip().to_string(), "10.93.0.1");
    }
}

#[test]
fn an_address_that_refuses_does_not_stop_the_connect() {
    if let Some((reached, _)) = reaches("hr", "10.93.0.1:0", &["fd93::1", "10.93.0.1"], "fd93::1") {
        assert_eq!(reached.ip().to_string(), "10.93.0.1");
    }
}

#[test]
fn the_first_address_is_preferred() {
    if let Some((reached, _)) = reaches("hp", "[::]:0", &["fd93::1", "10.93.0.1"], "fd93::1") {
        assert_eq!(reached.ip().to_string(), "fd93::1");
    }
}

/// A client in the second end that connects to the server's name with this limit (ms), and fails.
fn fails(test: &str, addrs: &[&str], limit: u32) -> Option<(i32, String)> {
    let _dog = Watchdog::new(test);
    let (cable, _names) = cable(test, addrs)?;
    let client = cable.start(1, "child", &format!("fail {NAME}:7471 {limit}"));
    let said = client.expect("failed");
    client.finish();
    let (errno, text) = said.split_once(' ').unwrap();
    Some((errno.parse().unwrap(), text.to_owned()))
}

#[test]
fn the_error_has_the_reason_at_each_address() {
    // One address is silent, one refuses, and to one there is no route.
    let addrs = [SILENT, "10.93.0.1", "2001:db8::1"];
    let Some((errno, said)) = fails("hf", &addrs, 2000) else { return };
    assert_eq!(errno, libc::ECONNREFUSED, "{said}");
    for part in
        ["server.exs.example:7471", "10.93.0.1:7471: ", "[fd93::99]:7471: ", "[2001:db8::1]:7471: "]
    {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
}

#[test]
fn a_name_server_that_is_silent_uses_up_the_time_limit_only() {
    let Some((errno, said)) = fails("hn", &[], 700) else { return };
    assert_eq!(errno, libc::ETIMEDOUT, "{said}");
    assert!(said.contains(NAME) && said.contains("no name server answers"), "{said}");
}

#[test]
fn a_connect_is_cancelled_while_its_name_is_resolved_and_while_addresses_race() {
    let _dog = Watchdog::new("hc");
    let Some((cable, _names)) = cable("hc", &[SILENT]) else { return };
    for host in ["unknown.exs.example:1".to_owned(), format!("{NAME}:1")] {
        let client = cable.start(1, "child", &format!("cancel {host}"));
        client.expect("cancelled");
        client.finish();
    }
}

#[test]
fn a_link_local_address_is_reached_by_its_interface() {
    let _dog = Watchdog::new("hl");
    let Some((cable, _names)) = cable("hl", &[]) else { return };
    let server = cable.start(0, "child", "listen [fe80::1%veth0]:0");
    let at: SocketAddr = server.expect("at").parse().unwrap();
    let SocketAddr::V6(at) = at else { panic!("{at}") };
    assert_ne!(at.scope_id(), 0, "the address shows its interface: {at}");
    let host = format!("[fe80::1%veth0]:{}", at.port());
    let client = cable.start(1, "child", &format!("reach {host} fe80::1"));
    let reached = client.expect("reached");
    assert!(reached.starts_with("[fe80::1%"), "{reached}");
    let from = server.expect("from");
    assert!(from.starts_with("[fe80::") && from.contains('%'), "{from}");
    client.finish();
    server.finish();
}
