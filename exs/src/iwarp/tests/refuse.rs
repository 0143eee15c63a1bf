//! Refused accesses place no byte, and end only their own connection.

use super::link::*;
use crate::iwarp::*;
use crate::mem::{Access, AccessFault, Scope, Segment};
use crate::rnic::{Disconnect, DisconnectCause, QpState, SendOp, TermCode, Wc, WcOp, WcStatus};

const fn code(layer: u8, etype: u8, code: u8) -> TermCode {
    TermCode { layer, etype, code }
}

/// Ends both sides after a TERMINATE from `b`, and checks its code.
fn terminated(pair: &mut Pair, expect: TermCode) {
    pair.settle();
    let (a, b) = (&pair.a, &pair.b);
    assert!(
        matches!(a.events[..], [IwarpEvent::Disconnected(DisconnectCause::TerminatedByPeer(c))]
            if c == expect),
        "{:?}",
        a.events
    );
    assert!(
        matches!(b.events[..], [IwarpEvent::Disconnected(DisconnectCause::TerminatedByUs(c))]
            if c == expect),
        "{:?}",
        b.events
    );
    assert!(a.engine.closed() && b.engine.closed());
    assert_eq!((a.engine.outstanding(), b.engine.outstanding()), ((0, 0), (0, 0)));
}

fn status(side: &Side, wr_id: u64) -> WcStatus {
    let found: Vec<&Wc> = side.wcs.iter().filter(|wc| wc.wr_id == wr_id).collect();
    assert_eq!(found.len(), 1, "one completion for {wr_id}");
    found[0].status
}

/// Makes memory at `b`, of which bytes 16..48 are open through a window with `access`.
fn target(pair: &mut Pair, access: Access) -> (Segment, u64, u32) {
    let memory = segment(&[0xee; 64]);
    let part = memory.slice(16, 32).unwrap();
    let key = pair.b.window(&part, access);
    (memory, part.addr(), key)
}

#[test]
fn writes_outside_of_bounds_rights_scope_and_life() {
    let tagged = |c| code(1, 1, c);
    type Spoil = fn(&mut Pair, u64, u32) -> (u64, u32, usize);
    let cases: [(Spoil, TermCode); 8] = [
        (|_, at, key| (at, key, 33), tagged(1)),
        (|_, at, key| (at - 1, key, 8), tagged(1)),
        (|_, at, key| (at + 32, key, 1), tagged(1)),
        (|_, _, key| (u64::MAX - 3, key, 8), tagged(3)),
        (|_, at, key| (at, key ^ 1, 8), tagged(0)),
        (
            |pair, at, key| {
                pair.b.keys.remove(key);
                (at, key, 8)
            },
            tagged(0),
        ),
        (
            // The window of another queue pair.
            |pair, at, key| {
                let grant = pair.b.keys.remove(key).unwrap();
                let other = pair.b.key(&grant.segment, grant.access, Scope::QueuePair(PD, 77));
                (at, other, 8)
            },
            tagged(0),
        ),
        (
            |pair, at, key| {
                let grant = pair.b.keys.remove(key).unwrap();
                (at, pair.b.window(&grant.segment, Access::REMOTE_READ), 8)
            },
            code(0, 1, 2),
        ),
    ];
    for (i, (spoil, expect)) in cases.into_iter().enumerate() {
        for crc in [false, true] {
            let mut cfg = config(1);
            cfg.crc = crc;
            let mut pair = Pair::new(cfg, config(2), i as u64);
            let (memory, at, key) = target(&mut pair, Access::REMOTE_WRITE);
            let (raddr, rkey, len) = spoil(&mut pair, at, key);
            pair.b.engine.post_recv(recv(50, &[segment(&[0; 8])])).unwrap();
            let op = SendOp::Write { raddr, rkey };
            // Behind a READ the WRITE is still outstanding when the TERMINATE comes, so it gets
            // the status.
            let mut first = read(1, 0, 0, &[], 0);
            first.signaled = false;
            pair.a.engine.post_send(first).unwrap();
            pair.a.engine.post_send(wr(2, op, b"", &[segment(&vec![1; len])])).unwrap();
            pair.a.engine.post_send(wr(3, SEND, b"after", &[])).unwrap();
            while pair.a.send(&mut pair.rng, Bite::Whole) {}
            terminated(&mut pair, expect);
            assert_eq!(contents(&memory), [0xee; 64], "case {i}");
            // After its error, b answers no READ.
            assert_eq!(status(&pair.a, 1), WcStatus::Flushed);
            assert_eq!(status(&pair.a, 2), WcStatus::RemoteAccess);
            assert_eq!(status(&pair.a, 3), WcStatus::Flushed);
            assert_eq!(status(&pair.b, 50), WcStatus::Flushed);
        }
    }
}

