//! The end of the process.

use std::io;

/// Registers `f` for the orderly end of the process: `main` returns, or exit(3). A signal,
/// `_exit` or abort(3) ends the process without it.
///
/// # Errors
/// ENOMEM.
pub(crate) fn at_exit(f: extern "C" fn()) -> io::Result<()> {
    // SAFETY: the function is code of this library and stays: where the library can be unloaded,
    // the C library first calls what was registered from it. It cannot unwind.
    if unsafe { libc::atexit(f) } == 0 { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
}
