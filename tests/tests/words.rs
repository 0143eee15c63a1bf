//! One counter that peers reach by several transports and shards at the same time.

use exs::{AtomicWords, EventQueue, Options, QueueOptions, Socket, Token, Transport};
use exs_tests::harness::{Watchdog, stream_pair};

/// A connection by a transport: (the end that exports, the other).
fn pair(transport: Transport) -> (Socket, Socket) {
    let (client, server) = stream_pair(&Options::default().with_transport(transport));
    assert_eq!(client.transport().unwrap().transport, transport);
    (server, client)
}

/// The software RNIC, shared memory and the owner's processor add to one word; each peer in a thread
/// with a queue, and so with a shard, of its own.
#[test]
fn transports_and_shards_lose_no_addition() {
    const COUNT: u64 = 2000;
    let _dog = Watchdog::new("words");
    let words = AtomicWords::new(1).unwrap();
    let ends: Vec<_> =
        [Transport::Soft, Transport::Shm, Transport::Soft, Transport::Shm].map(pair).into();
    let exports: Vec<_> =
        ends.iter().map(|(server, _)| words.export(server, None).unwrap()).collect();
    std::thread::scope(|s| {
        for ((_, client), export) in ends.iter().zip(&exports) {
            s.spawn(move || {
                let queue =
                    EventQueue::with_options(&QueueOptions::default().with_depth(64)).unwrap();
                let remote = export.descriptor();
                let mut last = None;
                for _ in 0..COUNT / 20 {
                    for i in 0..20 {
                        client.fetch_add(&queue, Token(i), &remote, 0, 1).unwrap();
                    }
                    for event in queue.dequeue_at_least(20, 64, None).unwrap() {
                        let old = event.old_value().unwrap();
                        assert!(last < Some(old), "a connection's additions are in order");
                        last = Some(old);
                    }
                }
            });
        }
        for _ in 0..COUNT {
            words.fetch_add(0, 1).unwrap();
        }
    });
    assert_eq!(words.load(0).unwrap(), 5 * COUNT);
    drop(exports);
    assert_eq!(words.fetch_add(0, 1).unwrap(), 5 * COUNT);
}

/// A counter outlives the connections over which it was exported.
#[test]
fn words_outlive_their_connections() {
    let _dog = Watchdog::new("words");
    let words = AtomicWords::new(2).unwrap();
    for round in 0..3 {
        let (server, client) = pair(Transport::Soft);
        let export = words.export(&server, None).unwrap();
        assert_eq!(client.blocking().fetch_add(&export.descriptor(), 8, 1).unwrap(), round);
        drop((client, server, export));
    }
    assert_eq!(words.load(1).unwrap(), 3);
}
