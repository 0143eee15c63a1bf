//! Connections: made, refused, and asked for by strangers.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use exs::{Error, Event, EventKind, Interest, RecvFlags, Socket, SocketType, ToHost};

use crate::harness::{Env, LIMIT, Ledger, accepted, many_files};
use crate::skip::skip;

const BOTH: [SocketType; 2] = [SocketType::Stream, SocketType::SeqPacket];

/// Connects and expects a failure.
fn failure(client: &Socket, addr: SocketAddr) -> Error {
    let mut ledger = Ledger::new();
    let token = ledger.post("connect", |q, t| client.connect(q, t, addr));
    let event = ledger.wait(token);
    assert_eq!(event.kind(), EventKind::Connect);
    ledger.finish();
    event.into_result().expect_err("no listener could take the connection")
}

/// Bytes there and back.
fn echo(client: &Socket, server: &Socket) {
    let (client, server) = (client.blocking(), server.blocking());
    let mut got = [0; 64];
    client.send_all(b"there").unwrap();
    assert_eq!(server.recv(&mut got).unwrap(), 5);
    assert_eq!(&got[..5], b"there");
    server.send_all(b"and back").unwrap();
    assert_eq!(client.recv(&mut got).unwrap(), 8);
    assert_eq!(&got[..8], b"and back");
}

/// Both ends know both addresses, and the events say what they are of.
pub fn addresses_are_those_of_the_connection(env: &Env) {
    for ty in BOTH {
        let (listener, addr) = env.listener(ty);
        let client = env.socket(ty);
        assert_eq!(client.peer_addr().unwrap_err().errno(), libc::ENOTCONN);
        let mut ledger = Ledger::new();
        let accept = ledger.post("accept", |q, t| listener.accept(q, t));
        let connect = ledger.post("connect", |q, t| client.connect(q, t, addr));
        assert_eq!(ledger.wait_ok(connect).kind(), EventKind::Connect);
        let event = ledger.wait_ok(accept);
        assert_eq!(event.kind(), EventKind::Accept);
        let (server, peer) = accepted(event).unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        assert_eq!(server.peer_addr().unwrap(), peer);
        assert_eq!(server.local_addr().unwrap(), addr);
        assert_eq!(client.peer_addr().unwrap(), addr);
        echo(&client, &server);
        ledger.finish();
    }
}

/// The client makes no call after its connect, so READY must leave without one.
pub fn the_server_may_speak_first(env: &Env) {
    for ty in BOTH {
        let (listener, addr) = env.listener(ty);
        let (spoken, heard) = std::sync::mpsc::channel();
        std::thread::scope(|threads| {
            let client = threads.spawn(move || {
                let client = env.socket(ty);
                client.blocking().connect(addr).unwrap();
                let spoke = heard.recv_timeout(LIMIT);
                let mut got = [0; 5];
                client.blocking().recv(&mut got).unwrap();
                (spoke, got)
            });
            let (server, _) = listener.blocking().accept().unwrap();
            server.blocking().send_all(b"first").unwrap();
            spoken.send(()).unwrap();
            assert_eq!(
                client.join().unwrap(),
                (Ok(()), *b"first"),
                "the send has waited for a call"
            );
        });
    }
}

/// The client's address is the one it was bound to.
pub fn a_client_may_be_bound(env: &Env) {
    let (listener, addr) = env.listener(SocketType::Stream);
    let client = env.socket(SocketType::Stream);
    client.bind(env.any()).unwrap();
    assert!(client.bind(env.any()).is_err(), "twice");
    client.blocking().connect(addr).unwrap();
    let (server, peer) = listener.blocking().accept().unwrap();
    assert_eq!(peer.ip(), addr.ip());
    echo(&client, &server);
}

/// ECONNREFUSED; and the same socket connects elsewhere afterwards.
pub fn where_nothing_listens_is_refused(env: &Env) {
    for ty in BOTH {
        let unused = TcpListener::bind(env.any()).unwrap().local_addr().unwrap();
        let client = env.socket(ty);
        let error = failure(&client, unused);
        assert_eq!(error.errno(), libc::ECONNREFUSED, "{error}");
        assert!(error.to_string().contains(&unused.to_string()), "{error}");
        let (listener, addr) = env.listener(ty);
        client.blocking().connect(addr).unwrap();
        let (server, _) = listener.blocking().accept().unwrap();
        echo(&client, &server);
    }
}

