//! Time limits of operations, for all or for the next one only.
//!
//! Lasting limits are options of the socket (`exs::Options`). A limit for the next operation is
//! set just before that operation is posted, and removed right after, because an operation keeps
//! the limit that it was posted with.
//!
//! So for a moment the options differ from those that the program has set, and all threads share
//! the options. A thread that posts with other limits, changes options or reads a limit holds one
//! lock of the socket. The lock is held while an operation is posted, never while a thread waits
//! for one, and no thread takes it while it holds a lock of the engine. An operation with the
//! usual limits needs the lock only if there may be others: until the first limit is set, a
//! socket's operations do not look at it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exs::Options;

use crate::error::Result;
use crate::sockets::Entry;

/// The operations that a limit applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Send,
    Recv,
}

/// The limits for the next operation of each direction. None: no such limit.
type Once = [Option<Duration>; 2];

/// The limits of a socket.
pub(crate) struct Limits {
    /// There is or was a limit of any kind. This is all that most operations look at. Set under
    /// the lock, and never cleared.
    any: AtomicBool,
    /// The limits for the next operation. The lock also guards the options.
    once: Mutex<Once>,
}

impl Limits {
    /// Makes the limits of a new socket. Its options may have some, from the environment or from
    /// the listener that accepted it.
    pub(crate) fn new(options: &Options) -> Limits {
        let any = options.send_timeout.is_some() || options.recv_timeout.is_some();
        Limits { any: AtomicBool::new(any), once: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Once> {
        self.once.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if there is or was a limit of any kind.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }
}

/// Returns the place of a limit among the options.
fn place(options: &mut Options, way: Way) -> &mut Option<Duration> {
    match way {
        Way::Send => &mut options.send_timeout,
        Way::Recv => &mut options.recv_timeout,
    }
}

/// Sets or clears a limit, for all later operations or for the next one.
pub(crate) fn set(entry: &Entry, way: Way, limit: Option<Duration>, once: bool) -> Result<()> {
    let mut next = entry.limits.lock();
    if limit.is_some() {
        // First, so that no operation gets the limit from the options without the lock.
        entry.limits.any.store(true, Ordering::Release);
    }
    if once {
        next[way as usize] = limit;
        return Ok(());
    }
    let mut options = entry.socket.options();
    *place(&mut options, way) = limit;
    Ok(entry.socket.set_options(&options)?)
}

/// Returns the limit that an operation posted now would have.
pub(crate) fn get(entry: &Entry, way: Way) -> Option<Duration> {
    let next = entry.limits.lock();
    next[way as usize].or_else(|| *place(&mut entry.socket.options(), way))
}

/// Changes options other than limits.
pub(crate) fn change(entry: &Entry, f: impl FnOnce(&mut Options)) -> Result<()> {
    let _alone = entry.limits.lock();
    let mut options = entry.socket.options();
    f(&mut options);
    Ok(entry.socket.set_options(&options)?)
}

/// Calls `f` while the options have another limit. The caller holds the lock.
fn with<T>(
    entry: &Entry,
    usual: &Options,
    way: Way,
    limit: Option<Duration>,
    f: impl FnOnce() -> T,
) -> T {
    let mut options = usual.clone();
    *place(&mut options, way) = limit;
    // A socket that is gone refuses the operation itself, with a reason.
    let _ = entry.socket.set_options(&options);
    let done = f();
    let _ = entry.socket.set_options(usual);
    done
}

/// Posts an operation, with the limit for the next operation if there is one.
pub(crate) fn posting<T, E>(
    entry: &Entry,
    way: Way,
    post: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    if !entry.limits.any() {
        return post();
    }
    let mut next = entry.limits.lock();
    let once = next[way as usize];
    if once.is_none() {
        return post();
    }
    let posted = with(entry, &entry.socket.options(), way, once, post);
    if posted.is_ok() {
        next[way as usize] = None;
    }
    posted
}

/// Posts a send without a time limit, whatever limit sends have.
pub(crate) fn unlimited<T>(entry: &Entry, post: impl FnOnce() -> T) -> T {
    // Even if there is no limit: a limit that is set meanwhile must not apply to this send.
    let _alone = entry.limits.lock();
    if !entry.limits.any() {
        return post();
    }
    let usual = entry.socket.options();
    if usual.send_timeout.is_none() {
        return post();
    }
    with(entry, &usual, Way::Send, None, post)
}
