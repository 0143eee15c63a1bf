//! The C library under its conformance suite (`tests/c`): each case over each transport, with
//! sanitizers, under valgrind; the ways of programs that are there already; C and Rust
//! processes that talk to each other.
//!
//! `make c-coverage` writes what the last test here compares: which claim of
//! `spec-notes/es-api.md` is checked by which case on which transport.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, OnceLock};

use exs_tests::harness::Watchdog;
use exs_tests::skip;

#[path = "c_suite/book.rs"]
mod book;
#[path = "c_suite/differential.rs"]
mod differential;

/// The transports that run here. `tests/rdma/suites/c.sh` has those of RDMA devices.
const TRANSPORTS: [&str; 6] = ["none", "tcp", "unix", "udp", "soft", "shm"];

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent")
}

fn has(program: &str, what: &str) -> bool {
    let there = std::env::var_os("PATH")
        .is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(program).exists()));
    if !there {
        skip::skip(&format!("there is no {program}, so {what}"));
    }
    there
}

/// Runs a command to its end, which must be a good one; what it printed.
fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {}\n{}\n{errors}", out.status, lines_of(&text));
    text
}

/// Of the lines of a run of cases, those that say that something is wrong.
fn lines_of(text: &str) -> String {
    let wrong: Vec<&str> = text.lines().filter(|l| !l.starts_with("ok ")).collect();
    wrong.join("\n")
}

/// Where the library and the programs are: built when first asked for.
fn build(how: &str) -> PathBuf {
    static LIB: LazyLock<PathBuf> = LazyLock::new(|| {
        let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let lib = tmp.join("c-suite-lib");
        run(Command::new(top().join("exs-ffi/build.sh"))
            .arg(&lib)
            .env("CARGO_TARGET_DIR", tmp.parent().expect("the target directory"))
            .env("PROFILE", "dev")
            .env("FEATURES", if cfg!(feature = "verbs") { "verbs" } else { "" }));
        lib
    });
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-suite-{how}"));
    let mut c = Command::new(top().join("tests/c/build.sh"));
    c.arg(&*LIB).arg(&out);
    if how.ends_with("asan") {
        c.arg("asan");
    }
    if how.starts_with("clang") {
        c.env("CC", "clang").env("CXX", "clang++");
    }
    run(&mut c);
    out
}

fn plain() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("plain"))
}

/// Runs the cases of these transports, side by side as most cases wait, and reports how many passed.
fn all_cases(transports: &[&'static str], program: impl Fn(&str) -> Command + Sync) {
    let program = &program;
    let texts: Vec<String> = std::thread::scope(|scope| {
        let start = |&transport: &&'static str| {
            scope.spawn(move || run(program(transport).args(["--transport", transport])))
        };
        let runs: Vec<_> = transports.iter().map(start).collect();
        runs.into_iter().map(|run| run.join().expect("each case passes")).collect()
    });
    let mut report = String::new();
    for (transport, text) in transports.iter().zip(&texts) {
        let ok = text.lines().filter(|l| l.starts_with("ok ")).count();
        let planned = text.lines().find_map(|l| l.strip_prefix("1..")?.parse().ok());
        assert_eq!(Some(ok), planned, "{transport}:\n{text}");
        for skipped in text.lines().filter(|l| l.contains("# SKIP")) {
            skip::part(skipped);
        }
        let _ = write!(report, " {transport} {ok}");
    }
    // `println!` shows nothing of a test that passes.
    let _ = writeln!(std::io::stderr().lock(), "C conformance, cases passed:{report}");
}

/// Generous: builds come on top, and machines may be busy.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(1200);

#[test]
fn every_case_passes_on_every_transport() {
    let _dog = Watchdog::with_limit("every_case_passes_on_every_transport", LIMIT);
    all_cases(&TRANSPORTS, |_| Command::new(plain().join("conformance")));
}

/// Clang builds this pass, and gcc the plain one, so each compiler sees every case. The cases
/// that move gigabytes are left out: they differ in numbers and not in code.
#[test]
fn the_sanitizers_find_nothing_in_any_case() {
    let _dog = Watchdog::with_limit("the_sanitizers_find_nothing_in_any_case", LIMIT);
    plain();
    let out = build(if clang_has_sanitizers() { "clang-asan" } else { "asan" });
    let sanitized = |name: &str| {
        let mut c = Command::new(out.join(name));
        // The plain pass has several shards.
        c.env("EXS_SHARDS", "1");
        c.env("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0:exitcode=99")
            .env("UBSAN_OPTIONS", "print_stacktrace=1");
        c
    };
    all_cases(&TRANSPORTS, |_| {
        let mut c = sanitized("conformance");
        c.arg("--light");
        c
    });
    run(&mut sanitized("cplusplus"));
    run(sanitized("netperf_like").arg("20"));
}

