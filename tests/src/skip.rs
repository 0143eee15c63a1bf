//! Tests that are skipped, visibly.

use std::cell::Cell;
use std::io::Write;
use std::sync::Once;

thread_local! {
    static TEST: Cell<&'static str> = const { Cell::new("") };
}

/// Names the test that runs in this thread.
pub fn name(test: &'static str) {
    TEST.set(test);
}

/// Says that a test is skipped, and why. Not by `eprintln!`, which the test runner
/// keeps to itself when a test passes.
pub fn skip(why: &str) {
    let name = TEST.get();
    let colon = if name.is_empty() { "" } else { ": " };
    // Nobody may be listening.
    let _ = writeln!(std::io::stderr().lock(), "skipped: {name}{colon}{why}");
}

/// Says once in a process that all its tests are skipped.
pub fn all(why: &str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| skip(why));
}
