//! Threads that wait at a queue for one connection that lives in another shard than the queue: each waits
//! where the connection lives.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use exs::__ffi::shard_of;
use exs::progress::{limit_shards, waiting_threads};
use exs::{
    Completion, Error, Event, EventKind, EventQueue, Options, QueueOptions, RecvFlags, Socket,
    SocketType, Token, Transport, WaitPolicy,
};
use exs_tests::harness::{LIMIT, Watchdog, check, pattern};
use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::Signal;

const BOTH: [Transport; 2] = [Transport::Soft, Transport::Shm];
const RECV: Token = Token(1);
const OTHER: Token = Token(2);

/// One test at a time, as each asks which shards are led.
fn alone(what: &'static str) -> (Watchdog, MutexGuard<'static, ()>) {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    limit_shards(2).unwrap();
    (Watchdog::new(what), one)
}

/// For threads that sleep at once: a wake-up that is lost hangs the test.
fn queue(beside: Option<&EventQueue>) -> EventQueue {
    let shard = beside.map(EventQueue::shard);
    let options = QueueOptions::new().with_depth(8).with_wait(WaitPolicy::Notify);
    EventQueue::with_options(&options.with_shard(shard)).unwrap()
}

/// A queue in each of the two shards.
fn queues() -> [EventQueue; 2] {
    let first = queue(None);
    loop {
        let second = queue(None);
        if second.shard() != first.shard() {
            return [first, second];
        }
    }
}

/// Both ends of a connection. The first one lives in the shard of this queue, and stays there. Without a
/// keep-alive, whose probes would make good a wake-up that was lost.
fn pair(transport: Transport, home: &EventQueue) -> (Socket, Socket) {
    let options = Options::default().with_transport(transport);
    let options = options.with_keep_alive(None).with_dead_after(None);
    let socket = || Socket::with_options(SocketType::Stream, options.clone()).unwrap();
    let (listener, own) = (socket(), socket());
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(4).unwrap();
    own.connect(home, OTHER, listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.blocking().accept().unwrap();
    home.next().unwrap().into_result().unwrap();
    for (from, to) in [(&own, &peer), (&peer, &own)] {
        from.blocking().send_all(b"hello").unwrap();
        to.blocking().recv_exact(&mut [0; 5]).unwrap();
    }
    assert_eq!(shard_of(&own), home.shard());
    (own, peer)
}

fn post_recv(socket: &Socket, queue: &EventQueue) {
    socket.recv(queue, RECV, vec![0; 64], RecvFlags::default()).unwrap();
}

fn send(peer: &Socket, bytes: &[u8]) {
    peer.blocking().send_all(bytes).unwrap();
}

/// The bytes of a receive.
fn received(mut event: Event) -> Vec<u8> {
    assert_eq!(event.kind(), EventKind::Recv);
    let buffer = event.take_buffer().unwrap();
    let len = event.into_result().unwrap();
    buffer[..len].to_vec()
}

/// Waits for two receives, and tells the bytes of each.
fn tell_two(queue: &EventQueue, tell: &Sender<Vec<u8>>) {
    for _ in 0..2 {
        tell.send(received(queue.next().unwrap())).unwrap();
    }
}

fn until(what: impl Fn() -> bool) {
    while !what() {
        thread::yield_now();
    }
}

/// Waits until these numbers of threads wait in the shards of the queues.
fn until_threads_wait(shards: [(&EventQueue, usize); 2]) {
    until(|| shards.iter().all(|(queue, threads)| waiting_threads(queue.shard()) == *threads));
}

#[test]
fn a_thread_waits_where_its_connection_lives() {
    let _one = alone("a_thread_waits_where_its_connection_lives");
    for transport in BOTH {
        let [home, own] = queues();
        let (socket, peer) = pair(transport, &home);
        let (tell, told) = channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20 {
                    post_recv(&socket, &own);
                    tell.send(received(own.next().unwrap())).unwrap();
                }
            });
            for n in 0..20 {
                until_threads_wait([(&home, 1), (&own, 0)]);
                send(&peer, &[n]);
                assert_eq!(told.recv().unwrap(), [n]);
            }
        });
        assert_eq!(own.outstanding(), 0, "{transport}");
    }
}

