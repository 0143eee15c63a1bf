//! The book: every page is in its summary, the guide is in rustdoc, and a test runs every
//! program.
//!
//! Rust programs stand in the guide only, whose pages `exs::guide` includes, so that `cargo test --doc`
//! runs them. C programs stand in `c/` only, where the C suite finds them.

use std::collections::BTreeSet;

use crate::source::Source;

const BOOK: &str = "docs/book/src/";
const GUIDE: &str = "docs/book/src/guide/";

fn text<'a>(tree: &'a [Source], path: &str) -> &'a str {
    tree.iter().find(|s| s.path == path).map_or("", |s| &s.text)
}

fn pages<'a>(tree: &'a [Source], under: &'a str) -> impl Iterator<Item = &'a Source> {
    tree.iter().filter(move |s| s.path.starts_with(under) && s.path.ends_with(".md"))
}

/// Every page of the book and every note of the design is a chapter.
pub(crate) fn check_summary(tree: &[Source]) -> Vec<String> {
    let summary = text(tree, "docs/book/src/SUMMARY.md");
    let listed: BTreeSet<&str> =
        summary.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    let mut findings = Vec::new();
    for page in pages(tree, BOOK).filter(|s| !s.path.ends_with("/SUMMARY.md")) {
        if !listed.contains(&page.path[BOOK.len()..]) {
            findings.push(format!("{}: is not in SUMMARY.md", page.path));
        }
    }
    for note in pages(tree, "spec-notes/") {
        if !listed.contains(&*format!("../../../{}", note.path)) {
            findings.push(format!("{}: is not in docs/book/src/SUMMARY.md", note.path));
        }
    }
    findings
}

/// Every page of the guide is in rustdoc, where its links lead somewhere, too.
pub(crate) fn check_guide(tree: &[Source]) -> Vec<String> {
    let module = text(tree, "exs/src/guide.rs");
    let known: BTreeSet<&str> =
        text(tree, "exs/src/guide/links.md").lines().filter_map(label).collect();
    let mut findings = Vec::new();
    for page in pages(tree, GUIDE) {
        let name = &page.path[GUIDE.len()..];
        if !module.contains(&format!("\"{name}\"")) {
            findings.push(format!("{}: exs/src/guide.rs does not include it", page.path));
        }
        for (number, line) in (1..).zip(page.text.lines()) {
            if line.contains("](") && !line.contains("](http") {
                findings.push(format!(
                    "{}:{number}: a link in place leads nowhere in rustdoc: write `[text][label]`",
                    page.path
                ));
            }
            if let Some(label) = label(line).filter(|l| !known.contains(l)) {
                findings.push(format!(
                    "{}:{number}: exs/src/guide/links.md has no [{label}] for rustdoc",
                    page.path
                ));
            }
        }
    }
    findings
}

/// Of `[label]: target`.
fn label(line: &str) -> Option<&str> {
    Some(line.strip_prefix('[')?.split_once("]: ")?.0)
}

/// Programs stand where a test runs them.
pub(crate) fn check_programs(page: &Source) -> Vec<String> {
    if !page.path.starts_with(BOOK) || !page.path.ends_with(".md") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut inside = false;
    for (number, line) in (1..).zip(page.text.lines()) {
        let Some(language) = line.trim_start().strip_prefix("```") else { continue };
        inside = !inside;
        let home = match language.split(',').next().unwrap_or_default() {
            "" if inside => Some("which has a language"),
            "rust" if inside => (!page.path.starts_with(GUIDE)).then_some("in the guide"),
            "c" if inside => {
                (!page.path.starts_with("docs/book/src/c/")).then_some("in the part about C")
            }
            _ => None,
        };
        if let Some(home) = home {
            findings.push(format!("{}:{number}: a program must stand {home}", page.path));
        }
    }
    findings
}