#[test]
fn reads_outside_of_bounds_rights_scope_and_life() {
    type Spoil = fn(&mut Pair, u64, u32) -> (u64, u32, usize);
    let cases: [(Spoil, u8); 5] = [
        (|_, at, key| (at, key, 33), 1),
        (|_, _, key| (u64::MAX, key, 2), 4),
        (|_, at, key| (at, key.wrapping_add(100), 2), 0),
        (
            |pair, at, key| {
                let grant = pair.b.keys.remove(key).unwrap();
                (at, pair.b.window(&grant.segment, Access::REMOTE_WRITE), 8)
            },
            2,
        ),
        (
            |pair, at, key| {
                let grant = pair.b.keys.remove(key).unwrap();
                (at, pair.b.key(&grant.segment, grant.access, Scope::Domain(PD + 1)), 8)
            },
            0,
        ),
    ];
    for (spoil, expect) in cases {
        let mut pair = Pair::new(config(1), config(2), 0);
        let (_, at, key) = target(&mut pair, Access::REMOTE_READ);
        let (raddr, rkey, len) = spoil(&mut pair, at, key);
        let good = segment(&[0; 8]);
        let bad = segment(&vec![0; len]);
        // The READ before it is valid, and done when the TERMINATE comes. The READ behind it only
        // shares its fate.
        let fine = pair.b.window(&segment(&[5; 8]), Access::REMOTE_READ);
        let source = pair.b.keys.get(fine).unwrap().segment.addr();
        pair.a.engine.post_send(read(1, source, fine, std::slice::from_ref(&good), 10)).unwrap();
        pair.settle();
        pair.a.engine.post_send(read(2, raddr, rkey, std::slice::from_ref(&bad), 11)).unwrap();
        pair.a.engine.post_send(read(3, source, fine, std::slice::from_ref(&good), 12)).unwrap();
        terminated(&mut pair, code(0, 1, expect));
        assert_eq!(status(&pair.a, 1), WcStatus::Success);
        assert_eq!(contents(&good), [5; 8]);
        assert_eq!(status(&pair.a, 2), WcStatus::RemoteAccess);
        assert_eq!(status(&pair.a, 3), WcStatus::Flushed);
        assert_eq!(contents(&bad), vec![0; len]);
    }
}

#[test]
fn zero_lengths_need_no_key() {
    let mut pair = Pair::new(config(1), config(2), 0);
    pair.a.engine.post_send(wr(1, SendOp::Write { raddr: u64::MAX, rkey: 5 }, b"", &[])).unwrap();
    pair.a.engine.post_send(read(2, u64::MAX, 6, &[], 0)).unwrap();
    pair.settle();
    assert_eq!(status(&pair.a, 1), WcStatus::Success);
    assert_eq!(status(&pair.a, 2), WcStatus::Success);
    assert_eq!(pair.a.engine.state(), QpState::Rts);
}

#[test]
fn sends_without_a_buffer_or_with_too_small_a_one() {
    let mut pair = Pair::new(config(1), config(2), 0);
    pair.a.engine.post_send(wr(1, SEND, b"hello", &[])).unwrap();
    terminated(&mut pair, code(1, 2, 2));

    for (len, slot) in [(9, 8), (1, 0), (200_000, 199_999)] {
        let mut pair = Pair::new(config(1), config(2), 0);
        let small = segment(&vec![0xee; slot]);
        pair.b.engine.post_recv(recv(7, &[small])).unwrap();
        pair.b.engine.post_recv(recv(8, &[segment(&[0; 8])])).unwrap();
        pair.a.engine.post_send(wr(1, SEND, b"", &[segment(&vec![1; len])])).unwrap();
        terminated(&mut pair, code(1, 2, 5));
        assert_eq!(status(&pair.b, 7), WcStatus::LocalLength);
        assert_eq!(status(&pair.b, 8), WcStatus::Flushed);
    }
}

