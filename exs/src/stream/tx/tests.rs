//! What the searches do not show: that the right road is taken, and the ends' order.

use super::*;
use crate::stream::{ChunkTarget, MAX_MISSES};

const CFG: StreamConfig = StreamConfig { ring: 100, inline_max: 10, max_chunk: 64 };

fn advert(seq: u64, phase: u32, len: u32, waitall: bool) -> Advert {
    Advert { seq, phase, addr: 0x1000, key: 5, len, waitall, invalidate: false }
}

fn all(tx: &mut StreamTx) -> Vec<TxAction> {
    std::iter::from_fn(|| tx.poll(true)).collect()
}

const fn ok(op: OpId, bytes: u64) -> TxAction {
    TxAction::Done { op, bytes, outcome: Outcome::Ok }
}

const fn cancelled(op: OpId, bytes: u64) -> TxAction {
    TxAction::Done { op, bytes, outcome: Outcome::Cancelled }
}

#[test]
fn direct_when_advertised_in_chunks() {
    let mut tx = StreamTx::new(CFG);
    tx.handle_advert(advert(0, 0, 100, true)).expect("fits");
    tx.post_send(1, 70);
    let to = |addr| ChunkTarget::Direct { addr, key: 5, close: false };
    let first = TxAction::Transfer { op: 1, op_off: 0, len: 64, target: to(0x1000), inline: false };
    // The rest of a large send may be small enough to go inline.
    let second = TxAction::Transfer { op: 1, op_off: 64, len: 6, target: to(0x1040), inline: true };
    assert_eq!(all(&mut tx), [first, second]);
    tx.handle_sent(1, 64);
    assert_eq!(all(&mut tx), []);
    tx.handle_sent(1, 6);
    assert_eq!(all(&mut tx), [ok(1, 70)]);
}

#[test]
fn small_data_need_no_ring_address_large_ones_ask_once() {
    let mut tx = StreamTx::new(CFG);
    tx.post_send(1, 10);
    tx.post_send(2, 50);
    tx.post_send(3, 1);
    let ring = |op, offset, len, inline| TxAction::Transfer {
        op,
        op_off: 0,
        len,
        target: ChunkTarget::Ring { offset },
        inline,
    };
    // The third is small, but nothing overtakes.
    assert_eq!(all(&mut tx), [ring(1, 0, 10, true), TxAction::RequestRing]);
    assert!(!tx.wants_transfer());
    assert_eq!(tx.ring(), None);
    tx.handle_ring(RemoteRing { addr: 9, key: 9 }).expect("asked for");
    assert_eq!(all(&mut tx), [ring(2, 10, 50, false), ring(3, 60, 1, true)]);
    assert!(tx.handle_ring(RemoteRing { addr: 9, key: 9 }).is_err(), "not asked for");
}

#[test]
fn ring_chunks_are_cut_at_its_end() {
    let mut tx = StreamTx::new(StreamConfig { inline_max: 100, ..CFG });
    tx.post_send(1, 60);
    tx.post_send(2, 60);
    assert_eq!(all(&mut tx).len(), 2);
    assert_eq!(tx.ring_used(), 100);
    tx.handle_ack(30).expect("in use");
    let rest = TxAction::Transfer {
        op: 2,
        op_off: 40,
        len: 20,
        target: ChunkTarget::Ring { offset: 0 },
        inline: true,
    };
    assert_eq!(all(&mut tx), [rest]);
    assert_eq!(tx.handle_ack(91), Err(StreamViolation::AckOverrun { freed: 91, used: 90 }));
}

