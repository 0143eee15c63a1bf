//! A peer that says anything at all: errors are allowed, panics and actions out of
//! bounds are not.

use std::collections::HashMap;

use super::random::Rng;
use crate::ids::OpId;
use crate::stream::{
    Advert, ChunkTarget, Data, MAX_ADVERTS, RecvPost, RemoteRing, RxAction, StreamConfig, StreamRx,
    StreamTx, TxAction,
};

/// Small numbers, and those at which arithmetic breaks.
fn number(rng: &mut Rng) -> u32 {
    match rng.below(8) {
        0 => u32::MAX - rng.below(3),
        1 => (1 << 31) + rng.below(3),
        _ => rng.below(20),
    }
}

#[derive(Default)]
struct Buffer {
    len: u64,
    shown: bool,
}

fn drain_rx(rx: &mut StreamRx, ring: u32, inline: Option<u32>, live: &mut HashMap<OpId, Buffer>) {
    let inside = |off: u32, len: u32| u64::from(off) + u64::from(len) <= u64::from(ring);
    let mut used = 0;
    while let Some(action) = rx.poll() {
        match action {
            RxAction::Advertise { op, op_off, len, .. } => {
                let buffer = live.get_mut(&op).expect("pending");
                assert!(!buffer.shown && len > 0 && op_off + u64::from(len) <= buffer.len);
                buffer.shown = true;
            }
            RxAction::Retract { op } => {
                let buffer = live.get_mut(&op).expect("pending");
                assert!(std::mem::take(&mut buffer.shown), "no window");
            }
            RxAction::CopyFromRing { ring_off, op, op_off, len } => {
                assert!(inside(ring_off, len) && op_off + u64::from(len) <= live[&op].len);
            }
            RxAction::CopyInline { from, op, op_off, len } => {
                used += len;
                assert!(used == from + len && op_off + u64::from(len) <= live[&op].len);
            }
            RxAction::StashInline { from, ring_off, len } => {
                used += len;
                assert!(used == from + len && inside(ring_off, len));
            }
            RxAction::Done { op, bytes, .. } => {
                let buffer = live.remove(&op).expect("ends once");
                assert!(!buffer.shown && bytes <= buffer.len);
            }
            RxAction::Ack => assert!(rx.take_freed() > 0),
            RxAction::Withdraw | RxAction::GrantRing | RxAction::DropRing => {}
        }
    }
    assert_eq!(used, inline.unwrap_or(0), "inline bytes lost or invented");
}

#[test]
fn receiver_survives_any_sender() {
    let (mut refused, mut taken) = (0, 0);
    for seed in 0..2_000 {
        let mut rng = Rng(seed);
        let ring = 1 + number(&mut rng).min(u32::MAX - 1);
        let cfg = StreamConfig { ring, inline_max: 8, max_chunk: 100 };
        let mut rx = StreamRx::new(cfg);
        let mut live = HashMap::new();
        for step in 0..200 {
            let mut inline = None;
            let result = match rng.below(24) {
                0 => rx.handle_withdrawn(),
                1 if rng.one_in(8) => rx.handle_fin(),
                2 => rx.handle_ring_request(),
                3 => rx.handle_ring_release(),
                4 => {
                    rx.cancel(u64::from(rng.below(step + 1)));
                    Ok(())
                }
                5 if rng.one_in(4) => {
                    rx.cancel_all();
                    Ok(())
                }
                6 => {
                    rx.idle();
                    Ok(())
                }
                7..12 => {
                    let big = u64::from(number(&mut rng)) << (32 * rng.below(2));
                    let [waitall, peek, hidden] = [2, 6, 6].map(|n| rng.one_in(n));
                    let op = step.into();
                    live.insert(op, Buffer { len: big, shown: false });
                    rx.post_recv(RecvPost { op, len: big, waitall, peek, advertise: !hidden });
                    Ok(())
                }
                _ => {
                    let data = Data {
                        direct: rng.one_in(2),
                        inline: rng.one_in(2),
                        len: number(&mut rng),
                    };
                    let before = rx.clone();
                    let result = rx.handle_data(data);
                    if result.is_err() {
                        assert!(rx == before, "refused data changed the state");
                    }
                    inline = (data.inline && result.is_ok()).then_some(data.len);
                    result
                }
            };
            if result.is_ok() {
                taken += 1
            } else {
                refused += 1
            }
            drain_rx(&mut rx, ring, inline, &mut live);
        }
        let ended = rx.abort();
        drain_rx(&mut rx, ring, None, &mut live);
        assert_eq!(ended.len(), live.len());
        for (op, bytes) in ended {
            let buffer = live.remove(&op).expect("ends once");
            assert!(!buffer.shown && bytes <= buffer.len);
        }
    }
    assert!(refused > 1_000 && taken > 1_000, "{refused} refused, {taken} taken");
}

