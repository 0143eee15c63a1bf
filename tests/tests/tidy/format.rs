//! Each Rust file is as rustfmt would write it.
//!
//! `cargo fmt` walks from each crate's root along `mod` lines, and passes over what a macro
//! declares. So this rule hands rustfmt every file of the tree by its path.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The files of `paths`, under `root`, that rustfmt would change, or `None` where no rustfmt is
/// installed.
///
/// # Panics
/// If rustfmt cannot read a file.
pub(crate) fn misformatted(root: &Path, paths: &[PathBuf]) -> Option<Vec<String>> {
    let out = Command::new("rustfmt")
        .args(["--edition", "2024", "--check", "-l"])
        .args(paths)
        .current_dir(root)
        .output()
        .ok()?;
    let errors = String::from_utf8_lossy(&out.stderr);
    if errors.contains("is not installed") {
        return None; // rustup's stand-in
    }
    let mut listed: Vec<String> = String::from_utf8_lossy(&out.stdout)
        .lines()
        .map(|l| format!("{l}: rustfmt would change it; run `cargo fmt --all`"))
        .collect();
    assert!(out.status.success() || !listed.is_empty(), "rustfmt: {errors}");
    listed.sort();
    listed.dedup();
    Some(listed)
}

mod tests {
    use super::misformatted;

    #[test]
    fn a_misformatted_file_is_found_and_a_good_one_passes() {
        let dir = std::env::temp_dir().join(format!("exs-tidy-format-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for (name, text) in [("bad.rs", "fn  f( ) { }\n"), ("good.rs", "fn f() {}\n")] {
            std::fs::write(dir.join(name), text).unwrap();
        }
        let found = misformatted(&dir, &["bad.rs".into(), "good.rs".into()]);
        std::fs::remove_dir_all(&dir).unwrap();
        let Some(found) = found else {
            return exs_tests::skip::skip("there is no rustfmt");
        };
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("bad.rs"), "{found:?}");
    }
}
