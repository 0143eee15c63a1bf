//! Cancellation: one event each, and no byte lost or written afterwards.

use std::time::Duration;

use exs::{Error, Interest, Part, RecvFlags, SocketType, Token};

use crate::harness::{Env, Ledger, Rng, check, pattern};

/// A receive, advertised to the peer or not: cancelled, its buffer is left alone from
/// then on, and the data go to the next one.
pub fn a_receive_by_token(env: &Env) {
    let (a, b) = env.streams();
    let mut at = 0;
    for size in [1, 1000, 100_000, 4 << 20] {
        let mut ledger = Ledger::new();
        let recv = ledger.post("recv", |q, t| b.recv(q, t, vec![7; size], RecvFlags::WAITALL));
        assert_eq!(b.cancel(Token(987_654)), 0, "no operation has this token");
        assert_eq!(b.cancel(recv), 1);
        let event = ledger.wait(recv);
        assert!(event.error().is_some_and(Error::is_cancelled), "{event:?}");
        assert_eq!(event.bytes(), 0);
        let buffer = event.into_buffer().unwrap();
        a.blocking().send_all(&pattern(1, at, size.min(10_000))).unwrap();
        let mut got = vec![0; size.min(10_000)];
        b.blocking().recv_exact(&mut got).unwrap();
        check(1, at, &got);
        at += got.len();
        assert!(buffer.iter().all(|&x| x == 7), "written after its event");
        assert_eq!(b.cancel(recv), 0, "it has ended");
        ledger.finish();
    }
}

/// Cancels at random moments while data flow: every byte arrives once, in order, in a
/// receive that ended well or was cancelled half-way.
pub fn at_any_moment(env: &Env) {
    const TOTAL: usize = 3_000_000;
    for seed in 0..env.seeds(10) {
        let (a, b) = env.streams();
        let sender = std::thread::spawn(move || {
            let mut rng = Rng::new(seed);
            let mut sent = 0;
            while sent < TOTAL {
                let n = rng.size(150_000).min(TOTAL - sent);
                a.blocking().send_all(&pattern(seed, sent, n)).unwrap();
                sent += n;
            }
            a.blocking().shutdown(std::net::Shutdown::Write).unwrap();
            a
        });
        let mut rng = Rng::new(seed + 1000);
        let mut ledger = Ledger::new();
        let (mut got, mut end) = (0, false);
        while !end {
            let mut tokens = Vec::new();
            for _ in 0..rng.between(1, 3) {
                let size = rng.size(200_000);
                let flags = if rng.one_in(2) { RecvFlags::WAITALL } else { RecvFlags::NONE };
                tokens.push(ledger.post("recv", |q, t| b.recv(q, t, vec![0; size], flags)));
            }
            if rng.one_in(2) {
                b.cancel(tokens[rng.between(0, tokens.len() - 1)]);
            }
            for token in tokens {
                let event = ledger.wait(token);
                assert!(event.error().is_none_or(Error::is_cancelled), "{event:?}");
                let n = event.bytes();
                end |= event.eof() && n == 0;
                check(seed, got, &event.into_buffer().unwrap()[..n]);
                got += n;
            }
        }
        assert_eq!(got, TOTAL);
        ledger.finish();
        sender.join().unwrap();
    }
}

/// Everything of a socket, and nothing of another.
pub fn all_of_a_socket(env: &Env) {
    let (a, b) = env.streams();
    let (c, d) = env.streams();
    let mut ledger = Ledger::new();
    for size in [10, 100_000, 1 << 20] {
        ledger.post("recv", |q, t| a.recv(q, t, vec![0; size], RecvFlags::NONE));
    }
    ledger.post("poll", |q, t| a.poll(q, t, Interest::READABLE));
    let other = ledger.post("recv", |q, t| c.recv(q, t, vec![0; 10], RecvFlags::NONE));
    assert_eq!(a.cancel_all(), 4);
    for _ in 0..4 {
        let event = ledger.event();
        assert_ne!(event.token(), other);
        assert!(event.error().is_some_and(Error::is_cancelled), "{event:?}");
    }
    d.blocking().send_all(b"untouched").unwrap();
    assert_eq!(ledger.wait_ok(other).bytes(), 9);
    b.blocking().send_all(b"works").unwrap();
    assert_eq!(a.blocking().recv(&mut [0; 10]).unwrap(), 5);
    assert_eq!(a.cancel_all(), 0, "nothing is left");
    ledger.finish();
}

