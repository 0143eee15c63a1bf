//! Seqpacket: whole messages, in order, once each.

use std::collections::VecDeque;

use exs::{Buffer, Error, RecvFlags};

use crate::harness::{Env, Ledger, Rng, check, pattern};

/// Many messages of random sizes, some sends ahead of the receives, some behind.
pub fn order_and_integrity(env: &Env) {
    for seed in 0..env.seeds(10) {
        let (a, b) = env.packets();
        let mut rng = Rng::new(seed);
        let mut ledger = Ledger::new();
        let sizes: Vec<usize> =
            (0..200).map(|_| if rng.one_in(10) { 0 } else { rng.size(60_000) }).collect();
        let (mut sent, mut posted, mut done) = (0, 0, 0);
        let mut receives = VecDeque::new();
        while done < sizes.len() {
            while sent < sizes.len() && sent < done + 20 && (sent == done || !rng.one_in(4)) {
                let bytes = pattern(sent as u64, 0, sizes[sent]);
                ledger.post("send", |q, t| a.send(q, t, bytes));
                sent += 1;
            }
            while posted < sizes.len() && posted < done + 8 && (posted == done || !rng.one_in(3)) {
                receives.push_back(
                    ledger.post("recv", |q, t| b.recv(q, t, vec![0; 60_000], RecvFlags::NONE)),
                );
                posted += 1;
            }
            let event = ledger.wait_ok(receives.pop_front().expect("one at least"));
            let size = sizes[done];
            assert_eq!((event.bytes(), event.total()), (size, size as u64));
            assert!(!event.truncated() && !event.eof());
            check(done as u64, 0, &event.into_buffer().unwrap()[..size]);
            done += 1;
        }
        for event in ledger.drain() {
            assert!(event.error().is_none(), "{event:?}");
        }
        ledger.finish();
    }
}

/// A message without a byte is a message.
pub fn empty_messages(env: &Env) {
    let (a, b) = env.packets();
    for _ in 0..3 {
        assert_eq!(a.blocking().send(b"").unwrap(), 0);
    }
    a.blocking().send_all(b"x").unwrap();
    let mut got = [0; 8];
    for want in [0, 0, 0, 1] {
        let packet = b.blocking().recv_packet(&mut got).unwrap();
        assert_eq!((packet.bytes, packet.total, packet.eof), (want, want as u64, false));
    }
    a.blocking().close().unwrap();
    assert!(b.blocking().recv_packet(&mut got).unwrap().eof, "the end is not an empty message");
}

/// A message that is longer than its receive is cut off, says so, and the next is whole.
pub fn truncation_tells_the_true_length(env: &Env) {
    let (a, b) = env.packets();
    let mut ledger = Ledger::new();
    for size in [100usize, 5000, 100_000, 5_000_000] {
        for room in [0, 10, size - 1] {
            for receive_first in [false, true] {
                let receive = |ledger: &mut Ledger| {
                    ledger.post("recv", |q, t| b.recv(q, t, vec![0; room], RecvFlags::NONE))
                };
                let early = receive_first.then(|| receive(&mut ledger));
                let bytes = pattern(9, 0, size);
                ledger.post("send", |q, t| a.send(q, t, bytes));
                ledger.post("send", |q, t| a.send(q, t, *b"next"));
                let recv = early.unwrap_or_else(|| receive(&mut ledger));
                let event = ledger.wait_ok(recv);
                assert_eq!((event.bytes(), event.total()), (room, size as u64), "{event:?}");
                assert!(event.truncated());
                check(9, 0, &event.into_buffer().unwrap());
                let mut next = [0; 10];
                let packet = b.blocking().recv_packet(&mut next).unwrap();
                assert_eq!((&next[..4], packet.total), (&b"next"[..], 4));
            }
        }
    }
    assert!(ledger.drain().iter().all(|e| e.error().is_none()));
    ledger.finish();
}

/// 64 MiB (8 on a device of a guest) as one message, in both orders of posting.
pub fn a_large_message(env: &Env) {
    let size = (64 << 20) / env.shrink();
    let (a, b) = env.packets();
    for receive_first in [true, false] {
        let mut ledger = Ledger::new();
        let receive = |ledger: &mut Ledger| {
            ledger.post("recv", |q, t| b.recv(q, t, vec![0; size], RecvFlags::NONE))
        };
        let early = receive_first.then(|| receive(&mut ledger));
        let bytes = pattern(2, 0, size);
        ledger.post("send", |q, t| a.send(q, t, bytes));
        let recv = early.unwrap_or_else(|| receive(&mut ledger));
        let event = ledger.wait_ok(recv);
        assert_eq!(event.bytes(), size);
        check(2, 0, &event.into_buffer().unwrap());
        assert!(ledger.drain().iter().all(|e| e.error().is_none()));
        ledger.finish();
    }
}