/// Of several addresses the first that answers is taken, also where the ones before fail at
/// once (a stream to a broadcast address).
pub fn the_first_address_that_answers(env: &Env) {
    let (listener, addr) = env.listener(SocketType::Stream);
    let unused = TcpListener::bind(env.any()).unwrap().local_addr().unwrap();
    let broadcast = SocketAddr::from(([255; 4], 1));
    let from = if env.dials_by_tcp() && addr.is_ipv4() { 0 } else { 1 };
    let client = env.socket(SocketType::Stream);
    client.blocking().connect(&[broadcast, unused, addr][from..]).unwrap();
    echo(&client, &listener.blocking().accept().unwrap().0);
    let again = client.blocking().connect(&[addr, addr][..]).unwrap_err();
    assert_eq!(again.errno(), libc::EISCONN, "{again}");
}

/// What names one address is that address, and needs no resolver.
pub fn a_host_is_text_or_addresses(env: &Env) {
    let (listener, addr) = env.listener(SocketType::Stream);
    let (ip, port) = (addr.ip().to_string(), addr.port());
    let hosts = [
        addr.to_string().to_host(),
        (ip.as_str(), port).to_host(),
        (ip.clone(), port).to_host(),
        [addr].to_host(),
    ];
    for host in hosts {
        let client = env.socket(SocketType::Stream);
        let mut ledger = Ledger::new();
        let token = ledger.post("connect", |q, t| client.connect_host(q, t, host.clone()?));
        assert_eq!(ledger.wait_ok(token).kind(), EventKind::Connect);
        ledger.finish();
        echo(&client, &listener.blocking().accept().unwrap().0);
        assert_eq!(client.peer_addr().unwrap(), addr);
    }
    let error = env.socket(SocketType::Stream).blocking().connect("no-port").unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    let error = env.socket(SocketType::Stream).blocking().connect("[fe80::1]:1").unwrap_err();
    assert!(error.to_string().contains("%eth0"), "{error}");
}

/// Where no address answers, one error has the reason at each. The socket connects elsewhere
/// afterwards.
pub fn the_error_of_a_host_names_each_address(env: &Env) {
    let unused = || TcpListener::bind(env.any()).unwrap();
    let held = [unused(), unused(), unused()];
    let addrs: Vec<SocketAddr> = held.iter().map(|l| l.local_addr().unwrap()).collect();
    drop(held);
    let client = env.socket(SocketType::Stream);
    let error = client.blocking().connect(&addrs).unwrap_err();
    assert_eq!(error.errno(), libc::ECONNREFUSED, "{error}");
    let Error::ConnectHost { tried, untried, .. } = &error else { panic!("{error:?}") };
    assert_eq!(tried.iter().map(|(addr, _)| *addr).collect::<Vec<_>>(), addrs);
    assert!(untried.is_empty(), "{error}");
    for addr in &addrs {
        assert!(error.to_string().contains(&addr.to_string()), "{error}");
    }
    let none = client.blocking().connect(Vec::<SocketAddr>::new()).unwrap_err();
    assert!(none.to_string().contains("no address"), "{none}");
    let (listener, addr) = env.listener(SocketType::Stream);
    client.blocking().connect([addrs[0], addr].to_host().unwrap()).unwrap();
    echo(&client, &listener.blocking().accept().unwrap().0);
}

/// A listener that is closed takes no more, and its pending accepts are cancelled.
pub fn a_closed_listener_refuses(env: &Env) {
    let (listener, addr) = env.listener(SocketType::Stream);
    let mut ledger = Ledger::new();
    let accepts: Vec<_> =
        (0..3).map(|_| ledger.post("accept", |q, t| listener.accept(q, t))).collect();
    listener.blocking().close().unwrap();
    for token in accepts {
        assert!(ledger.wait(token).error().unwrap().is_cancelled());
    }
    assert!(listener.accept(ledger.queue(), exs::Token(99)).is_err(), "it is closed");
    assert_eq!(failure(&env.socket(SocketType::Stream), addr).errno(), libc::ECONNREFUSED);
    ledger.finish();
}

/// A listener that is dropped takes no more either, and its address is free.
pub fn a_dropped_listener_refuses(env: &Env) {
    let (listener, addr) = env.listener(SocketType::Stream);
    drop(listener);
    assert_eq!(failure(&env.socket(SocketType::Stream), addr).errno(), libc::ECONNREFUSED);
    let again = env.server(SocketType::Stream);
    again.bind(addr).and_then(|()| again.listen(1)).unwrap();
}

