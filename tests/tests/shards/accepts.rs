//! Accepts of one listener whose queues are in several shards.

use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use exs::__ffi::shard_of;
use exs::{EventKind, EventQueue, Socket, Token, Transport};
use exs_tests::harness::{Watchdog, stream_socket};
use exs_tests::strangers::{Stage, Stranger};

use crate::{SHARDS, accepted, listener, queues, talk, transports};

/// Posts an accept in each shard. Each queue has no other operation.
fn accept_everywhere(listener: &Socket, queues: &[EventQueue]) {
    queues.iter().for_each(|queue| listener.accept(queue, Token(1)).unwrap());
}

#[test]
fn accepts_of_all_shards_are_cancelled() {
    let _dog = Watchdog::new("accepts_of_all_shards_are_cancelled");
    let queues = queues();
    for transport in transports() {
        let (listener, addr) = listener(transport, 16);
        for all in [false, true] {
            accept_everywhere(&listener, &queues);
            let asked = if all { listener.cancel_all() } else { listener.cancel(Token(1)) };
            assert_eq!(asked, SHARDS, "{transport}");
            for queue in &queues {
                let failed = queue.next().unwrap().into_completion().unwrap_err();
                assert!(failed.error.is_cancelled(), "{transport}: {}", failed.error);
            }
        }
        // Accepts that were cancelled take no connection.
        let client = stream_socket(transport);
        client.blocking().connect(addr).unwrap();
        listener.accept(&queues[2], Token(2)).unwrap();
        talk((&client, &queues[1]), (&accepted(&queues[2]), &queues[2]), 1000);
    }
}

#[test]
fn a_listener_that_ends_ends_the_accepts_of_all_shards_first() {
    let _dog = Watchdog::new("a_listener_that_ends_ends_the_accepts_of_all_shards_first");
    let queues = queues();
    for transport in transports() {
        let (listener, addr) = listener(transport, 16);
        accept_everywhere(&listener, &queues);
        for _ in &queues {
            let client = stream_socket(transport);
            client.blocking().connect(addr).unwrap();
        }
        queues.iter().for_each(|queue| drop(accepted(queue)));
        let ends = |last: EventKind, errno: i32| {
            for (i, queue) in queues.iter().enumerate() {
                let ended = queue.next().unwrap().into_completion().unwrap_err();
                assert_eq!(ended.error.errno(), errno, "{transport}");
                if i == 1 {
                    assert_eq!(queue.next().unwrap().kind(), last, "{transport}");
                }
            }
        };
        accept_everywhere(&listener, &queues);
        listener.shutdown(&queues[1], Token(2), Shutdown::Both).unwrap();
        ends(EventKind::Shutdown, libc::EINVAL);
        for queue in &queues {
            assert_eq!(listener.accept(queue, Token(1)).unwrap_err().errno(), libc::EINVAL);
        }
        listener.listen(16).unwrap();
        // It listens at all addresses now, at a port of its own.
        let addr = SocketAddr::new(addr.ip(), listener.local_addr().unwrap().port());
        accept_everywhere(&listener, &queues);
        for _ in &queues {
            let client = stream_socket(transport);
            client.blocking().connect(addr).unwrap();
        }
        queues.iter().for_each(|queue| drop(accepted(queue)));
        accept_everywhere(&listener, &queues);
        listener.close(&queues[1], Token(2)).unwrap();
        ends(EventKind::Close, libc::ECANCELED);
        let late = stream_socket(transport).blocking().connect(addr).unwrap_err();
        assert_eq!(late.errno(), libc::ECONNREFUSED, "{transport}");
    }
}

#[test]
fn connections_have_the_options_of_their_listener_in_all_shards() {
    let _dog = Watchdog::new("connections_have_the_options_of_their_listener_in_all_shards");
    let queues = queues();
    for transport in transports() {
        let (listener, addr) = listener(transport, 16);
        for seconds in [3, 4] {
            let linger = Duration::from_secs(seconds);
            let options = listener.options().with_linger(linger);
            listener.set_options(&options).unwrap();
            for queue in &queues {
                listener.accept(queue, Token(1)).unwrap();
                let client = stream_socket(transport);
                client.blocking().connect(addr).unwrap();
                assert_eq!(accepted(queue).options(), options, "{transport}");
            }
        }
    }
}

/// Connections that no accept awaits start up in the shards that accept, not in that of the listener.
#[test]
fn connections_wait_in_the_shards_that_accept() {
    let _dog = Watchdog::new("connections_wait_in_the_shards_that_accept");
    let queues = queues();
    for transport in transports() {
        let (listener, addr) = listener(transport, 64);
        let connect = || {
            let client = stream_socket(transport);
            client.blocking().connect(addr).unwrap();
            client
        };
        let at = queues.iter().find(|queue| queue.shard() != shard_of(&listener)).unwrap();
        let mut kept = Vec::new();
        for _ in 0..3 {
            listener.accept(at, Token(1)).unwrap();
            kept.extend([connect(), accepted(at)]);
        }
        kept.extend((0..6).map(|_| connect()));
        for _ in 0..6 {
            listener.accept(at, Token(1)).unwrap();
            let server = accepted(at);
            assert_eq!(shard_of(&server), at.shard(), "{transport}");
            kept.push(server);
        }
    }
}

/// Some callers say nothing, and some half of their request. They come before and after the accepts, and
/// there are more of them than accepts. In one round the listener's own shard accepts nothing, so all
/// callers come to other shards.
#[test]
fn silent_callers_hold_no_accept_of_any_shard() {
    let _dog = Watchdog::new("silent_callers_hold_no_accept_of_any_shard");
    let queues = queues();
    for all in [true, false] {
        let (listener, addr) = listener(Transport::Soft, 64);
        let silent = || {
            let stages = [Stage::Connected, Stage::Half].into_iter().cycle().take(4 * SHARDS);
            stages.map(|stage| Stranger::by_tcp(addr, stage)).collect::<Vec<_>>()
        };
        let before = silent();
        let own = shard_of(&listener);
        let at: Vec<_> = queues.iter().filter(|queue| all || queue.shard() != own).collect();
        at.iter().for_each(|queue| listener.accept(queue, Token(1)).unwrap());
        let after = silent();
        let clients: Vec<Socket> = at.iter().map(|_| stream_socket(Transport::Soft)).collect();
        clients.iter().for_each(|client| client.blocking().connect(addr).unwrap());
        at.iter().for_each(|queue| drop(accepted(queue)));
        drop((before, after));
    }
}
