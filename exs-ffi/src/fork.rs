//! fork(2): a child cannot use the library of its parent.
//!
//! The child has none of the library's threads, and threads that it does not have may hold the locks
//! for ever. So once a process has used the library, each call in a child fails before it touches
//! anything.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
}

/// True in a child of a process that has used the library.
pub(crate) fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

/// Notes that the process uses the library: children made from now on must not.
pub(crate) fn used() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a function that is there for good, and touches one atomic only.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
