//! What a run has to say beside passed and failed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

/// Why a test is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// It failed, and failed again alone.
    Failed,
    /// It passed at a second try.
    Flaky,
    /// It could not run here.
    Skipped,
    /// A part of it could not run here; the rest passed.
    Partly,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Failed, Kind::Flaky, Kind::Skipped, Kind::Partly];

    /// The word that a test prints at the start of a line, and the summary's word.
    fn word(self) -> &'static str {
        match self {
            Kind::Failed => "failed",
            Kind::Flaky => "flaky",
            Kind::Skipped => "skipped",
            Kind::Partly => "skipped in part",
        }
    }
}

/// One line of the summary.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Note {
    pub(crate) kind: Kind,
    /// `BINARY` or `BINARY TEST`.
    pub(crate) place: String,
    pub(crate) why: String,
}

impl Note {
    pub(crate) fn new(kind: Kind, place: &str, why: impl Into<String>) -> Note {
        Note { kind, place: place.to_owned(), why: why.into() }
    }

    fn binary(&self) -> &str {
        self.place.split(' ').next().unwrap_or_default()
    }
}

/// The notes in the output of a binary: lines `skipped: WHY` in the section of a test in `out`
/// (the runner of the tests prints the sections), `skipped: TEST: WHY` anywhere in `err`.
pub(crate) fn parse(binary: &str, out: &str, err: &str, tests: &BTreeSet<String>) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut section = "";
    for line in out.lines() {
        let title = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----"));
        section = title.unwrap_or(section);
        notes.extend(parse_line(binary, section, line, tests));
    }
    notes.extend(err.lines().filter_map(|line| parse_line(binary, "", line, tests)));
    notes.sort();
    // A test that says it twice is one test.
    notes.dedup_by(|a, b| a.kind == b.kind && a.place == b.place && a.place.contains(' '));
    notes
}

fn parse_line(binary: &str, section: &str, line: &str, tests: &BTreeSet<String>) -> Option<Note> {
    let (kind, rest) = [Kind::Skipped, Kind::Partly, Kind::Flaky]
        .into_iter()
        .find_map(|kind| Some((kind, line.strip_prefix(kind.word())?.strip_prefix(": ")?)))?;
    let (test, why) = match rest.split_once(": ") {
        Some((test, why)) if tests.contains(test) => (test, why),
        _ => (section, rest),
    };
    let place = if test.is_empty() { binary.to_owned() } else { format!("{binary} {test}") };
    Some(Note::new(kind, &place, why))
}

/// The names of the tests that are skipped as a whole.
pub(crate) fn tests_skipped(notes: &[Note]) -> BTreeSet<&str> {
    let skipped = notes.iter().filter(|n| n.kind == Kind::Skipped);
    skipped.filter_map(|n| Some(n.place.split_once(' ')?.1)).collect()
}

/// The end of the report: a line of counts, and what they count.
pub(crate) fn summary(passed: usize, notes: &[Note], took: Duration) -> String {
    let mut text = format!("=== tests: {passed} passed");
    for kind in Kind::ALL {
        let count = notes.iter().filter(|n| n.kind == kind).count();
        let _ = write!(text, ", {count} {}", kind.word());
    }
    let _ = writeln!(text, "; {} s", took.as_secs());
    for kind in Kind::ALL {
        let of_kind: Vec<_> = notes.iter().filter(|n| n.kind == kind).collect();
        if !of_kind.is_empty() {
            let _ = writeln!(text, "{}:", kind.word());
            list(&mut text, &of_kind);
        }
    }
    text
}

/// Tests of one binary with one reason share a line, if there are more than two.
fn list(text: &mut String, notes: &[&Note]) {
    let mut groups: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for note in notes {
        groups.entry((note.binary(), &note.why)).or_default().push(&note.place);
    }
    for ((binary, why), places) in groups {
        if places.len() > 2 {
            let _ = writeln!(text, "  {binary} ({} tests): {why}", places.len());
        } else {
            for place in places {
                let _ = writeln!(text, "  {place}: {why}");
            }
        }
    }
}

/// Appends `KIND<tab>PLACE<tab>WHY` for each.
pub(crate) fn append(file: &Path, notes: &[Note]) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
    let lines: String =
        notes.iter().map(|n| format!("{}\t{}\t{}\n", n.kind.word(), n.place, n.why)).collect();
    file.write_all(lines.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> BTreeSet<String> {
        ["a::one", "two", "three", "four"].map(str::to_owned).into()
    }

    #[test]
    fn skips_are_found_in_sections_and_on_standard_error() {
        let out = "test two ... ok\n\nsuccesses:\n\n---- two stdout ----\nskipped: no IPv6\n";
        let err = "skipped: a::one: needs root\nskipped: a::one: needs root, again\n\
                   flaky: three: two tries\nskipped in part: four: no FUSE: the rest runs\n\
                   not skipped: x\n";
        let notes = parse("b", out, err, &known());
        let text: Vec<_> =
            notes.iter().map(|n| format!("{} {}: {}", n.kind.word(), n.place, n.why)).collect();
        assert_eq!(
            text,
            [
                "flaky b three: two tries",
                "skipped b a::one: needs root",
                "skipped b two: no IPv6",
                "skipped in part b four: no FUSE: the rest runs",
            ]
        );
        assert_eq!(tests_skipped(&notes), BTreeSet::from(["a::one", "two"]));
    }

    #[test]
    fn a_skip_without_a_test_is_of_the_binary() {
        let notes = parse("b", "", "skipped: there is no clang: nothing\n", &known());
        assert_eq!(notes, [Note::new(Kind::Skipped, "b", "there is no clang: nothing")]);
    }

    #[test]
    fn the_summary_counts_each_kind_and_groups_by_reason() {
        let mut notes = vec![
            Note::new(Kind::Flaky, "b one", "passed alone"),
            Note::new(Kind::Failed, "b two", "panicked"),
        ];
        notes.extend(
            ["x", "y", "z"].map(|t| Note::new(Kind::Skipped, &format!("c {t}"), "no root")),
        );
        let text = summary(7, &notes, Duration::from_secs(3));
        assert_eq!(
            text,
            "=== tests: 7 passed, 1 failed, 1 flaky, 3 skipped, 0 skipped in part; 3 s\n\
             failed:\n  b two: panicked\nflaky:\n  b one: passed alone\n\
             skipped:\n  c (3 tests): no root\n"
        );
    }
}
