//! Threads that share a shard and wait, each at a queue of its own for its own connection: each attends
//! its connection, as a thread that blocks in a call does. Every case begins with threads that block.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use exs::__ffi::is_attended;
use exs::progress::attending_threads;
use exs::{
    Error, Event, EventKind, EventQueue, QueueOptions, RecvFlags, Socket, Token, Transport,
    WaitPolicy,
};
use exs_tests::harness::blocked::{self, alone, beside_blocked_threads, until_threads_attend};
use exs_tests::harness::{LIMIT, check, pattern};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::Signal;

const BOTH: [Transport; 2] = [Transport::Soft, Transport::Shm];
const RECV: Token = Token(1);
const SEND: Token = Token(2);

/// Both ends of a connection whose start-up is over: a message has come each way.
fn pair(transport: Transport) -> (Socket, Socket) {
    let (client, server) = blocked::pair(transport);
    for (from, to) in [(&client, &server), (&server, &client)] {
        from.blocking().send_all(b"hello").unwrap();
        to.blocking().recv_exact(&mut [0; 5]).unwrap();
    }
    (client, server)
}

/// A queue for a thread that sleeps at once.
fn queue() -> EventQueue {
    EventQueue::with_options(&QueueOptions::new().with_depth(8).with_wait(WaitPolicy::Notify))
        .unwrap()
}

fn post_recv(socket: &Socket, queue: &EventQueue) {
    socket.recv(queue, RECV, vec![0; 64], RecvFlags::default()).unwrap();
}

/// The bytes of a receive.
fn received(mut event: Event) -> Vec<u8> {
    assert_eq!((event.token(), event.kind()), (RECV, EventKind::Recv));
    let buffer = event.take_buffer().unwrap();
    let len = event.into_result().unwrap();
    buffer[..len].to_vec()
}

/// Runs `act` once a thread attends the connection of `own`, as it waits at a queue with a receive. Returns
/// what that thread has dequeued.
fn wait_and<T: Send>(
    own: &Socket,
    wait: impl FnOnce(&EventQueue) -> T + Send,
    act: impl FnOnce(&EventQueue),
) -> T {
    let (queue, before) = (queue(), attending_threads());
    post_recv(own, &queue);
    thread::scope(|scope| {
        let thread = scope.spawn(|| wait(&queue));
        until_threads_attend(before + 1);
        act(&queue);
        thread.join().unwrap()
    })
}

