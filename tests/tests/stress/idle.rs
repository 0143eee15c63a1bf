//! What a connection costs that does nothing.

use std::net::SocketAddr;
use std::time::Duration;

use exs::{EventQueue, RecvFlags, Socket, Token};
use exs_tests::harness::{Ledger, Watchdog, accepted, many_files, peer};

use super::churn::resident;
use super::threads::listener;

const MANY: usize = 2000;

/// Some time for the library to take spare memory back, which it does as it goes.
fn rest() {
    let idle = EventQueue::new(1).unwrap();
    for _ in 0..30 {
        idle.dequeue(1, Some(Duration::from_millis(101))).unwrap();
    }
}

pub(crate) fn server() {
    many_files();
    let (listener, addr) = listener();
    peer::say(&format!("at {addr}"));
    let mut ledger = Ledger::with_depth(2 * MANY);
    for _ in 0..MANY {
        ledger.post("accept", |q, t| listener.accept(q, t));
    }
    let before = resident();
    let sockets: Vec<Socket> = ledger.drain().into_iter().map(|e| accepted(e).unwrap().0).collect();
    rest();
    peer::say(&format!("kib {}", resident() - before));
    peer::listen();
    drop(sockets);
}

pub(crate) fn clients(addr: SocketAddr, count: usize) {
    many_files();
    let mut ledger = Ledger::with_depth(2 * MANY);
    let before = resident();
    let sockets: Vec<Socket> = (0..count).map(|_| Socket::stream().unwrap()).collect();
    for socket in &sockets {
        ledger.post("connect", |q, t| socket.connect(q, t, addr));
    }
    assert!(ledger.drain().iter().all(|e| e.error().is_none()));
    rest();
    let made = resident() - before;
    // One receive on each, as a program would have.
    let queue = EventQueue::new(MANY).unwrap();
    for socket in &sockets {
        socket.recv(&queue, Token(1), vec![0; 64], RecvFlags::NONE).unwrap();
    }
    rest();
    peer::say(&format!("kib {made} {}", resident() - before));
    peer::listen();
    drop(sockets);
}

/// Two thousand connections that do nothing fit into little memory.
#[test]
fn idle_connections_are_cheap() {
    let _dog = Watchdog::new("idle_connections_are_cheap");
    let server = peer::Peer::start("child", "idle-server", &[]);
    let addr = server.expect("at");
    let clients = peer::Peer::start("child", &format!("idle-clients {addr} {MANY}"), &[]);
    let kib = |text: String| -> Vec<usize> {
        text.split_whitespace().map(|w| w.parse().unwrap()).collect()
    };
    let (ours, theirs) = (kib(clients.expect("kib")), kib(server.expect("kib")));
    let each = |kib: usize| kib * 1024 / MANY;
    println!(
        "bytes for an idle connection: {} accepted, {} connected, {} with a receive",
        each(theirs[0]),
        each(ours[0]),
        each(ours[1]),
    );
    assert!(each(theirs[0].max(ours[1])) < 32 << 10, "an idle connection takes too much");
    clients.finish();
    server.finish();
}