fn clang_has_sanitizers() -> bool {
    if !has("clang", "gcc builds the pass with the sanitizers, too") {
        return false;
    }
    let probe = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-suite-probe");
    let mut clang = Command::new("clang")
        .args(["-fsanitize=address,undefined", "-x", "c", "-", "-o"])
        .arg(&probe)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("clang starts");
    let source = clang.stdin.take().expect("a pipe").write_all(b"int main(void) { return 0; }\n");
    let links = clang.wait().expect("clang ends").success() && source.is_ok();
    if !links {
        skip::part("clang has no sanitizers here (Debian: libclang-rt-14-dev), so gcc builds this");
    }
    links
}

/// What valgrind watches in each run: kernel sockets of one kind, and one driver of connections.
/// The others share their code.
const WATCHED: [&str; 3] = ["none", "tcp", "shm"];

#[test]
fn valgrind_finds_no_leak_and_no_stray_access() {
    if !has("valgrind", "nothing looks for leaks and stray accesses of the library") {
        return;
    }
    let _dog = Watchdog::with_limit("valgrind_finds_no_leak_and_no_stray_access", LIMIT);
    let transports: &[&'static str] = if skip::is_full() { &TRANSPORTS } else { &WATCHED };
    if !skip::is_full() {
        skip::part("valgrind watches none, tcp and shm; `make nightly` has the other transports");
    }
    all_cases(transports, |transport| {
        let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("valgrind-{transport}.%p"));
        let mut c = Command::new("valgrind");
        // Undefined values are not looked at: the compiler of Rust lets a jump depend on
        // an undefined value where both ways come to the same.
        // Valgrind lets no other thread run while one waits in an io_uring.
        c.env("EXS_KERNEL_IO", "readiness");
        c.args(["--quiet", "--fair-sched=yes", "--undef-value-errors=no", "--error-exitcode=99"])
            .args(["--leak-check=full", "--show-leak-kinds=definite"])
            .arg("--errors-for-leak-kinds=definite")
            .arg(format!("--suppressions={}", top().join("tests/c/valgrind.supp").display()))
            .arg(format!("--log-file={}", logs.display()))
            .arg(plain().join("conformance"))
            .args(["--together", "--emulated"]);
        c
    });
}

#[test]
fn netperf_like_programs_run_repeatedly() {
    let _dog = Watchdog::with_limit("netperf_like_programs_run_repeatedly", LIMIT);
    for milliseconds in (0..20).map(|i| 5 + i * 7 % 50) {
        run(Command::new(plain().join("netperf_like")).arg(milliseconds.to_string()));
    }
}

#[test]
fn cplusplus_programs_compile_and_run() {
    if has("g++", "no C++ program is tried") {
        run(&mut Command::new(plain().join("cplusplus")));
    }
}

/// Starts a server, and waits until it says where it listens.
fn serve(command: &mut Command) -> (std::process::Child, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the server");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    let at = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
    (child, at)
}

#[test]
fn rust_and_c_processes_play_ping_pong() {
    let _dog = Watchdog::with_limit("rust_and_c_processes_play_ping_pong", LIMIT);
    let twin = plain().join("twin");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory");
    // Profile and features are those of `make test`, which has built it already.
    let features = ["internals,tracing", if cfg!(feature = "verbs") { ",verbs" } else { "" }];
    run(Command::new(top().join("tests/scripts/cargo.sh"))
        .args(["build", "--quiet", "--profile", "test", "--workspace", "--bin", "exs-pingpong"])
        .args(["--features", &features.concat()])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(top()));
    let rust = target.join("debug/exs-pingpong");

    let (mut server, at) = serve(Command::new(&rust).args(["--listen", "127.0.0.1:0"]));
    let (host, port) = at.rsplit_once(':').expect("an address");
    for kind in ["stream", "seqpacket"] {
        for (size, count) in [("1", "200"), ("4096", "100"), ("300000", "20")] {
            run(Command::new(&twin).args(["client", host, port, kind, size, count]));
        }
    }
    server.kill().expect("the server runs until then");
    server.wait().expect("its end");

    for kind in ["stream", "seqpacket"] {
        let (mut server, at) = serve(Command::new(&twin).args(["serve", "127.0.0.1"]));
        run(Command::new(&rust).arg(&at).args(["--iters", "50", "--sweep", "--socket", kind]));
        assert!(server.wait().expect("its end").success());
    }
}

// ---- The coverage table --------------------------------------------------------------------

