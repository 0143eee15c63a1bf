//! MPA start-up: what is negotiated, and what is refused.

use super::link::*;
use crate::iwarp::*;
use crate::rnic::{Disconnect, DisconnectCause, QpState, RnicError, WcStatus};

/// Feeds bytes to an engine, whole or one by one.
fn feed(side: &mut Side, bytes: &[u8], singly: bool) {
    for part in bytes.chunks(if singly { 1 } else { bytes.len().max(1) }) {
        let used = side.engine.handle_received(0, part, &mut side.keys, None);
        assert_eq!(used, RxResult { consumed: part.len(), stalled: false });
    }
    side.drain();
}

/// Returns all bytes that an engine wants to send.
fn sent(side: &mut Side) -> Vec<u8> {
    while side.send(&mut Rng(0), Bite::Whole) {}
    side.wire.drain(..).collect()
}

fn failed(side: &Side) -> String {
    match &side.events[..] {
        [IwarpEvent::Failed(RnicError::Protocol(why))] => why.clone(),
        other => panic!("expected a protocol error, not {other:?}"),
    }
}

fn initiator(cfg: Config) -> Side {
    let mut side = Side::new(IwarpEngine::initiator(cfg, b"pd").unwrap(), cfg.qp);
    sent(&mut side);
    side
}

#[test]
fn request_and_reply_vectors() {
    let mut cfg = config(1);
    cfg.crc = true;
    (cfg.ird, cfg.ord) = (16, 8);
    let mut a = Side::new(IwarpEngine::initiator(cfg, b"pd").unwrap(), 1);
    let request = sent(&mut a);
    assert_eq!(request, b"MPA ID Req Frame\x58\x02\x00\x06\x00\x10\x00\x08pd");

    let mut b = Side::new(IwarpEngine::responder(), 2);
    feed(&mut b, &request, true);
    assert!(
        matches!(&b.events[..], [IwarpEvent::Request { private_data }] if private_data == b"pd")
    );
    b.engine.accept(config(2), b"ok!").unwrap();
    b.drain();
    // Our 4 and 4 limit the initiator's 16 and 8. CRC is on because the initiator asked.
    let reply = sent(&mut b);
    assert_eq!(reply, b"MPA ID Rep Frame\x58\x02\x00\x07\x00\x04\x00\x04ok!");
    assert!(b.engine.crc());
    feed(&mut a, &reply, true);
    assert!(matches!(&a.events[..], [IwarpEvent::Established { private_data, ord: 4, ird: 4 }]
        if private_data == b"ok!"));
    assert_eq!(a.engine.state(), QpState::Rts);
}

#[test]
fn ird_and_ord_are_the_lesser_of_both_sides() {
    for ((a_ird, a_ord), (b_ird, b_ord)) in
        [((1, 9), (5, 7)), ((0, 0), (3, 3)), ((500, 2), (1, 500))]
    {
        let (mut a, mut b) = (config(1), config(2));
        (a.ird, a.ord, b.ird, b.ord) = (a_ird, a_ord, b_ird, b_ord);
        let mut pair = Pair::raw(a, b"", 0);
        pair.settle();
        pair.b.engine.accept(b, b"").unwrap();
        pair.settle();
        pair.b.drain();
        let b_ord = b_ord.min(a_ird).min(128);
        let b_ird = b_ird.min(a_ord).min(128);
        assert!(matches!(pair.b.events[1], IwarpEvent::Established { ord, ird, .. }
            if (ord, ird) == (b_ord, b_ird)));
        assert!(matches!(pair.a.events[0], IwarpEvent::Established { ord, ird, .. }
            if (ord, ird) == (b_ird, b_ord)));
    }
}

#[test]
fn revision_1_peers_are_served() {
    let mut b = Side::new(IwarpEngine::responder(), 2);
    feed(&mut b, b"MPA ID Req Frame\x00\x01\x00\x02pd", false);
    assert!(
        matches!(&b.events[..], [IwarpEvent::Request { private_data }] if private_data == b"pd")
    );
    b.engine.accept(config(2), &[7; 512]).unwrap();
    b.drain();
    let reply = sent(&mut b);
    assert_eq!(reply[..20], *b"MPA ID Rep Frame\x00\x01\x02\x00");
    assert_eq!(reply[20..], [7; 512]);

    let mut a = initiator(config(1));
    feed(&mut a, b"MPA ID Rep Frame\x40\x01\x00\x01x", false);
    assert!(matches!(&a.events[..], [IwarpEvent::Established { private_data, ord: 4, ird: 4 }]
        if private_data == b"x"));
    assert!(a.engine.crc(), "the responder asked for it");
}

