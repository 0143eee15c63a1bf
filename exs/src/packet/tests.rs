//! Single rules, one by one; the interleavings are in `model`.

use super::*;
use crate::ids::Outcome;
use proptest::prelude::*;

mod eager;

const CONFIG: PacketConfig = PacketConfig { eager_max: 100, stash: 1000, max_msg: 5000 };

fn advert(msg: u64) -> PacketAdvert {
    PacketAdvert { msg, generation: 0, addr: 0x1000 + msg, key: 7, len: 4000 }
}

fn all(rx: &mut PacketRx) -> Vec<PacketRxAction> {
    std::iter::from_fn(|| rx.poll()).collect()
}

const fn done(op: u64, bytes: u64, total: u64) -> PacketRxAction {
    PacketRxAction::Done { op, bytes, total, eof: false, outcome: Outcome::Ok }
}

#[test]
fn eager_lengths() {
    let config = |eager_max, stash, max_msg| PacketConfig { eager_max, stash, max_msg };
    assert_eq!(CONFIG.as_eager(100), Some(100));
    assert_eq!(CONFIG.as_eager(101), None);
    assert_eq!(CONFIG.as_eager(1 << 32), None);
    // Half of the stash, less the overhead; no more than a message may be.
    assert_eq!(config(100, 328, 5000).as_eager(100), Some(100));
    assert_eq!(config(100, 327, 5000).as_eager(100), None);
    assert_eq!(config(100, 128, 5000).as_eager(0), Some(0));
    assert_eq!(config(100, 127, 5000).as_eager(0), None);
    assert_eq!(config(100, 1000, 9).as_eager(10), None);
    assert_eq!(config(u32::MAX, u32::MAX, u64::MAX).as_eager(u64::from(u32::MAX)), None);
}

#[test]
fn small_messages_go_eagerly_even_with_an_advert() {
    let mut tx = PacketTx::new(CONFIG);
    tx.handle_advert(advert(0)).unwrap();
    tx.handle_advert(advert(1)).unwrap();
    tx.post_send(1, 100).unwrap();
    tx.post_send(2, 4500).unwrap();
    assert_eq!(tx.poll(false), None);
    assert!(tx.wants_transfer());
    assert_eq!(tx.poll(true), Some(PacketTxAction::Eager { op: 1, len: 100 }));
    // ADVERT 0 went with message 0; a message longer than its ADVERT is cut off.
    let write = PacketTxAction::Write { op: 2, addr: 0x1001, key: 7, len: 4000, total: 4500 };
    assert_eq!(tx.poll(true), Some(write));
    assert!(!tx.wants_transfer() && !tx.is_idle());
    tx.handle_sent(1);
    tx.handle_sent(2);
    for (op, bytes) in [(1, 100), (2, 4500)] {
        let outcome = Outcome::Ok;
        assert_eq!(tx.poll(false), Some(PacketTxAction::Done { op, bytes, outcome }));
    }
    assert!(tx.is_idle());
}

#[test]
fn a_small_message_without_room_waits_for_the_ack_or_takes_the_advert() {
    let config = PacketConfig { eager_max: 100, stash: 328, max_msg: 5000 };
    let mut tx = PacketTx::new(config);
    for op in 0..4 {
        tx.post_send(op, 100).unwrap();
    }
    assert_eq!(tx.poll(true), Some(PacketTxAction::Eager { op: 0, len: 100 }));
    assert_eq!(tx.poll(true), Some(PacketTxAction::Eager { op: 1, len: 100 }));
    assert!(!tx.wants_transfer());
    tx.handle_ack(164).unwrap();
    assert_eq!(tx.poll(true), Some(PacketTxAction::Eager { op: 2, len: 100 }));
    assert_eq!(tx.poll(true), None);
    tx.handle_advert(advert(3)).unwrap();
    assert!(matches!(tx.poll(true), Some(PacketTxAction::Write { op: 3, len: 100, .. })));
    let overrun = PacketViolation::AckOverrun { freed: 329, used: 328 };
    assert_eq!(tx.handle_ack(329), Err(overrun));
}