/// Claim to its case and worlds, as the program lists them.
fn listed() -> Vec<(Vec<String>, String, BTreeSet<String>)> {
    let text = run(Command::new(plain().join("conformance")).arg("--list"));
    let parse = |line: &str| {
        let (claims, rest) = line.split_once(": ").expect("claims: case worlds");
        let mut words = rest.split(' ').map(str::to_owned);
        let case = words.next().expect("a case");
        (claims.split(' ').map(str::to_owned).collect(), case, words.collect())
    };
    text.lines().map(parse).collect()
}

/// The claims of the document, in its order.
fn claimed() -> Vec<String> {
    let text = std::fs::read_to_string(top().join("spec-notes/es-api.md")).expect("es-api.md");
    text.lines()
        .filter_map(|l| l.strip_prefix("- [")?.split_once("] ").map(|(name, _)| name.to_owned()))
        .collect()
}

/// Claims that no C program can check, and what does.
const ELSEWHERE: [(&str, &str); 5] = [
    (
        "tcp-1",
        "Rust: `tests/tests/c_suite/differential.rs` runs `tests/c/differential` over TCP and EXS",
    ),
    ("all-10", "Rust: the lengths are clipped by `exs-ffi/src/blocking.rs`; it would take 2 GiB"),
    ("all-11", "Rust: the unit tests of `exs-ffi/src/error.rs`"),
    ("send-1", "the compiler, by `tests/c/netperf_like.c` and `tests/c/cplusplus.cc`"),
    (
        "fd-7",
        "Rust: the unit tests of `exs-ffi`; descriptors are not to be had for others meanwhile",
    ),
];

const HEAD: &str = "\
# What of the C library is tested, and on what

Each claim of [es-api.md](es-api.md#claims), the cases of the conformance suite (`tests/c/conformance`) that check
it, and the sockets that they run on. The first column of marks is of cases without sockets; TCP, UNIX and UDP are the
kernel's own sockets, whose peers know nothing of EXS; EXS sockets run over the software RNIC and shared memory in `make test`,
and over rxe and siw in `make test-rdma`. All cases pass. `make test` runs them plainly (built by gcc), with AddressSanitizer and
UndefinedBehaviorSanitizer (built by clang), and, on a part of the sockets, under valgrind; `make nightly` runs all under valgrind. This page is written by `make c-coverage`, and a test fails if it is out of
date.

";

fn table() -> String {
    let cases = listed();
    let mut by_claim: BTreeMap<&str, Vec<(&str, &BTreeSet<String>)>> = BTreeMap::new();
    for (claims, case, worlds) in &cases {
        for claim in claims {
            by_claim.entry(claim).or_default().push((case, worlds));
        }
    }
    let mut out = String::from(HEAD);
    let columns = ["none", "tcp", "unix", "udp", "stream", "seqpacket"];
    let _ = writeln!(out, "| claim | case | - | TCP | UNIX | UDP | EXS stream | EXS seqpacket |");
    let _ = writeln!(out, "|---|---|---|---|---|---|---|---|");
    for claim in claimed() {
        if let Some((_, why)) = ELSEWHERE.iter().find(|(name, _)| *name == claim) {
            let _ = writeln!(out, "| {claim} | {why} | | | | | | |");
        }
        for (case, worlds) in by_claim.get(claim.as_str()).into_iter().flatten() {
            let marks = columns.map(|c| if worlds.contains(c) { "x" } else { "" });
            let _ =
                writeln!(out, "| {claim} | {} | {} |", case.replace('_', " "), marks.join(" | "));
        }
    }
    let runs: usize = cases.iter().map(|(_, _, worlds)| worlds.len()).sum();
    let _ = writeln!(out, "\n{} cases, {runs} with their kinds of sockets.", cases.len());
    out
}

#[test]
fn each_claim_has_a_case_and_each_case_a_claim() {
    let claims: BTreeSet<String> = claimed().into_iter().collect();
    assert!(claims.len() > 50, "the claims of es-api.md are not found");
    let elsewhere: BTreeSet<String> = ELSEWHERE.iter().map(|(c, _)| (*c).to_owned()).collect();
    let checked: BTreeSet<String> = listed().into_iter().flat_map(|(c, ..)| c).collect();
    let unknown: Vec<_> = checked.union(&elsewhere).filter(|c| !claims.contains(*c)).collect();
    assert!(unknown.is_empty(), "cases of claims that spec-notes/es-api.md has not: {unknown:?}");
    let bare: Vec<_> =
        claims.iter().filter(|c| !checked.contains(*c) && !elsewhere.contains(*c)).collect();
    assert!(bare.is_empty(), "claims without a case in tests/c/conformance: {bare:?}");
}

#[test]
fn the_coverage_table_is_up_to_date() {
    let path = top().join("spec-notes/es-api-coverage.md");
    let now = table();
    if std::env::var_os("WRITE_COVERAGE").is_some() {
        std::fs::write(&path, &now).expect("writing the table");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == now, "{} is out of date: run `make c-coverage`", path.display());
}
