//! Atomic operations: what they bring and change, and what is refused.

use exs::mem::{Access, AtomicOp, Atomics};
use exs::rnic::{Rnic, RnicError, SendOp, SendWr, Sge, WcOp, WcStatus};

use super::skip;
use super::world::{Buf, End, Harness, Pair, World, read_wr, send_wr};

/// A signalled atomic operation on a word of `of`, whose old value goes to `old`.
fn atomic_wr<'a>(id: u64, op: AtomicOp, raddr: u64, rkey: u32, old: &'a [Sge]) -> SendWr<'a> {
    SendWr { op: SendOp::Atomic { raddr, rkey, op }, ..send_wr(id, old) }
}

fn swap(expected: u64, new: u64) -> AtomicOp {
    AtomicOp::CompareSwap { expected, new }
}

fn word(of: &Buf, index: usize) -> u64 {
    u64::from_ne_bytes(of.read::<8>(8 * index))
}

/// Two ends whose RNICs have atomic operations. None: they have not, and say so.
fn pair<H: Harness>() -> Option<(World<H>, Pair)> {
    let (mut w, p) = World::<H>::pair();
    if w.caps(0).atomics > Atomics::None && w.caps(1).atomics > Atomics::None {
        return Some((w, p));
    }
    for (end, peer) in [(p.a, p.b), (p.b, p.a)] {
        if w.caps(end.node).atomics > Atomics::None {
            continue;
        }
        let (dst, old) = (w.zeros(peer, 64), w.zeros(end, 8));
        let sges = [old.sge()];
        let wr = atomic_wr(1, AtomicOp::FetchAdd(1), dst.addr(), dst.mr.key, &sges);
        let posted = w.rnics[end.node].post_send(end.qp, &wr);
        assert!(matches!(posted, Err(RnicError::Unsupported(_))), "{posted:?}");
    }
    w.assert_alive(p);
    skip("no atomic operations");
    None
}

/// Does an operation, and returns the old value.
fn done<H: Harness>(
    w: &mut World<H>,
    end: End,
    (op, raddr, rkey): (AtomicOp, u64, u32),
    old: &Buf,
) -> u64 {
    let sges = [old.part(0, 8)];
    w.send(end, &atomic_wr(5, op, raddr, rkey, &sges));
    let wc = w.completed(end);
    assert_eq!((wc.wr_id, wc.status, wc.op), (5, WcStatus::Success, WcOp::Atomic));
    assert_eq!(wc.byte_len, 8);
    word(old, 0)
}

/// Both operations, in both directions, by the key of a window and by that of a registration.
pub fn operations_bring_the_old_value<H: Harness>() {
    let Some((mut w, p)) = pair::<H>() else { return };
    for (end, peer) in [(p.a, p.b), (p.b, p.a)] {
        let old = w.zeros(end, 8);
        for by_window in [true, false] {
            let access = if by_window { Access::LOCAL } else { Access::REMOTE_ATOMIC };
            let there = w.buf(peer, vec![0; 64], access);
            let key = match by_window {
                true => w.bind((peer, end), &there, there.part(8, 40), Access::REMOTE_ATOMIC),
                false => there.mr.key,
            };
            let at = there.addr() + 16;
            let mut run = |op| done(&mut w, end, (op, at, key), &old);
            assert_eq!(run(AtomicOp::FetchAdd(u64::MAX)), 0);
            assert_eq!(run(AtomicOp::FetchAdd(3)), u64::MAX, "the sum wraps");
            assert_eq!(run(swap(7, 9)), 2, "not what was expected");
            assert_eq!(run(swap(2, 0x0102_0304_0506_0708)), 2);
            assert_eq!(run(AtomicOp::FetchAdd(0)), 0x0102_0304_0506_0708);
            let all: Vec<u64> = (0..8).map(|i| word(&there, i)).collect();
            assert_eq!(all, [0, 0, 0x0102_0304_0506_0708, 0, 0, 0, 0, 0]);
        }
        w.assert_alive(p);
    }
}

/// More at a time than the RNICs have outstanding, among READs, in order, each done once.
pub fn many_at_once_among_reads<H: Harness>() {
    const COUNT: usize = 60;
    let Some((mut w, p)) = pair::<H>() else { return };
    let mut rights = Access::REMOTE_ATOMIC;
    rights.remote_read = true;
    let there = w.buf(p.b, vec![0; 64], rights);
    let (olds, sink) = (w.zeros(p.a, 8 * COUNT), w.zeros(p.a, 64));
    for i in 0..COUNT {
        let (id, sges) = (i as u64, [olds.part(8 * i, 8)]);
        let now = w.now();
        let op = AtomicOp::FetchAdd(1);
        let wr = atomic_wr(2 * id, op, there.addr() + 8, there.mr.key, &sges);
        w.rnics[0].post_send(p.a.qp, &wr).unwrap();
        let sges = [sink.part(0, 32)];
        w.rnics[0]
            .post_send(p.a.qp, &read_wr(2 * id + 1, &sges, there.addr(), there.mr.key))
            .unwrap();
        w.rnics[0].flush(p.a.qp, now);
        // The queue has room for no more.
        if i % 16 == 15 {
            for id in 2 * (i - 15)..2 * (i + 1) {
                let wc = w.completed(p.a);
                assert_eq!((wc.wr_id, wc.status), (id as u64, WcStatus::Success));
            }
        }
    }
    for id in 2 * (COUNT - COUNT % 16)..2 * COUNT {
        assert_eq!(w.completed(p.a).wr_id, id as u64);
    }
    for i in 0..COUNT {
        assert_eq!(word(&olds, i), i as u64);
    }
    assert_eq!(word(&there, 1), COUNT as u64);
    assert_eq!(word(&sink, 1), COUNT as u64, "the last READ is behind the last operation");
}

