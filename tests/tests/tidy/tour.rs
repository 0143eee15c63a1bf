//! `spec-notes/tour.md` names files and functions that exist.

use std::collections::BTreeMap;

use crate::source::{Source, Tok};

pub(crate) const TOUR: &str = "spec-notes/tour.md";

/// Rows of the tour, at least: fewer, and the tables are no longer read rightly.
const LEAST_ROWS: usize = 40;

/// Words in backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The functions that a file defines.
fn functions(src: &Source) -> Vec<&str> {
    let toks = src.tokens();
    toks.windows(2)
        .filter_map(|pair| match [pair[0].1, pair[1].1] {
            [Tok::Word("fn"), Tok::Word(name)] => Some(name),
            _ => None,
        })
        .collect()
}

/// What each row names is there; and how many rows there are.
pub(crate) fn check(tree: &[Source]) -> (Vec<String>, usize) {
    let files: BTreeMap<&str, &Source> = tree.iter().map(|s| (s.path.as_str(), s)).collect();
    let text = files.get(TOUR).map_or("", |s| &s.text);
    let (mut findings, mut rows) = (Vec::new(), 0);
    for (number, line) in (1..).zip(text.lines()) {
        let cells: Vec<&str> = line.split('|').collect();
        let [_, _, file, names, ..] = cells[..] else { continue };
        let Some(path) = quoted(file).next() else { continue };
        rows += 1;
        let Some(source) = files.get(path) else {
            findings.push(format!("{TOUR}:{number}: there is no {path}: where is it now?"));
            continue;
        };
        let defined = functions(source);
        for name in quoted(names).filter(|name| !defined.contains(name)) {
            let known = defined.join(", ");
            findings.push(format!("{TOUR}:{number}: {path} has no function {name}, but {known}"));
        }
    }
    (findings, rows)
}

pub(crate) fn findings(tree: &[Source]) -> Vec<String> {
    let (mut findings, rows) = check(tree);
    if rows < LEAST_ROWS {
        findings.push(format!("{TOUR}: only {rows} rows name a file"));
    }
    findings
}

#[test]
fn a_step_that_does_not_exist_is_caught() {
    let found = |row: &str| {
        let code = "fn send() {} // fn gone()";
        check(&[Source::new(TOUR, row), Source::new("exs/src/a.rs", code)])
    };
    assert_eq!(found("| 1 | `exs/src/a.rs` | `send` | x |"), (vec![], 1));
    assert_eq!(found("| 1 | `exs/src/a.rs` | `send`, `gone` | x |").0.len(), 1);
    assert_eq!(found("| 1 | `exs/src/b.rs` | `send` | x |").0.len(), 1);
    assert_eq!(found("| step | file | function | what happens |"), (vec![], 0));
}
