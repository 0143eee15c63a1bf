//! Connections that an engine has lent to an event loop which polls their streams: small messages pass
//! without the engine, and anything else brings the connection back.
//!
//! A case plays the C library: it polls the stream of a connection by edges, and shows what the library
//! reports at an eventfd. A wait has no time limit, and a lost wake-up hangs.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use exs::__ffi::{
    AttendedStream, RecvAtOnce, RungBy, Watch, recv_at_once, recv_ready, rung_by, send_at_once,
    standing, watch,
};
use exs::{Buffer, EventQueue, Options, Socket, Token, Transport};
use exs_tests::harness::{Rng, Watchdog, check, pattern, stream_pair};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Makes an eventfd readable when the library shows a change.
struct Shower(EventFd);

impl Watch for Shower {
    fn changed(&self) {
        self.0.write(1).unwrap();
    }
}

/// One side of a connection over the software RNIC, in an event loop.
struct Side {
    socket: Socket,
    epoll: Epoll,
    shower: Arc<Shower>,
    _stream: AttendedStream,
}

/// The outcome of a receive.
#[derive(Debug, PartialEq)]
enum Got {
    /// The engine took no part.
    Lent(Option<Vec<u8>>),
    /// The engine has taken bytes, or has none.
    ByEngine(Option<Vec<u8>>),
}

impl Side {
    fn new(socket: Socket) -> Side {
        let shower = Arc::new(Shower(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap()));
        watch(&socket, Some(Arc::clone(&shower) as Arc<dyn Watch>));
        let RungBy::Stream(stream) = rung_by(&socket) else { panic!("a connection over TCP") };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(&stream, EpollEvent::new(edges, 0)).unwrap();
        epoll.add(&shower.0, EpollEvent::new(EpollFlags::EPOLLIN, 1)).unwrap();
        Side { socket, epoll, shower, _stream: stream }
    }

    /// Sleeps until something has come, or may have.
    fn wait(&self) {
        let mut events = [EpollEvent::empty(); 2];
        assert!(self.epoll.wait(&mut events, EpollTimeout::NONE).unwrap() > 0);
        if self.shower.0.read().is_ok() {
            // What changes after this look is shown again.
            standing(&self.socket);
        }
    }

    /// Receives up to `most` bytes, without waiting.
    fn receive(&self, most: usize) -> Got {
        let buffer = Buffer::from(vec![0; most]);
        let first = |n: u64| Some(buffer[..usize::try_from(n).unwrap()].to_vec());
        match recv_at_once(&self.socket, &buffer, None) {
            RecvAtOnce::Passed { bytes } => Got::Lent(first(bytes)),
            RecvAtOnce::Unchanged => Got::Lent(None),
            RecvAtOnce::Took { bytes, .. } => Got::ByEngine(first(bytes)),
            RecvAtOnce::WouldWait { .. } => Got::ByEngine(None),
            _ => Got::ByEngine(self.receive_posted(buffer)),
        }
    }

    /// Receives what needs an operation. An end of the stream is no bytes.
    fn receive_posted(&self, buffer: Buffer) -> Option<Vec<u8>> {
        let queue = EventQueue::new(1).unwrap();
        recv_ready(&self.socket, &queue, Token(0), vec![buffer], Default::default()).ok()?;
        let mut event = queue.next().unwrap();
        standing(&self.socket);
        let n = event.bytes();
        Some(event.take_buffer().unwrap()[..n].to_vec())
    }

    /// Receives the next `len` bytes, in calls for at most as many as `most` says.
    fn receive_all(&self, len: usize, mut most: impl FnMut() -> usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < len {
            match self.receive(most().min(len - all.len())) {
                Got::Lent(Some(bytes)) | Got::ByEngine(Some(bytes)) => all.extend(bytes),
                Got::Lent(None) | Got::ByEngine(None) => self.wait(),
            }
        }
        all
    }

    fn send(&self, bytes: &[u8]) {
        if !send_at_once(&self.socket, &Buffer::copy_from_slice(bytes)) {
            self.socket.blocking().send_all(bytes).unwrap();
        }
    }
}

fn sides() -> (Side, Side) {
    let (client, server) = stream_pair(&Options::default().with_transport(Transport::Soft));
    (Side::new(client), Side::new(server))
}

/// Sends questions, and answers them, until `b` has borrowed its connection.
fn until_lent(a: &Side, b: &Side) {
    loop {
        a.send(b"question");
        let mut lent = false;
        let mut got = Vec::new();
        while got.len() < 8 {
            match b.receive(64) {
                Got::Lent(Some(bytes)) => (lent, got) = (true, bytes),
                Got::ByEngine(Some(bytes)) => got.extend(bytes),
                Got::Lent(None) | Got::ByEngine(None) => b.wait(),
            }
        }
        b.send(b"answer");
        a.receive_all(6, || 64);
        if lent {
            return;
        }
    }
}

