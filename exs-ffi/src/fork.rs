//! After fork the child cannot use the library.
//!
//! The library's threads are not in the child, and threads that are missing there may hold its
//! locks for ever. So once the library has been used, each call in a child fails before it
//! touches anything.

use std::sync::Once;

use exs::__ffi::ProcessNumber;

/// 1 in such a child.
static CHILD: ProcessNumber = ProcessNumber::new(0);

extern "C" fn in_child() {
    CHILD.set(1);
}

/// Returns true in a child of a process that has used the library.
pub(crate) fn is_child() -> bool {
    CHILD.get() != 0
}

/// Records that the library is in use.
pub(crate) fn used() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function stays for the life of the process, and touches one atomic only.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
