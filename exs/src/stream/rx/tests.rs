//! What the searches do not show: which road bytes take, and when ACKs are sent.

use super::*;

const CFG: StreamConfig = StreamConfig { ring: 100, inline_max: 50, max_chunk: 100 };

fn recv(op: OpId, len: u64) -> RecvPost {
    RecvPost { op, len, waitall: false, peek: false, advertise: false }
}

const fn inline(len: u32) -> Data {
    Data { direct: false, inline: true, len }
}

fn all(rx: &mut StreamRx) -> Vec<RxAction> {
    std::iter::from_fn(|| rx.poll()).collect()
}

const fn ok(op: OpId, bytes: u64) -> RxAction {
    RxAction::Done { op, bytes, outcome: Outcome::Ok }
}

#[test]
fn inline_data_skip_the_ring_if_a_receive_waits() {
    let mut rx = StreamRx::new(CFG);
    rx.post_recv(recv(1, 10));
    rx.handle_data(inline(14)).expect("fits");
    let copy = RxAction::CopyInline { from: 0, op: 1, op_off: 0, len: 10 };
    let stash = RxAction::StashInline { from: 10, ring_off: 10, len: 4 };
    assert_eq!(all(&mut rx), [copy, ok(1, 10), stash]);
    assert!(rx.readable() && rx.buffered() == 4);
    // The peer counts all 14 bytes as used until it is told.
    assert_eq!(rx.take_freed(), 10);
}

#[test]
fn a_receive_takes_what_is_there_across_the_end() {
    let mut rx = StreamRx::new(CFG);
    for _ in 0..2 {
        rx.handle_data(inline(45)).expect("fits");
        rx.post_recv(recv(1, 45));
    }
    all(&mut rx);
    assert_eq!(rx.take_freed(), 90);
    assert_eq!(
        rx.handle_data(inline(20)),
        Err(StreamViolation::RingOverrun { len: 20, room: 10 }),
        "chunks are cut at the ring's end"
    );
    rx.handle_data(inline(10)).expect("up to the end");
    rx.handle_data(inline(20)).expect("from the start");
    all(&mut rx);
    rx.post_recv(recv(2, 50));
    let copy = |ring_off, op_off, len| RxAction::CopyFromRing { ring_off, op: 2, op_off, len };
    assert_eq!(all(&mut rx), [copy(90, 0, 10), copy(0, 10, 20), ok(2, 30), RxAction::Ack]);
}

#[test]
fn acks_wait_for_a_quarter_of_the_ring_or_the_timer() {
    let mut rx = StreamRx::new(CFG);
    for (n, ack) in [(24, false), (1, true), (30, false)] {
        rx.post_recv(recv(1, 50));
        rx.handle_data(inline(n)).expect("fits");
        assert_eq!(all(&mut rx).contains(&RxAction::Ack), ack, "at {n}");
    }
    // It was polled once, and the number is not yet taken.
    rx.idle();
    assert_eq!(rx.take_freed(), 55);
    rx.idle();
    assert_eq!(all(&mut rx), []);
    rx.post_recv(recv(1, 50));
    rx.handle_data(inline(3)).expect("fits");
    all(&mut rx);
    rx.idle();
    assert_eq!(all(&mut rx), [RxAction::Ack]);
}

#[test]
fn a_ring_of_stashed_bytes_is_dropped_when_idle() {
    let mut rx = StreamRx::new(CFG);
    rx.handle_data(inline(3)).expect("fits");
    all(&mut rx);
    rx.idle();
    assert_eq!(all(&mut rx), [], "it is in use");
    rx.post_recv(recv(1, 3));
    all(&mut rx);
    rx.idle();
    assert_eq!(all(&mut rx), [RxAction::DropRing, RxAction::Ack]);
}

#[test]
fn empty_receives_do_not_wait() {
    let mut rx = StreamRx::new(CFG);
    rx.post_recv(recv(1, 5));
    rx.post_recv(recv(2, 0));
    assert_eq!(all(&mut rx), [ok(2, 0)]);
}

#[test]
fn the_end() {
    let mut rx = StreamRx::new(CFG);
    rx.handle_data(inline(3)).expect("fits");
    rx.handle_fin().expect("the first");
    assert!(rx.handle_fin().is_err() && rx.handle_data(inline(1)).is_err());
    assert!(rx.readable() && !rx.at_eof());
    all(&mut rx);
    rx.post_recv(RecvPost { waitall: true, ..recv(1, 5) });
    let copy = RxAction::CopyFromRing { ring_off: 0, op: 1, op_off: 0, len: 3 };
    assert_eq!(all(&mut rx), [copy, ok(1, 3), RxAction::DropRing]);
    assert!(rx.readable() && rx.at_eof());
    rx.post_recv(recv(2, 5));
    assert_eq!(all(&mut rx), [ok(2, 0)]);
}

