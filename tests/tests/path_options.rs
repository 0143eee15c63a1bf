//! The traffic class that a program sets is that of its packets: the kernel says so of the TCP
//! connections of the software RNIC.

use std::net::SocketAddr;
use std::process::Command;

use exs::{Error, Options, PathOptions, Socket, SocketType, Transport};
use exs_tests::harness::Watchdog;
use exs_tests::skip::skip;

fn options(class: Option<u8>) -> Options {
    let path = PathOptions::new().with_traffic_class(class);
    Options::default().with_transport(Transport::Soft).with_path(path)
}

fn socket(class: Option<u8>) -> Socket {
    Socket::with_options(SocketType::Stream, options(class)).unwrap()
}

/// What ss(8) says of the TCP connection from one address to the other.
fn shown(from: SocketAddr, to: SocketAddr) -> Result<String, String> {
    let out = Command::new("ss").args(["-H", "-t", "-n", "-O", "--tos"]).output();
    let out = out.map_err(|e| format!("ss: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let (from, to) = (from.to_string(), to.to_string());
    let of = |line: &&str| {
        let mut words = line.split_whitespace().skip(3);
        words.next() == Some(&from) && words.next() == Some(&to)
    };
    let line = text.lines().find(of).map(str::to_owned);
    line.filter(|line| line.contains("tos:")).ok_or_else(|| format!("ss shows no tos in: {text}"))
}

fn the_class_arrives(any: &str) {
    let _dog = Watchdog::new("the_class_arrives");
    let listener = socket(Some(46 << 2));
    let any: SocketAddr = any.parse().unwrap();
    if listener.bind(any).is_err() {
        return skip("no IPv6 here");
    }
    listener.listen(2).unwrap();
    let client = socket(Some(26 << 2));
    client.blocking().connect(listener.local_addr().unwrap()).unwrap();
    let (server, peer) = listener.blocking().accept().unwrap();
    let local = server.local_addr().unwrap();
    let (ours, theirs) = match (shown(peer, local), shown(local, peer)) {
        (Ok(ours), Ok(theirs)) => (ours, theirs),
        (Err(why), _) | (_, Err(why)) => return skip(&why),
    };
    let name = if any.is_ipv6() { "tclass:" } else { "tos:" };
    assert!(ours.contains(&format!("{name}0x68")), "{ours}");
    assert!(theirs.contains(&format!("{name}0xb8")), "the listener's: {theirs}");
    assert_eq!(server.options().path.traffic_class, Some(46 << 2));
}

#[test]
fn the_traffic_class_is_that_of_the_packets_ipv4() {
    the_class_arrives("127.0.0.1:0");
}

#[test]
fn the_traffic_class_is_that_of_the_packets_ipv6() {
    the_class_arrives("[::1]:0");
}

#[test]
fn a_value_out_of_range_is_refused_when_it_is_set() {
    for path in [
        PathOptions::new().with_traffic_class(Some(1)),
        PathOptions::new().with_retry_count(Some(8)),
        PathOptions::new().with_path_mtu(Some(1500)),
        PathOptions::new().with_service_level(Some(16)),
        PathOptions::new().with_pkey(Some(0x8000)),
        PathOptions::new().with_ack_timeout(Some(std::time::Duration::ZERO)),
    ] {
        let options = Options::default().with_path(path);
        let error = Socket::with_options(SocketType::Stream, options.clone()).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        let socket = socket(None);
        assert_eq!(socket.set_options(&options).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(socket.options().path, PathOptions::new(), "it is as before");
    }
}