/// Does one thing that the sender wants; 1 if it was a Transfer.
fn poll_tx(tx: &mut StreamTx, cfg: &StreamConfig, live: &mut HashMap<OpId, (u64, u64)>) -> u32 {
    match tx.poll(true) {
        Some(TxAction::Transfer { op, op_off, len, target, inline }) => {
            let entry = live.get_mut(&op).expect("pending");
            assert!(op_off == entry.1 && op_off + u64::from(len) <= entry.0);
            assert!(len <= cfg.max_chunk && (!inline || len <= cfg.inline_max));
            if let ChunkTarget::Ring { offset } = target {
                assert!(u64::from(offset) + u64::from(len) <= u64::from(cfg.ring));
                assert!(inline || tx.ring().is_some());
            }
            entry.1 += u64::from(len);
            tx.handle_sent(op, len);
            return 1;
        }
        Some(TxAction::Done { op, bytes, .. }) => {
            assert_eq!(live.remove(&op).expect("ends once").1, bytes);
        }
        _ => {}
    }
    0
}

#[test]
fn sender_survives_any_receiver() {
    let (mut refused, mut taken, mut moved) = (0, 0, 0);
    for seed in 0..2_000 {
        let mut rng = Rng(seed);
        let ring = 1 + number(&mut rng).min(u32::MAX - 1);
        let cfg =
            StreamConfig { ring, inline_max: rng.below(9), max_chunk: 1 + number(&mut rng) / 2 };
        let mut tx = StreamTx::new(cfg);
        let mut live: HashMap<OpId, (u64, u64)> = HashMap::new();
        for step in 0..200 {
            let result = match rng.below(16) {
                0 => tx.handle_withdraw(),
                1 => tx.handle_ring(RemoteRing { addr: 7, key: 7 }),
                2 => tx.handle_ack(number(&mut rng)),
                3 => {
                    tx.cancel(u64::from(rng.below(step + 1)));
                    Ok(())
                }
                4 => {
                    tx.idle_ring_release();
                    Ok(())
                }
                5 if rng.one_in(16) => {
                    live.insert(step.into(), (0, 0));
                    tx.shutdown(step.into());
                    Ok(())
                }
                6..9 => {
                    let len = u64::from(number(&mut rng)) << (32 * rng.below(2));
                    live.insert(step.into(), (len, 0));
                    tx.post_send(step.into(), len);
                    Ok(())
                }
                _ => tx.handle_advert(Advert {
                    seq: rng.below(60).into(),
                    phase: number(&mut rng),
                    addr: u64::MAX - u64::from(rng.below(9)),
                    key: 1,
                    len: number(&mut rng),
                    waitall: rng.one_in(2),
                    invalidate: rng.one_in(2),
                }),
            };
            if result.is_ok() {
                taken += 1
            } else {
                refused += 1
            }
            for _ in 0..rng.below(6) {
                moved += poll_tx(&mut tx, &cfg, &mut live);
            }
        }
        let ended = tx.abort();
        while let Some(action) = tx.poll(true) {
            if let TxAction::Done { op, .. } = action {
                live.remove(&op).expect("ends once");
            }
        }
        assert_eq!(ended.len(), live.len());
        assert!(ended.iter().all(|(op, bytes)| live[op].1 == *bytes));
    }
    assert!(refused > 1_000 && taken > 1_000 && moved > 1_000, "{refused} {taken} {moved}");
}

#[test]
fn adverts_are_bounded_on_both_sides() {
    let cfg = StreamConfig { ring: 64, inline_max: 0, max_chunk: 8 };
    let mut rx = StreamRx::new(cfg);
    let mut tx = StreamTx::new(cfg);
    let mut adverts = 0;
    for op in 0..100 {
        rx.post_recv(RecvPost { op, len: 8, waitall: false, peek: false, advertise: true });
        while let Some(action) = rx.poll() {
            let RxAction::Advertise { seq, phase, len, waitall, .. } = action else { continue };
            adverts += 1;
            tx.handle_advert(Advert {
                seq,
                phase,
                addr: 0,
                key: 1,
                len,
                waitall,
                invalidate: false,
            })
            .expect("allowed");
        }
    }
    assert_eq!(adverts, MAX_ADVERTS);
    let one_more =
        Advert { seq: 800, phase: 0, addr: 0, key: 1, len: 8, waitall: false, invalidate: false };
    assert!(tx.handle_advert(one_more).is_err());
    // The next one follows as soon as the first has ended.
    rx.handle_data(Data { direct: true, inline: false, len: 8 }).expect("it fits");
    let next = std::iter::from_fn(|| rx.poll()).any(|a| matches!(a, RxAction::Advertise { .. }));
    assert!(next);
}
