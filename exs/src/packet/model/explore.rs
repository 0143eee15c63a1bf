//! Every interleaving of a short script, and random ones of a long script.

use super::*;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A way into trouble: the steps, and what was seen at their end.
#[derive(Debug)]
struct Failure {
    #[expect(dead_code, reason = "for the message of a failed test")]
    steps: Vec<Step>,
    what: String,
}

fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Checks a world in which only a cancel can happen, or an ACK that no operation waits for: is that
/// correct, and does a cancel of the rest end every operation?
fn check_rest(script: &Script, world: &World) -> Result<(), String> {
    let pending: Vec<OpId> = world.pending().collect();
    let left = |recv: bool| pending.iter().any(|op| (*op >= RECV) == recv);
    check!(!(left(true) && left(false)), "stuck: {pending:?} wait for each other");
    let fin = world.fwd.is_empty() && world.tx.is_shut_down() && !left(false);
    check!(!(fin && left(true)), "stuck: {pending:?} after the end");
    for op in &pending {
        check!(!world.cancelled.contains(op), "stuck: {op} was cancelled");
    }
    if !left(true) && !left(false) {
        check!(!world.tx.wants_transfer() && world.tx.is_idle(), "the sender is not idle");
        check!(world.rx.is_idle(), "the receiver is not idle");
        return Ok(());
    }
    let mut world = world.clone();
    for op in pending {
        if world.pending().any(|p| p == op) {
            world.step(script, Step::Cancel(op))?;
        }
    }
    let quiet = Script { cancels: 0, ..script.clone() };
    while let Some(step) = progress(&quiet, &world) {
        world.step(&quiet, step)?;
    }
    let left: Vec<OpId> = world.pending().collect();
    check!(left.is_empty(), "cancelled, but not ended: {left:?}");
    Ok(())
}

/// The first step that is not a matter of choice.
fn progress(script: &Script, world: &World) -> Option<Step> {
    let chosen = |step: &Step| !matches!(step, Step::Cancel(_) | Step::Piggyback);
    world.steps(script).into_iter().find(chosen)
}

/// Walks every interleaving, breadth first; returns the number of states.
fn explore(script: &Script) -> Result<usize, Failure> {
    let start = World::new(script);
    let mut seen = HashSet::from([fingerprint(&start)]);
    // How each state was reached: from which, and by which step.
    let mut origin: Vec<(usize, Option<Step>)> = vec![(0, None)];
    let mut todo = VecDeque::from([(0, start)]);
    let trace = |origin: &[(usize, Option<Step>)], mut id: usize, last: Option<Step>| {
        let mut steps: Vec<Step> = last.into_iter().collect();
        while let (parent, Some(step)) = origin[id] {
            steps.push(step);
            id = parent;
        }
        steps.reverse();
        steps
    };
    while let Some((id, world)) = todo.pop_front() {
        if progress(script, &world).is_none() {
            check_rest(script, &world)
                .map_err(|what| Failure { steps: trace(&origin, id, None), what })?;
        }
        for step in world.steps(script) {
            let mut next = world.clone();
            next.step(script, step)
                .map_err(|what| Failure { steps: trace(&origin, id, Some(step)), what })?;
            if seen.insert(fingerprint(&next)) {
                origin.push((id, Some(step)));
                todo.push_back((origin.len() - 1, next));
            }
        }
    }
    Ok(seen.len())
}

/// SplitMix64: a seed is the whole story.
pub(in crate::packet) struct Random(pub(in crate::packet) u64);

impl Random {
    pub(in crate::packet) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % n as u64).unwrap()
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// One long run. Each seed leans its own way: towards sending, towards receiving,
/// towards delays, with more or fewer cancels.
fn random_run(seed: u64) -> Result<usize, String> {
    let mut random = Random(seed);
    let mut posts: Vec<Post> =
        (0..random.below(40)).map(|_| Post::Send(random.pick(&[0, 1, 2, 3, 5, 9]))).collect();
    if random.below(2) == 0 {
        posts.push(Post::Shutdown);
    }
    let recvs: Vec<PostRecv> = (0..random.below(60))
        .map(|_| PostRecv {
            len: random.pick(&[0, 1, 2, 3, 5, 9, 20]),
            ahead: random.below(4) > 0,
            peek: random.below(8) == 0,
        })
        .collect();
    let config = PacketConfig {
        eager_max: random.pick(&[0, 2, 4]),
        stash: random.pick(&[0, 100, 128, 132, 140, 500]),
        max_msg: 9,
    };
    let cancels = random.below(2) * random.below(20);
    let script = Script { config, ..Script::new(&posts, &recvs, cancels) };
    let lean: Vec<usize> = (0..8).map(|_| 1 + random.below(8)).collect();
    let mut world = World::new(&script);
    let mut count = 0;
    while progress(&script, &world).is_some() {
        let steps = world.steps(&script);
        let weight = |step: &Step| match step {
            Step::Post => lean[0],
            Step::PostRecv => lean[1],
            Step::Cancel(_) => 1,
            Step::Transfer => lean[2] * 2,
            Step::Complete => lean[3],
            Step::DeliverFwd => lean[4] * 2,
            Step::DeliverBack => lean[5] * 2,
            Step::Piggyback => lean[6],
        };
        let mut at = random.below(steps.iter().map(weight).sum());
        let chosen = steps.iter().find(|step| {
            let here = at < weight(step);
            at = at.saturating_sub(weight(step));
            here
        });
        let step = *chosen.ok_or("no step chosen")?;
        world.step(&script, step).map_err(|what| format!("step {count}, {step:?}: {what}"))?;
        count += 1;
    }
    check_rest(&script, &world)?;
    Ok(count)
}

