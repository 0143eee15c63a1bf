//! Extra receives of busy queue pairs, where queue pairs have receives of their own.

use exs::rnic::{ExtraReceives, RecvWr, Rnic, RnicError, STRICT_CREDITS, SendWr, Srq, WcStatus};

use super::tools::{Buf, param, send_wr};
use super::{Harness, Pair, World, skip};

/// The `wr_id`s of extra receives begin here.
const EXTRA: u64 = 10_000;

fn usual() -> usize {
    STRICT_CREDITS.into()
}

/// Pairs with receives for their acceptors, and a queue of `extra` further receives.
fn pairs<H: Harness>(w: &mut World<H>, count: usize, extra: usize) -> (Vec<Pair>, Buf, Srq) {
    let pd = w.rnics[1].alloc_pd().unwrap();
    let buffers = 2 * usual() * count;
    let srq = w.rnics[1].create_srq(pd, buffers).unwrap();
    let more = w.rnics[1].create_srq(pd, extra).unwrap();
    let ends: Vec<_> = (0..count).map(|_| (w.end(0), w.end_in(1, pd, Some(srq)))).collect();
    let dst = w.zeros(ends[0].1, 64);
    for id in 0..buffers {
        w.recv(ends[0].1, id as u64, &[dst.sge()]);
    }
    for id in 0..extra {
        post_extra(w, more, EXTRA + id as u64, &dst);
    }
    let pairs = ends.into_iter().map(|(a, b)| {
        let pair = w.join_silently(a, b, &param(&[]));
        // The initiator speaks first on iWARP.
        send(w, pair, 1);
        let used = take(w, pair, 1);
        w.recv(pair.b, used[0], &[dst.sge()]);
        pair
    });
    let pairs = pairs.collect();
    (pairs, dst, more)
}

fn post_extra<H: Harness>(w: &mut World<H>, srq: Srq, wr_id: u64, dst: &Buf) {
    let sges = [dst.sge()];
    w.rnics[1].post_srq_recv(srq, &RecvWr { wr_id, sges: &sges }).unwrap();
}

/// Sends messages, and waits until they have left.
fn send<H: Harness>(w: &mut World<H>, pair: Pair, count: u16) {
    for id in 0..count {
        w.send(pair.a, &SendWr { head: b"message", ..send_wr(id.into(), &[]) });
        assert_eq!(w.completed(pair.a).status, WcStatus::Success);
    }
}

/// Takes messages; gives the `wr_id`s of their receives.
fn take<H: Harness>(w: &mut World<H>, pair: Pair, count: u16) -> Vec<u64> {
    let wcs = (0..count).map(|_| w.received(pair.b));
    wcs.map(|wc| {
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        wc.wr_id
    })
    .collect()
}

/// A queue pair gets extra receives, takes that many messages at once, and gives them back.
pub fn they_come_and_go<H: Harness>() {
    let mut w = World::<H>::new(2);
    let most = w.caps(1).max_receives;
    if most == 0 {
        return skip("its queue pairs share one queue of receives");
    }
    let room = most - STRICT_CREDITS;
    let free = usize::from(room) + 16;
    let (pairs, dst, more) = pairs(&mut w, 1, free);
    let p = pairs[0];
    assert_eq!(w.rnics[1].drop_receives(p.b.qp), ExtraReceives::default(), "none at first");
    assert_eq!(w.rnics[1].add_receives(p.b.qp, more, 1000), room);
    assert_eq!(w.rnics[1].add_receives(p.b.qp, more, 1), 0, "its queue is full");
    let busy = w.rnics[1].destroy_srq(more);
    assert!(matches!(busy, Err(RnicError::Busy { .. })), "{busy:?}");

    // As many messages as it has receives, while none is posted back.
    send(&mut w, p, most);
    let mut used = take(&mut w, p, most);
    let extra = used.iter().filter(|id| **id >= EXTRA).count();
    assert_eq!(extra, usize::from(room), "{used:?}");

    // Those that it got in their places: as many as there were.
    let left = w.rnics[1].drop_receives(p.b.qp);
    assert_eq!(usize::from(left.left), 16, "{left:?}");
    assert!(left.messages >= 16 && left.messages <= 16 + STRICT_CREDITS, "{left:?}");
    for id in used.drain(..) {
        if id < EXTRA { w.recv(p.b, id, &[dst.sge()]) } else { post_extra(&mut w, more, id, &dst) }
    }
    send(&mut w, p, left.messages);
    used = take(&mut w, p, left.messages);
    assert_eq!(used.iter().filter(|id| **id >= EXTRA).count(), 16, "{used:?}");
    assert_eq!(w.rnics[1].drop_receives(p.b.qp), ExtraReceives::default());
    for id in used.drain(..) {
        if id < EXTRA { w.recv(p.b, id, &[dst.sge()]) } else { post_extra(&mut w, more, id, &dst) }
    }

    // All extra receives can be taken back, and the usual ones still serve.
    let (mut back, middle) = (Vec::new(), EXTRA + 20);
    assert_eq!(w.rnics[1].reclaim_receives(more, middle, &mut back), 20);
    assert!(back.len() == free - 20 && back.iter().all(|id| *id >= middle), "{back:?}");
    assert_eq!(w.rnics[1].reclaim_receives(more, 0, &mut back), 0);
    back.sort_unstable();
    assert!(back.iter().copied().eq(EXTRA..EXTRA + free as u64), "{back:?}");
    send(&mut w, p, STRICT_CREDITS);
    assert!(take(&mut w, p, STRICT_CREDITS).iter().all(|id| *id < EXTRA));
    w.rnics[1].destroy_srq(more).unwrap();
}

/// Many queue pairs want extra receives. Each gets only those whose completions have room: all
/// their messages come at once, and no completion queue overflows.
pub fn they_fit_their_completion_queue<H: Harness>() {
    let mut w = World::<H>::new(2);
    let most = w.caps(1).max_receives;
    if most == 0 {
        return skip("its queue pairs share one queue of receives");
    }
    let room = most - STRICT_CREDITS;
    let (pairs, _, more) = pairs(&mut w, 40, 2 * 40 * usize::from(room));
    let added: Vec<u16> =
        pairs.iter().map(|p| w.rnics[1].add_receives(p.b.qp, more, room)).collect();
    assert!(added.contains(&room), "none got more: {added:?}");
    for (p, added) in pairs.iter().zip(&added) {
        for id in 0..STRICT_CREDITS + added {
            w.send(p.a, &SendWr { head: b"message", ..send_wr(id.into(), &[]) });
            let now = w.now();
            // Only the sender's device: the messages stay in the receiver's queue.
            w.rnics[0].progress(now);
        }
    }
    for (p, added) in pairs.iter().zip(&added) {
        take(&mut w, *p, STRICT_CREDITS + added);
    }
    // A queue pair that ends leaves its room, and its receives, to others.
    for p in &pairs[1..] {
        w.rnics[1].destroy_qp(p.b.qp).unwrap();
    }
    w.rnics[1].drop_receives(pairs[0].b.qp);
    let mut back = Vec::new();
    w.rnics[1].reclaim_receives(more, 0, &mut back);
    let others: u16 = added[1..].iter().sum();
    assert!(back.len() >= usize::from(others), "{} of {added:?}", back.len());
}
