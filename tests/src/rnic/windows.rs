//! Windows that are lent, and windows that are bound: what a peer may reach, and until
//! when.

use exs::mem::{Access, Key};
use exs::rnic::{Rnic, RnicError, SendOp, SendWr, Sge, WcStatus};

use super::skip;
use super::world::{Buf, Harness, Pair, World, pattern, read_wr, send_wr, write_wr};

/// Lends what `b` has to `a`, and lets it know.
fn lend<H: Harness>(w: &mut World<H>, p: Pair, of: &Buf, at: u64, len: u64, access: Access) -> Key {
    let key = w.rnics[1].lend_mw(p.b.qp, of.mr, of.addr() + at, len, access).unwrap();
    w.hint(p.b, p.a);
    key
}

/// A WRITE by `a` into the memory of `b`, and a SEND that reports it.
fn write<H: Harness>(w: &mut World<H>, p: Pair, bytes: &[u8], raddr: u64, key: u32) {
    w.recv(p.b, 1, &[]);
    w.send(p.a, &SendWr { head: bytes, signaled: false, ..write_wr(1, &[], raddr, key) });
    w.send(p.a, &SendWr { signaled: false, ..send_wr(2, &[]) });
    let wc = w.received(p.b);
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Success));
}

/// A lent window takes WRITEs, ends once, and leaves the registration as it was.
pub fn a_lent_window_serves_and_ends<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let dst = w.zeros(p.b, 200);
    for round in 1..=3u8 {
        let key = lend(&mut w, p, &dst, 50, 100, Access::REMOTE_WRITE);
        write(&mut w, p, &[round; 100], dst.addr() + 50, key);
        let got = dst.bytes();
        assert!(got[50..150].iter().all(|b| *b == round));
        assert!(got[..50].iter().chain(&got[150..]).all(|b| *b == 0), "around it");
        w.rnics[1].invalidate_mw(p.b.qp, key).unwrap();
        assert!(w.rnics[1].invalidate_mw(p.b.qp, key).is_err(), "twice");
    }
    // Two at a time on the same memory: the end of one is not that of the other.
    let one = lend(&mut w, p, &dst, 0, 200, Access::REMOTE_WRITE);
    let two = lend(&mut w, p, &dst, 0, 200, Access::REMOTE_WRITE);
    w.rnics[1].invalidate_mw(p.b.qp, one).unwrap();
    write(&mut w, p, &[9; 10], dst.addr(), two);
    w.rnics[1].invalidate_mw(p.b.qp, two).unwrap();
    w.rnics[1].dereg_mr(dst.mr).expect("nothing of it is lent any more");
    w.assert_alive(p);
}

/// As many windows are opened, before any doorbell, as no send queue has room for; what the
/// caller posts then finds its own.
pub fn more_windows_than_a_queue_has_room_for<H: Harness>() {
    const MANY: usize = 400;
    let (mut w, p) = World::<H>::pair();
    let dst = w.zeros(p.b, MANY);
    let at = |i: usize| dst.addr() + i as u64;
    let mut lend = |i| w.rnics[1].lend_mw(p.b.qp, dst.mr, at(i), 1, Access::REMOTE_WRITE).unwrap();
    let lent: Vec<Key> = (0..MANY).map(&mut lend).collect();
    for _ in 0..10 {
        w.hint(p.b, p.a);
    }
    for i in [0, 63, 64, 100, MANY - 1] {
        write(&mut w, p, &[7], at(i), lent[i]);
        assert_eq!(dst.read::<1>(i), [7]);
    }
    for key in lent {
        w.rnics[1].invalidate_mw(p.b.qp, key).unwrap();
    }
    w.assert_alive(p);
}

/// A lent window of the other kinds: to be READ, and as the sink of a READ, which needs
/// remote rights on iWARP.
pub fn a_lent_window_takes_reads<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let bytes = pattern(1, 5000);
    let src = w.buf(p.b, bytes.clone(), Access::LOCAL);
    let key = lend(&mut w, p, &src, 0, 5000, Access::REMOTE_READ);
    let dst = w.zeros(p.a, 5000);
    w.send(p.a, &read_wr(1, &[dst.sge()], src.addr(), key));
    assert_eq!(w.completed(p.a).status, WcStatus::Success);
    assert!(dst.bytes() == bytes);
    w.rnics[1].invalidate_mw(p.b.qp, key).unwrap();
    assert!(w.rnics[1].invalidate_mw(p.b.qp, key).is_err(), "twice");
    // Memory outside of the registration cannot be lent.
    let mr = src.mr;
    let over = w.rnics[1].lend_mw(p.b.qp, mr, src.addr(), 5001, Access::REMOTE_READ);
    assert!(over.is_err(), "one byte beyond the registration: {over:?}");
    w.assert_alive(p);
}

fn cut_off<H: Harness>(mut w: World<H>, p: Pair, wr: &SendWr<'_>, dst: &Buf) {
    let before = dst.bytes();
    w.send(p.a, wr);
    w.disconnected(p.a);
    w.disconnected(p.b);
    assert!(dst.bytes() == before, "bytes were placed");
}

