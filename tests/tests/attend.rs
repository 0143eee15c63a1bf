//! Threads that share a shard and block, each in a call on its own connection: each waits for its
//! connection itself. Every case begins with threads that are known to do so.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use exs::__ffi::{cancel_on, dequeue_of, is_attended, private_queue};
use exs::progress::attending_threads;
use exs::{Error, EventQueue, MemoryRegion, Options, RecvFlags, Rights, Socket, Token, Transport};
use exs_tests::harness::blocked::{alone, beside_blocked_threads, pair, until_threads_attend};
use exs_tests::harness::{check, pattern, stream_pair};
use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::Signal;

const BOTH: [Transport; 2] = [Transport::Soft, Transport::Shm];
#[test]
fn many_threads_ask_and_answer() {
    let _one = alone("many_threads_ask_and_answer");
    for transport in BOTH {
        beside_blocked_threads(transport, || {
            thread::scope(|scope| {
                for seed in 0..8 {
                    let (client, server) = pair(transport);
                    let sizes =
                        move || (0..100).map(move |round| 1 + (round * 977 * (seed + 1)) % 90_000);
                    scope.spawn(move || {
                        for size in sizes() {
                            let mut question = vec![0; size];
                            server.blocking().recv_exact(&mut question).unwrap();
                            server.blocking().send_all(&question).unwrap();
                        }
                        assert_eq!(server.blocking().recv(&mut [0]).unwrap(), 0);
                    });
                    scope.spawn(move || {
                        for size in sizes() {
                            let question = pattern(seed as u64, size, size);
                            client.blocking().send_all(&question).unwrap();
                            let mut answer = vec![0; size];
                            client.blocking().recv_exact(&mut answer).unwrap();
                            check(seed as u64, size, &answer);
                        }
                    });
                }
            });
        });
    }
}

/// Two threads on each end: one that receives, and one that sends more than any buffer holds.
#[test]
fn two_threads_use_a_connection_in_both_directions() {
    let _one = alone("two_threads_use_a_connection_in_both_directions");
    const TOTAL: usize = 16 << 20;
    const PIECE: usize = 100_000;
    for transport in BOTH {
        beside_blocked_threads(transport, || {
            let (client, server) = pair(transport);
            thread::scope(|scope| {
                for (seed, from, to) in [(1, &client, &server), (2, &server, &client)] {
                    scope.spawn(move || {
                        for at in (0..TOTAL).step_by(PIECE) {
                            let piece = pattern(seed, at, PIECE.min(TOTAL - at));
                            from.blocking().send_all(&piece).unwrap();
                        }
                    });
                    scope.spawn(move || {
                        let (mut at, mut buffer) = (0, vec![0; PIECE]);
                        while at < TOTAL {
                            let n = to.blocking().recv(&mut buffer).unwrap();
                            check(seed, at, &buffer[..n]);
                            at += n;
                        }
                    });
                }
            });
        });
    }
}

/// Each of these threads makes the system calls for its sends itself, outside of the lock of the
/// shard.
#[test]
fn threads_that_send_on_one_connection_do_not_mix_their_bytes() {
    let _one = alone("threads_that_send_on_one_connection_do_not_mix_their_bytes");
    const SENDERS: usize = 4;
    const RECORDS: usize = 2000;
    const SIZE: usize = 64;
    let record = |sender: usize, n: usize| pattern(sender as u64, n * SIZE, SIZE);
    for transport in BOTH {
        beside_blocked_threads(transport, || {
            let (client, server) = pair(transport);
            thread::scope(|scope| {
                for sender in 0..SENDERS {
                    let client = &client;
                    scope.spawn(move || {
                        for n in 0..RECORDS {
                            let mut whole = vec![u8::try_from(sender).unwrap()];
                            whole.extend(record(sender, n));
                            client.blocking().send_all(&whole).unwrap();
                        }
                    });
                }
                let mut received = [0; SENDERS];
                let mut whole = [0; 1 + SIZE];
                while received.iter().sum::<usize>() < SENDERS * RECORDS {
                    server.blocking().recv_exact(&mut whole).unwrap();
                    let sender = usize::from(whole[0]);
                    check(sender as u64, received[sender] * SIZE, &whole[1..]);
                    received[sender] += 1;
                }
            });
        });
    }
}

