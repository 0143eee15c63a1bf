//! Several shards in one process: where queues, sockets and connections live, and operations that
//! cross. The contract of sockets runs with several shards too, but does not say which it uses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use exs::__ffi::shard_of;
use exs::{
    Completion, EventQueue, QueueOptions, RecvFlags, Shard, Socket, Token, Transport, WaitPolicy,
};
use exs_tests::harness::{Watchdog, stream_socket};
use exs_tests::rdma;

mod shards {
    mod accepts;
    mod bursts;
    mod moves;
}

const SHARDS: usize = 4;

/// The transports of this run: that of the RDMA device which the environment names, or else those
/// that any host has.
fn transports() -> impl Iterator<Item = Transport> {
    let any: &[Transport] = match rdma::device() {
        Some(_) if cfg!(feature = "verbs") => &[Transport::Verbs],
        _ => &[Transport::Soft, Transport::Shm],
    };
    any.iter().copied()
}

/// The process has four shards, whatever the host has.
fn four_shards() {
    exs::progress::limit_shards(SHARDS).unwrap();
}

/// A queue in each shard, for threads that sleep at once: a wake-up that is lost hangs the test.
fn queues() -> Vec<EventQueue> {
    four_shards();
    let mut found: Vec<EventQueue> = Vec::new();
    let mut others = Vec::new();
    while found.len() < SHARDS {
        let queue = queue(None);
        match found.iter().any(|q| q.shard() == queue.shard()) {
            true => others.push(queue),
            false => found.push(queue),
        }
        assert!(others.len() < 1000, "only {} shards have queues", found.len());
    }
    found
}

fn queue(shard: Option<Shard>) -> EventQueue {
    let options = QueueOptions::default().with_depth(64).with_wait(WaitPolicy::Notify);
    EventQueue::with_options(&options.with_shard(shard)).unwrap()
}

