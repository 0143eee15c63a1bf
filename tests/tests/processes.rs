//! Real processes: what happens when the other side dies, stops, or starts a program.
//!
//! Here over shared memory; `processes_soft` is the same over the software RNIC.
//!
//! [`child`] is the part that the other process plays: the test program runs itself.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use exs::{
    Error, EventKind, EventQueue, Interest, Options, RecvFlags, RemoteBuffer, Rights, Socket,
    SocketType, Token, Transport,
};
use exs_tests::harness::{LIMIT, Ledger, Watchdog, accepted, check, many_files, pattern, peer};
use nix::sys::signal::Signal;

/// The tests are compiled twice, each time for one transport.
const SOFT: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"processes_soft");
const CHILD: &str = if SOFT { "processes::child" } else { "child" };

fn options() -> Options {
    let transport = if SOFT { Transport::Soft } else { Transport::Shm };
    Options::default().with_transport(transport)
}

/// Bytes there and back in [`a_thread_that_never_waits_gets_events_of_other_processes`].
const ROUND: usize = 16 << 10;

const KINDS: [SocketType; 2] = [SocketType::Stream, SocketType::SeqPacket];

/// Not a test in the parent: the part of the other process.
#[test]
fn child() {
    let Some(words) = peer::part() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let _dog = Watchdog::with_limit(&format!("the child {words:?}"), LIMIT * 2);
    match words[..] {
        ["listen", kind] => parts::listen(kind_of(kind)),
        ["flood", kind, addr] => parts::flood(kind_of(kind), addr.parse().unwrap()),
        ["many", addr, count] => parts::many(addr.parse().unwrap(), count.parse().unwrap()),
        ["echo", addr, count] => parts::echo(addr.parse().unwrap(), count.parse().unwrap()),
        ["descriptors"] => parts::descriptors(),
        _ => panic!("no such part: {words:?}"),
    }
}

fn kind_of(word: &str) -> SocketType {
    if word == "stream" { SocketType::Stream } else { SocketType::SeqPacket }
}

fn word_of(kind: SocketType) -> &'static str {
    if kind == SocketType::Stream { "stream" } else { "seqpacket" }
}

/// What children do.
mod parts {
    use super::*;

    /// Accepts one connection, exports memory on it, sends the descriptor, and then
    /// does nothing at all until it is killed or told to end.
    pub(super) fn listen(kind: SocketType) {
        let listener = Socket::with_options(kind, options()).unwrap();
        listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.listen(8).unwrap();
        peer::say(&format!("at {}", listener.local_addr().unwrap()));
        let (socket, _) = listener.blocking().accept().unwrap();
        let mut hello = [0; 5];
        socket.blocking().recv(&mut hello).unwrap();
        let export = socket.export(vec![0; 8 << 20], Rights::READ_WRITE, None).unwrap();
        socket.blocking().send_all(&export.descriptor().to_bytes()).unwrap();
        peer::say("ready");
        peer::listen();
    }

    /// Connects, and sends and receives for ever.
    pub(super) fn flood(kind: SocketType, addr: SocketAddr) {
        let socket = Socket::with_options(kind, options()).unwrap();
        socket.blocking().connect(addr).unwrap();
        let mut ledger = Ledger::new();
        for _ in 0..8 {
            ledger.post("recv", |q, t| socket.recv(q, t, vec![0; 1 << 20], RecvFlags::NONE));
            ledger.post("send", |q, t| socket.send(q, t, vec![1; 1 << 20]));
        }
        loop {
            let mut event = ledger.event();
            if event.error().is_some() {
                return;
            }
            let buffer = event.take_buffer().unwrap();
            match event.kind() {
                EventKind::Send => ledger.post("send", |q, t| socket.send(q, t, buffer)),
                _ => ledger.post("recv", |q, t| socket.recv(q, t, buffer, RecvFlags::NONE)),
            };
        }
    }