/// Small messages that a thread takes on a connection before it blocks there. From the first sleeps on
/// it waits without a receive, and the bytes of a message pass to it.
const BEFORE: usize = 20;

/// Runs `blocked` in a thread that has taken messages of `own` before, and `act` once it blocks.
fn blocked_after_messages<T: Send>(
    (peer, own): (Socket, &Socket),
    blocked: impl FnOnce() -> T + Send,
    act: impl FnOnce(Socket),
) -> T {
    thread::scope(|scope| {
        let (taken, before) = (channel(), attending_threads());
        let thread = scope.spawn(move || {
            for _ in 0..BEFORE {
                own.blocking().recv_exact(&mut [0; 10]).unwrap();
                taken.0.send(()).unwrap();
            }
            blocked()
        });
        for _ in 0..BEFORE {
            until_threads_attend(before + 1);
            peer.blocking().send_all(&[7; 10]).unwrap();
            taken.1.recv().unwrap();
        }
        until_threads_attend(before + 1);
        act(peer);
        thread.join().unwrap()
    })
}

#[test]
fn small_messages_pass_by_the_receives() {
    let _one = alone("small_messages_pass_by_the_receives");
    const MESSAGES: usize = 1000;
    for transport in BOTH {
        beside_blocked_threads(transport, || {
            let (peer, own) = pair(transport);
            let before = exs::counters().unwrap().events;
            let receive = || {
                for n in 0..MESSAGES {
                    let mut bytes = [0; 64];
                    own.blocking().recv_exact(&mut bytes).unwrap();
                    check(5, n * 64, &bytes);
                    own.blocking().send_all(&[1]).unwrap();
                }
            };
            blocked_after_messages((peer, &own), receive, |peer| {
                for n in 0..MESSAGES {
                    peer.blocking().send_all(&pattern(5, n * 64, 64)).unwrap();
                    peer.blocking().recv_exact(&mut [0]).unwrap();
                }
            });
            let events = exs::counters().unwrap().events - before;
            assert!(events < MESSAGES as u64, "{transport}: {events} events");
        });
    }
}

/// The thread waits without a receive, for less than what comes, for more, and for what does not pass.
#[test]
fn what_cannot_pass_takes_a_receive() {
    let _one = alone("what_cannot_pass_takes_a_receive");
    let cases: [(usize, &[usize]); 5] = [
        (10, &[64]),
        (64, &[10, 54]),
        (1, &[2, 100_000]),
        (1 << 20, &[1 << 20]),
        (5000, &[4000, 1000]),
    ];
    for transport in BOTH {
        for (room, sizes) in cases {
            beside_blocked_threads(transport, || {
                let (peer, own) = pair(transport);
                let total: usize = sizes.iter().sum();
                let receive = || {
                    let (mut got, mut buffer) = (Vec::new(), vec![0; room]);
                    while got.len() < total {
                        let n = own.blocking().recv(&mut buffer).unwrap();
                        assert!(n > 0, "{} of {total}", got.len());
                        got.extend_from_slice(&buffer[..n]);
                    }
                    got
                };
                let got = blocked_after_messages((peer, &own), receive, |peer| {
                    let mut at = 0;
                    for size in sizes {
                        peer.blocking().send_all(&pattern(6, at, *size)).unwrap();
                        at += size;
                    }
                    std::mem::forget(peer);
                });
                check(6, 0, &got);
            });
        }
    }
}

/// A receive that another thread posts comes before the wait of a thread without one.
#[test]
fn a_receive_comes_before_a_wait_without_one() {
    let _one = alone("a_receive_comes_before_a_wait_without_one");
    for transport in BOTH {
        beside_blocked_threads(transport, || {
            let (peer, own) = pair(transport);
            let queue = EventQueue::new(8).unwrap();
            let receive = || {
                let mut bytes = [0; 8];
                let n = own.blocking().recv(&mut bytes).unwrap();
                bytes[..n].to_vec()
            };
            let last = blocked_after_messages((peer, &own), receive, |peer| {
                own.recv(&queue, Token(1), vec![0; 8], RecvFlags::NONE).unwrap();
                peer.blocking().send_all(b"first").unwrap();
                let event = queue.next().unwrap();
                assert_eq!(&event.into_buffer().unwrap()[..5], b"first");
                peer.blocking().send_all(b"second").unwrap();
                std::mem::forget(peer);
            });
            assert_eq!(last, b"second");
        });
    }
}

