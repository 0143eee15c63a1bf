//! A driver that reads as far as the engine hints makes one call for each long payload, and
//! copies no byte of it.

use super::link::*;
use crate::iwarp::*;
use crate::mem::Access;
use crate::rnic::{SendOp, WcStatus};

const MESSAGES: usize = 20;

/// Sends WRITEs of `len` bytes, each announced by a SEND. Returns the calls that the last half of
/// them took, and how many of their bytes came through the lookahead.
fn cost(len: usize, crc: bool) -> (usize, usize) {
    let cfg = |qp| Config { crc, mss: 60 << 10, ..config(qp) };
    let mut pair = Pair::new(cfg(1), cfg(2), 1);
    let source = segment(&vec![7; len]);
    let sink = segment(&vec![0; len]);
    let rkey = pair.b.window(&sink, Access::REMOTE_WRITE);
    let raddr = sink.addr();
    for wr_id in 0..MESSAGES as u64 {
        let note = segment(&[0; 64]);
        pair.b.engine.post_recv(recv(wr_id, &[note])).unwrap();
        let write = SendOp::Write { raddr, rkey };
        pair.a.engine.post_send(wr(wr_id, write, b"", std::slice::from_ref(&source))).unwrap();
        pair.a.engine.post_send(wr(wr_id, SEND, &[1; 32], &[])).unwrap();
        while pair.a.send(&mut Rng(1), Bite::Whole) {}
    }
    let mut lookahead = vec![0; 64 << 10];
    let (mut calls, mut copied) = (0, 0);
    while !pair.a.wire.is_empty() {
        let mut direct = 0;
        pair.b.engine.rx_direct(&mut |seg, off, want| {
            let n = want.min(pair.a.wire.len());
            let bytes: Vec<u8> = pair.a.wire.drain(..n).collect();
            seg.write_at(off, &bytes);
            direct += n;
        });
        let look = if direct > 0 { pair.b.engine.rx_hint() } else { 4 << 10 };
        let ahead = look.min(pair.a.wire.len());
        lookahead.clear();
        lookahead.extend(pair.a.wire.drain(..ahead));
        let result = pair.b.engine.handle_received(direct, &lookahead, &mut pair.b.keys, None);
        assert_eq!(result.consumed, ahead);
        pair.b.drain();
        if pair.b.wcs.len() >= MESSAGES / 2 {
            calls += 1;
            copied += ahead;
        }
    }
    assert!(pair.b.wcs.iter().all(|wc| wc.status == WcStatus::Success));
    assert_eq!(pair.b.wcs.len(), MESSAGES, "{:?}", pair.b.events);
    assert_eq!(contents(&sink), vec![7; len]);
    (calls, copied)
}

#[test]
fn a_long_message_takes_a_call_for_each_long_piece() {
    for crc in [false, true] {
        // The long pieces of a message (60 KiB less a header at most), and the rest of it.
        for (len, long, short) in [
            (16 << 10, 1, 0),
            (64 << 10, 1, (64 << 10) - 61_420),
            (96 << 10, 2, 0),
            (1 << 20, 17, (1 << 20) - 17 * 61_420),
        ] {
            let (calls, copied) = cost(len, crc);
            let messages = MESSAGES / 2 + 1;
            assert!(calls <= messages * long, "{len} bytes: {calls} calls");
            assert!(copied <= messages * (short + 100), "{len} bytes: {copied} copied");
        }
    }
}
