//! The order of the binaries, and how many run at a time.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use crate::binaries::Binary;
use crate::run::Outcome;

/// The binaries that take longest, for a machine that has no durations of an earlier run.
const KNOWN_LONG: [&str; 8] = [
    "exs-tests/c_suite",
    "exs-tests/socket_contract",
    "exs",
    "exs-tests/stress",
    "exs-tests/socket_contract_poor",
    "exs-ffi/library",
    "exs-tests/rnic_contract_soft",
    "exs-tests/processes",
];

/// Seconds of each binary in the last run.
type Durations = BTreeMap<String, f64>;

/// Reads the durations of the last run; none if there was none.
pub(crate) fn read(file: &Path) -> Durations {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let parse = |line: &str| {
        let (seconds, name) = line.split_once(' ')?;
        Some((name.to_owned(), seconds.parse().ok()?))
    };
    text.lines().filter_map(parse).collect()
}

/// Keeps the durations for the next run. Those of binaries that did not run now stay.
pub(crate) fn write(file: &Path, outcomes: &[(Binary, Outcome)]) -> std::io::Result<()> {
    let mut all = read(file);
    all.extend(outcomes.iter().map(|(b, o)| (b.name.clone(), o.took.as_secs_f64())));
    let lines: String = all.iter().map(|(name, s)| format!("{s:.1} {name}\n")).collect();
    std::fs::write(file, lines)
}

/// Sorts so that no long binary is left alone at the end.
pub(crate) fn longest_first(mut binaries: Vec<Binary>, durations: &Durations) -> Vec<Binary> {
    let guess = |name: &str| {
        let place = KNOWN_LONG.iter().position(|known| *known == name);
        place.map_or(0.0, |at| f64::from(u32::try_from(100 - at).expect("below 100")))
    };
    let seconds = |b: &Binary| durations.get(&b.name).copied().unwrap_or_else(|| guess(&b.name));
    binaries.sort_by(|a, b| seconds(b).total_cmp(&seconds(a)));
    binaries
}

/// Runs all, `jobs` at a time, and returns them in the order of the queue.
pub(crate) fn side_by_side<T: Send>(
    queue: Vec<Binary>,
    jobs: usize,
    run: impl Fn(&Binary) -> T + Sync,
) -> Vec<(Binary, T)> {
    let queue: Mutex<VecDeque<_>> = Mutex::new(queue.into_iter().enumerate().collect());
    let done = Mutex::new(Vec::new());
    let next = || queue.lock().expect("no thread panics with the lock").pop_front();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some((place, binary)) = next() {
                    let outcome = run(&binary);
                    let mut done = done.lock().expect("no thread panics with the lock");
                    done.push((place, binary, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panics with the lock");
    done.sort_by_key(|(place, ..)| *place);
    done.into_iter().map(|(_, binary, outcome)| (binary, outcome)).collect()
}

/// Waits that are too long for a test binary end it.
pub(crate) const LIMIT: Duration = Duration::from_secs(30 * 60);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn named(name: &str) -> Binary {
        Binary { name: name.to_owned(), executable: "x".into(), home: ".".into() }
    }

    fn names(binaries: &[Binary]) -> Vec<&str> {
        binaries.iter().map(|b| b.name.as_str()).collect()
    }

    #[test]
    fn measured_durations_and_then_known_ones_decide_the_order() {
        let all = vec![named("a"), named("exs-tests/c_suite"), named("b")];
        let without = longest_first(all.clone(), &Durations::new());
        assert_eq!(names(&without), ["exs-tests/c_suite", "a", "b"]);
        let durations =
            Durations::from([("b".to_owned(), 7.0), ("exs-tests/c_suite".to_owned(), 1.0)]);
        assert_eq!(names(&longest_first(all, &durations)), ["b", "exs-tests/c_suite", "a"]);
    }

    #[test]
    fn binaries_run_side_by_side() {
        // Two that wait for each other end only if both run.
        let both = Barrier::new(2);
        let done = side_by_side(vec![named("a"), named("b")], 2, |b| {
            both.wait();
            b.name.clone()
        });
        assert_eq!(done.iter().map(|(_, n)| n.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }
}