#[test]
fn rts_is_sent_once_and_again_for_another_message() {
    let mut tx = PacketTx::new(CONFIG);
    tx.post_send(1, 4000).unwrap();
    tx.post_send(2, 3000).unwrap();
    assert_eq!(tx.poll(true), Some(PacketTxAction::Rts { msg: 0, total: 4000 }));
    assert!(!tx.wants_transfer());
    assert!(tx.cancel(1) && !tx.cancel(1));
    let cancelled = PacketTxAction::Done { op: 1, bytes: 0, outcome: Outcome::Cancelled };
    assert_eq!(tx.poll(true), Some(cancelled));
    assert_eq!(tx.poll(true), Some(PacketTxAction::Rts { msg: 0, total: 3000 }));
    tx.handle_advert(advert(0)).unwrap();
    assert!(matches!(tx.poll(true), Some(PacketTxAction::Write { op: 2, .. })));
    assert!(tx.cancel(2), "it is on its way, and says so by its end");
    assert_eq!(tx.poll(true), None);
}

#[test]
fn shutdown_comes_last() {
    let mut tx = PacketTx::new(CONFIG);
    assert_eq!(tx.post_send(0, 5001), Err(PacketPostError::TooLong { len: 5001, limit: 5000 }));
    tx.post_send(1, 10).unwrap();
    tx.shutdown(2);
    assert_eq!(tx.post_send(3, 10), Err(PacketPostError::ShutDown));
    assert!(tx.cancel(2) && !tx.is_shut_down());
    tx.post_send(3, 10).unwrap();
    tx.shutdown(4);
    tx.shutdown(5);
    let mut actions: Vec<PacketTxAction> = std::iter::from_fn(|| tx.poll(true)).collect();
    tx.shutdown(6);
    actions.extend(std::iter::from_fn(|| tx.poll(false)));
    let end = |op, outcome| PacketTxAction::Done { op, bytes: 0, outcome };
    assert_eq!(
        actions,
        [
            end(2, Outcome::Cancelled),
            PacketTxAction::Eager { op: 1, len: 10 },
            PacketTxAction::Eager { op: 3, len: 10 },
            PacketTxAction::Fin,
            end(4, Outcome::Ok),
            end(5, Outcome::Ok),
            end(6, Outcome::Ok),
        ]
    );
    // ADVERTs that were on their way are for no one, but no fault either.
    assert_eq!(tx.handle_advert(advert(9)), Ok(()));
    assert_eq!(tx.post_send(7, 1), Err(PacketPostError::ShutDown));
}

#[test]
fn adverts_are_bounded_and_stale_ones_dropped() {
    let mut tx = PacketTx::new(CONFIG);
    for msg in (0..32).rev() {
        tx.handle_advert(advert(msg)).unwrap();
    }
    assert!(matches!(tx.handle_advert(advert(5)), Err(PacketViolation::Unexpected(_))));
    assert!(matches!(tx.handle_advert(advert(32)), Err(PacketViolation::Unexpected(_))));
    assert_eq!(tx.adverts.len(), ADVERT_WINDOW);
    tx.post_send(1, 4000).unwrap();
    assert!(matches!(tx.poll(true), Some(PacketTxAction::Write { addr: 0x1000, .. })));
    assert_eq!(tx.handle_advert(advert(0)), Ok(()));
    assert_eq!(tx.handle_advert(advert(32)), Ok(()));
    assert_eq!(tx.adverts.len(), ADVERT_WINDOW);

    let ahead = PacketAdvert { generation: 1, ..advert(1) };
    assert!(tx.handle_advert(ahead).is_err());
    assert!(tx.handle_withdraw(1).is_err());
    tx.handle_withdraw(0).unwrap();
    assert!(tx.handle_withdraw(1).is_err(), "the first has no answer yet");
    let answer = PacketTxAction::Withdrawn { next_msg: 1, generation: 0 };
    assert_eq!(tx.poll(false), Some(answer));
    assert_eq!(tx.handle_advert(advert(1)), Ok(()));
    assert!(tx.adverts.is_empty());
    assert_eq!(tx.handle_advert(ahead), Ok(()));
    assert_eq!(tx.adverts.len(), 1);
}

