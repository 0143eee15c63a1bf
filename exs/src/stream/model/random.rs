//! Long runs with larger numbers than a search can walk, by seed.

use super::tests::plan;
use super::{Event, MAX_MISSES, Plan, Post, RecvState, SendState, World};

/// SplitMix64.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: u32) -> u32 {
        u32::try_from(self.next() % u64::from(n)).expect("below n")
    }

    pub(super) fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}

fn random_plan(rng: &mut Rng) -> Plan {
    let ring = 1 + rng.below(64);
    let inline = [0, 1, 8, 200][rng.below(4) as usize];
    let chunk = 1 + rng.below(50);
    let longest = 1 + rng.below(60);
    let sends: Vec<u32> = (0..80).map(|_| rng.below(longest)).collect();
    let longest = 1 + rng.below(60);
    let recvs: Vec<Post> = (0..80)
        .map(|_| Post {
            len: rng.below(longest),
            waitall: rng.one_in(2),
            peek: rng.one_in(8),
            advertise: !rng.one_in(8),
        })
        .collect();
    Plan {
        cancels: u8::try_from(rng.below(30)).expect("small"),
        cancel_alls: u8::try_from(rng.below(3)).expect("small"),
        idles: u8::try_from(rng.below(100)).expect("small"),
        split_write: rng.one_in(2),
        // Phases wrap around in every other run.
        first_phase: [0, u32::MAX - 1][rng.below(2) as usize],
        max_advert: [7, u32::MAX][rng.below(2) as usize],
        max_misses: [1, 2, MAX_MISSES][rng.below(3) as usize],
        ..plan(ring, inline, chunk, &sends, &recvs)
    }
}

/// Steps that were taken, or what went wrong at which step.
fn run(seed: u64) -> Result<usize, String> {
    let mut rng = Rng(seed);
    let plan = random_plan(&mut rng);
    let mut world = World::new(&plan);
    let mut events = Vec::new();
    let mut steps = 0;
    // Now and then one side is left alone for a while, so that queues build up.
    let mut idle_side = 0;
    loop {
        world.events(&plan, &mut events);
        world.check_waits().map_err(|why| format!("step {steps}: {why}"))?;
        if world.is_quiet() {
            world.check_quiet(&plan).map_err(|why| format!("step {steps}: {why}"))?;
        }
        if rng.one_in(20) {
            idle_side = rng.below(4);
        }
        let rare = rng.one_in(10);
        let (all, events): (_, Vec<Event>) = (events.clone(), {
            let kept = events.iter().copied().filter(|e| match e {
                Event::ToReceiver => idle_side != 1,
                Event::ToSender => idle_side != 2,
                Event::PostRecv(_) => idle_side != 3,
                Event::PostSend(_) | Event::Transfer | Event::Local => true,
                _ => rare,
            });
            kept.collect()
        });
        let choice = if events.is_empty() { &all } else { &events };
        let Some(count) = u32::try_from(choice.len()).ok().filter(|n| *n > 0) else { break };
        let event = choice[rng.below(count) as usize];
        world.apply(&plan, event).map_err(|why| format!("step {steps}, {event:?}: {why}"))?;
        steps += 1;
    }
    finish(&mut world, &plan).map_err(|why| format!("at the end: {why}"))?;
    Ok(steps)
}

/// Closes: cancels all that waits, shuts down, and demands that all ends.
fn finish(world: &mut World, plan: &Plan) -> Result<(), String> {
    world.cancels = u8::MAX;
    world.cancel_alls = 1;
    for i in 0..plan.sends.len() {
        if matches!(world.sends[i], SendState::Pending { cancelled: false, .. }) {
            world.apply(plan, Event::CancelSend(u16::try_from(i).expect("small")))?;
        }
    }
    world.apply(plan, Event::CancelAllRecvs)?;
    world.apply(plan, Event::Shutdown)?;
    loop {
        let event = if !world.fwd.is_empty() {
            Event::ToReceiver
        } else if !world.back.is_empty() {
            Event::ToSender
        } else if !world.local.is_empty() {
            Event::Local
        } else {
            break;
        };
        world.apply(plan, event)?;
    }
    world.check_quiet(plan)?;
    let ended = world.sends.iter().all(|s| *s == SendState::Ended)
        && world.recvs.iter().all(|r| *r == RecvState::Ended)
        && world.shutdown == SendState::Ended;
    if ended { Ok(()) } else { Err("an operation outlives the close".into()) }
}

#[test]
fn long_runs() {
    let seeds = 3_000;
    let mut steps = 0;
    for seed in 0..seeds {
        match run(seed) {
            Ok(n) => steps += n,
            Err(why) => panic!("seed {seed}: {why}"),
        }
    }
    println!("{seeds} seeds, {steps} steps");
    assert!(steps > 500_000, "the runs have become short: {steps} steps");
}
