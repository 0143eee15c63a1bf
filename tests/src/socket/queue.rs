//! Event queues: depth, thresholds, time, threads, and the descriptor.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use exs::{
    Error, EventKind, EventQueue, Interest, RecvFlags, Socket, SocketType, Token, WaitPolicy,
};
use mio::unix::SourceFd;

use crate::harness::{Env, LIMIT, Ledger, Rng, accepted, check, pattern};

const NOW: Option<Duration> = Some(Duration::ZERO);

/// A queue takes as many operations as it is deep; the next is refused, with its buffer,
/// and is taken once an event was dequeued.
pub fn depth_is_a_limit(env: &Env) {
    let (a, b) = env.streams();
    let mut ledger = Ledger::with_depth(4);
    for _ in 0..4 {
        ledger.post("recv", |q, t| b.recv(q, t, vec![0; 8], RecvFlags::WAITALL));
    }
    let refused =
        ledger.try_post("recv", |q, t| b.recv(q, t, vec![3; 8], RecvFlags::WAITALL)).unwrap_err();
    assert!(refused.error.is_would_block(), "{refused}");
    assert_eq!(refused.error.errno(), libc::EAGAIN);
    assert_eq!(&refused.buffer[..], [3; 8]);
    let vectored = ledger
        .try_post("recvv", |q, t| b.recv_vectored(q, t, vec![refused.buffer], RecvFlags::NONE))
        .unwrap_err();
    assert_eq!(vectored.buffer.len(), 1);
    assert!(ledger.try_post("poll", |q, t| b.poll(q, t, Interest::BOTH)).is_err());

    a.blocking().send_all(&pattern(1, 0, 16)).unwrap();
    ledger.ok();
    ledger.post("recv", |q, t| b.recv(q, t, vec![0; 8], RecvFlags::WAITALL));
    a.blocking().send_all(&pattern(1, 16, 24)).unwrap();
    for event in ledger.drain() {
        assert_eq!((event.error().is_none(), event.bytes()), (true, 8));
    }
    ledger.finish();
}

/// Maximum, minimum, zero.
pub fn thresholds(env: &Env) {
    let (a, b) = env.streams();
    let queue = EventQueue::new(16).unwrap();
    for i in 0..10 {
        b.recv(&queue, Token(i), vec![0; 4], RecvFlags::WAITALL).unwrap();
    }
    assert!(queue.dequeue(0, None).is_err(), "one of none would wait for ever");
    assert!(queue.dequeue_at_least(0, 0, None).unwrap().is_empty());
    assert!(queue.dequeue_at_least(0, 5, None).unwrap().is_empty(), "zero does not wait");
    assert!(queue.dequeue_at_least(6, 5, None).is_err());
    assert!(queue.dequeue_at_least(17, 20, None).is_err(), "it would never end");

    a.blocking().send_all(&[1; 12]).unwrap();
    let three = queue.dequeue_at_least(3, 16, Some(LIMIT)).unwrap();
    assert_eq!(three.iter().map(|e| e.token().0).collect::<Vec<_>>(), [0, 1, 2]);

    // Fewer than asked for: what there is when the time is up.
    a.blocking().send_all(&[1; 8]).unwrap();
    let two = queue.dequeue_at_least(3, 16, Some(Duration::from_millis(50))).unwrap();
    assert!(two.len() <= 2, "{two:?}");
    let rest = queue.dequeue_at_least(2 - two.len(), 16, Some(LIMIT)).unwrap();
    assert_eq!(two.len() + rest.len(), 2);

    a.blocking().send_all(&[1; 20]).unwrap();
    let mut all = Vec::new();
    while all.len() < 5 {
        let n = queue.dequeue_into(&mut all, 1, 2, Some(LIMIT)).unwrap();
        assert!((1..=2).contains(&n));
    }
    assert_eq!(all.iter().map(|e| e.token().0).collect::<Vec<_>>(), [5, 6, 7, 8, 9]);
    assert_eq!((queue.len(), queue.outstanding()), (0, 0));
}

/// A time limit is kept to: nothing comes, not too early.
pub fn timeouts(env: &Env) {
    let (_a, b) = env.streams();
    let queue = EventQueue::new(4).unwrap();
    assert!(queue.dequeue(4, NOW).unwrap().is_empty());
    for policy in [WaitPolicy::Notify, WaitPolicy::Adaptive, WaitPolicy::BusyPoll] {
        queue.set_wait_policy(policy);
        b.recv(&queue, Token(1), vec![0; 4], RecvFlags::NONE).unwrap();
        let begun = Instant::now();
        let limit = Duration::from_millis(30);
        assert!(queue.dequeue(4, Some(limit)).unwrap().is_empty());
        assert!(begun.elapsed() >= limit);
        b.cancel_all();
        assert_eq!(queue.dequeue_at_least(1, 4, Some(LIMIT)).unwrap().len(), 1);
    }
}