#[test]
fn receives_are_numbered_and_shown_ahead() {
    let mut rx = PacketRx::new(CONFIG);
    rx.post_recv(1, 100, true, false);
    rx.post_recv(2, 9000, true, false);
    rx.post_recv(3, 4000, false, false);
    rx.post_recv(4, 101, true, false);
    let show = |op, msg, len| PacketRxAction::Advertise { op, msg, generation: 0, len };
    assert_eq!(all(&mut rx), [show(2, 1, 5000), show(4, 3, 101)]);
    // A large message for the small receive, which is cut off.
    rx.handle_rts(0, 4000).unwrap();
    assert_eq!(all(&mut rx), [show(1, 0, 100)]);
    rx.handle_data(100, 4000).unwrap();
    assert_eq!(all(&mut rx), [PacketRxAction::Retract { op: 1 }, done(1, 100, 4000)]);
    rx.handle_eager(50).unwrap();
    let copy = PacketRxAction::CopyInline { op: 2, len: 50 };
    assert_eq!(all(&mut rx), [PacketRxAction::Retract { op: 2 }, copy, done(2, 50, 50)]);
    rx.handle_rts(2, 200).unwrap();
    assert_eq!(all(&mut rx), [show(3, 2, 4000)]);
}

#[test]
fn a_limited_number_is_shown_and_none_behind_a_peek() {
    let mut rx = PacketRx::new(CONFIG);
    for op in 0..40 {
        rx.post_recv(op, 4000, true, op == 35);
    }
    assert_eq!(all(&mut rx).len(), ADVERT_WINDOW);
    for n in 0..8 {
        rx.handle_data(10, 10).unwrap();
        // Retract, Done, and the next one is shown, up to the peek.
        assert_eq!(all(&mut rx).len(), if n < 3 { 3 } else { 2 });
    }
    assert!(rx.cancel(35));
    let actions = all(&mut rx);
    assert_eq!(actions.len(), 5, "{actions:?}");
    assert!(matches!(actions[1], PacketRxAction::Advertise { op: 36, msg: 35, .. }));
}

#[test]
fn after_many_small_messages_buffers_are_shown_on_demand_only() {
    let mut rx = PacketRx::new(CONFIG);
    for _ in 0..EAGER_RUN {
        rx.handle_eager(1).unwrap();
        rx.post_recv(1, 4000, true, false);
    }
    all(&mut rx);
    rx.post_recv(2, 4000, true, false);
    rx.post_recv(3, 4000, true, false);
    assert_eq!(all(&mut rx), []);
    rx.handle_rts(4, 4000).unwrap();
    assert_eq!(all(&mut rx).len(), 2);
}

#[test]
fn stash_peek_and_ack() {
    let mut rx = PacketRx::new(CONFIG);
    assert!(!rx.readable());
    rx.handle_eager(100).unwrap();
    rx.handle_eager(0).unwrap();
    assert!(rx.readable());
    rx.post_recv(1, 30, true, true);
    rx.post_recv(2, 40, true, false);
    rx.post_recv(3, 40, true, false);
    assert!(!rx.readable());
    let unstash = |op, len, stashed, keep| PacketRxAction::Unstash { op, len, stashed, keep };
    assert_eq!(
        all(&mut rx),
        [
            PacketRxAction::Stash { len: 100 },
            PacketRxAction::Stash { len: 0 },
            unstash(1, 30, 100, true),
            done(1, 30, 100),
            unstash(2, 40, 100, false),
            done(2, 40, 100),
            unstash(3, 0, 0, false),
            done(3, 0, 0),
        ]
    );
    // 164 + 64 bytes are free: less than half, so no ACK of its own yet.
    for _ in 0..2 {
        rx.post_recv(4, 40, true, false);
        rx.handle_eager(100).unwrap();
    }
    assert_eq!(all(&mut rx).iter().filter(|a| **a == PacketRxAction::Ack).count(), 1);
    assert_eq!((rx.take_freed(), rx.take_freed()), (3 * 164 + 64, 0));
}

