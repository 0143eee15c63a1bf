//! The edge to libibverbs and librdmacm: one safe type for each object of theirs.
//!
//! What this directory promises to the driver above it: no pointer leaves it, an
//! object is freed once and after everything that hangs on it (each holds what it
//! depends on by an `Arc`), C structures are turned into plain Rust values before
//! anybody looks at them, and integers of the kernel stay integers (newer kernels
//! send events and states that this binding's enums do not know, and a Rust enum
//! with an unknown value is undefined behaviour).
//!
//! What it cannot promise: that memory named by a work request stays mapped. That is
//! the driver's argument (`memory.rs`): each lkey belongs to a registration that
//! holds its region alive, and posted work is checked against it.
//!
//! Threads: the verbs are thread-safe; librdmacm's ids are not, for one id at a
//! time. All of it is used under one lock (the engine's, or the host's), but for the end of
//! an id (`reaper`), when nobody else has it any more.
#![allow(unsafe_code)]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "to follow a chain of pointers is one argument"
)]

mod channel;
mod cm;
mod device;
mod guard;
mod node;
mod objects;
mod post;
mod reaper;

pub(super) use channel::{BATCH, CompChannel, CompQueue, RawWc};
pub(super) use cm::{CmChannel, CmId, CmNote, ConnAttr, QpShape};
pub(super) use device::{AsyncNote, Attr, Device, PortAttr};
pub(super) use guard::Guard;
pub(super) use node::drain_watch;
pub(super) use objects::{Domain, Registration, SharedQueue, Window};
pub(super) use post::{HwOp, HwSge, Scratch, Staged};

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// The error of a call that returns null or -1 and sets errno. (Some providers give up
/// without a word; whatever it was, they could not make what was asked for.)
fn last() -> io::Error {
    match io::Error::last_os_error() {
        e if e.raw_os_error() == Some(0) => io::Error::from_raw_os_error(libc::ENOMEM),
        e => e,
    }
}

/// Before a call whose provider may fail without setting errno: that of some earlier call
/// must not be taken for its own.
fn forget_last() {
    // SAFETY: the address of this thread's errno, always valid.
    unsafe { *libc::__errno_location() = 0 };
}

/// The result of a call that returns 0, an errno, or -1 with errno set: the verbs
/// do the one, librdmacm the other.
fn check(ret: std::os::raw::c_int) -> io::Result<()> {
    match ret {
        0 => Ok(()),
        n if n > 0 => Err(io::Error::from_raw_os_error(n)),
        _ => Err(last()),
    }
}

/// Makes a descriptor non-blocking: channels are read until they are empty.
fn nonblocking(fd: std::os::raw::c_int) -> io::Result<()> {
    // SAFETY: fcntl on a descriptor that the caller's object owns.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(last());
    }
    // SAFETY: as above.
    match unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } {
        0 => Ok(()),
        _ => Err(last()),
    }
}

/// A second descriptor for the same thing: two RNICs of a process may watch one
/// device by one reactor, which takes each descriptor once.
pub(super) fn duplicate(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor belongs to an object that the caller holds.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()
}

/// Registers a descriptor with the reactor.
pub(super) fn watch(registry: &mio::Registry, fd: &OwnedFd, token: usize) -> io::Result<()> {
    let fd = fd.as_raw_fd();
    registry.register(&mut mio::unix::SourceFd(&fd), mio::Token(token), mio::Interest::READABLE)
}
