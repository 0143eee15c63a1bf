//! Connections that one thread accepts and another one serves: each goes to the shard of a queue that
//! one of its first operations names.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use exs::__ffi::{Watch, shard_of, standing, watch};
use exs::{
    Completion, EventQueue, Grouping, Interest, Options, RecvFlags, Rights, Socket, SocketType,
    Token, Transport,
};
use exs_tests::harness::{Watchdog, check, pattern, stream_socket};

use crate::{SHARDS, accepted, any_port, listener, queues, received, talk, transports};

/// The connections of this transport can move.
fn moves(transport: Transport) -> bool {
    transport != Transport::Verbs
}

/// A connection that was accepted at a queue, and that no operation has named since.
pub(super) fn accepted_at(transport: Transport, at: &EventQueue) -> (Socket, Socket) {
    let (listener, addr) = listener(transport, 16);
    listener.accept(at, Token(1)).unwrap();
    let client = stream_socket(transport);
    client.blocking().connect(addr).unwrap();
    (client, accepted(at))
}

/// Waits until bytes can be received. That leaves the connection where it is.
fn until_readable(socket: &Socket) {
    while !socket.readiness().readable {
        thread::yield_now();
    }
}

#[test]
fn a_connection_goes_to_the_shard_of_the_queue_that_is_used_with_it() {
    let _dog = Watchdog::new("a_connection_goes_to_the_shard_of_the_queue_that_is_used_with_it");
    let queues = queues();
    for transport in transports() {
        for serves in &queues[1..] {
            let (client, server) = accepted_at(transport, &queues[0]);
            assert_eq!(shard_of(&server), queues[0].shard(), "{transport}");
            talk((&client, &queues[1]), (&server, serves), 8);
            if moves(transport) {
                assert_eq!(shard_of(&server), serves.shard(), "{transport}");
            }
            let home = shard_of(&server);
            for len in [1, 5000, 1 << 20] {
                talk((&client, &queues[1]), (&server, serves), len);
            }
            // It stays there, whatever queues are named.
            for queue in &queues {
                talk((&client, &queues[1]), (&server, queue), 5000);
                assert_eq!(shard_of(&server), home, "{transport}");
            }
            server.close(&queues[2], Token(7)).unwrap();
            queues[2].next().unwrap().into_completion().unwrap();
            assert_eq!(client.blocking().recv(&mut [0; 8]).unwrap(), 0, "{transport}");
        }
    }
}

/// One thread may also connect for others.
#[test]
fn a_connection_goes_from_the_queue_of_its_connect() {
    let _dog = Watchdog::new("a_connection_goes_from_the_queue_of_its_connect");
    let queues = queues();
    for transport in transports() {
        let (listener, addr) = listener(transport, 16);
        for serves in &queues {
            for blocks in [false, true] {
                let client = stream_socket(transport);
                if blocks {
                    client.blocking().connect(addr).unwrap();
                } else {
                    client.connect(&queues[0], Token(1), addr).unwrap();
                    queues[0].next().unwrap().into_completion().unwrap();
                    assert_eq!(shard_of(&client), queues[0].shard(), "{transport}");
                }
                let (server, _) = listener.blocking().accept().unwrap();
                for len in [8, 5000, 1 << 20] {
                    talk((&client, serves), (&server, &queues[1]), len);
                }
                if moves(transport) {
                    assert_eq!(shard_of(&client), serves.shard(), "{transport}");
                }
                client.close(&queues[3], Token(7)).unwrap();
                queues[3].next().unwrap().into_completion().unwrap();
                assert_eq!(server.blocking().recv(&mut [0; 8]).unwrap(), 0, "{transport}");
            }
        }
    }
}

/// A connection that came while no accept waited lives with the listener.
#[test]
fn a_connection_that_came_early_goes_to_its_accept() {
    let _dog = Watchdog::new("a_connection_that_came_early_goes_to_its_accept");
    let queues = queues();
    for transport in transports().filter(|transport| moves(*transport)) {
        for at in &queues {
            let (listener, addr) = listener(transport, 16);
            let client = stream_socket(transport);
            client.blocking().connect(addr).unwrap();
            listener.accept(at, Token(1)).unwrap();
            let server = accepted(at);
            talk((&client, &queues[1]), (&server, at), 1000);
            assert_eq!(shard_of(&server), at.shard(), "{transport}");
        }
    }
}