#[test]
fn peek_learns_the_length_of_a_large_message() {
    let mut rx = PacketRx::new(CONFIG);
    rx.post_recv(1, 30, true, true);
    rx.handle_rts(0, 4000).unwrap();
    assert!(rx.readable());
    assert_eq!(all(&mut rx), [done(1, 0, 4000)]);
    rx.post_recv(2, 30, true, true);
    rx.post_recv(3, 4000, false, false);
    assert!(!rx.readable());
    let show = PacketRxAction::Advertise { op: 3, msg: 0, generation: 0, len: 4000 };
    assert_eq!(all(&mut rx), [done(2, 0, 4000), show]);
}

#[test]
fn cancel_withdraws_only_what_may_be_known() {
    let mut rx = PacketRx::new(CONFIG);
    rx.post_recv(1, 4000, true, false);
    rx.post_recv(2, 10, true, false);
    all(&mut rx);
    let end = |op, eof, outcome| PacketRxAction::Done { op, bytes: 0, total: 0, eof, outcome };
    assert!(rx.cancel(2) && !rx.cancel(2));
    assert_eq!(all(&mut rx), [end(2, false, Outcome::Cancelled)]);
    assert!(rx.cancel(1) && rx.cancel(1));
    rx.post_recv(3, 4000, true, false);
    assert_eq!(all(&mut rx), [PacketRxAction::Withdraw { generation: 0 }]);
    assert!(rx.clone().handle_withdrawn(1, 0).is_err());
    assert!(rx.clone().handle_withdrawn(0, 1).is_err());
    rx.handle_withdrawn(0, 0).unwrap();
    assert_eq!(
        all(&mut rx),
        [
            PacketRxAction::Retract { op: 1 },
            end(1, false, Outcome::Cancelled),
            PacketRxAction::Advertise { op: 3, msg: 0, generation: 1, len: 4000 },
        ]
    );
    assert!(rx.handle_withdrawn(1, 0).is_err(), "no withdrawal is out");
    rx.handle_fin().unwrap();
    assert_eq!(all(&mut rx), [PacketRxAction::Retract { op: 3 }, end(3, true, Outcome::Ok)]);
    rx.post_recv(4, 4000, true, false);
    assert_eq!(all(&mut rx), [end(4, true, Outcome::Ok)]);
    assert!(rx.readable() && rx.is_idle());
}

#[test]
fn violations_of_a_sender() {
    let rx = || PacketRx::new(CONFIG);
    let overrun = |len, room| Err(PacketViolation::EagerOverrun { len, room });
    assert_eq!(rx().handle_eager(101), overrun(101, 100));
    let mut full = rx();
    for _ in 0..6 {
        full.handle_eager(90).unwrap();
    }
    assert_eq!(full.handle_eager(90), overrun(90, 12));
    assert_eq!(full.handle_eager(u32::MAX), overrun(u32::MAX, 12));
    let unexpected = |r| assert!(matches!(r, Err(PacketViolation::Unexpected(_))), "{r:?}");
    unexpected(rx().handle_rts(1, 200));
    let long = Err(PacketViolation::TooLong { total: 5001, limit: 5000 });
    assert_eq!(rx().handle_rts(0, 5001), long);
    assert_eq!(rx().handle_data(10, 5001), long);
    let no_room = |len, room| Err(PacketViolation::WriteOverrun { len, room });
    assert_eq!(rx().handle_data(10, 10), no_room(10, 0));
    let mut hidden = rx();
    hidden.post_recv(1, 4000, false, false);
    assert_eq!(hidden.handle_data(10, 10), no_room(10, 0));
    let mut shown = rx();
    shown.post_recv(1, 4000, true, false);
    assert_eq!(shown.handle_data(4001, 4001), no_room(4001, 4000));
    unexpected(shown.handle_data(11, 10));
    unexpected(shown.handle_data(10, 11));
    unexpected(shown.handle_withdrawn(0, 0));
    let mut ended = rx();
    ended.handle_fin().unwrap();
    unexpected(ended.handle_fin());
    unexpected(ended.handle_eager(1));
    unexpected(ended.handle_rts(0, 4000));
}

#[derive(Clone, Debug)]
enum Call {
    Eager(u32),
    Rts(u64, u64),
    Data(u64, u64),
    Withdrawn(u32, u64),
    Fin,
    Post(u64, bool, bool),
    Cancel(u64),
    Freed,
    Advert(u64, u32, u64),
    Ack(u32),
    Withdraw(u32),
    Send(u64),
    Shutdown,
    Poll(bool),
    Sent(u64),
}

