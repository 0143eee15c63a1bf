//! Atomic operations between two sessions.

use super::cfg;
use crate::mem::{Access, AtomicOp, Atomics};
use crate::session::sim::Pair;
use crate::session::{OpError, SessionConfig};

/// Both devices have atomic operations.
fn atomic() -> SessionConfig {
    SessionConfig { atomics: Atomics::Host, ..cfg() }
}

#[test]
fn the_end_of_an_operation_has_the_old_value() {
    let mut p = Pair::new(atomic(), true);
    let there = p.export(1, 64);
    p.run();
    assert_eq!(p.session(0).peer_atomics(), Atomics::Host);
    // More at a time than the peer answers (2): they wait, and keep their order.
    let memory: Vec<_> = (0..7).map(|i| p.fetch_add(i, &there, 16, 3).unwrap()).collect();
    p.run();
    for (i, old) in (0..7).zip(memory) {
        let done = p.done(0).expect("it ends");
        assert_eq!((done.op, done.bytes, done.total, done.result), (i, 8, 3 * i, Ok(())));
        assert_eq!(old.read(8), (3 * i).to_ne_bytes());
    }
    assert_eq!(there.0.seg.atomic(16, AtomicOp::FetchAdd(0)), 21);
    assert_eq!(p.session(0).counters().one_sided, 7);
}

/// A side whose device has none, or whose EXS is older, says nothing in its hello.
#[test]
fn without_atomics_on_either_side_nothing_is_posted() {
    for (ours, theirs, why) in [
        (Atomics::Host, Atomics::None, "the peer's device executes none"),
        (Atomics::None, Atomics::Device, "the device of this connection has none"),
    ] {
        let with = |atomics| SessionConfig { atomics, ..cfg() };
        let mut p = Pair::of([with(ours), with(theirs)]);
        p.established(1);
        p.established(0);
        let there = p.export(1, 64);
        p.run();
        assert_eq!(p.session(0).peer_atomics(), Atomics::None);
        let refused = p.fetch_add(1, &there, 0, 1).err().expect("refused");
        assert!(matches!(refused, OpError::Unsupported(_)), "{refused}");
        assert!(refused.to_string().contains(why), "{refused}");
        p.run();
        assert!(p.session(0).failure().is_none() && p.session(1).failure().is_none());
    }
}

#[test]
fn an_export_for_atomics_needs_a_device_with_atomics() {
    let mut p = Pair::new(cfg(), true);
    let plain = p.export(1, 64);
    let access = Access { remote_atomic: true, ..Access::ALL };
    let refused = p.with(1, |s, end| s.export(end, &plain.0, access)).unwrap_err();
    assert!(matches!(refused, OpError::Unsupported(_)), "{refused}");
}

/// What was cancelled before it left was not done. What has left is done, and says so.
#[test]
fn a_cancelled_operation_tells_the_truth() {
    let mut p = Pair::new(atomic(), true);
    let there = p.export(1, 64);
    p.run();
    let _memory: Vec<_> = (0..4).map(|i| p.fetch_add(i, &there, 0, 1).unwrap()).collect();
    p.settle(0); // Two leave.
    let now = p.now();
    for op in [0, 3] {
        assert!(p.with(0, |s, _| s.cancel(now, op)));
    }
    p.run();
    let mut ends: Vec<_> = std::iter::from_fn(|| p.done(0)).collect();
    ends.sort_unstable_by_key(|done| done.op);
    let told: Vec<_> = ends.into_iter().map(|done| (done.bytes, done.total, done.result)).collect();
    let done = |old| (8, old, Ok(()));
    assert_eq!(told, [done(0), done(1), done(2), (0, 0, Err(OpError::Cancelled))]);
    assert_eq!(there.0.seg.atomic(0, AtomicOp::FetchAdd(0)), 3);
}

/// The peer vanishes: each operation has one end, and none claims to have been done or not.
#[test]
fn an_operation_that_the_end_cuts_off_gives_the_reason() {
    let cfg = SessionConfig { dead_after: Some(super::secs(1)), ..atomic() };
    let mut p = Pair::new(cfg, true);
    let there = p.export(1, 64);
    p.run_for(super::secs(1) / 2);
    let _memory: Vec<_> = (0..3).map(|i| p.fetch_add(i, &there, 0, 1).unwrap()).collect();
    p.sever();
    p.run();
    let mut ends: Vec<_> = std::iter::from_fn(|| p.done(0)).collect();
    ends.sort_unstable_by_key(|done| done.op);
    assert_eq!(ends.len(), 3);
    for (op, done) in (0..).zip(ends) {
        assert_eq!((done.op, done.bytes), (op, 0));
        let error = done.result.expect_err("cut off");
        assert!(!matches!(error, OpError::Cancelled), "{error}");
    }
}
