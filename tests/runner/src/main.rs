//! Runs the test binaries of a `cargo test --no-run` side by side, and sums up.
//!
//! ```text
//! exs-test-runner [--jobs N] MESSAGES LOGS [-- ARGUMENTS OF EACH BINARY]
//! ```
//!
//! MESSAGES is the file with cargo's JSON messages, LOGS a directory for the output of each
//! binary. Cargo itself runs one binary after another, and many tests wait for time limits, so
//! the processors are idle for most of that time.
//!
//! A test that failed runs once more, alone. If it passes then, it is reported as flaky: the run
//! passes, and the summary names the test. A test that prints `skipped: REASON` is counted as
//! skipped, `skipped in part: REASON` and `flaky: REASON` are listed by test.
//!
//! `EXS_TEST_NOTES` names a file to which the summary's lines are appended as well, for a caller
//! that sums up several steps.
//!
//! Status: 0 if each test passed, 1 if a test failed twice, 2 if the runner itself failed.

mod binaries;
mod notes;
mod run;
mod schedule;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use binaries::Binary;
use notes::{Kind, Note};
use run::Outcome;

/// The command line.
#[derive(Debug)]
struct Arguments {
    jobs: usize,
    messages: PathBuf,
    logs: PathBuf,
    /// For each test binary.
    rest: Vec<String>,
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let (mut jobs, mut paths) = (None, Vec::new());
    while let Some(word) = words.next() {
        match word.as_str() {
            "--jobs" => jobs = Some(words.next()?.parse().ok().filter(|n| *n > 0)?),
            "--" => break,
            _ => paths.push(PathBuf::from(word)),
        }
    }
    let [messages, logs] = <[PathBuf; 2]>::try_from(paths).ok()?;
    let jobs = jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from));
    Some(Arguments { jobs, messages, logs, rest: words.collect() })
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprintln!("usage: exs-test-runner [--jobs N] MESSAGES LOGS [-- ARGUMENTS]");
        return ExitCode::from(2);
    };
    match run_all(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("exs-test-runner: {e}");
            ExitCode::from(2)
        }
    }
}

/// Returns true if no test failed twice.
fn run_all(arguments: &Arguments) -> std::io::Result<bool> {
    let began = Instant::now();
    std::fs::create_dir_all(&arguments.logs)?;
    let messages = std::fs::read_to_string(&arguments.messages)?;
    let binaries = binaries::tests(&messages);
    let durations = arguments.logs.with_extension("durations");
    let queue = schedule::longest_first(binaries, &schedule::read(&durations));
    let outcomes = schedule::side_by_side(queue, arguments.jobs, |binary| {
        let outcome = run::binary(binary, &arguments.logs, &arguments.rest);
        print_line(binary, &outcome);
        outcome
    });
    schedule::write(&durations, &outcomes)?;

    let mut notes: Vec<Note> = Vec::new();
    let mut passed = 0;
    for (binary, outcome) in &outcomes {
        let (binary_notes, others) = judge(binary, outcome, arguments);
        notes.extend(binary_notes);
        passed += others;
    }
    let failures = notes.iter().filter(|n| n.kind == Kind::Failed).count();
    print!("{}", notes::summary(passed, &notes, began.elapsed()));
    print_slowest(&outcomes);
    println!("logs: {}", arguments.logs.display());
    if let Some(file) = std::env::var_os("EXS_TEST_NOTES") {
        notes::append(Path::new(&file), &notes)?;
    }
    Ok(failures == 0)
}

fn print_line(binary: &Binary, outcome: &Outcome) {
    let state = match (&outcome.trouble, outcome.failed.len()) {
        (Some(trouble), _) => format!("FAILED: {trouble}"),
        (None, 0) => "ok".to_owned(),
        (None, n) => format!("FAILED: {n}"),
    };
    let count = outcome.passed.len() + outcome.failed.len();
    println!("{:7.1} s {count:5} tests  {}  {state}", outcome.took.as_secs_f64(), binary.name);
}

fn print_slowest(outcomes: &[(Binary, Outcome)]) {
    let mut times: Vec<_> = outcomes.iter().map(|(b, o)| (o.took, b.name.as_str())).collect();
    times.sort_unstable_by(|a, b| b.cmp(a));
    let words: Vec<_> =
        times.iter().take(8).map(|(t, name)| format!("{name} {:.0} s", t.as_secs_f64())).collect();
    println!("slowest: {}", words.join(", "));
}

/// Runs what failed once more, alone. Returns the notes of the binary, and the number of tests
/// that passed at the first try and were not skipped.
fn judge(binary: &Binary, outcome: &Outcome, arguments: &Arguments) -> (Vec<Note>, usize) {
    let mut notes = outcome.notes.clone();
    let skipped = notes::tests_skipped(&notes);
    let passed = outcome.passed.iter().filter(|t| !skipped.contains(t.as_str())).count();
    if outcome.failed.is_empty() && outcome.trouble.is_none() {
        return (notes, passed);
    }
    println!("--- {} failed:\n{}", binary.name, outcome.text_of_failures());
    for test in &outcome.failed {
        println!("--- once more, alone: {} {test}", binary.name);
        let again = run::these(binary, std::slice::from_ref(test), &arguments.logs);
        let name = format!("{} {test}", binary.name);
        notes.push(verdict(&name, &again, outcome.reason(test), &again.reason(test)));
    }
    if outcome.trouble.is_some() {
        println!("--- once more: {} tests of {}", outcome.unfinished.len(), binary.name);
        let again = run::these(binary, &outcome.unfinished, &arguments.logs);
        let why = again.failed.first().map_or(again.reason(""), |test| again.reason(test));
        notes.push(verdict(&binary.name, &again, outcome.reason(""), &why));
    }
    (notes, passed)
}

/// The note on what ran once more: `first` and `second` are the reasons of the failures.
fn verdict(name: &str, again: &Outcome, first: String, second: &str) -> Note {
    if again.failed.is_empty() && again.trouble.is_none() && !again.passed.is_empty() {
        return Note::new(Kind::Flaky, name, format!("passed at the second try; first: {first}"));
    }
    println!("{}", again.text_of_failures());
    Note::new(Kind::Failed, name, second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Option<Arguments> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn arguments_after_two_dashes_are_for_the_binaries() {
        let parsed = words("--jobs 3 built.json logs -- --jobs x").unwrap();
        assert_eq!((parsed.jobs, parsed.rest.len()), (3, 2));
        assert_eq!(parsed.logs, Path::new("logs"));
    }

    #[test]
    fn missing_or_wrong_arguments_are_refused() {
        for line in ["", "built.json", "a b c", "--jobs 0 a b", "--jobs"] {
            assert!(words(line).is_none(), "{line}");
        }
    }
}
