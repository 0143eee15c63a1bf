//! Shared memory where callers come together, or descriptors are short.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use exs::{EventQueue, MemoryRegion, Options, Socket, SocketType, Token, Transport};
use exs_tests::harness::{Env, Starved, Watchdog, check, pattern, peer};

fn env(local: impl Into<IpAddr>) -> Env {
    Env::new(Options::default().with_transport(Transport::Shm), local.into())
}

/// A listener for both families has a name for each: a caller by the one name is not lost beside
/// a caller by the other.
#[test]
fn callers_of_both_families_are_taken_in() {
    let _dog = Watchdog::new("callers_of_both_families_are_taken_in");
    let env = env(Ipv6Addr::UNSPECIFIED);
    let (listener, addr) = env.listener(SocketType::Stream);
    let port = addr.port();
    let queue = EventQueue::new(64).unwrap();
    let clients: Vec<Socket> = (0..32).map(|_| env.socket(SocketType::Stream)).collect();
    for (client, token) in clients.iter().zip(0..) {
        let at = if token % 2 == 0 { "[::1]" } else { "127.0.0.1" };
        client.connect(&queue, Token(token), format!("{at}:{port}").parse().unwrap()).unwrap();
    }
    let accepted: Vec<Socket> =
        clients.iter().map(|_| listener.blocking().accept().unwrap().0).collect();
    for _ in &clients {
        queue.next().unwrap().into_result().unwrap();
    }
    drop(accepted);
}

/// Not a test in the parent: a process that has no descriptor left for the memory that its peer
/// would show it. Both ends are in one process, and the memory was made before.
#[test]
fn starved() {
    let Some(_) = peer::part() else { return };
    let env = env(Ipv4Addr::LOCALHOST);
    let (listener, _) = env.listener(SocketType::Stream);
    let (client, server) = env.join(SocketType::Stream, &listener);
    let regions: Vec<MemoryRegion> = (0..3).map(|_| MemoryRegion::new(1 << 20).unwrap()).collect();
    let exchange = |seed: u64, region: &MemoryRegion| {
        let mut buffer = region.buffer(..).unwrap();
        buffer.copy_from_slice(&pattern(seed, 0, 1 << 20));
        let queue = EventQueue::new(1).unwrap();
        client.send(&queue, Token(1), buffer).unwrap();
        let mut got = vec![0; 1 << 20];
        server.blocking().recv_exact(&mut got).unwrap();
        check(seed, 0, &got);
        queue.next().unwrap().into_result().unwrap();
    };
    exchange(1, &regions[0]);
    // The queue is given one.
    let starved = Starved::new(1);
    exchange(2, &regions[1]);
    drop(starved);
    exchange(3, &regions[2]);
    peer::say("survived");
}

#[test]
fn no_connection_is_cut_when_descriptors_run_out() {
    let _dog = Watchdog::new("no_connection_is_cut_when_descriptors_run_out");
    let child = peer::Peer::start("starved", "-", &[]);
    child.expect("survived");
    child.finish();
}
