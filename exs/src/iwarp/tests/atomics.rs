//! Atomic operations: their bytes, their results, and what is refused.

use super::link::*;
use crate::iwarp::*;
use crate::mem::{Access, AtomicOp, Key, Region, Scope, Segment};
use crate::rnic::{DisconnectCause, RnicError, SendOp, TermCode, WcOp, WcStatus};
use crate::wire::atomics::{AtomicCode, AtomicRequest, AtomicResponse};
use crate::wire::ddp::{DdpBuffer, Header, UNTAGGED_LEN};
use crate::wire::mpa;
use crate::wire::rdmap::Opcode;

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|b| u8::from_str_radix(b, 16).unwrap()).collect()
}

/// Words, all 0.
pub(super) fn words(count: usize) -> Segment {
    Region::map(8 * count).unwrap().segment(0, 8 * count).unwrap()
}

pub(super) fn value(words: &Segment, index: usize) -> u64 {
    words.atomic(8 * index, AtomicOp::FetchAdd(0))
}

/// Makes an operation whose old value goes to `old`.
pub(super) fn atomic(wr_id: u64, op: AtomicOp, raddr: u64, rkey: Key, old: &Segment) -> TxWr {
    wr(wr_id, SendOp::Atomic { raddr, rkey, op }, b"", std::slice::from_ref(old))
}

fn swap(expected: u64, new: u64) -> AtomicOp {
    AtomicOp::CompareSwap { expected, new }
}

/// An FPDU of an untagged message, without CRC.
fn fpdu(opcode: Opcode, (qn, msn, mo): (u32, u32, u32), last: bool, payload: &[u8]) -> Vec<u8> {
    let place = DdpBuffer::Untagged { ulp: 0, qn, msn, mo };
    let mut header = [0; UNTAGGED_LEN];
    Header { last, control: opcode.control(), place }.emit(&mut header);
    let ulpdu = UNTAGGED_LEN + payload.len();
    let mut out = u16::try_from(ulpdu).unwrap().to_be_bytes().to_vec();
    out.extend(header);
    out.extend(payload);
    out.extend(vec![0; mpa::trailer_len(ulpdu)]);
    out
}

fn plain() -> Pair {
    let mut pair = Pair::new(config(1), config(2), 0);
    // The responder may send after the initiator's first message.
    let first = SendOp::Write { raddr: 0, rkey: 0 };
    pair.a.engine.post_send(TxWr { signaled: false, ..wr(0, first, b"", &[]) }).unwrap();
    pair.settle();
    pair
}

