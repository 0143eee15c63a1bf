//! Workers that serve connections of a link group by a queue of another shard than that of the thread which
//! has accepted them.

use std::ops::Range;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use exs::__ffi::FIRST_SHARD;
use exs::progress::waiting_threads;
use exs::{Completion, EventQueue, RecvFlags, Socket, Token, WaitPolicy};

use crate::{carriers, case, listener, queues, socket, succeed};

/// Both ends of such connections. The queue `asks` has the events of the accepts and of the clients.
struct Served {
    clients: Vec<Socket>,
    served: Vec<Socket>,
    asks: EventQueue,
}

/// Enough that answers leave in portions.
const SERVED: usize = 32;

impl Served {
    fn new(asks: EventQueue) -> Served {
        let (listener, addr) = listener();
        for _ in 0..SERVED {
            listener.accept(&asks, Token(1)).unwrap();
        }
        let clients: Vec<Socket> = (0..SERVED).map(|_| socket()).collect();
        for client in &clients {
            client.connect(&asks, Token(7), addr).unwrap();
        }
        let mut served = Vec::new();
        for completion in succeed(&asks, 2 * SERVED) {
            if let Completion::Accept { socket, .. } = completion {
                served.push(socket);
            }
        }
        assert_eq!((served.len(), carriers(addr)), (SERVED, 1));
        Served { clients, served, asks }
    }

    /// A question on each connection, which the worker takes.
    fn ask(&self, worker: &EventQueue) {
        for (client, served) in self.clients.iter().zip(&self.served) {
            served.recv(worker, Token(2), vec![0; 8], RecvFlags::WAITALL).unwrap();
            client.recv(&self.asks, Token(3), vec![0; 8], RecvFlags::WAITALL).unwrap();
        }
        for client in &self.clients {
            client.send(&self.asks, Token(4), b"question".to_vec()).unwrap();
        }
        succeed(&self.asks, SERVED);
        succeed(worker, SERVED);
    }

    /// The worker answers those of these connections.
    fn answer(&self, worker: &EventQueue, connections: Range<usize>) {
        for served in &self.served[connections] {
            served.send(worker, Token(5), b"answered".to_vec()).unwrap();
        }
    }

    /// This number of answers come.
    fn take_answers(&self, answers: usize) {
        for completion in succeed(&self.asks, answers) {
            let Completion::Recv { buffer, bytes, .. } = completion else {
                panic!("{completion:?}")
            };
            assert_eq!(buffer[..bytes], *b"answered");
        }
    }
}

/// Otherwise each answer would take a system call, since no leader of the connections' shard works for the
/// worker.
#[test]
fn answers_of_a_worker_of_another_shard_leave_together() {
    let _case = case("answers of a worker");
    let [asks, worker] = queues();
    let served = Served::new(asks);
    loop {
        served.ask(&worker);
        let before = exs::counters().unwrap().system_calls;
        served.answer(&worker, 0..SERVED);
        let calls = exs::counters().unwrap().system_calls - before;
        succeed(&worker, SERVED);
        served.take_answers(SERVED);
        // Answers after a pause of the worker's leave at once, and a busy machine makes pauses.
        if calls <= SERVED as u64 / 2 {
            return;
        }
    }
}

/// A worker that computes, or waits for something else, keeps no answer back for long, even if the leader
/// of the connections' shard sleeps.
#[test]
fn answers_of_a_worker_that_does_not_come_back_leave_without_it() {
    const ANSWERED: usize = 3;
    let _case = case("a worker that does not come back");
    let [asks, worker] = queues();
    asks.set_wait_policy(WaitPolicy::Notify);
    let served = Served::new(asks);
    for _ in 0..20 {
        served.ask(&worker);
        thread::scope(|scope| {
            let (done, waits) = channel::<()>();
            let (served, worker) = (&served, &worker);
            let thread = scope.spawn(move || {
                assert!(worker.dequeue(1, Some(Duration::ZERO)).unwrap().is_empty());
                while waiting_threads(FIRST_SHARD) == 0 {
                    thread::yield_now();
                }
                served.answer(worker, 0..ANSWERED);
                waits.recv().unwrap();
                served.answer(worker, ANSWERED..SERVED);
                succeed(worker, SERVED);
            });
            served.take_answers(ANSWERED);
            done.send(()).unwrap();
            served.take_answers(SERVED - ANSWERED);
            thread.join().unwrap();
        });
    }
}