#[test]
fn receives_beyond_4_gib_are_advertised_in_parts() {
    let mut rx = StreamRx::new(StreamConfig { inline_max: 4, ..CFG });
    let len = u64::from(u32::MAX) + 10;
    rx.post_recv(RecvPost { waitall: true, advertise: true, ..recv(1, len) });
    rx.post_recv(RecvPost { advertise: true, ..recv(2, 5) });
    let advertise = |op, op_off, len, seq, waitall| RxAction::Advertise {
        op,
        op_off,
        len,
        seq,
        phase: 0,
        waitall,
    };
    assert_eq!(all(&mut rx), [advertise(1, 0, u32::MAX, 0, true)]);
    rx.handle_data(Data { direct: true, inline: false, len: u32::MAX }).expect("fits");
    let first = u64::from(u32::MAX);
    assert_eq!(
        all(&mut rx),
        [
            RxAction::Retract { op: 1 },
            advertise(1, first, 10, first, true),
            advertise(2, 0, 5, len, false)
        ]
    );
    assert_eq!(
        rx.handle_data(Data { direct: true, inline: false, len: 11 }),
        Err(StreamViolation::DirectOverrun { len: 11, room: 10 })
    );
}

#[test]
fn abort_closes_windows() {
    let mut rx = StreamRx::new(StreamConfig { inline_max: 4, ..CFG });
    rx.post_recv(RecvPost { advertise: true, waitall: true, ..recv(1, 5) });
    rx.post_recv(recv(2, 5));
    rx.handle_data(Data { direct: true, inline: true, len: 2 }).expect("fits");
    all(&mut rx);
    assert_eq!(rx.abort(), [(1, 2), (2, 0)]);
    assert_eq!(all(&mut rx), [RxAction::Retract { op: 1 }]);
    assert_eq!(rx.pending(), 0);
}

#[test]
fn after_missed_adverts_the_ring_is_used_up_first() {
    let mut rx = StreamRx::new(CFG);
    rx.limit_misses(1);
    rx.post_recv(RecvPost { advertise: true, waitall: true, ..recv(1, 200) });
    assert!(matches!(all(&mut rx)[..], [RxAction::Advertise { .. }]));
    // Indirect data cross it, and more may be on its way: neither ADVERT nor ACK.
    for n in [50, 40] {
        rx.handle_data(inline(n)).expect("fits");
        let actions = all(&mut rx);
        let quiet =
            !actions.iter().any(|a| matches!(a, RxAction::Advertise { .. } | RxAction::Ack));
        assert!(quiet && rx.take_freed() == 0, "{actions:?}");
    }
    rx.handle_data(inline(10)).expect("fits");
    let actions = all(&mut rx);
    let advertise =
        RxAction::Advertise { op: 1, op_off: 100, len: 100, seq: 100, phase: 2, waitall: true };
    // The ADVERT carries the freed bytes, and leaves the ACK nothing to say.
    let [.., first, then] = actions[..] else { panic!("{actions:?}") };
    assert_eq!((first, then), (advertise, RxAction::Ack));
    assert_eq!(rx.take_freed(), 100);
}

#[test]
fn adverts_are_held_back_only_when_one_phase_after_the_other_missed() {
    let mut rx = StreamRx::new(CFG);
    let advertised =
        |rx: &mut StreamRx| all(rx).iter().any(|a| matches!(a, RxAction::Advertise { .. }));
    let whole = RecvPost { advertise: true, waitall: true, ..recv(1, 200) };
    rx.post_recv(whole);
    // Each of these crosses an ADVERT; the ring has room for more.
    for n in 1..=MAX_MISSES {
        assert!(advertised(&mut rx), "{n} misses");
        rx.handle_data(inline(5)).expect("fits");
    }
    assert!(!advertised(&mut rx) && rx.is_holding());
    let mut rx = StreamRx::new(CFG);
    rx.post_recv(whole);
    for _ in 0..4 * MAX_MISSES {
        assert!(advertised(&mut rx));
        rx.handle_data(inline(1)).expect("fits");
        assert!(advertised(&mut rx));
        // An ADVERT that is used ends the series.
        let direct = Data { direct: true, inline: true, len: 1 };
        rx.handle_data(direct).expect("fits");
        rx.handle_data(inline(1)).expect("fits");
        rx.take_freed();
    }
}

#[test]
fn an_ack_that_is_held_back_after_it_was_polled_comes_again() {
    let mut rx = StreamRx::new(CFG);
    rx.limit_misses(1);
    rx.post_recv(recv(1, 30));
    rx.handle_data(inline(30)).expect("fits");
    assert_eq!(all(&mut rx).last(), Some(&RxAction::Ack));
    // Before a message could take the bytes along, an ADVERT missed.
    rx.post_recv(RecvPost { advertise: true, waitall: true, ..recv(2, 200) });
    all(&mut rx);
    rx.handle_data(inline(20)).expect("fits");
    all(&mut rx);
    assert_eq!(rx.take_freed(), 0, "held back");
    rx.handle_data(inline(50)).expect("uses the ring up");
    assert_eq!(all(&mut rx).last(), Some(&RxAction::Ack));
    assert_eq!(rx.take_freed(), 100);
}