#[test]
fn ends_come_in_order() {
    let mut tx = StreamTx::new(CFG);
    tx.handle_advert(advert(0, 0, 1000, true)).expect("fits");
    tx.post_send(1, 20);
    tx.post_send(2, 0);
    tx.post_send(3, 5);
    tx.shutdown(4);
    let actions = all(&mut tx);
    assert_eq!(actions.len(), 3, "two Transfers and FIN: {actions:?}");
    assert_eq!(actions[2], TxAction::Fin);
    tx.handle_sent(3, 5);
    assert_eq!(all(&mut tx), []);
    tx.handle_sent(1, 20);
    assert_eq!(all(&mut tx), [ok(1, 20), ok(2, 0), ok(3, 5), ok(4, 0)]);
    tx.post_send(5, 1);
    assert_eq!(all(&mut tx), [cancelled(5, 0)]);
    tx.shutdown(6);
    assert_eq!(all(&mut tx), [ok(6, 0)]);
}

#[test]
fn cancels() {
    let mut tx = StreamTx::new(CFG);
    tx.handle_advert(advert(0, 0, 64, true)).expect("fits");
    tx.post_send(1, 90);
    tx.post_send(2, 4);
    assert!(matches!(tx.poll(true), Some(TxAction::Transfer { op: 1, len: 64, .. })));
    tx.give_up();
    assert!(!tx.cancel(7));
    assert!(tx.cancel(2));
    assert_eq!(tx.poll(false), Some(TxAction::RequestRing));
    assert_eq!(tx.poll(false), Some(cancelled(2, 0)));
    assert!(tx.cancel(1));
    assert_eq!(all(&mut tx), []);
    tx.handle_sent(1, 64);
    assert_eq!(all(&mut tx), [cancelled(1, 64)]);
    // All its bytes are out: it cannot fail any more.
    tx.post_send(3, 3);
    assert_eq!(all(&mut tx).len(), 1);
    assert!(tx.cancel(3));
    tx.handle_sent(3, 3);
    assert_eq!(all(&mut tx), [ok(3, 3)]);
    tx.post_send(4, 50);
    tx.shutdown(5);
    assert!(tx.cancel(5));
    assert_eq!(all(&mut tx), [cancelled(5, 0)]);
    tx.post_send(6, 1);
    assert_eq!(tx.abort(), [(4, 0), (6, 0)]);
    assert_eq!(tx.pending(), 0);
}

#[test]
fn the_ring_is_given_back_when_unused() {
    let mut tx = StreamTx::new(CFG);
    tx.idle_ring_release();
    assert_eq!(all(&mut tx), []);
    tx.post_send(1, 50);
    assert_eq!(all(&mut tx), [TxAction::RequestRing]);
    tx.handle_ring(RemoteRing { addr: 9, key: 9 }).expect("asked for");
    tx.idle_ring_release();
    assert_eq!(all(&mut tx).len(), 1, "about to be needed");
    tx.handle_sent(1, 50);
    tx.idle_ring_release();
    assert_eq!(all(&mut tx), [ok(1, 50)], "not empty");
    tx.handle_ack(50).expect("in use");
    tx.idle_ring_release();
    assert_eq!(all(&mut tx), [TxAction::ReleaseRing]);
    tx.post_send(2, 50);
    assert_eq!(all(&mut tx), [TxAction::RequestRing]);
}

/// A chunk of a file lies in the ring and is not announced. A peer that acknowledges it all the
/// same frees bytes that were never in use, as becomes known when the file is shorter.
#[test]
fn an_ack_of_unannounced_bytes_makes_no_room() {
    for (before, had) in [(0, 0), (0, 20), (30, 0), (30, 20)] {
        let mut tx = StreamTx::new(CFG);
        if before > 0 {
            tx.post_send(1, before);
        }
        tx.post_file(2, 50);
        all(&mut tx);
        tx.handle_ring(RemoteRing { addr: 9, key: 9 }).expect("asked for");
        all(&mut tx);
        let before = u32::try_from(before).expect("small");
        assert_eq!(tx.ring_used(), before + 50);
        tx.handle_ack(before + 50).expect("not yet known to be short");
        tx.handle_short(2, false, 50, had);
        assert_eq!(tx.ring_used(), 0, "the ring has no more room than it is long");
        let overrun = StreamViolation::AckOverrun { freed: 1, used: 0 };
        assert_eq!(tx.handle_ack(1), Err(overrun), "what was announced is given back already");
    }
}