#[test]
fn an_empty_srq_makes_the_peer_wait() {
    let mut cfg = config(2);
    cfg.uses_srq = true;
    let mut pair = Pair::new(config(1), cfg, 0);
    pair.b.srq = Some(Shared::default());
    for (i, bytes) in [b"one", b"two"].iter().enumerate() {
        pair.a.engine.post_send(wr(i as u64, SEND, *bytes, &[])).unwrap();
    }
    pair.settle();
    assert!(pair.b.stalled);
    assert_eq!(pair.b.engine.state(), QpState::Rts);
    let slots = [segment(&[0; 3]), segment(&[0; 3])];
    for (i, slot) in slots.iter().enumerate() {
        pair.b.srq.as_mut().unwrap().0.push_back(recv(i as u64, std::slice::from_ref(slot)));
        pair.settle();
    }
    assert!(!pair.b.stalled);
    assert_eq!((contents(&slots[0]), contents(&slots[1])), (b"one".to_vec(), b"two".to_vec()));
    assert_eq!(pair.b.wcs.len(), 2);
}

#[test]
fn more_reads_than_ird_are_refused() {
    let mut pair = Pair::new(config(1), config(2), 0);
    // The peer breaks the agreement: its ORD is 4.
    pair.a.engine.settled.ord = 5;
    for i in 0..5 {
        pair.a.engine.post_send(read(i, 0, 0, &[], 0)).unwrap();
    }
    while pair.a.send(&mut pair.rng, Bite::Whole) {}
    terminated(&mut pair, code(1, 2, 2));
    // The MSN tells which of them it was.
    assert_eq!(status(&pair.a, 4), WcStatus::RemoteInvalidRequest);
    assert_eq!(status(&pair.a, 0), WcStatus::Flushed);
}

#[test]
fn reads_beyond_ord_wait_and_all_behind_them() {
    let mut pair = Pair::new(config(1), config(2), 0);
    let source = segment(&[3; 4]);
    let key = pair.b.window(&source, Access::REMOTE_READ);
    let sinks: Vec<_> = (0..6).map(|_| segment(&[0; 4])).collect();
    for (i, sink) in sinks.iter().enumerate() {
        let wr = read(i as u64, source.addr(), key, std::slice::from_ref(sink), 20);
        pair.a.engine.post_send(wr).unwrap();
    }
    pair.a.engine.post_send(wr(6, SendOp::Write { raddr: 0, rkey: 0 }, b"", &[])).unwrap();
    while pair.a.send(&mut pair.rng, Bite::Whole) {}
    assert_eq!(pair.a.wire.len(), 4 * 52, "four requests, and nothing else");
    pair.settle();
    let order: Vec<u64> = pair.a.wcs.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6]);
    assert!(sinks.iter().all(|sink| contents(sink) == [3; 4]));
}

/// Connects, and has `b` receive these FPDUs (without CRC) after a first message.
fn receive_raw(fpdus: &[&[u8]]) -> Pair {
    let mut pair = Pair::new(config(1), config(2), 0);
    pair.b.engine.post_recv(recv(90, &[segment(&[0; 64])])).unwrap();
    for fpdu in fpdus {
        let len = u16::try_from(fpdu.len()).unwrap();
        pair.a.wire.extend(len.to_be_bytes());
        pair.a.wire.extend(*fpdu);
        pair.a.wire.extend(vec![0; crate::wire::mpa::trailer_len(fpdu.len())]);
    }
    pair
}