fn call() -> impl Strategy<Value = Call> {
    let long = || prop_oneof![0..12u64, Just(100u64), Just(5000u64), any::<u64>()];
    let int = || prop_oneof![0..5u32, Just(65u32), any::<u32>()];
    prop_oneof![
        int().prop_map(Call::Eager),
        (long(), long()).prop_map(|(a, b)| Call::Rts(a, b)),
        (long(), long()).prop_map(|(a, b)| Call::Data(a, b)),
        (int(), long()).prop_map(|(a, b)| Call::Withdrawn(a, b)),
        Just(Call::Fin),
        (long(), any::<bool>(), any::<bool>()).prop_map(|(a, b, c)| Call::Post(a, b, c)),
        (0..60u64).prop_map(Call::Cancel),
        Just(Call::Freed),
        (long(), int(), long()).prop_map(|(a, b, c)| Call::Advert(a, b, c)),
        int().prop_map(Call::Ack),
        int().prop_map(Call::Withdraw),
        long().prop_map(Call::Send),
        Just(Call::Shutdown),
        any::<bool>().prop_map(Call::Poll),
        (0..60u64).prop_map(Call::Sent),
    ]
}

proptest! {
    /// A peer that says anything at any time, even on after a violation, makes
    /// neither half panic, keeps the bounds, and every operation still ends once.
    #[test]
    fn hostile_peer(
        calls in prop::collection::vec(call(), 0..60),
        stash in prop_oneof![Just(0u32), 100..400u32, Just(u32::MAX)],
        max_msg in prop_oneof![Just(5000u64), Just(u64::MAX)],
    ) {
        let config = PacketConfig { eager_max: 100, stash, max_msg };
        let (mut tx, mut rx) = (PacketTx::new(config), PacketRx::new(config));
        let mut pending = std::collections::BTreeSet::new();
        for (op, call) in (0..).zip(calls) {
            match call {
                Call::Eager(len) => drop(rx.handle_eager(len)),
                Call::Rts(msg, total) => drop(rx.handle_rts(msg, total)),
                Call::Data(len, total) => drop(rx.handle_data(len, total)),
                Call::Withdrawn(generation, next) => drop(rx.handle_withdrawn(generation, next)),
                Call::Fin => drop(rx.handle_fin()),
                Call::Post(len, ahead, peek) => {
                    pending.insert(op);
                    rx.post_recv(op, len, ahead, peek);
                }
                Call::Cancel(op) => prop_assert_eq!(
                    rx.cancel(op) || tx.cancel(op),
                    pending.contains(&op)
                ),
                Call::Freed => prop_assert!(rx.take_freed() <= stash),
                Call::Advert(msg, generation, len) => drop(tx.handle_advert(
                    PacketAdvert { msg, generation, addr: 1, key: 1, len },
                )),
                Call::Ack(freed) => drop(tx.handle_ack(freed)),
                Call::Withdraw(generation) => drop(tx.handle_withdraw(generation)),
                Call::Send(len) => {
                    if tx.post_send(op, len).is_ok() {
                        pending.insert(op);
                    }
                }
                Call::Shutdown => {
                    tx.shutdown(op);
                    pending.insert(op);
                }
                Call::Poll(can) => {
                    if let Some(PacketTxAction::Done { op, .. }) = tx.poll(can) {
                        prop_assert!(pending.remove(&op));
                    }
                }
                Call::Sent(op) => tx.handle_sent(op),
            }
            prop_assert!(tx.adverts.len() <= ADVERT_WINDOW);
            for action in all(&mut rx) {
                if let PacketRxAction::Done { op, .. } = action {
                    prop_assert!(pending.remove(&op));
                }
            }
            while let Some(action) = tx.poll(false) {
                if let PacketTxAction::Done { op, .. } = action {
                    prop_assert!(pending.remove(&op));
                }
            }
        }
        let left: Vec<u64> = tx.abort().into_iter().chain(rx.abort()).collect();
        prop_assert_eq!(left.len(), pending.len());
        prop_assert!(left.iter().all(|op| pending.contains(op)));
    }
}
