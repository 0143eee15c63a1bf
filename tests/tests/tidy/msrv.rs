//! The minimum Rust version is what it is said to be.
//!
//! Clippy's `incompatible_msrv` finds items of the standard library that are newer. It does not
//! look at the language, nor at dependencies, and no older compiler need be installed here; so
//! these rules look at both. They know the language up to Rust 1.95.

use std::process::Command;

use crate::source::{Source, Tok, top};

/// `1.88.0` as (1, 88).
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The value of a key of a manifest, in quotes.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|l| l.strip_prefix(key)?.trim_start().strip_prefix('='))?;
    line.trim().strip_prefix('"')?.strip_suffix('"')
}

fn text<'a>(tree: &'a [Source], path: &str) -> &'a str {
    &tree.iter().find(|s| s.path == path).unwrap_or_else(|| panic!("no {path}")).text
}

pub(crate) fn minimum(tree: &[Source]) -> (u32, u32) {
    let said = value(text(tree, "Cargo.toml"), "rust-version").expect("rust-version");
    version(said).expect("a version")
}

/// Each place that names the version names the same one.
pub(crate) fn check_places(tree: &[Source]) -> Vec<String> {
    let (major, minor) = minimum(tree);
    let clippy = value(text(tree, "clippy.toml"), "msrv").and_then(version);
    let readme = format!("a Rust toolchain ({major}.{minor} or newer)");
    let mut findings = Vec::new();
    if clippy != Some((major, minor)) {
        findings.push(format!("clippy.toml: msrv is {clippy:?}, rust-version {major}.{minor}"));
    }
    for path in ["README.md", "docs/book/src/guide/quick-start.md"] {
        if !text(tree, path).contains(&readme) {
            findings.push(format!("{path}: does not say `{readme}`"));
        }
    }
    findings
}

/// Guards of match arms that bind (`X if let Y = z =>`) are of Rust 1.95.
pub(crate) fn check_language(src: &Source) -> Vec<String> {
    let toks = src.tokens();
    let mut findings = Vec::new();
    for (i, pair) in toks.windows(2).enumerate() {
        if [pair[0].1, pair[1].1] != [Tok::Word("if"), Tok::Word("let")] {
            continue;
        }
        if leads_to_arrow(&toks[i + 2..]) {
            findings.push(src.at(pair[0].0, "an `if let` guard needs Rust 1.95"));
        }
    }
    findings
}

/// `=>` comes before the expression is over.
fn leads_to_arrow(rest: &[(usize, Tok<'_>)]) -> bool {
    let mut depth = 0_i32;
    for pair in rest.windows(2) {
        match pair[0].1 {
            Tok::Punct(b'(' | b'[' | b'{') => depth += 1,
            Tok::Punct(b')' | b']' | b'}') => depth -= 1,
            Tok::Punct(b';' | b',') if depth == 0 => return false,
            Tok::Punct(b'=') if depth == 0 && pair[1] == (pair[0].0 + 1, Tok::Punct(b'>')) => {
                return true;
            }
            _ => {}
        }
        if depth < 0 {
            return false;
        }
    }
    false
}

/// Packages of `cargo metadata` that need a newer Rust than `least`.
fn newer(metadata: &str, least: (u32, u32)) -> (Vec<String>, usize) {
    const NAME: &str = "{\"name\":\"";
    let (mut found, mut seen) = (Vec::new(), 0);
    for package in metadata.split(NAME).skip(1) {
        // Dependencies and targets begin so, too, but have no version of their own.
        let Some((name, rest)) = package.split_once("\",\"version\":\"") else { continue };
        if name.contains('"') {
            continue;
        }
        seen += 1;
        let number = rest.split('"').next().unwrap_or_default();
        // It stands behind what else a package has: its dependencies and targets.
        let after = &metadata
            [metadata.find(&format!("{NAME}{name}\",\"version\":\"{number}\"")).unwrap_or(0)..];
        let Some(at) = after.find("\"rust_version\":") else { continue };
        let said = after[at..]
            .split('"')
            .nth(3)
            .filter(|_| !after[at..].starts_with("\"rust_version\":null"));
        if let Some(said) = said
            && version(said).is_some_and(|v| v > least)
        {
            found.push(format!("{name} {number} needs Rust {said}"));
        }
    }
    (found, seen)
}

pub(crate) fn check_dependencies(tree: &[Source]) -> Vec<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let args = [
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--offline",
        "--filter-platform",
        &target,
    ];
    let done = Command::new(cargo).args(args).current_dir(top()).output().expect("cargo");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let (findings, seen) = newer(&String::from_utf8_lossy(&done.stdout), minimum(tree));
    assert!(seen > 20, "{seen} packages are seen");
    findings
}

#[test]
fn guards_that_bind_are_found_and_conditions_are_not() {
    let found = |code: &str| check_language(&Source::new("x.rs", code)).len();
    assert_eq!(found("fn f() { match x { (None, _) if let Some(y) = z => 1, _ => 2 } }"), 1);
    assert_eq!(
        found("fn f() { match x { A if let B { c } = d && c => {} _ if let E = f => {} } }"),
        2
    );
    let plain =
        "fn f() { match x { A => if let B = c { d } else { e }, F => { if let G = h {} i } }
        if let J { k } = l { m } else if let N = o { match p { Q => r } } s(t); }";
    assert_eq!(found(plain), 0);
}

#[test]
fn a_package_that_is_too_new_is_found() {
    let package = |name: &str, version: &str, rust: &str| {
        format!(
            r#"{{"name":"{name}","version":"{version}","id":"x","dependencies":[{{"name":"libc","source":"y"}}],"rust_version":{rust}}}"#
        )
    };
    let all = [
        package("old", "1.0.0", r#""1.60""#),
        package("new", "2.1.0", r#""1.90.0""#),
        package("none", "3.0.0", "null"),
    ];
    let (found, seen) = newer(&all.join(","), (1, 88));
    assert_eq!((found, seen), (vec!["new 2.1.0 needs Rust 1.90.0".to_owned()], 3));
}
