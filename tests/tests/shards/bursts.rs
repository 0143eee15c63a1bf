//! Bursts of small sends whose events cross. A thread that dequeues rings for them when it comes back.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use exs::progress::waiting_threads;
use exs::{RecvFlags, Token};
use exs_tests::harness::Watchdog;

use super::moves::accepted_at;
use crate::{queues, received, transports};

const SENDS: usize = 8;

/// A thread that has dequeued may do something else for long after its sends. The leader of the connection's
/// shard sleeps meanwhile.
#[test]
fn a_burst_that_crosses_leaves_without_its_thread() {
    let _dog = Watchdog::new("a_burst_that_crosses_leaves_without_its_thread");
    let queues = queues();
    for transport in transports() {
        let (home, away) = (&queues[0], &queues[1]);
        let (peer, own) = accepted_at(transport, home);
        // With a receive under way the connection stays where it is.
        own.recv(home, Token(3), vec![0; 8], RecvFlags::WAITALL).unwrap();
        for _ in 0..20 {
            for _ in 0..SENDS {
                peer.recv(home, Token(1), vec![0; 8], RecvFlags::WAITALL).unwrap();
            }
            thread::scope(|scope| {
                let (done, waits) = channel::<()>();
                let own = &own;
                scope.spawn(move || {
                    assert!(away.dequeue(1, Some(Duration::ZERO)).unwrap().is_empty());
                    while waiting_threads(home.shard()) == 0 {
                        thread::yield_now();
                    }
                    for _ in 0..SENDS {
                        own.send(away, Token(2), vec![7; 8]).unwrap();
                    }
                    waits.recv().unwrap();
                    for _ in 0..SENDS {
                        away.next().unwrap().into_completion().unwrap();
                    }
                });
                for _ in 0..SENDS {
                    assert_eq!(received(home, 8), [7; 8]);
                }
                done.send(()).unwrap();
            });
        }
        drop((peer, own));
        while home.outstanding() > 0 {
            home.next().unwrap();
        }
    }
}