/// The other thread posts an operation of a connection in the queue's shard, and never comes for it.
#[test]
fn a_thread_that_posts_calls_it_back() {
    let _one = alone("a_thread_that_posts_calls_it_back");
    for transport in BOTH {
        let [home, own] = queues();
        let (socket, peer) = pair(transport, &home);
        let (near, near_peer) = pair(transport, &own);
        let (tell, told) = channel();
        thread::scope(|scope| {
            post_recv(&socket, &own);
            scope.spawn(|| tell_two(&own, &tell));
            until_threads_wait([(&home, 1), (&own, 0)]);
            post_recv(&near, &own);
            until_threads_wait([(&home, 0), (&own, 1)]);
            for (peer, bytes) in [(&near_peer, b"near"), (&peer, b"far ")] {
                send(peer, bytes);
                assert_eq!(told.recv().unwrap(), bytes, "{transport}");
            }
        });
    }
}

/// Only the one of the two threads is called back.
#[test]
fn threads_wait_side_by_side_where_their_connections_live() {
    let _one = alone("threads_wait_side_by_side_where_their_connections_live");
    for transport in BOTH {
        let [home, own] = queues();
        let also_own = queue(Some(&own));
        let (first, first_peer) = pair(transport, &home);
        let (second, second_peer) = pair(transport, &home);
        let (near, near_peer) = pair(transport, &own);
        let (tell, told) = channel();
        thread::scope(|scope| {
            post_recv(&first, &own);
            let leads = scope.spawn(|| received(own.next().unwrap()));
            until_threads_wait([(&home, 1), (&own, 0)]);
            post_recv(&second, &also_own);
            scope.spawn(|| tell_two(&also_own, &tell));
            until_threads_wait([(&home, 2), (&own, 0)]);
            post_recv(&near, &also_own);
            until_threads_wait([(&home, 1), (&own, 1)]);
            for (peer, bytes) in [(&near_peer, b"near  "), (&second_peer, b"second")] {
                send(peer, bytes);
                assert_eq!(told.recv().unwrap(), bytes, "{transport}");
            }
            send(&first_peer, b"first");
            assert_eq!(leads.join().unwrap(), b"first", "{transport}");
        });
    }
}

/// A thread that also dequeues elsewhere drives both shards.
#[test]
fn a_thread_with_queues_in_two_shards_stays_in_that_of_the_queue() {
    let _one = alone("a_thread_with_queues_in_two_shards_stays_in_that_of_the_queue");
    for transport in BOTH {
        let [home, own] = queues();
        let (socket, peer) = pair(transport, &home);
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                assert!(home.dequeue(1, Some(Duration::ZERO)).unwrap().is_empty());
                post_recv(&socket, &own);
                received(own.next().unwrap())
            });
            until_threads_wait([(&home, 0), (&own, 1)]);
            send(&peer, b"hello");
            assert_eq!(thread.join().unwrap(), b"hello", "{transport}");
        });
    }
}

/// Begins a wait in another shard, and runs `act` with the thread's socket, its queue and itself.
fn wait_and<T: Send>(
    transport: Transport,
    wait: impl FnOnce(&EventQueue) -> T + Send,
    act: impl FnOnce(&Socket, &EventQueue, Pthread),
) -> T {
    let [home, own] = queues();
    let (socket, _peer) = pair(transport, &home);
    post_recv(&socket, &own);
    let (tell, told): (Sender<Pthread>, _) = channel();
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            tell.send(pthread_self()).unwrap();
            wait(&own)
        });
        let id = told.recv().unwrap();
        until_threads_wait([(&home, 1), (&own, 0)]);
        act(&socket, &own, id);
        thread.join().unwrap()
    })
}