/// accept, poll and connect.
pub fn operations_that_move_no_data(env: &Env) {
    let (listener, _) = env.listener(SocketType::Stream);
    let mut ledger = Ledger::new();
    let accept = ledger.post("accept", |q, t| listener.accept(q, t));
    let poll = ledger.post("poll", |q, t| listener.poll(q, t, Interest::READABLE));
    let (_silent, addr) = env.silent();
    let client = env.socket(SocketType::Stream);
    let connect = ledger.post("connect", |q, t| client.connect(q, t, addr));
    for (socket, token) in [(&listener, accept), (&listener, poll), (&client, connect)] {
        assert_eq!(socket.cancel(token), 1);
        let event = ledger.wait(token);
        assert!(event.error().is_some_and(Error::is_cancelled), "{event:?}");
    }
    // The listener takes connections afterwards, and the client makes one.
    client.blocking().connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.blocking().accept().unwrap();
    client.blocking().send_all(b"fine").unwrap();
    assert_eq!(server.blocking().recv(&mut [0; 10]).unwrap(), 4);
    ledger.finish();
}

/// Sends that wait for the peer: cancelled, they say how much is on its way, and that is
/// what the peer gets.
pub fn sends_that_wait(env: &Env) {
    const SIZE: usize = 5 << 20;
    let (a, b) = env.with(|o| o.ring_size = 64 << 10).streams();
    let mut ledger = Ledger::new();
    let first = ledger.post("send", |q, t| a.send(q, t, pattern(1, 0, SIZE)));
    let second = ledger.post("send", |q, t| a.send(q, t, vec![9; SIZE]));
    assert_eq!(a.cancel(second), 1);
    let event = ledger.wait(second);
    assert!(event.error().is_some_and(Error::is_cancelled), "{event:?}");
    assert_eq!(event.bytes(), 0, "nothing of it can have left");
    a.cancel(first);
    let event = ledger.wait(first);
    assert!(event.error().is_some_and(Error::is_cancelled), "the ring is smaller than it");
    let left = event.bytes();
    assert!(left < SIZE);
    a.blocking().shutdown(std::net::Shutdown::Write).unwrap();
    let (mut got, mut piece) = (0, vec![0; 10_000]);
    loop {
        match b.blocking().recv(&mut piece).unwrap() {
            0 => break,
            n => {
                check(1, got, &piece[..n]);
                got += n;
            }
        }
    }
    assert_eq!(got, left, "the event says what the peer gets");
    ledger.finish();
}

/// Time limits of receives and sends: ETIMEDOUT, and the connection goes on.
pub fn time_limits(env: &Env) {
    let limit = Duration::from_millis(100);
    let (a, b) = env
        .with(|o| {
            (o.recv_timeout, o.send_timeout) = (Some(limit), Some(limit));
            o.ring_size = 64 << 10;
        })
        .streams();
    let mut ledger = Ledger::new();
    for size in [10, 1 << 20] {
        let recv = ledger.post("recv", |q, t| b.recv(q, t, vec![7; size], RecvFlags::WAITALL));
        let event = ledger.wait(recv);
        assert_eq!(event.error().map(Error::errno), Some(libc::ETIMEDOUT), "{event:?}");
    }
    a.blocking().send_all(b"in time").unwrap();
    let mut got = [0; 7];
    b.blocking().recv_exact(&mut got).unwrap();
    assert_eq!(&got, b"in time");

    let send = ledger.post("send", |q, t| a.send(q, t, pattern(1, 0, 5 << 20)));
    let event = ledger.wait(send);
    assert_eq!(event.error().map(Error::errno), Some(libc::ETIMEDOUT), "{event:?}");
    let left = event.bytes();
    let mut got = vec![0; left];
    b.blocking().recv_exact(&mut got).unwrap();
    check(1, 0, &got);
    ledger.finish();
}

