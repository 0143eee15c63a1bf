//! READs from memory that changes while the response is on its way.

use super::link::*;
use crate::iwarp::*;
use crate::mem::{Access, Scope, Segment};
use crate::rnic::WcStatus;

const LEN: usize = 256 << 10;

/// Both ends with CRC.
fn with_crc() -> Pair {
    let cfg = |qp| Config { crc: true, ..config(qp) };
    Pair::new(cfg(1), cfg(2), 7)
}

/// `a` reads memory of `b`. Returns (the memory, the sink).
fn ask(pair: &mut Pair, wr_id: u64) -> (Segment, Segment) {
    let (source, sink) = (segment(&vec![1; LEN]), segment(&vec![0xee; LEN]));
    let rkey = pair.b.window(&source, Access::REMOTE_READ);
    let sink_key = pair.a.key(&sink, Access::REMOTE_WRITE, Scope::QueuePair(PD, 1));
    let wr = read(wr_id, source.addr(), rkey, std::slice::from_ref(&sink), sink_key);
    pair.a.engine.post_send(wr).unwrap();
    while pair.a.send(&mut pair.rng, Bite::Whole) {}
    while pair.b.receive(&mut pair.rng, Bite::Whole, &mut pair.a.wire, false) {}
    (source, sink)
}

/// Checks that the READ is complete, that each byte is of one time or the other, and that both
/// ends live.
fn check(pair: &Pair, sink: &Segment) {
    assert!(pair.a.events.is_empty() && pair.b.events.is_empty(), "{:?}", pair.a.events);
    assert_eq!(pair.a.wcs.last().map(|wc| wc.status), Some(WcStatus::Success));
    let got = contents(sink);
    assert!(got.iter().all(|b| matches!(b, 1 | 2)), "bytes of neither time");
}

#[test]
fn the_source_may_change_between_two_bites_of_the_response() {
    let mut pair = with_crc();
    let (source, sink) = ask(&mut pair, 1);
    assert!(pair.b.send(&mut pair.rng, Bite::UpTo(1000)), "the response begins to leave");
    source.write_at(0, &vec![2; LEN]);
    pair.settle();
    check(&pair, &sink);
    assert_eq!(contents(&sink)[LEN - 1], 2, "what was not on its way is read when it leaves");

    let (_, sink) = ask(&mut pair, 2);
    pair.settle();
    check(&pair, &sink);
}

#[test]
fn a_write_of_the_peer_may_change_the_source_too() {
    let mut pair = with_crc();
    let (source, sink) = ask(&mut pair, 1);
    assert!(pair.b.send(&mut pair.rng, Bite::UpTo(1000)), "the response begins to leave");
    let rkey = pair.b.window(&source, Access::REMOTE_WRITE);
    let write = crate::rnic::SendOp::Write { raddr: source.addr(), rkey };
    pair.a.engine.post_send(wr(2, write, b"", &[segment(&[2; LEN])])).unwrap();
    while pair.a.send(&mut pair.rng, Bite::Whole) {}
    while pair.b.receive(&mut pair.rng, Bite::Whole, &mut pair.a.wire, false) {}
    assert_eq!(contents(&source), vec![2; LEN], "the WRITE is there before the response has left");
    pair.settle();
    check(&pair, &sink);
}
