//! An end to tests that hang.

use std::io::Write;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

/// How long any one wait, or test, may take. Generous: a loaded machine is slow, and
/// nothing here is about speed.
pub const LIMIT: Duration = Duration::from_secs(90);

/// Ends the process, with a message, unless it is dropped in time.
///
/// A panic could not do that: the thread that hangs does not notice it, another thread does.
#[derive(Debug)]
pub struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    /// Watches until dropped.
    pub fn new(what: &str) -> Watchdog {
        Watchdog::with_limit(what, LIMIT)
    }

    /// Watches for another time than [`LIMIT`].
    pub fn with_limit(what: &str, limit: Duration) -> Watchdog {
        let (alive, dog) = mpsc::channel::<()>();
        let what = what.to_owned();
        std::thread::spawn(move || {
            if dog.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                // Not by eprintln!, whose output the test runner keeps to itself, and which
                // would end with the process.
                let text =
                    format!("watchdog: {what} has not ended within {limit:?}\n{}", threads());
                let _ = std::io::stderr().write_all(text.as_bytes());
                std::process::abort();
            }
        });
        Watchdog { _alive: alive }
    }
}

/// What each thread of this process waits for, as far as the kernel tells (`stack` is
/// for root): a test that hangs in a guest leaves nothing else behind.
fn threads() -> String {
    let mut text = String::new();
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return text };
    for thread in threads.flatten().map(|entry| entry.path()) {
        let read = |name| std::fs::read_to_string(thread.join(name)).unwrap_or_default();
        // State, and the ticks that it ran for: they tell a spinning thread from a sleeping one.
        let stat = read("stat");
        let mut stat = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let (state, ran) = (stat.next().unwrap_or("?"), stat.nth(10).unwrap_or("?"));
        let [name, at, call] =
            ["comm", "wchan", "syscall"].map(|name| read(name).trim().to_owned());
        text +=
            &format!("thread {name}: {state}, ran {ran}, at {at}, call {call}\n{}", read("stack"));
    }
    text
}
