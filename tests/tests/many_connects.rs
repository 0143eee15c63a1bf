//! Ten thousand connects in flight at once: more than start up at a time, and more than the kernel keeps
//! for a listener. All of them succeed.

use std::net::SocketAddr;

use exs::{Socket, Transport};
use exs_tests::harness::{Ledger, Watchdog, many_files, peer, stream_socket};

const CONNECTS: usize = 10_000;

/// Not a test in the parent: the server.
#[test]
fn child() {
    let Some(words) = peer::part() else { return };
    many_files();
    let connects = words[1].parse().unwrap();
    let listener = stream_socket(words[0].parse().unwrap());
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(u32::try_from(connects).unwrap()).unwrap();
    peer::say(&format!("at {}", listener.local_addr().unwrap()));
    let served: Vec<Socket> = (0..connects)
        .map(|_| {
            let (served, _) = listener.blocking().accept().unwrap();
            served.blocking().send(b"s").unwrap();
            served
        })
        .collect();
    peer::say("served");
    peer::listen();
    drop(served);
}

fn all_succeed(transport: Transport) {
    let dog = format!("ten thousand connects over {transport}");
    let _dog = Watchdog::new(&dog);
    // A connection takes a descriptor, and that of its memory until the listener has it.
    let room = usize::try_from(many_files()).unwrap().saturating_sub(500) / 2;
    let connects = CONNECTS.min(room);
    assert!(connects > 2000, "RLIMIT_NOFILE is too low for this test");
    let (name, number) = (transport.to_string(), connects.to_string());
    let mut server = peer::Peer::start("child", &name, &[&number]);
    let addr: SocketAddr = server.expect("at").parse().unwrap();
    let clients: Vec<Socket> = (0..connects).map(|_| stream_socket(transport)).collect();
    let mut ledger = Ledger::with_depth(connects);
    for client in &clients {
        ledger.post("connect", |q, t| client.connect(q, t, addr));
    }
    for event in ledger.drain() {
        assert!(event.error().is_none(), "{transport}: {event:?}");
    }
    server.expect("served");
    for client in &clients {
        let mut got = [0];
        client.blocking().recv_exact(&mut got).unwrap();
        assert_eq!(got, *b"s", "{transport}");
    }
    server.tell("all are there");
    // A reset leaves no port in TIME_WAIT, which other tests would miss.
    clients.iter().for_each(Socket::abort);
    drop(clients);
    server.finish();
}

#[test]
fn ten_thousand_connects_at_once_by_the_software_rnic() {
    all_succeed(Transport::Soft);
}

#[test]
fn ten_thousand_connects_at_once_by_shared_memory() {
    all_succeed(Transport::Shm);
}
