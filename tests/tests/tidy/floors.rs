//! A file imports lower floors only; directories on one floor never import each
//! other. Test code counts: what a test needs from above belongs into `tests/`.

use crate::source::{Source, Tok, Token};

/// The floors, as in `spec-notes/ARCHITECTURE.md`. `lib.rs` stands above all, and so does
/// `guide.rs`, which has no code.
const FLOORS: [(&str, &[&str]); 10] = [
    ("F0", &["ids", "time", "trace"]),
    ("F1", &["wire", "sys"]),
    ("F2", &["mem"]),
    ("F3", &["rnic"]),
    ("F4", &["iwarp", "stream", "packet"]),
    ("F4b", &["driver"]),
    ("F5", &["session", "tcp", "verbs", "shm", "plain"]),
    ("F6", &["progress"]),
    ("F7", &["api"]),
    ("F8", &["aio"]),
];

/// The floor of a module: its place in the table.
pub(crate) fn floor_of(module: &str) -> Option<usize> {
    FLOORS.iter().position(|(_, names)| names.contains(&module))
}

/// `exs/src/a/b.rs` is `[a, b]`, `exs/src/a/mod.rs` is `[a]`.
fn module_path(path: &str) -> Option<Vec<&str>> {
    let inner = path.strip_prefix("exs/src/")?.strip_suffix(".rs")?;
    let mut parts: Vec<_> = inner.split('/').collect();
    if parts.last() == Some(&"mod") {
        parts.pop();
    }
    Some(parts)
}

pub(crate) fn check(src: &Source) -> Vec<String> {
    let Some(own) = module_path(&src.path) else { return Vec::new() };
    if own == ["lib"] || own == ["guide"] {
        return Vec::new();
    }
    let Some(floor) = floor_of(own[0]) else {
        return vec![format!("{}:1: module `{}` is on no floor; give it one", src.path, own[0])];
    };
    let mut findings = Vec::new();
    for (offset, target, by_super) in imports(&src.tokens(), &own) {
        match floor_of(target) {
            _ if target == own[0] => {}
            Some(there) if there < floor => {}
            Some(there) => findings.push(src.at(
                offset,
                &format!(
                    "`{}` ({}) must not import `{target}` ({})",
                    own[0], FLOORS[floor].0, FLOORS[there].0
                ),
            )),
            // A module under another name (`#[path]`) can look like the root.
            None if by_super || FLOORS[floor].0 >= "F7" => {}
            None => findings.push(src.at(
                offset,
                &format!("`crate::{target}` is on no floor; name the module it is in"),
            )),
        }
    }
    findings
}

/// Modules of the crate root that the tokens name: (offset, name, through `super`).
fn imports<'a>(toks: &[Token<'a>], own: &[&str]) -> Vec<(usize, &'a str, bool)> {
    let mut found = Vec::new();
    // Brace depths at which inline modules were opened: each is one more level
    // for `super` to climb.
    let (mut depth, mut inline) = (0usize, Vec::new());
    for (i, (offset, tok)) in toks.iter().enumerate() {
        match tok {
            Tok::Punct(b'{') => {
                depth += 1;
                let is_mod = i >= 2
                    && matches!(toks[i - 1].1, Tok::Word(_))
                    && toks[i - 2].1 == Tok::Word("mod");
                if is_mod {
                    inline.push(depth);
                }
            }
            Tok::Punct(b'}') => {
                if inline.last() == Some(&depth) {
                    inline.pop();
                }
                depth = depth.saturating_sub(1);
            }
            Tok::Word("crate") if is_sep(toks, i + 1) => {
                names(&toks[i + 2..], |name| found.push((*offset, name, false)));
            }
            Tok::Word("super") if is_sep(toks, i + 1) && !follows_super(toks, i) => {
                let climbs = (0..)
                    .take_while(|k| {
                        let at = i + 2 * k;
                        toks.get(at).map(|t| t.1) == Some(Tok::Word("super"))
                            && is_sep(toks, at + 1)
                    })
                    .count();
                if climbs >= own.len() + inline.len() {
                    names(&toks[i + 2 * climbs..], |name| found.push((*offset, name, true)));
                }
            }
            _ => {}
        }
    }
    found
}

