//! Connections that an engine has lent to the threads that block on them: these send and receive small
//! messages by themselves, and anything else brings the connection back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use exs::__ffi::{is_attended, is_dormant_loan, is_waiting_on_loan, recv_passing};
use exs::progress::leading_threads;
use exs::{
    Buffer, Error, EventQueue, Interest, OpError, Options, RecvFlags, Rights, Socket, SocketType,
    Token, Transport,
};
use exs_tests::harness::blocked::{
    IDLERS, alone, beside_blocked_threads, pair, until_threads_attend,
};
use exs_tests::harness::{Rng, Watchdog, check, pattern, peer};
use exs_tests::skip::skip;
use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::Signal;
use nix::unistd::{Uid, geteuid, setuid};

/// The transports whose RNICs lend.
const LENDING: [Transport; 2] = [Transport::Soft, Transport::Shm];

/// Small messages after which a connection has been lent: the first sleeps of a thread are ordinary ones.
const BEFORE: usize = 20;

/// Runs a case on each of these transports, beside threads that block.
fn on_each(case: impl Fn(Transport)) {
    LENDING.into_iter().for_each(|transport| beside_blocked_threads(transport, || case(transport)));
}

/// Answers questions of these lengths, until the end.
fn answer(server: &Socket, lengths: impl Iterator<Item = usize>) {
    for len in lengths {
        let mut question = vec![0; len];
        server.blocking().recv_exact(&mut question).unwrap();
        server.blocking().send_all(&question).unwrap();
    }
}

fn ask(client: &Socket, seed: u64, len: usize) {
    client.blocking().send_all(&pattern(seed, len, len)).unwrap();
    let mut answer = vec![0; len];
    client.blocking().recv_exact(&mut answer).unwrap();
    check(seed, len, &answer);
}

/// A connection on which small messages have passed, so that each end has been lent at its next wait.
fn warm(client: &Socket, server: &Socket) {
    thread::scope(|scope| {
        scope.spawn(|| answer(server, std::iter::repeat_n(10, BEFORE)));
        (0..BEFORE).for_each(|_| ask(client, 1, 10));
    });
}

/// Sleeps are counted by the engine alone. A busy host can make a thread wait so long that the engine gets
/// its connection back, so the case goes on until few messages in a row take a sleep.
#[test]
fn threads_move_small_messages_without_the_engine() {
    const ROUNDS: usize = 100;
    let _one = alone("threads_move_small_messages_without_the_engine");
    on_each(|transport| {
        let (client, server) = pair(transport);
        warm(&client, &server);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    answer(&server, std::iter::repeat_n(10, ROUNDS));
                }
            });
            loop {
                let before = exs::counters().unwrap();
                (1..ROUNDS).for_each(|_| ask(&client, 1, 10));
                let after = exs::counters().unwrap();
                assert!(after.sends - before.sends >= 2 * (ROUNDS as u64 - 2), "all are counted");
                let lent = after.sleeps - before.sleeps < ROUNDS as u64 / 2;
                over.store(lent, Ordering::Relaxed);
                ask(&client, 1, 10);
                if lent {
                    break;
                }
            }
        });
    });
}

/// Messages of all sizes, calls of other kinds, and a third thread that calls again and again.
#[test]
fn calls_of_other_threads_bring_a_connection_back() {
    const ROUNDS: usize = 400;
    let _one = alone("calls_of_other_threads_bring_a_connection_back");
    on_each(|transport| {
        let pairs: Vec<_> = (0..4).map(|_| pair(transport)).collect();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let askers: Vec<_> = pairs
                .iter()
                .zip(1..)
                .map(|((client, server), seed)| {
                    let lengths = move || {
                        let mut rng = Rng::new(seed);
                        (0..ROUNDS).map(move |_| match rng.between(0, 7) {
                            0 => rng.between(1, 200_000),
                            1 => rng.between(4000, 4200),
                            _ => rng.between(1, 100),
                        })
                    };
                    scope.spawn(move || answer(server, lengths()));
                    scope.spawn(move || lengths().for_each(|len| ask(client, seed, len)))
                })
                .collect();
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for (client, server) in &pairs {
                        assert!(
                            client.counters().sends
                                <= server.counters().sends + ROUNDS as u64 * 100
                        );
                        server.set_user_data(1);
                        assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
                        thread::yield_now();
                    }
                    exs::counters().unwrap();
                }
            });
            let ends: Vec<_> = askers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            over.store(true, Ordering::Relaxed);
            assert!(ends.iter().all(Result::is_ok));
        });
    });
}

