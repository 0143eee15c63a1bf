//! The end of connections: one direction, both, gracefully, at once.

use std::net::Shutdown;
use std::time::Duration;

use exs::{Error, EventQueue, Interest, RecvFlags, Socket, SocketType, Token};

use crate::harness::{Env, Ledger, check, pattern};

/// Reads until the end; an error is one.
fn read_all(socket: &Socket) -> Result<Vec<u8>, Error> {
    let (mut all, mut piece) = (Vec::new(), vec![0; 70_000]);
    loop {
        match socket.blocking().recv(&mut piece)? {
            0 => return Ok(all),
            n => all.extend_from_slice(&piece[..n]),
        }
    }
}

/// Errors that say that the other side, or the connection, is gone.
fn is_gone(error: &Error) -> bool {
    [libc::ECONNRESET, libc::EPIPE, libc::ECONNABORTED, libc::ETIMEDOUT].contains(&error.errno())
}

/// After `shutdown(Write)` the peer sees the end, after all that was sent; the other
/// direction goes on.
pub fn shutdown_of_one_side(env: &Env) {
    let (a, b) = env.streams();
    let mut ledger = Ledger::new();
    let bytes = pattern(1, 0, 3_000_000);
    let send = ledger.post("send", |q, t| a.send(q, t, bytes));
    let shut = ledger.post("shutdown", |q, t| a.shutdown(q, t, Shutdown::Write));
    let refused = ledger.try_post("send", |q, t| a.send(q, t, *b"late")).unwrap_err();
    assert_eq!(refused.error.errno(), libc::EPIPE, "{refused}");
    let got = read_all(&b).unwrap();
    assert_eq!(got.len(), 3_000_000);
    check(1, 0, &got);
    ledger.wait_ok(send);
    ledger.wait_ok(shut);
    assert!(read_all(&b).unwrap().is_empty(), "the end stays the end");
    for i in 0..10 {
        b.blocking().send_all(&pattern(2, i * 1000, 1000)).unwrap();
    }
    b.blocking().shutdown(Shutdown::Write).unwrap();
    let got = read_all(&a).unwrap();
    assert_eq!(got.len(), 10_000);
    check(2, 0, &got);
    ledger.finish();
}

/// A shutdown behind data is cancelled when the socket is closed already: it ends at once, and the
/// peer gets the data and the end all the same.
pub fn close_tells_the_end_without_the_shutdown(env: &Env) {
    let (a, b) = env.with(|o| o.ring_size = 64 << 10).streams();
    let mut ledger = Ledger::new();
    let bytes = pattern(1, 0, 3_000_000);
    let send = ledger.post("send", |q, t| a.send(q, t, bytes));
    let shut = ledger.post("shutdown", |q, t| a.shutdown(q, t, Shutdown::Write));
    let close = ledger.post("close", |q, t| a.close(q, t));
    assert_eq!(a.cancel(shut), 1);
    assert!(ledger.wait(shut).result().unwrap_err().is_cancelled());
    let got = read_all(&b).unwrap();
    assert_eq!(got.len(), 3_000_000);
    check(1, 0, &got);
    ledger.wait_ok(send);
    ledger.wait_ok(close);
    ledger.finish();
}

/// After `shutdown(Read)` our receives end; what we send still goes.
pub fn shutdown_of_reading(env: &Env) {
    let (a, b) = env.streams();
    let mut ledger = Ledger::new();
    let recv = ledger.post("recv", |q, t| b.recv(q, t, vec![0; 10], RecvFlags::NONE));
    let shut = ledger.post("shutdown", |q, t| b.shutdown(q, t, Shutdown::Read));
    ledger.wait_ok(shut);
    let event = ledger.wait(recv);
    assert!(event.eof() || event.error().is_some(), "{event:?}");
    b.blocking().send_all(b"still").unwrap();
    let mut got = [0; 5];
    a.blocking().recv_exact(&mut got).unwrap();
    assert_eq!(&got, b"still");
    ledger.finish();
}

/// Several receives wait at the end: each has its event.
pub fn every_receive_sees_the_end(env: &Env) {
    for ty in [SocketType::Stream, SocketType::SeqPacket] {
        let (a, b) = env.pair(ty);
        let mut ledger = Ledger::new();
        for size in [10, 100_000, 0, 10] {
            ledger.post("recv", |q, t| b.recv(q, t, vec![0; size], RecvFlags::NONE));
        }
        a.blocking().shutdown(Shutdown::Write).unwrap();
        for event in ledger.drain() {
            assert!(event.error().is_none() && event.bytes() == 0, "{event:?}");
        }
        ledger.finish();
    }
}

/// The time that a close may take is longer than a slow machine takes for what is sent before.
fn patient(env: &Env) -> Env {
    env.with(|o| o.linger = Duration::from_secs(120))
}