#[test]
fn bytes_that_came_before_go_along() {
    let _dog = Watchdog::new("bytes_that_came_before_go_along");
    let queues = queues();
    for transport in transports() {
        for sizes in [&[1][..], &[3000], &[5, 700, 3], &[4000; 20], &[200_000, 9]] {
            let (client, server) = accepted_at(transport, &queues[0]);
            let whole: usize = sizes.iter().sum();
            let bytes = pattern(1, 0, whole);
            let mut rest = &bytes[..];
            for (n, size) in (0..).zip(sizes) {
                let (first, others) = rest.split_at(*size);
                client.send(&queues[1], Token(n), first.to_vec()).unwrap();
                rest = others;
            }
            until_readable(&server);
            server.recv(&queues[2], Token(9), vec![0; whole], RecvFlags::WAITALL).unwrap();
            check(1, 0, &received(&queues[2], whole));
            while queues[1].outstanding() > 0 {
                queues[1].next().unwrap().into_completion().unwrap();
            }
            if moves(transport) && whole <= 3000 {
                assert_eq!(shard_of(&server), queues[2].shard(), "{transport}, {sizes:?}");
            }
            let c = server.counters();
            let counted = c.received_inline + c.received_indirect + c.received_direct;
            assert_eq!(counted, whole as u64, "{transport}");
            talk((&client, &queues[1]), (&server, &queues[2]), 100_000);
            // One that was busy goes later.
            while transport == Transport::Soft && shard_of(&server) != queues[2].shard() {
                talk((&client, &queues[1]), (&server, &queues[2]), 100_000);
            }
        }
    }
}

/// Over shared memory the peer of a busy connection knows a bitmap of this shard, and the connection stays.
#[test]
fn a_connection_that_was_busy_for_long_goes_at_last() {
    let _dog = Watchdog::new("a_connection_that_was_busy_for_long_goes_at_last");
    let queues = queues();
    for transport in transports().filter(|transport| *transport == Transport::Soft) {
        let (client, server) = accepted_at(transport, &queues[0]);
        let export = server.export(vec![0; 8], Rights::READ, None).unwrap();
        for _ in 0..100 {
            talk((&client, &queues[1]), (&server, &queues[2]), 8);
            assert_eq!(shard_of(&server), queues[0].shard(), "{transport}: its export is here");
        }
        drop(export);
        while shard_of(&server) != queues[2].shard() {
            talk((&client, &queues[1]), (&server, &queues[2]), 8);
        }
    }
}

/// A client that sends much before the first receive has the address of the ring by then.
#[test]
fn a_ring_that_the_peer_writes_into_goes_along() {
    const MUCH: usize = 200_000;
    let _dog = Watchdog::new("a_ring_that_the_peer_writes_into_goes_along");
    let queues = queues();
    for transport in transports().filter(|transport| moves(*transport)) {
        let (client, server) = accepted_at(transport, &queues[0]);
        let bytes = pattern(1, 0, 3 * MUCH);
        let send = |n: usize| {
            let part = bytes[n * MUCH..(n + 1) * MUCH].to_vec();
            client.send(&queues[1], Token(8), part).unwrap();
            queues[1].next().unwrap().into_completion().unwrap();
            while server.counters().received_indirect < ((n + 1) * MUCH) as u64 {
                thread::yield_now();
            }
        };
        let receive = |from: usize, len: usize| {
            server.recv(&queues[2], Token(9), vec![0; len], RecvFlags::WAITALL).unwrap();
            assert_eq!(shard_of(&server), queues[2].shard(), "{transport}");
            check(1, from, &received(&queues[2], len));
        };
        send(0);
        assert_eq!(shard_of(&server), queues[0].shard(), "{transport}");
        receive(0, MUCH / 3);
        send(1);
        send(2);
        receive(MUCH / 3, 3 * MUCH - MUCH / 3);
        talk((&client, &queues[1]), (&server, &queues[2]), 100_000);
    }
}

#[test]
fn messages_that_came_before_go_along() {
    let _dog = Watchdog::new("messages_that_came_before_go_along");
    let queues = queues();
    for transport in transports() {
        let options = Options::default().with_transport(transport);
        let packets = || Socket::with_options(SocketType::SeqPacket, options.clone()).unwrap();
        let listener = packets();
        listener.bind(any_port(transport)).unwrap();
        listener.listen(4).unwrap();
        for sizes in [&[1][..], &[0, 3000, 7], &[50_000, 3]] {
            let client = packets();
            listener.accept(&queues[0], Token(1)).unwrap();
            client.blocking().connect(listener.local_addr().unwrap()).unwrap();
            let server = accepted(&queues[0]);
            for (n, size) in (0..).zip(sizes) {
                client.send(&queues[1], Token(n), pattern(n, 0, *size)).unwrap();
            }
            until_readable(&server);
            for (n, size) in (0..).zip(sizes) {
                server.recv(&queues[2], Token(9), vec![0; 60_000], RecvFlags::default()).unwrap();
                let message = received(&queues[2], *size);
                check(n, 0, &message[..*size]);
            }
            while queues[1].outstanding() > 0 {
                queues[1].next().unwrap().into_completion().unwrap();
            }
            if moves(transport) && sizes.len() == 1 {
                assert_eq!(shard_of(&server), queues[2].shard(), "{transport}, {sizes:?}");
            }
        }
    }
}

