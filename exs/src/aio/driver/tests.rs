use std::os::fd::AsRawFd;

use super::*;
use crate::api::{
    Completion, EventQueue, Options, QueueOptions, RecvFlags, Socket, SocketType, Token, Transport,
    WaitPolicy,
};
use crate::progress::EdgeLoop;

/// Two queues in different shards. A process has several for each processor.
fn queues_of_two_shards() -> [EventQueue; 2] {
    let first = EventQueue::new(16).unwrap();
    let mut others = Vec::new();
    loop {
        let other = EventQueue::new(16).unwrap();
        if other.shard() != first.shard() {
            return [first, other];
        }
        // It stays, so that the next one gets another shard.
        others.push(other);
        assert!(others.len() < 100, "EXS_SHARDS is 1");
    }
}

/// Two connected sockets: the first lives in the shard of the first queue, the other in that of the
/// other.
fn connected(queues: &[EventQueue; 2]) -> (Socket, Socket) {
    let options = || Options::default().with_transport(Transport::Soft);
    let stream = || Socket::with_options(SocketType::Stream, options()).unwrap();
    let [queue, other] = queues;
    let (listener, client) = (stream(), stream());
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(1).unwrap();
    listener.accept(queue, Token(0)).unwrap();
    client.connect(other, Token(0), listener.local_addr().unwrap()).unwrap();
    other.next().unwrap().into_result().unwrap();
    match queue.next().unwrap().into_completion().unwrap() {
        Completion::Accept { socket, .. } => (socket, client),
        other => panic!("{other:?}"),
    }
}

/// A worker of a runtime may ask the kernel while another one runs the driver. So the driver may
/// have learnt of a message that its last question to the kernel has not found, and learns of it
/// once. The sender lives in another shard: only a question to the kernel finds its messages.
#[test]
fn no_sleep_is_announced_before_a_message_that_an_edge_has_reported() {
    let queues = queues_of_two_shards();
    let (server, client) = connected(&queues);
    let [queue, sends] = queues;

    let mut program = EdgeLoop::new(&queue);
    for n in 1..=2 {
        server.recv(&queue, Token(n), vec![0; 8], RecvFlags::NONE).unwrap();
    }
    let mut events = Vec::new();
    // The background thread may have led during the set-up, and would find the messages. A dequeue
    // asks it to leave, and it leaves a shard alone in which a sleep is announced.
    while !queue.announce_sleep() {
        queue.drive_into(&mut events, 8);
        assert!(events.is_empty(), "no message has been sent");
    }
    let mut found = |is_told: bool| {
        loop {
            match queue.drive_into(&mut events, 8) {
                Driven::Found { .. } => return events.pop().map(|e| e.token()),
                Driven::Asleep if is_told => return None,
                Driven::Asleep | Driven::Again => {}
            }
        }
    };
    client.send(&sends, Token(0), *b"one").unwrap();
    program.wait();
    assert_eq!(found(false), Some(Token(1)));
    client.send(&sends, Token(0), *b"two").unwrap();
    program.wait();
    assert_eq!(found(true), Some(Token(2)), "a sleep was announced, and no word comes again");
}

/// Looks in slices until the look is over, or has found something.
fn look(queue: &EventQueue, events: &mut Vec<Event>, look: &mut LoopLook) -> Driven {
    loop {
        if let Some(driven) = queue.look_into(events, 8, look) {
            return driven;
        }
    }
}

#[test]
fn a_driver_looks_for_as_long_as_that_pays() {
    let queues = queues_of_two_shards();
    let (server, client) = connected(&queues);
    let [queue, sends] = queues;
    let mut events = Vec::new();
    // A message that is there is found. The background thread may have led during the set-up.
    server.recv(&queue, Token(1), vec![0; 8], RecvFlags::NONE).unwrap();
    let mut under_way = queue.begin_look().expect("a new queue looks");
    client.send(&sends, Token(0), *b"one").unwrap();
    while !matches!(look(&queue, &mut events, &mut under_way), Driven::Found { .. }) {}
    assert_eq!(events.pop().map(|e| e.token()), Some(Token(1)));

    // Looks that find nothing end with a sleep, and after some of them no driver spins any more.
    // While the background thread leads, a look ends at once, and says nothing.
    let mut looks = 0;
    while let Some(mut next) = queue.begin_look().filter(LoopLook::spins) {
        let end = look(&queue, &mut events, &mut next);
        assert!(matches!(end, Driven::Asleep | Driven::Again), "{end:?}");
        looks += 1;
        assert!(looks < 1_000_000);
    }
    assert!(events.is_empty());

    // A message that ends a sleep soon brings the looks back. A busy machine makes sleeps long.
    let came_back = (0..10_000).any(|_| {
        server.recv(&queue, Token(1), vec![0; 8], RecvFlags::NONE).unwrap();
        while queue.drive_into(&mut events, 8) != Driven::Asleep {}
        client.send(&sends, Token(0), *b"soon").unwrap();
        while !matches!(queue.drive_into(&mut events, 8), Driven::Found { .. }) {}
        assert_eq!(events.pop().map(|e| e.token()), Some(Token(1)));
        sends.next().unwrap();
        queue.begin_look().is_some_and(|look| look.spins())
    });
    assert!(came_back);
}

#[test]
fn a_driver_whose_queue_must_not_spin_sleeps_at_once() {
    let options = QueueOptions::new().with_wait(WaitPolicy::Notify);
    let queue = EventQueue::with_options(&options).unwrap();
    assert!(queue.begin_look().is_none());
}

/// An epoll set takes a descriptor once, and two reactors of a runtime may have queues in one shard.
#[test]
fn queues_of_one_shard_have_descriptors_of_their_own() {
    let first = EventQueue::new(16).unwrap();
    let beside = QueueOptions::new().with_shard(Some(first.shard()));
    let other = EventQueue::with_options(&beside).unwrap();
    let mut fds: Vec<_> = [first, other].iter().flat_map(|q| q.drive_fds().unwrap()).collect();
    fds.sort_by_key(AsRawFd::as_raw_fd);
    fds.dedup_by_key(|fd| fd.as_raw_fd());
    assert_eq!(fds.len(), 6);
    let set = mio::Poll::new().unwrap();
    for fd in &fds {
        let source = &mut mio::unix::SourceFd(&fd.as_raw_fd());
        set.registry().register(source, mio::Token(0), mio::Interest::READABLE).unwrap();
    }
}