#[test]
fn each_kind_of_call_finds_the_connection() {
    let _one = alone("each_kind_of_call_finds_the_connection");
    on_each(|transport| {
        let (client, server) = pair(transport);
        let queue = EventQueue::new(8).unwrap();
        // A send with a queue.
        warm(&client, &server);
        client.send(&queue, Token(1), pattern(2, 0, 3000)).unwrap();
        let mut got = vec![0; 3000];
        server.blocking().recv_exact(&mut got).unwrap();
        check(2, 0, &got);
        assert_eq!(queue.next().unwrap().result().unwrap(), 3000);
        // A receive with a queue, of a small message and of a large one.
        for len in [10, 1 << 20] {
            warm(&client, &server);
            server.recv(&queue, Token(2), vec![0; len], RecvFlags::WAITALL).unwrap();
            client.blocking().send_all(&pattern(3, 0, len)).unwrap();
            let event = queue.next().unwrap();
            check(3, 0, &event.into_buffer().unwrap());
        }
        // A poll.
        warm(&client, &server);
        server.poll(&queue, Token(3), Interest::READABLE).unwrap();
        client.blocking().send_all(b"hello").unwrap();
        assert!(queue.next().unwrap().result().is_ok());
        server.blocking().recv_exact(&mut [0; 5]).unwrap();
        // More small messages than the peer has receives for, in one direction.
        warm(&client, &server);
        (0..1000).for_each(|_| client.blocking().send_all(&[7; 10]).unwrap());
        server.blocking().recv_exact(&mut [0; 10_000]).unwrap();
        // A READ by the peer.
        let export = server.export(vec![7; 4096], Rights::READ, None).unwrap();
        warm(&client, &server);
        client.read(&queue, Token(4), &export.descriptor(), 0, vec![1; 4096]).unwrap();
        assert_eq!(queue.next().unwrap().result().unwrap(), 4096);
        drop(export);
        // The end.
        warm(&client, &server);
        client.blocking().send_all(b"last").unwrap();
        drop(client);
        let mut last = [0; 5];
        assert_eq!(server.blocking().recv(&mut last).unwrap(), 4);
        assert_eq!(server.blocking().recv(&mut last).unwrap(), 0);
    });
}

/// Two threads receive on one connection, and two send.
#[test]
fn threads_share_a_connection() {
    const MESSAGES: usize = 2000;
    let _one = alone("threads_share_a_connection");
    on_each(|transport| {
        let (client, server) = pair(transport);
        warm(&client, &server);
        let sums: Vec<usize> = thread::scope(|scope| {
            let receivers = [0, 1].map(|_| {
                scope.spawn(|| {
                    let mut sum = 0;
                    loop {
                        let mut bytes = [0; 64];
                        match server.blocking().recv(&mut bytes).unwrap() {
                            0 => return sum,
                            n => sum += bytes[..n].iter().map(|b| usize::from(*b)).sum::<usize>(),
                        }
                    }
                })
            });
            let senders = [1, 2].map(|byte| {
                let client = &client;
                scope.spawn(move || {
                    for _ in 0..MESSAGES {
                        client.blocking().send_all(&[byte; 8]).unwrap();
                        if byte == 1 {
                            thread::yield_now();
                        }
                    }
                })
            });
            senders.into_iter().for_each(|sender| sender.join().unwrap());
            client.blocking().shutdown(std::net::Shutdown::Write).unwrap();
            receivers.into_iter().map(|receiver| receiver.join().unwrap()).collect()
        });
        assert_eq!(sums.iter().sum::<usize>(), MESSAGES * 8 * 3);
    });
}

/// A thread that does not come back leaves its connection to the engine, which answers the peer.
#[test]
fn a_connection_that_no_thread_uses_comes_back() {
    let _one = alone("a_connection_that_no_thread_uses_comes_back");
    on_each(|transport| {
        let (client, server) = pair(transport);
        warm(&client, &server);
        while is_attended(&client) || is_attended(&server) {
            thread::yield_now();
        }
        ask_once(&client, &server);
    });
}

fn ask_once(client: &Socket, server: &Socket) {
    thread::scope(|scope| {
        scope.spawn(|| answer(server, std::iter::once(100)));
        ask(client, 5, 100);
    });
}