#[test]
fn what_another_thread_does_ends_a_blocked_call() {
    let _one = alone("what_another_thread_does_ends_a_blocked_call");
    type Act = fn(Socket, &Socket);
    type Check = fn(Result<usize, Error>);
    let acts: [(Act, Check); 7] = [
        (
            |peer, own| {
                assert_eq!(own.cancel_all(), 1);
                std::mem::forget(peer);
            },
            |end| assert!(end.unwrap_err().is_cancelled()),
        ),
        (|peer, _own| drop(peer), |end| assert_eq!(end.unwrap(), 0)),
        (|peer, _own| peer.abort(), |end| assert_eq!(end.unwrap_err().errno(), libc::ECONNRESET)),
        (
            |peer, _own| {
                peer.blocking().shutdown(Shutdown::Write).unwrap();
                std::mem::forget(peer);
            },
            |end| assert_eq!(end.unwrap(), 0),
        ),
        (
            |peer, own| {
                own.blocking().shutdown(Shutdown::Read).unwrap();
                std::mem::forget(peer);
            },
            |end| assert_eq!(end.unwrap(), 0),
        ),
        (
            |_peer, own| own.blocking().close().unwrap(),
            |end| assert!(end.unwrap_err().is_cancelled()),
        ),
        (
            |peer, own| {
                own.abort();
                std::mem::forget(peer);
            },
            |end| assert_eq!(end.unwrap_err().errno(), libc::ECONNABORTED),
        ),
    ];
    for transport in BOTH {
        for (act, check) in acts {
            beside_blocked_threads(transport, || {
                let (peer, own) = pair(transport);
                let before = attending_threads();
                thread::scope(|scope| {
                    let blocked = scope.spawn(|| own.blocking().recv(&mut [0; 100]));
                    until_threads_attend(before + 1);
                    act(peer, &own);
                    check(blocked.join().unwrap());
                });
            });
            beside_blocked_threads(transport, || {
                let (peer, own) = pair(transport);
                let receive = || own.blocking().recv(&mut [0; 100]);
                check(blocked_after_messages((peer, &own), receive, |peer| act(peer, &own)));
            });
        }
    }
}

#[test]
fn time_limits_end_a_blocked_call() {
    let _one = alone("time_limits_end_a_blocked_call");
    for transport in BOTH {
        let limit = Some(Duration::from_millis(20));
        let options = Options::default().with_transport(transport).with_recv_timeout(limit);
        beside_blocked_threads(transport, || {
            let (_peer, own) = stream_pair(&options);
            for _ in 0..3 {
                let error = own.blocking().recv(&mut [0; 8]).unwrap_err();
                assert_eq!(error.errno(), libc::ETIMEDOUT);
            }
        });
    }
}

