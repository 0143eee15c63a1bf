//! Event loops on the descriptor of a queue: none waits for the background thread to look around, and
//! none misses an event, whatever it does between its dequeues.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use exs::{Event, EventKind, EventQueue, Options, RecvFlags, Socket, Token, Transport};
use exs_tests::harness::{Env, LIMIT, Rng, Watchdog};
use mio::unix::SourceFd;
use nix::poll::{PollFd, PollFlags, PollTimeout};

const NOW: Option<Duration> = Some(Duration::ZERO);
/// Long after the background thread has looked around, and before a deadline of the connection ends the
/// sleep.
const SOON: Duration = Duration::from_secs(10);
/// Bytes of a message.
const LEN: usize = 8;

fn streams(transport: Transport) -> (Socket, Socket) {
    Env::new(Options::default().with_transport(transport), IpAddr::from([127, 0, 0, 1])).streams()
}

/// A loop that learns of each change once (EPOLLET).
struct EdgeLoop {
    poll: mio::Poll,
    events: mio::Events,
}

impl EdgeLoop {
    fn new(queue: &EventQueue) -> EdgeLoop {
        let poll = mio::Poll::new().unwrap();
        let (fd, readable) = (queue.as_raw_fd(), mio::Interest::READABLE);
        poll.registry().register(&mut SourceFd(&fd), mio::Token(0), readable).unwrap();
        EdgeLoop { poll, events: mio::Events::with_capacity(4) }
    }

    fn sleep(&mut self) {
        self.poll.poll(&mut self.events, None).unwrap();
    }
}

fn receive(queue: &EventQueue, socket: &Socket, at: usize) {
    socket.recv(queue, Token(at as u64), vec![0; LEN], RecvFlags::WAITALL).unwrap();
}

/// Messages come on one connection each time, and now and then on others beside it, before the loop wakes.
/// The thread dequeues until nothing comes before it sleeps. If it learnt of the others only when the
/// background thread looks around, this would take minutes.
fn others_are_served(name: &str, transport: Transport) {
    const CONNECTIONS: usize = 4;
    let _dog = Watchdog::with_limit(name, LIMIT);
    let (ours, theirs): (Vec<_>, Vec<_>) = (0..CONNECTIONS).map(|_| streams(transport)).unzip();
    let queue = EventQueue::new(4 * CONNECTIONS).unwrap();
    let mut edges = EdgeLoop::new(&queue);
    for (at, socket) in theirs.iter().enumerate() {
        receive(&queue, socket, at);
    }
    let mut rng = Rng::new(7);
    for round in 0..40_000_u64 {
        let mut left = 0;
        for (at, socket) in ours.iter().enumerate() {
            if at == 0 || rng.one_in(4) {
                socket.blocking().send_all(&round.to_be_bytes()).unwrap();
                left += 1;
            }
        }
        while left > 0 {
            let events = queue.dequeue(2, NOW).unwrap();
            if events.is_empty() {
                edges.sleep();
            }
            for event in events {
                assert_eq!((event.kind(), event.bytes()), (EventKind::Recv, LEN));
                let at = usize::try_from(event.token().0).unwrap();
                assert_eq!(&event.into_buffer().unwrap()[..], &round.to_be_bytes());
                receive(&queue, &theirs[at], at);
                left -= 1;
            }
        }
    }
}

#[test]
fn a_loop_serves_other_connections_soft() {
    others_are_served("a_loop_serves_other_connections_soft", Transport::Soft);
}

#[test]
fn a_loop_serves_other_connections_shm() {
    others_are_served("a_loop_serves_other_connections_shm", Transport::Shm);
}

fn await_readable(queue: &EventQueue) {
    let mut fds = [PollFd::new(queue.as_fd(), PollFlags::POLLIN)];
    let limit = PollTimeout::try_from(SOON).unwrap();
    assert_eq!(nix::poll::poll(&mut fds, limit).unwrap(), 1, "the descriptor shows no event");
}