/// Waits until one more thread waits for a message. True if it does so on its lent connection. The engine
/// may have had something to do there, and has kept it.
fn waits_on_loan(socket: &Socket) -> bool {
    until_threads_attend(IDLERS);
    is_waiting_on_loan(socket)
}

/// Over shared memory a thread keeps the connection however long it waits. A read of a stream has a time
/// limit.
#[test]
fn a_long_wait_ends_with_the_message() {
    let _one = alone("a_long_wait_ends_with_the_message");
    beside_blocked_threads(Transport::Shm, || {
        let (client, server) = pair(Transport::Shm);
        warm(&client, &server);
        let mut long = 0;
        while long < 3 {
            thread::scope(|scope| {
                let wait = scope.spawn(|| server.blocking().recv_exact(&mut [0; 10]));
                if waits_on_loan(&server) {
                    while !is_dormant_loan(&server) {
                        thread::yield_now();
                    }
                    long += 1;
                }
                client.blocking().send_all(&[1; 10]).unwrap();
                wait.join().unwrap().unwrap();
                assert!(!is_dormant_loan(&server), "the engine looks after the connection");
            });
            ask_once(&client, &server);
        }
        while is_attended(&client) || is_attended(&server) {
            thread::yield_now();
        }
    });
}

/// Another thread ends a wait on a lent connection, which has no time limit over shared memory.
#[test]
fn a_cancel_ends_the_wait() {
    let _one = alone("a_cancel_ends_the_wait");
    on_each(|transport| {
        let (client, server) = pair(transport);
        let mut lent = false;
        while !lent {
            warm(&client, &server);
            thread::scope(|scope| {
                let wait = scope.spawn(|| server.blocking().recv(&mut [0; 10]));
                lent = waits_on_loan(&server);
                assert_eq!(server.cancel_all(), 1);
                let end = wait.join().unwrap().expect_err("nothing was sent");
                assert!(matches!(end, Error::Op(OpError::Cancelled)), "{end:?}");
            });
        }
        ask_once(&client, &server);
    });
}

/// What the other process does.
#[test]
fn child() {
    let Some(words) = peer::part() else { return };
    let _dog = Watchdog::new("the child");
    if words[2] == "other" {
        setuid(Uid::from_raw(65534)).unwrap();
    }
    let transport = if words[0] == "Soft" { Transport::Soft } else { Transport::Shm };
    let client = Socket::with_options(SocketType::Stream, options(transport)).unwrap();
    client.blocking().connect(words[1].parse::<SocketAddr>().unwrap()).unwrap();
    answer(&client, std::iter::repeat(10));
}

/// Without a keep-alive, which would find a peer that is gone.
fn options(transport: Transport) -> Options {
    Options::default().with_transport(transport).with_keep_alive(None).with_dead_after(None)
}

/// A connection to another process of this `user`, which answers questions of ten bytes.
fn to_another_process(transport: Transport, user: &str) -> (Socket, peer::Peer) {
    let listener = Socket::with_options(SocketType::Stream, options(transport)).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(8).unwrap();
    let (word, addr) = (format!("{transport:?}"), listener.local_addr().unwrap().to_string());
    let child = peer::Peer::start("child", &word, &[&addr, user]);
    (listener.blocking().accept().unwrap().0, child)
}

