//! The memory of connections that do nothing, on an RDMA device.
//!
//! Which device, and which adapter it pretends to be, is told by the environment (`exs_tests::rdma`).
#![cfg(feature = "verbs")]

use std::net::SocketAddr;

use exs::{Options, Socket, SocketType, Transport};
use exs_tests::harness::{Ledger, Watchdog, accepted};
use exs_tests::rdma;
use exs_tests::skip::skip;

/// Both ends of each are in this process.
const PAIRS: usize = 96;
/// The most for an end: receives, queues and all that the library keeps.
const MOST: u64 = 64 << 10;

fn socket() -> Socket {
    let options = Options::default().with_transport(Transport::Verbs);
    Socket::with_options(SocketType::Stream, options).unwrap()
}

/// Memory that this process has for itself, in bytes. It includes the memory that devices have pinned,
/// but not queues that the kernel has made for a software device: rxe's take 100 KiB for a queue pair.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).expect("RssAnon");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of KiB");
    kib << 10
}

/// Connections that have carried a message.
fn connect(listener: &Socket, pairs: usize) -> Vec<(Socket, Socket)> {
    let addr = listener.local_addr().unwrap();
    let mut ledger = Ledger::new();
    (0..pairs)
        .map(|_| {
            let client = socket();
            let accept = ledger.post("accept", |q, t| listener.accept(q, t));
            let connect = ledger.post("connect", |q, t| client.connect(q, t, addr));
            ledger.wait_ok(connect);
            let (server, _) = accepted(ledger.wait_ok(accept)).expect("a connection");
            client.blocking().send_all(b"there").unwrap();
            server.blocking().recv_exact(&mut [0; 5]).unwrap();
            server.blocking().send_all(b"back").unwrap();
            client.blocking().recv_exact(&mut [0; 4]).unwrap();
            (client, server)
        })
        .collect()
}

#[test]
fn an_idle_connection_takes_less_than_64_kib() {
    let Some(device) = rdma::device() else { return skip(&rdma::missing().unwrap_or_default()) };
    let _dog = Watchdog::new("an_idle_connection_takes_less_than_64_kib");
    let listener = socket();
    listener.bind(SocketAddr::new(device.addr, 0)).unwrap();
    listener.listen(8).unwrap();
    // What the first connections bring: pools, queues, code.
    let first = connect(&listener, 4);
    let before = resident();
    let pairs = connect(&listener, PAIRS);
    let each = resident().saturating_sub(before) / (2 * PAIRS as u64);
    println!("{each} bytes for an idle connection");
    assert!(each > 1000, "{each} bytes: that is not all");
    assert!(each < MOST, "{each} bytes for an idle connection");
    drop((first, pairs));
}
