//! The race by a hand clock, and by simulated networks.

use std::collections::BTreeMap;

use super::*;

const V6: [&str; 3] = ["[2001:db8::1]:7", "[2001:db8::2]:7", "[2001:db8::3]:7"];
const V4: [&str; 3] = ["192.0.2.1:7", "192.0.2.2:7", "192.0.2.3:7"];

fn addrs(list: &[&str]) -> Vec<SocketAddr> {
    list.iter().map(|a| a.parse().unwrap()).collect()
}

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

fn race(list: &[&str]) -> Race<&'static str> {
    Race::new(&addrs(list), at(0), at(30_000))
}

/// All actions that are due.
fn actions(race: &mut Race<&'static str>, millis: u64) -> Vec<Action> {
    std::iter::from_fn(|| race.poll_action(at(millis))).collect()
}

fn start(number: usize, addr: &str) -> Action {
    Action::Start(number, addr.parse().unwrap())
}

#[test]
fn families_take_turns_behind_the_first_address() {
    let order = |list: &[&str]| take_turns(&addrs(list));
    assert_eq!(
        order(&[V6[0], V6[1], V6[2], V4[0], V4[1]]),
        addrs(&[V6[0], V4[0], V6[1], V4[1], V6[2]])
    );
    // The resolver prefers IPv4, as for a host without IPv6.
    assert_eq!(order(&[V4[0], V4[1], V6[0]]), addrs(&[V4[0], V6[0], V4[1]]));
    assert_eq!(order(&[V6[0], V6[0], V6[1]]), addrs(&[V6[0], V6[1]]), "each address once");
    let mapped = "[::ffff:192.0.2.9]:7";
    assert_eq!(order(&[V6[0], V6[1], mapped]), addrs(&[V6[0], mapped, V6[1]]));
    assert_eq!(order(&[]), []);
}

#[test]
fn a_silent_address_holds_the_next_up_for_the_delay_only() {
    let mut r = race(&[V6[0], V4[0]]);
    assert_eq!(actions(&mut r, 0), [start(0, V6[0])]);
    assert_eq!(r.next_timeout(), Some(at(250)));
    assert_eq!(actions(&mut r, 249), []);
    assert_eq!(actions(&mut r, 250), [start(1, V4[0])]);
    assert_eq!(r.next_timeout(), None, "all were started");
    assert!(r.handle_success(1));
    assert_eq!(actions(&mut r, 251), [Action::Stop(0)]);
    assert!(!r.handle_success(0), "it is too late");
    assert_eq!((actions(&mut r, 40_000), r.next_timeout()), (vec![], None));
}

#[test]
fn a_failure_starts_the_next_at_once() {
    let mut r = race(&[V6[0], V4[0], V6[1]]);
    assert_eq!(actions(&mut r, 0), [start(0, V6[0])]);
    r.handle_failure(0, "refused", at(10));
    assert_eq!(actions(&mut r, 10), [start(1, V4[0])]);
    assert_eq!(r.next_timeout(), Some(at(260)), "the delay counts from the last start");
    r.handle_failure(0, "again", at(11));
    assert_eq!(actions(&mut r, 11), [], "an attempt fails once");
    r.handle_failure(1, "no route", at(12));
    assert_eq!(actions(&mut r, 12), [start(2, V6[1])]);
    r.handle_failure(2, "timed out", at(9000));
    assert_eq!(actions(&mut r, 9000), [Action::Lost]);
    assert_eq!(actions(&mut r, 9001), [], "it is lost once");
    let (failed, untried) = r.into_failures();
    let all = [(V6[0], "refused"), (V4[0], "no route"), (V6[1], "timed out")];
    assert_eq!(failed, all.map(|(a, e)| (a.parse().unwrap(), e)));
    assert!(untried.is_empty());
}

#[test]
fn nothing_starts_after_the_deadline() {
    let mut r: Race<&str> = Race::new(&addrs(&[V6[0], V6[1], V4[0]]), at(0), at(300));
    assert_eq!(actions(&mut r, 0).len(), 1);
    assert_eq!(actions(&mut r, 250).len(), 1);
    assert_eq!(r.next_timeout(), None, "the third would start at 500");
    assert_eq!(actions(&mut r, 500), [], "two are running");
    r.handle_failure(0, "timed out", at(500));
    r.handle_failure(1, "timed out", at(500));
    assert_eq!(actions(&mut r, 500), [Action::Lost]);
    assert_eq!(r.into_failures().1, addrs(&[V6[1]]));
}

#[test]
fn a_cancel_stops_what_runs() {
    let mut r = race(&[V6[0], V4[0], V6[1]]);
    actions(&mut r, 0);
    actions(&mut r, 250);
    r.handle_cancel();
    assert_eq!(actions(&mut r, 250), [Action::Stop(0), Action::Stop(1)]);
    assert!(!r.handle_success(0) && !r.handle_success(1));
    assert_eq!((actions(&mut r, 9000), r.next_timeout()), (vec![], None));
}

#[test]
fn a_host_without_addresses_is_lost_at_once() {
    let mut r = race(&[]);
    assert_eq!(actions(&mut r, 0), [Action::Lost]);
}

/// What the simulated network does with an attempt, and after how long.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Succeeds(u64),
    Fails(u64),
}

