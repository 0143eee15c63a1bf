//! Processes that have no descriptors left: what connecting says, and what becomes of callers.
//!
//! A child plays the process whose limit (RLIMIT_NOFILE) is reached. Connects have an hour: the
//! watchdog ends a connect that waits where it must fail.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::time::Duration;

use exs::{Options, Socket, SocketType, Transport};
use exs_tests::harness::{Starved, Watchdog, peer};

const TRANSPORTS: [Transport; 3] = [Transport::Auto, Transport::Soft, Transport::Shm];
/// More than any connect takes.
const MOST_SPARE: usize = 12;

fn options(transport: Transport) -> Options {
    Options::default().with_transport(transport).with_connect_timeout(Duration::from_secs(3600))
}

fn socket(transport: Transport) -> Socket {
    Socket::with_options(SocketType::Stream, options(transport)).unwrap()
}

fn listener(transport: Transport) -> (Socket, SocketAddr) {
    let listener = socket(transport);
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(64).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// Not a test in the parent: the part of the other process.
#[test]
fn child() {
    let Some(words) = peer::part() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["connect", transport, addr] => {
            let transport = transport.parse().unwrap();
            let _kept = connect_with_few(transport, addr.parse().unwrap(), false);
            connect_to_unused_port_with_few(transport);
            peer::say("done");
        }
        ["alone", transport] => alone(transport.parse().unwrap()),
        ["serve", transport] => serve(transport.parse().unwrap()),
        ["begin", transport] => begin(transport.parse().unwrap()),
        _ => panic!("no such part: {words:?}"),
    }
}

/// Connects with few descriptors, and fewer: each connect succeeds, or says at once what is
/// lacking; and with descriptors the very same socket connects. `listens`: other threads of this process
/// may close connections of earlier attempts, and free descriptors. Returns the sockets: one that is closed
/// gives its descriptors back at some moment.
fn connect_with_few(transport: Transport, addr: SocketAddr, listens: bool) -> Vec<Socket> {
    // Threads' and queues' own descriptors are there before.
    let first = socket(transport);
    first.blocking().connect(addr).unwrap();
    let mut kept = vec![first];
    for spare in (0..=MOST_SPARE).rev() {
        let client = socket(transport);
        let starved = Starved::new(spare);
        let result = client.blocking().connect(addr);
        drop(starved);
        match result {
            Ok(()) => assert!(spare > 0 || listens, "{transport}: connected without a descriptor"),
            Err(e) => {
                assert_eq!(e.errno(), libc::EMFILE, "{transport}, {spare} descriptors: {e}");
                assert!(spare < MOST_SPARE, "{transport}: {spare} descriptors are enough");
                client.blocking().connect(addr).unwrap();
            }
        }
        kept.push(client);
    }
    kept
}

/// Connects with few descriptors to a port where nothing listens. No other thread of this process opens
/// descriptors, so the error depends on their number alone.
fn connect_to_unused_port_with_few(transport: Transport) {
    // The last transport's error about the peer would not explain that this process lacks descriptors.
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut kept = Vec::new();
    for spare in 0..4 {
        let client = socket(transport);
        let starved = Starved::new(spare);
        let error = client.blocking().connect(unused).unwrap_err();
        drop(starved);
        let needs = if transport == Transport::Soft { 1 } else { 2 };
        let wanted = if spare < needs { libc::EMFILE } else { libc::ECONNREFUSED };
        assert_eq!(error.errno(), wanted, "{transport}, {spare} descriptors: {error}");
        kept.push(client);
    }
}

/// The same towards a listener of the same process, which lacks them too.
fn alone(transport: Transport) {
    let (listener, addr) = listener(transport);
    let (tell, told) = mpsc::channel();
    let accepting = std::thread::spawn(move || {
        let accepted = std::iter::from_fn(|| {
            let accepted = listener.blocking().accept().unwrap();
            tell.send(()).ok().map(|()| accepted)
        });
        accepted.collect::<Vec<_>>()
    });
    let first = socket(transport);
    first.blocking().connect(addr).unwrap();
    // The descriptors with which the thread waits are there before.
    told.recv().unwrap();
    let _kept = connect_with_few(transport, addr, true);
    assert!(!accepting.is_finished(), "the listener goes on");
    peer::say("done");
}

