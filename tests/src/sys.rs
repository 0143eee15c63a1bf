//! What the tests need of libc and cannot get from std.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use exs::Buffer;
use exs::mem::Region;

/// Takes `len` bytes of whole pages away from every reader.
fn forbid(at: *const u8, len: usize) {
    let at = at.cast_mut().cast();
    // SAFETY: the callers name pages of mappings of theirs. Nothing but the kernel looks at
    // them afterwards: a test that did would end by SIGSEGV, and that is all.
    let failed = unsafe { libc::mprotect(at, len, libc::PROT_NONE) };
    assert_eq!(failed, 0, "mprotect: {}", io::Error::last_os_error());
}

/// Mapped memory of which the kernel reads the first half only, as after an mprotect(2) or
/// munmap(2) of a program's.
pub fn half_unreadable(len: usize) -> Arc<Region> {
    let region = Region::map(len).expect("memory");
    forbid(region.as_ptr().wrapping_add(len / 2), len - len / 2);
    region
}

/// The same for a buffer that is the whole of a `MemoryRegion`.
pub fn make_half_unreadable(buffer: &mut Buffer) {
    let half = buffer.len() / 2;
    forbid(buffer.as_ptr().wrapping_add(half), buffer.len() - half);
}

/// Memory that this process has, and of which only the first `there` bytes come when they are read: the pages
/// behind them are those of a userfaultfd that nothing answers. A FUSE or NFS server, or a migration
/// that stands still, does the same. None where userfaultfd(2) is forbidden.
///
/// The file is readable as soon as a thread, of whatever process, waits for one of them.
pub fn withheld(len: usize, there: usize) -> Option<(Vec<u8>, File)> {
    const PAGE: usize = 4096;
    /// `UFFDIO_API` and `UFFDIO_REGISTER`, of <linux/userfaultfd.h>.
    const API: libc::Ioctl = 0xC018_AA3F_u32 as libc::Ioctl;
    const REGISTER: libc::Ioctl = 0xC020_AA00_u32 as libc::Ioctl;
    // SAFETY: a system call without pointers.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    let fd = libc::c_int::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: a descriptor just made, which has no other owner.
    let watch = unsafe { File::from_raw_fd(fd) };
    let mut api: [u64; 3] = [0xAA, 0, 0];
    // SAFETY: the structure that the call reads and fills.
    if unsafe { libc::ioctl(fd, API, api.as_mut_ptr()) } != 0 {
        return None;
    }
    // Fresh pages: a vector as long as this has a mapping of its own, and no page of it is there yet.
    let mut memory = vec![0; len];
    memory[..there].fill(7);
    let from = (memory.as_ptr().addr() + there).next_multiple_of(PAGE);
    let end = (memory.as_ptr().addr() + len) / PAGE * PAGE;
    // Address, length, mode (missing pages), and what is allowed.
    let mut range: [u64; 4] = [from as u64, (end - from) as u64, 1, 0];
    // SAFETY: the structure that the call reads and fills. Its only effect is that a thread of this process
    // that reads these pages waits.
    let failed = unsafe { libc::ioctl(fd, REGISTER, range.as_mut_ptr()) };
    assert_eq!(failed, 0, "UFFDIO_REGISTER: {}", io::Error::last_os_error());
    Some((memory, watch))
}

/// Mounts a FUSE file system that is served through `device`.
pub fn mount_fuse(device: &File, at: &std::path::Path) -> io::Result<()> {
    let fd = std::os::fd::AsRawFd::as_raw_fd(device);
    let options = CString::new(format!("fd={fd},rootmode=40000,user_id=0,group_id=0"))?;
    let (kind, at) = (c"fuse".as_ptr(), CString::new(at.as_os_str().as_bytes())?);
    // SAFETY: strings that end in zeros, alive for the call.
    let rc =
        unsafe { libc::mount(c"exs-test".as_ptr(), at.as_ptr(), kind, 0, options.as_ptr().cast()) };
    if rc != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives this thread a mount namespace of its own: what it mounts appears in no other.
pub fn own_mounts() -> io::Result<()> {
    let all = libc::MS_REC | libc::MS_PRIVATE;
    let (nothing, root) = (std::ptr::null(), c"/".as_ptr());
    // SAFETY: no pointers.
    let mut rc = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    if rc == 0 {
        // SAFETY: a string that ends in a zero; what a change of propagation ignores may be null.
        rc = unsafe { libc::mount(nothing, root, nothing, all, nothing.cast()) };
    }
    if rc != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes a file system out of its directory; what is open of it stays so.
pub fn unmount(at: &std::path::Path) {
    let at = CString::new(at.as_os_str().as_bytes()).expect("a path");
    // SAFETY: a string that ends in a zero, alive for the call.
    let rc = unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
    assert_eq!(rc, 0, "umount2: {}", io::Error::last_os_error());
}