#[test]
fn rules_of_the_wire() {
    const SEND1: &[u8] = b"\x01\x43\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0abcd";
    let cases: [(&[&[u8]], TermCode); 15] = [
        // Versions of DDP and of RDMAP.
        (&[b"\xc2\x40\0\0\0\0\0\0\0\0\0\0\0\0"], code(1, 1, 4)),
        (&[b"\x42\x43\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0"], code(1, 2, 6)),
        (&[b"\x41\x83\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0"], code(0, 2, 5)),
        // Immediate data (RFC 7306), and opcodes with the wrong buffer model.
        (&[b"\x41\x48\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0"], code(0, 2, 6)),
        (&[b"\xc1\x43\0\0\0\0\0\0\0\0\0\0\0\0"], code(0, 2, 6)),
        (&[b"\x41\x40\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0"], code(0, 2, 6)),
        // A READ response without a request.
        (&[b"\xc1\x42\0\0\0\0\0\0\0\0\0\0\0\0"], code(0, 2, 6)),
        // Queue, MSN, MO.
        (&[b"\x41\x43\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0\0"], code(1, 2, 1)),
        (&[b"\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\0"], code(1, 2, 3)),
        (&[b"\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x08"], code(1, 2, 4)),
        (&[SEND1, b"\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x08"], code(1, 2, 4)),
        (&[SEND1, b"\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\x04"], code(1, 2, 3)),
        // Too short for its header; a READ request of the wrong length.
        (&[b"\xc1\x40\0\0\0\0\0\0\0\0\0\0"], code(0, 2, 7)),
        (&[b"\x41\x41\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0\0xyz"], code(0, 2, 7)),
        // A key that the peer may not invalidate.
        (&[b"\x41\x44\0\0\0\x05\0\0\0\0\0\0\0\x01\0\0\0\0"], code(0, 1, 9)),
    ];
    for (fpdus, expect) in cases {
        // A short ULPDU ends inside what looks like a header. More bytes must follow.
        let mut pair = receive_raw(fpdus);
        pair.a.wire.extend([0; 16]);
        while pair.b.receive(&mut pair.rng, Bite::Whole, &mut pair.a.wire, false) {}
        while pair.b.send(&mut pair.rng, Bite::Whole) {}
        pair.b.engine.handle_eof();
        pair.b.drain();
        assert!(
            matches!(pair.b.events[..],
                [IwarpEvent::Disconnected(DisconnectCause::TerminatedByUs(c))] if c == expect),
            "{:?} instead of {expect:?} for {fpdus:?}",
            pair.b.events
        );
        assert_eq!(status(&pair.b, 90), WcStatus::Flushed);
    }
}

#[test]
fn a_domain_key_is_not_for_peers_to_invalidate() {
    let mut pair = receive_raw(&[]);
    let memory = segment(&[0; 8]);
    let key = pair.b.key(&memory, Access::ALL, Scope::Domain(PD));
    let op = SendOp::Send { invalidate: Some(key), solicited: false };
    pair.a.engine.post_send(wr(1, op, b"", &[])).unwrap();
    terminated(&mut pair, code(0, 1, 9));
    assert!(pair.b.keys.get(key).is_some());
}

#[test]
fn an_invalidated_key_is_gone_for_what_comes_directly_after() {
    let mut pair = receive_raw(&[]);
    let (memory, at, key) = target(&mut pair, Access::REMOTE_WRITE);
    let op = SendOp::Send { invalidate: Some(key), solicited: false };
    let write = SendOp::Write { raddr: at, rkey: key };
    pair.a.engine.post_send(wr(1, write, b"good", &[])).unwrap();
    pair.a.engine.post_send(wr(2, op, b"", &[])).unwrap();
    pair.a.engine.post_send(wr(3, write, b"evil", &[])).unwrap();
    terminated(&mut pair, code(1, 1, 0));
    assert_eq!(contents(&memory)[16..20], *b"good");
    assert_eq!(pair.b.wcs[0].invalidated, Some(key));
}

#[test]
fn a_damaged_byte_is_found_by_the_crc() {
    let mut cfg = config(1);
    cfg.crc = true;
    for at in 0..32 {
        let mut pair = Pair::new(cfg, config(2), 0);
        pair.b.engine.post_recv(recv(7, &[segment(&[0; 8])])).unwrap();
        pair.a.engine.post_send(wr(1, SEND, b"payload", &[])).unwrap();
        while pair.a.send(&mut pair.rng, Bite::Whole) {}
        assert_eq!(pair.a.wire.len(), 32);
        pair.a.wire.extend([0; 600]);
        pair.a.wire[at] ^= 0x10;
        while pair.b.receive(&mut pair.rng, Bite::Whole, &mut pair.a.wire, false) {}
        pair.b.drain();
        assert!(pair.b.wcs.iter().all(|wc| wc.status != WcStatus::Success), "byte {at}");
        if at >= 20 {
            while pair.b.send(&mut pair.rng, Bite::Whole) {}
            pair.b.engine.handle_eof();
            pair.b.drain();
            assert!(matches!(pair.b.events[..],
                [IwarpEvent::Disconnected(DisconnectCause::TerminatedByUs(c))] if c == code(2, 0, 2)));
        }
    }
}

