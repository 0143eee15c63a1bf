//! The end of the process.

use std::io;

/// Has `f` called when the process ends in order: `main` returns, or exit(3). (By a signal,
/// `_exit` or abort(3) it ends at once.)
///
/// # Errors
/// ENOMEM.
pub(crate) fn at_exit(f: extern "C" fn()) -> io::Result<()> {
    // SAFETY: a function that is there for good, as code of this library: where that can be
    // unloaded, its C library calls what was registered from there first. It cannot unwind.
    if unsafe { libc::atexit(f) } == 0 { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
}

/// A number of the calling thread, which no other that lives has. (The standard library's is gone
/// when the thread's own variables are, which at the end of the process are the first to go.)
pub(crate) fn this_thread() -> i32 {
    // SAFETY: no arguments, and it cannot fail.
    unsafe { libc::gettid() }
}
