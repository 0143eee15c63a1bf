//! Breadth-first search over every order of events.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::world::Wrong;
use super::{Event, Plan, World};

/// What a search found.
pub(super) struct Found {
    pub(super) states: usize,
    pub(super) transitions: usize,
    pub(super) quiet: usize,
    /// The shortest way to something wrong.
    pub(super) wrong: Option<(Vec<Event>, Wrong)>,
}

/// Two independent hashes stand for a state (hash compaction): at a million states
/// the chance that two of them are confused is below 10^-25.
fn fingerprint(world: &World) -> (u64, u64) {
    let mut one = DefaultHasher::new();
    world.hash(&mut one);
    let mut two = DefaultHasher::new();
    0x9e37_79b9_u32.hash(&mut two);
    world.hash(&mut two);
    (one.finish(), two.finish())
}

/// Every state of `plan`, up to the first that is wrong.
pub(super) fn search(plan: &Plan) -> Found {
    let first = World::new(plan);
    let mut seen = HashSet::from([fingerprint(&first)]);
    // Parent and event of each state, for the trace.
    let mut came: Vec<Option<(u32, Event)>> = vec![None];
    let mut frontier = VecDeque::from([(first, 0u32)]);
    let mut found = Found { states: 1, transitions: 0, quiet: 0, wrong: None };
    let mut events = Vec::new();
    while let Some((world, id)) = frontier.pop_front() {
        if let Err(why) = world.check_waits() {
            found.wrong = Some((trace(&came, id, None), why));
            return found;
        }
        if world.is_quiet() {
            found.quiet += 1;
            if let Err(why) = world.check_quiet(plan) {
                found.wrong = Some((trace(&came, id, None), why));
                return found;
            }
        }
        world.events(plan, &mut events);
        for &event in &events {
            let mut next = world.clone();
            found.transitions += 1;
            if let Err(why) = next.apply(plan, event) {
                found.wrong = Some((trace(&came, id, Some(event)), why));
                return found;
            }
            if seen.insert(fingerprint(&next)) {
                let number = u32::try_from(came.len()).expect("fewer than 2^32 states");
                came.push(Some((id, event)));
                frontier.push_back((next, number));
                found.states += 1;
            }
        }
    }
    found
}

fn trace(came: &[Option<(u32, Event)>], mut id: u32, last: Option<Event>) -> Vec<Event> {
    let mut events: Vec<Event> = last.into_iter().collect();
    while let Some((parent, event)) = came[id as usize] {
        events.push(event);
        id = parent;
    }
    events.reverse();
    events
}

/// Prints a trace with what is on its way after each event.
pub(super) fn show(plan: &Plan, events: &[Event], why: &str) {
    let mut world = World::new(plan);
    for (n, event) in events.iter().enumerate() {
        let result = world.apply(plan, *event);
        let ((ps, ss), (pr, sr)) = (world.tx.phase_and_seq(), world.rx.phase_and_seq());
        println!(
            "  {:2} {event:?}  [Ps {ps} Ss {ss} | Pr {pr} Sr {sr}]  -> {:?}  <- {:?}",
            n + 1,
            world.fwd,
            world.back
        );
        if let Err(why) = result {
            println!("     WRONG: {why}");
            return;
        }
    }
    println!("     WRONG: {why}");
}