const fn recv(len: u64) -> PostRecv {
    PostRecv { len, ahead: true, peek: false }
}
/// A receive that is shown only when asked for.
const fn shy(len: u64) -> PostRecv {
    PostRecv { len, ahead: false, peek: false }
}
const fn peek(len: u64) -> PostRecv {
    PostRecv { len, ahead: true, peek: true }
}
use Post::{Send, Shutdown};

fn explore_all(name: &str, scripts: impl IntoIterator<Item = Script>) {
    let (mut runs, mut states) = (0, 0);
    for script in scripts {
        states += explore(&script).unwrap_or_else(|failure| panic!("{script:?}\n{failure:#?}"));
        runs += 1;
    }
    println!("{name}: {states} states in {runs} scripts");
    assert!(states > 1000, "the scripts of {name} explore nothing");
}

/// Two sends and two receives of every sort, and any number of cancels.
#[test]
fn every_pair() {
    let lens = [0, 2, 5];
    let recvs = [recv(1), recv(5), recv(3), shy(5), peek(2)];
    let mut scripts = Vec::new();
    for a in lens {
        for b in lens {
            for r in recvs {
                for s in recvs {
                    scripts.push(Script::new(&[Send(a), Send(b), Shutdown], &[r, s], 2));
                }
            }
        }
    }
    explore_all("pairs", scripts);
}

/// More of everything, where it matters.
#[test]
fn selected_triples() {
    let large = [Send(5), Send(5), Send(5)];
    let mixed = [Send(5), Send(1), Send(5)];
    let small = [Send(1), Send(2), Send(1)];
    let scripts = [
        Script::new(&large, &[recv(5), recv(5), recv(5)], 2),
        Script::new(&mixed, &[recv(1), recv(5), recv(5)], 2),
        Script::new(&mixed, &[shy(5), recv(3), recv(5)], 2),
        Script::new(&mixed, &[recv(5), recv(5), peek(5)], 2),
        Script::new(&mixed, &[recv(5), peek(5), recv(5)], 2),
        Script::new(&mixed, &[peek(1), recv(5), recv(2)], 2),
        Script::new(&small, &[recv(5), recv(1), recv(5)], 2),
        Script::new(&[Send(1), Send(5), Send(1), Shutdown], &[recv(5), recv(1), recv(5)], 1),
    ];
    explore_all("triples", scripts);
}

/// Without a stash, and with the buffers no longer shown ahead of time.
#[test]
fn other_configurations() {
    let sends = [Send(1), Send(5), Shutdown];
    let recvs = [recv(5), recv(2)];
    let plain = Script::new(&sends, &recvs, 2);
    let with = |eager_max, stash, eager_run| Script {
        config: PacketConfig { eager_max, stash, max_msg: 9 },
        eager_run,
        ..plain.clone()
    };
    explore_all(
        "other configurations",
        [with(2, 0, 0), with(0, 0, 0), with(0, 128, 0), with(2, 1000, 0), with(2, 132, 3)],
    );
}

/// The witness sees each broken rule.
#[test]
fn broken_rules_are_caught() {
    let large = [Send(5), Send(5)];
    let cases = [
        (Broken::KeepAdverts, Script::new(&large, &[recv(5)], 1), "closed"),
        (Broken::EndAtOnce, Script::new(&large, &[recv(5), recv(5)], 1), "closed"),
        (Broken::ShiftNumbers, Script::new(&large, &[recv(1), recv(5)], 1), ""),
        (Broken::Overtake, Script::new(&large, &[recv(5), recv(5)], 1), ""),
        (Broken::NoAck, Script::new(&[Send(2); 3], &[recv(1), recv(1), recv(1)], 0), "stuck"),
        (Broken::NoRts, Script::new(&large, &[recv(1), recv(5)], 0), "stuck"),
    ];
    for (broken, script, expected) in cases {
        explore(&script).unwrap_or_else(|failure| panic!("{failure:#?}"));
        let script = Script { broken: Some(broken), ..script };
        let Err(failure) = explore(&script) else {
            panic!("{broken:?} was not seen");
        };
        println!("{broken:?}: {}", failure.what);
        assert!(failure.what.contains(expected), "{broken:?}: {failure:#?}");
    }
}

/// A single seed is replayed with `EXS_SEED=n`.
#[test]
fn random_long_runs() {
    let seeds = match std::env::var("EXS_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..5_000,
    };
    let mut steps = 0;
    for seed in seeds {
        steps += random_run(seed).unwrap_or_else(|what| panic!("EXS_SEED={seed}: {what}"));
    }
    println!("{steps} random steps");
}
