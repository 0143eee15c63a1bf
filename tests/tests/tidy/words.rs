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

/// Phrases that a reader stumbles over (CONTRIBUTING.md, "Language"), as words; `*` stands for an ending.
const FORBIDDEN: [&[&str]; 17] = [
    &["whoever"],
    &["nobody"],
    &["somebody"],
    &["borne"],
    &["in", "vain"],
    &["of", "late"],
    &["tell*", "of"],
    &["told", "of"],
    &["hear*", "of"],
    &["as", "good", "as"],
    &["come*", "about"],
    &["came", "about"],
    &["coming", "about"],
    &["for", "want", "of"],
    &["so", "many"],
    &["so", "long"],
    &["who"],
];

/// A `who` behind one of these, or at the beginning of a sentence, has no person before it.
const HEADLESS: [&str; 14] = [
    ".", "by", "for", "from", "to", "of", "than", "but", "as", "with", "wakes", "knows", "says",
    "whom",
];

/// Files that name the phrases, and a journal of measurements.
const NOT_READ: [&str; 4] =
    ["tests/tests/tidy/words.rs", "CONTRIBUTING.md", "docs/bench/", "LICENSE"];

/// A word in lower case, or `.` for what ends a sentence; and its line.
type Word = (String, usize);

/// The words of a text outside of code spans, with `.` wherever a sentence or a cell may begin.
fn words_of(line: &str, number: usize, out: &mut Vec<Word>) {
    let mut word = String::new();
    let mut code = false;
    for c in line.chars().chain([' ']) {
        code ^= c == '`';
        if c.is_alphanumeric() && !code || c == '\'' {
            word.extend(c.to_lowercase());
            continue;
        }
        if !word.is_empty() {
            out.push((std::mem::take(&mut word), number));
        }
        // A span of code stands for a noun.
        if c == '`' && !code {
            out.push(("`".to_owned(), number));
        }
        if ".;:!?([{|\"#".contains(c) {
            out.push((".".to_owned(), number));
        }
    }
}

/// Comments, literals and names of functions in Rust; comments of C and of scripts; prose of documents.
fn prose(src: &Source) -> Vec<Word> {
    let mut out = Vec::new();
    let mut fenced = false;
    for ((number, line), code) in
        (1..).zip(src.text.lines()).zip(src.code.lines().map(Some).chain(std::iter::repeat(None)))
    {
        let bare = line.trim_start();
        if let Some(code) = code {
            let hidden: String = (line.bytes().zip(code.bytes()))
                .map(|(t, c)| if t == c { ' ' } else { char::from(t) })
                .collect();
            if !code.trim().is_empty() || hidden.trim().is_empty() {
                out.push((".".to_owned(), number));
            }
            words_of(hidden.trim_start().trim_start_matches(['/', '!']), number, &mut out);
            if let Some((_, name)) = code.split_once("fn ") {
                let name = name.split(['(', '<']).next().unwrap_or_default().replace('_', " ");
                out.push((".".to_owned(), number));
                words_of(&name, number, &mut out);
                out.push((".".to_owned(), number));
            }
        } else if src.path.ends_with(".md") {
            fenced ^= bare.starts_with("```");
            if fenced || bare.is_empty() {
                out.push((".".to_owned(), number));
            } else {
                words_of(bare, number, &mut out);
            }
        } else if ["/*", "* ", "*/", "//", "# "].iter().any(|mark| bare.starts_with(mark)) {
            words_of(bare.trim_start_matches(['/', '*', '#']), number, &mut out);
        } else {
            out.push((".".to_owned(), number));
        }
    }
    out
}

fn matches(word: &str, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(stem) => ["", "s", "d", "ing"].iter().any(|end| word.strip_suffix(end) == Some(stem)),
        None => word == pattern,
    }
}

/// The forbidden phrases of a text.
pub(crate) fn phrases(src: &Source) -> Vec<String> {
    let words = prose(src);
    let mut findings = Vec::new();
    for (i, (_, line)) in words.iter().enumerate() {
        for phrase in FORBIDDEN {
            let here = words.get(i..i + phrase.len()).is_some_and(|there| {
                there.iter().zip(phrase).all(|((word, _), part)| matches(word, part))
            });
            let before = i.checked_sub(1).map_or(".", |b| &words[b].0);
            let after = words.get(i + phrase.len()).map_or(".", |w| &w.0);
            let allowed = match phrase {
                ["who"] => !HEADLESS.contains(&before),
                ["so", _] => ["as", "that"].contains(&after),
                _ => false,
            };
            if here && !allowed {
                findings.push(format!("{}:{line}: \"{}\"", src.path, phrase.join(" ")));
            }
        }
    }
    findings
}

fn is_read(src: &Source) -> bool {
    let kinds = [".rs", ".md", ".c", ".h", ".sh"];
    kinds.iter().any(|end| src.path.ends_with(end))
        && !NOT_READ.iter().any(|start| src.path.starts_with(start))
}

/// The forbidden phrases of all files that are read.
pub(crate) fn check_phrases(tree: &[Source]) -> Vec<String> {
    let found = tree.iter().filter(|s| is_read(s)).flat_map(phrases);
    found.map(|f| format!("{f}: say who does it, in plain words")).collect()
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

    #[test]
    fn forbidden_phrases_are_caught_in_comments_literals_and_names() {
        let found = |path: &str, text: &str| phrases(&Source::new(path, text)).len();
        let rust = |text: &str| found("exs/src/a.rs", text);
        assert_eq!(rust("// Nobody waits."), 1);
        assert_eq!(rust("// the look was in\n// vain"), 1);
        assert_eq!(rust("fn a() {} // in\nfn vain() {}"), 0);
        assert_eq!(rust("let nobody = 1;"), 0);
        assert_eq!(rust("fn who_comes_late_is_not_heard() {}"), 1);
        assert_eq!(rust("panic!(\"he tells of it\")"), 1);
        assert_eq!(rust("// Who posts is awake."), 1);
        assert_eq!(rust("// for who waits; the thread who waits"), 1);
        assert_eq!(rust("// readers (of `x`) who wait"), 0);
        assert_eq!(rust("// so many at most"), 1);
        assert_eq!(rust("// so many that it fails, so long as it lasts, `nobody`"), 0);
        assert_eq!(found("a.md", "x\n```c\nnobody\n```\nIt came about.\n"), 1);
        assert_eq!(found("a.c", "/* For want of room. */\nint nobody;\n"), 1);
    }

    #[test]
    fn journals_and_files_without_prose_are_not_read() {
        let tree = |path: &str| [Source::new(path, "// nobody")];
        assert_eq!(check_phrases(&tree("exs/src/a.rs")).len(), 1);
        assert_eq!(check_phrases(&tree("docs/bench/NOTES.md")).len(), 0);
        assert_eq!(check_phrases(&tree("exs/src/a.json")).len(), 0);
    }
}
