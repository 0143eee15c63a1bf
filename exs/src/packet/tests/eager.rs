//! The short way comes to the same as the long one.

use super::super::model::Random;
use super::*;

/// Numbers below `n`.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut random = Random(seed);
    move |n| random.below(small(n) as usize) as u64
}

fn small(n: u64) -> u32 {
    u32::try_from(n).expect("small")
}

#[test]
fn a_receive_ends_the_same_either_way() {
    let mut below = random(7);
    let (mut short, mut long) = (0, 0);
    for _ in 0..400 {
        let mut rx = PacketRx::new(CONFIG);
        for op in 0..60 {
            match below(9) {
                0..=3 => rx.post_recv(op, below(150), below(2) == 0, below(8) == 0),
                4..=6 => {
                    let len = small(below(110));
                    let mut quick = rx.clone();
                    let landed = quick.try_eager(len);
                    let came = rx.handle_eager(len);
                    let Some(op) = landed else {
                        long += 1;
                        assert_eq!(quick == rx, came.is_err(), "nothing has happened");
                        continue;
                    };
                    short += 1;
                    came.expect("it has passed");
                    assert_eq!(rx.poll(), Some(PacketRxAction::CopyInline { op, len }));
                    assert_eq!(rx.poll(), Some(done(op, len.into(), len.into())));
                    assert_eq!(quick, rx);
                }
                7 => drop(rx.cancel(below(60))),
                _ if below(60) == 0 => drop(rx.handle_fin()),
                _ if below(4) == 0 => drop(rx.handle_withdrawn(0, below(20))),
                // The number is mostly that of no message to come.
                _ => drop(rx.handle_rts(below(20), 200)),
            }
            if below(3) > 0 {
                all(&mut rx);
                assert!(rx.is_quiet());
            }
            if below(3) == 0 {
                rx.take_freed();
            }
        }
    }
    assert!(short > 500 && long > 500, "{short} {long}");
}

#[test]
fn a_send_leaves_the_same_state_either_way() {
    let mut below = random(8);
    let (mut short, mut long) = (0, 0);
    for _ in 0..400 {
        let mut tx = PacketTx::new(CONFIG);
        for op in 0..40 {
            match below(8) {
                0..=4 => {
                    let len = small(below(110));
                    let mut quick = tx.clone();
                    let passed = quick.try_eager(len);
                    let before = tx.clone();
                    let posted = tx.post_send(op, len.into());
                    if !passed {
                        assert_eq!(quick, before, "nothing has happened");
                        long += 1;
                        continue;
                    }
                    posted.expect("it has passed");
                    short += 1;
                    assert_eq!(tx.poll(true), Some(PacketTxAction::Eager { op, len }));
                    tx.handle_sent(op);
                    let (bytes, outcome) = (len.into(), Outcome::Ok);
                    assert_eq!(tx.poll(false), Some(PacketTxAction::Done { op, bytes, outcome }));
                    assert_eq!(quick, tx);
                }
                5 => drop(tx.handle_advert(advert(below(40)))),
                6 => drop(tx.handle_ack(small(below(400)))),
                _ if below(20) == 0 => drop(tx.handle_withdraw(0)),
                _ if below(20) == 0 => tx.shutdown(op),
                _ => {}
            }
            if below(3) > 0 {
                while let Some(action) = tx.poll(below(4) > 0) {
                    if let PacketTxAction::Eager { op, .. } | PacketTxAction::Write { op, .. } =
                        action
                    {
                        tx.handle_sent(op);
                    }
                }
            }
        }
    }
    assert!(short > 500 && long > 500, "{short} {long}");
}

#[test]
fn nothing_is_overtaken() {
    let fresh = || PacketTx::new(CONFIG);
    assert!(fresh().try_eager(0) && fresh().try_eager(100) && !fresh().try_eager(101));
    let mut tx = fresh();
    tx.post_send(1, 4000).unwrap();
    assert!(!tx.try_eager(1), "a send waits for its ADVERT");
    let mut tx = fresh();
    tx.handle_withdraw(0).unwrap();
    assert!(!tx.try_eager(1) && !tx.is_idle(), "an answer counts the messages before it");
    let mut tx = fresh();
    tx.shutdown(1);
    assert!(!tx.try_eager(1), "the end was asked for");
    assert_eq!(tx.poll(true), Some(PacketTxAction::Fin));
    while tx.poll(true).is_some() {}
    assert!(tx.is_idle() && !tx.try_eager(1), "the end has gone");
    let mut tx = fresh();
    assert_eq!((0..10).filter(|_| tx.try_eager(100)).count(), 6, "the stash takes six");
}