/// Two listeners cannot have one address.
pub fn an_address_in_use_is_refused(env: &Env) {
    let (_listener, addr) = env.listener(SocketType::Stream);
    let other = env.server(SocketType::Stream);
    // One of the two says it: bind does where the port is TCP's.
    let error = other.bind(addr).and_then(|()| other.listen(1)).unwrap_err();
    assert_eq!(error.errno(), libc::EADDRINUSE, "{error}");
}

/// A stream socket and a seqpacket socket do not connect; the listener is none the worse.
pub fn kinds_must_match(env: &Env) {
    for (ours, theirs) in [(BOTH[0], BOTH[1]), (BOTH[1], BOTH[0])] {
        let (listener, addr) = env.listener(theirs);
        let error = failure(&env.socket(ours), addr);
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert!(error.to_string().contains("SEQPACKET"), "{error}");
        let (client, server) = env.join(theirs, &listener);
        echo(&client, &server);
    }
}

/// A server that speaks something else: an error, not a hang.
pub fn a_server_of_another_protocol_is_an_error(env: &Env) {
    if !env.dials_by_tcp() {
        return skip("there is no server beside RDMA's that this device could call");
    }
    for answer in [&b"220 mail.example.org ESMTP\r\n"[..], &[0xff; 4096], b""] {
        let tcp = TcpListener::bind(env.any()).unwrap();
        let addr = tcp.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = tcp.accept().unwrap();
            // The client may hang up at the first bytes.
            let _ = stream.write_all(answer);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let error = failure(&env.socket(SocketType::Stream), addr);
        assert_ne!(error.errno(), libc::ETIMEDOUT, "{error}");
        server.join().unwrap();
    }
}

/// A server that says nothing: the time limit ends it.
pub fn a_silent_server_times_out(env: &Env) {
    let (_silent, addr) = env.silent();
    let limit = Duration::from_millis(300);
    let client = env.with(|o| o.connect_timeout = limit).socket(SocketType::Stream);
    let begun = Instant::now();
    let error = failure(&client, addr);
    assert_eq!(error.errno(), libc::ETIMEDOUT, "{error}");
    assert!(begun.elapsed() >= limit, "too early: {:?}", begun.elapsed());
}

/// Strangers that send garbage, send nothing, or hang up at once do not keep callers out.
pub fn strangers_do_not_disturb(env: &Env) {
    if !env.answers_by_tcp() {
        return skip("strangers do not get past the kernel or the device");
    }
    let (listener, addr) = env.listener_with(SocketType::Stream, 2);
    let mut ledger = Ledger::new();
    let accept = ledger.post("accept", |q, t| listener.accept(q, t));
    let silent: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(addr).unwrap()).collect();
    for _ in 0..8 {
        let mut stranger = TcpStream::connect(addr).unwrap();
        // We may be hung up on at the first bytes.
        let _ = stranger.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        drop(TcpStream::connect(addr).unwrap());
        stranger.set_read_timeout(Some(LIMIT)).unwrap();
        let end = stranger.read_to_end(&mut Vec::new());
        assert!(
            end.is_ok() || end.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
            "garbage is hung up on: {end:?}"
        );
    }
    let client = env.socket(SocketType::Stream);
    client.blocking().connect(addr).unwrap();
    let (server, peer) = accepted(ledger.wait_ok(accept)).unwrap();
    assert_eq!(peer, client.local_addr().unwrap(), "a stranger was accepted");
    echo(&client, &server);
    drop(silent);
    ledger.finish();
}

/// One thread, blocking calls: connect ends before anybody accepts.
pub fn a_thread_connects_to_itself(env: &Env) {
    for ty in BOTH {
        let (listener, addr) = env.listener(ty);
        let client = env.socket(ty);
        client.blocking().connect(addr).unwrap();
        client.blocking().send_all(b"before accept").unwrap();
        let (server, _) = listener.blocking().accept().unwrap();
        let mut got = [0; 64];
        assert_eq!(server.blocking().recv(&mut got).unwrap(), 13);
        echo(&client, &server);
    }
}