/// When the other threads of a shard have gone, the last one leads again, which is faster.
#[test]
fn a_thread_that_is_alone_leads() {
    let _one = alone("a_thread_that_is_alone_leads");
    for transport in LENDING {
        let (socket, _child) = to_another_process(transport, "same");
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    ask(&socket, 1, 10);
                }
            });
            beside_blocked_threads(transport, || {
                while !is_waiting_on_loan(&socket) {
                    thread::yield_now();
                }
            });
            while leading_threads() == 0 {
                thread::yield_now();
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

/// A handler that runs while the thread waits on its lent connection harms neither the wait nor the
/// connection. It ends a wait of the C library's.
#[test]
fn a_signal_leaves_the_connection_whole() {
    const ROUNDS: usize = 50;
    let _one = alone("a_signal_leaves_the_connection_whole");
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::default()).unwrap();
    on_each(|transport| {
        let (client, server) = pair(transport);
        let interrupted = AtomicU32::new(0);
        for round in 0..ROUNDS {
            warm(&client, &server);
            let (exact, before) = (round % 2 == 1, interrupted.load(Ordering::Relaxed));
            let posts = AtomicBool::new(!exact);
            thread::scope(|scope| {
                let (tell, told) = channel();
                let (server, interrupted, posts) = (&server, &interrupted, &posts);
                let blocked = scope.spawn(move || {
                    tell.send(pthread_self()).unwrap();
                    let passed = if exact { pass_exactly(server, interrupted) } else { Vec::new() };
                    posts.store(true, Ordering::Relaxed);
                    let mut rest = vec![0; 10 - passed.len()];
                    server.blocking().recv_exact(&mut rest).unwrap();
                    [passed, rest].concat()
                });
                let thread = told.recv().unwrap();
                let mut signals = 0;
                while signals < 20
                    || !posts.load(Ordering::Relaxed)
                        && interrupted.load(Ordering::Relaxed) == before
                {
                    // The thread is joined below, so it is still one to be signalled.
                    pthread_kill(thread, Signal::SIGUSR1).unwrap();
                    thread::yield_now();
                    signals += 1;
                }
                client.blocking().send_all(&pattern(1, 0, 10)).unwrap();
                check(1, 0, &blocked.join().unwrap());
            });
        }
        assert!(interrupted.into_inner() > 0, "{transport}: no wait was interrupted");
        ask_both_ways(&client, &server);
    });
}

/// Receives as the C library does, again if a signal ends the wait. Returns nothing if that takes an
/// operation.
fn pass_exactly(server: &Socket, interrupted: &AtomicU32) -> Vec<u8> {
    let buffer = Buffer::from(vec![0; 10]);
    loop {
        match recv_passing(server, &buffer) {
            Ok(n) => return buffer[..n].to_vec(),
            Err(Error::Interrupted) => _ = interrupted.fetch_add(1, Ordering::Relaxed),
            Err(e) => panic!("{e}"),
        }
    }
}

/// The connection works in both directions.
fn ask_both_ways(client: &Socket, server: &Socket) {
    for (asker, answerer) in [(client, server), (server, client)] {
        thread::scope(|scope| {
            scope.spawn(|| answer(answerer, std::iter::once(100)));
            ask(asker, 2, 100);
        });
    }
}

/// The peer is killed while the thread waits on its lent connection.
#[test]
fn the_end_of_the_other_process_ends_the_wait() {
    let _one = alone("the_end_of_the_other_process_ends_the_wait");
    on_each(|transport| {
        let (socket, mut child) = to_another_process(transport, "same");
        (0..BEFORE).for_each(|_| ask(&socket, 1, 10));
        let mut killed = false;
        while !killed {
            thread::scope(|scope| {
                let wait = scope.spawn(|| socket.blocking().recv(&mut [0; 10]));
                if !waits_on_loan(&socket) {
                    socket.blocking().send_all(&[1; 10]).unwrap();
                    assert_eq!(wait.join().unwrap().unwrap(), 10);
                    return;
                }
                child.kill();
                killed = true;
                let end = wait.join().unwrap().expect_err("the peer has not closed");
                assert!(matches!(end, Error::Op(OpError::Reset { .. })), "{end:?}");
            });
        }
        assert!(socket.blocking().send_all(b"x").is_err());
    });
}

/// A process of another user could keep a thread asleep by what it writes into the rings, so a connection
/// with it over shared memory stays with the engine. Over the network no peer can.
#[test]
fn connections_with_other_users_are_not_lent_over_shared_memory() {
    let _one = alone("connections_with_other_users_are_not_lent_over_shared_memory");
    if !geteuid().is_root() {
        return skip("only root can become another user");
    }
    let expected = [
        (Transport::Soft, "other", true),
        (Transport::Shm, "same", true),
        (Transport::Shm, "other", false),
    ];
    for (transport, user, lends) in expected {
        beside_blocked_threads(transport, || {
            let (socket, mut child) = to_another_process(transport, user);
            // A busy host can make a wait so long that a connection is not lent.
            let mut lent = false;
            for _ in 0..BEFORE {
                (0..BEFORE).for_each(|_| ask(&socket, 1, 10));
                thread::scope(|scope| {
                    let wait = scope.spawn(|| socket.blocking().recv_exact(&mut [0; 10]));
                    lent |= waits_on_loan(&socket);
                    socket.blocking().send_all(&[1; 10]).unwrap();
                    wait.join().unwrap().unwrap();
                });
            }
            assert_eq!(lent, lends, "{transport}, {user} user");
            child.kill();
        });
    }
}
