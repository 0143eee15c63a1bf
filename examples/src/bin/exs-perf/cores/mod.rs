//! How a program uses all cores: shapes of programs over EXS and over plain TCP, in one run, with
//! the aims beside the figures.
//!
//! `plan` says what is measured and compared, in groups. Each run is a process of its own (`sample`)
//! that carries out one `shape` over one `carrier`; `report` prints the rows. The shapes:
//!
//! - `own`: each thread has an event queue and a pair of connected sockets, and sends itself
//!   messages. Threads share nothing but the library. `copies` is the same without a library.
//! - `pairs`: two threads for each connection ask and answer with calls that block. In `queued_pairs`
//!   each of them has an event queue of its own.
//! - `ask`: a thread asks a server in another process (`serve`) on one connection, or on many. Both
//!   wait in epoll: for the descriptor of the event queue, or for those of the sockets (`loops`); on
//!   one core, or on two (`placement`).
//! - `handed`: the server has one thread that accepts, and several that serve what it has accepted.
//! - `pooled`: threads take connections from a pool, ask on one at a time, and put it back.
//! - `rarely`: a thread asks a server in another process now and then, with calls that block.
//! - many connections that carry a stream: the bandwidth test of exs-perf, with two threads.
//! - `connects`: connections made, used and closed; one after the other, all at once, with a thread
//!   for each or a pool of threads that serve them, and with several threads that accept.
//! - `memory`: what idle connections and idle queues cost.

mod ask;
mod carrier;
mod clock;
mod connects;
mod copies;
mod handed;
mod loops;
mod memory;
mod own;
mod pairs;
mod placement;
mod plan;
mod pooled;
mod queued_pairs;
mod rarely;
mod report;
pub(crate) mod sample;
pub(crate) mod serve;
mod shape;
mod sockets;

use std::fs;
use std::time::Duration;

use exs_tools::fail::{During, Failure};
use exs_tools::out;

pub(crate) use self::carrier::Carrier;
use self::plan::{Group, Scope};
use self::report::{Measured, Samples, Table};
use crate::cli::Cores;

/// What `--quick` measures with, where the user says nothing else.
const QUICK: Extent = Extent {
    duration: Duration::from_millis(100),
    rounds: 1,
    connections: 50,
    at_once: 200,
    queues: 8,
};
const FULL: Extent = Extent {
    duration: Duration::from_secs(1),
    rounds: 3,
    connections: 1000,
    at_once: 10_000,
    queues: 64,
};

struct Extent {
    duration: Duration,
    rounds: u32,
    connections: u32,
    at_once: u32,
    queues: u32,
}

pub(crate) fn run(args: &Cores) -> Result<(), Failure> {
    let extent = if args.quick { QUICK } else { FULL };
    let duration = args.duration.unwrap_or(extent.duration);
    let rounds = args.rounds.unwrap_or(extent.rounds);
    let scope = Scope {
        carriers: args.carriers.clone(),
        threads: args.threads.clone(),
        sizes: args.sizes.clone(),
        pairs: args.pairs.clone(),
        connections: args.connections.unwrap_or(extent.connections),
        at_once: args.at_once.unwrap_or(extent.at_once),
        queues: args.queues.unwrap_or(extent.queues),
        cores: cores()?,
    };
    let groups = chosen(scope.groups(), &args.only)?;
    if !args.json {
        out!("{}; medians of {rounds} rounds, {} s each", machine()?, duration.as_secs_f64())?;
    }
    let mut table = Table::new(args.json)?;
    for group in &groups {
        table.print(group, &measure(group, rounds, duration))?;
    }
    let totals = table.totals;
    if !args.json {
        out!("{}: {} aims met, {} not met", machine()?, totals.met, totals.missed)?;
    }
    match totals.failed {
        0 => Ok(()),
        n => Err(Failure(format!(
            "{n} figures could not be measured: the lines `failed` (JSON: the field) say why"
        ))),
    }
}

/// The groups with these names; of a word that is no name, those whose names begin with it.
fn chosen(groups: Vec<Group>, only: &[String]) -> Result<Vec<Group>, Failure> {
    let names: Vec<String> = groups.iter().map(|g| g.name.clone()).collect();
    let mut wanted = Vec::new();
    for word in only {
        let before = wanted.len();
        if names.contains(word) {
            wanted.push(word);
        } else {
            wanted.extend(names.iter().filter(|name| name.starts_with(word.as_str())));
        }
        if wanted.len() == before {
            let names = names.join(", ");
            return Err(Failure(format!("no rows are called `{word}`: --only takes {names}")));
        }
    }
    Ok(groups.into_iter().filter(|g| only.is_empty() || wanted.contains(&&g.name)).collect())
}

/// Runs the subjects of a group in turn, again for each round. A subject that has failed does not run again.
fn measure(group: &Group, rounds: u32, duration: Duration) -> Measured {
    let mut all: Vec<(_, Samples)> =
        group.subjects().into_iter().map(|s| (s, Ok(Vec::new()))).collect();
    for _ in 0..rounds {
        for (subject, samples) in &mut all {
            let Ok(list) = samples else { continue };
            match sample::take(*subject, duration) {
                Ok(sample) => list.push(sample),
                Err(why) => *samples = Err(why),
            }
        }
    }
    Measured(all)
}

fn cores() -> Result<usize, Failure> {
    std::thread::available_parallelism().during("processors").map(usize::from)
}

/// What else may have run: the processors, and the mean load of the last minute.
fn machine() -> Result<String, Failure> {
    let file = "/proc/loadavg";
    let load = fs::read_to_string(file).during(file)?;
    let load = load.split(' ').next().unwrap_or_default();
    let cores = cores()?;
    Ok(format!("{cores} processors, load {load}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_groups() {
        let names = ["own-64", "own-64k", "pairs-1"];
        let groups = || names.map(|n| Group { name: n.to_owned(), rows: Vec::new() }).into();
        let by = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&w| w.to_owned()).collect();
            chosen(groups(), &words).map(|all| all.into_iter().map(|g| g.name).collect::<Vec<_>>())
        };
        assert_eq!(by(&[]).unwrap(), names);
        assert_eq!(by(&["own"]).unwrap(), ["own-64", "own-64k"]);
        assert_eq!(by(&["pairs", "own-64"]).unwrap(), ["own-64", "pairs-1"]);
        let refused = by(&["own", "none"]).unwrap_err().to_string();
        assert!(refused.contains("`none`") && refused.contains("pairs-1"), "{refused}");
    }
}
