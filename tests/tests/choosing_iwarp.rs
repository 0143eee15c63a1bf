//! Choosing, on a host with an iWARP device: a pretended one, which owns `::1` and
//! takes the TCP ports there, as siw does on its interface. So it is one more
//! address that the software RNIC cannot listen on.

use std::net::{SocketAddr, TcpListener};
use std::sync::Once;

use exs::{Options, Socket, SocketType, Transport};
use exs_tests::fake::{self, Spec};
use exs_tests::harness::Watchdog;

const OWN: &str = "::1";
const OTHER: &str = "127.0.0.1";

/// False: this host has no IPv6.
fn ready() -> bool {
    static DEVICE: Once = Once::new();
    DEVICE.call_once(|| {
        let owns = |ip: std::net::IpAddr| ip.to_string() == OWN;
        let control = std::sync::Arc::default();
        fake::install(&[Spec { name: "siw0", owns, ports: 0, caps: |_| {}, control }]);
    });
    let there = TcpListener::bind("[::1]:0").is_ok();
    if !there {
        exs_tests::skip::skip("this host has no IPv6");
    }
    there
}

fn socket(transport: Transport, v6_only: bool) -> Socket {
    let options =
        Options::default().with_transport(transport).with_device(None).with_v6_only(v6_only);
    Socket::with_options(SocketType::Stream, options).unwrap()
}

fn listener(transport: Transport, addr: &str, v6_only: bool) -> (Socket, u16) {
    let listener = socket(transport, v6_only);
    listener.bind(addr.parse().unwrap()).unwrap();
    listener.listen(8).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Connects by `transport`: what carries the client's end, and the server's.
fn join(transport: Transport, listener: &Socket, ip: &str, port: u16) -> [String; 2] {
    let client = socket(transport, false);
    let addr = SocketAddr::new(ip.parse().unwrap(), port);
    client.blocking().connect(addr).unwrap();
    let (server, _) = listener.blocking().accept().unwrap();
    client.blocking().send_all(b"hello").unwrap();
    let mut got = [0; 5];
    server.blocking().recv_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    [client, server].map(|s| s.transport().unwrap().to_string())
}

#[test]
fn every_client_reaches_a_listener_on_every_address() {
    let _dog = Watchdog::new("every_client_reaches_a_listener_on_every_address");
    if !ready() {
        return;
    }
    let (listener, port) = listener(Transport::Auto, "[::]:0", false);
    assert_eq!(join(Transport::Auto, &listener, OWN, port), ["verbs (siw0)", "verbs (siw0)"]);
    // A host without the device, and one with it: the device's listener is reached
    // by TCP.
    assert_eq!(join(Transport::Soft, &listener, OWN, port), ["soft", "verbs (siw0)"]);
    assert_eq!(join(Transport::Auto, &listener, OTHER, port), ["soft", "soft"]);
    assert_eq!(join(Transport::Soft, &listener, OTHER, port), ["soft", "soft"]);
    // The port is taken, everywhere.
    for addr in ["[::]", "[::1]", OTHER, "0.0.0.0"] {
        let other = socket(Transport::Auto, false);
        let taken = format!("{addr}:{port}").parse().unwrap();
        let error = other.bind(taken).and_then(|()| other.listen(1)).unwrap_err();
        assert_eq!(error.errno(), libc::EADDRINUSE, "{addr}: {error}");
    }
}

#[test]
fn a_listener_on_the_devices_address_is_the_devices() {
    let _dog = Watchdog::new("a_listener_on_the_devices_address_is_the_devices");
    if !ready() {
        return;
    }
    let (listener, port) = listener(Transport::Auto, "[::1]:0", false);
    assert_eq!(join(Transport::Soft, &listener, OWN, port), ["soft", "verbs (siw0)"]);
    assert_eq!(join(Transport::Verbs, &listener, OWN, port), ["verbs (siw0)", "verbs (siw0)"]);
}

#[test]
fn the_other_addresses_are_the_software_rnics() {
    let _dog = Watchdog::new("the_other_addresses_are_the_software_rnics");
    if !ready() {
        return;
    }
    let (listener, port) = listener(Transport::Auto, "0.0.0.0:0", false);
    assert_eq!(join(Transport::Auto, &listener, OTHER, port), ["soft", "soft"]);
}

#[test]
fn v6_only_holds_for_every_address() {
    let _dog = Watchdog::new("v6_only_holds_for_every_address");
    if !ready() {
        return;
    }
    let (listener, port) = listener(Transport::Auto, "[::]:0", true);
    assert_eq!(join(Transport::Auto, &listener, OWN, port), ["verbs (siw0)", "verbs (siw0)"]);
    let client = socket(Transport::Auto, false);
    let addr = SocketAddr::new(OTHER.parse().unwrap(), port);
    assert_eq!(client.blocking().connect(addr).unwrap_err().errno(), libc::ECONNREFUSED);
}
