//! Time limits of operations, for all or for the next one only.
//!
//! The limits that last are options of the socket (`exs::Options`). One that is for the
//! next operation only is set just before it is posted, and taken back right after: a
//! limit is the operation's from its posting on.
//!
//! So for a moment the options are not what the program has set, while they are all
//! threads'. Whoever posts with other limits, changes options or tells a limit does so
//! under one lock of the socket. (It is held while an operation is posted, never while one
//! is waited for, and nobody who has a lock of the engine's takes it.) An operation that
//! has the usual limits needs it only if there may be others: until the first limit is set
//! a socket's operations do not look at it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exs::Options;

use crate::error::Result;
use crate::sockets::Entry;

/// Which operations a limit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Send,
    Recv,
}

/// Limits for the next operation of each direction, or none.
type Once = [Option<Duration>; 2];

/// The limits of a socket.
pub(crate) struct Limits {
    /// There is or was one of any kind: the only thing that most operations look at. Set
    /// under the lock, and never taken back.
    any: AtomicBool,
    /// Those for the next operation; the lock is that of the options, too.
    once: Mutex<Once>,
}

impl Limits {
    /// Those of a new socket: its options may have some, from the environment or from the
    /// listener that it was accepted by.
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

/// Sets or clears a limit: of all operations to come, or of the next one.
pub(crate) fn set(entry: &Entry, way: Way, limit: Option<Duration>, once: bool) -> Result<()> {
    let mut next = entry.limits.lock();
    if limit.is_some() {
        // Before the options have it: so no operation has it that does not lock.
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

/// Does something while the options have another limit. The caller holds the lock.
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

/// Posts an operation with the limit that is for it alone, if there is one.
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

/// Posts a send that has no time limit, whatever limit sends have.
pub(crate) fn unlimited<T>(entry: &Entry, post: impl FnOnce() -> T) -> T {
    // Even if there is none: one that is set meanwhile must not be this send's.
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