#[test]
fn private_data_are_bounded() {
    let big = [0; MAX_PRIVATE_DATA + 1];
    let limit = |r: Result<(), RnicError>| {
        assert!(matches!(r, Err(RnicError::Limit { asked: 509, limit: 508, .. })), "{r:?}");
    };
    limit(IwarpEngine::initiator(config(1), &big).map(drop));
    assert!(IwarpEngine::initiator(config(1), &big[1..]).is_ok());
    let mut pair = Pair::raw(config(1), b"", 0);
    pair.settle();
    limit(pair.b.engine.accept(config(2), &big));
    limit(pair.b.engine.reject(&big));
    pair.b.engine.accept(config(2), &big[1..]).unwrap();
    pair.settle();
    assert!(matches!(&pair.a.events[..], [IwarpEvent::Established { private_data, .. }]
        if private_data.len() == MAX_PRIVATE_DATA));
    // A peer's frame that announces more private data than the standard allows.
    let mut b = Side::new(IwarpEngine::responder(), 2);
    feed(&mut b, b"MPA ID Req Frame\x00\x01\x02\x01", false);
    assert!(failed(&b).contains("513 bytes"));
    assert!(b.engine.closed());
}

#[test]
fn a_refusal_carries_private_data() {
    let mut pair = Pair::raw(config(1), b"", 0);
    pair.a.engine.post_recv(recv(9, &[segment(&[0; 8])])).unwrap();
    pair.settle();
    pair.b.engine.reject(b"not today").unwrap();
    pair.settle();
    assert!(matches!(&pair.a.events[..], [IwarpEvent::Rejected { private_data }]
        if private_data == b"not today"));
    assert_eq!(pair.a.wcs.len(), 1);
    assert_eq!((pair.a.wcs[0].wr_id, pair.a.wcs[0].status), (9, WcStatus::Flushed));
    assert!(pair.a.engine.closed() && pair.b.fin);
    // The refusing side waits for the other's end of file, so that no reset overtakes the
    // refusal.
    assert!(!pair.b.engine.closed());
    pair.a.fin = true;
    pair.settle();
    assert!(pair.b.engine.closed());
    assert_eq!(pair.b.events.len(), 1, "only the request");
}

#[test]
fn markers_and_unknown_revisions_are_refused_cleanly() {
    for (head, reply) in [
        (b"MPA ID Req Frame\x80\x01\x00\x00", b"MPA ID Rep Frame\x20\x01\x00\x00".as_slice()),
        (b"MPA ID Req Frame\x00\x03\x00\x00", b"MPA ID Rep Frame\x20\x02\x00\x00"),
        (b"MPA ID Req Frame\x00\x00\x00\x00", b"MPA ID Rep Frame\x20\x01\x00\x00"),
    ] {
        let mut b = Side::new(IwarpEngine::responder(), 2);
        feed(&mut b, head, false);
        failed(&b);
        assert_eq!(sent(&mut b), reply);
        assert!(b.fin && !b.engine.closed());
        feed(&mut b, b"whatever", false);
        b.engine.handle_eof();
        assert!(b.engine.closed());
    }
    let mut a = initiator(config(1));
    feed(&mut a, b"MPA ID Rep Frame\x80\x02\x00\x00", false);
    assert!(failed(&a).contains("markers"));
    assert!(a.engine.closed());
}

