//! Data in all shapes.

use exs::mem::Access;
use exs::rnic::{RecvWr, Rnic, RnicError, STRICT_CREDITS, SendOp, SendWr, WcOp, WcStatus};

use super::skip;
use super::world::{DEPTH, Harness, World, param, pattern, read_wr, send_wr, write_wr};

/// SENDs of every length around the limits of frames, gathered from and scattered
/// to several segments.
pub fn sends_of_many_shapes<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let bytes = pattern(1, 300_000);
    let src = w.buf(p.a, bytes.clone(), Access::LOCAL_READ);
    let dst = w.zeros(p.b, 300_000);
    let lens =
        [0, 1, 2, 3, 4, 5, 63, 64, 1460, 4095, 61_439, 61_440, 61_441, 65_535, 65_536, 299_999];
    for (i, len) in lens.into_iter().enumerate() {
        dst.put(0, &vec![0xEE; 300_000]);
        let (cut, split) = (len / 3, len / 2);
        let id = i as u64;
        let caps = w.caps(p.a.node);
        // A single segment is copied behind a head, and no more than a message of EXS needs.
        let copied = caps.max_sge == 1 && i + len > caps.max_inline;
        let head = if copied { &[] } else { &bytes[len..(len + i).min(300_000)] };
        let into = w.segments(1, &[dst.part(0, split), dst.part(split, 300_000 - split)]);
        w.recv(p.b, id, &into);
        let from = w.segments(0, &[src.part(0, cut), src.part(5, 0), src.part(cut, len - cut)]);
        w.send(p.a, &SendWr { head, ..send_wr(id + 100, &from) });
        let wc = w.received(p.b);
        assert_eq!((wc.wr_id, wc.status, wc.op), (id, WcStatus::Success, WcOp::Recv));
        assert_eq!(wc.byte_len, (head.len() + len) as u64);
        let got = dst.bytes();
        assert_eq!(got[..head.len()], *head, "head of {len}");
        assert_eq!(got[head.len()..head.len() + len], bytes[..len], "payload of {len}");
        assert!(got[head.len() + len..].iter().all(|b| *b == 0xEE), "beyond {len}");
        let wc = w.completed(p.a);
        assert_eq!((wc.wr_id, wc.status, wc.op), (id + 100, WcStatus::Success, WcOp::Send));
        assert_eq!(wc.byte_len, (head.len() + len) as u64);
    }
}

/// The memory of an inline WR may change as soon as it is posted.
pub fn inline_memory_is_free_at_once<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let src = w.buf(p.a, vec![1; 32], Access::LOCAL_READ);
    let dst = w.zeros(p.b, 64);
    w.recv(p.b, 1, &[dst.sge()]);
    let apart = [src.part(0, 8), src.part(16, 8)];
    let sges = if w.caps(0).max_sge > 1 { apart.to_vec() } else { vec![src.part(0, 16)] };
    let wr = SendWr { inline: true, head: b"head", ..send_wr(1, &sges) };
    w.rnics[0].post_send(p.a.qp, &wr).unwrap();
    src.put(0, &[2; 32]);
    w.rnics[0].dereg_mr(src.mr).unwrap();
    let now = w.now();
    w.rnics[0].flush(p.a.qp, now);
    assert_eq!(w.received(p.b).byte_len, 20);
    assert_eq!(
        dst.bytes()[..20],
        *b"head\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01"
    );
    assert_eq!(w.completed(p.a).status, WcStatus::Success);
}

/// An unsignalled WR that succeeds completes silently.
pub fn unsignaled_is_silent<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    for id in 0..5 {
        w.recv(p.b, id, &[]);
        w.send(p.a, &SendWr { signaled: id == 4, ..send_wr(id, &[]) });
    }
    for id in 0..5 {
        assert_eq!(w.received(p.b).wr_id, id);
    }
    assert_eq!(w.completed(p.a).wr_id, 4, "the first that was signalled");
    w.settle();
    assert!(w.drain(p.a).0.is_empty());
}

