//! `unsafe` lives on islands, and each use of it carries its argument.
//!
//! Clippy asks for the SAFETY comment too; here the list of islands is added,
//! which no lint can hold (an `allow` anywhere would open a new one).

use crate::source::{Source, Tok};

/// Files and directories (with a final `/`) in which `unsafe` may be written.
const ISLANDS: [&str; 12] = [
    "exs/src/sys/",
    "exs/src/mem/raw.rs",
    "exs/src/mem/buffer.rs",
    "exs/src/mem/buffer/compio.rs",
    "exs/src/mem/buffer/spare.rs",
    "exs/src/verbs/",
    "exs/src/shm/ring.rs",
    "exs/src/api/raw.rs",
    "exs-ffi/src/",
    // What the programs need of the C library, and the tests of libc, that the Rust APIs lack.
    "examples/src/sys.rs",
    "tests/src/sys.rs",
    "tests/tests/c/",
];

/// How far above its block an argument may begin.
const REACH: usize = 12;

pub(crate) fn check(src: &Source) -> Vec<String> {
    let island = ISLANDS.iter().any(|i| match i.strip_suffix('/') {
        Some(_) => src.path.starts_with(i),
        None => src.path == *i,
    });
    let lines: Vec<_> = src.text.lines().collect();
    let toks = src.tokens();
    let mut findings = Vec::new();
    for (i, (offset, tok)) in toks.iter().enumerate() {
        let Tok::Word(word @ ("unsafe" | "unsafe_code")) = *tok else { continue };
        if !island && (word == "unsafe" || opens_island(&toks[..i])) {
            findings.push(src.at(
                *offset,
                "`unsafe` outside of its islands: move it to one, behind a safe function",
            ));
            continue;
        }
        let next = toks.get(i + 1).map(|t| t.1);
        let argued = matches!(next, Some(Tok::Punct(b'{') | Tok::Word("impl")));
        if word == "unsafe" && argued && !has_argument(&lines, src.line_of(*offset)) {
            findings.push(src.at(*offset, "`unsafe` without a `// SAFETY:` comment above it"));
        }
    }
    findings
}

/// True if what came before is `allow(` or `expect(`.
fn opens_island(before: &[crate::source::Token<'_>]) -> bool {
    matches!(before, [.., (_, Tok::Word("allow" | "expect")), (_, Tok::Punct(b'('))])
}

/// Looks upwards from line `line` (counted from 1) through the statement's own
/// lines; a blank line or the end of another statement ends the search.
fn has_argument(lines: &[&str], line: usize) -> bool {
    let here = line - 1;
    for (up, text) in lines[..=here].iter().rev().enumerate().take(REACH) {
        if text.contains("// SAFETY:") {
            return true;
        }
        let text = text.trim();
        let is_comment = text.starts_with("//");
        if up > 0 && !is_comment && (text.is_empty() || text.ends_with([';', '}'])) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&Source::new(path, text)).len()
    }

    #[test]
    fn unsafe_outside_of_the_islands_is_caught() {
        let ok = "// SAFETY: sound.\nunsafe { f() }";
        assert_eq!(found("exs/src/tcp/io.rs", ok), 1);
        assert_eq!(found("exs/src/mem/keys.rs", "unsafe fn f() {}"), 1);
        assert_eq!(found("exs/src/mem/keys.rs", "#![allow(unsafe_code)]"), 1);
        assert_eq!(found("exs/src/mem/keys.rs", "#![deny(unsafe_code)] // unsafe { }"), 0);
        assert_eq!(found("exs/src/mem/raw.rs", ok), 0);
        assert_eq!(found("exs/src/sys/deep/x.rs", ok), 0);
        assert_eq!(found("exs/src/mem/raw.rs.rs", ok), 1);
    }

    #[test]
    fn unsafe_without_an_argument_is_caught() {
        let raw = "exs/src/mem/raw.rs";
        assert_eq!(found(raw, "let a = unsafe { f() };"), 1);
        assert_eq!(found(raw, "unsafe impl Send for X {}"), 1);
        assert_eq!(found(raw, "// SAFETY: a.\nlet x = 1;\nlet a = unsafe { f() };"), 1);
        assert_eq!(found(raw, "// SAFETY: a.\n// Really.\nlet a =\n    unsafe { f() };"), 0);
        assert_eq!(found(raw, "unsafe fn f() {}"), 0);
    }
}
