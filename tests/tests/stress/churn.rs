//! Connections that come and go: nothing of them is left.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use exs::{EventQueue, Interest, Options, RecvFlags, Socket, SocketType, Token};
use exs_tests::harness::{Ledger, Rng, Starved, Watchdog, accepted, many_files, peer, status_kib};

use super::threads::listener;

fn files() -> usize {
    // Without the descriptor that reads the directory.
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

/// KiB of this process that are resident: its own and shared memory, without the pages of its program,
/// whose number depends on what the page cache has of it.
pub(crate) fn resident() -> usize {
    status_kib("RssAnon:") + status_kib("RssShmem:")
}

/// Waits, by the progress of the library, until nothing is left of past connections.
fn settle(files_before: usize) {
    let idle = EventQueue::new(1).unwrap();
    loop {
        let counters = exs::counters().unwrap();
        // The queue just made has one of its own.
        if counters.in_flight == 0 && files() <= files_before + 1 {
            return;
        }
        idle.dequeue(1, Some(Duration::from_millis(2))).unwrap();
    }
}

/// One connection in one of the ways in which they end.
fn one(way: usize, rng: &mut Rng, listener: &Socket, addr: SocketAddr, unused: SocketAddr) {
    let options = Options::default().with_linger(Duration::from_millis(50));
    let mut ledger = Ledger::with_depth(64);
    let client = Socket::with_options(SocketType::Stream, options.clone()).unwrap();
    match way {
        // Refused by the kernel, by a listener of another kind.
        0 => assert!(client.blocking().connect(unused).is_err()),
        1 => {
            let other = Socket::with_options(SocketType::SeqPacket, options).unwrap();
            assert!(other.blocking().connect(addr).is_err());
        }
        // Strangers: gone at once, or after some bytes of something else.
        2 => drop(TcpStream::connect(addr).unwrap()),
        3 => {
            let mut stranger = TcpStream::connect(addr).unwrap();
            stranger.write_all(&b"MPA ID Req Frame"[..rng.between(1, 16)]).unwrap();
        }
        4 => {
            let mut stranger = TcpStream::connect(addr).unwrap();
            stranger.write_all(&[b'x'; 64]).unwrap();
            let _ = stranger.read(&mut [0; 16]);
        }
        // Given up while it is made.
        5 => {
            ledger.post("connect", |q, t| client.connect(q, t, addr));
            client.abort();
        }
        6 => {
            ledger.post("connect", |q, t| client.connect(q, t, addr));
        }
        // Accepted by an event that no thread takes out of its queue.
        7 => {
            let queue = EventQueue::new(4).unwrap();
            listener.accept(&queue, Token(1)).unwrap();
            client.blocking().connect(addr).unwrap();
        }
        _ => {
            ledger.post("connect", |q, t| client.connect(q, t, addr));
            let accept = ledger.post("accept", |q, t| listener.accept(q, t));
            let (server, _) = accepted(ledger.wait_ok(accept)).unwrap();
            for socket in [&client, &server] {
                let size = rng.size(50_000);
                let _ = ledger
                    .try_post("recv", |q, t| socket.recv(q, t, vec![0; size], RecvFlags::NONE));
                let _ = ledger.try_post("send", |q, t| socket.send(q, t, vec![1; size]));
                let _ = ledger.try_post("poll", |q, t| socket.poll(q, t, Interest::READABLE));
            }
            match rng.between(0, 3) {
                0 => client.abort(),
                1 => drop(ledger.try_post("close", |q, t| client.close(q, t))),
                2 => drop(ledger.try_post("close", |q, t| server.close(q, t))),
                _ => {}
            }
        }
    }
    drop(client);
    ledger.finish();
}

/// The part of a process: two thousand connections in all ways.
pub(crate) fn churn() {
    many_files();
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut rng = Rng::new(11);
    // Once everything, so that what is made once is there.
    let mut figures = Vec::new();
    let mut before = None;
    for round in 0..3 {
        let (listener, addr) = listener();
        for i in 0..if round == 0 { 50 } else { 1000 } {
            one(i % 16, &mut rng, &listener, addr, unused);
        }
        // Those that gave up may have been accepted meanwhile: they go with the listener.
        drop(listener);
        match before {
            None => {
                settle(usize::MAX - 1);
                // Strangers are known to be gone when their bytes are read.
                before = Some(files());
            }
            Some(n) => settle(n),
        }
        figures.push(resident());
    }
    println!("KiB resident after 50, 1050, 2050 connections: {figures:?}");
    peer::say("clean");
}

#[test]
fn nothing_is_left_of_connections() {
    let _dog = Watchdog::new("nothing_is_left_of_connections");
    let child = peer::Peer::start("child", "churn", &[]);
    child.expect("clean");
    child.finish();
}

/// The part of a process that has no descriptor left.
pub(crate) fn starve() {
    let (listener, addr) = listener();
    let client = Socket::stream().unwrap();
    client.blocking().connect(addr).unwrap();
    let (server, _) = listener.blocking().accept().unwrap();
    client.blocking().send_all(b"x").unwrap();
    let starved = Starved::new(0);
    // A thread that has never waited: it lacks what it needs for that, and is told.
    std::thread::scope(|s| {
        let missing = s.spawn(|| server.blocking().recv(&mut [0; 1])).join().unwrap();
        assert_eq!(missing.unwrap_err().errno(), libc::EMFILE);
        let missing = s.spawn(|| client.blocking().send(&[0; 8192])).join().unwrap();
        assert_eq!(missing.unwrap_err().errno(), libc::EMFILE);
        // Few bytes leave without a wait.
        let sent = s.spawn(|| client.blocking().send(&[0; 1])).join().unwrap();
        assert_eq!(sent.unwrap(), 1);
    });
    let other = Socket::stream().unwrap();
    assert_eq!(other.blocking().connect(addr).unwrap_err().errno(), libc::EMFILE);
    // Everything else goes on, and with descriptors all does.
    let mut byte = [0; 1];
    server.blocking().recv_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"x");
    drop(starved);
    other.blocking().connect(addr).unwrap();
    listener.blocking().accept().unwrap();
    peer::say("survived");
}

#[test]
fn without_descriptors() {
    let _dog = Watchdog::new("without_descriptors");
    let child = peer::Peer::start("child", "starve", &[]);
    child.expect("survived");
    child.finish();
}