/// Ten thousand small ones (fewer on a device of a guest), with no more in flight than the queue takes.
pub fn many_small_messages(env: &Env) {
    let many = 10_000 / env.shrink();
    let (a, b) = env.packets();
    let sender = std::thread::spawn(move || {
        let mut ledger = Ledger::with_depth(64);
        for i in 0..many {
            if ledger.outstanding() == 64 {
                ledger.ok();
            }
            let bytes = i.to_be_bytes();
            ledger.post("send", |q, t| a.send(q, t, bytes));
        }
        assert!(ledger.drain().iter().all(|e| e.error().is_none()));
        ledger.finish();
        a
    });
    let mut got = [0; 16];
    for i in 0..many {
        let packet = b.blocking().recv_packet(&mut got).unwrap();
        assert_eq!(packet.total, 8);
        assert_eq!(got[..8], i.to_be_bytes());
    }
    sender.join().unwrap();
}

/// Several pieces are one message, and one message fills several pieces.
pub fn vectored(env: &Env) {
    let (a, b) = env.packets();
    for size in [30, 300_000] {
        let mut ledger = Ledger::new();
        let all = pattern(4, 0, size);
        let parts = |from: &[u8]| -> Vec<Buffer> {
            [&from[..7], &from[7..7], &from[7..size / 2], &from[size / 2..]]
                .map(Buffer::copy_from_slice)
                .into()
        };
        let recv = ledger
            .post("recvv", |q, t| b.recv_vectored(q, t, parts(&vec![0; size]), RecvFlags::NONE));
        ledger.post("sendv", |q, t| a.send_vectored(q, t, parts(&all)));
        let mut event = ledger.wait_ok(recv);
        assert_eq!((event.bytes(), event.truncated()), (size, false));
        let got: Vec<u8> = event.take_buffers().iter().flat_map(|p| p.to_vec()).collect();
        assert!(got == all);
        assert!(ledger.drain().iter().all(|e| e.error().is_none()));
        ledger.finish();
    }
}

/// A message stays after a peek. Of a small message a peek brings bytes; of a message that is still
/// at the peer perhaps its length only.
pub fn peek(env: &Env) {
    let (a, b) = env.packets();
    for size in [5usize, 300_000] {
        let mut ledger = Ledger::new();
        ledger.post("send", |q, t| a.send(q, t, pattern(5, 0, size)));
        for _ in 0..2 {
            let peek = ledger.post("peek", |q, t| b.recv(q, t, vec![0; 5], RecvFlags::PEEK));
            let event = ledger.wait_ok(peek);
            assert_eq!((event.total(), event.eof()), (size as u64, false), "{event:?}");
            let n = event.bytes();
            assert!(n == 5 || size > 5, "{event:?}");
            check(5, 0, &event.into_buffer().unwrap()[..n]);
        }
        let mut got = vec![0; size];
        assert_eq!(b.blocking().recv_packet(&mut got).unwrap().total, size as u64);
        check(5, 0, &got);
        ledger.finish();
    }
}

/// A message longer than the peer takes is refused, and says how long it may be.
pub fn a_message_over_the_limit_is_refused(env: &Env) {
    let (a, b) = env.with(|o| o.max_message = 10_000).packets();
    let mut ledger = Ledger::new();
    let outcome = ledger.try_post("send", |q, t| a.send(q, t, vec![1; 10_001]));
    let error = match outcome {
        Err(refused) => {
            assert_eq!(refused.buffer.len(), 10_001, "it comes back");
            refused.error
        }
        Ok(token) => ledger.wait(token).into_result().expect_err("too long"),
    };
    assert_eq!(error.errno(), libc::EMSGSIZE, "{error}");
    assert!(error.to_string().contains("10000"), "{error}");
    // The longest that goes, goes.
    ledger.post("send", |q, t| a.send(q, t, vec![2; 10_000]));
    let mut got = vec![0; 10_000];
    assert_eq!(b.blocking().recv_packet(&mut got).unwrap().total, 10_000);
    ledger.finish();
}

/// Cancelled receives take no message with them.
pub fn a_cancelled_receive_loses_nothing(env: &Env) {
    let (a, b) = env.packets();
    for size in [10usize, 200_000] {
        let mut ledger = Ledger::new();
        let recv = ledger.post("recv", |q, t| b.recv(q, t, vec![7; size], RecvFlags::NONE));
        assert_eq!(b.cancel(recv), 1);
        let event = ledger.wait(recv);
        assert!(event.error().is_some_and(Error::is_cancelled), "{event:?}");
        assert!(event.into_buffer().unwrap().iter().all(|&x| x == 7), "nothing was written");
        ledger.post("send", |q, t| a.send(q, t, pattern(1, 0, size)));
        let mut got = vec![0; size];
        assert_eq!(b.blocking().recv_packet(&mut got).unwrap().total, size as u64);
        check(1, 0, &got);
        assert!(ledger.drain().iter().all(|e| e.error().is_none()));
        ledger.finish();
    }
}
