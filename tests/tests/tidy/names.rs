//! Type names of the library: each stands for one thing.
//!
//! A reader who meets `State` in a file must not have to ask which of several it is. So
//! the rule counts the names that two or more files of `exs/src` define. Tests and models
//! do not count: their types stay inside of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Source, Tok};

/// Names that may be defined in more than one file. The number only goes down.
pub(crate) const SHARED_MAX: usize = 15;

/// Parts of paths that hold tests, simulations and models.
const TESTS: [&str; 4] = ["/tests", "/sim/", "/model", "/sim.rs"];

/// The names that a file defines outside of its tests.
fn defined(src: &Source) -> BTreeSet<&str> {
    let end = src.code.find("\nmod tests {").unwrap_or(src.code.len());
    let toks = src.tokens();
    let mut names = BTreeSet::new();
    for pair in toks.windows(2) {
        let ((offset, Tok::Word(keyword)), (_, Tok::Word(name))) = (pair[0], pair[1]) else {
            continue;
        };
        let line = src.code[..offset].rfind('\n').map_or(0, |i| i + 1);
        let found = match keyword {
            "struct" | "enum" | "union" | "trait" => true,
            // An indented one is an associated type.
            "type" => !src.code[line..].starts_with(' '),
            _ => false,
        };
        if found && offset < end && name.starts_with(|c: char| c.is_ascii_uppercase()) {
            names.insert(name);
        }
    }
    names
}

/// The names that two or more files of the library define, with these files.
pub(crate) fn shared(tree: &[Source]) -> Vec<String> {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for src in tree {
        let library = src.is_rust() && src.path.starts_with("exs/src/");
        if library && !TESTS.iter().any(|part| src.path.contains(part)) {
            for name in defined(src) {
                files.entry(name).or_default().push(&src.path);
            }
        }
    }
    let shared = files.into_iter().filter(|(_, files)| files.len() > 1);
    shared.map(|(name, files)| format!("{name}: {}", files.join(", "))).collect()
}

#[test]
fn names_defined_in_two_files_are_counted() {
    let tree = [
        Source::new("exs/src/a.rs", "pub struct State;\nenum One {}\n// struct Other;"),
        Source::new("exs/src/b.rs", "type State = u8;\nimpl A {\n    type One = u8;\n}"),
        Source::new("exs/src/c.rs", "struct Other;\nmod tests {\n    struct State;\n}"),
        Source::new("exs/src/model/d.rs", "struct Other;"),
        Source::new("tests/src/e.rs", "struct Other;"),
    ];
    assert_eq!(shared(&tree), ["State: exs/src/a.rs, exs/src/b.rs"]);
}