#[test]
fn the_wait_has_the_limit_of_the_call() {
    let _one = alone("the_wait_has_the_limit_of_the_call");
    for transport in BOTH {
        let limit = Some(Duration::from_millis(200));
        let events = wait_and(transport, |queue| queue.dequeue(1, limit).unwrap(), |_, _, _| {});
        assert!(events.is_empty(), "{transport}");
    }
}

#[test]
fn a_signal_handler_ends_the_wait() {
    let _one = alone("a_signal_handler_ends_the_wait");
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::default()).unwrap();
    let ended_seen = Barrier::new(2);
    for transport in BOTH {
        for limit in [None, Some(LIMIT)] {
            let (over, ended) = channel();
            let wait = |queue: &EventQueue| {
                over.send(queue.dequeue(1, limit)).unwrap();
                // The thread is there to be signalled until the other one has the result.
                ended_seen.wait();
            };
            wait_and(transport, wait, |_, _, thread| {
                let ended = loop {
                    // The handler may run before the thread sleeps.
                    pthread_kill(thread, Signal::SIGUSR1).unwrap();
                    match ended.try_recv() {
                        Ok(ended) => break ended,
                        Err(_) => thread::yield_now(),
                    }
                };
                ended_seen.wait();
                assert!(matches!(ended, Err(Error::Interrupted)), "{transport}: {ended:?}");
            });
        }
    }
}

#[test]
fn a_cancel_and_a_close_end_the_wait() {
    let _one = alone("a_cancel_and_a_close_end_the_wait");
    for transport in BOTH {
        let next = |queue: &EventQueue| queue.next().unwrap();
        let event = wait_and(transport, next, |socket, _, _| assert_eq!(socket.cancel(RECV), 1));
        assert_eq!(event.kind(), EventKind::Recv, "{transport}");
        assert!(event.into_result().is_err(), "{transport}");
        let event = wait_and(transport, next, |socket, queue, _| {
            socket.close(queue, OTHER).unwrap();
        });
        assert!(event.into_result().is_err(), "{transport}");
    }
}

/// Threads take connections from a pool, ask on one at a time, and put it back.
#[test]
fn connections_of_a_pool_change_their_users() {
    const THREADS: usize = 4;
    const CONNECTIONS: usize = 6;
    let _one = alone("connections_of_a_pool_change_their_users");
    for transport in BOTH {
        let homes = queues();
        let made = (0..CONNECTIONS).map(|n| pair(transport, &homes[n % 2]));
        let (pool, peers): (Vec<_>, Vec<_>) = made.unzip();
        let pool = Mutex::new(pool);
        thread::scope(|scope| {
            for peer in peers {
                scope.spawn(move || {
                    let mut size = [0; 8];
                    while peer.blocking().recv_exact(&mut size).is_ok() {
                        let len = usize::try_from(u64::from_le_bytes(size)).unwrap();
                        send(&peer, &pattern(len as u64, 0, len));
                    }
                });
            }
            let users: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (pool, home) = (&pool, &homes[thread % 2]);
                    scope.spawn(move || {
                        let own = queue(Some(home));
                        for n in 0..150 {
                            let socket = pool.lock().unwrap().pop().unwrap();
                            // Some answers are longer than what travels inside of a message.
                            let len = 1 + (n * 977 + thread * 131) % 60_000;
                            ask(&socket, &own, len);
                            pool.lock().unwrap().insert(0, socket);
                        }
                    })
                })
                .collect();
            users.into_iter().for_each(|user| user.join().unwrap());
            pool.lock().unwrap().clear();
        });
    }
}

fn ask(socket: &Socket, queue: &EventQueue, len: usize) {
    socket.recv(queue, RECV, vec![0; len], RecvFlags::WAITALL).unwrap();
    socket.send(queue, OTHER, (len as u64).to_le_bytes()).unwrap();
    for _ in 0..2 {
        match queue.next().unwrap().into_completion().unwrap() {
            Completion::Recv { buffer, bytes, .. } => {
                assert_eq!(bytes, len);
                check(len as u64, 0, &buffer[..bytes]);
            }
            Completion::Send { bytes, .. } => assert_eq!(bytes, 8),
            other => panic!("{other:?}"),
        }
    }
}