/// WRITEs are placed, exactly where they were meant to be, before the SEND after
/// them completes a receive.
pub fn writes_land_before_the_send<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let bytes = pattern(2, 200_000);
    let src = w.buf(p.a, bytes.clone(), Access::LOCAL_READ);
    let dst = w.buf(p.b, vec![0; 200_100], Access::LOCAL);
    let from = dst.addr() + 50;
    let key = w.bind((p.b, p.a), &dst, dst.part(50, 200_000), Access::REMOTE_WRITE);
    w.recv(p.b, 9, &[]);
    // Out of order, with an empty one in between, and one with a head.
    for (at, len) in [(100_000, 100_000), (7, 0), (10, 99_990)] {
        let sges = [src.part(at, len)];
        let wr = write_wr(at as u64, &sges, from + at as u64, key);
        w.rnics[0].post_send(p.a.qp, &wr).unwrap();
    }
    let wr = SendWr { head: &bytes[..10], ..write_wr(1, &[], from, key) };
    w.rnics[0].post_send(p.a.qp, &wr).unwrap();
    w.send(p.a, &send_wr(2, &[]));
    assert_eq!(w.received(p.b).wr_id, 9);
    let got = dst.bytes();
    assert!(got[50..200_050] == bytes[..], "content");
    assert!(got[..50].iter().chain(&got[200_050..]).all(|b| *b == 0), "around it");
    for (id, len) in [(100_000, 100_000), (7, 0), (10, 99_990), (1, 10)] {
        let wc = w.completed(p.a);
        assert_eq!((wc.wr_id, wc.byte_len, wc.op), (id, len, WcOp::Write));
    }
    assert_eq!(w.completed(p.a).op, WcOp::Send);
}

/// A READ of no bytes brings none, whatever its target did before: it only says that
/// what was sent before it has arrived.
pub fn an_empty_read_brings_nothing<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let from = w.buf(p.b, vec![7; 5000], Access::LOCAL_READ);
    let to = w.zeros(p.a, 5000);
    let sink = w.zeros(p.a, 5000);
    for round in 0..10u64 {
        // Something for the target to mistake for the answer.
        w.recv(p.a, round, &[to.sge()]);
        w.send(p.b, &send_wr(round, &[from.sge()]));
        assert_eq!(w.received(p.a).wr_id, round);
        assert_eq!(w.completed(p.b).wr_id, round);
        w.send(p.a, &read_wr(round, &[sink.part(0, 0)], from.addr(), from.mr.key));
        let wc = w.completed(p.a);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (round, WcStatus::Success, 0));
        assert_eq!(sink.bytes(), [0; 5000]);
    }
    w.assert_alive(p);
}

/// Many at a time, both ways: READs and SENDs of one side, WRITEs of the other with
/// empty READs behind them, which say that they have arrived.
pub fn empty_reads_among_others<H: Harness>() {
    const LEN: usize = 2000;
    for (x, y) in [(0, 1), (1, 0)] {
        let (mut w, p) = World::<H>::pair();
        if !w.rnics.iter().all(|r| r.caps().small_reads) {
            return skip("READs of no bytes are not answered rightly by such a device");
        }
        // Each side has two WRs for each of them under way.
        let many = 40.min(w.caps(0).max_send_wr / 2);
        let (a, b) = if x < y { (p.a, p.b) } else { (p.b, p.a) };
        let bytes = pattern(1, many * LEN);
        let remote = w.buf(b, bytes.clone(), Access::ALL);
        let sink = w.zeros(a, many * LEN);
        let target = w.zeros(a, many * LEN);
        for i in 0..many {
            w.recv(b, i as u64, &[]);
            let (id, at) = (i as u64 * 2, (i * LEN) as u64);
            let part = [sink.part(i * LEN, LEN)];
            let read = read_wr(id, &part, remote.addr() + at, remote.mr.key);
            w.rnics[a.node].post_send(a.qp, &read).unwrap();
            w.send(a, &send_wr(id + 1, &[]));
            let part = [remote.part(i * LEN, LEN)];
            let write = write_wr(id, &part, target.addr() + at, target.mr.key);
            w.rnics[b.node].post_send(b.qp, &SendWr { signaled: false, ..write }).unwrap();
            w.send(b, &read_wr(id + 1, &[], target.addr() + at, target.mr.key));
        }
        for i in 0..many as u64 {
            assert_eq!(w.received(b).wr_id, i);
            for id in [i * 2, i * 2 + 1] {
                let wc = w.completed(a);
                assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
            }
            let wc = w.completed(b);
            assert_eq!((wc.wr_id, wc.status, wc.byte_len), (i * 2 + 1, WcStatus::Success, 0));
        }
        assert!(sink.bytes() == bytes && target.bytes() == bytes);
    }
}