/// An address of this host, with any port.
fn any_port(transport: Transport) -> SocketAddr {
    let host = match rdma::device() {
        Some(device) if transport == Transport::Verbs => device.addr,
        _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    SocketAddr::new(host, 0)
}

fn listener(transport: Transport, backlog: u32) -> (Socket, SocketAddr) {
    let listener = stream_socket(transport);
    listener.bind(any_port(transport)).unwrap();
    listener.listen(backlog).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// Both ends of a connection that blocking calls have made.
fn connected(transport: Transport) -> (Socket, Socket) {
    let (listener, addr) = listener(transport, 4);
    let client = stream_socket(transport);
    client.blocking().connect(addr).unwrap();
    (client, listener.blocking().accept().unwrap().0)
}

fn accepted(queue: &EventQueue) -> Socket {
    match queue.next().unwrap().into_completion().unwrap() {
        Completion::Accept { socket, .. } => socket,
        other => panic!("{other:?}"),
    }
}

/// A question and its answer, each with events in the queue of its end.
fn talk((a, qa): (&Socket, &EventQueue), (b, qb): (&Socket, &EventQueue), len: usize) {
    b.recv(qb, Token(1), vec![0; len], RecvFlags::WAITALL).unwrap();
    a.recv(qa, Token(1), vec![0; len], RecvFlags::WAITALL).unwrap();
    a.send(qa, Token(2), vec![7; len]).unwrap();
    let got = received(qb, len);
    b.send(qb, Token(2), got).unwrap();
    assert!(received(qa, len).iter().all(|byte| *byte == 7));
    for queue in [qa, qb] {
        while queue.outstanding() > 0 {
            queue.next().unwrap().into_completion().unwrap();
        }
    }
}

/// Waits for a receive; sends may end before it.
fn received(queue: &EventQueue, len: usize) -> Vec<u8> {
    loop {
        match queue.next().unwrap().into_completion().unwrap() {
            Completion::Recv { buffer, bytes, .. } => {
                assert_eq!(bytes, len);
                return buffer[..].to_vec();
            }
            Completion::Send { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_queue_lives_where_it_is_told_or_where_queues_are_few() {
    let _dog = Watchdog::new("a_queue_lives_where_it_is_told_or_where_queues_are_few");
    let queues = queues();
    for queue_there in &queues {
        assert_eq!(queue(Some(queue_there.shard())).shard(), queue_there.shard());
    }
}

#[test]
fn a_connection_lives_where_its_connect_and_its_accept_name_queues() {
    let _dog = Watchdog::new("a_connection_lives_where_its_connect_and_its_accept_name_queues");
    let queues = queues();
    for transport in transports() {
        let (listener, addr) = listener(transport, 16);
        // Each accept in turn, by a client of the next shard.
        for (i, at) in queues.iter().enumerate() {
            let from = &queues[(i + 1) % SHARDS];
            listener.accept(at, Token(1)).unwrap();
            let client = stream_socket(transport);
            client.connect(from, Token(2), addr).unwrap();
            let server = accepted(at);
            from.next().unwrap().into_completion().unwrap();
            assert_eq!(shard_of(&client), from.shard(), "{transport}");
            assert_eq!(shard_of(&server), at.shard(), "{transport}");
            assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
            for len in [1, 64, 100_000, 3 << 20] {
                talk((&client, from), (&server, at), len);
            }
        }
    }
}

#[test]
fn accepts_of_several_shards_have_a_share_each() {
    let _dog = Watchdog::new("accepts_of_several_shards_have_a_share_each");
    let queues = queues();
    for transport in transports() {
        let (listener, addr) = listener(transport, 64);
        for round in 0..4 {
            for queue in &queues {
                listener.accept(queue, Token(round)).unwrap();
            }
        }
        let clients: Vec<Socket> = (0..4 * SHARDS).map(|_| stream_socket(transport)).collect();
        clients.iter().for_each(|client| client.blocking().connect(addr).unwrap());
        for queue in &queues {
            for _ in 0..4 {
                accepted(queue);
            }
        }
    }
}

#[test]
fn connections_that_no_accept_awaits_go_to_later_accepts() {
    let _dog = Watchdog::new("connections_that_no_accept_awaits_go_to_later_accepts");
    let queues = queues();
    for transport in transports() {
        let (listener, addr) = listener(transport, 64);
        // The listener has seen accepts of all shards.
        for queue in &queues {
            listener.accept(queue, Token(1)).unwrap();
        }
        let connect = || {
            let client = stream_socket(transport);
            client.blocking().connect(addr).unwrap();
            client
        };
        let first: Vec<Socket> = (0..SHARDS).map(|_| connect()).collect();
        let early: Vec<Socket> = queues.iter().map(accepted).collect();
        // These live in all shards, and the accept names one.
        let second: Vec<Socket> = (0..SHARDS).map(|_| connect()).collect();
        let at = &queues[2];
        for client in &second {
            listener.accept(at, Token(2)).unwrap();
            let server = accepted(at);
            let client = second
                .iter()
                .chain([client])
                .find(|c| c.local_addr().unwrap() == server.peer_addr().unwrap());
            talk((client.unwrap(), at), (&server, at), 10_000);
        }
        drop((first, early));
    }
}

#[test]
fn operations_may_name_a_queue_of_any_shard() {
    let _dog = Watchdog::new("operations_may_name_a_queue_of_any_shard");
    let queues = queues();
    for transport in transports() {
        let (client, server) = connected(transport);
        for qa in &queues {
            for qb in &queues {
                for len in [8, 5000, 1 << 20] {
                    talk((&client, qa), (&server, qb), len);
                }
            }
        }
    }
}

/// The thread that waits is asleep in another shard than that of the socket, or leads there.
#[test]
fn an_event_that_crosses_wakes_a_sleeper() {
    let _dog = Watchdog::new("an_event_that_crosses_wakes_a_sleeper");
    let queues = queues();
    for transport in transports() {
        let (client, server) = connected(transport);
        std::thread::scope(|scope| {
            let threads: Vec<_> = queues
                .iter()
                .map(|queue| {
                    let server = &server;
                    scope.spawn(move || {
                        for _ in 0..100 {
                            server.recv(queue, Token(1), vec![0; 8], RecvFlags::WAITALL).unwrap();
                            queue.next().unwrap().into_completion().unwrap();
                        }
                    })
                })
                .collect();
            while !threads.iter().all(|t| t.is_finished()) {
                let sent = client.blocking().send_all(&[1; 8]);
                sent.unwrap();
            }
        });
    }
}

#[test]
fn a_listener_that_closes_resets_connections_of_other_shards() {
    let _dog = Watchdog::new("a_listener_that_closes_resets_connections_of_other_shards");
    let queues = queues();
    for transport in transports() {
        let (listener, addr) = listener(transport, 64);
        queues.iter().for_each(|queue| listener.accept(queue, Token(1)).unwrap());
        let connect = || {
            let client = stream_socket(transport);
            client.blocking().connect(addr).unwrap();
            client
        };
        let taken: Vec<Socket> = (0..SHARDS).map(|_| connect()).collect();
        let servers: Vec<Socket> = queues.iter().map(accepted).collect();
        let waiting: Vec<Socket> = (0..2 * SHARDS).map(|_| connect()).collect();
        listener.close(&queues[1], Token(2)).unwrap();
        queues[1].next().unwrap().into_completion().unwrap();
        for client in &waiting {
            let end = client.blocking().recv(&mut [0; 8]).unwrap_err();
            assert_eq!(end.errno(), libc::ECONNRESET, "{transport}");
        }
        // Those that were accepted go on.
        for server in &servers {
            server.blocking().send_all(b"hello").unwrap();
        }
        for client in &taken {
            client.blocking().recv_exact(&mut [0; 5]).unwrap();
        }
    }
}

/// As a kernel socket, and whatever the other shards are about.
#[test]
fn a_listener_is_gone_when_its_drop_returns() {
    let _dog = Watchdog::new("a_listener_is_gone_when_its_drop_returns");
    four_shards();
    for transport in transports() {
        for round in 0..100 {
            let (first, addr) = listener(transport, 4);
            drop(first);
            let refused = stream_socket(transport).blocking().connect(addr).unwrap_err();
            assert_eq!(refused.errno(), libc::ECONNREFUSED, "{transport} {round}: {refused}");
            let again = stream_socket(transport);
            again.bind(addr).and_then(|()| again.listen(4)).unwrap();
        }
    }
}

#[test]
fn threads_with_a_queue_each_accept_and_serve_side_by_side() {
    let _dog = Watchdog::new("threads_with_a_queue_each_accept_and_serve_side_by_side");
    const CLIENTS: usize = 64;
    let queues = queues();
    for transport in transports() {
        let (listener, addr) = listener(transport, 16);
        std::thread::scope(|scope| {
            for queue in &queues {
                let listener = &listener;
                scope.spawn(move || {
                    for _ in 0..CLIENTS / SHARDS {
                        listener.accept(queue, Token(1)).unwrap();
                        let server = accepted(queue);
                        server.recv(queue, Token(2), vec![0; 1000], RecvFlags::WAITALL).unwrap();
                        let bytes = received(queue, 1000);
                        server.blocking().send_all(&bytes).unwrap();
                        server.close(queue, Token(3)).unwrap();
                        queue.next().unwrap().into_completion().unwrap();
                    }
                });
            }
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    let socket = stream_socket(transport);
                    socket.blocking().connect(addr).unwrap();
                    let sent = vec![u8::try_from(client).unwrap(); 1000];
                    socket.blocking().send_all(&sent).unwrap();
                    let mut got = vec![0; 1000];
                    socket.blocking().recv_exact(&mut got).unwrap();
                    assert_eq!(got, sent);
                });
            }
        });
    }
}

#[test]
fn a_connect_that_fails_can_be_tried_with_a_queue_of_another_shard() {
    let _dog = Watchdog::new("a_connect_that_fails_can_be_tried_with_a_queue_of_another_shard");
    let queues = queues();
    for transport in transports() {
        let (gone, nobody) = listener(transport, 1);
        drop(gone);
        let client = stream_socket(transport);
        client.connect(&queues[1], Token(1), nobody).unwrap();
        queues[1].next().unwrap().into_completion().unwrap_err();
        let home = shard_of(&client);
        let (listener, addr) = listener(transport, 1);
        client.connect(&queues[2], Token(1), addr).unwrap();
        queues[2].next().unwrap().into_completion().unwrap();
        assert_eq!(shard_of(&client), home, "it stays where it was first");
        let (server, _) = listener.blocking().accept().unwrap();
        talk((&client, &queues[3]), (&server, &queues[0]), 1000);
    }
}

#[test]
fn a_poll_before_the_connect_keeps_the_socket_where_it_is() {
    use exs::Interest;
    let _dog = Watchdog::new("a_poll_before_the_connect_keeps_the_socket_where_it_is");
    let queues = queues();
    for transport in transports() {
        let (listener, addr) = listener(transport, 1);
        let client = stream_socket(transport);
        client.poll(&queues[1], Token(1), Interest::WRITABLE).unwrap();
        client.connect(&queues[2], Token(2), addr).unwrap();
        assert!(queues[1].next().unwrap().readiness().writable);
        queues[2].next().unwrap().into_completion().unwrap();
        let (server, _) = listener.blocking().accept().unwrap();
        talk((&client, &queues[2]), (&server, &queues[1]), 1000);
    }
}

#[test]
fn kernel_sockets_serve_queues_of_all_shards() {
    use std::net::{TcpListener, TcpStream};
    let _dog = Watchdog::new("kernel_sockets_serve_queues_of_all_shards");
    let queues = queues();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
    let client = exs::KernelSocket::new(client).unwrap();
    let server = exs::KernelSocket::new(tcp.accept().unwrap().0).unwrap();
    for qa in &queues {
        for qb in &queues {
            server.recv(qb, Token(1), vec![0; 5000], RecvFlags::WAITALL).unwrap();
            client.send(qa, Token(2), vec![3; 5000]).unwrap();
            let events = match std::ptr::eq(qa, qb) {
                true => qa.dequeue_at_least(2, 2, None).unwrap(),
                false => [qa, qb].map(|queue| queue.next().unwrap()).into(),
            };
            for event in events {
                match event.into_completion().unwrap() {
                    Completion::Recv { buffer, .. } => assert_eq!(buffer[..], [3; 5000]),
                    Completion::Send { bytes, .. } => assert_eq!(bytes, 5000),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

/// Numbers that look random, the same in each run.
fn next_random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 33).unwrap()
}

/// Threads use each other's sockets and queues, and each operation still has its one event.
#[test]
fn threads_that_mix_sockets_and_queues_lose_no_event() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    const CONNECTIONS: usize = 8;
    const ROUNDS: usize = 400;
    let _dog = Watchdog::new("threads_that_mix_sockets_and_queues_lose_no_event");
    let queues = queues();
    queues.iter().for_each(|queue| queue.set_depth(4 * SHARDS * ROUNDS).unwrap());
    for transport in transports() {
        let (listener, addr) = listener(transport, 16);
        let pairs: Vec<(Socket, Socket)> = (0..CONNECTIONS)
            .map(|i| {
                let at = &queues[i % SHARDS];
                listener.accept(at, Token(1)).unwrap();
                let client = stream_socket(transport);
                client.blocking().connect(addr).unwrap();
                (client, accepted(at))
            })
            .collect();
        let (received, ended) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
        let take = |queue: &EventQueue, wait: Option<std::time::Duration>| {
            for event in queue.dequeue(16, wait).unwrap() {
                if let Completion::Recv { bytes, .. } = event.into_completion().unwrap() {
                    received.fetch_add(bytes, Ordering::Relaxed);
                }
                ended.fetch_add(1, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..SHARDS {
                let (pairs, queues, take) = (&pairs, &queues, &take);
                scope.spawn(move || {
                    let mut random = 0x9e37_79b9_7f4a_7c15 ^ (thread as u64 + 1);
                    for _ in 0..ROUNDS {
                        let (client, server) = &pairs[next_random(&mut random) % CONNECTIONS];
                        let queue = |random: &mut u64| &queues[next_random(random) % SHARDS];
                        let buffer = vec![0; 100];
                        let to = queue(&mut random);
                        server.recv(to, Token(1), buffer, RecvFlags::WAITALL).unwrap();
                        client.send(queue(&mut random), Token(2), vec![5; 100]).unwrap();
                        take(queue(&mut random), Some(std::time::Duration::ZERO));
                    }
                });
            }
        });
        // All are posted, and as many bytes were sent as receives ask for.
        let posted = 2 * SHARDS * ROUNDS;
        for queue in &queues {
            while queue.outstanding() > 0 {
                take(queue, None);
            }
        }
        assert_eq!(ended.load(Ordering::Relaxed), posted, "{transport}");
        assert_eq!(received.load(Ordering::Relaxed), 100 * SHARDS * ROUNDS, "{transport}");
    }
}
