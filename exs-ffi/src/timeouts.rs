//! Time limits of operations, for all or for the next one only.
//!
//! The limits that last are options of the socket (`exs::Options`). One that is for the
//! next operation only is set just before it is posted, and taken back right after: a
//! limit is the operation's from its posting on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use exs::Options;

use crate::sockets::Entry;

/// Which operations a limit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Send,
    Recv,
}

/// Limits for the next operation.
#[derive(Default)]
pub(crate) struct Once {
    /// There is one: the only thing that other operations look at.
    any: AtomicBool,
    limits: Mutex<[Option<Duration>; 2]>,
}

impl Once {
    /// Sets or clears the limit of the next operation.
    pub(crate) fn set(&self, way: Way, limit: Option<Duration>) {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits[way as usize] = limit;
        self.any.store(limits.iter().any(Option::is_some), Ordering::Release);
    }

    pub(crate) fn get(&self, way: Way) -> Option<Duration> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)[way as usize]
    }
}

/// The place of a limit among the options.
pub(crate) fn limit(options: &mut Options, way: Way) -> &mut Option<Duration> {
    match way {
        Way::Send => &mut options.send_timeout,
        Way::Recv => &mut options.recv_timeout,
    }
}

/// Posts an operation with the limit that is for it alone, if there is one.
pub(crate) fn posting<T, E>(
    entry: &Entry,
    way: Way,
    post: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    if !entry.once.any.load(Ordering::Acquire) {
        return post();
    }
    let Some(once) = entry.once.get(way) else { return post() };
    let usual = entry.socket.options();
    let mut options = usual.clone();
    *limit(&mut options, way) = Some(once);
    // A socket that is gone refuses the operation itself, and says why.
    let _ = entry.socket.set_options(&options);
    let posted = post();
    let _ = entry.socket.set_options(&usual);
    if posted.is_ok() {
        entry.once.set(way, None);
    }
    posted
}

/// Posts a send that has no time limit, whatever limit sends have.
pub(crate) fn unlimited<T>(entry: &Entry, post: impl FnOnce() -> T) -> T {
    let usual = entry.socket.options();
    if usual.send_timeout.is_none() {
        return post();
    }
    // (As above.)
    let _ = entry.socket.set_options(&Options { send_timeout: None, ..usual.clone() });
    let posted = post();
    let _ = entry.socket.set_options(&usual);
    posted
}
