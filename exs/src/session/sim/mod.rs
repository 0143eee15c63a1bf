//! Seeded simulation: two connections' ends over a virtual link, in virtual time.
//!
//! A seed draws the numbers of both sides (tiny rings, few credits, small slots), the
//! RNIC's abilities (both ways to announce, acknowledged or not, few segments, small
//! messages), the users' deeds (sends from memory and files, receives in pieces, peeks,
//! cancels, time limits, shutdown, close, abort, one-sided operations, revocation) and
//! the link's (delays, splitting, cuts). `link.rs` says what may not happen on the
//! way, `user.rs` what each user must see. `EXS_SEED=n` replays one seed.

mod extremes;
mod hostile;
mod link;
mod pair;
mod plan;
mod rng;
mod user;
mod world;

pub(super) use pair::Pair;

use super::{OpError, life};
use world::World;

/// One whole life of a connection.
fn run(seed: u64) -> World {
    let mut world = World::new(seed);
    if std::env::var_os("EXS_SEED").is_some() {
        eprintln!("{:#?}", world.plan);
    }
    let mut events = 0_u32;
    while world.acting() {
        assert!(world.step(), "the users still act");
        events += 1;
        if events.is_multiple_of(16) {
            world.verify();
        }
    }
    if world.plan.calm {
        world.finish_calm();
    }
    while world.step() {}
    world.settle_all();
    world.verify_end();
    if world.plan.calm {
        let plan = &world.plan;
        for user in &world.users {
            assert!(user.errors.is_empty(), "{:?} in calm weather: {plan:?}", user.errors);
        }
        for (tx, rx) in [(0, 1), (1, 0)] {
            world.users[tx].assert_all_arrived(&world.users[rx], plan.kind);
        }
    }
    world
}

/// Runs seeds, or the one asked for; names the seed that fails.
fn run_seeds(seeds: std::ops::Range<u64>) {
    if let Ok(seed) = std::env::var("EXS_SEED") {
        run(seed.parse().expect("EXS_SEED is a number"));
        return;
    }
    for seed in seeds {
        let failed = std::panic::catch_unwind(|| run(seed)).is_err();
        assert!(!failed, "seed {seed} fails: EXS_SEED={seed} replays it");
    }
}

#[test]
fn seeds_from_0() {
    run_seeds(0..4000);
}

#[test]
fn seeds_from_4000() {
    run_seeds(4000..8000);
}

/// A simulation shows nothing about what it never comes to.
#[test]
fn every_road_is_taken() {
    let mut sum = std::collections::BTreeMap::<&str, u64>::new();
    for seed in 0..400 {
        let world = run(seed);
        for side in 0..2 {
            let c = world.counters(side);
            let counts = [
                ("sends", c.sends),
                ("receives", c.recvs),
                ("one-sided", c.one_sided),
                ("direct", c.tx_direct),
                ("indirect", c.tx_indirect),
                ("inline", c.tx_inline),
                ("direct in", c.rx_direct),
                ("indirect in", c.rx_indirect),
                ("inline in", c.rx_inline),
                ("READ", c.read_bytes),
                ("WRITE", c.write_bytes),
                ("copies", c.copied_bytes),
                ("ADVERTs", c.adverts_sent),
                ("ADVERTs in", c.adverts_received),
                ("stale ADVERTs", c.adverts_stale),
                ("credit stalls", c.credit_stalls),
                ("queue stalls", c.queue_stalls),
                ("receives added", c.receives_added),
                ("receives dropped", c.receives_dropped),
                ("confirms", c.confirms),
                ("rings", c.rings_granted),
            ];
            for (what, n) in counts {
                *sum.entry(what).or_default() += n;
            }
            for error in &world.users[side].errors {
                *sum.entry(kind(error)).or_default() += 1;
            }
        }
    }
    let errors = ["cancelled", "send timed out", "receive timed out", "close timed out"];
    let ends = ["peer closed", "reset", "aborted", "unreachable", "refused", "short file"];
    for what in errors.into_iter().chain(ends) {
        sum.entry(what).or_default();
    }
    let never: Vec<_> = sum.iter().filter(|(_, n)| **n == 0).map(|(what, _)| what).collect();
    assert!(never.is_empty(), "{never:?} never happened: {sum:?}");

    // Each transition of a connection's life, too.
    super::tests::ends::handshakes_that_fail();
    super::tests::ends::ends_that_cross();
    let never = life::tests::never_taken();
    assert!(never.is_empty(), "no session has taken {never:?}");
}

fn kind(error: &OpError) -> &'static str {
    match error {
        OpError::Cancelled => "cancelled",
        OpError::TimedOut { what: "send", .. } => "send timed out",
        OpError::TimedOut { what: "receive", .. } => "receive timed out",
        OpError::TimedOut { .. } => "close timed out",
        OpError::PeerClosed => "peer closed",
        OpError::Reset { .. } => "reset",
        OpError::Aborted => "aborted",
        OpError::Unreachable { .. } => "unreachable",
        OpError::RemoteAccess { .. } => "refused",
        OpError::FileTooShort { .. } => "short file",
        other => panic!("a well-behaved peer, but: {other}"),
    }
}