#[test]
fn a_window_closed_under_a_write_takes_no_byte_more() {
    for direct in [true, false] {
        let mut pair = Pair::new(config(1), config(2), 0);
        let memory = segment(&[0xee; 1000]);
        let key = pair.b.window(&memory, Access::REMOTE_WRITE);
        let op = SendOp::Write { raddr: memory.addr(), rkey: key };
        pair.a.engine.post_send(wr(1, op, b"", &[segment(&[1; 1000])])).unwrap();
        while pair.a.send(&mut pair.rng, Bite::Whole) {}
        let half: Vec<u8> = pair.a.wire.drain(..516).collect();
        pair.b.engine.handle_received(0, &half, &mut pair.b.keys, None);
        pair.b.keys.remove(key);
        pair.b.engine.key_revoked(key);
        if direct {
            let mut pieces = 0;
            pair.b.engine.rx_direct(&mut |_, _, _| pieces += 1);
            assert_eq!(pieces, 0);
        }
        terminated(&mut pair, code(1, 1, 0));
        assert_eq!(contents(&memory)[..500], [1; 500]);
        assert_eq!(contents(&memory)[500..], [0xee; 500]);
    }
}

#[test]
fn a_window_closed_under_a_read_ends_it() {
    for sent in [0, 1, 30_000, 61_460, 100_000] {
        let mut pair = Pair::new(config(1), config(2), 0);
        let secret = segment(&vec![9; 200_000]);
        let key = pair.b.window(&secret, Access::REMOTE_READ);
        let sink = segment(&vec![0; 200_000]);
        let wr = read(1, secret.addr(), key, std::slice::from_ref(&sink), 30);
        pair.a.engine.post_send(wr).unwrap();
        while pair.a.send(&mut pair.rng, Bite::Whole) {}
        while pair.b.receive(&mut pair.rng, Bite::Whole, &mut pair.a.wire, false) {}
        let mut left = sent;
        while left > 0 {
            let before = pair.b.wire.len();
            pair.b.send(&mut pair.rng, Bite::UpTo(left));
            left -= pair.b.wire.len() - before;
        }
        pair.b.keys.remove(key);
        pair.b.engine.key_revoked(key);
        pair.b.drain();
        // From here on the memory has another owner.
        secret.write_at(0, &vec![0xaa; 200_000]);
        terminated(&mut pair, code(0, 1, 0));
        assert_eq!(status(&pair.a, 1), WcStatus::RemoteAccess);
        assert!(!contents(&sink).contains(&0xaa), "after {sent} bytes");
    }
}

#[test]
fn a_sink_closed_under_a_read_takes_no_byte_more() {
    let mut pair = Pair::new(config(1), config(2), 0);
    let source = segment(&[9; 1000]);
    let key = pair.b.window(&source, Access::REMOTE_READ);
    let sink = segment(&[0xee; 1000]);
    let sink_key = pair.a.window(&sink, Access::REMOTE_WRITE);
    let wr = read(1, source.addr(), key, std::slice::from_ref(&sink), sink_key);
    pair.a.engine.post_send(wr).unwrap();
    while pair.a.send(&mut pair.rng, Bite::Whole) {}
    while pair.b.receive(&mut pair.rng, Bite::Whole, &mut pair.a.wire, false) {}
    while pair.b.send(&mut pair.rng, Bite::Whole) {}
    let half: Vec<u8> = pair.b.wire.drain(..516).collect();
    pair.a.engine.handle_received(0, &half, &mut pair.a.keys, None);
    pair.a.keys.remove(sink_key);
    pair.a.engine.key_revoked(sink_key);
    pair.settle();
    let fault = AccessFault::InvalidKey { key: sink_key };
    assert_eq!(status(&pair.a, 1), WcStatus::LocalProtection(fault));
    assert_eq!(contents(&sink)[..500], [9; 500]);
    assert_eq!(contents(&sink)[500..], [0xee; 500]);
    assert!(pair.a.engine.closed() && pair.b.engine.closed());
}

