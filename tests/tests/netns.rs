//! A cable that is cut: two network namespaces joined by a veth pair.
//!
//! Needs root (or CAP_NET_ADMIN and CAP_SYS_ADMIN) and iproute2. Where they are missing
//! the tests say so and pass; nothing of the machine's own network is touched.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use exs::{Error, EventKind, Options, RecvFlags, Socket, SocketType};
use exs_tests::harness::{Cable, Ledger, Watchdog, peer, run};
use exs_tests::skip::skip;

const DEAD_AFTER: Duration = Duration::from_secs(1);
/// Beyond `dead_after`: a loaded machine is slow.
const SLACK: Duration = Duration::from_secs(15);

/// Not a test in the parent: the part of the processes at both ends.
#[test]
fn child() {
    let Some(words) = peer::part() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let _dog = Watchdog::new(&format!("the child {words:?}"));
    let kind = if words[1] == "stream" { SocketType::Stream } else { SocketType::SeqPacket };
    let options =
        Options::default().with_keep_alive(Some(DEAD_AFTER / 4)).with_dead_after(Some(DEAD_AFTER));
    let socket = Socket::with_options(kind, options).unwrap();
    match words[0] {
        "listen" => {
            socket.bind("10.93.0.1:0".parse().unwrap()).unwrap();
            socket.listen(1).unwrap();
            peer::say(&format!("at {}", socket.local_addr().unwrap()));
            let (socket, _) = socket.blocking().accept().unwrap();
            traffic(&socket);
        }
        _ => {
            socket.blocking().connect(words[2].parse::<SocketAddr>().unwrap()).unwrap();
            traffic(&socket);
        }
    }
}

/// Sends and receives as fast as it goes, until everything has ended with an error; then
/// says how long the end took since the last thing that went well.
fn traffic(socket: &Socket) {
    // The names by which shared memory is found are a namespace's own.
    assert_eq!(socket.transport().unwrap().to_string(), "soft");
    let mut ledger = Ledger::new();
    for _ in 0..8 {
        ledger.post("recv", |q, t| socket.recv(q, t, vec![0; 256 << 10], RecvFlags::NONE));
        ledger.post("send", |q, t| socket.send(q, t, vec![1; 256 << 10]));
    }
    let (mut well, mut count) = (Instant::now(), 0u32);
    while ledger.outstanding() > 0 {
        let mut event = ledger.event();
        if let Some(e) = event.error() {
            assert!(is_gone(e), "{e:?} (errno {})", e.errno());
            continue;
        }
        (well, count) = (Instant::now(), count + 1);
        if count == 100 {
            peer::say("under way");
        }
        let Some(buffer) = event.take_buffer() else { continue };
        let send = event.kind() == EventKind::Send;
        // Refused once the connection is known to be gone.
        let _ = ledger.try_post("next", |q, t| {
            if send {
                socket.send(q, t, buffer)
            } else {
                socket.recv(q, t, buffer, RecvFlags::NONE)
            }
        });
    }
    ledger.finish();
    peer::say(&format!("ended {}", well.elapsed().as_millis()));
}

/// The peer is silent; or our kernel says that the network is down.
fn is_gone(e: &Error) -> bool {
    [libc::ETIMEDOUT, libc::ENETDOWN, libc::ENETUNREACH, libc::EHOSTUNREACH].contains(&e.errno())
}

/// Traffic in both directions; then `cut`; then both ends find out, in time.
fn cut_in_mid_transfer(test: &str, kind: &str, cut: impl FnOnce(&Cable) -> Result<(), String>) {
    let _dog = Watchdog::new(test);
    let cable = match Cable::new(test) {
        Ok(cable) => cable,
        Err(why) => return skip(&format!("no network namespaces here: {why}")),
    };
    let server = cable.start(0, "child", &format!("listen {kind}"));
    let addr = server.expect("at");
    let client = cable.start(1, "child", &format!("connect {kind} {addr}"));
    server.expect("under way");
    client.expect("under way");
    if let Err(why) = cut(&cable) {
        return skip(&why);
    }
    for end in [&server, &client] {
        let took = Duration::from_millis(end.expect("ended").parse().unwrap());
        assert!(took < DEAD_AFTER + SLACK, "it took {took:?} to find out");
        assert!(took >= DEAD_AFTER / 2, "given up too early: {took:?}");
    }
    server.finish();
    client.finish();
}

#[test]
fn a_cut_cable_stream() {
    cut_in_mid_transfer("cs", "stream", |c| {
        run(&format!("ip -n {} link set veth0 down", c.name(0)))
    });
}

#[test]
fn a_cut_cable_seqpacket() {
    cut_in_mid_transfer("cp", "seqpacket", |c| {
        run(&format!("ip -n {} link set veth0 down", c.name(1)))
    });
}

/// Frames to an address that no card has: lost without a trace, as by a switch that has
/// gone mad. The interfaces stay up, and neither kernel notices anything.
#[test]
fn a_network_that_loses_everything() {
    cut_in_mid_transfer("lo", "stream", |c| {
        c.swallow(0, "10.93.0.2")?;
        c.swallow(1, "10.93.0.1")?;
        Ok(())
    });
}
