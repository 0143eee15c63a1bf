//! Tests that are skipped, or that pass at a second try: counted, and not silent.
//!
//! `tests/runner` reads these lines and sums up. They go to standard error itself: `eprintln!`
//! shows nothing of a test that passes.

use std::io::Write;

/// Reports that this test cannot run here, and why. The runner counts it as skipped and not as
/// passed.
pub fn skip(why: &str) {
    report("skipped", why);
}

/// Reports that a part of this test cannot run here. The rest of it runs.
pub fn part(why: &str) {
    report("skipped in part", why);
}

/// Reports that this test needed a second try, and what the first one found.
pub fn flaky(why: &str) {
    report("flaky", why);
}

/// True where `EXS_TEST_FULL` is set, as `make nightly` does: tests run the parts that take longest.
pub fn is_full() -> bool {
    std::env::var_os("EXS_TEST_FULL").is_some()
}

fn report(what: &str, why: &str) {
    let thread = std::thread::current();
    // The test runner names the thread of a test after the test.
    let test = match thread.name() {
        None | Some("main") => String::new(),
        Some(name) => format!("{name}: "),
    };
    // A closed standard error is no reason to fail.
    let _ = writeln!(std::io::stderr().lock(), "{what}: {test}{why}");
}