/// More READs than ORD: they queue, and come back in order.
pub fn reads_beyond_ord_queue<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    // One more WR follows the READs.
    let reads = 100.min(w.caps(0).max_send_wr - 1);
    let bytes = pattern(4, reads * 1000);
    let src = w.buf(p.b, bytes.clone(), Access::REMOTE_READ);
    let dst = w.zeros(p.a, reads * 1000);
    for i in 0..reads {
        let sges = [dst.part(i * 1000, 1000)];
        let wr = read_wr(i as u64, &sges, src.addr() + (i * 1000) as u64, src.mr.key);
        w.rnics[0].post_send(p.a.qp, &wr).unwrap();
    }
    w.recv(p.b, 5, &[]);
    w.send(p.a, &send_wr(reads as u64, &[]));
    for i in 0..=reads as u64 {
        let wc = w.completed(p.a);
        assert_eq!((wc.wr_id, wc.status), (i, WcStatus::Success));
    }
    assert!(dst.bytes() == bytes);
    assert_eq!(w.received(p.b).wr_id, 5);
}

/// A WRITE posted after a READ does not complete before it.
pub fn completions_keep_order<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let (local, remote) = (w.zeros(p.a, 1000), w.zeros(p.b, 1000));
    let sges = [local.sge()];
    for round in 0..20 {
        let wr = read_wr(round * 2, &sges, remote.addr(), remote.mr.key);
        w.rnics[0].post_send(p.a.qp, &wr).unwrap();
        w.send(p.a, &write_wr(round * 2 + 1, &sges, remote.addr(), remote.mr.key));
    }
    for id in 0..40 {
        let wc = w.completed(p.a);
        assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
        assert_eq!(wc.op, if id % 2 == 0 { WcOp::Read } else { WcOp::Write });
    }
}

/// One SEND, one WRITE, one READ of 64 MiB each (or as much as goes in one).
pub fn sixty_four_mib<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let len = w.long(64 << 20);
    let bytes = pattern(5, len);
    let src = w.buf(p.a, bytes.clone(), Access::ALL);
    let dst = w.zeros(p.b, len);
    let into = w.segments(1, &[dst.part(0, len / 3), dst.part(len / 3, len - len / 3)]);
    w.recv(p.b, 1, &into);
    w.send(p.a, &send_wr(2, &[src.sge()]));
    assert_eq!(w.received(p.b).byte_len, len as u64);
    assert!(dst.bytes() == bytes, "SEND");
    assert_eq!(w.completed(p.a).status, WcStatus::Success);
    let back = w.zeros(p.a, len);
    w.send(p.a, &read_wr(3, &[back.sge()], dst.addr(), dst.mr.key));
    assert_eq!(w.completed(p.a).byte_len, len as u64);
    assert!(back.bytes() == bytes, "READ");
    dst.put(0, &vec![0; len]);
    w.recv(p.b, 4, &[]);
    w.send(p.a, &write_wr(5, &[src.sge()], dst.addr(), dst.mr.key));
    w.send(p.a, &send_wr(6, &[]));
    assert_eq!(w.received(p.b).wr_id, 4);
    assert!(dst.bytes() == bytes, "WRITE");
}