/// A listener polls readable when a caller waits to be accepted.
pub fn poll_reports_connections(env: &Env) {
    let (listener, addr) = env.listener(SocketType::Stream);
    let now = Some(Duration::ZERO);
    assert_eq!(listener.blocking().poll(Interest::READABLE, now).unwrap(), None);
    let mut ledger = Ledger::new();
    let poll = ledger.post("poll", |q, t| listener.poll(q, t, Interest::READABLE));
    let client = env.socket(SocketType::Stream);
    client.blocking().connect(addr).unwrap();
    assert!(ledger.wait_ok(poll).readiness().readable);
    let (server, _) = listener.blocking().accept().unwrap();
    echo(&client, &server);
    ledger.finish();
}

/// A connect that is aborted ends at once, and a poll ends with a connect that fails.
pub fn an_aborted_connect_ends(env: &Env) {
    let (_silent, addr) = env.silent();
    let client = env.socket(SocketType::Stream);
    let mut ledger = Ledger::new();
    let connect = ledger.post("connect", |q, t| client.connect(q, t, addr));
    let poll = ledger.post("poll", |q, t| client.poll(q, t, Interest::WRITABLE));
    client.abort();
    let event = ledger.wait(connect);
    assert_eq!(event.error().map(exs::Error::errno), Some(libc::ECONNABORTED), "{event:?}");
    assert!(ledger.wait_ok(poll).readiness().error);
    // As after any other failure it may be tried again.
    let (listener, addr) = env.listener(SocketType::Stream);
    client.blocking().connect(addr).unwrap();
    let (server, _) = listener.blocking().accept().unwrap();
    echo(&client, &server);
    ledger.finish();
}

/// Calls that the state of the socket forbids are refused, with an errno that fits.
pub fn calls_out_of_turn_are_refused(env: &Env) {
    let mut ledger = Ledger::new();
    let fresh = env.socket(SocketType::Stream);
    let refused = ledger.try_post("send", |q, t| fresh.send(q, t, *b"too early")).unwrap_err();
    assert_eq!(refused.error.errno(), libc::ENOTCONN);
    assert_eq!(&refused.buffer[..], b"too early", "a refused buffer comes back as it was");
    assert!(ledger.try_post("accept", |q, t| fresh.accept(q, t)).is_err());
    let (client, server) = env.streams();
    let addr = server.local_addr().unwrap();
    let again = ledger.try_post("connect", |q, t| client.connect(q, t, addr)).unwrap_err();
    assert_eq!(again.errno(), libc::EISCONN);
    assert!(client.listen(1).is_err());
    client.blocking().close().unwrap();
    for refused in [
        ledger.try_post("close", |q, t| client.close(q, t)).unwrap_err(),
        ledger
            .try_post("shutdown", |q, t| client.shutdown(q, t, std::net::Shutdown::Both))
            .unwrap_err(),
        ledger
            .try_post("recv", |q, t| client.recv(q, t, vec![0; 8], RecvFlags::NONE))
            .unwrap_err()
            .error,
    ] {
        assert_ne!(refused.errno(), libc::EAGAIN, "{refused}");
    }
    ledger.finish();
}

/// Five hundred at once, all of them used.
pub fn five_hundred_at_once(env: &Env) {
    const MANY: usize = 500;
    assert!(many_files() > 2 * MANY as u64 + 100, "this test needs more open files");
    let (listener, addr) = env.listener_with(SocketType::Stream, 64);
    let mut ledger = Ledger::new();
    let clients: Vec<Socket> = (0..MANY).map(|_| env.socket(SocketType::Stream)).collect();
    for client in &clients {
        ledger.post("accept", |q, t| listener.accept(q, t));
        ledger.post("connect", |q, t| client.connect(q, t, addr));
    }
    // Each event is looked at when it comes: the accept of a connect that has failed would not come.
    let events: Vec<Event> = (0..2 * MANY).map(|_| ledger.ok()).collect();
    let servers: Vec<_> = events.into_iter().filter_map(accepted).collect();
    assert_eq!(servers.len(), MANY);
    for client in &clients {
        let name = client.local_addr().unwrap().to_string();
        ledger.post("send", |q, t| client.send(q, t, name.clone()));
    }
    for (server, peer) in &servers {
        let mut name = vec![0; peer.to_string().len()];
        server.blocking().recv_exact(&mut name).unwrap();
        assert_eq!(String::from_utf8(name).unwrap(), peer.to_string());
    }
    ledger.finish();
}