/// Sleeps until the descriptor shows events, and takes them.
fn sleep_for_events(queue: &EventQueue) -> Vec<Event> {
    loop {
        await_readable(queue);
        let events = queue.dequeue(4, NOW).unwrap();
        if !events.is_empty() {
            return events;
        }
    }
}

/// The other end sends a message, for which a receive is posted.
fn ask(queue: &EventQueue, a: &Socket, b: &Socket, message: [u8; LEN]) {
    receive(queue, a, 1);
    b.blocking().send_all(&message).unwrap();
}

/// Has a queue and one end of a connection that a loop has served for a while. It has dequeued until
/// nothing came before each of its sleeps, so the library knows that it comes again.
fn with_orderly_loop(transport: Transport, then: impl FnOnce(&EventQueue, &Socket, &Socket)) {
    let (a, b) = streams(transport);
    let queue = EventQueue::new(16).unwrap();
    for round in 0..64_u64 {
        ask(&queue, &a, &b, round.to_be_bytes());
        let mut answered = false;
        while !answered {
            await_readable(&queue);
            loop {
                let events = queue.dequeue(4, NOW).unwrap();
                if events.is_empty() {
                    break;
                }
                for event in events {
                    if event.kind() == EventKind::Recv {
                        a.send(&queue, Token(2), vec![1; LEN]).unwrap();
                    }
                    answered |= event.kind() == EventKind::Send;
                }
            }
        }
        b.blocking().recv_exact(&mut [0; LEN]).unwrap();
    }
    then(&queue, &a, &b);
}

/// The thread takes all events, posts once more, and sleeps at once.
#[test]
fn a_loop_that_posts_before_it_sleeps_is_woken() {
    let _dog = Watchdog::with_limit("a_loop_that_posts_before_it_sleeps", LIMIT);
    for transport in [Transport::Soft, Transport::Shm] {
        with_orderly_loop(transport, |queue, a, b| {
            for n in 0..=255 {
                ask(queue, a, b, [n; LEN]);
                sleep_for_events(queue);
                a.send(queue, Token(2), vec![n; LEN]).unwrap();
                sleep_for_events(queue);
                b.blocking().recv_exact(&mut [0; LEN]).unwrap();
            }
        });
    }
}

/// One thread takes all events and posts, and another one sleeps for the descriptor.
#[test]
fn a_thread_that_sleeps_is_woken_for_what_another_posts() {
    let _dog = Watchdog::with_limit("a_thread_that_sleeps_is_woken", LIMIT);
    for transport in [Transport::Soft, Transport::Shm] {
        with_orderly_loop(transport, |queue, a, b| {
            for n in 0..=255 {
                ask(queue, a, b, [n; LEN]);
                sleep_for_events(queue);
                std::thread::scope(|s| {
                    let sleeper = s.spawn(|| {
                        if queue.dequeue(4, NOW).unwrap().is_empty() {
                            sleep_for_events(queue);
                        }
                    });
                    a.send(queue, Token(2), vec![n; LEN]).unwrap();
                    sleeper.join().unwrap();
                });
                b.blocking().recv_exact(&mut [0; LEN]).unwrap();
            }
        });
    }
}

/// The sleep of a loop is announced, and another thread takes an event and posts once more.
#[test]
fn an_event_for_a_loop_that_sleeps_is_shown() {
    let _dog = Watchdog::with_limit("an_event_for_a_loop_that_sleeps_is_shown", LIMIT);
    for transport in [Transport::Soft, Transport::Shm] {
        with_orderly_loop(transport, |queue, a, b| {
            assert!(queue.dequeue(4, NOW).unwrap().is_empty());
            let send = || a.send(queue, Token(2), vec![1; LEN]).unwrap();
            std::thread::scope(|s| s.spawn(send).join()).unwrap();
            // It lies in the queue, so no thread comes to the shard for it.
            assert_eq!(queue.dequeue(4, NOW).unwrap().len(), 1);
            send();
            await_readable(queue);
            assert_eq!(queue.dequeue(4, NOW).unwrap().len(), 1);
            b.blocking().recv_exact(&mut [0; 2 * LEN]).unwrap();
        });
    }
}
