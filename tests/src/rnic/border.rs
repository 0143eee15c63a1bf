//! A few bytes that lie across the border of two pages, which a device may copy by a way
//! of its own (siw does, and by the wrong one: see `exs/src/rnic/siw_quirk.rs`).

use exs::mem::Access;
use exs::rnic::{Rnic, SendWr, WcOp, WcStatus};

use super::world::{Harness, World, pattern, send_wr, write_wr};

/// Of any processor: the borders of larger pages are borders of these.
const PAGE: usize = 4096;

/// WRITEs and SENDs from there arrive unchanged, from each driver: each chain has
/// a long request before them, so that a kernel goes on in a thread of its own.
pub fn few_bytes_across_a_page_are_sent<H: Harness>() {
    const LONG: usize = 200_000;
    let (mut w, p) = World::<H>::pair();
    let bytes = pattern(9, LONG);
    let src = w.buf(p.a, bytes.clone(), Access::LOCAL_READ);
    let dst = w.zeros(p.b, LONG + 64);
    let sink = w.zeros(p.b, 64);
    // The second one at the earliest, so that there are bytes before it.
    let border = 2 * PAGE - usize::try_from(src.addr()).unwrap() % PAGE;
    for len in [2, 4, 7, 8, 16, 31, 32, 33, 64] {
        for before in [1, 3, len / 2, len - 1] {
            let few = [src.part(border - before, len)];
            dst.put(0, &vec![0; LONG + 64]);
            w.recv(p.b, 1, &[sink.sge()]);
            let (key, to) = (dst.mr.key, dst.addr());
            let long = [src.part(0, LONG)];
            for wr in [write_wr(0, &long, to, key), write_wr(0, &few, to + LONG as u64, key)] {
                let wr = SendWr { signaled: false, ..wr };
                w.rnics[p.a.node].post_send(p.a.qp, &wr).unwrap();
            }
            w.send(p.a, &send_wr(2, &few));
            let wc = w.received(p.b);
            assert_eq!((wc.wr_id, wc.status, wc.byte_len), (1, WcStatus::Success, len as u64));
            let there = &bytes[border - before..][..len];
            assert_eq!(&sink.bytes()[..len], there, "SEND of {len}, {before} before the border");
            assert!(dst.bytes()[..LONG] == bytes, "the long WRITE");
            assert_eq!(&dst.bytes()[LONG..][..len], there, "WRITE of {len}, {before} before it");
            assert!(dst.bytes()[LONG + len..].iter().all(|b| *b == 0), "beyond it");
            let wc = w.completed(p.a);
            assert_eq!((wc.wr_id, wc.status, wc.op), (2, WcStatus::Success, WcOp::Send));
        }
    }
}
