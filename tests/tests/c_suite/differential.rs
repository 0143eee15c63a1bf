//! What a program sees of a descriptor, over kernel TCP and over EXS: one list of behaviours
//! (`tests/c/differential`), run over each, and compared.
//!
//! A difference is a fault, or it stands in `spec-notes/deviations.md` (section "Descriptors") with
//! what both say and why. A difference that stands there and does not occur is a fault as well, so
//! the page stays true.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use exs_tests::harness::Watchdog;
use exs_tests::skip;

use super::{plain, run as run_program};

/// Behaviour to what it told.
type Told = BTreeMap<String, String>;

/// One row of the page: what TCP tells, and what EXS does.
#[derive(Debug)]
struct Row {
    tcp: String,
    exs: String,
}

fn run(over: &str) -> Told {
    let program = plain().join("differential");
    let text = run_program(Command::new(program).args(["--over", over]));
    let pair = |line: &str| {
        let (name, told) = line.split_once(": ").expect("a name and what was told");
        (name.to_owned(), told.to_owned())
    };
    text.lines().map(pair).collect()
}

/// Words in backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The rows of the page by behaviour and transport (`name` for all, `name@shm` for one). A row may
/// name several behaviours, with the words of each in the same order.
fn listed() -> BTreeMap<String, Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spec-notes/deviations.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (_, section) = page.split_once("\n## Descriptors\n").expect("the section Descriptors");
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut rows = BTreeMap::new();
    for line in section.lines().filter(|l| l.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let [names, tcp, exs, why] = cells[..] else { panic!("four cells: {line}") };
        assert!(why.trim().len() > 10, "a reason: {line}");
        let (names, tcp, exs) = (quoted(names), quoted(tcp), quoted(exs));
        assert!(names.len() == tcp.len() && names.len() == exs.len(), "as many of each: {line}");
        for ((name, tcp), exs) in names.into_iter().zip(tcp).zip(exs) {
            assert!(rows.insert(name, Row { tcp, exs }).is_none(), "listed twice: {line}");
        }
    }
    rows
}

/// Of one transport: the differences that are not listed, and the rows that do not occur.
fn compare(over: &str, tcp: &Told, exs: &Told, rows: &BTreeMap<String, Row>) -> Vec<String> {
    assert_eq!(tcp.len(), exs.len());
    let mut wrong = Vec::new();
    for (name, by_tcp) in tcp {
        let by_exs = &exs[name];
        let own = rows.get(&format!("{name}@{over}"));
        match own.or_else(|| rows.get(name)) {
            None if by_tcp == by_exs => {}
            None => wrong.push(format!("{name}: tcp `{by_tcp}`, {over} `{by_exs}`")),
            Some(row) if row.tcp == *by_tcp && row.exs == *by_exs => {}
            Some(row) => wrong.push(format!(
                "{name}: tcp `{by_tcp}`, {over} `{by_exs}`, but the page has `{}`, `{}`",
                row.tcp, row.exs
            )),
        }
    }
    wrong
}

/// Runs all behaviours over each transport, and says what the page does not.
fn differences() -> Vec<String> {
    let [tcp, soft, shm] = std::thread::scope(|s| {
        ["tcp", "soft", "shm"].map(|over| s.spawn(move || run(over))).map(|t| t.join().unwrap())
    });
    assert!(tcp.len() > 200, "{} behaviours", tcp.len());
    let rows = listed();
    let known = |name: &String| tcp.contains_key(name.split('@').next().unwrap_or_default());
    let unknown: Vec<&String> = rows.keys().filter(|name| !known(name)).collect();
    assert!(unknown.is_empty(), "rows of no behaviour: {unknown:?}");
    let mut wrong = compare("soft", &tcp, &soft, &rows);
    wrong.extend(compare("shm", &tcp, &shm, &rows));
    wrong
}

#[test]
fn every_difference_from_tcp_is_listed() {
    let _dog =
        Watchdog::with_limit("every_difference_from_tcp_is_listed", Duration::from_secs(1200));
    plain();
    // A busy machine can hold up a behaviour for longer than it waits. A difference that comes
    // again each time is real; any other is reported as flaky.
    let mut wrong = differences();
    for _ in 0..2 {
        if !wrong.is_empty() {
            let again = differences();
            let (still, gone): (Vec<_>, Vec<_>) =
                wrong.into_iter().partition(|one| again.contains(one));
            gone.iter().for_each(|one| skip::flaky(&format!("differed once: {one}")));
            wrong = still;
        }
    }
    assert!(wrong.is_empty(), "mend it, or list it with its reason:\n{}", wrong.join("\n"));
}
