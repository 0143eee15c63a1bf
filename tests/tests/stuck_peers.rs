//! Peers and file systems that do not answer: only the connection concerned waits, and it ends in
//! time when it is told to.
//!
//! [`child`] is the part that the other process plays: the test program runs itself.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use exs::{EventKind, Options, RecvFlags, SendFlags, Socket, SocketType, Transport};
use exs_tests::harness::{LIMIT, Ledger, Watchdog, peer};
use exs_tests::{skip, sys};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const MUCH: usize = 4 << 20;
/// What is there of it: more than goes into a record.
const THERE: usize = 256 << 10;

fn options(transport: Transport) -> Options {
    Options { transport, ..Options::default() }
}

/// Not a test in the parent: the part of the other process.
#[test]
fn child() {
    let Some(words) = peer::part() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["withhold", addr] => withhold(addr.parse().unwrap()),
        _ => panic!("no such part: {words:?}"),
    }
}

/// Sends memory whose pages do not come, until it is killed.
fn withhold(addr: SocketAddr) {
    let Some((memory, watch)) = sys::withheld(MUCH, THERE) else {
        return peer::say("cannot");
    };
    std::thread::spawn(move || {
        let mut watched = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
        poll(&mut watched, PollTimeout::NONE).unwrap();
        peer::say("stuck");
        peer::listen();
    });
    let socket = Socket::with_options(SocketType::Stream, options(Transport::Shm)).unwrap();
    socket.blocking().connect(addr).unwrap();
    peer::say("connected");
    let mut ledger = Ledger::new();
    // It may be this very call in which its own thread waits.
    ledger.post("send", |q, t| socket.send(q, t, memory, SendFlags::NONE));
    ledger.event();
}

fn listener(options: Options) -> (Socket, SocketAddr) {
    let listener = Socket::with_options(SocketType::Stream, options).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(8).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// A connection of this process with itself.
fn joined(transport: Transport) -> (Socket, Socket) {
    let (listener, addr) = listener(options(transport));
    let client = Socket::with_options(SocketType::Stream, options(transport)).unwrap();
    let dialing = client.clone();
    let dialer = std::thread::spawn(move || dialing.blocking().connect(addr).unwrap());
    let (server, _) = listener.blocking().accept().unwrap();
    dialer.join().unwrap();
    (client, server)
}

/// Others are served: a connection of each kind moves data, there and back.
fn others_are_served(others: &[(Socket, Socket)]) {
    for (a, b) in others {
        for len in [64, 100_000] {
            let mut ledger = Ledger::new();
            ledger.post("recv", |q, t| b.recv(q, t, vec![0; len], RecvFlags::WAITALL));
            ledger.post("send", |q, t| a.send(q, t, vec![5; len], SendFlags::NONE));
            for event in ledger.drain() {
                assert!(event.error().is_none() && event.bytes() == len, "{event:?}");
            }
        }
    }
}

/// How the connection of the stuck peer is ended.
#[derive(Clone, Copy, Debug)]
enum Ended {
    DeadAfter,
    Abort,
    Close,
    Killed,
}

/// A peer whose memory does not come holds up its own connection, no other, on any transport; and that
/// one ends, with one event for each of its operations.
#[test]
fn a_peer_whose_pages_do_not_come_holds_up_nobody_else() {
    let _dog = Watchdog::with_limit("a_peer_whose_pages_do_not_come", LIMIT * 2);
    let others = [joined(Transport::Shm), joined(Transport::Soft)];
    for how in [Ended::DeadAfter, Ended::Abort, Ended::Close, Ended::Killed] {
        let dead_after = matches!(how, Ended::DeadAfter).then_some(Duration::from_secs(1));
        let linger = Duration::from_millis(200);
        let keepalive = dead_after.map(|limit| limit / 2);
        let opts = Options { dead_after, keepalive, linger, ..options(Transport::Shm) };
        let (listener, addr) = listener(opts);
        let stuck = peer::Peer::start("child", "withhold", &[&addr.to_string()]);
        if stuck.hear() == "cannot" {
            return skip::skip("userfaultfd is forbidden here");
        }
        let (socket, _) = listener.blocking().accept().unwrap();
        let mut ledger = Ledger::new();
        ledger.post("recv", |q, t| socket.recv(q, t, vec![0; MUCH], RecvFlags::WAITALL));
        stuck.expect("stuck");
        others_are_served(&others);
        match how {
            Ended::DeadAfter => {}
            Ended::Abort => socket.abort(),
            Ended::Close => {
                ledger.post("close", |q, t| socket.close(q, t));
            }
            Ended::Killed => drop(stuck),
        }
        let ended = ledger.drain();
        let recv = ended.iter().find(|e| e.kind() == EventKind::Recv).unwrap();
        assert!(recv.error().is_some() || recv.bytes() < MUCH, "{how:?}: {recv:?}");
        others_are_served(&others);
    }
}