/// The anchor that GitHub and mdBook make of a heading.
fn anchor_of(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
    heading
        .trim()
        .to_lowercase()
        .chars()
        .filter(kept)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

fn anchors(page: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in page.lines() {
        fenced ^= line.starts_with("```");
        let heading = line.trim_start_matches('#');
        if !fenced && heading.len() < line.len() && heading.starts_with(' ') {
            found.insert(anchor_of(heading));
        }
    }
    found
}

/// The path of `target` as seen from the file `from`.
fn resolved(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." => _ = parts.pop(),
            "." => {}
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// Links to headings lead to headings.
pub(crate) fn check_anchors(tree: &[Source]) -> Vec<String> {
    let mut findings = Vec::new();
    for page in tree.iter().filter(|s| s.path.ends_with(".md")) {
        for (number, line) in (1..).zip(page.text.lines()) {
            let defined = line.strip_prefix('[').and_then(|l| Some(l.split_once("]: ")?.1));
            for rest in line.split("](").skip(1).chain(defined) {
                let link = rest.split([')', ' ']).next().unwrap_or_default();
                let Some((file, anchor)) = link.split_once('#').filter(|_| !link.contains(':'))
                else {
                    continue;
                };
                let path =
                    if file.is_empty() { page.path.clone() } else { resolved(&page.path, file) };
                let there = tree.iter().find(|s| s.path == path && path.ends_with(".md"));
                if there.is_some_and(|s| !anchors(&s.text).contains(anchor)) {
                    findings
                        .push(format!("{}:{number}: {path} has no heading #{anchor}", page.path));
                }
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_no_chapter_names_is_caught() {
        let tree = |summary: &str| {
            check_summary(&[
                Source::new("docs/book/src/SUMMARY.md", summary),
                Source::new("docs/book/src/guide/a.md", ""),
                Source::new("spec-notes/b.md", ""),
            ])
            .len()
        };
        assert_eq!(tree("[a](guide/a.md) [b](../../../spec-notes/b.md)"), 0);
        assert_eq!(tree("[a](guide/a.md)"), 1);
        assert_eq!(tree(""), 2);
    }

    #[test]
    fn a_page_that_rustdoc_lacks_is_caught() {
        let tree = |page: &str, module: &str, links: &str| {
            check_guide(&[
                Source::new("docs/book/src/guide/a.md", page),
                Source::new("exs/src/guide.rs", module),
                Source::new("exs/src/guide/links.md", links),
            ])
            .len()
        };
        assert_eq!(tree("[b]\n\n[b]: b.md", "a: \"a.md\",", "[b]: crate::guide::b"), 0);
        assert_eq!(tree("[b]\n\n[b]: b.md", "a: \"a.md\",", ""), 1);
        assert_eq!(tree("[b](b.md)", "a: \"a.md\",", ""), 1);
        assert_eq!(tree("", "", ""), 1);
    }

    #[test]
    fn a_link_to_a_heading_that_is_gone_is_caught() {
        let found = |text: &str| {
            let there = Source::new("notes/b.md", "# The `B`-side, a word\n```sh\n# none\n```\n");
            check_anchors(&[Source::new("docs/a.md", text), there]).len()
        };
        assert_eq!(found("[x](../notes/b.md#the-b-side-a-word) [y](https://e.org/#z)"), 0);
        assert_eq!(found("[x](../notes/b.md#gone) [y](../notes/b.md#none) [z](#here)"), 3);
        assert_eq!(found("[x]: ../notes/b.md#gone"), 1);
        assert_eq!(found("## Here it is\n[z](#here-it-is)"), 0);
    }

    #[test]
    fn a_program_that_nothing_runs_is_caught() {
        let found = |path, text| check_programs(&Source::new(path, text)).len();
        assert_eq!(found("docs/book/src/guide/a.md", "```rust\n```\n```sh\n```"), 0);
        assert_eq!(found("docs/book/src/tools/a.md", "```rust\n```"), 1);
        assert_eq!(found("docs/book/src/guide/a.md", "```c\n```"), 1);
        assert_eq!(found("docs/book/src/c/a.md", "```c\n```\n```\n```"), 1);
    }
}
