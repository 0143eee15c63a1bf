//! Shared memory between real processes: when it is chosen, whom it trusts, and what it
//! does where the system forbids it to look at the peer's memory.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use exs::{EventKind, MemoryRegion, Options, RecvFlags, Socket, Token, Transport, WaitPolicy};
use exs_tests::harness::{LIMIT, Ledger, Rng, Watchdog, check, pattern, peer, stream_socket};
use exs_tests::skip::skip;
use nix::sys::prctl::set_dumpable;
use nix::unistd::{Uid, geteuid, setuid};

/// Bytes of a large message. Each side sends two of them, and some small ones.
const LARGE: usize = 3 << 20;

fn options(transport: Transport) -> Options {
    Options::default().with_transport(transport)
}

fn listener(transport: Transport, at: &str) -> (Socket, SocketAddr) {
    let listener = stream_socket(transport);
    listener.bind(at.parse().unwrap()).unwrap();
    listener.listen(8).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// As [`listener`], where one was a moment ago: a process that another test starts has a
/// copy of its descriptor until it executes its program.
fn listener_again(transport: Transport, at: SocketAddr) -> (Socket, SocketAddr) {
    let again = stream_socket(transport);
    let begun = std::time::Instant::now();
    while let Err(e) = again.bind(at) {
        assert!(e.errno() == libc::EADDRINUSE && begun.elapsed() < LIMIT, "{e}");
        std::thread::yield_now();
    }
    while let Err(e) = again.listen(8) {
        assert!(e.errno() == libc::EADDRINUSE && begun.elapsed() < LIMIT, "{e}");
        std::thread::yield_now();
    }
    (again, at)
}

fn name(socket: &Socket) -> String {
    socket.transport().expect("it is connected").to_string()
}

/// Connects and accepts: both ends.
fn join(client: Socket, listener: &Socket, addr: SocketAddr) -> (Socket, Socket) {
    client.blocking().connect(addr).unwrap();
    let (server, _) = listener.blocking().accept().unwrap();
    (client, server)
}

/// Sends and receives (both sides send the same) at the same time, from registered memory and from vectors.
fn exchange(socket: &Socket, seed: u64) {
    let region = MemoryRegion::new(LARGE).unwrap();
    for round in 0..4 {
        let len = if round < 2 { LARGE } else { 100 };
        let mut ledger = Ledger::new();
        let recv = ledger.post("recv", |q, t| socket.recv(q, t, vec![0; len], RecvFlags::WAITALL));
        let bytes = pattern(seed + round, 0, len);
        if round % 2 == 0 {
            ledger.post("send", |q, t| socket.send(q, t, bytes));
        } else {
            let mut buffer = region.buffer(..len).unwrap();
            buffer.copy_from_slice(&bytes);
            ledger.post("send", |q, t| socket.send(q, t, buffer));
        }
        let got = ledger.wait_ok(recv).into_buffer().unwrap();
        check(seed + round, 0, &got);
        ledger.finish();
    }
}

/// Not a test in the parent: the part of the other process.
#[test]
fn child() {
    let Some(words) = peer::part() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let _dog = Watchdog::new(&format!("the child {words:?}"));
    let [part, user, secret, addr] = words[..] else { panic!("{words:?}") };
    if user == "other" {
        setuid(Uid::from_raw(65534)).unwrap();
    }
    // A process that has become another user may not be looked at by default.
    set_dumpable(secret == "open").unwrap();
    if part == "squat" {
        let name = format!("exs/1/tcp4/{addr}");
        let _held = exs::sys::listen_abstract(name.as_bytes(), 8).unwrap();
        peer::say("squatting");
        peer::listen();
        return;
    }
    let socket = if part == "listen" {
        let (listener, addr) = listener(Transport::Auto, "127.0.0.1:0");
        peer::say(&format!("at {addr}"));
        listener.blocking().accept().unwrap().0
    } else {
        let socket = stream_socket(Transport::Auto);
        socket.blocking().connect(addr).unwrap();
        socket
    };
    exchange(&socket, 100);
    peer::say(&name(&socket));
    peer::listen();
    set_dumpable(false).unwrap();
    exchange(&socket, 100);
    peer::listen();
}

fn start(part: &str, user: &str, secret: &str, addr: &str) -> peer::Peer {
    peer::Peer::start("child", part, &[user, secret, addr])
}

/// Two processes that may look at each other, two that may not, and a process that forbids it while
/// it is connected: nothing is lost, whichever road the bytes take.
#[test]
fn between_processes() {
    let _dog = Watchdog::new("between_processes");
    // Root may look at every process: so the children run as another user (65534), if this is root.
    let user = if geteuid().is_root() { "other" } else { "same" };
    for (one, other) in
        [("open", "open"), ("secret", "open"), ("open", "secret"), ("secret", "secret")]
    {
        let mut server = start("listen", user, one, "-");
        let addr = server.expect("at");
        let mut client = start("connect", user, other, &addr);
        assert_eq!((server.hear().as_str(), client.hear().as_str()), ("shm", "shm"));
        for child in [&mut server, &mut client] {
            child.tell("now forbid it");
        }
        for child in [&mut server, &mut client] {
            child.tell("end");
        }
        server.finish();
        client.finish();
    }
}

/// A peer of another user: the rings, and nothing else.
#[test]
fn a_peer_of_another_user() {
    let _dog = Watchdog::new("a_peer_of_another_user");
    if !geteuid().is_root() {
        return skip("only root can become another user");
    }
    let (listener, addr) = listener(Transport::Auto, "127.0.0.1:0");
    let mut client = start("connect", "other", "open", &addr.to_string());
    let (server, _) = listener.blocking().accept().unwrap();
    exchange(&server, 100);
    assert_eq!((name(&server).as_str(), client.hear().as_str()), ("shm", "shm"));
    client.tell("again");
    exchange(&server, 100);
    drop(server);
    client.tell("end");
    client.finish();
    // The other way: whose port it is, the kernel says.
    let mut child = start("listen", "other", "open", "-");
    let addr: SocketAddr = child.expect("at").parse().unwrap();
    let client = stream_socket(Transport::Auto);
    client.blocking().connect(addr).unwrap();
    exchange(&client, 100);
    let by = client.transport().unwrap();
    let diag = !by.reason.contains("is not the one who has the TCP port");
    assert!(by.to_string() == "shm" || !diag, "{by}: {}", by.reason);
    child.hear();
    child.tell("again");
    exchange(&client, 100);
    child.tell("end");
    child.finish();
}

/// A name that another user has bound, beside a TCP listener that is not that user's, is refused.
#[test]
fn a_squatter_is_not_the_listener() {
    let _dog = Watchdog::new("a_squatter_is_not_the_listener");
    if !geteuid().is_root() {
        return skip("only root can become another user");
    }
    // Held, so that no other program takes the port between its two listeners.
    let ip = "127.0.0.1".parse().unwrap();
    let (_held, port) = exs::sys::reserve_port(SocketAddr::new(ip, 0)).unwrap();
    let at = SocketAddr::new(ip, port).to_string();
    let (soft, addr) = listener(Transport::Soft, &at);
    let mut squatter = start("squat", "other", "open", &addr.to_string());
    squatter.expect("squatting");
    let (client, _server) = join(stream_socket(Transport::Auto), &soft, addr);
    assert_eq!(name(&client), "soft");
    let why = client.transport().unwrap().reason;
    assert!(why.contains("the user who listens there"), "{why}");
    let error = stream_socket(Transport::Shm).blocking().connect(addr).unwrap_err();
    assert_eq!(error.errno(), libc::EACCES, "{error}");
    // A listener whose name is taken goes on by TCP.
    soft.blocking().close().unwrap();
    let (both, _) = listener_again(Transport::Auto, addr);
    let (client, _server) = join(stream_socket(Transport::Auto), &both, addr);
    assert_eq!(name(&client), "soft");
    squatter.tell("end");
    squatter.finish();
}

#[test]
fn shm_is_chosen_on_one_host() {
    let _dog = Watchdog::new("shm_is_chosen_on_one_host");
    for (at, to) in [
        ("127.0.0.1:0", "127.0.0.1"),
        ("0.0.0.0:0", "127.0.0.1"),
        ("0.0.0.0:0", "127.0.0.2"),
        ("[::]:0", "127.0.0.1"),
        ("[::]:0", "::1"),
        ("[::1]:0", "::1"),
    ] {
        let (listener, addr) = listener(Transport::Auto, at);
        let addr = SocketAddr::new(to.parse().unwrap(), addr.port());
        let (client, server) = join(stream_socket(Transport::Auto), &listener, addr);
        assert_eq!((name(&client).as_str(), name(&server).as_str()), ("shm", "shm"), "{at} {to}");
        assert!(client.transport().unwrap().reason.starts_with("the peer is on this host"));
        assert_eq!(client.peer_addr().unwrap(), addr);
        // The same listener takes callers that come by TCP.
        let (client, server) = join(stream_socket(Transport::Soft), &listener, addr);
        assert_eq!((name(&client).as_str(), name(&server).as_str()), ("soft", "soft"));
    }
}

#[test]
fn pinned_means_nothing_else() {
    let _dog = Watchdog::new("pinned_means_nothing_else");
    let (only, addr) = listener(Transport::Shm, "127.0.0.1:0");
    let refused = stream_socket(Transport::Soft).blocking().connect(addr).unwrap_err();
    assert_eq!(refused.errno(), libc::ECONNREFUSED, "{refused}");
    assert!(TcpListener::bind(addr).is_err(), "the port is taken");
    let (client, _server) = join(stream_socket(Transport::Shm), &only, addr);
    assert_eq!(
        (name(&client).as_str(), client.transport().unwrap().reason.as_str()),
        ("shm", "it was asked for")
    );
    let (soft, addr) = listener(Transport::Soft, "127.0.0.1:0");
    let refused = stream_socket(Transport::Shm).blocking().connect(addr).unwrap_err();
    assert_eq!(refused.errno(), libc::ECONNREFUSED, "{refused}");
    let (client, _server) = join(stream_socket(Transport::Auto), &soft, addr);
    assert_eq!(name(&client), "soft");
    let elsewhere: SocketAddr = "192.0.2.1:7471".parse().unwrap();
    let error = stream_socket(Transport::Shm).blocking().connect(elsewhere).unwrap_err();
    assert_eq!(error.errno(), libc::EHOSTUNREACH, "{error}");
    assert!(error.to_string().contains("shared memory reaches this host only"), "{error}");
    let ways = exs::explain(elsewhere, &options(Transport::Auto)).unwrap();
    let shm = ways.iter().find(|w| w.transport == Transport::Shm).unwrap();
    assert!(!shm.usable && shm.reason.contains("this host only"), "{shm:?}");
    let here = exs::explain(addr, &options(Transport::Auto)).unwrap();
    let order: Vec<_> = here.iter().filter(|w| w.usable).map(|w| w.transport).collect();
    assert!(order.ends_with(&[Transport::Shm, Transport::Soft]), "{order:?}");
}

/// Another network namespace is another world, of TCP ports and of names.
#[test]
fn another_network_namespace_has_names_of_its_own() {
    let _dog = Watchdog::new("another_network_namespace_has_names_of_its_own");
    let (_listener, addr) = listener(Transport::Auto, "127.0.0.1:0");
    let up = "ip link set lo up && exec \"$0\" \"$@\"";
    let can = Command::new("unshare").args(["-rn", "sh", "-c", up, "true"]).status();
    if !can.is_ok_and(|s| s.success()) {
        return skip("there are no network namespaces here");
    }
    let mut there = peer::Peer::start_by(
        &["unshare", "-rn", "sh", "-c", up],
        "stranger",
        &addr.to_string(),
        &[],
    );
    assert_eq!(there.hear(), "refused");
    there.tell("end");
    there.finish();
}

/// Not a test in the parent: a process elsewhere, which finds no listener.
#[test]
fn stranger() {
    let Some(words) = peer::part() else { return };
    let error = stream_socket(Transport::Shm).blocking().connect(words[0].as_str()).unwrap_err();
    assert_eq!(error.errno(), libc::ECONNREFUSED, "{error}");
    peer::say("refused");
    peer::listen();
}

/// How often a child says last words.
const SPEAKERS: usize = 200;

/// Not a test in the parent: a process that says something and cuts the connection.
#[test]
fn speaker() {
    let Some(words) = peer::part() else { return };
    for _ in 0..SPEAKERS {
        let socket = stream_socket(Transport::Shm);
        socket.blocking().connect(words[0].as_str()).unwrap();
        socket.blocking().send_all(b"last words").unwrap();
        socket.abort();
    }
    peer::listen();
}

/// Data sent before the peer cut the connection are received before its end.
#[test]
fn last_words_are_received() {
    let _dog = Watchdog::new("last_words_are_received");
    let (listener, addr) = listener(Transport::Shm, "127.0.0.1:0");
    let mut child = peer::Peer::start("speaker", &addr.to_string(), &[]);
    for n in 0..SPEAKERS {
        let (socket, _) = listener.blocking().accept().unwrap();
        let mut got = [0; 10];
        let heard = socket.blocking().recv_exact(&mut got);
        assert!(heard.is_ok() && got == *b"last words", "of speaker {n}: {heard:?} {got:?}");
    }
    child.tell("end");
    child.finish();
}

/// Nothing in the file system, and nothing left of names and memory after kill -9.
#[test]
fn nothing_remains_of_the_dead() {
    let _dog = Watchdog::new("nothing_remains_of_the_dead");
    let mut child = start("listen", "same", "open", "-");
    let addr: SocketAddr = child.expect("at").parse().unwrap();
    let client = stream_socket(Transport::Shm);
    client.blocking().connect(addr).unwrap();
    child.kill();
    let mut got = [0; 1];
    assert!(client.blocking().recv(&mut got).is_err(), "its end is noticed");
    drop(client);
    // The very address, and so the very name, can be had again.
    let (again, same) = listener(Transport::Shm, &addr.to_string());
    assert_eq!(same, addr);
    let (a, b) = join(stream_socket(Transport::Shm), &again, addr);
    a.blocking().send_all(b"x").unwrap();
    b.blocking().recv_exact(&mut got).unwrap();
    for dir in ["/dev/shm", "/tmp", "/run"] {
        let Ok(entries) = std::fs::read_dir(dir) else { continue };
        let ours = format!("exs-{}", child.pid());
        assert!(entries.flatten().all(|e| !e.file_name().to_string_lossy().contains(&ours)));
    }
}

/// Connections between two processes: more than are looked at one by one.
const CROWD: usize = 70;
/// What each says, and hears again.
const WORD: usize = 40_000;

/// Receives once on each of these.
fn hear_all(ledger: &mut Ledger, sockets: &[Socket]) -> HashMap<Token, usize> {
    let mut at = HashMap::new();
    for (i, socket) in sockets.iter().enumerate() {
        let word = vec![0; WORD];
        let token = ledger.post("recv", |q, t| socket.recv(q, t, word, RecvFlags::WAITALL));
        at.insert(token, i);
    }
    at
}

/// Not a test in the parent: says again what it hears, on all its connections.
#[test]
fn echo() {
    let Some(words) = peer::part() else { return };
    let _dog = Watchdog::new("echo");
    let sockets: Vec<Socket> = (0..CROWD).map(|_| stream_socket(Transport::Shm)).collect();
    for socket in &sockets {
        socket.blocking().connect(words[0].as_str()).unwrap();
    }
    let mut ledger = Ledger::with_policy(WaitPolicy::Notify);
    let mut at = hear_all(&mut ledger, &sockets);
    loop {
        let event = ledger.event();
        if event.kind() != EventKind::Recv {
            continue;
        }
        let Some(i) = at.remove(&event.token()) else { panic!("{event:?}") };
        let word = event.into_buffer().unwrap();
        let again =
            ledger.post("recv", |q, t| sockets[i].recv(q, t, vec![0; WORD], RecvFlags::WAITALL));
        at.insert(again, i);
        ledger.post("send", |q, t| sockets[i].send(q, t, word));
    }
}

/// A process that plays this part, and its connections to us.
fn called_by(part: &str, connections: usize) -> (peer::Peer, Vec<Socket>) {
    let (listener, addr) = listener(Transport::Shm, "127.0.0.1:0");
    let child = peer::Peer::start(part, &addr.to_string(), &[]);
    let sockets = (0..connections).map(|_| listener.blocking().accept().unwrap().0);
    (child, sockets.collect())
}

/// Two processes that sleep and spin by turns receive on each of many connections, whichever
/// of them sent, and when one is killed all of them end.
#[test]
fn a_crowd_between_processes() {
    let _dog = Watchdog::new("a_crowd_between_processes");
    let (mut child, sockets) = called_by("echo", CROWD);
    let mut rng = Rng::new(7);
    for round in 0..30 {
        let policy = if round % 2 == 0 { WaitPolicy::Notify } else { WaitPolicy::BusyPoll };
        let mut ledger = Ledger::with_policy(policy);
        let chance = [1, 3, CROWD as u64][round % 3];
        let speak: Vec<Socket> = sockets.iter().filter(|_| rng.one_in(chance)).cloned().collect();
        hear_all(&mut ledger, &speak);
        for socket in &speak {
            let word = pattern(round as u64, 0, WORD);
            ledger.post("send", |q, t| socket.send(q, t, word));
        }
        for event in ledger.drain() {
            assert!(event.error().is_none(), "{event:?}");
            if event.kind() == EventKind::Recv {
                check(round as u64, 0, &event.into_buffer().unwrap());
            }
        }
        ledger.finish();
    }
    let mut ledger = Ledger::with_policy(WaitPolicy::Notify);
    hear_all(&mut ledger, &sockets);
    child.kill();
    for event in ledger.drain() {
        assert!(event.error().is_some(), "{event:?}");
    }
}

/// Connections that always have something, and how much.
const FLOODS: usize = 150;
const FLOOD: usize = 700_000;

/// Not a test in the parent: sends on all its connections, one message after the other, until they
/// are cut.
#[test]
fn flood() {
    let Some(words) = peer::part() else { return };
    let _dog = Watchdog::new("flood");
    let sockets: Vec<Socket> = (0..FLOODS).map(|_| stream_socket(Transport::Shm)).collect();
    let region = MemoryRegion::new(FLOODS * FLOOD).unwrap();
    let mut ledger = Ledger::new();
    let mut at = HashMap::new();
    for (i, socket) in sockets.iter().enumerate() {
        socket.blocking().connect(words[0].as_str()).unwrap();
        let buffer = region.buffer(i * FLOOD..(i + 1) * FLOOD).unwrap();
        at.insert(ledger.post("send", |q, t| socket.send(q, t, buffer)), i);
    }
    loop {
        let event = ledger.event();
        let Some(i) = at.remove(&event.token()) else { panic!("{event:?}") };
        if event.error().is_some() {
            return drop(peer::listen());
        }
        let buffer = event.into_buffer().unwrap();
        match ledger.try_post("send", |q, t| sockets[i].send(q, t, buffer)) {
            Ok(token) => drop(at.insert(token, i)),
            Err(_) => return drop(peer::listen()),
        }
    }
}

/// Of many connections that always have something each has its turn: none is heard thirty times
/// before all were heard three times.
#[test]
fn none_of_many_that_flood_is_starved() {
    let _dog = Watchdog::new("none_of_many_that_flood_is_starved");
    let (mut child, sockets) = called_by("flood", FLOODS);
    let region = MemoryRegion::new(2 * FLOODS * FLOOD).unwrap();
    let (mut ledger, mut at) = (Ledger::new(), HashMap::new());
    for n in 0..2 * FLOODS {
        let (i, buffer) = (n % FLOODS, region.buffer(n * FLOOD..(n + 1) * FLOOD).unwrap());
        let post = |q: &_, t| sockets[i].recv(q, t, buffer, RecvFlags::WAITALL);
        at.insert(ledger.post("recv", post), i);
    }
    let mut heard = vec![0; FLOODS];
    while heard.iter().any(|n| *n < 3) {
        let event = ledger.ok();
        let i = at[&event.token()];
        heard[i] += 1;
        assert!(heard[i] < 30, "while others wait: {heard:?}");
        let buffer = event.into_buffer().unwrap();
        let again = |q: &_, t| sockets[i].recv(q, t, buffer, RecvFlags::WAITALL);
        at.insert(ledger.post("recv", again), i);
    }
    sockets.iter().for_each(Socket::abort);
    ledger.drain();
    child.tell("end");
    child.finish();
}