/// A pair, memory at `b`, and the key of a window on a part of it.
fn scene<H: Harness>(access: Access) -> (World<H>, Pair, Buf, Key) {
    let (mut w, p) = World::<H>::pair();
    let dst = w.buf(p.b, vec![5; 300], Access::ALL);
    let key = w.bind((p.b, p.a), &dst, dst.part(100, 100), access);
    (w, p, dst, key)
}

/// A window that is bound opens exactly its bytes, on every device.
pub fn a_window_has_bounds<H: Harness>() {
    for (at, len) in [(99, 1), (200, 1), (101, 100), (0, 250)] {
        let (w, p, dst, key) = scene::<H>(Access::REMOTE_WRITE);
        let bytes = vec![1; len];
        let wr = SendWr { head: &bytes, ..write_wr(1, &[], dst.addr() + at, key) };
        cut_off(w, p, &wr, &dst);
    }
}

/// A window that is bound opens them for exactly its rights, and is closed when it is
/// invalidated.
pub fn a_window_has_rights_and_an_end<H: Harness>() {
    let (w, p, dst, key) = scene::<H>(Access::REMOTE_READ);
    let wr = SendWr { head: &[1], ..write_wr(1, &[], dst.addr() + 100, key) };
    cut_off(w, p, &wr, &dst);
    let (mut w, p, dst, key) = scene::<H>(Access::REMOTE_WRITE);
    write(&mut w, p, &[1; 100], dst.addr() + 100, key);
    w.rnics[1].invalidate_mw(p.b.qp, key).unwrap();
    let wr = SendWr { head: &[2], ..write_wr(1, &[], dst.addr() + 100, key) };
    cut_off(w, p, &wr, &dst);
}

/// Windows by the hundred, open at the same time and one after the other: none is used
/// up by those that were closed.
pub fn windows_come_and_go<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let dst = w.zeros(p.b, 1000);
    let access = Access::REMOTE_WRITE;
    for round in 0..5u8 {
        let mut keys = Vec::new();
        for i in 0..100u64 {
            let addr = dst.addr() + i * 10;
            let key = if i % 4 == 0 {
                w.bind((p.b, p.a), &dst, dst.part(usize::try_from(i).unwrap() * 10, 10), access)
            } else {
                lend(&mut w, p, &dst, i * 10, 10, access)
            };
            keys.push((addr, key));
        }
        for (addr, key) in keys.iter().step_by(7) {
            write(&mut w, p, &[round + 1; 10], *addr, *key);
        }
        assert_eq!(dst.read::<10>(70), [round + 1; 10]);
        for (_, key) in keys {
            w.rnics[1].invalidate_mw(p.b.qp, key).unwrap();
        }
    }
    // A QP takes its windows along.
    w.rnics[1].bind_mw(p.b.qp, dst.mr, dst.addr(), 10, access).unwrap();
    w.rnics[1].lend_mw(p.b.qp, dst.mr, dst.addr(), 10, access).unwrap();
    w.rnics[1].destroy_qp(p.b.qp).unwrap();
    w.rnics[1].dereg_mr(dst.mr).expect("its windows went with their QP");
    w.disconnected(p.a);
}

/// Windows that the peer closes, one after the other: more than an 8-bit part of a key
/// tells apart. Each is open for its own bytes alone, and the last is as dead as any.
pub fn windows_closed_by_the_peer<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    if !w.caps(0).windows {
        return skip("no windows: a key is a registration, which its owner ends");
    }
    let dst = w.zeros(p.a, 400);
    let mut key = 0;
    for round in 0..300u64 {
        let sge = Sge { addr: dst.addr() + round, len: 1, lkey: dst.mr.key };
        key = w.bind((p.a, p.b), &dst, sge, Access::REMOTE_WRITE);
        w.recv(p.a, round, &[]);
        let byte = [u8::try_from(round % 250 + 1).unwrap()];
        w.send(p.b, &SendWr { head: &byte, signaled: false, ..write_wr(1, &[], sge.addr, key) });
        let op = SendOp::Send { invalidate: Some(key), solicited: false };
        match w.rnics[1].post_send(p.b.qp, &SendWr { op, ..send_wr(2, &[]) }) {
            Err(RnicError::Unsupported(_)) => {
                return skip("this device cannot invalidate by a SEND");
            }
            posted => posted.unwrap(),
        }
        let now = w.now();
        w.rnics[1].flush(p.b.qp, now);
        let wc = w.received(p.a);
        assert_eq!((wc.status, wc.invalidated), (WcStatus::Success, Some(key)), "{wc:?}");
        assert_eq!(w.completed(p.b).status, WcStatus::Success);
        assert_eq!(dst.read::<1>(usize::try_from(round).unwrap()), byte);
    }
    w.send(p.b, &SendWr { head: b"x", ..write_wr(3, &[], dst.addr() + 299, key) });
    w.disconnected(p.a);
    w.disconnected(p.b);
    assert_eq!(dst.read::<1>(299), [50], "written with a closed key");
}
