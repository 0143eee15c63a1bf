//! After fork the child cannot use the library.
//!
//! The library's threads are not in the child, and threads that are missing there may hold its
//! locks for ever. So once the library has been used, each call in a child fails before it
//! touches anything.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
}

/// Returns true in a child of a process that has used the library.
pub(crate) fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

/// Records that the library is in use.
pub(crate) fn used() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function stays for the life of the process, and touches one atomic only.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