/// splitmix64, so that a seed replays.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// A network: what it does with an attempt at each address.
fn network(random: &mut Random) -> (Vec<SocketAddr>, BTreeMap<SocketAddr, Fate>) {
    let count = usize::try_from(random.below(7)).unwrap();
    let list: Vec<SocketAddr> = (0..count)
        .map(|i| match random.below(2) {
            0 => format!("192.0.2.{i}:7").parse().unwrap(),
            _ => format!("[2001:db8::{i}]:7").parse().unwrap(),
        })
        .collect();
    let fates = list.iter().map(|addr| {
        let after = random.below(600) * random.below(4);
        let succeeds = random.below(3) == 0;
        (*addr, if succeeds { Fate::Succeeds(after) } else { Fate::Fails(after) })
    });
    let fates = fates.collect();
    (list, fates)
}

/// One race under way. The steps of the simulation are the events of the network and the race's own
/// timeouts.
struct Simulation {
    seed: u64,
    race: Race<u64>,
    fates: BTreeMap<SocketAddr, Fate>,
    limit: u64,
    now: u64,
    /// The attempts under way: when each ends, and its address.
    running: BTreeMap<usize, (u64, SocketAddr)>,
    /// When attempts started.
    starts: Vec<u64>,
    /// An attempt has failed since the last start.
    failed: bool,
    won: bool,
    lost: bool,
    cancelled: bool,
}

impl Simulation {
    fn act(&mut self) {
        let seed = self.seed;
        while let Some(action) = self.race.poll_action(at(self.now)) {
            match action {
                Action::Start(number, addr) => {
                    assert!(!self.won && !self.lost && !self.cancelled, "seed {seed}");
                    assert!(self.now < self.limit, "seed {seed}: it starts too late");
                    let gap = self.starts.last().map(|last| self.now - last);
                    let due = gap.is_none_or(|gap| gap >= 250) || self.failed;
                    assert!(due, "seed {seed}: after {gap:?} ms without a failure");
                    self.failed = false;
                    self.starts.push(self.now);
                    let (Fate::Succeeds(t) | Fate::Fails(t)) = self.fates[&addr];
                    self.running.insert(number, (self.now + t, addr));
                }
                Action::Stop(number) => {
                    assert!(self.won || self.cancelled, "seed {seed}: stopped too early");
                    assert!(self.running.remove(&number).is_some(), "seed {seed}: it does not run");
                }
                Action::Lost => {
                    assert!(!self.lost && !self.won && self.running.is_empty(), "seed {seed}");
                    self.lost = true;
                }
            }
        }
        let over = self.won || self.cancelled;
        assert!(!over || self.running.is_empty(), "seed {seed}: attempts still run");
    }

    /// Ends the attempts that end by now.
    fn end_attempts(&mut self) {
        let now = self.now;
        let due =
            |(number, (end, _)): (&usize, &(u64, SocketAddr))| (*end <= now).then_some(*number);
        for number in self.running.iter().filter_map(due).collect::<Vec<_>>() {
            if self.won {
                // The race stops the others.
                return;
            }
            let Some((_, addr)) = self.running.remove(&number) else { continue };
            match self.fates[&addr] {
                Fate::Fails(_) => {
                    self.failed = true;
                    self.race.handle_failure(number, now, at(now));
                }
                Fate::Succeeds(_) => {
                    assert!(self.race.handle_success(number), "seed {}", self.seed);
                    self.won = true;
                }
            }
        }
    }

    fn run(&mut self, cancel: Option<u64>) {
        loop {
            self.act();
            let over = self.won || self.lost || self.cancelled;
            let cancel = cancel.filter(|_| !over);
            let ends = self.running.values().map(|(end, _)| *end).min();
            let timeout = self.race.next_timeout().map(|t| t.as_nanos() / 1_000_000);
            let Some(next) = ends.into_iter().chain(timeout).chain(cancel).min() else { return };
            self.now = self.now.max(next);
            if cancel.is_some_and(|t| t <= self.now) {
                self.cancelled = true;
                self.race.handle_cancel();
            } else {
                self.end_attempts();
            }
        }
    }
}

fn simulate(seed: u64) {
    let mut random = Random(seed);
    let (list, fates) = network(&mut random);
    let limit = 400 + random.below(30_000);
    let cancel = (random.below(5) == 0).then(|| random.below(2000));
    let (running, starts) = (BTreeMap::new(), Vec::new());
    let (failed, won, lost, cancelled) = (false, false, false, false);
    let race = Race::new(&list, at(0), at(limit));
    let mut s = Simulation {
        seed,
        race,
        fates,
        limit,
        now: 0,
        running,
        starts,
        failed,
        won,
        lost,
        cancelled,
    };
    s.run(cancel);
    assert_eq!([s.won, s.lost, s.cancelled].iter().filter(|x| **x).count(), 1, "seed {seed}");
    let (failed, untried) = s.race.into_failures();
    if s.lost {
        assert_eq!(failed.len() + untried.len(), list.len(), "seed {seed}: each has its reason");
        assert_eq!(failed.len(), s.starts.len(), "seed {seed}");
        assert!(untried.is_empty() || s.now + 250 >= limit, "seed {seed}: there was time");
    }
}

#[test]
fn every_outcome_of_a_simulated_network_ends_the_race_once() {
    let seeds = match std::env::var("EXS_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..20_000,
    };
    seeds.for_each(simulate);
}
