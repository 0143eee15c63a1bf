//! The memory of connections that do nothing, on an RDMA device.
//!
//! Which device, and which adapter it pretends to be, is told by the environment (`exs_tests::rdma`).
#![cfg(feature = "verbs")]

use std::net::SocketAddr;

use std::time::Duration;

use exs::rnic::Rnic;
use exs::verbs::VerbsRnic;
use exs::{EventQueue, Options, RecvFlags, Socket, SocketType, Transport};
use exs_tests::harness::{Ledger, Watchdog, accepted, status_kib};
use exs_tests::rdma;
use exs_tests::skip::{part as skip_part, skip};

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
    (status_kib("RssAnon:") as u64) << 10
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

/// True if busy connections on this device get receives of their own.
fn adds_receives(name: &str) -> bool {
    let poll = mio::Poll::new().unwrap();
    VerbsRnic::open_named(poll.registry(), 0, name).unwrap().caps().max_receives > 0
}

/// Sends small messages each way, until both ends have more receives. A device may have no room for
/// those of all connections at a time.
fn keep_busy(ledger: &mut Ledger, (a, b): &(Socket, Socket)) {
    const MESSAGES: usize = 12;
    const LEN: usize = 64;
    let all = MESSAGES * LEN;
    for _ in 0..8 {
        if [a, b].iter().all(|s| s.counters().receives_added > 0) {
            return;
        }
        let mut posted = Vec::new();
        for s in [a, b] {
            let recv = |q: &EventQueue, t| s.recv(q, t, vec![0; all], RecvFlags::WAITALL);
            posted.push(ledger.post("recv", recv));
        }
        for _ in 0..MESSAGES {
            for s in [a, b] {
                posted.push(ledger.post("send", |q, t| s.send(q, t, vec![1; LEN])));
            }
        }
        for token in posted {
            ledger.wait_ok(token);
        }
    }
}

/// Receives that these connections have beyond the usual ones.
fn extra(pairs: &[(Socket, Socket)]) -> u64 {
    let of = |s: &Socket| s.counters().receives_added - s.counters().receives_dropped;
    pairs.iter().map(|(a, b)| of(a) + of(b)).sum()
}

#[test]
fn an_idle_connection_takes_less_than_64_kib() {
    let Some(device) = rdma::device() else { return skip(&rdma::missing().unwrap_or_default()) };
    let limit = Duration::from_secs(300);
    let _dog = Watchdog::with_limit("an_idle_connection_takes_less_than_64_kib", limit);
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
    if !adds_receives(&device.name) {
        skip_part("connections on this device share their receives");
        return drop((first, pairs));
    }
    let mut ledger = Ledger::new();
    pairs.iter().for_each(|pair| keep_busy(&mut ledger, pair));
    let busy = resident().saturating_sub(before) / (2 * PAIRS as u64);
    let added: u64 = pairs.iter().map(|(a, _)| a.counters().receives_added).sum();
    assert!(added > 0, "no connection was busy");
    println!("{busy} bytes for a busy connection, {added} receives added");
    let each_now = || resident().saturating_sub(before) / (2 * PAIRS as u64);
    let (mut ticks, mut again) = (0, busy);
    // The memory of the last receives goes back a turn after they were counted.
    while extra(&pairs) + extra(&first) > 0 || again >= MOST {
        // Nothing is posted, so the queue has no event: this only lets time go by.
        assert!(ledger.poll(Duration::from_millis(50)).is_none());
        again = each_now();
        ticks += 1;
        let left = extra(&pairs);
        assert!(ticks < 2000, "{left} receives are not given back, {again} bytes for a connection");
    }
    println!("{again} bytes for a connection that is idle again");
    drop((first, pairs));
}
