//! READs: what they bring, and what else moves meanwhile.

use exs::mem::Access;
use exs::rnic::{Rnic, SendWr, WcOp, WcStatus};

use super::world::{Harness, World, pattern, read_wr, send_wr};

/// READs bring what is at the peer; empty ones need no key.
pub fn reads_bring_data<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let bytes = pattern(3, 150_000);
    let src = w.buf(p.b, bytes.clone(), Access::REMOTE_READ);
    let dst = w.zeros(p.a, 150_000);
    for (id, (at, len)) in [(0, 1), (1, 149_999), (77, 61_440), (0, 0)].into_iter().enumerate() {
        let id = id as u64;
        let sges = [dst.part(at, len)];
        let key = if len == 0 { 0xDEAD } else { src.mr.key };
        w.send(p.a, &read_wr(id, &sges, src.addr() + at as u64, key));
        let wc = w.completed(p.a);
        assert_eq!((wc.wr_id, wc.status, wc.op), (id, WcStatus::Success, WcOp::Read));
        assert_eq!(wc.byte_len, len as u64);
    }
    assert!(dst.bytes() == bytes, "content");
    assert_eq!(src.bytes(), bytes);
    w.assert_alive(p);
}

/// A READ whose answer needs room, and a small SEND of the responder's that fits into the room
/// that is left: both get through, without other traffic.
pub fn a_read_is_answered_beside_a_send<H: Harness>() {
    for initiator in [true, false] {
        let (mut w, p) = World::<H>::pair();
        let (reader, other) = if initiator { (p.a, p.b) } else { (p.b, p.a) };
        let bytes = pattern(8, w.long(1 << 20));
        let src = w.buf(other, bytes.clone(), Access::REMOTE_READ);
        let (dst, message) = (w.zeros(reader, bytes.len()), w.zeros(reader, 64));
        w.recv(reader, 1, &[message.sge()]);
        w.send(reader, &read_wr(3, &[dst.sge()], src.addr(), src.mr.key));
        // Answered as far as there is room.
        for _ in 0..20 {
            let now = w.now();
            w.rnics[other.node].spin(now);
            w.rnics[other.node].progress(now);
        }
        w.send(other, &SendWr { head: &[5; 64], ..send_wr(2, &[]) });
        assert_eq!(w.received(reader).wr_id, 1);
        let wc = w.completed(reader);
        assert_eq!((wc.wr_id, wc.status), (3, WcStatus::Success));
        assert!(dst.bytes() == bytes, "content");
        assert_eq!(w.completed(other).wr_id, 2);
    }
}