fn is_sep(toks: &[Token<'_>], i: usize) -> bool {
    toks.get(i).is_some_and(|t| t.1 == Tok::PathSep)
}

fn follows_super(toks: &[Token<'_>], i: usize) -> bool {
    i >= 2 && toks[i - 1].1 == Tok::PathSep && toks[i - 2].1 == Tok::Word("super")
}

/// First segments of the use-tree (or path) that begins here; macros excluded.
fn names<'a>(toks: &[Token<'a>], mut each: impl FnMut(&'a str)) {
    let mut tree = match toks.first().map(|t| t.1) {
        Some(Tok::Punct(b'{')) => &toks[1..],
        _ => {
            if let Some((_, Tok::Word(name))) = toks.first()
                && toks.get(1).map(|t| t.1) != Some(Tok::Punct(b'!'))
            {
                each(name);
            }
            return;
        }
    };
    let (mut depth, mut first) = (0usize, true);
    while let Some(((_, tok), rest)) = tree.split_first() {
        tree = rest;
        match tok {
            Tok::Punct(b'{') => depth += 1,
            Tok::Punct(b'}') if depth == 0 => return,
            Tok::Punct(b'}') => depth -= 1,
            Tok::Punct(b',') if depth == 0 => first = true,
            Tok::Word(name) if first => {
                first = false;
                if *name != "self" {
                    each(name);
                }
            }
            _ => {}
        }
    }
}

/// The document's table must say what the table above says.
pub(crate) fn check_document(doc: &Source) -> Vec<String> {
    let mut findings = Vec::new();
    for (floor, names) in FLOORS {
        let head = format!("| {floor} |");
        let row = doc.text.lines().find(|l| l.starts_with(&head)).unwrap_or("");
        let cell = row.split('|').nth(2).unwrap_or("");
        let mut listed: Vec<_> = cell.split('`').skip(1).step_by(2).collect();
        let mut wanted = names.to_vec();
        listed.sort_unstable();
        wanted.sort_unstable();
        if listed != wanted {
            findings.push(format!("{}: {floor} lists {listed:?}, the rule {wanted:?}", doc.path));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&Source::new(path, text)).len()
    }

    #[test]
    fn upward_and_sideways_imports_are_caught() {
        let rx = "exs/src/stream/rx.rs";
        assert_eq!(found(rx, "use crate::packet::PacketTx;"), 1);
        assert_eq!(found(rx, "use crate::{mem::Region, api::{Socket}, session};"), 2);
        assert_eq!(found(rx, "fn f() { crate::tcp::g(); }"), 1);
        assert_eq!(found(rx, "pub(crate) use super::super::progress::X;"), 1);
        assert_eq!(found(rx, "mod tests { use super::super::super::packet::X; }"), 1);
        assert_eq!(found("exs/src/session/mod.rs", "use crate::tcp::Driver;"), 1);
        assert_eq!(found("exs/src/session/sim.rs", "use crate::tcp::Driver;"), 1);
        assert_eq!(found("exs/src/tcp/mod.rs", "use crate::session::Session;"), 1);
        assert_eq!(found("exs/src/wire/exs.rs", "use crate::sys::x;"), 1);
        assert_eq!(found("exs/src/driver/mod.rs", "use crate::tcp::SoftLink;"), 1);
        assert_eq!(found("exs/src/iwarp/mod.rs", "use crate::driver::Driver;"), 1);
        assert_eq!(found(rx, "use crate::Socket;"), 1);
        assert_eq!(found("exs/src/attic/mod.rs", ""), 1);
    }

    #[test]
    fn downward_and_own_imports_pass() {
        let rx = "exs/src/stream/rx.rs";
        assert_eq!(found(rx, "use crate::{ids::{OpId, Outcome}, mem};"), 0);
        assert_eq!(found(rx, "use super::types::Data; use crate::stream::Data;"), 0);
        assert_eq!(found(rx, "mod tests { use super::super::types; use super::*; }"), 0);
        assert_eq!(found(rx, "// crate::api::x\nconst S: &str = \"crate::api::x\";"), 0);
        assert_eq!(found(rx, "fn f() { crate::note!(1); } pub(crate) fn g() {}"), 0);
        assert_eq!(found("exs/src/api/mod.rs", "use crate::progress::X; use crate::VERSION;"), 0);
        assert_eq!(found("exs/src/lib.rs", "pub use crate::api::*;"), 0);
        assert_eq!(found("exs/src/driver/mod.rs", "use crate::iwarp::RxBuf;"), 0);
        assert_eq!(found("exs/src/tcp/mod.rs", "use crate::driver::Driver;"), 0);
        assert_eq!(found("exs/src/time.rs", "use std::ops::Add;"), 0);
        assert_eq!(found("tests/tests/x.rs", "use crate::anything::x;"), 0);
    }

    #[test]
    fn a_document_that_differs_is_caught() {
        let rows: Vec<_> = FLOORS
            .iter()
            .map(|(f, names)| format!("| {f} | `{}` | words |", names.join("`, `")))
            .collect();
        let whole = rows.join("\n");
        assert!(check_document(&Source::new("a.md", &whole)).is_empty());
        let other = whole.replace("`session`, ", "");
        assert_eq!(check_document(&Source::new("a.md", &other)).len(), 1);
    }
}