/// `close` delivers all that was sent before it, however slowly the peer takes it.
pub fn close_delivers_everything(env: &Env) {
    const SIZE: usize = 6_000_000;
    let env = patient(env);
    for registered in [false, true] {
        let (a, b) = env.streams();
        let mut ledger = Ledger::new();
        for i in 0..6 {
            let mut bytes = exs::Buffer::from(pattern(1, i * SIZE / 6, SIZE / 6));
            if registered {
                let mut other = exs::MemoryRegion::new(SIZE / 6).unwrap().buffer(..).unwrap();
                other.copy_from_slice(&bytes);
                bytes = other;
            }
            ledger.post("send", |q, t| a.send(q, t, bytes));
        }
        let close = ledger.post("close", |q, t| a.close(q, t));
        let got = read_all(&b).unwrap();
        assert_eq!(got.len(), SIZE);
        check(1, 0, &got);
        // Both sides close: neither waits for the other for ever.
        b.blocking().close().unwrap();
        ledger.wait_ok(close);
        assert!(ledger.drain().iter().all(|e| e.error().is_none()));
        ledger.finish();
    }
}

/// Dropping the last handle is a close in the background.
pub fn a_drop_delivers_everything(env: &Env) {
    const SIZE: usize = 3_000_000;
    let (a, b) = patient(env).streams();
    let mut ledger = Ledger::new();
    let again = a.clone();
    ledger.post("send", |q, t| a.send(q, t, pattern(1, 0, SIZE)));
    drop(a);
    ledger.post("send", |q, t| again.send(q, t, pattern(1, SIZE, 9)));
    drop(again);
    let got = read_all(&b).unwrap();
    assert_eq!(got.len(), SIZE + 9);
    check(1, 0, &got);
    assert!(ledger.drain().iter().all(|e| e.error().is_none()));
    ledger.finish();
}

/// Messages, too.
pub fn close_delivers_messages(env: &Env) {
    let (a, b) = patient(env).packets();
    let mut ledger = Ledger::new();
    let sizes = [5, 0, 100_000, 3_000_000, 1];
    for (i, size) in sizes.into_iter().enumerate() {
        let bytes = pattern(i as u64, 0, size);
        ledger.post("send", |q, t| a.send(q, t, bytes));
    }
    ledger.post("close", |q, t| a.close(q, t));
    let mut got = vec![0; 3_000_000];
    for (i, size) in sizes.into_iter().enumerate() {
        let packet = b.blocking().recv_packet(&mut got).unwrap();
        assert_eq!((packet.total, packet.eof), (size as u64, false));
        check(i as u64, 0, &got[..size]);
    }
    assert!(b.blocking().recv_packet(&mut got).unwrap().eof);
    b.blocking().close().unwrap();
    assert!(ledger.drain().iter().all(|e| e.error().is_none()));
    ledger.finish();
}

/// Messages of no bytes that were not received before the connection ends are still received,
/// and then the end.
pub fn empty_messages_outlive_the_connection(env: &Env) {
    let (a, b) = env.packets();
    for _ in 0..2 {
        a.blocking().send(b"").unwrap();
    }
    let mut ledger = Ledger::new();
    ledger.post("close", |q, t| a.close(q, t));
    // Until it is over, and not only the peer's half of it.
    loop {
        let poll = ledger.post("poll", |q, t| b.poll(q, t, Interest::WRITABLE));
        if ledger.wait(poll).readiness().error {
            break;
        }
    }
    for _ in 0..2 {
        let packet = b.blocking().recv_packet(&mut [0; 8]).unwrap();
        assert_eq!((packet.bytes, packet.total, packet.eof), (0, 0, false));
    }
    assert!(b.blocking().recv_packet(&mut [0; 8]).unwrap().eof);
    ledger.finish();
}

/// Our receives that wait are cancelled by our close, and their buffers come back.
pub fn close_cancels_receives(env: &Env) {
    for ty in [SocketType::Stream, SocketType::SeqPacket] {
        let (a, b) = env.pair(ty);
        let mut ledger = Ledger::new();
        for size in [10, 1 << 20, 300_000] {
            ledger.post("recv", |q, t| a.recv(q, t, vec![7; size], RecvFlags::WAITALL));
        }
        ledger.post("poll", |q, t| a.poll(q, t, Interest::READABLE));
        let close = ledger.post("close", |q, t| a.close(q, t));
        ledger.wait_ok(close);
        for mut event in ledger.drain() {
            if event.kind() == exs::EventKind::Recv {
                assert!(event.error().is_some_and(Error::is_cancelled), "{event:?}");
                assert!(event.take_buffer().is_some(), "the buffer comes back");
            }
        }
        ledger.finish();
        drop(b);
    }
}

/// A peer that reads nothing cannot hold `close` up for longer than `linger`.
pub fn close_is_bounded_by_linger(env: &Env) {
    let (a, b) = env.with(|o| o.linger = Duration::from_millis(300)).streams();
    let mut ledger = Ledger::new();
    let bytes = vec![1; 30 << 20];
    let send = ledger.post("send", |q, t| a.send(q, t, bytes));
    let close = ledger.post("close", |q, t| a.close(q, t));
    assert!(ledger.wait(close).error().is_some(), "not all was delivered");
    assert!(ledger.wait(send).error().is_some());
    let seen = read_all(&b);
    assert!(seen.is_err(), "the peer must not take it for a proper end");
    ledger.finish();
}

