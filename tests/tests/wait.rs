//! Waits that signals interrupt.
//!
//! A handler that does nothing is installed (without it the signal would end the
//! process), and the signal is sent to the very thread that waits.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use exs::{Error, EventQueue, RecvFlags, Socket, Token, WaitPolicy};
use exs_tests::harness::{LIMIT, Watchdog};
use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::Signal;

/// SIGUSR1 sets the flag.
fn catch() -> Arc<AtomicBool> {
    let caught = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&caught)).unwrap();
    caught
}

fn streams() -> (Socket, Socket) {
    let listener = Socket::stream().unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(1).unwrap();
    let client = Socket::stream().unwrap();
    client.blocking().connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.blocking().accept().unwrap();
    (client, server)
}

/// Signals the thread until `wait` has returned, as one signal may come too early.
fn interrupted<T: Send>(wait: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| {
        let (tell, told) = channel();
        let waiter = s.spawn(move || {
            tell.send(pthread_self()).unwrap();
            wait()
        });
        let thread = told.recv().unwrap();
        while !waiter.is_finished() {
            // The thread is joined below, so it is still one to be signalled.
            pthread_kill(thread, Signal::SIGUSR1).unwrap();
            std::thread::yield_now();
        }
        waiter.join().unwrap()
    })
}

#[test]
fn a_signal_interrupts_dequeue() {
    let _dog = Watchdog::new("a_signal_interrupts_dequeue");
    let caught = catch();
    let (_a, b) = streams();
    for policy in [WaitPolicy::Notify, WaitPolicy::Adaptive] {
        let queue = EventQueue::new(4).unwrap();
        queue.set_wait_policy(policy);
        b.recv(&queue, Token(1), vec![0; 10], RecvFlags::NONE).unwrap();
        for limit in [None, Some(LIMIT)] {
            let end = interrupted(|| queue.dequeue(4, limit));
            let error = end.expect_err("nothing can have come");
            assert!(matches!(error, Error::Interrupted), "{error}");
            assert_eq!(error.errno(), libc::EINTR);
        }
        assert!(caught.load(Ordering::SeqCst));
        // Nothing is lost by it.
        b.cancel_all();
        assert_eq!(queue.dequeue_at_least(1, 4, Some(LIMIT)).unwrap().len(), 1);
    }
}

#[test]
fn a_signal_interrupts_a_thread_that_follows() {
    let _dog = Watchdog::new("a_signal_interrupts_a_thread_that_follows");
    catch();
    let (a, b) = streams();
    let queues = [EventQueue::new(4).unwrap(), EventQueue::new(4).unwrap()];
    for queue in &queues {
        queue.set_wait_policy(WaitPolicy::Notify);
        b.recv(queue, Token(1), vec![0; 10], RecvFlags::NONE).unwrap();
    }
    std::thread::scope(|s| {
        // One of the two leads, the other follows; both are interrupted, then neither.
        let other = s.spawn(|| queues[0].dequeue(4, Some(LIMIT)));
        let end = interrupted(|| queues[1].dequeue(4, Some(LIMIT)));
        assert!(matches!(end, Err(Error::Interrupted)), "{end:?}");
        a.blocking().send_all(b"x").unwrap();
        assert_eq!(other.join().unwrap().unwrap().len(), 1, "it was not signalled");
    });
    a.blocking().send_all(b"y").unwrap();
    assert_eq!(queues[1].dequeue_at_least(1, 4, Some(LIMIT)).unwrap().len(), 1);
}

#[test]
fn a_signal_does_not_disturb_blocking_calls() {
    let _dog = Watchdog::new("a_signal_does_not_disturb_blocking_calls");
    let caught = catch();
    let (a, b) = streams();
    std::thread::scope(|s| {
        let (tell, told) = channel();
        let waiter = s.spawn(move || {
            tell.send(pthread_self()).unwrap();
            let mut got = [0; 10];
            b.blocking().recv_exact(&mut got).map(|()| got)
        });
        let thread = told.recv().unwrap();
        for i in 0..10u8 {
            caught.store(false, Ordering::SeqCst);
            pthread_kill(thread, Signal::SIGUSR1).unwrap();
            while !caught.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            a.blocking().send_all(&[i]).unwrap();
        }
        assert_eq!(waiter.join().unwrap().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    });
}

/// If each round waited for the background thread to look around, this would take minutes.
#[test]
fn a_loop_on_a_queues_descriptor_waits_for_no_tick() {
    let _dog = Watchdog::with_limit("a_loop_on_a_queues_descriptor", LIMIT);
    let (a, b) = streams();
    let queue = EventQueue::new(4).unwrap();
    let mut poll = mio::Poll::new().unwrap();
    let fd = queue.as_raw_fd();
    let readable = mio::Interest::READABLE;
    poll.registry().register(&mut mio::unix::SourceFd(&fd), mio::Token(0), readable).unwrap();
    let mut events = mio::Events::with_capacity(4);
    for _ in 0..20_000 {
        a.recv(&queue, Token(1), vec![0; 8], RecvFlags::NONE).unwrap();
        // A call that waits, if need be, without the queue: it must not take the lead along.
        b.blocking().send_all(b"x").unwrap();
        // mio is edge-triggered: it is asked only when the queue is empty.
        loop {
            poll.poll(&mut events, None).unwrap();
            if !queue.dequeue(4, Some(Duration::ZERO)).unwrap().is_empty() {
                break;
            }
        }
    }
}
