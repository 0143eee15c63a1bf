//! WRITE WITH IMMEDIATE, where there is one (InfiniBand, RoCE).

use exs::mem::Access;
use exs::rnic::{Rnic, SendOp, SendWr, WcOp, WcStatus};

use super::skip;
use super::world::{Buf, Harness, Pair, World, param, pattern, send_wr};

/// A connected pair, if its initiator can do this.
fn pair<H: Harness>() -> Option<(World<H>, Pair)> {
    let (w, p) = World::<H>::pair();
    if w.caps(0).write_imm {
        return Some((w, p));
    }
    skip("no WRITE WITH IMMEDIATE");
    None
}

fn to(dst: &Buf, imm: u32) -> SendOp {
    SendOp::WriteImm { raddr: dst.addr(), rkey: dst.mr.key, imm }
}

/// The immediate comes with a receive's completion, whole, after the bytes; each
/// consumes one receive, and none of the receive's memory.
pub fn an_immediate_is_delivered<H: Harness>() {
    let Some((mut w, p)) = pair::<H>() else { return };
    for (i, len) in [1usize, 4096, 4097, 300_000].into_iter().enumerate() {
        let id = i as u64;
        let bytes = pattern(id, len);
        let src = w.buf(p.a, bytes.clone(), Access::LOCAL_READ);
        let dst = w.zeros(p.b, len);
        let unused = w.zeros(p.b, 16);
        w.recv(p.b, id, &[unused.sge()]);
        w.recv(p.b, id + 100, &[]);
        let imm = 0xA1B2_C3D4 ^ u32::try_from(i).unwrap();
        let sges = [src.sge()];
        w.send(p.a, &SendWr { op: to(&dst, imm), ..send_wr(1, &sges) });
        let wc = w.received(p.b);
        assert_eq!((wc.wr_id, wc.status, wc.op), (id, WcStatus::Success, WcOp::RecvWriteImm));
        assert_eq!((wc.imm, wc.byte_len), (Some(imm), len as u64));
        assert!(dst.bytes() == bytes, "the bytes are there when the immediate is");
        assert_eq!(unused.bytes(), [0; 16]);
        let wc = w.completed(p.a);
        assert_eq!((wc.wr_id, wc.status, wc.op), (1, WcStatus::Success, WcOp::Write));
        // A plain SEND behind it meets the next receive.
        w.send(p.a, &send_wr(2, &[]));
        let wc = w.received(p.b);
        assert_eq!((wc.wr_id, wc.op, wc.imm), (id + 100, WcOp::Recv, None));
        assert_eq!(w.completed(p.a).op, WcOp::Send);
    }
}

/// No bytes, no key: the immediate alone.
pub fn an_immediate_without_bytes<H: Harness>() {
    let Some((mut w, p)) = pair::<H>() else { return };
    for imm in [0, 1, u32::MAX] {
        w.recv(p.b, 5, &[]);
        let op = SendOp::WriteImm { raddr: 0, rkey: 0, imm };
        w.send(p.a, &SendWr { op, ..send_wr(1, &[]) });
        let wc = w.received(p.b);
        assert_eq!((wc.wr_id, wc.status, wc.op), (5, WcStatus::Success, WcOp::RecvWriteImm));
        assert_eq!((wc.imm, wc.byte_len), (Some(imm), 0));
        assert_eq!(w.completed(p.a).status, WcStatus::Success);
    }
    w.assert_alive(p);
}

/// It takes its receive from an SRQ, waits for one if there is none, and keeps its
/// place among SENDs.
pub fn an_immediate_to_an_srq<H: Harness>() {
    let mut w = World::<H>::new(2);
    if !w.caps(0).write_imm {
        return skip("no WRITE WITH IMMEDIATE");
    }
    let pd = w.rnics[1].alloc_pd().unwrap();
    let srq = w.rnics[1].create_srq(pd, 16).unwrap();
    let (a, b) = (w.end(0), w.end_in(1, pd, Some(srq)));
    let p = w.join(a, b, &param(&[]));
    let dst = w.zeros(p.b, 8);
    for n in 0..4u8 {
        let op = to(&dst, u32::from(n));
        w.rnics[0].post_send(p.a.qp, &SendWr { op, head: &[n + 1; 8], ..send_wr(1, &[]) }).unwrap();
        w.rnics[0].post_send(p.a.qp, &SendWr { head: b"x", ..send_wr(2, &[]) }).unwrap();
    }
    let now = w.now();
    w.rnics[0].flush(p.a.qp, now);
    if w.caps(1).srq_waits {
        w.settle();
        assert!(w.drain(p.b).1.is_empty());
        assert!(w.cm.iter().all(|q| q.is_empty()), "{:?}", w.cm);
    }
    let into = w.zeros(p.b, 1);
    for n in 0..4u8 {
        for imm in [Some(u32::from(n)), None] {
            w.recv(p.b, u64::from(n), &[into.sge()]);
            let wc = w.received(p.b);
            assert_eq!((wc.qp, wc.wr_id, wc.status), (p.b.qp, u64::from(n), WcStatus::Success));
            assert_eq!(wc.imm, imm);
        }
    }
    assert_eq!(dst.bytes(), [4; 8]);
}

/// A key for reading does not do, nor do bounds that are not its own: the end of the
/// connection, no byte placed and no immediate delivered.
pub fn an_immediate_without_rights<H: Harness>() {
    for (access, beyond) in [(Access::REMOTE_READ, 0), (Access::LOCAL, 0), (Access::ALL, 1)] {
        let Some((mut w, p)) = pair::<H>() else { return };
        let dst = w.buf(p.b, vec![7; 64], access);
        w.recv(p.b, 1, &[]);
        let op = SendOp::WriteImm { raddr: dst.addr() + 57 + beyond, rkey: dst.mr.key, imm: 9 };
        w.send(p.a, &SendWr { op, head: b"1234567", ..send_wr(1, &[]) });
        assert_ne!(w.completed(p.a).status, WcStatus::Success);
        w.disconnected(p.a);
        w.disconnected(p.b);
        let (_, recvs) = w.drain(p.b);
        assert!(recvs.iter().all(|wc| wc.status != WcStatus::Success), "{recvs:?}");
        assert_eq!(dst.bytes(), [7; 64]);
    }
}