/// A listener without descriptors: a caller waits, and is served once there are some.
fn serve(transport: Transport) {
    let (listener, addr) = listener(transport);
    let warm = socket(transport);
    warm.blocking().connect(addr).unwrap();
    let mut kept = vec![listener.blocking().accept().unwrap().0, warm];
    peer::say(&format!("at {addr}"));
    for spare in [0, 1, 2, 3] {
        let starved = Starved::new(spare);
        peer::say("starved");
        assert_eq!(peer::listen().as_deref(), Some("calling"));
        let runs = exs::counters().unwrap().engine_runs;
        // sleep-ok: that nothing spins, and that no caller is dropped, shows only while time passes.
        std::thread::sleep(Duration::from_millis(80));
        let runs = exs::counters().unwrap().engine_runs - runs;
        assert!(runs < 10_000, "{transport}: the starved listener spins: {runs} turns");
        drop(starved);
        let (socket, _) = listener.blocking().accept().unwrap();
        socket.blocking().send_all(b"!").unwrap();
        assert_eq!(peer::listen().as_deref(), Some("served"));
        kept.push(socket);
    }
    peer::say("done");
}

/// A first use without free descriptors says so, and works once there are some.
fn begin(transport: Transport) {
    let starved = Starved::new(0);
    assert_eq!(Socket::stream().unwrap_err().errno(), libc::EMFILE);
    assert_eq!(exs::EventQueue::new(4).unwrap_err().errno(), libc::EMFILE);
    drop(starved);
    let listener = socket(transport);
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let starved = Starved::new(0);
    assert_eq!(listener.bind(any).unwrap_err().errno(), libc::EMFILE);
    drop(starved);
    listener.bind(any).unwrap();
    let starved = Starved::new(0);
    // The descriptor that kept the port is enough for one road, and the others need one more.
    let listening = listener.listen(4);
    drop(starved);
    if transport == Transport::Soft {
        listening.unwrap();
    } else {
        assert_eq!(listening.unwrap_err().errno(), libc::EMFILE);
        listener.listen(4).unwrap();
    }
    let client = socket(transport);
    client.blocking().connect(listener.local_addr().unwrap()).unwrap();
    listener.blocking().accept().unwrap();
    peer::say("done");
}

fn child_of(part: &str, transport: Transport, more: &[&str]) -> peer::Peer {
    let name = transport.to_string();
    let words: Vec<&str> = std::iter::once(name.as_str()).chain(more.iter().copied()).collect();
    peer::Peer::start("child", part, &words)
}

#[test]
fn a_connect_without_descriptors_says_so() {
    let _dog = Watchdog::new("a_connect_without_descriptors_says_so");
    for transport in TRANSPORTS {
        let (_listener, addr) = listener(transport);
        let child = child_of("connect", transport, &[&addr.to_string()]);
        child.expect("done");
        child.finish();
    }
}

#[test]
fn a_process_without_descriptors_cannot_call_itself() {
    let _dog = Watchdog::new("a_process_without_descriptors_cannot_call_itself");
    for transport in TRANSPORTS {
        let child = child_of("alone", transport, &[]);
        child.expect("done");
        child.finish();
    }
}

#[test]
fn a_listener_without_descriptors_loses_no_caller() {
    let _dog = Watchdog::new("a_listener_without_descriptors_loses_no_caller");
    for transport in TRANSPORTS {
        let mut child = child_of("serve", transport, &[]);
        let addr: SocketAddr = child.expect("at").parse().unwrap();
        let mut kept = Vec::new();
        for _ in 0..4 {
            child.expect("starved");
            let client = socket(transport);
            let queue = exs::EventQueue::new(4).unwrap();
            client.connect(&queue, exs::Token(1), addr).unwrap();
            child.tell("calling");
            queue.next().unwrap().into_result().unwrap();
            let mut byte = [0];
            client.blocking().recv_exact(&mut byte).unwrap();
            child.tell("served");
            kept.push(client);
        }
        child.expect("done");
        child.finish();
    }
}

#[test]
fn a_process_begins_without_descriptors() {
    let _dog = Watchdog::new("a_process_begins_without_descriptors");
    for transport in TRANSPORTS {
        let child = child_of("begin", transport, &[]);
        child.expect("done");
        child.finish();
    }
}