/// What no device would do is refused when it is posted.
pub fn nonsense_is_refused_at_post<H: Harness>() {
    let Some((mut w, p)) = pair::<H>() else { return };
    let there = w.buf(p.b, vec![0; 64], Access::REMOTE_ATOMIC);
    let old = w.zeros(p.a, 64);
    let (addr, key, op) = (there.addr(), there.mr.key, AtomicOp::FetchAdd(1));
    let (word, short, long) = ([old.part(0, 8)], [old.part(0, 4)], [old.part(0, 16)]);
    let two = [old.part(0, 4), old.part(4, 4)];
    let bad = [
        atomic_wr(1, op, addr + 4, key, &word),
        atomic_wr(1, op, addr, key, &short),
        atomic_wr(1, op, addr, key, &long),
        atomic_wr(1, op, addr, key, &two),
        atomic_wr(1, op, addr, key, &[]),
        SendWr { head: b"12345678", ..atomic_wr(1, op, addr, key, &word) },
        SendWr { inline: true, ..atomic_wr(1, op, addr, key, &word) },
    ];
    for wr in bad {
        let posted = w.rnics[0].post_send(p.a.qp, &wr);
        let refused = matches!(posted, Err(RnicError::Unsupported(_) | RnicError::Limit { .. }));
        assert!(refused, "{wr:?}: {posted:?}");
    }
    let readable = w.buf(p.a, vec![0; 8], Access::LOCAL_READ);
    let sges = [readable.sge()];
    let posted = w.rnics[0].post_send(p.a.qp, &atomic_wr(1, op, addr, key, &sges));
    assert!(matches!(posted, Err(RnicError::Memory(_))), "{posted:?}");
    assert_eq!(there.bytes(), vec![0; 64]);
    w.assert_alive(p);
}

/// Without the right, with another key, and after the end of the window, nothing changes, and the
/// connection ends.
pub fn what_the_peer_does_not_allow_is_refused<H: Harness>() {
    are_refused::<H>(&[0, 2, 3]);
}

/// The same for a word outside of the window.
pub fn a_word_outside_of_the_window_is_refused<H: Harness>() {
    are_refused::<H>(&[1]);
}

/// What a case does wrong: 0 lacks the right, 1 goes beyond the window, 2 has another key, 3 comes
/// after its end.
fn are_refused<H: Harness>(cases: &[u8]) {
    for &case in cases {
        let Some((mut w, p)) = pair::<H>() else { return };
        let there = w.buf(p.b, vec![7; 64], Access::LOCAL);
        let old = w.zeros(p.a, 8);
        let access = if case == 0 { Access::ALL } else { Access::REMOTE_ATOMIC };
        let key = w.bind((p.b, p.a), &there, there.part(8, 16), access);
        let (mut addr, mut rkey) = (there.addr() + 8, key);
        match case {
            1 => addr += 16,
            2 => rkey ^= 0x40,
            3 => {
                let rkey = key;
                w.rnics[1].invalidate_mw(p.b.qp, rkey).unwrap();
            }
            _ => {}
        }
        let sges = [old.sge()];
        w.send(p.a, &atomic_wr(9, AtomicOp::FetchAdd(1), addr, rkey, &sges));
        let wc = w.completed(p.a);
        assert_eq!(wc.wr_id, 9);
        assert!(
            matches!(wc.status, WcStatus::RemoteAccess | WcStatus::RemoteInvalidRequest)
                || !w.tells_reasons() && wc.status != WcStatus::Success,
            "case {case}: {wc:?}"
        );
        w.disconnected(p.a);
        w.disconnected(p.b);
        assert_eq!(there.bytes(), vec![7; 64], "case {case}");
        assert_eq!(old.bytes(), vec![0; 8], "case {case}: a value was told");
    }
}

/// An end of the connection ends what is outstanding, once each, and never says that something
/// was done which was not.
pub fn an_end_flushes_them<H: Harness>() {
    let Some((mut w, p)) = pair::<H>() else { return };
    let there = w.buf(p.b, vec![0; 8], Access::REMOTE_ATOMIC);
    let olds = w.zeros(p.a, 8 * 20);
    for i in 0..20 {
        let sges = [olds.part(8 * i, 8)];
        let wr = atomic_wr(i as u64, AtomicOp::FetchAdd(1), there.addr(), there.mr.key, &sges);
        w.rnics[0].post_send(p.a.qp, &wr).unwrap();
    }
    let now = w.now();
    w.rnics[0].flush(p.a.qp, now);
    w.step(std::time::Duration::ZERO);
    let now = w.now();
    w.rnics[1].disconnect(p.b.qp, exs::rnic::Disconnect::Abort, now).unwrap();
    w.disconnected(p.a);
    let (wcs, _) = w.drain(p.a);
    let ids: Vec<u64> = wcs.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, (0..20).collect::<Vec<u64>>(), "each once, in order");
    let good = wcs.iter().take_while(|wc| wc.status == WcStatus::Success).count();
    assert!(wcs[good..].iter().all(|wc| wc.status != WcStatus::Success), "{wcs:?}");
    for i in 0..good {
        assert_eq!(word(&olds, i), i as u64);
    }
    let sum = word(&there, 0);
    assert!((good as u64..=20).contains(&sum), "{sum} additions, {good} reported");
}
