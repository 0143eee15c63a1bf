//! The data path takes no lock of the process and writes no number of it, so threads in different
//! shards gain from each processor. Alone in its process, since other tests set things up.

use std::sync::Barrier;

use exs::progress::limit_shards;
use exs::sys::process_touches;
use exs::{
    Completion, EventQueue, MemoryRegion, Options, RecvFlags, Socket, SocketType, Token, Transport,
};
use exs_tests::harness::Watchdog;

/// Sends and receives of both threads.
const OPERATIONS: usize = 100_000;
const THREADS: usize = 2;
const DEPTH: usize = 16;

struct Ends {
    queue: EventQueue,
    sender: Socket,
    receiver: Socket,
}

/// A pair of connected sockets, and a queue, in a shard of their own.
fn ends(transport: Transport) -> Ends {
    let queue = EventQueue::new(4 * DEPTH).unwrap();
    let options = Options::default().with_transport(transport);
    let make = || Socket::with_options(SocketType::Stream, options.clone()).unwrap();
    let listener = make();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(1).unwrap();
    listener.accept(&queue, Token(0)).unwrap();
    let sender = make();
    sender.connect(&queue, Token(0), listener.local_addr().unwrap()).unwrap();
    let mut receiver = None;
    for _ in 0..2 {
        if let Completion::Accept { socket, .. } = queue.next().unwrap().into_completion().unwrap()
        {
            receiver = Some(socket);
        }
    }
    Ends { queue, sender, receiver: receiver.unwrap() }
}

/// Moves that many messages from one end to the other, a few at a time.
fn flow(ends: &Ends, region: &MemoryRegion, count: usize, len: usize) {
    let Ends { queue, sender, receiver } = ends;
    let mut events = Vec::with_capacity(4 * DEPTH);
    for _ in 0..count / DEPTH {
        for i in 0..DEPTH {
            let buffer = region.buffer(i * len..(i + 1) * len).unwrap();
            receiver.recv(queue, Token(1), buffer, RecvFlags::WAITALL).unwrap();
        }
        for i in 0..DEPTH {
            let buffer = region.buffer((DEPTH + i) * len..(DEPTH + i + 1) * len).unwrap();
            sender.send(queue, Token(2), buffer).unwrap();
        }
        let mut left = 2 * DEPTH;
        while left > 0 {
            left -= queue.dequeue_into(&mut events, 1, left, None).unwrap();
            for event in events.drain(..) {
                event.into_completion().unwrap();
            }
        }
    }
}

/// Rounds in which what was set up before may still come to its end.
const ROUNDS: usize = 20;

fn touches(transport: Transport, len: usize, operations: usize) -> u64 {
    let all: Vec<Ends> = (0..THREADS).map(|_| ends(transport)).collect();
    assert_ne!(all[0].queue.shard(), all[1].queue.shard());
    let [begin, end, counted] = &[(); 3].map(|()| Barrier::new(THREADS + 1));
    std::thread::scope(|scope| {
        let spawn = |ends| {
            scope.spawn(move || {
                let region = MemoryRegion::new(2 * DEPTH * len).unwrap();
                // Whatever is set up once: the thread's locals, rings, registrations.
                flow(ends, &region, 20 * DEPTH, len);
                begin.wait();
                flow(ends, &region, operations / (2 * THREADS), len);
                end.wait();
                // The end of a thread takes a lock.
                counted.wait();
            })
        };
        let threads: Vec<_> = all.iter().map(spawn).collect();
        begin.wait();
        let before = process_touches();
        end.wait();
        let touches = process_touches() - before;
        counted.wait();
        // A scope does not wait for the ends of the threads' locals, which the next count would find.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        touches
    })
}

#[test]
fn two_shards_share_nothing_on_the_data_path() {
    let _dog = Watchdog::new("two_shards_share_nothing_on_the_data_path");
    limit_shards(THREADS).unwrap();
    for transport in [Transport::Soft, Transport::Shm] {
        for (len, operations) in [(64, OPERATIONS), (4096, OPERATIONS), (65_536, OPERATIONS / 10)] {
            // What was set up before a count may end within it: background threads begin late on a
            // busy machine, and closed sockets let go of their queues. That takes a lock or two, in
            // some rounds. The data path would take one for each operation, in every round.
            let mut rounds = Vec::new();
            while rounds.last() != Some(&0) && rounds.len() < ROUNDS {
                rounds.push(touches(transport, len, operations));
            }
            assert_eq!(rounds.last(), Some(&0), "{transport}, {len} bytes: {rounds:?}");
        }
    }
}