/// Every policy gets every event.
pub fn wait_policies(env: &Env) {
    for policy in [WaitPolicy::Notify, WaitPolicy::Adaptive, WaitPolicy::BusyPoll] {
        let (a, b) = env.streams();
        let echo = std::thread::spawn(move || {
            let mut got = [0; 16];
            while let Ok(n @ 1..) = b.blocking().recv(&mut got) {
                b.blocking().send_all(&got[..n]).unwrap();
            }
        });
        let mut ledger = Ledger::with_policy(policy);
        for i in 0..200 {
            ledger.post("send", |q, t| a.send(q, t, [i; 3]));
            let recv = ledger.post("recv", |q, t| a.recv(q, t, vec![0; 3], RecvFlags::WAITALL));
            assert_eq!(&ledger.wait_ok(recv).into_buffer().unwrap()[..], [i; 3]);
        }
        assert!(ledger.drain().iter().all(|e| e.error().is_none()));
        ledger.finish();
        a.blocking().close().unwrap();
        echo.join().unwrap();
    }
}

/// A thread that finds an event each time it looks, and so never has to wait, still
/// gets all other events, while no other thread waits.
pub fn a_thread_that_never_waits_gets_all_events(env: &Env) {
    const LEN: usize = 1 << 20;
    let (a, b) = env.streams();
    let (queue, unwatched) = (EventQueue::new(4).unwrap(), EventQueue::new(4).unwrap());
    let (data, ready) = (Token(1), Token(2));
    b.recv(&queue, data, vec![0; LEN], RecvFlags::WAITALL).unwrap();
    b.poll(&queue, ready, Interest::WRITABLE).unwrap();
    a.send(&unwatched, Token(3), pattern(1, 0, LEN)).unwrap();
    let begun = Instant::now();
    let mut got = None;
    while got.is_none() {
        assert!(begun.elapsed() < LIMIT, "the data have not come");
        for event in queue.dequeue(4, Some(LIMIT)).unwrap() {
            assert!(event.error().is_none(), "{event:?}");
            if event.token() == ready {
                b.poll(&queue, ready, Interest::WRITABLE).unwrap();
            } else {
                got = event.into_buffer();
            }
        }
    }
    assert_eq!(&got.unwrap()[..], &pattern(1, 0, LEN)[..]);
    assert_eq!(queue.dequeue_at_least(1, 4, Some(LIMIT)).unwrap()[0].token(), ready);
    assert!(unwatched.next().unwrap().error().is_none());
}

/// A program that only ever dequeues without waiting: connections, messages to and fro, and a
/// transfer of many turns, with a second connection that spoke long ago.
pub fn a_thread_that_only_polls_gets_all_events(env: &Env) {
    const LONG: usize = 4 << 20;
    let queue = EventQueue::new(64).unwrap();
    let next = |what: &str| {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < LIMIT, "no event of {what}");
            if let Some(event) = queue.dequeue(1, NOW).unwrap().pop() {
                assert!(event.error().is_none(), "{what}: {event:?}");
                return event;
            }
            // Where processors are few, the thread that moves the data needs one.
            std::thread::yield_now();
        }
    };
    let (listener, addr) = env.listener(SocketType::Stream);
    let pair = || {
        let client = env.socket(SocketType::Stream);
        listener.accept(&queue, Token(1)).unwrap();
        client.connect(&queue, Token(2), addr).unwrap();
        let mut server = None;
        for _ in 0..2 {
            server = accepted(next("a connection")).map(|(s, _)| s).or(server);
        }
        (client, server.unwrap())
    };
    let say = |from: &Socket, to: &Socket, seed, len| {
        to.recv(&queue, Token(3), vec![0; len], RecvFlags::WAITALL).unwrap();
        from.send(&queue, Token(4), pattern(seed, 0, len)).unwrap();
        let [x, y] = ["one end", "the other"].map(next);
        let came = if x.kind() == EventKind::Recv { x } else { y };
        assert_eq!(&came.into_buffer().unwrap()[..], &pattern(seed, 0, len)[..]);
    };
    let (silent, (a, b)) = (pair(), pair());
    for n in 0..100 {
        say(&a, &b, 2 * n, 64);
        say(&b, &a, 2 * n + 1, 64);
    }
    say(&a, &b, 1, LONG);
    silent.1.recv(&queue, Token(5), vec![0; 8], RecvFlags::NONE).unwrap();
    drop(silent.0);
    assert!(next("an end").eof());
}