/// A thread has attended the connection, and has gone: other threads find what happens there.
#[test]
fn a_connection_that_its_thread_has_left_goes_on() {
    let _one = alone("a_connection_that_its_thread_has_left_goes_on");
    for transport in BOTH {
        beside_blocked_threads(transport, || {
            let (client, server) = pair(transport);
            let attend = || {
                let before = attending_threads();
                thread::scope(|scope| {
                    let blocked = scope.spawn(|| {
                        let mut byte = [0];
                        server.blocking().recv_exact(&mut byte).unwrap();
                        byte
                    });
                    until_threads_attend(before + 1);
                    client.blocking().send_all(&[7]).unwrap();
                    assert_eq!(blocked.join().unwrap(), [7]);
                });
            };
            // A receive with a queue, posted at once.
            let queue = EventQueue::new(8).unwrap();
            attend();
            server.recv(&queue, Token(1), vec![0; 1 << 20], RecvFlags::WAITALL).unwrap();
            client.blocking().send_all(&pattern(3, 0, 1 << 20)).unwrap();
            let event = queue.next().unwrap();
            assert_eq!(event.result().unwrap(), 1 << 20);
            // A receive into registered memory: the first registers it, and the second finds it so.
            let region = MemoryRegion::new(64).unwrap();
            for _ in 0..2 {
                attend();
                // No thread has attended the connection from this queue.
                let queue = EventQueue::new(8).unwrap();
                let buffer = region.buffer(..).unwrap();
                server.recv(&queue, Token(1), buffer, RecvFlags::NONE).unwrap();
                assert!(!is_attended(&server), "the leader looks after it at once");
                client.blocking().send_all(b"registered").unwrap();
                assert_eq!(queue.next().unwrap().result().unwrap(), 10);
            }
            // The peer sends more than any buffer holds, and the receive comes later.
            attend();
            client.send(&queue, Token(2), pattern(4, 0, 8 << 20)).unwrap();
            let mut got = vec![0; 8 << 20];
            server.blocking().recv_exact(&mut got).unwrap();
            check(4, 0, &got);
            assert_eq!(queue.next().unwrap().result().unwrap(), 8 << 20);
            // The peer reads memory that no call of this end serves.
            let export = server.export(vec![7; 4096], Rights::READ, None).unwrap();
            attend();
            client.read(&queue, Token(3), &export.descriptor(), 0, vec![1; 4096]).unwrap();
            assert_eq!(queue.next().unwrap().result().unwrap(), 4096);
            // The end of the connection, too.
            attend();
            client.recv(&queue, Token(4), vec![0; 8], RecvFlags::NONE).unwrap();
            drop((export, server));
            assert_eq!(queue.next().unwrap().result().unwrap(), 0);
        });
    }
}

/// The program polls a socket whose thread attends it.
#[test]
fn an_attended_connection_can_be_polled() {
    let _one = alone("an_attended_connection_can_be_polled");
    for transport in BOTH {
        beside_blocked_threads(transport, || {
            let (client, server) = pair(transport);
            let queue = EventQueue::new(8).unwrap();
            let before = attending_threads();
            thread::scope(|scope| {
                let blocked = scope.spawn(|| {
                    let mut both = [0; 2];
                    server.blocking().recv_exact(&mut both).unwrap();
                    both
                });
                until_threads_attend(before + 1);
                server.poll(&queue, Token(1), exs::Interest::READABLE).unwrap();
                client.blocking().send_all(b"ab").unwrap();
                assert_eq!(&blocked.join().unwrap(), b"ab");
                client.blocking().send_all(b"c").unwrap();
                assert!(queue.next().unwrap().readiness().readable);
            });
        });
    }
}

/// As the C library waits.
#[test]
fn a_signal_interrupts_a_thread_that_attends() {
    let _one = alone("a_signal_interrupts_a_thread_that_attends");
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::default()).unwrap();
    for transport in BOTH {
        beside_blocked_threads(transport, || {
            let (_peer, own) = pair(transport);
            for limit in [None, Some(Duration::from_secs(3600))] {
                thread::scope(|scope| {
                    let (tell, told) = channel();
                    let own = &own;
                    let blocked = scope.spawn(move || {
                        let queue = private_queue(own).unwrap();
                        own.recv(&queue, Token(1), vec![0; 8], RecvFlags::NONE).unwrap();
                        tell.send(pthread_self()).unwrap();
                        let end = dequeue_of(&queue, own, &mut Vec::new(), limit);
                        assert_eq!(cancel_on(own, &queue), 1);
                        assert!(queue.next().unwrap().into_result().unwrap_err().is_cancelled());
                        end
                    });
                    let thread = told.recv().unwrap();
                    while !blocked.is_finished() {
                        // The thread is joined below, so it is still one to be signalled.
                        pthread_kill(thread, Signal::SIGUSR1).unwrap();
                        thread::yield_now();
                    }
                    let end = blocked.join().unwrap();
                    assert!(matches!(end, Err(Error::Interrupted)), "{end:?}");
                });
            }
            // Time limits, as the C library has them.
            let queue = private_queue(&own).unwrap();
            own.recv(&queue, Token(1), vec![0; 8], RecvFlags::NONE).unwrap();
            let limit = Some(Duration::from_millis(5));
            assert_eq!(dequeue_of(&queue, &own, &mut Vec::new(), limit).unwrap(), 0);
            assert_eq!(own.cancel_all(), 1);
        });
    }
}