    /// Makes many connections at once, and sends each one's number on it.
    pub(super) fn many(addr: SocketAddr, count: usize) {
        many_files();
        let mut ledger = Ledger::new();
        let sockets: Vec<Socket> = (0..count)
            .map(|_| Socket::with_options(SocketType::Stream, options()).unwrap())
            .collect();
        for socket in &sockets {
            ledger.post("connect", |q, t| socket.connect(q, t, addr));
        }
        for event in ledger.drain() {
            assert!(event.error().is_none(), "{event:?}");
        }
        for (i, socket) in sockets.iter().enumerate() {
            ledger.post("send", |q, t| socket.send(q, t, i.to_be_bytes()));
            ledger.post("recv", |q, t| socket.recv(q, t, vec![0; 8], RecvFlags::WAITALL));
        }
        for mut event in ledger.drain() {
            assert!(event.error().is_none() && event.bytes() == 8, "{event:?}");
            drop(event.take_buffer());
        }
        ledger.finish();
        peer::say("all answered");
    }

    /// Makes some connections, and sends back what comes on each, until they end.
    pub(super) fn echo(addr: SocketAddr, count: usize) {
        let queue = EventQueue::new(4 * count).unwrap();
        let sockets: Vec<Socket> = (0..count)
            .map(|i| {
                let socket = Socket::with_options(SocketType::Stream, options()).unwrap();
                socket.blocking().connect(addr).unwrap();
                socket.recv(&queue, Token(i as u64), vec![0; ROUND], RecvFlags::WAITALL).unwrap();
                socket
            })
            .collect();
        let mut open = count;
        while open > 0 {
            let mut event = queue.next().unwrap();
            let token = event.token();
            let socket = &sockets[usize::try_from(token.0).unwrap()];
            match (event.kind(), event.bytes()) {
                (EventKind::Recv, ROUND) => {
                    let buffer = event.take_buffer().unwrap();
                    socket.send(&queue, token, buffer).unwrap();
                }
                (EventKind::Recv, _) => open -= 1,
                _ => {
                    let buffer = event.take_buffer().unwrap();
                    socket.recv(&queue, token, buffer, RecvFlags::WAITALL).unwrap();
                }
            }
        }
    }

    /// Says which descriptors it has.
    pub(super) fn descriptors() {
        let open: Vec<String> =
            super::descriptors().iter().map(|(fd, to)| format!("{fd}={}", to.display())).collect();
        peer::say(&open.join(" "));
    }
}