/// A ring of nearly 2^32 bytes, all of which was acknowledged before it was announced.
#[test]
fn the_greatest_ring_has_no_more_room_than_it_is_long() {
    let mut tx = StreamTx::new(StreamConfig { ring: u32::MAX, max_chunk: u32::MAX, ..CFG });
    tx.post_file(2, u64::from(u32::MAX));
    all(&mut tx);
    tx.handle_ring(RemoteRing { addr: 9, key: 9 }).expect("asked for");
    all(&mut tx);
    assert_eq!(tx.ring_used(), u32::MAX);
    tx.handle_ack(u32::MAX).expect("it cannot be known yet");
    tx.handle_short(2, false, u32::MAX, 0);
    assert_eq!(tx.ring_used(), 0);
}

#[test]
fn a_ring_at_the_end_of_the_memory_is_refused() {
    let ring = |addr| {
        let mut tx = StreamTx::new(CFG);
        tx.post_file(2, 50);
        all(&mut tx);
        tx.handle_ring(RemoteRing { addr, key: 9 })
    };
    let last = u64::MAX - u64::from(CFG.ring);
    assert!(ring(last).is_ok() && ring(last + 1).is_err() && ring(u64::MAX).is_err());
}

#[test]
fn messages_of_no_honest_receiver_are_refused() {
    let mut tx = StreamTx::new(CFG);
    assert!(tx.handle_advert(advert(0, 1, 5, false)).is_err(), "odd");
    assert!(tx.handle_advert(advert(0, 0, 0, false)).is_err(), "empty");
    assert!(tx.handle_advert(advert(0, 2, 5, false)).is_err(), "to come");
    tx.handle_withdraw().expect("the first");
    assert!(tx.handle_withdraw().is_err(), "the second before the answer");
    assert_eq!(all(&mut tx), [TxAction::Withdrawn]);
    tx.handle_withdraw().expect("after the answer");
}

/// Sends of these lengths after what `begin` does, one after the other: by the long way,
/// or by the short one where that is open.
fn roads(begin: impl Fn(&mut StreamTx), lens: &[u32]) -> [(StreamTx, Vec<Option<bool>>); 2] {
    [false, true].map(|short| {
        let mut tx = StreamTx::new(CFG);
        begin(&mut tx);
        let mut went = Vec::new();
        for (op, len) in (1..).zip(lens) {
            if short && let Some(direct) = tx.try_eager(*len) {
                went.push(Some(direct));
                continue;
            }
            tx.post_send(op, u64::from(*len));
            let mut way = None;
            while let Some(action) = tx.poll(true) {
                if let TxAction::Transfer { op, len, target, .. } = action {
                    way = Some(matches!(target, ChunkTarget::Direct { .. }));
                    tx.handle_sent(op, len);
                }
            }
            went.push(way);
        }
        (tx, went)
    })
}

#[test]
fn the_short_way_leaves_the_same_state() {
    let shown = |lens: &'static [(u64, u32, bool)]| {
        move |tx: &mut StreamTx| {
            for (seq, len, waitall) in lens {
                tx.handle_advert(advert(*seq, 0, *len, *waitall)).expect("fits");
            }
        }
    };
    let lens = [3, 10, 7, 1, 10, 5, 9, 10, 10, 8];
    let cases: [&[(u64, u32, bool)]; 5] = [
        &[],
        &[(0, 10, false), (10, 3, false)],
        &[(0, 20, true)],
        &[(0, 2, true)],
        &[(0, 9, false)],
    ];
    for case in cases {
        for n in 0..=lens.len() {
            let [long, short] = roads(shown(case), &lens[..n]);
            assert_eq!(long, short, "{case:?} {n}");
        }
    }
}

