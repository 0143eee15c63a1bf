//! Essays at the head of modules, links between documents, lints in manifests.

use std::collections::BTreeSet;

use crate::source::Source;

const ESSAY_MIN: usize = 5;

/// Each `mod.rs` and `lib.rs` of the core opens with an essay.
pub(crate) fn check_essay(src: &Source) -> Vec<String> {
    let essay_due = src.path.starts_with("exs/src/")
        && (src.path.ends_with("/mod.rs") || src.path == "exs/src/lib.rs");
    let lines = src.text.lines().take_while(|l| l.starts_with("//!")).count();
    if essay_due && lines < ESSAY_MIN {
        return vec![format!(
            "{}:1: opens with {lines} lines of `//!`; say in {ESSAY_MIN} or more what the module \
             promises, what it must never know, and which clause it implements",
            src.path
        )];
    }
    Vec::new()
}

/// Relative links in Markdown must lead to files.
pub(crate) fn check_links(src: &Source, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    if !src.path.ends_with(".md") {
        return Vec::new();
    }
    let dir = src.path.rsplit_once('/').map_or("", |(dir, _)| dir);
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(src.text.lines()) {
        let defined = line.strip_prefix('[').and_then(|l| Some(l.split_once("]: ")?.1));
        for rest in line.split("](").skip(1).chain(defined) {
            let target = rest.split([')', '#', ' ']).next().unwrap_or("");
            let elsewhere = target.is_empty() || target.contains(':');
            if !elsewhere
                && !exists(
                    &format!("{dir}/{target}").replace("//", "/")[usize::from(dir.is_empty())..],
                )
            {
                findings.push(format!("{}:{number}: no such file: {target}", src.path));
            }
        }
    }
    findings
}

/// A member that does not say so would have no lints at all.
pub(crate) fn check_manifest(src: &Source) -> Vec<String> {
    let member = src.path.ends_with("/Cargo.toml")
        && !src.path.starts_with("fuzz/")
        && !src.path.starts_with("tests/bindings/");
    if member && !src.text.replace(' ', "").contains("[lints]\nworkspace=true") {
        return vec![format!("{}: takes no lints; add `[lints] workspace = true`", src.path)];
    }
    Vec::new()
}

/// Environment variables that the code reads are documented, and those that are
/// documented are read. In Rust a name counts where it is a whole string; in the book, in the
/// README and in CONTRIBUTING.md where it is a whole code span. What the header of C defines is no
/// variable.
pub(crate) fn check_variables(tree: &[Source]) -> Vec<String> {
    let named = |quote: char, wanted: &dyn Fn(&str) -> bool| -> BTreeSet<String> {
        tree.iter()
            .filter(|s| wanted(&s.path))
            .flat_map(|s| s.text.split(quote).filter(|part| is_variable(part)))
            .map(str::to_owned)
            .collect()
    };
    let read = named('"', &|p| p.ends_with(".rs") && !p.starts_with("tests/tests/tidy/"));
    let is_document = |p: &str| {
        ["README.md", "CONTRIBUTING.md"].contains(&p)
            || p.starts_with("docs/book/src/") && p.ends_with(".md")
    };
    let told = named('`', &is_document);
    let header = tree.iter().filter(|s| s.path.ends_with("include/sys/exs.h"));
    let defined: BTreeSet<&str> = header
        .flat_map(|s| s.text.lines().filter_map(|l| l.strip_prefix("#define ")))
        .filter_map(|l| l.split_whitespace().next())
        .collect();
    let variables = |mut names: BTreeSet<String>| {
        names.retain(|name| !defined.contains(name.as_str()));
        names
    };
    let (read, told) = (variables(read), variables(told));
    let untold = read.difference(&told).map(|v| format!("{v} is read, but no document names it"));
    let unread = told.difference(&read).map(|v| format!("{v} is documented, but never read"));
    untold.chain(unread).collect()
}

fn is_variable(part: &str) -> bool {
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    part.len() > 4 && part.starts_with("EXS_") && part.chars().all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_without_essay_is_caught() {
        let essay = |path, lines| check_essay(&Source::new(path, &"//! x\n".repeat(lines))).len();
        assert_eq!(essay("exs/src/a/mod.rs", 4), 1);
        assert_eq!(essay("exs/src/a/mod.rs", 5), 0);
        assert_eq!(essay("exs/src/a/b.rs", 0), 0);
        assert_eq!(essay("exs/src/lib.rs", 1), 1);
        let late = format!("use x;\n{}", "//! x\n".repeat(9));
        assert_eq!(check_essay(&Source::new("exs/src/a/mod.rs", &late)).len(), 1);
    }

    #[test]
    fn a_dead_link_is_caught() {
        let there = |p: &str| ["b.md", "notes/c.md"].contains(&p);
        let found = |path, text| check_links(&Source::new(path, text), &there).len();
        assert_eq!(found("a.md", "[x](b.md) [y](gone.md) [z](https://e.org) [w](#here)"), 1);
        assert_eq!(found("notes/a.md", "[x](c.md#part)"), 0);
        assert_eq!(found("notes/a.md", "[x](b.md)"), 1);
        assert_eq!(found("a.md", "[x]: gone.md"), 1);
        assert_eq!(found("a.md", "[x]: b.md#part"), 0);
    }

    #[test]
    fn a_member_without_lints_is_caught() {
        let found = |text| check_manifest(&Source::new("exs/Cargo.toml", text)).len();
        assert_eq!(found("[package]\n"), 1);
        assert_eq!(found("[lints]\nworkspace = true\n"), 0);
    }

    #[test]
    fn variables_that_only_one_side_knows_are_caught() {
        let tree = |code: &str, doc: &str| {
            check_variables(&[Source::new("exs/src/a.rs", code), Source::new("README.md", doc)])
        };
        assert_eq!(tree("var(\"EXS_A\")", "| `EXS_A` |").len(), 0);
        assert_eq!(tree("var(\"EXS_A\")", "see EXS_A").len(), 1);
        assert_eq!(tree("// EXS_B", "| `EXS_B` |").len(), 1);
        let page = Source::new("docs/book/src/guide/a.md", "`EXS_C`");
        assert_eq!(
            check_variables(&[Source::new("exs/src/a.rs", "var(\"EXS_C\")"), page]).len(),
            0
        );
    }
}
