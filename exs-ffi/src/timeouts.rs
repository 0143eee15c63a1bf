//! Time limits of operations, for all or for the next one only.
//!
//! Limits that last are options of the socket (`exs::Options`). A limit for the next operation only is
//! set just before the operation is posted, and taken back right after: an operation has its limit from
//! its posting on.
//!
//! So for a moment the options are not those that the program has set, and all threads share them.
//! A thread that posts with another limit, changes options or reads a limit therefore takes one lock of
//! the socket. It holds the lock while it posts, never while it waits, and never takes it while it
//! holds the engine's lock. Operations do not take the lock until the first limit of the socket is
//! set.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exs::Options;

use crate::error::Result;
use crate::sockets::Entry;

/// The operations that a limit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Send,
    Recv,
}

/// Limits for the next operation of each direction, or none.
type Once = [Option<Duration>; 2];

/// The limits of a socket.
pub(crate) struct Limits {
    /// True once there was a limit of any kind. Most operations look at nothing else. Set under the lock,
    /// and never taken back.
    any: AtomicBool,
    /// The limits for the next operation. The lock is that of the options, too.
    once: Mutex<Once>,
}

impl Limits {
    /// The limits of a new socket, whose options may have some from the environment or from its
    /// listener.
    pub(crate) fn new(options: &Options) -> Limits {
        let any = options.send_timeout.is_some() || options.recv_timeout.is_some();
        Limits { any: AtomicBool::new(any), once: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Once> {
        self.once.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }
}

/// The place of a limit among the options.
fn place(options: &mut Options, way: Way) -> &mut Option<Duration> {
    match way {
        Way::Send => &mut options.send_timeout,
        Way::Recv => &mut options.recv_timeout,
    }
}

/// Sets or clears a limit, for all operations to come or for the next one.
pub(crate) fn set(entry: &Entry, way: Way, limit: Option<Duration>, once: bool) -> Result<()> {
    let mut next = entry.limits.lock();
    if limit.is_some() {
        // Set before the options have the limit, so that no operation gets it without the lock.
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

/// The limit that an operation posted now would have.
pub(crate) fn get(entry: &Entry, way: Way) -> Option<Duration> {
    let next = entry.limits.lock();
    next[way as usize].or_else(|| *place(&mut entry.socket.options(), way))
}

/// Changes other options than limits.
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
    // A socket that is gone refuses the operation itself, and says why.
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
    // Locks even if there is no limit: one that is set meanwhile must not apply to this send.
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
