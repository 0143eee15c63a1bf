//! Queues that several threads share, and a program that lives on epoll alone.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use exs::{Event, EventKind, EventQueue, RecvFlags, Socket, Token};
use exs_tests::harness::{Ledger, Rng, Watchdog, accepted, check, many_files, pattern, peer};
use mio::unix::SourceFd;

const NOW: Option<Duration> = Some(Duration::ZERO);
const ROUNDS: usize = 30;

pub(crate) fn listener() -> (Socket, SocketAddr) {
    let listener = Socket::stream().unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(4096).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// Each client sends, and waits for the echo, `ROUNDS` times.
pub(crate) fn clients(addr: SocketAddr, count: usize) {
    many_files();
    let mut ledger = Ledger::new();
    let sockets: Vec<Socket> = (0..count).map(|_| Socket::stream().unwrap()).collect();
    for socket in &sockets {
        ledger.post("connect", |q, t| socket.connect(q, t, addr));
    }
    assert!(ledger.drain().iter().all(|e| e.error().is_none()));
    let mut rng = Rng::new(5);
    for _ in 0..ROUNDS {
        for (i, socket) in sockets.iter().enumerate() {
            let bytes = pattern(i as u64, 0, rng.size(6000));
            let recv = vec![0; bytes.len()];
            ledger.post("recv", |q, t| socket.recv(q, t, recv, RecvFlags::WAITALL));
            ledger.post("send", |q, t| socket.send(q, t, bytes));
        }
        for event in ledger.drain() {
            assert!(event.error().is_none(), "{event:?}");
            if event.kind() == EventKind::Recv {
                let got = event.into_buffer().unwrap();
                // Whose it is is in its first bytes.
                let whose = (0..count as u64).find(|i| pattern(*i, 0, got.len())[..] == got[..]);
                assert!(whose.is_some(), "an echo of nothing that was sent");
            }
        }
    }
    for socket in &sockets {
        ledger.post("close", |q, t| socket.close(q, t));
    }
    assert!(ledger.drain().iter().all(|e| e.error().is_none()));
    ledger.finish();
    peer::say("done");
}

/// What the server does with an event; true if it was the end of a connection.
fn serve(
    queue: &EventQueue,
    listener: &Socket,
    sockets: &mut Vec<Option<Socket>>,
    mut event: Event,
) -> bool {
    if event.kind() == EventKind::Accept {
        assert!(event.error().is_none(), "{event:?}");
        let (socket, _) = accepted(event).unwrap();
        let token = Token(sockets.len() as u64);
        socket.recv(queue, token, vec![0; 8192], RecvFlags::NONE).unwrap();
        sockets.push(Some(socket));
        listener.accept(queue, Token(u64::MAX)).unwrap();
        return false;
    }
    let token = event.token();
    let place = &mut sockets[usize::try_from(token.0).unwrap()];
    if event.eof() || event.error().is_some() {
        *place = None;
        return true;
    }
    let socket = place.as_ref().expect("still open");
    let bytes = event.bytes();
    let mut buffer = event.take_buffer().unwrap();
    if event.kind() == EventKind::Recv {
        buffer.narrow(..bytes);
        socket.send(queue, token, buffer).unwrap();
    } else {
        buffer.widen();
        socket.recv(queue, token, buffer, RecvFlags::NONE).unwrap();
    }
    false
}

/// One thread that waits in epoll and never in `dequeue`: 200 clients are served.
#[test]
fn a_server_on_epoll_alone() {
    const MANY: usize = 200;
    let _dog = Watchdog::new("a_server_on_epoll_alone");
    let (listener, addr) = listener();
    let queue = EventQueue::new(4 * MANY).unwrap();
    let mut poll = mio::Poll::new().unwrap();
    let fd = queue.as_raw_fd();
    poll.registry().register(&mut SourceFd(&fd), mio::Token(0), mio::Interest::READABLE).unwrap();
    listener.accept(&queue, Token(u64::MAX)).unwrap();
    let child = peer::Peer::start("child", &format!("clients {addr} {MANY}"), &[]);
    let (mut sockets, mut ended) = (Vec::new(), 0);
    let mut events = mio::Events::with_capacity(4);
    while ended < MANY {
        poll.poll(&mut events, None).unwrap();
        loop {
            let batch = queue.dequeue(16, NOW).unwrap();
            if batch.is_empty() {
                break;
            }
            for event in batch {
                ended += usize::from(serve(&queue, &listener, &mut sockets, event));
            }
        }
    }
    assert_eq!(sockets.len(), MANY);
    child.expect("done");
    child.finish();
}

/// Threads that wait for different numbers of events of one queue: each gets as many as
/// it asked for, or its time was up.
#[test]
fn thresholds_of_several_threads() {
    const MANY: usize = 6000;
    let _dog = Watchdog::new("thresholds_of_several_threads");
    let (listener, addr) = listener();
    let a = Socket::stream().unwrap();
    a.blocking().connect(addr).unwrap();
    let (b, _) = listener.blocking().accept().unwrap();
    let queue = EventQueue::new(256).unwrap();
    let taken = AtomicUsize::new(0);
    let limit = Duration::from_millis(20);
    std::thread::scope(|s| {
        for min in [1, 2, 3, 5, 5] {
            let (queue, taken) = (&queue, &taken);
            s.spawn(move || {
                while taken.load(Ordering::SeqCst) < MANY {
                    let begun = Instant::now();
                    let events = queue.dequeue_at_least(min, 8, Some(limit)).unwrap();
                    let late = begun.elapsed() >= limit;
                    assert!(events.len() >= min || late, "{} of {min}, too soon", events.len());
                    assert!(events.iter().all(|e| e.error().is_none()));
                    taken.fetch_add(events.len(), Ordering::SeqCst);
                }
            });
        }
        s.spawn(|| {
            let bytes = pattern(3, 0, MANY * 8);
            a.blocking().send_all(&bytes).unwrap();
        });
        let mut posted = 0;
        while posted < MANY {
            match b.recv(&queue, Token(posted as u64), vec![0; 8], RecvFlags::WAITALL) {
                Ok(()) => posted += 1,
                Err(refused) => {
                    assert!(refused.error.is_would_block(), "{refused}");
                    std::thread::yield_now();
                }
            }
        }
    });
    assert_eq!((taken.into_inner(), queue.outstanding()), (MANY, 0));
}

/// A thread posts, and never waits: receives that wait for their doorbell are known to
/// the peer all the same, and what was sent leaves.
#[test]
fn a_thread_that_never_waits() {
    let _dog = Watchdog::new("a_thread_that_never_waits");
    let (listener, addr) = listener();
    // No data inside of messages, and no ring to speak of: only what is advertised.
    let options = exs::Options::default().with_inline_threshold(Some(0)).with_ring_size(4096);
    let client = Socket::with_options(exs::SocketType::Stream, options).unwrap();
    client.blocking().connect(addr).unwrap();
    let (server, _) = listener.blocking().accept().unwrap();
    let queue = EventQueue::new(64).unwrap();
    for size in [1, 100, 2000, 5000, 300_000] {
        let bytes = pattern(9, 0, size);
        server.recv(&queue, Token(1), vec![0; size], RecvFlags::WAITALL).unwrap();
        client.send(&queue, Token(2), bytes.clone()).unwrap();
        // Not a single call that would lead.
        while queue.len() < 2 {
            std::thread::yield_now();
        }
        for event in queue.dequeue(2, NOW).unwrap() {
            assert_eq!((event.error().is_none(), event.bytes()), (true, size));
            if event.kind() == EventKind::Recv {
                check(9, 0, &event.into_buffer().unwrap());
            }
        }
    }
}

/// Many small receives, which are announced without a doorbell of their own: neither the
/// data nor the credits that go with these announcements are missed.
#[test]
fn many_small_receives() {
    const MANY: usize = 6000;
    let _dog = Watchdog::new("many_small_receives");
    let (listener, addr) = listener();
    for window in [8, 32, 64, 256] {
        let client = Socket::stream().unwrap();
        client.blocking().connect(addr).unwrap();
        let (server, _) = listener.blocking().accept().unwrap();
        let mut ledger = Ledger::new();
        let recv = |ledger: &mut Ledger| {
            ledger.post("recv", |q, t| server.recv(q, t, vec![0; 8], RecvFlags::WAITALL));
        };
        for _ in 0..window {
            recv(&mut ledger);
        }
        // The other direction has credits left, however many receives it announced.
        ledger.post("send", |q, t| server.send(q, t, *b"hello"));
        let mut hello = [0; 5];
        client.blocking().recv_exact(&mut hello).unwrap();
        let bytes = pattern(4, 0, MANY * 8);
        ledger.post("send", |q, t| client.send(q, t, bytes));
        let mut got = 0;
        while got < MANY {
            let event = ledger.ok();
            if event.kind() == EventKind::Recv {
                check(4, got * 8, &event.into_buffer().unwrap());
                got += 1;
                if got + window <= MANY {
                    recv(&mut ledger);
                }
            }
        }
        ledger.finish();
    }
}
