//! Which connections of sockets share the TCP connection of a link group: those that begin through an
//! event queue of the program, as futures of a runtime, or in an event loop that drives shards, at both ends.
//! All others need a stream of their own.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use exs::__ffi::{
    FIRST_SHARD, accept_in_loop, accept_in_turn, in_loop, private_queue, queue_for_descriptors,
    shard_of,
};
use exs::aio::{AsyncListener, AsyncStream};
use exs::{
    EventQueue, Grouping, Options, QueueOptions, Shard, Socket, SocketType, Token, Transport,
};
use exs_tests::harness::Watchdog;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

mod link_group_sockets {
    mod workers;
}

const CLIENTS: usize = 6;

/// A case, in a process with two shards. Each case says so before it makes anything, since the first
/// queue or socket of the process settles their number.
fn case(what: &'static str) -> Watchdog {
    exs::progress::limit_shards(2).unwrap();
    Watchdog::new(what)
}

/// All connections that can be in groups are.
fn options() -> Options {
    Options::default().with_transport(Transport::Soft).with_link_group(Grouping::Beyond(0))
}

fn socket() -> Socket {
    Socket::with_options(SocketType::Stream, options()).unwrap()
}

fn listener() -> (Socket, SocketAddr) {
    let listener = socket();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(64).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// Queues of two shards. Listeners live in that of the first one.
fn queues() -> [EventQueue; 2] {
    let options = QueueOptions::default().with_depth(256).with_shard(Some(FIRST_SHARD));
    let first = EventQueue::with_options(&options).unwrap();
    let mut others = Vec::new();
    loop {
        let other = EventQueue::new(256).unwrap();
        if other.shard() != first.shard() {
            return [first, other];
        }
        others.push(other);
        assert!(others.len() < 1000);
    }
}

/// Makes this shard that of the thread, as a queue of its own there does.
fn live_in(shard: Shard) {
    let mut queues = Vec::new();
    loop {
        let queue = EventQueue::new(1).unwrap();
        if queue.shard() == shard {
            assert!(queue.dequeue(1, Some(Duration::ZERO)).unwrap().is_empty());
            return;
        }
        queues.push(queue);
        assert!(queues.len() < 1000);
    }
}

/// A queue beside another one, for the other end.
fn beside(queue: &EventQueue) -> EventQueue {
    let options = QueueOptions::default().with_depth(256).with_shard(Some(queue.shard()));
    EventQueue::with_options(&options).unwrap()
}

/// A runtime of several workers, whose connections are in one shard.
fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

/// A listener of tasks, and its address.
fn async_listener(options: Options) -> (AsyncListener, SocketAddr) {
    let listener = AsyncListener::bind_with(([127, 0, 0, 1], 0).into(), options).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// Connects to a listener of tasks. Returns both ends, and the client's address as the server sees it.
async fn connect_task(
    listener: &AsyncListener,
    options: Options,
) -> (AsyncStream, AsyncStream, SocketAddr) {
    let connects = AsyncStream::connect_with(listener.local_addr().unwrap(), options);
    // The accept is posted first: before that, the listener could not know.
    let (accepted, client) = tokio::join!(listener.accept(), connects);
    let (server, peer) = accepted.unwrap();
    (client.unwrap(), server, peer)
}

/// Begins connects through a queue.
fn connects(queue: &EventQueue, addr: SocketAddr) -> Vec<Socket> {
    let clients: Vec<Socket> = (0..CLIENTS).map(|_| socket()).collect();
    for client in &clients {
        client.connect(queue, Token(7), addr).unwrap();
    }
    clients
}

/// Waits for the events of a queue, all of which must be of successes.
fn succeed(queue: &EventQueue, events: usize) -> Vec<exs::Completion> {
    let mut left = events;
    let mut all = Vec::new();
    while left > 0 {
        let came = queue.dequeue_at_least(1, left, None).unwrap();
        left -= came.len();
        all.extend(came.into_iter().map(|event| event.into_completion().unwrap()));
    }
    all
}

/// The TCP connections to this port, as the kernel lists them. While others come and go, it may list one
/// twice.
fn carriers(to: SocketAddr) -> usize {
    const ESTABLISHED: &str = "01";
    let port = format!(":{:04X}", to.port());
    let list = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let lines = list.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let open = lines.filter(|words| words[2].ends_with(&port) && words[3] == ESTABLISHED);
    open.map(|words| words[1].to_owned()).collect::<HashSet<_>>().len()
}

/// The addresses that these report. Each has its own, in a group or not.
fn names(clients: &[Socket]) -> usize {
    clients.iter().map(|c| c.local_addr().unwrap()).collect::<HashSet<_>>().len()
}

#[test]
fn connections_through_queues_share_a_tcp_connection() {
    let _case = case("queues");
    let [serving, _] = queues();
    let (listener, addr) = listener();
    for _ in 0..CLIENTS {
        listener.accept(&serving, Token(1)).unwrap();
    }
    let dialing = beside(&serving);
    let clients = connects(&dialing, addr);
    succeed(&dialing, CLIENTS);
    let _accepted = succeed(&serving, CLIENTS);
    assert_eq!((carriers(addr), names(&clients)), (1, CLIENTS));
}

/// The listener cannot know yet what its accepts will be.
#[test]
fn connects_before_the_first_accept_are_established() {
    let _case = case("before the first accept");
    let [dialing, serving] = queues();
    let (listener, addr) = listener();
    let _clients = connects(&dialing, addr);
    succeed(&dialing, CLIENTS);
    assert_eq!(carriers(addr), CLIENTS);
    for _ in 0..CLIENTS {
        listener.accept(&serving, Token(1)).unwrap();
    }
    let _accepted = succeed(&serving, CLIENTS);
}

#[test]
fn blocking_accepts_take_no_groups() {
    let _case = case("blocking accepts");
    let [dialing, _] = queues();
    let (listener, addr) = listener();
    let serving = std::thread::spawn(move || {
        let accept = |_| listener.blocking().accept().unwrap().0;
        let served: Vec<Socket> = (0..2 * CLIENTS).map(accept).collect();
        served.iter().for_each(|s| s.blocking().send_all(b"s").unwrap());
        served
    });
    let mut clients = connects(&dialing, addr);
    succeed(&dialing, CLIENTS);
    clients.extend(connects(&dialing, addr));
    succeed(&dialing, CLIENTS);
    for client in &clients {
        let mut got = [0];
        client.blocking().recv_exact(&mut got).unwrap();
    }
    assert_eq!(carriers(addr), 2 * CLIENTS);
    drop(serving.join().unwrap());
}

#[test]
fn blocking_connects_are_in_no_group() {
    let _case = case("blocking connects");
    let [serving, _] = queues();
    let (listener, addr) = listener();
    for _ in 0..CLIENTS {
        listener.accept(&serving, Token(1)).unwrap();
    }
    let clients: Vec<Socket> = (0..CLIENTS).map(|_| socket()).collect();
    clients.iter().for_each(|client| client.blocking().connect(addr).unwrap());
    let _accepted = succeed(&serving, CLIENTS);
    assert_eq!(carriers(addr), CLIENTS);
}

/// Clients that have a group at one shard of a listener also get the accepts of another one.
#[test]
fn accepts_of_another_shard_are_served_by_a_group() {
    let _case = case("accepts of two shards");
    let [first, second] = queues();
    let dialing = beside(&first);
    let (listener, addr) = listener();
    for _ in 0..CLIENTS {
        listener.accept(&first, Token(1)).unwrap();
    }
    let grouped = connects(&dialing, addr);
    succeed(&dialing, CLIENTS);
    let _accepted = succeed(&first, CLIENTS);
    assert_eq!((carriers(addr), names(&grouped)), (1, CLIENTS));
    for queue in [&first, &second] {
        for _ in 0..CLIENTS {
            listener.accept(queue, Token(1)).unwrap();
        }
    }
    let clients = [connects(&dialing, addr), connects(&dialing, addr)].concat();
    succeed(&dialing, 2 * CLIENTS);
    let _accepted = succeed(&first, CLIENTS);
    let _accepted = succeed(&second, CLIENTS);
    assert_eq!((carriers(addr), names(&clients)), (1, 2 * CLIENTS));
}

/// A dialer with many connections opens a group for each shard that accepts.
#[test]
fn many_connections_spread_over_groups_of_the_shards_that_accept() {
    const EACH: usize = 10 * CLIENTS;
    let _case = case("groups of two shards");
    let queues = queues();
    let dialing = EventQueue::new(1024).unwrap();
    let (listener, addr) = listener();
    for queue in &queues {
        for _ in 0..EACH {
            listener.accept(queue, Token(1)).unwrap();
        }
    }
    let clients: Vec<Socket> = (0..20).flat_map(|_| connects(&dialing, addr)).collect();
    succeed(&dialing, 2 * EACH);
    let accepted = [succeed(&queues[0], EACH), succeed(&queues[1], EACH)];
    for (queue, accepted) in queues.iter().zip(&accepted) {
        let lives_here = |c: &exs::Completion| match c {
            exs::Completion::Accept { socket, .. } => shard_of(socket) == queue.shard(),
            _ => false,
        };
        assert!(accepted.iter().all(lives_here), "accepted in {:?}", queue.shard());
    }
    assert_eq!((carriers(addr), names(&clients)), (2, 2 * EACH));
}

/// As the C library connects and accepts without a queue. `in_loops`: for threads that wait by
/// `exs_epoll_wait`.
fn without_queues(in_loops: [bool; 2]) -> usize {
    // Accepts of a loop are for the shard of the thread.
    live_in(FIRST_SHARD);
    let options = QueueOptions::default().with_depth(256).with_shard(Some(FIRST_SHARD));
    let connects = queue_for_descriptors(&options).unwrap();
    let connects = if in_loops[0] { in_loop(&connects) } else { connects };
    let (listener, addr) = listener();
    // One queue for each, as a private queue is for one operation.
    let accepts: Vec<EventQueue> = (0..CLIENTS)
        .map(|_| {
            let queue = private_queue(&listener).unwrap();
            let accept = if in_loops[1] { accept_in_loop } else { accept_in_turn };
            accept(&listener, &queue, Token(1)).unwrap();
            queue
        })
        .collect();
    let clients = self::connects(&connects, addr);
    succeed(&connects, CLIENTS);
    let _accepted: Vec<_> = accepts.iter().map(|queue| succeed(queue, 1)).collect();
    assert_eq!(names(&clients), CLIENTS);
    carriers(addr)
}

#[test]
fn connections_of_event_loops_share_a_tcp_connection() {
    let _case = case("event loops");
    assert_eq!(without_queues([true, true]), 1);
}

#[test]
fn connections_of_other_programs_without_queues_are_in_no_group() {
    let _case = case("no event loops");
    assert_eq!(without_queues([false, true]), CLIENTS, "the dialer polls");
    assert_eq!(without_queues([true, false]), CLIENTS, "the server polls");
}

/// Threads with a loop each that accept from one listener have connections in shards of their own.
#[test]
fn loops_of_several_shards_take_no_groups() {
    let _case = case("loops of two shards");
    let [first, second] = queues();
    let (listener, addr) = listener();
    let accept = |queue: &EventQueue| {
        live_in(queue.shard());
        let own = private_queue(&listener).unwrap();
        accept_in_loop(&listener, &own, Token(1)).unwrap();
        own
    };
    let mut accepts = vec![accept(&second)];
    accepts.extend((1..CLIENTS).map(|_| accept(&first)));
    let dialing = beside(&first);
    let _clients = connects(&dialing, addr);
    succeed(&dialing, CLIENTS);
    let _accepted: Vec<_> = accepts.iter().map(|queue| succeed(queue, 1)).collect();
    assert_eq!(carriers(addr), CLIENTS);
}

#[test]
fn connections_of_tasks_share_a_tcp_connection() {
    let _case = case("tasks");
    runtime().block_on(async {
        let (listener, addr) = async_listener(options());
        let mut streams = Vec::new();
        for n in 0..CLIENTS {
            let (mut client, mut server, peer) = connect_task(&listener, options()).await;
            assert_eq!(client.local_addr().unwrap(), peer, "client {n}");
            client.write_all(&[1]).await.unwrap();
            assert_eq!(server.read_u8().await.unwrap(), 1);
            streams.push((client, server));
        }
        assert_eq!(carriers(addr), 1);
    });
}

/// In a runtime with one worker, whose driver reads the messages of all connections, those beyond the first
/// are in a group. In one with several workers, tasks may attend the first connections.
#[test]
fn the_first_connections_of_a_runtime_with_several_workers_are_in_no_group() {
    let _case = case("groups by the kind of the runtime");
    let one_worker = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (runtime, expected) in [(one_worker, 2), (runtime(), CLIENTS)] {
        runtime.block_on(async {
            let options = || Options::default().with_transport(Transport::Soft);
            let (listener, addr) = async_listener(options());
            let mut streams = Vec::new();
            for _ in 0..CLIENTS {
                streams.push(connect_task(&listener, options()).await);
            }
            assert_eq!(carriers(addr), expected);
        });
    }
}

/// Tasks that attend their connections leave that to the driver where the connection is in a group.
#[test]
fn tasks_that_attend_keep_no_connection_out_of_groups() {
    let _case = case("tasks that attend");
    runtime().block_on(async {
        let options = || options().with_link_group(Grouping::Beyond(1));
        let (listener, addr) = async_listener(options());
        let mut streams = Vec::new();
        for _ in 0..CLIENTS {
            let (mut client, mut server, _) = connect_task(&listener, options()).await;
            client.attend_always();
            server.attend_always();
            for _ in 0..32 {
                client.write_all(&[1]).await.unwrap();
                assert_eq!(server.read_u8().await.unwrap(), 1);
                server.write_all(&[2]).await.unwrap();
                assert_eq!(client.read_u8().await.unwrap(), 2);
            }
            streams.push((client, server));
        }
        assert_eq!(carriers(addr), 2, "one of its own, and a group");
    });
}