/// `abort` ends everything, on both sides, at once.
pub fn abort(env: &Env) {
    for ty in [SocketType::Stream, SocketType::SeqPacket] {
        let (a, b) = env.pair(ty);
        let (mut ours, mut theirs) = (Ledger::new(), Ledger::new());
        // More than the peer sends, however much of it is faster than the abort.
        let flags = RecvFlags::NONE.with_waitall(ty == SocketType::Stream).with_peek(false);
        for size in [10, 40 << 20] {
            ours.post("recv", |q, t| a.recv(q, t, vec![0; size], RecvFlags::NONE));
            theirs.post("recv", |q, t| b.recv(q, t, vec![0; size], flags));
        }
        a.abort();
        a.abort();
        for event in ours.drain() {
            assert_eq!(event.error().map(Error::errno), Some(libc::ECONNABORTED), "{event:?}");
        }
        for event in theirs.drain() {
            assert!(event.error().is_some_and(is_gone), "{event:?}");
        }
        assert!(read_all(&b).is_err(), "an abort is no end of the stream");
        let refused = ours.try_post("send", |q, t| a.send(q, t, *b"x"));
        assert!(refused.is_err());
        ours.finish();
        theirs.finish();
    }
}

/// A send in mid-flight ends with it, and the peer does not take it for whole.
pub fn abort_in_mid_transfer(env: &Env) {
    const SIZE: usize = 40 << 20;
    let (a, b) = env.streams();
    let mut ledger = Ledger::new();
    ledger.post("send", |q, t| a.send(q, t, pattern(1, 0, SIZE)));
    let mut got = vec![0; 3 << 20];
    b.blocking().recv_exact(&mut got).unwrap();
    check(1, 0, &got);
    a.abort();
    let event = ledger.event();
    assert_eq!(event.error().map(Error::errno), Some(libc::ECONNABORTED), "{event:?}");
    assert!(event.bytes() < SIZE, "{event:?}");
    assert!(read_all(&b).is_err(), "an abort is no end of the stream");
    ledger.finish();
}

/// Sending to a peer that has closed fails, in bounded time, and says so.
pub fn sending_to_a_closed_peer_fails(env: &Env) {
    let (a, b) = env.streams();
    b.blocking().close().unwrap();
    let error = loop {
        if let Err(e) = a.blocking().send(&[0; 1000]) {
            break e;
        }
    };
    assert!(is_gone(&error), "{error}");
    let end = a.blocking().recv(&mut [0; 10]);
    assert!(matches!(&end, Ok(0)) || end.as_ref().is_err_and(is_gone), "{end:?}");
}

/// A thread that waits in a receive is woken by another thread's close.
pub fn close_wakes_a_blocked_receive(env: &Env) {
    let (a, b) = env.streams();
    let receiver = a.clone();
    let thread = std::thread::spawn(move || receiver.blocking().recv(&mut [0; 10]));
    // It may be before the receive: then that is refused, which is as good.
    a.blocking().close().unwrap();
    let outcome = thread.join().unwrap();
    assert!(outcome.is_err(), "{outcome:?}");
    drop(b);
}

/// The peer of a connection that no program has taken sees a reset: after an end in order it would
/// believe that the service had nothing to say.
fn is_reset(client: &Socket) {
    let error = client.blocking().recv(&mut [0; 8]).unwrap_err();
    assert_eq!(error.errno(), libc::ECONNRESET, "{error}");
}

/// A listener ends, dropped or closed, with connections in its backlog: silent ones, and some that
/// have sent.
pub fn the_backlog_is_reset_with_its_listener(env: &Env) {
    for ty in [SocketType::Stream, SocketType::SeqPacket] {
        for closed in [false, true] {
            let (listener, addr) = env.listener(ty);
            let clients: Vec<Socket> = (0..3).map(|_| env.socket(ty)).collect();
            for (i, client) in clients.iter().enumerate() {
                client.blocking().connect(addr).unwrap();
                if i == 1 {
                    client.blocking().send(b"a question").unwrap();
                }
            }
            if closed {
                listener.blocking().close().unwrap();
            }
            drop(listener);
            clients.iter().for_each(is_reset);
        }
    }
}

/// An accept has ended, and the program never takes the connection: it drops the queue where the
/// event waits, or the event.
pub fn connections_without_an_event_are_reset(env: &Env) {
    for dequeued in [false, true] {
        let (listener, addr) = env.listener(SocketType::Stream);
        let queue = EventQueue::new(4).unwrap();
        listener.accept(&queue, Token(1)).unwrap();
        let client = env.socket(SocketType::Stream);
        client.blocking().connect(addr).unwrap();
        while queue.is_empty() {
            std::thread::yield_now();
        }
        if dequeued {
            drop(queue.next().unwrap());
        }
        drop(queue);
        is_reset(&client);
    }
}