/// Several threads dequeue one queue: each event goes to one of them.
pub fn several_threads_dequeue(env: &Env) {
    const MANY: usize = 4000;
    let (a, b) = env.streams();
    let queue = EventQueue::new(64).unwrap();
    let seen = Mutex::new(HashSet::new());
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                while seen.lock().unwrap().len() < MANY {
                    // A short limit, as another thread may take the last event.
                    for event in queue.dequeue(3, Some(Duration::from_millis(20))).unwrap() {
                        assert!(event.error().is_none(), "{event:?}");
                        assert!(seen.lock().unwrap().insert(event.token().0), "twice: {event:?}");
                    }
                }
            });
        }
        s.spawn(|| {
            let mut got = vec![0; 10_000];
            let mut left = MANY / 2 * 10;
            while left > 0 {
                left -= a.blocking().recv(&mut got).unwrap();
            }
        });
        for i in 0..MANY as u64 / 2 {
            let posts: [&dyn Fn() -> Result<(), Error>; 2] =
                [&|| Ok(b.send(&queue, Token(i * 2), [0; 10])?), &|| {
                    b.poll(&queue, Token(i * 2 + 1), Interest::WRITABLE)
                }];
            for post in posts {
                while let Err(e) = post() {
                    assert!(e.is_would_block(), "{e}");
                    std::thread::yield_now();
                }
            }
        }
    });
    assert_eq!(queue.outstanding(), 0);
}

/// Several threads send and receive on one socket: whole sends, once each.
pub fn several_threads_use_one_socket(env: &Env) {
    const EACH: usize = 300;
    let (a, b) = env.packets();
    std::thread::scope(|s| {
        for sender in 0..4u8 {
            let a = &a;
            s.spawn(move || {
                for i in 0..EACH {
                    let size = if i % 50 == 0 { 100_000 } else { 20 };
                    let mut message = pattern(u64::from(sender), i, size);
                    message[0] = sender;
                    message[1..9].copy_from_slice(&i.to_be_bytes());
                    a.blocking().send_all(&message).unwrap();
                }
            });
        }
        let seen = Mutex::new(HashSet::new());
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..4 * EACH / 3 {
                        let mut got = vec![0; 100_000];
                        let packet = b.blocking().recv_packet(&mut got).unwrap();
                        let sender = got[0];
                        let i = usize::from_be_bytes(got[1..9].try_into().unwrap());
                        assert_eq!(packet.bytes, if i % 50 == 0 { 100_000 } else { 20 });
                        check(u64::from(sender), i + 9, &got[9..packet.bytes]);
                        assert!(seen.lock().unwrap().insert((sender, i)), "twice");
                    }
                });
            }
        });
        assert_eq!(seen.lock().unwrap().len(), 4 * EACH);
    });
}

/// Dequeues until the descriptor is quiet. It may be readable for what the shard has to do, which
/// brings no event here.
fn until_quiet(queue: &EventQueue) {
    let mut fds = [libc_pollfd(queue)];
    while nix::poll::poll(&mut fds, nix::poll::PollTimeout::ZERO).unwrap() == 1 {
        assert!(queue.dequeue(1, NOW).unwrap().is_empty(), "no operation is in flight");
    }
}

/// In epoll: readable while events wait, and not for long without them.
pub fn the_descriptor_is_level_triggered(env: &Env) {
    let (a, b) = env.streams();
    let queue = EventQueue::new(64).unwrap();
    let mut poll = mio::Poll::new().unwrap();
    let mut ready = mio::Events::with_capacity(4);
    poll.registry()
        .register(&mut SourceFd(&queue.as_raw_fd()), mio::Token(0), mio::Interest::READABLE)
        .unwrap();
    let readable = |timeout: Duration| {
        let mut fds = [libc_pollfd(&queue)];
        nix::poll::poll(&mut fds, nix::poll::PollTimeout::try_from(timeout).unwrap()).unwrap() == 1
    };
    until_quiet(&queue);
    for round in 0..300u64 {
        let n = 1 + round % 3;
        for i in 0..n {
            b.recv(&queue, Token(i), vec![0; 10], RecvFlags::WAITALL).unwrap();
        }
        let bytes = vec![0; usize::try_from(n).unwrap() * 10];
        a.blocking().send_all(&bytes).unwrap();
        let mut left = n;
        while left > 0 {
            // mio is edge-triggered: dequeue until nothing comes, as documented.
            poll.poll(&mut ready, Some(LIMIT)).unwrap();
            assert!(!ready.is_empty(), "a wake-up was lost in round {round}");
            loop {
                let events = queue.dequeue(1, NOW).unwrap();
                if events.is_empty() {
                    break;
                }
                left -= 1;
                if !queue.is_empty() {
                    assert!(readable(Duration::ZERO), "events wait: it must be readable");
                }
            }
        }
        until_quiet(&queue);
    }
}

