//! Connections that no program has taken, when their process ends, or when they are the kernel's
//! own: their peers see a reset. And peers that have proved nothing, which keep no others out of a
//! listener's backlog. The contract of sockets has the rest.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use exs::{Completion, EventQueue, KernelSocket, Options, Socket, SocketType, Token, Transport};
use exs_tests::harness::{Ledger, Watchdog, many_files, peer, stream_socket};
use exs_tests::strangers::{self, Stage, Stranger};

/// Not a test in the parent: the part of the other process.
#[test]
fn child() {
    let Some(words) = peer::part() else { return };
    let listener = stream_socket(words[0].parse().unwrap());
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(8).unwrap();
    let queue = EventQueue::new(4).unwrap();
    if words[1] == "event" {
        listener.accept(&queue, Token(1)).unwrap();
    }
    peer::say(&format!("at {}", listener.local_addr().unwrap()));
    peer::listen();
    while words[1] == "event" && queue.is_empty() {
        std::thread::yield_now();
    }
    // exit(3) closes what is open.
    std::process::exit(0);
}

#[test]
fn connections_not_taken_are_reset_when_the_process_ends() {
    let _dog = Watchdog::new("connections_not_taken_are_reset_when_the_process_ends");
    for transport in ["soft", "shm"] {
        for part in ["backlog", "event"] {
            let mut child = peer::Peer::start("child", transport, &[part]);
            let addr: SocketAddr = child.expect("at").parse().unwrap();
            let client = stream_socket(transport.parse().unwrap());
            client.blocking().connect(addr).unwrap();
            child.tell("connected");
            let end = client.blocking().recv(&mut [0; 8]);
            assert_eq!(end.unwrap_err().errno(), libc::ECONNRESET, "{transport} {part}");
            child.finish();
        }
    }
}

#[test]
fn a_kernel_connection_that_no_event_brings_is_reset() {
    let _dog = Watchdog::new("a_kernel_connection_that_no_event_brings_is_reset");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = tcp.local_addr().unwrap();
    let listener = KernelSocket::new(tcp).unwrap();
    let queue = EventQueue::new(4).unwrap();
    listener.accept(&queue, Token(1)).unwrap();
    let mut client = TcpStream::connect(addr).unwrap();
    while queue.is_empty() {
        std::thread::yield_now();
    }
    drop(queue);
    let end = client.read(&mut [0; 8]);
    assert_eq!(end.unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
}

/// A listener whose strangers may take for ever, as far as its options go.
fn patient_listener(transport: Transport, backlog: u32) -> (Socket, SocketAddr) {
    let options = Options::default()
        .with_transport(transport)
        .with_connect_timeout(Duration::from_secs(3600));
    let listener = Socket::with_options(SocketType::Stream, options).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(backlog).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// A caller by shared memory that is accepted and never says READY takes a place in the backlog, as a TCP
/// connection without data does. The connection ends when `connect_timeout` has passed.
#[test]
fn a_caller_that_never_says_ready_is_timed_out() {
    let _dog = Watchdog::new("a_caller_that_never_says_ready_is_timed_out");
    for transport in [Transport::Shm, Transport::Auto] {
        let (listener, addr) = patient_listener(transport, 2);
        let patient = listener.options();
        // The limit is that of the connection alone: its start-up may take as long as it likes.
        let limit = Duration::from_millis(50);
        listener.set_options(&patient.clone().with_connect_timeout(limit)).unwrap();
        let queue = EventQueue::new(4).unwrap();
        listener.accept(&queue, Token(1)).unwrap();
        let stranger = strangers::accepted(addr);
        let Completion::Accept { socket: served, .. } =
            queue.next().unwrap().into_completion().unwrap()
        else {
            panic!("no connection");
        };
        let end = served.blocking().recv(&mut [0; 8]).unwrap_err();
        assert_eq!(end.errno(), libc::ETIMEDOUT, "{transport}");
        while stranger.hear().is_none_or(|said| !said.is_empty()) {
            std::thread::yield_now();
        }
        listener.set_options(&patient).unwrap();
        let honest = stream_socket(transport);
        honest.blocking().connect(addr).unwrap();
        listener.blocking().accept().unwrap();
    }
}

/// Many strangers and many honest peers at once: all of these are served.
#[test]
fn strangers_keep_no_honest_peers_out() {
    const STRANGERS: usize = 160;
    const HONEST: usize = 193;
    type Road = fn(SocketAddr, Stage) -> Stranger;
    let _dog = Watchdog::new("strangers_keep_no_honest_peers_out");
    many_files();
    let (tcp, shm) = (Stranger::by_tcp as Road, Stranger::by_shm as Road);
    for (transport, roads) in
        [(Transport::Soft, &[tcp][..]), (Transport::Shm, &[shm]), (Transport::Auto, &[tcp, shm])]
    {
        let (listener, addr) = patient_listener(transport, 128);
        let stages = [Stage::Half, Stage::Connected, Stage::Asked, Stage::Asked];
        let strangers: Vec<Stranger> = (0..STRANGERS)
            .flat_map(|i| roads.iter().map(move |road| road(addr, stages[(i % 16).min(3)])))
            .collect();
        let clients: Vec<Socket> = (0..HONEST).map(|_| stream_socket(transport)).collect();
        let mut ledger = Ledger::new();
        for client in &clients {
            ledger.post("connect", |q, t| client.connect(q, t, addr));
        }
        for _ in &clients {
            let (served, _) = listener.blocking().accept().unwrap();
            served.blocking().send(b"served").unwrap();
        }
        for event in ledger.drain() {
            assert!(event.error().is_none(), "{transport}: {event:?}");
        }
        for client in &clients {
            let mut got = [0; 6];
            client.blocking().recv_exact(&mut got).unwrap();
            assert_eq!(got, *b"served", "{transport}");
        }
        drop(strangers);
    }
}
