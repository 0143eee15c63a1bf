//! What fork leaves to the child: nothing.
//!
//! The threads of the library are not in the child, and its locks may be held there for
//! ever by threads that are not. So once the library has been used, a child is told so,
//! and each call there fails before it touches anything.

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

/// The library is used from now on.
pub(crate) fn used() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a function that is there for good, and touches one atomic only.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
