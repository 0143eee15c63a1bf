//! What connections and shards cost that do nothing.

use std::net::SocketAddr;
use std::time::Duration;

use exs::{Completion, EventQueue, RecvFlags, Socket, Token, Transport};
use exs_tests::harness::{Ledger, Watchdog, accepted, many_files, peer, stream_socket};

use super::churn::resident;
use super::threads::listener;

const MANY: usize = 2000;
/// Shards that idle, besides the first one.
const SHARDS: usize = 32;

/// Some time for the library to take spare memory back, which it does as it goes.
fn rest() {
    let idle = EventQueue::new(1).unwrap();
    for _ in 0..30 {
        idle.dequeue(1, Some(Duration::from_millis(101))).unwrap();
    }
}

pub(crate) fn server() {
    many_files();
    let (listener, addr) = listener();
    peer::say(&format!("at {addr}"));
    let mut ledger = Ledger::with_depth(2 * MANY);
    for _ in 0..MANY {
        ledger.post("accept", |q, t| listener.accept(q, t));
    }
    let before = resident();
    let sockets: Vec<Socket> = ledger.drain().into_iter().map(|e| accepted(e).unwrap().0).collect();
    rest();
    peer::say(&format!("kib {}", resident() - before));
    peer::listen();
    drop(sockets);
}

pub(crate) fn clients(addr: SocketAddr, count: usize) {
    many_files();
    let mut ledger = Ledger::with_depth(2 * MANY);
    let before = resident();
    let sockets: Vec<Socket> = (0..count).map(|_| Socket::stream().unwrap()).collect();
    for socket in &sockets {
        ledger.post("connect", |q, t| socket.connect(q, t, addr));
    }
    assert!(ledger.drain().iter().all(|e| e.error().is_none()));
    rest();
    let made = resident() - before;
    // One receive on each, as a program would have.
    let queue = EventQueue::new(MANY).unwrap();
    for socket in &sockets {
        socket.recv(&queue, Token(1), vec![0; 64], RecvFlags::NONE).unwrap();
    }
    rest();
    peer::say(&format!("kib {made} {}", resident() - before));
    peer::listen();
    // A reset leaves no port in TIME_WAIT, which other tests would miss.
    sockets.iter().for_each(Socket::abort);
    drop(sockets);
}

/// Transports, and the bytes that an idle connection may take in either process. The test's books and
/// its event queue take about 1 KiB of them.
const MOST: [(&str, usize); 2] = [("soft", 10 << 10), ("shm", 14 << 10)];

/// A connection that does nothing takes little memory.
#[test]
fn idle_connections_are_cheap() {
    for (transport, most) in MOST {
        idle_connections(transport, most);
    }
}

fn idle_connections(transport: &str, most: usize) {
    let _dog = Watchdog::new(&format!("idle_connections_are_cheap, {transport}"));
    let by = format!("EXS_TRANSPORT={transport}");
    let start = |part: &str| peer::Peer::start_by(&["env", &by], "child", part, &[]);
    let server = start("idle-server");
    let addr = server.expect("at");
    let clients = start(&format!("idle-clients {addr} {MANY}"));
    let kib = |text: String| -> Vec<usize> {
        text.split_whitespace().map(|w| w.parse().unwrap()).collect()
    };
    let (ours, theirs) = (kib(clients.expect("kib")), kib(server.expect("kib")));
    let each = |kib: usize| kib * 1024 / MANY;
    println!(
        "bytes for an idle connection, {transport}: {} accepted, {} connected, {} with a receive",
        each(theirs[0]),
        each(ours[0]),
        each(ours[1]),
    );
    assert!(each(theirs[0].max(ours[1])) <= most, "an idle connection takes too much");
    clients.finish();
    server.finish();
}

/// A queue whose shard has had a connection, and carried a byte each way.
fn used_queue(listener: &Socket, transport: Transport) -> EventQueue {
    let queue = EventQueue::new(64).unwrap();
    listener.accept(&queue, Token(0)).unwrap();
    let asks = stream_socket(transport);
    asks.connect(&queue, Token(1), listener.local_addr().unwrap()).unwrap();
    let mut answers = None;
    for _ in 0..2 {
        if let Completion::Accept { socket, .. } = queue.next().unwrap().into_completion().unwrap()
        {
            answers = Some(socket);
        }
    }
    let answers = answers.expect("one of the two was the accept");
    for (from, to) in [(&asks, &answers), (&answers, &asks)] {
        to.recv(&queue, Token(2), vec![0; 1], RecvFlags::WAITALL).unwrap();
        from.send(&queue, Token(3), vec![1]).unwrap();
        for _ in 0..2 {
            assert_eq!(queue.next().unwrap().into_result().unwrap(), 1);
        }
    }
    asks.close(&queue, Token(4)).unwrap();
    answers.close(&queue, Token(5)).unwrap();
    for _ in 0..2 {
        queue.next().unwrap().into_result().unwrap();
    }
    queue
}

pub(crate) fn shards(transport: Transport) {
    many_files();
    let listener = stream_socket(transport);
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(8).unwrap();
    // The first queue also makes what all of them share.
    let first = used_queue(&listener, transport);
    let before = resident();
    let queues: Vec<EventQueue> = (0..SHARDS).map(|_| used_queue(&listener, transport)).collect();
    rest();
    let used = resident().saturating_sub(before);
    for (at, queue) in queues.iter().enumerate() {
        let others = queues[..at].iter().chain([&first]);
        assert!(others.map(EventQueue::shard).all(|s| s != queue.shard()), "a shard each");
    }
    peer::say(&format!("kib {used}"));
    peer::listen();
}

/// A shard that has carried a connection, and does nothing any more, takes less than a mebibyte.
#[test]
fn idle_shards_are_cheap() {
    for transport in ["soft", "shm"] {
        let what = format!("idle_shards_are_cheap, {transport}");
        let _dog = Watchdog::new(&what);
        let most = format!("EXS_SHARDS={}", SHARDS + 8);
        let part = format!("idle-shards {transport}");
        let child = peer::Peer::start_by(&["env", &most], "child", &part, &[]);
        let kib: usize = child.expect("kib").parse().unwrap();
        println!("KiB for an idle shard: {}, {transport}", kib / SHARDS);
        assert!(kib / SHARDS < 1 << 10, "an idle shard takes too much");
        child.finish();
    }
}
