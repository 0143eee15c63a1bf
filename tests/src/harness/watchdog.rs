//! An end to tests that hang.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

/// How long any one wait, or test, may take. Generous: a loaded machine is slow, and
/// nothing here is about speed.
pub const LIMIT: Duration = Duration::from_secs(90);

/// Ends the process, with a message, unless it is dropped in time.
///
/// A panic could not do that: the thread that hangs is not the one that notices.
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
                eprintln!("watchdog: {what} has not ended within {limit:?}");
                std::process::abort();
            }
        });
        Watchdog { _alive: alive }
    }
}