#[test]
fn a_deregistered_region_fails_the_requests_that_use_it() {
    let protection = |key| WcStatus::LocalProtection(AccessFault::InvalidKey { key });
    let mut pair = Pair::new(config(1), config(2), 0);
    let memory = segment(&[1; 100_000]);
    let mut first = wr(1, SendOp::Write { raddr: 0, rkey: 0 }, b"", &[memory]);
    first.lkeys[0] = 0x55;
    pair.a.engine.post_send(first).unwrap();
    pair.a.engine.post_send(wr(2, SEND, b"x", &[])).unwrap();
    pair.a.engine.post_recv(recv(3, &[])).unwrap();
    pair.a.send(&mut pair.rng, Bite::UpTo(500));
    pair.a.engine.mr_revoked(0x66);
    assert_eq!(pair.a.engine.state(), QpState::Rts, "no request uses this region");
    pair.a.engine.mr_revoked(0x55);
    pair.a.drain();
    assert_eq!(status(&pair.a, 1), protection(0x55));
    assert_eq!(status(&pair.a, 2), WcStatus::Flushed);
    assert_eq!(status(&pair.a, 3), WcStatus::Flushed);

    // Before the connection is established, only the receive is lost.
    let mut a = Side::new(IwarpEngine::initiator(config(1), b"").unwrap(), 1);
    for (id, key) in [(4, 0x55), (5, 0x66)] {
        let mut buf = recv(id, &[segment(&[0; 8])]);
        buf.lkeys[0] = key;
        a.engine.post_recv(buf).unwrap();
    }
    a.engine.mr_revoked(0x55);
    a.drain();
    assert_eq!(status(&a, 4), protection(0x55));
    assert_eq!(a.engine.outstanding(), (0, 1));
    assert_eq!(a.engine.state(), QpState::Connecting);
}

#[test]
fn full_queues_and_impossible_requests_say_so() {
    use crate::rnic::RnicError as E;
    let (mut cfg, mut other) = (config(1), config(2));
    (cfg.max_send_wr, cfg.max_recv_wr) = (2, 1);
    other.ird = 0;
    let mut pair = Pair::new(cfg, other, 0);
    let engine = &mut pair.a.engine;
    engine.post_recv(recv(1, &[])).unwrap();
    assert!(matches!(engine.post_recv(recv(2, &[])), Err(E::QueueFull { depth: 1, .. })));
    assert!(matches!(engine.post_send(read(1, 0, 0, &[], 0)), Err(E::Limit { limit: 0, .. })));
    let imm = SendOp::WriteImm { raddr: 0, rkey: 0, imm: 0 };
    assert!(matches!(engine.post_send(wr(1, imm, b"", &[])), Err(E::Unsupported(_))));
    for _ in 0..2 {
        engine.post_send(wr(1, SEND, b"", &[])).unwrap();
    }
    assert!(matches!(engine.post_send(wr(1, SEND, b"", &[])), Err(E::QueueFull { depth: 2, .. })));
    assert!(!Inline::EMPTY.clone().push(&[0; MAX_INLINE + 1]));

    let mut pair = Pair::new(config(1), config(2), 0);
    let two = [segment(b"a"), segment(b"b")];
    let engine = &mut pair.a.engine;
    assert!(matches!(engine.post_send(read(1, 0, 0, &two, 0)), Err(E::Limit { asked: 2, .. })));
    engine.disconnect(Disconnect::Orderly);
    assert!(matches!(
        engine.post_send(wr(1, SEND, b"", &[])),
        Err(E::State { state: QpState::Closing, .. })
    ));
}

#[test]
fn wc_kinds_name_what_was_posted() {
    let mut pair = Pair::new(config(1), config(2), 0);
    pair.b.engine.post_recv(recv(4, &[])).unwrap();
    pair.a.engine.post_send(wr(1, SEND, b"", &[])).unwrap();
    pair.a.engine.post_send(wr(2, SendOp::Write { raddr: 0, rkey: 0 }, b"", &[])).unwrap();
    pair.a.engine.post_send(read(3, 0, 0, &[], 0)).unwrap();
    pair.settle();
    let ops: Vec<WcOp> = pair.a.wcs.iter().map(|wc| wc.op).collect();
    assert_eq!(ops, [WcOp::Send, WcOp::Write, WcOp::Read]);
    assert_eq!(pair.b.wcs[0].op, WcOp::Recv);
    assert_eq!((pair.a.wcs[0].qp.0, pair.b.wcs[0].qp.0), (1, 2));
}
