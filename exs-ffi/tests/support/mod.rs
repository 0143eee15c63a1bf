//! Compilers and the built library, for the tests of what C sees.
#![allow(dead_code, unreachable_pub)] // each test uses a part of it

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The crate's directory.
pub fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A directory of this test's own, empty.
pub fn fresh(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a directory for the test");
    dir
}

/// True if there is such a program; if not, that is said.
pub fn has(program: &str) -> bool {
    let look = format!("command -v {program} >/dev/null");
    let there = Command::new("sh").args(["-c", &look]).status().is_ok_and(|s| s.success());
    if !there {
        println!("skipped: there is no {program} here (`make deps` installs it where it can)");
    }
    there
}

/// Runs a program to its end; what it says is shown if it fails.
pub fn run(command: &mut Command) -> String {
    let out = output(command);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {}\n{text}\n{errors}", out.status);
    text
}

/// Runs a program, whatever becomes of it.
pub fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// A compiler with all warnings as errors, the header in its path.
pub fn strict(compiler: &str, std: &str) -> Command {
    let mut c = Command::new(compiler);
    c.arg(format!("-std={std}"));
    c.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]).arg(home().join("include"));
    c
}

/// The compiler of C programs.
pub fn cc() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".into())
}

/// The functions that the header declares.
pub fn declared() -> Vec<String> {
    let header = std::fs::read_to_string(home().join("include/sys/exs.h")).expect("the header");
    let mut names: Vec<String> = header
        .lines()
        .filter(|l| !l.starts_with([' ', '#', '/', '}']) && !l.starts_with("typedef"))
        .filter_map(|l| l.split_once('(').map(|(before, _)| before))
        .filter_map(|before| before.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("exs_"))
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Where libexs.so and libexs.a are: built when first asked for.
pub fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let out = tmp.join(format!("lib-{}", std::process::id()));
        let features = if cfg!(feature = "verbs") { "verbs" } else { "" };
        run(Command::new(home().join("build.sh"))
            .arg(&out)
            .env("CARGO_TARGET_DIR", tmp.parent().expect("the target directory"))
            .env("PROFILE", "dev")
            .env("FEATURES", features));
        out
    })
}

/// Libraries that a program with libexs.a needs besides.
pub fn private_libraries() -> Vec<String> {
    let text = std::fs::read_to_string(library().join("libexs.private")).expect("the list");
    let rdma = if text.contains("libibverbs") { &["-lrdmacm", "-libverbs"][..] } else { &[] };
    let rest = ["-lgcc_s", "-lm", "-lpthread", "-ldl"];
    rdma.iter().chain(&rest).map(|l| (*l).to_owned()).collect()
}

/// Removes the library, which is large, when the tests of a file are over.
pub fn remove_library() {
    let _ = std::fs::remove_dir_all(library());
}

/// Writes a C file.
pub fn source(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("writing the source");
    path
}