#[test]
fn a_loop_moves_small_messages_without_the_engine() {
    let _dog = Watchdog::new("a loop moves small messages without the engine");
    let (a, b) = sides();
    let (mut rounds, mut lent) = (0, 0);
    while lent < 100 {
        until_lent(&a, &b);
        // The receive before has taken everything.
        if b.receive(64) == Got::Lent(None) {
            a.send(b"one more");
            b.wait();
            lent += u32::from(b.receive(64) == Got::Lent(Some(b"one more".to_vec())));
        }
        b.receive_all(0, || 64);
        rounds += 1;
    }
    let counters = [&a, &b].map(|side| side.socket.counters());
    assert!(counters[0].sends >= 200 && counters[1].recvs >= 200, "{rounds} rounds: {counters:?}");
    assert_eq!(counters[0].messages_sent, counters[1].messages_received, "all are counted");
}

/// Messages of all sizes and in bursts, receives for less than has come, and a third thread that calls.
#[test]
fn anything_else_brings_the_connection_back() {
    const MESSAGES: u64 = 3000;
    let _dog = Watchdog::new("anything else brings the connection back");
    let (a, b) = sides();
    let over = AtomicBool::new(false);
    let size = |rng: &mut Rng| match rng.between(0, 20) {
        0 => rng.between(1, 200_000),
        1 => rng.between(3900, 4200),
        _ => rng.between(1, 200),
    };
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                assert_eq!(a.socket.peer_addr().unwrap(), b.socket.local_addr().unwrap());
                standing(&b.socket);
                (0..100).for_each(|_| thread::yield_now());
            }
        });
        let asker = scope.spawn(|| {
            let (mut rng, mut calls) = (Rng::new(1), Rng::new(2));
            for n in 0..MESSAGES {
                let burst: Vec<_> = (0..rng.between(1, 7)).map(|_| size(&mut rng)).collect();
                burst.iter().for_each(|&len| a.send(&pattern(n, len, len)));
                for &len in &burst {
                    check(n, len, &a.receive_all(len, || calls.between(1, 5000)));
                }
            }
        });
        let (mut rng, mut calls) = (Rng::new(1), Rng::new(3));
        for n in 0..MESSAGES {
            let burst: Vec<_> = (0..rng.between(1, 7)).map(|_| size(&mut rng)).collect();
            for &len in &burst {
                check(n, len, &b.receive_all(len, || calls.between(1, 5000)));
                b.send(&pattern(n, len, len));
            }
        }
        let asked = asker.join();
        over.store(true, Ordering::Relaxed);
        assert!(asked.is_ok() && caller.join().is_ok());
    });
}

/// A read of several messages, or of a part of one, is no small message.
#[test]
fn what_a_read_has_beside_a_message_is_not_lost() {
    let _dog = Watchdog::new("more than a message in a read");
    let (a, b) = sides();
    for len in [1, 64, 2000].into_iter().chain(3980..4100) {
        until_lent(&a, &b);
        a.send(&pattern(1, len, len));
        a.send(b"next");
        check(1, len, &b.receive_all(len, || 1 << 16));
        assert_eq!(b.receive_all(4, || 1 << 16), b"next");
    }
}

/// While one of them is on its way to the engine with what it has read, the other reads nothing.
#[test]
fn threads_share_a_loop() {
    const MESSAGES: usize = 20_000;
    let _dog = Watchdog::new("threads share a loop");
    let (a, b) = sides();
    let size = |n: usize| if n.is_multiple_of(16) { 6000 } else { 1 + n % 200 };
    let all: usize = (0..MESSAGES).map(size).sum();
    let received = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while received.load(Ordering::SeqCst) < all {
                    match b.receive(300) {
                        Got::Lent(Some(bytes)) | Got::ByEngine(Some(bytes)) => {
                            received.fetch_add(bytes.len(), Ordering::SeqCst);
                        }
                        Got::Lent(None) | Got::ByEngine(None) => b.wait(),
                    }
                }
                // The other one may sleep.
                b.shower.changed();
            });
        }
        (0..MESSAGES).for_each(|n| a.send(&vec![7; size(n)]));
    });
    assert_eq!(received.into_inner(), all);
    assert!(!standing(&b.socket).broken);
    until_lent(&a, &b);
}

#[test]
fn a_connection_that_the_loop_neglects_returns_to_the_leader() {
    let _dog = Watchdog::new("a neglected loan");
    let (a, b) = sides();
    until_lent(&a, &b);
    a.send(b"data");
    // To ask for the state brings the connection back, so the case waits for a change first.
    loop {
        while b.shower.0.read().is_err() {
            thread::yield_now();
        }
        if standing(&b.socket).readable {
            break;
        }
    }
    assert_eq!(b.receive(64), Got::ByEngine(Some(b"data".to_vec())));
}

#[test]
fn the_end_of_the_data_ends_the_loan() {
    let _dog = Watchdog::new("the end of the data");
    let (a, b) = sides();
    until_lent(&a, &b);
    a.send(b"last");
    a.socket.blocking().shutdown(Shutdown::Write).unwrap();
    assert_eq!(b.receive_all(4, || 64), b"last");
    while !standing(&b.socket).ended {
        b.wait();
        b.receive(64);
    }
    b.send(b"answer");
    assert_eq!(a.receive_all(6, || 64), b"answer");
}

#[test]
fn a_peer_that_resets_ends_the_loan() {
    let _dog = Watchdog::new("a reset");
    let (a, b) = sides();
    until_lent(&a, &b);
    a.socket.abort();
    while !standing(&b.socket).broken {
        b.receive(64);
        thread::yield_now();
    }
    assert!(b.socket.blocking().send_all(b"late").is_err());
}
