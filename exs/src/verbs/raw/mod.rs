//! The edge to libibverbs and librdmacm: one safe type for each of their objects.
//!
//! What this directory promises to the driver above it:
//! - No pointer leaves it.
//! - An object is freed once, after everything that depends on it. Each object holds what it depends
//!   on by an `Arc`.
//! - C structures become plain Rust values before the driver sees them.
//! - Integers of the kernel stay integers. Newer kernels send events and states that this binding's
//!   enums do not know, and a Rust enum with an unknown value is undefined behaviour.
//!
//! What it cannot promise: that memory named by a work request stays mapped. The driver argues that
//! (`memory.rs`): each lkey belongs to a registration that keeps its region alive, and posted work
//! is checked against it.
//!
//! Threads: the verbs are thread-safe. Calls on one id of librdmacm must not overlap. All calls are
//! made under one lock: that of the engine that has the id, or the host's. There are two exceptions,
//! in which no other thread has the id: its way from one engine to another (`migrate`), and its end
//! (`reaper`).
#![allow(unsafe_code)]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "to follow a chain of pointers is one argument"
)]

mod abi;
mod channel;
mod cm;
mod device;
mod guard;
mod migrate;
mod node;
mod objects;
mod path;
mod post;
mod profile;
mod reaper;

pub(super) use abi::load;
pub(super) use channel::{BATCH, CompChannel, CompQueue, RawWc};
pub(super) use cm::{CmChannel, CmId, CmNote, ConnAttr, QpShape};
pub(super) use device::{AsyncNote, Attr, Device, PortAttr};
pub(super) use guard::Guard;
pub(super) use node::drain_watch;
pub(super) use objects::{Domain, Registration, SharedQueue, Window};
pub(super) use path::{PathRecord, mtu_bytes};
pub(super) use post::{HwOp, HwSge, PostScratch, Staged};

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// The error of a call that returns null or -1 and sets errno. A provider that fails without setting
/// it counts as ENOMEM: it could not make the object.
fn last() -> io::Error {
    match io::Error::last_os_error() {
        e if e.raw_os_error() == Some(0) => io::Error::from_raw_os_error(libc::ENOMEM),
        e => e,
    }
}

/// Clears errno before a call whose provider may fail without setting it. Otherwise the errno of an
/// earlier call would be reported.
fn forget_last() {
    // SAFETY: the address of this thread's errno, always valid.
    unsafe { *libc::__errno_location() = 0 };
}

/// The result of a call that returns 0, an errno, or -1 with errno set. The verbs do the one,
/// librdmacm the other.
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

/// A second descriptor for the same file. Two RNICs of a process may watch one device with one
/// reactor, which takes each descriptor once.
pub(super) fn duplicate(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor belongs to an object that the caller holds.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()
}

/// Registers a descriptor with the reactor.
pub(super) fn watch(registry: &mio::Registry, fd: &OwnedFd, token: usize) -> io::Result<()> {
    let fd = fd.as_raw_fd();
    registry.register(&mut mio::unix::SourceFd(&fd), mio::Token(token), mio::Interest::READABLE)
}
