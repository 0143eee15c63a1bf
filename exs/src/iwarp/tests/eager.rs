//! Eager messages: they keep one order with posted messages, and the engine takes none that the
//! posted path would refuse.

use super::link::*;
use crate::iwarp::eager::MAX_EAGER;
use crate::iwarp::*;
use crate::rnic::{SendOp, WcOp};
use crate::sys::IoVec;

const SEND: SendOp = SendOp::Send { invalidate: None, solicited: false };

fn pass(side: &mut Side, head: &[u8], payload: &[u8]) -> bool {
    side.engine.try_send_eager(&mut side.pool, &IoVec::new(payload), &mut |out| {
        out[..head.len()].copy_from_slice(head);
        head.len()
    })
}

/// Connected ends. The first has sent a message, so the second may send too.
fn pair(crc: bool, mss: usize, seed: u64) -> Pair {
    let cfg = |qp| Config { crc, mss, ..config(qp) };
    let mut pair = Pair::new(cfg(1), cfg(3), seed);
    let post = pair.b.engine.post_recv(recv(0, &[]));
    assert!(post.is_ok());
    pair.a.engine.post_send(wr(0, SEND, b"", &[])).unwrap();
    pair.settle();
    pair.a.wcs.clear();
    pair.b.wcs.clear();
    pair
}

/// Returns all bytes that `from` has to send.
fn sent(from: &mut Side, rng: &mut Rng, bite: Bite) -> Vec<u8> {
    while from.send(rng, bite) {}
    from.wire.drain(..).collect()
}

#[test]
fn eager_and_posted_messages_keep_one_order() {
    for seed in 0..400 {
        let mut pair = pair(seed % 2 == 0, if seed % 3 == 0 { 1460 } else { 9000 }, seed);
        let mut rng = Rng(seed);
        let bite = if rng.chance(2) { Bite::Whole } else { Bite::UpTo(200) };
        let place = segment(&[0; 4096]);
        for wr_id in 1..=60 {
            pair.b.engine.post_recv(recv(wr_id, std::slice::from_ref(&place))).unwrap();
        }
        let (mut wire, mut out) = (Vec::new(), [0; 4096]);
        let (mut next, mut came, mut short) = (0u32, 0u32, (0, 0));
        while came < 50 {
            while next < 50 && !rng.chance(3) {
                let payload = vec![next.to_be_bytes()[3]; rng.below(1200)];
                let head = next.to_be_bytes();
                if rng.chance(2) && pass(&mut pair.a, &head, &payload) {
                    short.0 += 1;
                } else {
                    let wr = wr(next.into(), SEND, &head, &[segment(&payload)]);
                    pair.a.engine.post_send(wr).unwrap();
                }
                next += 1;
            }
            wire.extend(sent(&mut pair.a, &mut rng, bite));
            while !wire.is_empty() {
                let taken = match rng.chance(4) {
                    true => None,
                    false => pair.b.engine.next_eager(&wire, &mut out),
                };
                if let Some(RxEager { used, len }) = taken {
                    assert_eq!(out[..4], came.to_be_bytes(), "seed {seed}");
                    assert!(out[4..len].iter().all(|b| *b == out[3]));
                    wire.drain(..used);
                    (came, short.1) = (came + 1, short.1 + 1);
                    continue;
                }
                let n = bite.of(&mut rng, wire.len());
                let result = pair.b.engine.handle_received(0, &wire[..n], &mut pair.b.keys, None);
                assert_eq!(result.consumed, n);
                wire.drain(..n);
                pair.b.drain();
                for wc in pair.b.wcs.drain(..) {
                    assert_eq!(wc.op, WcOp::Recv);
                    came += 1;
                }
                assert!(pair.b.events.is_empty(), "seed {seed}: {:?}", pair.b.events);
            }
        }
        assert!(short.0 > 0 && short.1 > 0, "seed {seed}: {short:?}");
        assert_eq!(pair.a.engine.outstanding().0, 0);
    }
}

#[test]
fn only_whole_and_sound_messages_are_taken() {
    let mut pair = pair(true, 1460, 1);
    assert!(pass(&mut pair.a, b"head", b"payload"));
    let wire = sent(&mut pair.a, &mut Rng(1), Bite::Whole);
    let (mut out, none) = ([0xEE; 64], [0xEE; 64]);
    for n in 0..wire.len() {
        assert_eq!(pair.b.engine.next_eager(&wire[..n], &mut out), None, "{n} bytes");
        assert!(pair.b.engine.begins_eager(&wire[..n], 11), "{n} bytes");
    }
    for at in 0..wire.len() {
        for bit in 0..8 {
            let mut bad = wire.clone();
            bad[at] ^= 1 << bit;
            assert_eq!(pair.b.engine.next_eager(&bad, &mut out), None, "bit {bit} of {at}");
        }
    }
    assert_eq!(pair.b.engine.next_eager(&wire, &mut out[..10]), None, "11 bytes");
    assert_eq!(out, none, "nothing was touched");
    assert!(!pair.b.engine.begins_eager(&wire[..25], 10), "there is no room for it");
    assert!(!pair.b.engine.begins_eager(&wire, 11), "it is whole");
    assert!(!pair.b.engine.begins_eager(&[0; 25], 11), "it is something else");
    let taken = pair.b.engine.next_eager(&wire, &mut out);
    assert_eq!(taken, Some(RxEager { used: wire.len(), len: 11 }));
    assert_eq!(out[..11], *b"headpayload");
    // Its MSN is used up.
    assert_eq!(pair.b.engine.next_eager(&wire, &mut out), None);
}

