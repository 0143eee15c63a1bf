//! Words that must not be in the tree.
//!
//! The words are put together from halves here, so that this file does not
//! find itself.

use crate::source::{Source, Tok};

/// Promises to finish something later.
const LATER: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Paths that exist on one machine only.
const PRIVATE_PATHS: [&str; 3] =
    [concat!("/wo", "rk/"), concat!("/tmp/", "brief"), concat!("/ro", "ot/")];

const SLEEPS: [&str; 4] = ["sleep", "sleep_ms", "usleep", "nanosleep"];
const SLEEP_MARK: &str = "// sleep-ok: ";

pub(crate) fn check_rust(src: &Source) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(src.text.lines()) {
        let word = |w: &&str| line.split(|c: char| !c.is_alphanumeric()).any(|part| part == *w);
        if let Some(found) = LATER.iter().find(|w| word(w)) {
            findings.push(format!("{}:{number}: {found}: do it, or leave it out", src.path));
        }
    }
    let toks = src.tokens();
    for (i, (offset, tok)) in toks.iter().enumerate() {
        let Tok::Word(word) = tok else { continue };
        let next = toks.get(i + 1).map(|t| t.1);
        let stub = ["todo", "unimplemented"].contains(word) && next == Some(Tok::Punct(b'!'));
        if stub {
            findings.push(src.at(*offset, "a stub: do it, or leave it out"));
        }
        let own = i > 0 && matches!(toks[i - 1].1, Tok::Word("fn") | Tok::Punct(b'.'));
        let call = SLEEPS.contains(word) && next == Some(Tok::Punct(b'(')) && !own;
        if call && !is_marked(src, *offset) {
            findings.push(src.at(
                *offset,
                "a sleep: wait for the thing itself, or give the reason in `// sleep-ok: reason`",
            ));
        }
    }
    findings
}

/// The mark stands on the line itself or on the one above.
fn is_marked(src: &Source, offset: usize) -> bool {
    let line = src.line_of(offset) - 1;
    src.text
        .lines()
        .skip(line.saturating_sub(1))
        .take(if line == 0 { 1 } else { 2 })
        .any(|l| l.split_once(SLEEP_MARK).is_some_and(|(_, why)| !why.trim().is_empty()))
}

/// For every kind of text file.
pub(crate) fn check_text(src: &Source) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(src.text.lines()) {
        for path in PRIVATE_PATHS.iter().filter(|p| line.contains(**p)) {
            findings.push(format!("{}:{number}: `{path}` is nobody else's path", src.path));
        }
        let script = src.path.ends_with(".sh") || src.path == "Makefile" || src.path == ".ci/run";
        for word in LATER.iter().filter(|w| script && line.contains(**w)) {
            findings.push(format!("{}:{number}: {word}: do it, or leave it out", src.path));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> usize {
        check_rust(&Source::new("exs/src/a.rs", text)).len()
    }

    #[test]
    fn promises_and_stubs_are_caught() {
        assert_eq!(found(concat!("// TO", "DO: later")), 1);
        assert_eq!(found(concat!("/// FIX", "ME")), 1);
        assert_eq!(found(concat!("fn f() { to", "do!() }")), 1);
        assert_eq!(found(concat!("fn f() { unimple", "mented!(\"x\") }")), 1);
        assert_eq!(found("fn todo_list() {} // methods"), 0);
    }

    #[test]
    fn sleeps_need_a_reason() {
        assert_eq!(found("std::thread::sleep(d);"), 1);
        assert_eq!(found("sleep(d); // sleep-ok: "), 1);
        assert_eq!(found("// sleep-ok: the peer is slow on purpose\nthread::sleep(d);"), 0);
        assert_eq!(found("thread::sleep(d); // sleep-ok: a slow disk is played here"), 0);
        assert_eq!(found("// sleep-ok: too far\n\nthread::sleep(d);"), 1);
        assert_eq!(found("clock.sleep(d); fn sleep() {} // thread::sleep(d)"), 0);
    }

    #[test]
    fn private_paths_are_caught_in_any_text() {
        let text = concat!("see /wo", "rk/notes and /ro", "ot/x");
        assert_eq!(check_text(&Source::new("README.md", text)).len(), 2);
        assert_eq!(check_text(&Source::new("README.md", "see /tmp and ./work")).len(), 0);
        let script = concat!("# TO", "DO");
        assert_eq!(check_text(&Source::new("Makefile", script)).len(), 1);
    }
}