#[test]
fn the_short_way_is_closed_where_something_is_in_the_way() {
    let fresh = || StreamTx::new(CFG);
    assert_eq!(fresh().try_eager(10), Some(false));
    assert_eq!((fresh().try_eager(0), fresh().try_eager(11)), (None, None), "empty, or not inline");
    let mut tx = fresh();
    tx.post_send(1, 50);
    assert_eq!(tx.try_eager(1), None, "a send waits for the ring's address");
    let mut tx = fresh();
    tx.shutdown(1);
    assert_eq!(tx.try_eager(1), None, "the stream has ended");
    let mut tx = fresh();
    tx.handle_withdraw().expect("the first");
    assert_eq!(tx.try_eager(1), None, "an answer goes before it");
    let mut tx = fresh();
    tx.handle_advert(advert(0, 0, 4, true)).expect("fits");
    assert_eq!(tx.try_eager(5), None, "more than the receive takes");
    assert_eq!(tx.try_eager(4), Some(true));
    let mut tx = fresh();
    let passed = (0..11).map_while(|_| tx.try_eager(10)).count();
    assert_eq!(passed, 10, "the ring is full then");
}

/// A send that goes by the ring from an ADVERT's phase on: a direct phase that offers 30 bytes, uses
/// them, and has 20 more to send.
fn run_dry(tx: &mut StreamTx, op: OpId, phase: u32) {
    let seq = tx.phase_and_seq().1;
    tx.handle_advert(advert(seq, phase, 30, true)).expect("fits");
    tx.post_send(op, 50);
    let actions = all(tx);
    let direct = |a: &TxAction| {
        matches!(a, TxAction::Transfer { target: ChunkTarget::Direct { .. }, len: 30, .. })
    };
    assert!(direct(&actions[0]), "{actions:?}");
    tx.handle_sent(op, 30);
}

#[test]
fn a_send_waits_for_the_next_advert_where_enough_was_offered() {
    let mut tx = StreamTx::new(CFG);
    run_dry(&mut tx, 1, 0);
    assert!(tx.is_waiting() && !tx.wants_transfer());
    assert_eq!(all(&mut tx), [], "not even the ring's address is asked for");
    tx.handle_advert(advert(30, 0, 12, true)).expect("fits");
    let more = all(&mut tx);
    // The rest may ride in its announcement: it waits for nothing.
    let [direct, ring] = more[..] else { panic!("{more:?}") };
    assert!(matches!(
        direct,
        TxAction::Transfer { target: ChunkTarget::Direct { .. }, len: 12, .. }
    ));
    let by_ring = ChunkTarget::Ring { offset: 0 };
    assert!(matches!(ring, TxAction::Transfer { target, len: 8, .. } if target == by_ring));
    assert!(!tx.is_waiting());
}

#[test]
fn a_little_that_was_offered_is_not_waited_for() {
    let mut tx = StreamTx::new(CFG);
    tx.handle_advert(advert(0, 0, 24, true)).expect("fits");
    tx.post_send(1, 50);
    assert_eq!(all(&mut tx).len(), 2, "a Transfer, and the ring is asked for");
    assert!(!tx.is_waiting());
}

#[test]
fn within_a_host_two_adverts_are_enough() {
    let mut tx = StreamTx::new(CFG);
    tx.set_near(true);
    for seq in [0, 11] {
        tx.handle_advert(advert(seq, 0, 11, true)).expect("fits");
    }
    tx.post_send(1, 50);
    let direct = |a: &TxAction| {
        matches!(a, TxAction::Transfer { target: ChunkTarget::Direct { .. }, len: 11, .. })
    };
    assert!(all(&mut tx).iter().all(direct));
    assert!(tx.is_waiting());
}

/// A busy sender uses the first ADVERT of a phase before the second is there.
#[test]
fn an_earlier_offer_counts_in_the_next_phase() {
    let mut tx = StreamTx::new(CFG);
    run_dry(&mut tx, 1, 0);
    assert!(tx.is_waiting());
    // 8 bytes are left behind this one: they go by the ring, and the phase is over.
    tx.handle_advert(advert(30, 0, 12, true)).expect("fits");
    assert_eq!(all(&mut tx).len(), 2);
    tx.handle_sent(1, 12);
    tx.handle_sent(1, 8);
    assert_eq!(all(&mut tx), [ok(1, 50)]);
    let phase = tx.phase_and_seq().0;
    assert_eq!(phase % 2, 1);
    tx.handle_ack(tx.ring_used()).expect("in use");
    tx.handle_advert(advert(50, phase + 1, 20, true)).expect("fits");
    tx.post_send(2, 50);
    assert_eq!(all(&mut tx).len(), 1, "what one ADVERT takes");
    assert!(tx.is_waiting());
    tx.give_up();
    assert!(!tx.is_waiting(), "it misses: it is forgotten");
}