#[test]
fn a_small_receive_is_advertised_only_before_a_large_one() {
    let mut rx = StreamRx::new(CFG);
    let small = |op| RecvPost { advertise: true, ..recv(op, 50) };
    rx.post_recv(small(1));
    rx.post_recv(small(2));
    assert_eq!(all(&mut rx), []);
    rx.post_recv(RecvPost { advertise: true, ..recv(3, 51) });
    rx.post_recv(small(4));
    let shown: Vec<OpId> = all(&mut rx)
        .into_iter()
        .filter_map(|action| match action {
            RxAction::Advertise { op, .. } => Some(op),
            _ => None,
        })
        .collect();
    assert_eq!(shown, [1, 2, 3]);
}

/// A receive that finds its bytes in the ring takes the same as one that is posted. False: it must
/// be posted.
fn takes_the_same(before: &StreamRx, post: RecvPost) -> bool {
    let (mut quick, mut rx) = (before.clone(), before.clone());
    let taken = if post.peek { None } else { quick.try_take(post.len, post.waitall) };
    let Some(pieces) = taken else {
        assert_eq!(quick, rx, "nothing has happened");
        return false;
    };
    rx.post_recv(post);
    let mut filled = 0;
    for (ring_off, len) in pieces.into_iter().filter(|(_, len)| *len > 0) {
        let copy = RxAction::CopyFromRing { ring_off, op: post.op, op_off: filled, len };
        assert_eq!(rx.poll(), Some(copy));
        filled += u64::from(len);
    }
    assert_eq!(rx.poll(), Some(ok(post.op, filled)));
    assert_eq!(quick, rx);
    true
}

/// Checks `try_pass` against a receive of just these bytes before all others. True if they pass.
fn pass_the_same(rx: &StreamRx, len: u32) -> bool {
    let (mut quick, mut before) = (rx.clone(), rx.clone());
    if !quick.try_pass(len) {
        assert_eq!(quick, *rx, "nothing has happened");
        return false;
    }
    let (op, post) = (u64::MAX, recv(u64::MAX, len.into()));
    let first = Recv { post, filled: 0, shown: 0, cancelled: false, counted: false };
    before.recvs.push_front(first);
    assert_eq!(before.try_eager(len), Some(EagerTarget { op, op_off: 0, len, ends: true }));
    assert_eq!(quick, before);
    true
}

/// The action for data that are `by` bytes further on in their message.
fn later(action: RxAction, by: u32) -> RxAction {
    match action {
        RxAction::StashInline { from, ring_off, len } => {
            RxAction::StashInline { from: from + by, ring_off, len }
        }
        RxAction::CopyInline { from, op, op_off, len } => {
            RxAction::CopyInline { from: from + by, op, op_off, len }
        }
        other => other,
    }
}

#[test]
fn the_short_way_comes_to_the_same() {
    let mut seed = 7_u64;
    let mut below = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    let [mut short, mut long, mut several, mut partly, mut at_once, mut passed] = [0; 6];
    for _ in 0..400 {
        let mut rx = StreamRx::new(CFG);
        for op in 0..40 {
            match below(9) {
                0..=3 => {
                    let post = RecvPost {
                        op,
                        len: below(120),
                        waitall: below(2) == 0,
                        peek: below(8) == 0,
                        advertise: below(2) == 0,
                    };
                    at_once += usize::from(takes_the_same(&rx, post));
                    rx.post_recv(post);
                }
                4..=6 => {
                    let data = inline(u32::try_from(below(50)).expect("small"));
                    passed += usize::from(pass_the_same(&rx, data.len));
                    let (mut quick, mut from) = (rx.clone(), 0);
                    let came = rx.handle_data(data);
                    while from < data.len
                        && let Some(target) = quick.try_eager(data.len - from)
                    {
                        let EagerTarget { op, op_off, len, ends } = target;
                        let copy = RxAction::CopyInline { from, op, op_off, len };
                        assert_eq!(rx.poll(), Some(copy));
                        if ends {
                            assert_eq!(rx.poll(), Some(ok(op, op_off + u64::from(len))));
                        }
                        from += len;
                        several += usize::from(from > len && from == data.len);
                    }
                    if from == 0 {
                        long += 1;
                        assert_eq!(quick == rx, came.is_err(), "nothing has happened");
                        continue;
                    }
                    short += 1;
                    came.expect("it has passed");
                    if from < data.len {
                        partly += 1;
                        quick.handle_data(inline(data.len - from)).expect("the rest fits");
                        let rest = all(&mut quick).into_iter().map(|action| later(action, from));
                        let rest: Vec<_> = rest.collect();
                        assert_eq!(rest, all(&mut rx));
                    }
                    assert_eq!(quick, rx);
                }
                7 => drop(rx.cancel(below(40))),
                _ if below(30) == 0 => drop(rx.handle_fin()),
                _ => drop(rx.handle_withdrawn()),
            }
            if below(3) > 0 {
                all(&mut rx);
            }
            if below(3) == 0 {
                rx.take_freed();
            }
        }
    }
    assert!(short > 500 && long > 500 && several > 50 && partly > 50, "{short} {several} {partly}");
    assert!(at_once > 50 && passed > 50, "{at_once} {passed}");
}
