//! One run of one test binary.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::binaries::Binary;
use crate::notes::{self, Note};
use crate::schedule::LIMIT;

/// Tests of one binary that run at a time, for each processor: most of them wait, for time
/// limits or for their peers.
const THREADS: usize = 4;

/// Lines of output that are shown of a binary that died.
const TAIL: usize = 200;

/// What became of a run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) took: Duration,
    pub(crate) passed: Vec<String>,
    pub(crate) failed: Vec<String>,
    /// Tests without a result, as the binary died: one of them has killed it.
    pub(crate) unfinished: Vec<String>,
    /// Why the binary ended in another way than a test binary does.
    pub(crate) trouble: Option<String>,
    pub(crate) notes: Vec<Note>,
    out: String,
    err: String,
}

impl Outcome {
    /// The output that explains the failures.
    pub(crate) fn text_of_failures(&self) -> String {
        match self.out.split_once("\nfailures:\n") {
            Some((_, failures)) => format!("{failures}\n{}", tail(&self.err)),
            None => format!("{}\n{}", tail(&self.out), tail(&self.err)),
        }
    }

    /// One line on why a test failed.
    pub(crate) fn reason(&self, test: &str) -> String {
        if let Some(trouble) = &self.trouble {
            let last = self.err.lines().rev().find(|l| l.starts_with("watchdog: "));
            return last.map_or(trouble.clone(), |l| format!("{trouble}; {l}"));
        }
        let section = self.out.split_once(&format!("---- {test} stdout ----\n"));
        let panic = section.and_then(|(_, text)| {
            let mut lines = text.lines().skip_while(|l| !l.contains("panicked at"));
            let at = lines.next()?.split("panicked at ").nth(1)?;
            Some(format!("{at} {}", lines.next().unwrap_or_default()))
        });
        panic.unwrap_or_else(|| "no panic in its output".to_owned())
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.ends_with(" ... ok")).collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

/// Runs all tests of a binary that `arguments` choose.
pub(crate) fn binary(binary: &Binary, logs: &Path, arguments: &[String]) -> Outcome {
    let mut arguments = arguments.to_vec();
    let chosen = arguments.iter().any(|a| a.starts_with("--test-threads"));
    if !chosen && std::env::var_os("RUST_TEST_THREADS").is_none() {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        arguments.push(format!("--test-threads={}", THREADS * processors));
    }
    run(binary, &logs.join(binary.file_name()), &arguments)
}

/// Runs these tests alone.
pub(crate) fn these(binary: &Binary, tests: &[String], logs: &Path) -> Outcome {
    let name = match tests {
        [one] => one.replace("::", "."),
        _ => "rest".to_owned(),
    };
    let arguments: Vec<_> =
        std::iter::once("--exact".to_owned()).chain(tests.iter().cloned()).collect();
    run(binary, &logs.join(format!("{}.again.{name}", binary.file_name())), &arguments)
}

fn run(binary: &Binary, log: &Path, arguments: &[String]) -> Outcome {
    let file = |end: &str| PathBuf::from(format!("{}.{end}", log.display()));
    let (out, err) = (file("out"), file("err"));
    let began = Instant::now();
    let ended = start(binary, arguments, &out, &err);
    let read = |path: &Path| {
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    };
    let mut outcome =
        Outcome { took: began.elapsed(), out: read(&out), err: read(&err), ..Outcome::default() };
    let mut ignored = BTreeSet::new();
    // Below a heading the tests' own output follows.
    let headings = ["successes:", "failures:"];
    let results = outcome.out.lines().take_while(|line| !headings.contains(line));
    for (test, word) in results.filter_map(result) {
        match word {
            "ok" => outcome.passed.push(test.to_owned()),
            "FAILED" => outcome.failed.push(test.to_owned()),
            _ => _ = ignored.insert(test.to_owned()),
        }
    }
    outcome.trouble = match ended {
        Ok(status) if status.success() && outcome.failed.is_empty() => None,
        // The status of a test binary with failures.
        Ok(status) if status.code() == Some(101) && !outcome.failed.is_empty() => None,
        Ok(status) => Some(format!("it ended with {status}")),
        Err(why) => Some(why),
    };
    let mut known: BTreeSet<String> = ignored;
    known.extend(outcome.passed.iter().chain(&outcome.failed).cloned());
    if outcome.trouble.is_some() {
        let all = list(binary, arguments);
        outcome.unfinished = all.into_iter().filter(|t| !known.contains(t)).collect();
        known.extend(outcome.unfinished.iter().cloned());
    }
    outcome.notes = notes::parse(&binary.name, &outcome.out, &outcome.err, &known);
    outcome
}

/// A line of the runner inside the binary: `test NAME ... WORD`.
fn result(line: &str) -> Option<(&str, &str)> {
    let (test, words) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let test = test.strip_suffix(" - should panic").unwrap_or(test);
    Some((test, words.split([' ', ',']).next()?))
}

/// Runs the binary until it ends, or kills it at [`LIMIT`].
fn start(
    binary: &Binary,
    arguments: &[String],
    out: &Path,
    err: &Path,
) -> Result<ExitStatus, String> {
    let create = |path: &Path| File::create(path).map_err(|e| format!("{}: {e}", path.display()));
    let mut child = Command::new(&binary.executable)
        .args(arguments)
        .arg("--show-output")
        .current_dir(&binary.home)
        .env("CARGO_MANIFEST_DIR", &binary.home)
        .stdin(Stdio::null())
        .stdout(create(out)?)
        .stderr(create(err)?)
        .spawn()
        .map_err(|e| format!("{}: {e}", binary.executable.display()))?;
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            return Ok(status);
        }
        if began.elapsed() > LIMIT {
            // It may end at this moment.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("it had not ended after {} s", LIMIT.as_secs()));
        }
        // sleep-ok: std has no wait for a child with a time limit
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The tests of a binary that `arguments` choose.
fn list(binary: &Binary, arguments: &[String]) -> Vec<String> {
    let listed = Command::new(&binary.executable)
        .args(arguments)
        .args(["--list", "--format", "terse"])
        .current_dir(&binary.home)
        .stderr(Stdio::null())
        .output();
    let text = listed.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    text.lines().filter_map(|l| l.strip_suffix(": test")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_with_and_without_messages() {
        assert_eq!(result("test a::b ... ok"), Some(("a::b", "ok")));
        assert_eq!(result("test a - should panic ... FAILED"), Some(("a", "FAILED")));
        assert_eq!(result("test a ... ignored, slow"), Some(("a", "ignored")));
        assert_eq!(result("test a has been running for over 60 seconds"), None);
    }

    #[test]
    fn a_reason_is_the_panic_of_that_test() {
        let out = "---- a stdout ----\n\nthread 'a' (7) panicked at x.rs:3:5:\nnot equal\n\
                   ---- b stdout ----\nthread 'b' panicked at y.rs:1:1:\nother\n";
        let outcome = Outcome { out: out.to_owned(), ..Outcome::default() };
        assert_eq!(outcome.reason("b"), "y.rs:1:1: other");
        assert_eq!(outcome.reason("a"), "x.rs:3:5: not equal");
    }

    #[test]
    fn a_death_is_told_with_the_last_word_of_the_watchdog() {
        let outcome = Outcome {
            err: "watchdog: a has not ended within 90s\nthread x\n".to_owned(),
            trouble: Some("it ended with signal: 6".to_owned()),
            ..Outcome::default()
        };
        assert_eq!(
            outcome.reason("a"),
            "it ended with signal: 6; watchdog: a has not ended within 90s"
        );
    }
}