#[test]
fn a_peer_that_ends_is_noticed_before_and_after() {
    let _dog = Watchdog::new("a_peer_that_ends_is_noticed_before_and_after");
    let queues = queues();
    for transport in transports() {
        for early in [false, true] {
            let (client, server) = accepted_at(transport, &queues[0]);
            client.blocking().send_all(b"the last words").unwrap();
            let end = |client: Socket| client.blocking().close().unwrap();
            let mut client = Some(client);
            until_readable(&server);
            if early {
                // The close waits for the answer of the other end.
                let client = client.take();
                thread::scope(|scope| {
                    scope.spawn(move || client.map(end));
                });
            }
            server.recv(&queues[3], Token(9), vec![0; 14], RecvFlags::WAITALL).unwrap();
            assert_eq!(received(&queues[3], 14), b"the last words", "{transport}");
            server.recv(&queues[3], Token(9), vec![0; 14], RecvFlags::WAITALL).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| client.take().map(end));
                match queues[3].next().unwrap().into_completion().unwrap() {
                    Completion::Recv { bytes: 0, .. } => {}
                    other => panic!("{transport}: {other:?}"),
                }
                drop(server);
            });
        }
    }
}

/// What a server does first with a connection, and how often it says hello.
type FirstUse<'a> = (usize, &'a dyn Fn(&Socket));

#[test]
fn calls_that_block_and_many_operations_keep_a_connection() {
    let _dog = Watchdog::new("calls_that_block_and_many_operations_keep_a_connection");
    let queues = queues();
    for transport in transports() {
        let uses: [FirstUse<'_>; 3] = [
            (1, &|server| server.blocking().send_all(b"hello").unwrap()),
            (70, &|server| {
                for _ in 0..70 {
                    server.send(&queues[0], Token(3), *b"hello").unwrap();
                    queues[0].next().unwrap().into_completion().unwrap();
                }
            }),
            (1, &|server| {
                server.poll(&queues[0], Token(3), Interest::WRITABLE).unwrap();
                assert!(queues[0].next().unwrap().readiness().writable);
                server.blocking().send_all(b"hello").unwrap();
            }),
        ];
        for (times, first) in uses {
            let (client, server) = accepted_at(transport, &queues[0]);
            let home = shard_of(&server);
            first(&server);
            client.blocking().recv_exact(&mut vec![0; 5 * times]).unwrap();
            for serves in &queues {
                talk((&client, &queues[1]), (&server, serves), 1000);
                assert_eq!(shard_of(&server), home, "{transport}");
            }
        }
    }
}

/// A thread that accepts may read what a client wants, and then choose the thread that serves it.
#[test]
fn a_connection_goes_after_some_words() {
    let _dog = Watchdog::new("a_connection_goes_after_some_words");
    let queues = queues();
    for transport in transports() {
        for serves in &queues[1..] {
            let (client, server) = accepted_at(transport, &queues[0]);
            for len in [1, 3000, 64] {
                talk((&client, &queues[1]), (&server, &queues[0]), len);
                assert_eq!(shard_of(&server), queues[0].shard(), "{transport}");
            }
            for len in [64, 5000, 1 << 20, 64] {
                talk((&client, &queues[1]), (&server, serves), len);
            }
            if transport == Transport::Soft {
                assert_eq!(shard_of(&server), serves.shard());
            }
        }
    }
}

/// Counts the changes that the library reports.
#[derive(Default)]
struct Changes(AtomicUsize);

