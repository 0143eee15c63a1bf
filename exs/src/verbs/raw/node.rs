//! The node of a device in `/dev/infiniband`, and its removal.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{Device, last};

impl Device {
    /// The node's descriptor, by which libibverbs speaks to the kernel.
    fn node(self) -> i32 {
        // SAFETY: the context lives for ever; a plain number is read.
        unsafe { (*self.ptr()).cmd_fd }
    }

    /// A descriptor that becomes readable when the node may have been removed.
    ///
    /// # Errors
    /// Of inotify_init1(2) and inotify_add_watch(2): EMFILE if the user has too many
    /// watches (`/proc/sys/fs/inotify`), ENOENT without `/proc`.
    pub(in super::super) fn watch_node(self) -> io::Result<OwnedFd> {
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) };
        if fd < 0 {
            return Err(last());
        }
        // SAFETY: a new descriptor, which no other code has.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // By the descriptor and not by its name: containers have the node under other names.
        let path = CString::new(format!("/proc/self/fd/{}", self.node()))?;
        // SAFETY: a terminated string, and a live descriptor.
        match unsafe { libc::inotify_add_watch(fd.as_raw_fd(), path.as_ptr(), libc::IN_ATTRIB) } {
            n if n < 0 => Err(last()),
            _ => Ok(fd),
        }
    }

    /// True if the node has no name any more.
    pub(in super::super) fn is_unlinked(self) -> bool {
        let mut stat = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: `stat` is written if 0 is returned.
        if unsafe { libc::fstat(self.node(), stat.as_mut_ptr()) } != 0 {
            return false;
        }
        // SAFETY: zeroed, then filled; plain numbers.
        unsafe { stat.assume_init() }.st_nlink == 0
    }

    /// Gives the kernel back everything that this process has of a removed device.
    ///
    /// librdmacm keeps the context, and closes it only when it sees other devices. So the context stays,
    /// and `/dev/null` takes the place of its files. From then on calls on it fail, and the kernel frees
    /// the device.
    pub(in super::super) fn let_go(self) {
        // SAFETY: the context lives for ever; a plain number is read.
        let async_fd = unsafe { (*self.ptr()).async_fd };
        let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") else {
            return;
        };
        for fd in [async_fd, self.node()] {
            // SAFETY: both are descriptors of the context's, which stay its own: they
            // stand for another file now, on which verbs fail with ENOTTY.
            unsafe { libc::dup3(null.as_raw_fd(), fd, libc::O_CLOEXEC) };
        }
    }
}

/// Empties a watch. Only that it was readable matters.
pub(in super::super) fn drain_watch(fd: &OwnedFd) {
    let mut buf = [0u8; 1024];
    // SAFETY: the buffer is that long, and the descriptor is non-blocking.
    while unsafe { libc::read(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) } > 0 {}
}