#[test]
fn an_eager_message_overtakes_nothing() {
    let mut pair = pair(false, 9000, 1);
    pair.a.engine.post_send(wr(1, SEND, b"first", &[])).unwrap();
    assert!(!pass(&mut pair.a, b"second", b""), "one was posted before it");
    sent(&mut pair.a, &mut Rng(1), Bite::Whole);
    assert!(pass(&mut pair.a, b"second", b""));
    assert!(pass(&mut pair.a, b"third", b""), "it shares the second's batch");
    assert!(!pass(&mut pair.a, b"", b"nothing to say"));
    assert!(!pass(&mut pair.a, b"x", &[0; MAX_EAGER]), "too long");
    // The responder waits for the initiator's first message.
    let cfg = |qp| config(qp);
    let mut silent = Pair::new(cfg(1), cfg(3), 1);
    assert!(!pass(&mut silent.b, b"too early", b""));
    assert!(pass(&mut silent.a, b"now", b""));
}

/// Threads that have borrowed the framing send the bytes that the engine sends, and take what it takes.
#[test]
fn a_lent_framing_sends_the_bytes_of_the_engine() {
    // The large FPDUs of two ends of EXS may have a CRC.
    for crc in [false, true] {
        let cfg = |qp| Config { crc, ..config(qp) };
        let [mut lent, mut own] = [1, 2].map(|seed| {
            let mut pair = Pair::new(cfg(1), cfg(3), seed);
            pair.b.engine.post_recv(recv(0, &[])).unwrap();
            pair.a.engine.post_send(wr(0, SEND, b"", &[])).unwrap();
            pair.settle();
            pair.a.wcs.clear();
            pair.b.wcs.clear();
            pair
        });
        let mut sender = lent.a.engine.lend().expect("it rests");
        let mut receiver = lent.b.engine.lend().expect("it rests");
        let (mut frame, mut bytes, mut rng) = (Vec::new(), 0, Rng(1));
        for len in 0..40 {
            let data = vec![len; len.into()];
            assert!(sender.frame(b"head", &IoVec::new(&data), &mut frame));
            assert!(pass(&mut own.a, b"head", &data));
            assert_eq!(frame, sent(&mut own.a, &mut rng, Bite::Whole), "crc {crc}, {len} bytes");
            let message = [b"head", &data[..]].concat();
            for cut in [0, 1, 20, frame.len() - 1] {
                assert_eq!(receiver.message(&frame[..cut]), None, "{cut} bytes");
            }
            assert_eq!(receiver.message(&[&frame[..], &[0]].concat()), None, "more follows");
            assert_eq!(receiver.message(&frame), Some(&message[..]));
            sender.note_sent();
            receiver.note_received();
            assert_eq!(receiver.message(&frame), None, "it has been taken");
            bytes += frame.len() as u64;
        }
        assert!(!sender.frame(b"head", &IoVec::new(&[0; MAX_EAGER]), &mut frame), "too long");
        lent.a.engine.end_loan(40, bytes, 0);
        lent.b.engine.end_loan(0, 0, 40);
        // Both go on where the loan has ended.
        assert!(pass(&mut lent.a, b"head", b"next") && pass(&mut own.a, b"head", b"next"));
        let next = sent(&mut lent.a, &mut rng, Bite::Whole);
        assert_eq!(next, sent(&mut own.a, &mut rng, Bite::Whole));
        let mut out = [0; 8];
        assert_eq!(lent.b.engine.next_eager(&next, &mut out).map(|taken| taken.len), Some(8));
        assert_eq!(&out, b"headnext");
    }
}

#[test]
fn a_framing_is_lent_only_at_rest() {
    let mut pair = pair(false, 9000, 1);
    assert!(pair.a.engine.lend().is_some() && pair.b.engine.lend().is_some());
    assert!(pass(&mut pair.a, b"a", b"message"));
    assert!(pair.a.engine.lend().is_none(), "a message has not left");
    let wire = sent(&mut pair.a, &mut Rng(1), Bite::Whole);
    pair.a.engine.release_batch(&mut pair.a.pool);
    assert!(pair.a.engine.lend().is_some());
    let taken = pair.b.engine.handle_received(0, &wire[..5], &mut pair.b.keys, None);
    assert_eq!(taken.consumed, 5);
    assert!(pair.b.engine.lend().is_none(), "a message has come in part");
}