/// Fifty thousand messages of four bytes, posted as fast as the queues take them.
pub fn a_storm_of_tiny_messages<H: Harness>() {
    let messages: u32 = 50_000 / u32::try_from(H::SHRINK).unwrap();
    let (mut w, p) = World::<H>::pair();
    let receives = u32::try_from(w.recv_depth.min(200)).unwrap();
    let ring = w.zeros(p.b, 4 * receives as usize);
    let slot = |id: u64| ring.part(usize::try_from(id % u64::from(receives)).unwrap() * 4, 4);
    for id in 0..receives.into() {
        w.recv(p.b, id, &[slot(id)]);
    }
    let depth = u32::try_from(w.caps(0).max_send_wr.min(200)).unwrap();
    let (mut posted, mut done, mut seen) = (0u32, 0u32, 0u32);
    w.until("all messages", |w| {
        let now = w.now();
        // No more than there are receives for: that is the upper floors' credit.
        while posted < messages && posted - seen < receives && posted - done < depth {
            let head = posted.to_le_bytes();
            let wr = SendWr { head: &head, ..send_wr(u64::from(posted), &[]) };
            w.rnics[0].post_send(p.a.qp, &wr).unwrap();
            posted += 1;
        }
        w.rnics[0].flush(p.a.qp, now);
        w.step(std::time::Duration::ZERO);
        for wc in w.drain(p.a).0 {
            assert_eq!((wc.wr_id, wc.status), (u64::from(done), WcStatus::Success));
            done += 1;
        }
        for wc in w.drain(p.b).1 {
            assert_eq!((wc.wr_id, wc.status, wc.byte_len), (u64::from(seen), WcStatus::Success, 4));
            let at = (seen % receives) as usize * 4;
            assert_eq!(ring.read::<4>(at), seen.to_le_bytes());
            seen += 1;
            let id = u64::from(seen + receives) - 1;
            w.recv(p.b, id, &[slot(id)]);
        }
        (done == messages && seen == messages).then_some(())
    });
}

/// Large transfers both ways at once do not block each other.
pub fn both_ways_at_once<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let len = w.long(8 << 20);
    let ends = [(p.a, p.b), (p.b, p.a)];
    let mut bufs = Vec::new();
    for (seed, (from, to)) in (10..).zip(ends) {
        let src = w.buf(from, pattern(seed, len), Access::ALL);
        let dst = w.zeros(to, len);
        w.recv(to, 1, &[dst.sge()]);
        bufs.push((src, dst));
    }
    for ((from, _), (src, _)) in ends.into_iter().zip(&bufs) {
        w.send(from, &send_wr(2, &[src.sge()]));
    }
    for ((from, to), (src, dst)) in ends.into_iter().zip(&bufs) {
        assert_eq!(w.received(to).byte_len, len as u64);
        assert_eq!(w.completed(from).status, WcStatus::Success);
        assert!(src.bytes() == dst.bytes());
    }
}

/// A peer of a QP with an empty SRQ waits, and loses nothing.
pub fn an_empty_srq_makes_the_peer_wait<H: Harness>() {
    let mut w = World::<H>::new(2);
    if !w.caps(1).srq_waits {
        return skip("an empty SRQ ends the connection on this device");
    }
    let pd = w.rnics[1].alloc_pd().unwrap();
    let srq = w.rnics[1].create_srq(pd, 64).unwrap();
    let (a, b) = (w.end(0), w.end_in(1, pd, Some(srq)));
    let p = w.join(a, b, &param(&[]));
    let bytes = pattern(6, 10 * 100_000);
    let src = w.buf(p.a, bytes.clone(), Access::LOCAL_READ);
    let dst = w.zeros(p.b, 10 * 100_000);
    for i in 0..10 {
        let sges = [src.part(i * 100_000, 100_000)];
        w.rnics[0].post_send(p.a.qp, &send_wr(i as u64, &sges)).unwrap();
    }
    let now = w.now();
    w.rnics[0].flush(p.a.qp, now);
    w.settle();
    assert!(w.drain(p.b).1.is_empty());
    assert!(w.cm[0].is_empty() && w.cm[1].is_empty());
    for i in 0..10 {
        w.recv(p.b, i as u64, &[dst.part(i * 100_000, 100_000)]);
        let wc = w.received(p.b);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (i as u64, WcStatus::Success, 100_000));
    }
    assert!(dst.bytes() == bytes);
    for i in 0..10 {
        assert_eq!(w.completed(p.a).wr_id, i);
    }
}