#[test]
fn bytes_that_are_not_mpa_are_an_error() {
    let mut b = Side::new(IwarpEngine::responder(), 2);
    feed(&mut b, b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", true);
    assert!(failed(&b).contains("iWARP"));
    let mut b = Side::new(IwarpEngine::responder(), 2);
    feed(&mut b, b"MPA ID Req Frame\x10\x02\x00\x03abc", false);
    assert!(failed(&b).contains("3 bytes"));
    let mut a = initiator(config(1));
    feed(&mut a, b"MPA ID Req Frame\x10\x02\x00\x00", false);
    failed(&a);
}

#[test]
fn early_bytes_are_a_protocol_error() {
    // After the request, in one piece with it and in another.
    for split in [false, true] {
        let mut b = Side::new(IwarpEngine::responder(), 2);
        let request = b"MPA ID Req Frame\x00\x01\x00\x00";
        if split {
            feed(&mut b, request, false);
            feed(&mut b, b"!", false);
            assert!(matches!(&b.events[..], [IwarpEvent::Request { .. }, IwarpEvent::Failed(_)]));
        } else {
            feed(&mut b, &[&request[..], b"!"].concat(), false);
            assert!(failed(&b).contains("1 bytes"));
        }
        assert!(b.engine.closed());
        assert!(b.engine.accept(config(2), b"").is_err());
    }
    // After the reply.
    let mut a = initiator(config(1));
    feed(&mut a, b"MPA ID Rep Frame\x00\x01\x00\x00\x00", false);
    assert!(failed(&a).contains("too early"));
    // A reply to a request that has not left.
    let mut a = Side::new(IwarpEngine::initiator(config(1), b"").unwrap(), 1);
    feed(&mut a, b"MPA ID Rep Frame\x00\x01\x00\x00", false);
    assert!(failed(&a).contains("before our request"));
    // FPDUs before the initiator has sent its first.
    let mut a = initiator(config(1));
    feed(&mut a, b"MPA ID Rep Frame\x00\x01\x00\x00", false);
    a.events.clear();
    feed(&mut a, b"\x00\x0e\xc1\x40\0\0\0\0\0\0\0\0\0\0\0\0", false);
    assert_eq!(a.engine.state(), QpState::Error);
    a.engine.disconnect(Disconnect::Abort);
    a.drain();
    assert!(matches!(&a.events[..],
        [IwarpEvent::Disconnected(DisconnectCause::TerminatedByUs(code))] if code.layer == 2));
}

#[test]
fn a_peer_that_wants_more_reads_than_we_answer_is_refused() {
    let mut a = initiator(config(1));
    feed(&mut a, b"MPA ID Rep Frame\x10\x02\x00\x04\x00\x04\x00\x05", false);
    assert!(failed(&a).contains("5 READs"));
}

#[test]
fn the_responder_holds_back_until_the_first_message() {
    let mut pair = Pair::new(config(1), config(2), 0);
    let slot = segment(&[0; 8]);
    pair.a.engine.post_recv(recv(1, std::slice::from_ref(&slot))).unwrap();
    pair.b.engine.post_recv(recv(2, &[segment(&[0; 8])])).unwrap();
    pair.b.engine.post_send(wr(3, SEND, b"late", &[])).unwrap();
    assert!(sent(&mut pair.b).is_empty());
    pair.a.engine.post_send(wr(4, SEND, b"first", &[])).unwrap();
    pair.settle();
    assert_eq!(contents(&slot)[..4], *b"late");
    assert_eq!((pair.a.wcs.len(), pair.b.wcs.len()), (2, 2));
}

#[test]
fn peer_to_peer_lets_the_responder_speak_first() {
    let mut cfg = config(1);
    cfg.peer_to_peer = true;
    let mut pair = Pair::new(cfg, config(2), 0);
    let slot = segment(&[0; 8]);
    pair.a.engine.post_recv(recv(1, std::slice::from_ref(&slot))).unwrap();
    pair.b.engine.post_send(wr(3, SEND, b"early", &[])).unwrap();
    pair.settle();
    assert_eq!(contents(&slot)[..5], *b"early");
    assert!(pair.a.wcs.iter().all(|wc| wc.wr_id == 1), "the first message is no WR's");
}

#[test]
fn peer_to_peer_bits_on_the_wire() {
    let mut cfg = config(1);
    cfg.peer_to_peer = true;
    let mut a = Side::new(IwarpEngine::initiator(cfg, b"").unwrap(), 1);
    assert_eq!(sent(&mut a)[20..], [0x80, 4, 0x80, 4]);
    // If WRITE and READ are offered, the answer is WRITE; if READ alone, READ. SEND alone is
    // refused.
    for (offer, answer) in [(0xc004u16, Some(0x8004u16)), (0x4004, Some(0x4004)), (0x0004, None)] {
        let mut b = Side::new(IwarpEngine::responder(), 2);
        let mut request = b"MPA ID Req Frame\x10\x02\x00\x04\xc0\x04".to_vec();
        request.extend(offer.to_be_bytes());
        feed(&mut b, &request, false);
        match answer {
            Some(answer) => {
                b.engine.accept(config(2), b"").unwrap();
                let reply = sent(&mut b);
                assert_eq!(reply[20..22], [0x80, 4]);
                assert_eq!(reply[22..], answer.to_be_bytes());
            }
            None => {
                failed(&b);
                assert_eq!(sent(&mut b)[16], 0x30);
            }
        }
    }
}

#[test]
fn a_broken_start_up_fails_once_and_flushes() {
    type End = fn(&mut IwarpEngine);
    let ends: [End; 4] = [
        |e| e.handle_eof(),
        |e| e.handle_broken(libc::ECONNREFUSED),
        |e| e.disconnect(Disconnect::Orderly),
        |e| e.disconnect(Disconnect::Abort),
    ];
    for end in ends {
        let mut a = initiator(config(1));
        a.engine.post_recv(recv(5, &[])).unwrap();
        feed(&mut a, b"MPA ID Rep", false);
        end(&mut a.engine);
        end(&mut a.engine);
        a.drain();
        assert!(matches!(&a.events[..], [IwarpEvent::Failed(_)]));
        assert_eq!(a.wcs.len(), 1);
        assert!(a.engine.closed());
        assert!(!a.send(&mut Rng(0), Bite::Whole));
        assert!(matches!(a.engine.post_recv(recv(6, &[])), Err(RnicError::State { .. })));
        assert!(matches!(a.engine.post_send(wr(1, SEND, b"", &[])), Err(RnicError::State { .. })));
    }
}