/// Time limits hold for what is posted after they were set.
pub fn time_limits_set_late(env: &Env) {
    let (a, b) = env.streams();
    let limit = Some(Duration::from_millis(20));
    let mut ledger = Ledger::new();
    let before = ledger.post("recv", |q, t| a.recv(q, t, vec![0; 4], RecvFlags::WAITALL));
    a.set_options(&a.options().with_recv_timeout(limit)).unwrap();
    let after = ledger.post("recv", |q, t| a.recv(q, t, vec![0; 4], RecvFlags::WAITALL));
    let event = ledger.wait(after);
    assert_eq!(event.error().map(exs::Error::errno), Some(libc::ETIMEDOUT), "{event:?}");
    b.blocking().send_all(b"four").unwrap();
    assert_eq!(ledger.wait_ok(before).bytes(), 4);
    ledger.finish();
}

/// A sender waits a while for a receive where there were some before. Not beyond a time limit:
/// there is room elsewhere.
pub fn no_limit_ends_what_there_is_room_for(env: &Env) {
    let (a, b) = env.streams();
    let mut ledger = Ledger::new();
    for _ in 0..2 {
        // Both receives are there before what is sent.
        let post = |q: &exs::EventQueue, t| b.recv(q, t, vec![0; 65536], RecvFlags::WAITALL);
        let recvs = [ledger.post("recv", post), ledger.post("recv", post)];
        a.blocking().send_all(&[1; 2 * 65536]).unwrap();
        for recv in recvs {
            ledger.wait_ok(recv);
        }
    }
    let limit = Some(Duration::from_millis(390));
    a.set_options(&a.options().with_send_timeout(limit)).unwrap();
    a.blocking().send_all(&[2; 16384]).unwrap();
    let mut got = [0; 16384];
    b.blocking().recv_exact(&mut got).unwrap();
    assert_eq!(got, [2; 16384]);
    ledger.finish();
}

/// An operation that is cancelled while it moves, on a connection that then ends, tells the truth: of a
/// send that says ECANCELED the peer has no message, and of a stream no more than the bytes it says.
pub fn the_end_of_the_connection_after_it(env: &Env) {
    for seed in 0..env.seeds(60) {
        let ty = if seed % 2 == 0 { SocketType::SeqPacket } else { SocketType::Stream };
        let (a, b) = env.pair(ty);
        let (mut rng, mut ledger) = (Rng::new(seed), Ledger::new());
        let mut sends = Vec::new();
        let mut recvs = Vec::new();
        for k in 1..=8_u8 {
            let (n, room) = (rng.between(1, 400_000), rng.between(1, 400_000));
            recvs.push(ledger.post("recv", |q, t| b.recv(q, t, vec![0; room], RecvFlags::NONE)));
            sends.push(ledger.post("send", |q, t| {
                let buffer = vec![k; n];
                if ty == SocketType::Stream && k % 3 == 0 {
                    let parts = vec![
                        Part::Memory(vec![buffer.into()]),
                        Part::Memory(vec![vec![k; n].into()]),
                    ];
                    return a.send_parts(q, t, parts, false).map_err(Error::from);
                }
                a.send(q, t, buffer).map_err(Error::from)
            }));
            if rng.one_in(3) {
                a.cancel(sends[rng.between(0, sends.len() - 1)]);
            }
        }
        let mut events = Vec::new();
        for _ in 0..rng.between(0, 3) {
            events.extend(ledger.poll(Duration::ZERO));
        }
        a.cancel(sends[rng.between(0, 7)]);
        match rng.between(0, 2) {
            0 => a.abort(),
            1 => b.abort(),
            _ => drop(ledger.post("close", |q, t| b.close(q, t))),
        }
        events.extend(ledger.drain());
        let mut got = [0_usize; 9];
        let mut said = [usize::MAX; 9];
        for event in &mut events {
            let n = event.bytes();
            if recvs.contains(&event.token()) {
                let buffer = event.take_buffer().unwrap();
                buffer[..n].iter().for_each(|k| got[usize::from(*k)] += 1);
            } else if let Some(k) = sends.iter().position(|t| *t == event.token())
                && event.error().is_none_or(Error::is_cancelled)
            {
                said[k + 1] = n;
            }
        }
        assert_eq!(got[0], 0, "seed {seed}: bytes that were never sent");
        for k in 1..=8 {
            assert!(
                got[k] <= said[k],
                "seed {seed}: send {k} says {}, the peer has {}",
                said[k],
                got[k]
            );
        }
        ledger.finish();
    }
}
