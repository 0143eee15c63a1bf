//! Seeded simulation: two connections' ends over a virtual link, in virtual time.
//!
//! A seed draws the numbers of both sides (tiny rings, few credits, small slots), the
//! RNIC's abilities (both ways to announce, acknowledged or not, few segments, small
//! messages), the users' deeds (sends from memory and files, receives in pieces, peeks,
//! cancels, time limits, shutdown, close, abort, one-sided operations, revocation) and
//! the link's (delays, splitting, cuts). `link.rs` says what may not happen on the
//! way, `user.rs` what each user must see. `EXS_SIM_SEED=n` replays one seed.

mod link;
mod rng;
mod user;
mod world;

use world::World;

/// One whole life of a connection.
fn run(seed: u64) -> World {
    let mut world = World::new(seed);
    if std::env::var_os("EXS_SIM_SEED").is_some() {
        eprintln!("{:#?}", world.plan);
    }
    let mut events = 0_u32;
    while world.acting() {
        assert!(world.step(), "the users still act");
        events += 1;
        if events % 16 == 0 {
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

/// Runs seeds, or the one asked for; names the one that fails.
fn run_seeds(seeds: std::ops::Range<u64>) {
    if let Ok(seed) = std::env::var("EXS_SIM_SEED") {
        run(seed.parse().expect("EXS_SIM_SEED is a number"));
        return;
    }
    for seed in seeds {
        let failed = std::panic::catch_unwind(|| run(seed)).is_err();
        assert!(!failed, "seed {seed} fails: EXS_SIM_SEED={seed} replays it");
    }
}

#[test]
fn seeds_0() {
    run_seeds(0..15000);
}

#[test]
fn seeds_1() {
    run_seeds(15000..30000);
}
