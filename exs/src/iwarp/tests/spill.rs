//! Messages that give their receive back in the middle, and continue in another.

use super::link::*;
use crate::iwarp::*;
use crate::rnic::{DisconnectCause, TermCode, WcStatus};

const LEN: usize = 300;

/// Makes ends of which the second receives from an SRQ, and the bytes of a message to it in FPDUs
/// of about 100 bytes.
fn message(crc: bool) -> (Pair, Vec<u8>) {
    let cfg = |qp| Config { crc, uses_srq: qp == 2, mss: 128, ..config(qp) };
    let mut pair = Pair::raw(cfg(1), b"", 1);
    // As a peer of another make has it, so that FPDUs are short.
    while pair.a.send(&mut pair.rng, Bite::Whole) {}
    pair.a.wire[16] &= !0x08;
    pair.settle();
    pair.b.engine.accept(cfg(2), b"").unwrap();
    pair.settle();
    pair.b.drain();
    pair.b.events.clear();
    let payload: Vec<u8> = (0..LEN).map(|i| u8::try_from(i % 251).unwrap()).collect();
    pair.a.engine.post_send(wr(1, SEND, b"", &[segment(&payload)])).unwrap();
    while pair.a.send(&mut pair.rng, Bite::Whole) {}
    let wire: Vec<u8> = pair.a.wire.drain(..).collect();
    assert!(wire.len() >= LEN + 3 * 24, "several FPDUs");
    (pair, wire)
}

fn take(side: &mut Side, bytes: &[u8], srq: &mut Shared) -> RxResult {
    let result = side.engine.handle_received(0, bytes, &mut side.keys, Some(srq));
    side.drain();
    result
}

#[test]
fn a_message_goes_on_in_another_receive_after_any_byte() {
    for crc in [false, true] {
        let (mut pair, wire) = message(crc);
        let places = [segment(&[0xee; LEN]), segment(&[0xee; LEN])];
        let mut srq = Shared::default();
        for (wr_id, place) in (7..).zip(&places) {
            srq.0.push_back(recv(wr_id, std::slice::from_ref(place)));
        }
        for (at, byte) in wire.iter().enumerate() {
            let result = take(&mut pair.b, &[*byte], &mut srq);
            assert_eq!((result.consumed, result.stalled), (1, false), "byte {at}");
            // To the back, so that the other receive is next.
            srq.0.extend(pair.b.engine.spill());
            assert_eq!(pair.b.engine.outstanding().1, 0);
        }
        assert!(pair.b.events.is_empty(), "{:?}", pair.b.events);
        let [wc] = pair.b.wcs[..] else { panic!("{:?}", pair.b.wcs) };
        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, LEN as u64));
        let got = contents(&places[usize::try_from(wc.wr_id).unwrap() - 7]);
        assert!(got.iter().enumerate().all(|(i, b)| usize::from(*b) == i % 251));
    }
}

#[test]
fn a_spilled_message_waits_for_another_receive() {
    let (mut pair, wire) = message(false);
    let mut srq = Shared::default();
    srq.0.push_back(recv(7, &[segment(&[0; LEN])]));
    take(&mut pair.b, &wire[..50], &mut srq);
    let buf = pair.b.engine.spill().expect("it has one");
    let result = take(&mut pair.b, &wire[50..], &mut srq);
    assert_eq!(result, RxResult { consumed: 0, stalled: true });
    pair.b.engine.rx_direct(&mut |_, _, _| panic!("there is no place for it"));
    srq.0.push_back(buf);
    assert_eq!(take(&mut pair.b, &wire[50..], &mut srq).consumed, wire.len() - 50);
    assert_eq!(pair.b.wcs[0].status, WcStatus::Success);
}

#[test]
fn a_receive_that_is_too_short_for_what_is_here_ends_the_connection() {
    let (mut pair, wire) = message(false);
    let mut srq = Shared::default();
    srq.0.push_back(recv(7, &[segment(&[0; LEN])]));
    take(&mut pair.b, &wire[..50], &mut srq);
    assert!(pair.b.engine.spill().is_some());
    srq.0.push_back(recv(8, &[segment(&[0; 20])]));
    take(&mut pair.b, &wire[50..], &mut srq);
    let [wc] = pair.b.wcs[..] else { panic!("{:?}", pair.b.wcs) };
    assert_eq!((wc.wr_id, wc.status), (8, WcStatus::LocalLength));
    pair.settle();
    let too_long = TermCode { layer: 1, etype: 2, code: 5 };
    let cause = DisconnectCause::TerminatedByPeer(too_long);
    assert!(matches!(pair.a.events.last(), Some(IwarpEvent::Disconnected(c)) if *c == cause));
}