/// Many connections on one SRQ, always short of buffers where peers can wait for
/// them: each gets its share, and completions name the QP that the message came by.
pub fn an_srq_serves_many<H: Harness>() {
    let mut w = World::<H>::new(2);
    let pd = w.rnics[1].alloc_pd().unwrap();
    // Two buffers for ten peers; or one for each message that they may send.
    let waits = w.caps(1).srq_waits;
    let (depth, buffers) = if waits { (4, 2) } else { (256, 200) };
    let srq = w.rnics[1].create_srq(pd, depth).unwrap();
    let ends: Vec<_> = (0..10).map(|_| (w.end(0), w.end_in(1, pd, Some(srq)))).collect();
    let dst = w.zeros(ends[0].1, buffers);
    // Without a peer that waits, each queue pair has its receives before its first message.
    if !waits {
        for id in 0..buffers {
            w.recv(ends[0].1, id as u64, &[dst.part(id, 1)]);
        }
    }
    let pairs: Vec<_> = ends.iter().map(|(a, b)| w.join_silently(*a, *b, &param(&[]))).collect();
    let mut next = vec![0; pairs.len()];
    // Without a peer that waits, each has its credits, and gets one back with each message.
    let at_once = if waits { 20 } else { u8::try_from(STRICT_CREDITS).unwrap() };
    for p in &pairs {
        for n in 0..at_once {
            w.send(p.a, &SendWr { signaled: false, head: &[n], ..send_wr(0, &[]) });
        }
    }
    if waits {
        for id in 0..buffers {
            w.recv(pairs[0].b, id as u64, &[dst.part(id, 1)]);
        }
    }
    for _ in 0..200 {
        let (from, wc) = w.until("a message", |w| {
            pairs.iter().enumerate().find_map(|(i, p)| {
                let mut out = Vec::new();
                w.rnics[1].poll_cq(p.b.rcq, 1, &mut out).unwrap();
                out.pop().map(|wc| (i, wc))
            })
        });
        assert_eq!((wc.qp, wc.status), (pairs[from].b.qp, WcStatus::Success));
        let slot = usize::try_from(wc.wr_id).unwrap();
        assert_eq!(dst.read::<1>(slot), [next[from]]);
        next[from] += 1;
        w.recv(pairs[0].b, wc.wr_id, &[dst.part(slot, 1)]);
        let head = [next[from] - 1 + at_once];
        if head[0] < 20 {
            w.send(pairs[from].a, &SendWr { signaled: false, head: &head, ..send_wr(0, &[]) });
        }
    }
    assert!(next.iter().all(|n| *n == 20), "{next:?}");
    // One too many for the SRQ.
    for id in buffers..depth {
        w.recv(pairs[0].b, id as u64, &[]);
    }
    let full = w.rnics[1].post_srq_recv(srq, &RecvWr { wr_id: 9, sges: &[] });
    assert!(matches!(full, Err(RnicError::QueueFull { depth: d, .. }) if d == depth), "{full:?}");
}