#[test]
fn threads_with_queues_ask_and_answer() {
    let _one = alone("threads_with_queues_ask_and_answer");
    for transport in BOTH {
        beside_blocked_threads(transport, || {
            thread::scope(|scope| {
                for seed in 0..6 {
                    let (client, server) = pair(transport);
                    // Some messages are longer than what travels inside of a message.
                    let sizes = (0..60).map(move |n| 1 + (n * 977 * (seed + 1)) % 60_000);
                    let asked = sizes.clone();
                    scope.spawn(move || {
                        let queue = queue();
                        for size in asked {
                            let buffer = vec![0; size];
                            server.recv(&queue, RECV, buffer, RecvFlags::WAITALL).unwrap();
                            let question = queue.next().unwrap().take_buffer().unwrap();
                            server.send(&queue, SEND, question).unwrap();
                            assert_eq!(queue.next().unwrap().into_result().unwrap(), size);
                        }
                    });
                    scope.spawn(move || {
                        let queue = queue();
                        for size in sizes {
                            client.send(&queue, SEND, pattern(seed as u64, size, size)).unwrap();
                            let buffer = vec![0; size];
                            client.recv(&queue, RECV, buffer, RecvFlags::WAITALL).unwrap();
                            for mut event in queue.dequeue_at_least(2, 2, None).unwrap() {
                                let buffer = event.take_buffer().unwrap();
                                if event.kind() == EventKind::Recv {
                                    check(seed as u64, size, &buffer);
                                }
                                event.into_result().unwrap();
                            }
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn events_of_other_connections_end_the_wait() {
    let _one = alone("events_of_other_connections_end_the_wait");
    for transport in BOTH {
        beside_blocked_threads(transport, || {
            let ((peer, own), (other, _other_peer)) = (pair(transport), pair(transport));
            let act = |queue: &EventQueue| other.send(queue, SEND, *b"other").unwrap();
            let event = wait_and(&own, |queue| queue.next().unwrap(), act);
            assert_eq!((event.token(), event.into_result().unwrap()), (SEND, 5), "{transport}");
            drop(peer);
        });
    }
}

/// What another thread does while a thread waits.
#[derive(Clone, Copy, Debug)]
enum Act {
    Posts,
    Cancels,
    Signals,
}

/// Such a thread sleeps in a read of the stream, which no other thread can end.
#[test]
fn a_thread_with_a_queue_to_itself_gets_what_other_threads_do() {
    let _one = alone("a_thread_with_a_queue_to_itself_gets_what_other_threads_do");
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::default()).unwrap();
    for (transport, act) in BOTH
        .into_iter()
        .flat_map(|transport| [Act::Posts, Act::Cancels, Act::Signals].map(|act| (transport, act)))
    {
        beside_blocked_threads(transport, || {
            let ((peer, own), (other, _other_peer)) = (pair(transport), pair(transport));
            let (queue, before) = (queue(), attending_threads());
            let (tell, told) = channel();
            let (name, named) = channel();
            thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    name.send(pthread_self()).unwrap();
                    for _ in 0..100 {
                        post_recv(&own, &queue);
                        tell.send(received(queue.next().unwrap())).unwrap();
                    }
                    post_recv(&own, &queue);
                    queue.dequeue(1, None)
                });
                for n in 0..100 {
                    peer.blocking().send_all(&[n]).unwrap();
                    assert_eq!(told.recv().unwrap(), [n], "{transport}");
                }
                until_threads_attend(before + 1);
                match act {
                    Act::Posts => other.send(&queue, SEND, *b"other").unwrap(),
                    Act::Cancels => assert_eq!(own.cancel(RECV), 1, "{transport}"),
                    Act::Signals => {
                        let thread = named.recv().unwrap();
                        while !waiter.is_finished() {
                            // The thread is joined below, so it is still one to be signalled.
                            pthread_kill(thread, Signal::SIGUSR1).unwrap();
                            thread::yield_now();
                        }
                    }
                }
                let end = waiter.join().unwrap().map(|events| events[0].token());
                match act {
                    Act::Posts => assert_eq!(end.unwrap(), SEND, "{transport}"),
                    Act::Cancels => assert_eq!(end.unwrap(), RECV, "{transport}"),
                    Act::Signals => assert!(matches!(end, Err(Error::Interrupted)), "{end:?}"),
                }
            });
        });
    }
}

/// Also if the kernel would go on with a call after the handler (SA_RESTART, which this one has).
#[test]
fn a_signal_handler_ends_the_wait() {
    let _one = alone("a_signal_handler_ends_the_wait");
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::default()).unwrap();
    for transport in BOTH {
        beside_blocked_threads(transport, || {
            let (peer, own) = pair(transport);
            for limit in [None, Some(LIMIT)] {
                let (queue, before) = (queue(), attending_threads());
                post_recv(&own, &queue);
                let (tell, told) = channel();
                thread::scope(|scope| {
                    let waiter = scope.spawn(|| {
                        tell.send(pthread_self()).unwrap();
                        queue.dequeue(1, limit)
                    });
                    let thread = told.recv().unwrap();
                    until_threads_attend(before + 1);
                    while !waiter.is_finished() {
                        // The thread is joined below, so it is still one to be signalled.
                        pthread_kill(thread, Signal::SIGUSR1).unwrap();
                        thread::yield_now();
                    }
                    let end = waiter.join().unwrap();
                    assert!(matches!(end, Err(Error::Interrupted)), "{transport}: {end:?}");
                });
                // Nothing is lost by it.
                peer.blocking().send_all(b"bytes").unwrap();
                assert_eq!(received(queue.next().unwrap()), b"bytes", "{transport}");
            }
        });
    }
}

/// The thread that has attended the connection comes back with calls that do not wait, or waits for the
/// queue's descriptor: the leader looks after the connection again.
#[test]
fn a_connection_returns_to_the_leader() {
    let _one = alone("a_connection_returns_to_the_leader");
    let polls = |queue: &EventQueue| {
        loop {
            if let Some(event) = queue.dequeue(1, Some(Duration::ZERO)).unwrap().pop() {
                return event;
            }
        }
    };
    let sleeps = |queue: &EventQueue| {
        loop {
            if let Some(event) = queue.dequeue(1, Some(Duration::ZERO)).unwrap().pop() {
                return event;
            }
            let mut fds = [PollFd::new(queue.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::NONE).unwrap();
        }
    };
    let ways: [&(dyn Fn(&EventQueue) -> Event + Sync); 2] = [&polls, &sleeps];
    for transport in BOTH {
        beside_blocked_threads(transport, || {
            for way in ways {
                let (peer, own) = pair(transport);
                let wait = |queue: &EventQueue| {
                    let first = received(queue.next().unwrap());
                    assert!(is_attended(&own), "{transport}: the thread most likely waits again");
                    post_recv(&own, queue);
                    peer.blocking().send_all(b"second").unwrap();
                    let second = received(way(queue));
                    assert!(!is_attended(&own), "{transport}");
                    (first, second)
                };
                let act = |_: &EventQueue| peer.blocking().send_all(b"first").unwrap();
                let got = wait_and(&own, wait, act);
                assert_eq!(got, (b"first".to_vec(), b"second".to_vec()), "{transport}");
            }
        });
    }
}

/// The time is up, the peer closes, or another thread cancels the receive.
#[test]
fn waits_end_as_those_of_leaders_do() {
    let _one = alone("waits_end_as_those_of_leaders_do");
    for transport in BOTH {
        beside_blocked_threads(transport, || {
            let (peer, own) = pair(transport);
            let short = Duration::from_millis(20);
            let none = wait_and(&own, |queue| queue.dequeue(1, Some(short)).unwrap(), |_| ());
            assert!(none.is_empty(), "{transport}: nothing has come");
            drop(peer);
            let (peer, own) = pair(transport);
            let event = wait_and(&own, |queue| queue.next().unwrap(), |_| drop(peer));
            assert_eq!(event.into_result().unwrap(), 0, "{transport}: the end of the stream");
            let (_peer, own) = pair(transport);
            let act = |_: &EventQueue| assert_eq!(own.cancel(RECV), 1);
            let event = wait_and(&own, |queue| queue.next().unwrap(), act);
            let errno = event.into_result().unwrap_err().errno();
            assert_eq!(errno, libc::ECANCELED, "{transport}");
        });
    }
}

/// Two connections have receives at one queue, so its thread leads, or follows.
#[test]
fn a_queue_of_two_connections_has_no_attendant() {
    let _one = alone("a_queue_of_two_connections_has_no_attendant");
    for transport in BOTH {
        beside_blocked_threads(transport, || {
            let ((one, first), (two, second)) = (pair(transport), pair(transport));
            let queue = queue();
            for round in 0..100_u8 {
                let (from, own) = if round % 3 == 0 { (&one, &first) } else { (&two, &second) };
                if round == 0 {
                    post_recv(&first, &queue);
                    post_recv(&second, &queue);
                }
                from.blocking().send_all(&[round]).unwrap();
                assert_eq!(received(queue.next().unwrap()), [round], "{transport}");
                assert!(!is_attended(&first) && !is_attended(&second), "{transport}");
                post_recv(own, &queue);
            }
        });
    }
}