impl Watch for Changes {
    fn changed(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_watch_goes_along() {
    let _dog = Watchdog::new("a_watch_goes_along");
    let queues = queues();
    for transport in transports() {
        let (client, server) = accepted_at(transport, &queues[0]);
        let changes = Arc::new(Changes::default());
        watch(&server, Some(Arc::clone(&changes) as Arc<dyn Watch>));
        talk((&client, &queues[1]), (&server, &queues[2]), 64);
        assert!(!standing(&server).readable);
        let before = changes.0.load(Ordering::SeqCst);
        client.blocking().send_all(b"news").unwrap();
        // No call of this thread comes for it.
        while changes.0.load(Ordering::SeqCst) == before {
            thread::yield_now();
        }
        assert!(standing(&server).readable);
        server.blocking().recv_exact(&mut [0; 4]).unwrap();
        assert!(!standing(&server).readable);
    }
}

/// The connections of a link group stay together. Once a connection was handed over, a listener takes no
/// more groups.
#[test]
fn connections_of_a_link_group_stay_and_work() {
    let _dog = Watchdog::new("connections_of_a_link_group_stay_and_work");
    let queues = queues();
    let (listener, addr) = listener(Transport::Soft, 64);
    let options =
        Options::default().with_transport(Transport::Soft).with_link_group(Grouping::Beyond(2));
    let mut pairs = Vec::new();
    for _ in 0..8 {
        listener.accept(&queues[0], Token(1)).unwrap();
        let client = Socket::with_options(SocketType::Stream, options.clone()).unwrap();
        client.connect(&queues[1], Token(2), addr).unwrap();
        pairs.push((client, accepted(&queues[0])));
        queues[1].next().unwrap().into_completion().unwrap();
    }
    // The first two have streams of their own.
    for (client, server) in pairs.iter().rev() {
        talk((client, &queues[1]), (server, &queues[2]), 5000);
    }
    let homes: Vec<bool> =
        pairs.iter().map(|(_, server)| shard_of(server) == queues[2].shard()).collect();
    assert_eq!(homes, [true, true, false, false, false, false, false, false]);
    for _ in 0..4 {
        listener.accept(&queues[0], Token(1)).unwrap();
        let client = Socket::with_options(SocketType::Stream, options.clone()).unwrap();
        client.connect(&queues[1], Token(2), addr).unwrap();
        let server = accepted(&queues[0]);
        queues[1].next().unwrap().into_completion().unwrap();
        talk((&client, &queues[1]), (&server, &queues[2]), 5000);
        assert_eq!(shard_of(&server), queues[2].shard(), "it has a stream of its own");
        pairs.push((client, server));
    }
}

/// One thread accepts, and hands each connection to the next of several others, which serve theirs with a
/// queue each. The clients begin at once, and some leave in the middle of a message.
#[test]
fn one_thread_accepts_and_others_serve() {
    const CLIENTS: usize = 48;
    const QUESTIONS: usize = 30;
    let _dog = Watchdog::new("one_thread_accepts_and_others_serve");
    let queues = queues();
    for transport in transports() {
        let (listener, addr) = listener(transport, 64);
        thread::scope(|scope| {
            let mut workers = Vec::new();
            for queue in &queues[1..] {
                let (sender, sockets) = mpsc::channel::<Socket>();
                workers.push(sender);
                scope.spawn(move || {
                    for socket in sockets {
                        serve(&socket, queue);
                    }
                });
            }
            scope.spawn({
                let (listener, at) = (&listener, &queues[0]);
                move || {
                    for n in 0..CLIENTS {
                        listener.accept(at, Token(1)).unwrap();
                        workers[n % (SHARDS - 1)].send(accepted(at)).unwrap();
                    }
                }
            });
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    let socket = stream_socket(transport);
                    socket.blocking().connect(addr).unwrap();
                    let seed = client as u64;
                    for question in 0..QUESTIONS {
                        let len = 1 + (question * 977 + client * 131) % 9000;
                        let header = u32::try_from(len).unwrap().to_le_bytes();
                        socket.blocking().send_all(&header).unwrap();
                        if client % 5 == 4 && question == QUESTIONS / 2 {
                            return;
                        }
                        socket.blocking().send_all(&pattern(seed, 0, len)).unwrap();
                        let mut answer = vec![0; len];
                        socket.blocking().recv_exact(&mut answer).unwrap();
                        check(seed, 0, &answer);
                    }
                });
            }
        });
    }
}

/// Sends back each message until the peer ends.
fn serve(socket: &Socket, queue: &EventQueue) {
    let recv = |len: usize| -> Option<Vec<u8>> {
        socket.recv(queue, Token(1), vec![0; len], RecvFlags::WAITALL).ok()?;
        loop {
            match queue.next().unwrap().into_completion() {
                Ok(Completion::Recv { buffer, bytes, .. }) => {
                    return (bytes == len).then(|| buffer[..].to_vec());
                }
                Ok(Completion::Send { .. }) => {}
                Ok(other) => panic!("{other:?}"),
                Err(_) => return None,
            }
        }
    };
    while let Some(header) = recv(4) {
        let len = u32::from_le_bytes(header.try_into().unwrap());
        let Some(message) = recv(usize::try_from(len).unwrap()) else { break };
        if socket.send(queue, Token(2), message).is_err() {
            break;
        }
    }
    while queue.outstanding() > 0 {
        let _ = queue.next().unwrap();
    }
}