fn libc_pollfd(queue: &EventQueue) -> nix::poll::PollFd<'_> {
    use std::os::fd::AsFd;
    nix::poll::PollFd::new(queue.as_fd(), nix::poll::PollFlags::POLLIN)
}

/// Events that were there before anybody asked for the descriptor make it readable too.
pub fn a_late_descriptor_is_readable(env: &Env) {
    let (a, b) = env.streams();
    let queue = EventQueue::new(4).unwrap();
    b.recv(&queue, Token(1), vec![0; 10], RecvFlags::NONE).unwrap();
    a.blocking().send_all(b"x").unwrap();
    let mut fds = [libc_pollfd(&queue)];
    let limit = nix::poll::PollTimeout::try_from(LIMIT).unwrap();
    let mut events = Vec::new();
    while events.is_empty() {
        assert_eq!(nix::poll::poll(&mut fds, limit).unwrap(), 1);
        events = queue.dequeue(4, NOW).unwrap();
    }
}

/// Progress does not need a thread that waits: what was posted goes on by itself.
pub fn progress_without_a_waiter(env: &Env) {
    let (a, b) = env.streams();
    let queue = EventQueue::new(4).unwrap();
    b.recv(&queue, Token(1), vec![0; 3 << 20], RecvFlags::WAITALL).unwrap();
    a.send(&queue, Token(2), vec![0; 3 << 20]).unwrap();
    let begun = Instant::now();
    while queue.len() < 2 {
        assert!(begun.elapsed() < LIMIT, "nothing moves");
        std::thread::yield_now();
    }
    let kinds: HashSet<_> = queue.dequeue(4, NOW).unwrap().iter().map(|e| e.kind()).collect();
    assert_eq!(kinds, HashSet::from([EventKind::Send, EventKind::Recv]));
}

/// `poll` says what would not have to wait.
pub fn poll_of_a_connection(env: &Env) {
    let (a, b) = env.streams();
    let sure = Some(LIMIT);
    let found = a.blocking().poll(Interest::BOTH, sure).unwrap().unwrap();
    assert!(found.writable && !found.readable && !found.error, "{found:?}");
    assert_eq!(a.blocking().poll(Interest::READABLE, NOW).unwrap(), None);
    b.blocking().send_all(b"x").unwrap();
    assert!(a.blocking().poll(Interest::READABLE, sure).unwrap().unwrap().readable);
    assert_eq!(a.blocking().recv(&mut [0; 4]).unwrap(), 1);
    assert_eq!(a.blocking().poll(Interest::READABLE, NOW).unwrap(), None);
    b.blocking().shutdown(std::net::Shutdown::Write).unwrap();
    assert!(a.blocking().poll(Interest::READABLE, sure).unwrap().unwrap().readable, "the end");
    b.abort();
    let mut ledger = Ledger::new();
    ledger.post("recv", |q, t| a.recv(q, t, vec![0; 4], RecvFlags::NONE));
    ledger.event();
    ledger.finish();
}

/// Sockets at one queue: more than any device looks at one by one.
const MANY: usize = 80;

/// Each of many connections that sends is received, small or large, soon after the last message
/// or after a silence, and however the thread waits.
pub fn each_of_many_sockets_is_received(env: &Env) {
    let pairs: Vec<_> = (0..MANY).map(|_| env.streams()).collect();
    let mut rng = Rng::new(80);
    for policy in [WaitPolicy::Notify, WaitPolicy::BusyPoll, WaitPolicy::Adaptive] {
        let mut ledger = Ledger::with_policy(policy);
        for round in 0..20 / env.shrink().clamp(1, 5) {
            // All, or few, or one of them; each in both directions.
            let chance = [1, 2, 16, MANY as u64][rng.between(0, 3)];
            for (a, b) in &pairs {
                for (from, to) in [(a, b), (b, a)] {
                    if !rng.one_in(chance) {
                        continue;
                    }
                    let len = [1, 100, 9_000, 70_000][rng.between(0, 3)];
                    let buffer = vec![0; len];
                    ledger.post("recv", |q, t| to.recv(q, t, buffer, RecvFlags::WAITALL));
                    let bytes = pattern(round as u64, 0, len);
                    ledger.post("send", |q, t| from.send(q, t, bytes));
                }
            }
            for event in ledger.drain() {
                assert!(event.error().is_none(), "{event:?}");
                if event.kind() == EventKind::Recv {
                    check(round as u64, 0, &event.into_buffer().unwrap());
                }
            }
        }
        ledger.finish();
    }
}