/// A SEND can close the window that it answers for: it is told with the receive,
/// and the key is dead from then on.
pub fn send_with_invalidate<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    if !w.caps(0).windows {
        return skip("no windows: a key is a registration, which its owner ends");
    }
    let dst = w.zeros(p.a, 100);
    let key = w.bind((p.a, p.b), &dst, dst.sge(), Access::REMOTE_WRITE);
    w.recv(p.a, 1, &[]);
    w.send(p.b, &SendWr { head: b"abc", signaled: false, ..write_wr(1, &[], dst.addr(), key) });
    let op = SendOp::Send { invalidate: Some(key), solicited: true };
    let wr = SendWr { op, signaled: false, ..send_wr(2, &[]) };
    match w.rnics[1].post_send(p.b.qp, &wr) {
        Err(RnicError::Unsupported(_)) => return skip("this device cannot invalidate by a SEND"),
        posted => posted.unwrap(),
    }
    let now = w.now();
    w.rnics[1].flush(p.b.qp, now);
    let wc = w.received(p.a);
    assert_eq!((wc.status, wc.invalidated), (WcStatus::Success, Some(key)), "{wc:?}");
    assert_eq!(wc.solicited, w.caps(0).tells_solicited);
    assert_eq!(dst.read::<3>(0), *b"abc");
    assert!(w.rnics[0].invalidate_mw(p.a.qp, key).is_err(), "it is gone");
    w.assert_alive(p);
    w.send(p.b, &SendWr { head: b"xyz", ..write_wr(3, &[], dst.addr(), key) });
    w.disconnected(p.a);
    w.disconnected(p.b);
    assert_eq!(dst.read::<3>(0), *b"abc");
}

/// With CRC on, everything goes through all the same, of all sizes.
pub fn crc_protects_all_of_it<H: Harness>() {
    let mut w = World::<H>::new(2);
    let (a, b) = (w.end(0), w.end(1));
    let p = w.join(a, b, &exs::rnic::ConnParam { crc: true, ..param(&[]) });
    let bytes = pattern(8, 500_000);
    let src = w.buf(p.a, bytes.clone(), Access::ALL);
    let dst = w.zeros(p.b, 500_000);
    for len in [1, 2, 3, 5, 4096, 61_441, 500_000] {
        dst.put(0, &vec![0; 500_000]);
        let into = w.segments(1, &[dst.part(0, 3), dst.part(3, 499_997)]);
        w.recv(p.b, 1, &into);
        let halves = [src.part(0, len / 2), src.part(len / 2, len - len / 2)];
        let from = w.segments(0, &halves);
        w.send(p.a, &send_wr(1, &from));
        assert_eq!(w.received(p.b).byte_len, len as u64);
        assert_eq!(w.completed(p.a).status, WcStatus::Success);
        assert!(dst.bytes()[..len] == bytes[..len], "SEND of {len}");
        dst.put(0, &vec![0; 500_000]);
        w.send(p.b, &read_wr(2, &[dst.part(0, len)], src.addr(), src.mr.key));
        assert_eq!(w.completed(p.b).status, WcStatus::Success);
        assert!(dst.bytes()[..len] == bytes[..len], "READ of {len}");
    }
}

/// Queues take as many WRs as they were made for, and say when they are full.
pub fn queues_are_bounded<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let mut posted = 0;
    let full = loop {
        match w.rnics[1].post_recv(p.b.qp, &RecvWr { wr_id: posted, sges: &[] }) {
            Ok(()) => posted += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(full, RnicError::QueueFull { .. }), "{full:?}");
    assert!((w.recv_depth as u64..2048).contains(&posted), "{posted} receives");
    let mut sent = 0;
    let full = loop {
        match w.rnics[0].post_send(p.a.qp, &send_wr(sent, &[])) {
            Ok(()) => sent += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(full, RnicError::QueueFull { .. }), "{full:?}");
    let depth = DEPTH.min(w.caps(0).max_send_wr) as u64;
    assert!((depth..2048).contains(&sent), "{sent} sends");
    let now = w.now();
    w.rnics[0].flush(p.a.qp, now);
    for id in 0..sent.min(posted) {
        assert_eq!(w.completed(p.a).wr_id, id);
        assert_eq!(w.received(p.b).wr_id, id);
    }
}

/// The solicited bit travels.
pub fn a_solicited_event_is_told<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    if !w.caps(1).tells_solicited {
        return skip("completions of this device do not tell");
    }
    for solicited in [true, false] {
        w.recv(p.b, 1, &[]);
        let op = SendOp::Send { invalidate: None, solicited };
        w.send(p.a, &SendWr { op, ..send_wr(1, &[]) });
        let wc = w.received(p.b);
        assert_eq!((wc.solicited, wc.invalidated, wc.imm), (solicited, None, None));
    }
}