fn listener(kind: SocketType, options: Options) -> (Socket, SocketAddr) {
    let listener = Socket::with_options(kind, options).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(64).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// A connection to a child that does nothing more, and memory of the child's.
fn idle_child(kind: SocketType, options: Options) -> (peer::Peer, Socket, RemoteBuffer) {
    let child = peer::Peer::start(CHILD, &format!("listen {}", word_of(kind)), &[]);
    let addr: SocketAddr = child.expect("at").parse().unwrap();
    let socket = Socket::with_options(kind, options).unwrap();
    socket.blocking().connect(addr).unwrap();
    socket.blocking().send_all(b"hello").unwrap();
    let mut descriptor = [0; RemoteBuffer::BYTES];
    assert_eq!(socket.blocking().recv(&mut descriptor).unwrap(), RemoteBuffer::BYTES);
    child.expect("ready");
    (child, socket, RemoteBuffer::from_bytes(&descriptor).unwrap())
}

/// One of everything that can be outstanding on a connection whose peer does nothing.
fn post_everything(ledger: &mut Ledger, socket: &Socket, remote: &RemoteBuffer) {
    for size in [10, 1 << 20] {
        ledger.post("recv", |q, t| socket.recv(q, t, vec![0; size], RecvFlags::NONE));
    }
    let two = vec![vec![0; 10].into(), vec![0; 100_000].into()];
    ledger.post("recvv", |q, t| socket.recv_vectored(q, t, two, RecvFlags::NONE));
    ledger.post("poll", |q, t| socket.poll(q, t, Interest::READABLE));
    // More than any ring or socket buffer takes.
    for _ in 0..4 {
        ledger.post("send", |q, t| socket.send(q, t, vec![1; 32 << 20]));
    }
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let (len, file) = (file.metadata().unwrap().len(), std::sync::Arc::new(file));
    ledger.post("send_file", |q, t| socket.send_file(q, t, file, 0, len));
    ledger.post("read", |q, t| socket.read(q, t, remote, 0, vec![0; 1 << 20]));
    ledger.post("write", |q, t| socket.write(q, t, remote, 0, vec![0; 1 << 20]));
}

/// Every operation ends, with an error unless it was done before, and in time.
fn all_end(mut ledger: Ledger, within: Duration, fits: impl Fn(&Error) -> bool) {
    let begun = Instant::now();
    let mut failed = 0;
    for event in ledger.drain() {
        match event.error() {
            Some(e) => {
                assert!(fits(e), "{:?} ended with {e:?} (errno {})", event.kind(), e.errno());
                failed += 1;
            }
            None => assert!(
                matches!(event.kind(), EventKind::Read | EventKind::Write | EventKind::Poll),
                "only one-sided operations can have been done: {event:?}"
            ),
        }
    }
    assert!(failed >= 8, "sends and receives cannot have been done");
    assert!(begun.elapsed() < within, "it took {:?}", begun.elapsed());
    ledger.finish();
}

fn is_reset(e: &Error) -> bool {
    [libc::ECONNRESET, libc::EPIPE, libc::ECONNABORTED].contains(&e.errno())
}

/// kill -9 of a peer with everything outstanding.
#[test]
fn a_peer_that_is_killed() {
    let _dog = Watchdog::new("a_peer_that_is_killed");
    for kind in KINDS {
        let (mut child, socket, remote) = idle_child(kind, options());
        let mut ledger = Ledger::new();
        post_everything(&mut ledger, &socket, &remote);
        child.kill();
        all_end(ledger, LIMIT, is_reset);
        assert!(socket.blocking().send(b"x").is_err());
        assert!(socket.blocking().close().is_err() || socket.blocking().close().is_err());
    }
}

/// kill -9 of a peer in the middle of traffic in both directions, again and again.
#[test]
fn a_peer_that_is_killed_in_mid_transfer() {
    let _dog = Watchdog::new("a_peer_that_is_killed_in_mid_transfer");
    for round in 0..6 {
        let kind = KINDS[round % 2];
        let (listener, addr) = listener(kind, options());
        let mut child =
            peer::Peer::start(CHILD, &format!("flood {}", word_of(kind)), &[&addr.to_string()]);
        let (socket, _) = listener.blocking().accept().unwrap();
        let mut ledger = Ledger::new();
        for _ in 0..8 {
            ledger.post("recv", |q, t| socket.recv(q, t, vec![0; 1 << 20], RecvFlags::NONE));
            ledger.post("send", |q, t| socket.send(q, t, vec![1; 1 << 20]));
        }
        // After a number of events of a transfer in full swing.
        let mut left = 20 + round * 30;
        let mut killed = false;
        while ledger.outstanding() > 0 {
            let mut event = ledger.event();
            if let Some(e) = event.error() {
                assert!(killed, "before anything happened: {e}");
                assert!(is_reset(e), "{e:?}");
                continue;
            }
            left = left.saturating_sub(1);
            if left == 0 && !killed {
                child.kill();
                killed = true;
            }
            let Some(buffer) = event.take_buffer() else { continue };
            if event.eof() {
                continue;
            }
            let send = event.kind() == EventKind::Send;
            let posted = ledger.try_post("next", |q, t| {
                if send {
                    socket.send(q, t, buffer)
                } else {
                    socket.recv(q, t, buffer, RecvFlags::NONE)
                }
            });
            assert!(posted.is_ok() || killed, "{posted:?}");
        }
        ledger.finish();
    }
}

fn impatient() -> Options {
    options()
        .with_keep_alive(Some(Duration::from_millis(300)))
        .with_dead_after(Some(Duration::from_secs(1)))
}

/// A peer that stops (SIGSTOP) but whose kernel still acknowledges: `dead_after` ends it.
#[test]
fn a_peer_that_stops() {
    let _dog = Watchdog::new("a_peer_that_stops");
    for kind in KINDS {
        // Before its last sign of life, whenever that was.
        let begun = Instant::now();
        let (child, socket, remote) = idle_child(kind, impatient());
        child.signal(Signal::SIGSTOP);
        let mut ledger = Ledger::new();
        post_everything(&mut ledger, &socket, &remote);
        all_end(ledger, Duration::from_secs(20), |e| e.errno() == libc::ETIMEDOUT);
        assert!(begun.elapsed() >= Duration::from_secs(1), "the peer has a second");
        drop(child);
    }
}

/// A peer that lives but does not read is not dead: nothing ends by itself.
#[test]
fn a_peer_that_does_not_read_is_not_dead() {
    let _dog = Watchdog::new("a_peer_that_does_not_read_is_not_dead");
    for kind in KINDS {
        let (child, socket, _) = idle_child(kind, impatient());
        let queue = EventQueue::new(8).unwrap();
        socket.recv(&queue, Token(1), vec![0; 10], RecvFlags::NONE).unwrap();
        socket.send(&queue, Token(2), vec![1; 64 << 20]).unwrap();
        let none = queue.dequeue(4, Some(Duration::from_secs(3))).unwrap();
        assert!(none.is_empty(), "three times dead_after, and the peer answers: {none:?}");
        drop(child);
    }
}

/// `send_timeout` ends sends that the peer does not take; the connection goes on.
#[test]
fn sends_that_the_peer_does_not_take_time_out() {
    let _dog = Watchdog::new("sends_that_the_peer_does_not_take_time_out");
    let limit = Duration::from_millis(300);
    for kind in KINDS {
        let options = options().with_send_timeout(Some(limit));
        let (child, socket, remote) = idle_child(kind, options);
        let mut ledger = Ledger::new();
        let begun = Instant::now();
        for _ in 0..3 {
            ledger.post("send", |q, t| socket.send(q, t, vec![1; 32 << 20]));
        }
        for event in ledger.drain() {
            let error = event.error().expect("the peer does not take 32 MiB");
            assert_eq!(error.errno(), libc::ETIMEDOUT, "{error}");
        }
        assert!(begun.elapsed() >= limit);
        assert_eq!(socket.blocking().write(&remote, 0, b"still there").unwrap(), 11);
        ledger.finish();
        drop(child);
    }
}

/// Open descriptors of this process: number and what it is.
fn descriptors() -> Vec<(String, PathBuf)> {
    let mut all: Vec<(String, PathBuf)> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .map_while(Result::ok)
        .filter_map(|e| {
            Some((e.file_name().into_string().ok()?, std::fs::read_link(e.path()).ok()?))
        })
        // Without the descriptor that reads the directory.
        .filter(|(_, to)| !to.starts_with("/proc"))
        .collect();
    all.sort();
    all
}

/// A program that is started has none of our descriptors.
#[test]
fn a_started_program_inherits_nothing() {
    let _dog = Watchdog::new("a_started_program_inherits_nothing");
    use std::os::fd::AsRawFd;
    let (listener, addr) = listener(SocketType::Stream, options());
    let client = Socket::with_options(SocketType::Stream, options()).unwrap();
    client.blocking().connect(addr).unwrap();
    let (server, _) = listener.blocking().accept().unwrap();
    let queue = EventQueue::new(4).unwrap();
    assert!(queue.as_raw_fd() > 2);
    let child = peer::Peer::start(CHILD, "descriptors", &[]);
    let theirs = child.hear();
    let theirs: Vec<&str> = theirs.split(' ').collect();
    let inherited: Vec<&&str> = theirs
        .iter()
        .filter(|d| !["0=", "1=", "2="].iter().any(|std| d.starts_with(std)))
        .collect();
    // Ours that are sockets, event counters or pollers; a test harness may have passed
    // a pipe of its own (make's job server) on to everybody.
    let kinds = ["socket:", "[eventfd]", "[eventpoll]"];
    for d in inherited {
        assert!(!kinds.iter().any(|k| d.contains(k)), "inherited: {d} of {theirs:?}");
    }
    let ours: BTreeSet<PathBuf> = descriptors().into_iter().map(|d| d.1).collect();
    assert!(ours.len() > 5, "the connection has descriptors: {ours:?}");
    // And the connection does not mind.
    client.blocking().send_all(b"still").unwrap();
    let mut got = [0; 5];
    server.blocking().recv_exact(&mut got).unwrap();
}

/// A child that outlives us does not hold our connections open: the peer sees the end.
#[test]
fn a_started_program_does_not_hold_connections_open() {
    let _dog = Watchdog::new("a_started_program_does_not_hold_connections_open");
    let (listener, addr) = listener(SocketType::Stream, options());
    let client = Socket::with_options(SocketType::Stream, options()).unwrap();
    client.blocking().connect(addr).unwrap();
    let (server, _) = listener.blocking().accept().unwrap();
    let bystander = peer::Peer::start(CHILD, "listen stream", &[]);
    bystander.expect("at");
    client.blocking().send_all(&pattern(1, 0, 1000)).unwrap();
    client.blocking().close().unwrap();
    let mut got = vec![0; 1000];
    server.blocking().recv_exact(&mut got).unwrap();
    check(1, 0, &got);
    assert_eq!(server.blocking().recv(&mut got).unwrap(), 0);
}

/// Five hundred connections at once from another process.
#[test]
fn five_hundred_from_another_process() {
    const MANY: usize = 500;
    let _dog = Watchdog::new("five_hundred_from_another_process");
    many_files();
    let (listener, addr) = listener(SocketType::Stream, options());
    let child = peer::Peer::start(CHILD, &format!("many {addr} {MANY}"), &[]);
    let mut ledger = Ledger::new();
    for _ in 0..MANY {
        ledger.post("accept", |q, t| listener.accept(q, t));
    }
    let sockets: Vec<Socket> =
        ledger.drain().into_iter().map(|e| accepted(e).expect("a connection").0).collect();
    let tokens: Vec<Token> = sockets
        .iter()
        .map(|s| ledger.post("recv", |q, t| s.recv(q, t, vec![0; 8], RecvFlags::WAITALL)))
        .collect();
    let mut numbers = BTreeSet::new();
    for (socket, token) in sockets.iter().zip(tokens) {
        let number = ledger.wait_ok(token).into_buffer().unwrap();
        numbers.insert(usize::from_be_bytes(number[..].try_into().unwrap()));
        ledger.post("send", |q, t| socket.send(q, t, number));
    }
    assert_eq!(numbers, (0..MANY).collect());
    child.expect("all answered");
    ledger.finish();
    child.finish();
}

/// A thread that finds an event each time it looks, and so never waits, still gets the
/// events of each of its connections to another process. It polls some of them itself, and the
/// background thread serves the others at each of its ticks, however fast the machine is.
#[test]
fn a_thread_that_never_waits_gets_events_of_other_processes() {
    const MANY: usize = 40;
    const ROUNDS: u32 = 500;
    let _dog = Watchdog::new("a_thread_that_never_waits_gets_events_of_other_processes");
    let (listener, addr) = listener(SocketType::Stream, options());
    let child = peer::Peer::start(CHILD, &format!("echo {addr} {MANY}"), &[]);
    let queue = EventQueue::new(4 * MANY).unwrap();
    let sockets: Vec<Socket> = (0..MANY).map(|_| listener.blocking().accept().unwrap().0).collect();
    let turn = |at: usize| {
        let (socket, token) = (&sockets[at], Token(at as u64));
        socket.recv(&queue, token, vec![0; ROUND], RecvFlags::WAITALL).unwrap();
        socket.send(&queue, token, vec![7; ROUND]).unwrap();
    };
    (0..MANY).for_each(turn);
    let always = Token(MANY as u64);
    let ready = || sockets[0].poll(&queue, always, Interest::WRITABLE).unwrap();
    ready();
    let mut heard = [0; MANY];
    // No connection ends before each has had its rounds; then the bytes on their way come back.
    let (mut lacking, mut away) = (MANY, MANY);
    while away > 0 {
        for event in queue.dequeue(8, Some(LIMIT)).unwrap() {
            assert!(event.error().is_none(), "{event:?}");
            match (event.token(), event.kind()) {
                (token, _) if token == always => ready(),
                (Token(at), EventKind::Recv) => {
                    assert_eq!(event.bytes(), ROUND);
                    let at = usize::try_from(at).unwrap();
                    heard[at] += 1;
                    lacking -= usize::from(heard[at] == ROUNDS);
                    if lacking > 0 { turn(at) } else { away -= 1 }
                }
                _ => {}
            }
        }
    }
    let most = heard.iter().max().unwrap();
    assert!(*most < 40 * ROUNDS, "{heard:?}");
    drop(sockets);
    child.finish();
}