/// A connection that sends once among many that never stop is received before each of them was
/// received a hundred times. The busy ones have the next message on its way whenever a receive is posted.
pub fn busy_connections_starve_no_other(env: &Env) {
    let len = 600_000 / env.shrink().clamp(1, 5);
    let (quiet_a, quiet_b) = env.streams();
    let busy: Vec<_> = (0..MANY).map(|_| env.streams()).collect();
    let mut ledger = Ledger::with_policy(WaitPolicy::BusyPoll);
    let mut receives = HashMap::new();
    let talk = |ledger: &mut Ledger, receives: &mut HashMap<Token, usize>, i: usize| {
        let (a, b): &(Socket, Socket) = &busy[i];
        let buffer = vec![0; len];
        let recv = ledger.post("recv", |q, t| b.recv(q, t, buffer, RecvFlags::WAITALL));
        receives.insert(recv, i);
        ledger.post("send", |q, t| a.send(q, t, vec![1; len]));
    };
    for i in (0..MANY).chain(0..MANY) {
        talk(&mut ledger, &mut receives, i);
    }
    let word = ledger.post("recv", |q, t| quiet_b.recv(q, t, vec![0; len], RecvFlags::WAITALL));
    let (mut heard, mut asked) = (0, false);
    loop {
        let event = ledger.ok();
        if event.token() == word {
            break;
        }
        let Some(i) = receives.remove(&event.token()) else { continue };
        heard += 1;
        assert!(heard < 100 * MANY, "the quiet connection was not received");
        // When all are in full swing.
        if heard >= MANY && !std::mem::replace(&mut asked, true) {
            ledger.post("send", |q, t| quiet_a.send(q, t, vec![2; len]));
        }
        talk(&mut ledger, &mut receives, i);
    }
    ledger.finish();
}

/// Each event carries the number that its socket had when the operation was posted.
pub fn events_carry_the_number_of_their_socket(env: &Env) {
    let (listener, addr) = env.listener(SocketType::Stream);
    let client = env.socket(SocketType::Stream);
    let mut ledger = Ledger::new();
    listener.set_user_data(1);
    client.set_user_data(u64::MAX);
    let accept = ledger.post("accept", |q, t| listener.accept(q, t));
    let connect = ledger.post("connect", |q, t| client.connect(q, t, addr));
    assert_eq!(ledger.wait_ok(connect).user_data(), u64::MAX);
    let event = ledger.wait_ok(accept);
    assert_eq!(event.user_data(), 1, "that of the listener");
    let (server, _) = accepted(event).unwrap();
    assert_eq!(server.user_data(), 0);

    let early = ledger.post("recv", |q, t| server.recv(q, t, vec![0; 9], RecvFlags::WAITALL));
    server.clone().set_user_data(2);
    let late = ledger.post("recv", |q, t| server.recv(q, t, vec![0; 9], RecvFlags::WAITALL));
    let large = vec![vec![5; 300_000].into(), vec![6; 10].into()];
    let recv = ledger.post("recvv", |q, t| server.recv_vectored(q, t, large, RecvFlags::WAITALL));
    let sends = [
        ledger.post("send", |q, t| client.send(q, t, [7; 18])),
        ledger.post("sendv", |q, t| client.send_vectored(q, t, vec![vec![8; 300_000].into()])),
        ledger.post("parts", |q, t| {
            client.send_parts(q, t, vec![exs::Part::Memory(vec![(*b"0123456789").into()])], true)
        }),
    ];
    for (token, number) in [(early, 0), (late, 2), (recv, 2)] {
        assert_eq!(ledger.wait_ok(token).user_data(), number);
    }
    for token in sends {
        assert_eq!(ledger.wait_ok(token).user_data(), u64::MAX);
    }
    let poll = ledger.post("poll", |q, t| server.poll(q, t, Interest::READABLE));
    assert_eq!(ledger.wait_ok(poll).user_data(), 2);
    // Of operations that fail, too.
    let cancelled = ledger.post("recv", |q, t| client.recv(q, t, vec![0; 9], RecvFlags::NONE));
    client.cancel_all();
    let event = ledger.wait(cancelled);
    assert!(event.error().is_some_and(Error::is_cancelled));
    assert_eq!(event.user_data(), u64::MAX);
    let close = ledger.post("close", |q, t| server.close(q, t));
    assert_eq!(ledger.wait(close).user_data(), 2);
    ledger.finish();
}