#[test]
fn waits_that_miss_become_rare() {
    let mut tx = StreamTx::new(CFG);
    let mut waited = Vec::new();
    for op in 0..16_u32 {
        run_dry(&mut tx, op.into(), 2 * op);
        if tx.is_waiting() {
            waited.push(op);
            tx.give_up();
            assert!(!tx.is_waiting());
        }
        if all(&mut tx) == [TxAction::RequestRing] {
            tx.handle_ring(RemoteRing { addr: 9, key: 9 }).expect("asked for");
            all(&mut tx);
        }
        tx.handle_sent(op.into(), 20);
        assert_eq!(all(&mut tx), [ok(op.into(), 50)]);
        tx.handle_ack(tx.ring_used()).expect("in use");
    }
    assert_eq!(waited, [0, 2, 6, 14], "after 2, 4, 8 phases");
}

#[test]
fn a_withdrawn_offer_is_not_waited_for() {
    let mut tx = StreamTx::new(CFG);
    run_dry(&mut tx, 1, 0);
    assert!(tx.is_waiting());
    tx.handle_withdraw().expect("none is open");
    assert_eq!(all(&mut tx), [TxAction::Withdrawn, TxAction::RequestRing]);
    assert!(!tx.is_waiting());
}

#[test]
fn missed_adverts_are_a_reason_to_wait() {
    let mut tx = StreamTx::new(CFG);
    tx.set_near(true);
    tx.post_send(1, 50);
    tx.post_send(2, 50);
    assert_eq!(all(&mut tx), [TxAction::RequestRing]);
    tx.handle_ring(RemoteRing { addr: 9, key: 9 }).expect("asked for");
    let first = tx.poll(true);
    assert!(matches!(first, Some(TxAction::Transfer { op: 1, .. })), "{first:?}");
    assert!(tx.wants_transfer(), "there is room for more");
    // Two receives were there, but their ADVERTs are late.
    tx.handle_advert(advert(0, 0, 11, true)).expect("it misses");
    assert!(tx.wants_transfer(), "of one alone the next is not to be expected");
    tx.handle_advert(advert(11, 0, 11, true)).expect("it misses");
    assert!(tx.is_waiting() && !tx.wants_transfer());
    let (phase, seq) = tx.phase_and_seq();
    assert_eq!(phase, 1);
    tx.handle_advert(advert(seq, 2, 20, true)).expect("in time");
    let next = tx.poll(true);
    assert!(matches!(next, Some(TxAction::Transfer { target: ChunkTarget::Direct { .. }, .. })));
    assert!(tx.is_waiting(), "and for the one after it as well");
    tx.give_up();
    assert!(tx.wants_transfer());
}

#[test]
fn a_receiver_whose_adverts_always_miss_is_not_waited_for() {
    let mut tx = StreamTx::new(StreamConfig { ring: 1000, ..CFG });
    tx.set_near(true);
    tx.post_send(1, 1000);
    all(&mut tx);
    tx.handle_ring(RemoteRing { addr: 9, key: 9 }).expect("asked for");
    tx.poll(true);
    for n in 1..=MAX_MISSES {
        let (phase, seq) = tx.phase_and_seq();
        let missed = (phase + 1) & !1;
        // Of a phase that ends with bytes on their way: a position that is passed.
        for _ in 0..2 {
            tx.handle_advert(advert(seq - 1, missed, 11, true)).expect("it misses");
        }
        assert_eq!(tx.is_waiting(), n < MAX_MISSES, "{n} misses");
    }
}
