//! Peers and file systems that do not answer: only the connection concerned waits, and it ends in
//! time when it is told to.
//!
//! [`child`] is the part that the other process plays: the test program runs itself.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use exs::{EventKind, KernelSocket, Options, RecvFlags, Socket, SocketType, Transport};
use exs_tests::harness::{LIMIT, Ledger, Watchdog, peer};
use exs_tests::slow_file::{self, SlowFile};
use exs_tests::{skip, sys};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const MUCH: usize = 4 << 20;
/// Bytes of it that have arrived: more than go into a record.
const THERE: usize = 256 << 10;

fn options(transport: Transport) -> Options {
    Options::default().with_transport(transport)
}

/// Not a test in the parent: the part of the other process.
#[test]
fn child() {
    let Some(words) = peer::part() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["withhold", addr] => withhold(addr.parse().unwrap()),
        [slow_file::PART, len] => slow_file::serve(len.parse().unwrap()),
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
    ledger.post("send", |q, t| socket.send(q, t, memory));
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
    joined_with(&options(transport))
}

fn joined_with(options: &Options) -> (Socket, Socket) {
    let (listener, addr) = listener(options.clone());
    let client = Socket::with_options(SocketType::Stream, options.clone()).unwrap();
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
            ledger.post("send", |q, t| a.send(q, t, vec![5; len]));
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
fn a_peer_whose_pages_do_not_come_holds_up_no_other() {
    let _dog = Watchdog::with_limit("a_peer_whose_pages_do_not_come", LIMIT * 2);
    let others = [joined(Transport::Shm), joined(Transport::Soft)];
    for how in [Ended::DeadAfter, Ended::Abort, Ended::Close, Ended::Killed] {
        let dead_after = matches!(how, Ended::DeadAfter).then_some(Duration::from_secs(1));
        let linger = Duration::from_millis(200);
        let keep_alive = dead_after.map(|limit| limit / 2);
        let opts = options(Transport::Shm)
            .with_dead_after(dead_after)
            .with_keep_alive(keep_alive)
            .with_linger(linger);
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

/// Where a file is sent.
enum Way {
    Exs(Socket, Socket),
    Kernel(KernelSocket<TcpStream>, TcpStream),
}

const ROADS: [&str; 5] =
    ["shm", "soft", "soft with crc", "a kernel socket", "one that does not block"];

fn way(road: &str) -> Way {
    let (transport, crc) = match road {
        "shm" => (Transport::Shm, false),
        "soft" => (Transport::Soft, false),
        "soft with crc" => (Transport::Soft, true),
        _ => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            client.set_nonblocking(road == "one that does not block").unwrap();
            return Way::Kernel(KernelSocket::new(client).unwrap(), listener.accept().unwrap().0);
        }
    };
    let (a, b) = joined_with(&options(transport).with_crc(crc));
    Way::Exs(a, b)
}

impl Way {
    fn send_file(&self, ledger: &mut Ledger, file: Arc<File>, len: usize) {
        let len = len as u64;
        match self {
            Way::Exs(a, _) => ledger.post("file", |q, t| a.send_file(q, t, file, 0, len)),
            Way::Kernel(a, _) => ledger.post("file", |q, t| a.send_file(q, t, file, 0, len)),
        };
    }

    fn receive(self, len: usize) -> Vec<u8> {
        let mut got = vec![0; len];
        match self {
            Way::Exs(_, b) => {
                std::io::Read::read_exact(&mut b.blocking(), &mut got).unwrap();
            }
            Way::Kernel(_, mut b) => std::io::Read::read_exact(&mut b, &mut got).unwrap(),
        }
        got
    }
}

/// A file whose server does not answer holds up the send, and no other socket; and when it answers, all
/// of it arrives.
#[test]
fn a_file_system_that_does_not_answer_holds_up_one_send() {
    const LEN: usize = 1_300_000;
    let _dog = Watchdog::new("a_file_system_that_does_not_answer");
    let others = [joined(Transport::Shm), joined(Transport::Soft)];
    for road in ROADS {
        let Some(mut slow) = SlowFile::new("child", LEN as u64) else {
            return skip::skip("FUSE needs root and /dev/fuse");
        };
        let (way, mut ledger) = (way(road), Ledger::new());
        way.send_file(&mut ledger, Arc::clone(&slow.file), LEN);
        slow.await_request(slow_file::READ);
        others_are_served(&others);
        slow.release();
        let got = std::thread::spawn(move || way.receive(LEN));
        for event in ledger.drain() {
            assert!(event.error().is_none() && event.bytes() == LEN, "{road}: {event:?}");
        }
        let got = got.join().unwrap();
        assert!((0..LEN as u64).map(slow_file::byte).eq(got), "{road}: other bytes");
    }
}

/// A send whose file does not come ends when its socket does; to close the file holds up no other connection.
#[test]
fn a_send_whose_file_does_not_come_can_be_ended() {
    let _dog = Watchdog::new("a_send_whose_file_does_not_come_can_be_ended");
    let others = [joined(Transport::Shm), joined(Transport::Soft)];
    for road in ROADS {
        let Some(mut slow) = SlowFile::new("child", 100_000) else {
            return skip::skip("FUSE needs root and /dev/fuse");
        };
        let (way, mut ledger) = (way(road), Ledger::new());
        // The library has the last one.
        let file = std::mem::replace(&mut slow.file, Arc::new(File::open("/dev/null").unwrap()));
        way.send_file(&mut ledger, file, 100_000);
        slow.await_request(slow_file::READ);
        match &way {
            Way::Exs(a, _) => a.abort(),
            Way::Kernel(a, _) => assert_eq!(a.cancel_all(), 1),
        }
        for event in ledger.drain() {
            assert!(event.error().is_some() && event.bytes() == 0, "{road}: {event:?}");
        }
        others_are_served(&others);
    }
}