/// `b` has refused what came from `a`, with this code.
fn refused(pair: &mut Pair, layer: u8, etype: u8, code: u8) {
    pair.settle();
    let code = TermCode { layer, etype, code };
    let cause = |side: &Side| match side.events[..] {
        [IwarpEvent::Disconnected(cause)] => cause,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(cause(&pair.b), DisconnectCause::TerminatedByUs(code));
    assert_eq!(cause(&pair.a), DisconnectCause::TerminatedByPeer(code));
}

const FETCH_ADD: &str = "00 46 41 4a 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 \
    00 00 00 00 00 00 00 01 0a 0b 0c 0d 11 12 13 14 15 16 17 18 21 22 23 24 25 26 27 28 \
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00";
const COMPARE_SWAP: &str = "00 46 41 4a 00 00 00 00 00 00 00 01 00 00 00 02 00 00 00 00 \
    00 00 00 02 00 00 00 02 0a 0b 0c 0d 11 12 13 14 15 16 17 18 31 32 33 34 35 36 37 38 \
    ff ff ff ff ff ff ff ff 41 42 43 44 45 46 47 48 ff ff ff ff ff ff ff ff";
const RESPONSE: &str = "00 1e 41 4b 00 00 00 00 00 00 00 03 00 00 00 01 00 00 00 00 \
    00 00 00 01 00 00 00 00 00 00 00 2a";

/// The bytes of a vector with its CRC, or with none.
fn framed(vector: &str, crc: bool) -> Vec<u8> {
    let mut bytes = hex(vector);
    let sum = if crc { crc32c::crc32c(&bytes) } else { 0 };
    bytes.extend(sum.to_le_bytes());
    bytes
}

#[test]
fn requests_and_responses_byte_for_byte() {
    for crc in [true, false] {
        let mut pair = Pair::new(Config { crc, ..config(1) }, config(2), 0);
        let (raddr, rkey, old) = (0x1112_1314_1516_1718, 0x0a0b_0c0d, words(1));
        let add = AtomicOp::FetchAdd(0x2122_2324_2526_2728);
        let swap = swap(0x4142_4344_4546_4748, 0x3132_3334_3536_3738);
        for (id, op, vector) in [(1, add, FETCH_ADD), (2, swap, COMPARE_SWAP)] {
            pair.a.engine.post_send(atomic(id, op, raddr, rkey, &old)).unwrap();
            while pair.a.send(&mut pair.rng, Bite::Whole) {}
            let sent: Vec<u8> = pair.a.wire.drain(..).collect();
            assert_eq!(sent, framed(vector, crc));
        }
        assert!(pair.a.wcs.is_empty(), "they wait for their responses");
        pair.b.wire.extend(framed(RESPONSE, crc));
        pair.settle();
        let wc = pair.a.wcs[0];
        assert_eq!((wc.wr_id, wc.op, wc.status), (1, WcOp::Atomic, WcStatus::Success));
        assert_eq!((wc.byte_len, value(&old, 0)), (8, 42));
    }
}

#[test]
fn a_response_is_what_the_vector_says() {
    let mut pair = plain();
    let word = words(1);
    word.atomic(0, AtomicOp::FetchAdd(42));
    let rkey = pair.b.window(&word, Access::REMOTE_ATOMIC);
    let request = AtomicOp::FetchAdd(1);
    pair.a.engine.post_send(atomic(9, request, word.addr(), rkey, &words(1))).unwrap();
    while pair.a.send(&mut pair.rng, Bite::Whole) {}
    while pair.b.receive(&mut pair.rng, Bite::Whole, &mut pair.a.wire, false) {}
    while pair.b.send(&mut pair.rng, Bite::Whole) {}
    assert_eq!(pair.b.wire.drain(..).collect::<Vec<_>>(), framed(RESPONSE, false));
    assert_eq!(value(&word, 0), 43);
}

/// Both operations, mixed with WRITEs and READs; more at a time than the peer answers.
#[test]
fn operations_are_done_in_order_with_what_is_around_them() {
    let mut pair = Pair::new(Config { crc: true, ..config(1) }, config(2), 3);
    pair.bite = Bite::UpTo(20);
    let there = words(4);
    let rights = Access { remote_atomic: true, ..Access::ALL };
    let rkey = pair.b.window(&there, rights);
    let (olds, sink) = (words(12), segment(&[0xee; 8]));
    let old = |i: usize| olds.slice(8 * i, 8).unwrap();
    let sink_key = pair.a.key(&sink, Access::REMOTE_WRITE, Scope::QueuePair(PD, 1));
    let addr = there.addr() + 16;
    let write = SendOp::Write { raddr: addr, rkey };
    pair.a.engine.post_send(wr(100, write, &100u64.to_ne_bytes(), &[])).unwrap();
    for (i, op) in [AtomicOp::FetchAdd(5), swap(105, 7), swap(105, 9), AtomicOp::FetchAdd(u64::MAX)]
        .into_iter()
        .enumerate()
    {
        pair.a.engine.post_send(atomic(i as u64, op, addr, rkey, &old(i))).unwrap();
    }
    pair.a.engine.post_send(read(4, addr, rkey, std::slice::from_ref(&sink), sink_key)).unwrap();
    for i in 5..12 {
        let op = AtomicOp::FetchAdd(1);
        pair.a.engine.post_send(atomic(i as u64, op, there.addr(), rkey, &old(i))).unwrap();
    }
    pair.settle();
    let ids: Vec<u64> = pair.a.wcs.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [100, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    assert!(pair.a.wcs.iter().all(|wc| wc.status == WcStatus::Success), "{:?}", pair.a.wcs);
    let got: Vec<u64> = (0..4).map(|i| value(&olds, i)).collect();
    assert_eq!(got, [100, 105, 7, 7]);
    assert_eq!(contents(&sink), 6u64.to_ne_bytes());
    let got: Vec<u64> = (5..12).map(|i| value(&olds, i)).collect();
    assert_eq!(got, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!([0, 1, 2, 3].map(|i| value(&there, i)), [7, 0, 6, 0]);
}

/// They share the limit of outstanding READs.
#[test]
fn a_peer_that_answers_no_reads_answers_no_atomics() {
    let none = Config { ird: 0, ..config(2) };
    let mut pair = Pair::new(config(1), none, 0);
    let post = pair.a.engine.post_send(atomic(1, AtomicOp::FetchAdd(1), 8, 1, &words(1)));
    assert!(matches!(post, Err(RnicError::Limit { limit: 0, .. })), "{post:?}");
}

#[test]
fn what_is_not_allowed_changes_nothing() {
    type Spoil = fn(&mut Pair, u64, u32) -> (u64, u32);
    let cases: [(Spoil, (u8, u8, u8)); 7] = [
        (|_, at, key| (at, key ^ 1), (0, 1, 0)),
        (|_, at, key| (at + 16, key), (0, 1, 1)),
        (|_, at, key| (at + 12, key), (0, 1, 1)),
        (|_, at, key| (at - 8, key), (0, 1, 1)),
        (|_, _, key| (u64::MAX - 3, key), (0, 1, 4)),
        (|_, at, key| (at + 4, key), (0, 2, 7)),
        (
            |pair, at, key| {
                let grant = pair.b.keys.remove(key).unwrap();
                (at, pair.b.window(&grant.segment, Access::ALL))
            },
            (0, 1, 2),
        ),
    ];
    for (i, (spoil, (layer, etype, code))) in cases.into_iter().enumerate() {
        let mut pair = plain();
        let memory = words(4);
        let part = memory.slice(8, 16).unwrap();
        let key = pair.b.window(&part, Access::REMOTE_ATOMIC);
        let (raddr, rkey) = spoil(&mut pair, part.addr(), key);
        let fine = atomic(1, AtomicOp::FetchAdd(3), part.addr(), key, &words(1));
        if pair.b.keys.get(key).is_some() {
            pair.a.engine.post_send(fine).unwrap();
        }
        pair.a.engine.post_send(atomic(2, AtomicOp::FetchAdd(1), raddr, rkey, &words(1))).unwrap();
        pair.a.engine.post_send(wr(3, SEND, b"after", &[])).unwrap();
        refused(&mut pair, layer, etype, code);
        let before = u64::from(i < 6) * 3;
        assert_eq!([0, 1, 2, 3].map(|i| value(&memory, i)), [0, before, 0, 0], "case {i}");
        let status = |id| pair.a.wcs.iter().find(|wc| wc.wr_id == id).unwrap().status;
        let refusal =
            if etype == 1 { WcStatus::RemoteAccess } else { WcStatus::RemoteInvalidRequest };
        assert_eq!((status(2), status(3)), (refusal, WcStatus::Flushed), "case {i}");
    }
}

/// Each request is one message of one segment, with the next number, and within the limit.
#[test]
fn requests_that_break_the_rules_are_refused() {
    let request = |code| {
        let (id, stag, to, data) = (1, 2, 8, 1);
        AtomicRequest { code, id, stag, to, data, mask: 0, compare: 0, compare_mask: 0 }.emit()
    };
    let good = request(AtomicCode::FetchAdd);
    let mut unknown = good;
    unknown[3] = 3;
    let on = |place, last, payload: &[u8]| fpdu(Opcode::AtomicRequest, place, last, payload);
    for (bytes, (layer, etype, code)) in [
        (on((0, 1, 0), true, &good), (1, 2, 1)),
        (on((1, 2, 0), true, &good), (1, 2, 3)),
        (on((1, 1, 4), true, &good), (1, 2, 4)),
        (on((1, 1, 0), false, &good), (0, 2, 7)),
        (on((1, 1, 0), true, &good[1..]), (0, 2, 7)),
        (on((1, 1, 0), true, &unknown), (0, 2, 6)),
    ] {
        let mut pair = plain();
        pair.a.wire.extend(bytes);
        refused(&mut pair, layer, etype, code);
    }
    // One more than the responder answers at a time, while it may not send.
    let mut pair = plain();
    let word = words(1);
    let rkey = pair.b.window(&word, Access::REMOTE_ATOMIC);
    for msn in 1..=5 {
        let request =
            AtomicRequest { stag: rkey, to: word.addr(), ..AtomicRequest::parse(&good).unwrap() };
        pair.a.wire.extend(on((1, msn, 0), true, &request.emit()));
    }
    while pair.b.receive(&mut pair.rng, Bite::Whole, &mut pair.a.wire, false) {}
    assert_eq!(value(&word, 0), 4, "four were executed");
    refused(&mut pair, 1, 2, 2);
}

/// A response must be that of the oldest request.
#[test]
fn responses_that_nothing_awaits_are_refused() {
    let response = |id| AtomicResponse { id, old: 5 }.emit();
    type Case = (u32, u32, u32, bool, usize, (u8, u8, u8));
    let cases: [Case; 6] = [
        (7, 1, 0, true, 12, (0, 2, 7)), // another identifier
        (1, 2, 0, true, 12, (1, 2, 3)),
        (1, 1, 1, true, 12, (1, 2, 4)),
        (1, 1, 0, false, 12, (0, 2, 7)),
        (1, 1, 0, true, 11, (0, 2, 7)),
        (0, 1, 0, true, 12, (0, 2, 6)), // no request
    ];
    for (id, msn, mo, last, len, (layer, etype, code)) in cases {
        let mut pair = plain();
        let old = words(1);
        if id != 0 {
            let request = atomic(1, AtomicOp::FetchAdd(1), 8, 1, &old);
            pair.a.engine.post_send(request).unwrap();
            while pair.a.send(&mut pair.rng, Bite::Whole) {}
            pair.a.wire.clear();
        } else {
            pair.a.engine.post_send(read(1, 8, 1, &[], 0)).unwrap();
            while pair.a.send(&mut pair.rng, Bite::Whole) {}
            pair.a.wire.clear();
        }
        pair.b.wire.extend(fpdu(Opcode::AtomicResponse, (3, msn, mo), last, &response(id)[..len]));
        while pair.a.receive(&mut pair.rng, Bite::Whole, &mut pair.b.wire, false) {}
        pair.a.drain();
        while pair.a.send(&mut pair.rng, Bite::Whole) {}
        let cause = DisconnectCause::TerminatedByUs(TermCode { layer, etype, code });
        pair.b.engine.handle_broken(libc::ECONNRESET);
        pair.a.engine.handle_broken(libc::ECONNRESET);
        pair.a.drain();
        assert!(
            matches!(pair.a.events[..], [IwarpEvent::Disconnected(c)] if c == cause),
            "{id} {msn} {mo} {last} {len}: {:?}",
            pair.a.events
        );
        assert_eq!(value(&old, 0), 0, "a value that was not asked for");
        assert_eq!(pair.a.wcs.len(), 1, "one end");
    }
}

/// An end of file while a response is awaited is no orderly end, and the request has one end.
#[test]
fn an_end_before_the_response_is_told() {
    let mut pair = plain();
    pair.a.engine.post_send(atomic(1, AtomicOp::FetchAdd(1), 8, 1, &words(1))).unwrap();
    while pair.a.send(&mut pair.rng, Bite::Whole) {}
    pair.a.engine.handle_eof();
    pair.a.drain();
    let status: Vec<_> = pair.a.wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(status, [(1, WcStatus::Flushed)]);
    let broken = IwarpEvent::Disconnected(DisconnectCause::Broken(libc::ECONNRESET));
    assert!(matches!(&pair.a.events[..], [event] if format!("{event:?}") == format!("{broken:?}")));
}

/// A window that closes after a request was executed takes nothing back: the response leaves.
#[test]
fn a_window_that_closes_before_the_response_leaves() {
    let mut pair = plain();
    let (word, old) = (words(1), words(1));
    let rkey = pair.b.window(&word, Access::REMOTE_ATOMIC);
    pair.a.engine.post_send(atomic(1, AtomicOp::FetchAdd(7), word.addr(), rkey, &old)).unwrap();
    while pair.a.send(&mut pair.rng, Bite::Whole) {}
    while pair.b.receive(&mut pair.rng, Bite::Whole, &mut pair.a.wire, false) {}
    pair.b.keys.remove(rkey);
    pair.b.engine.key_revoked(rkey);
    pair.settle();
    assert_eq!(pair.a.wcs.last().map(|wc| wc.status), Some(WcStatus::Success));
    assert!(pair.a.events.is_empty() && pair.b.events.is_empty());
    pair.a.engine.post_send(atomic(2, AtomicOp::FetchAdd(7), word.addr(), rkey, &old)).unwrap();
    refused(&mut pair, 0, 1, 0);
    assert_eq!(value(&word, 0), 7);
}
