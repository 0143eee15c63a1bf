//! What the tests need of libc and cannot get from std.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;
use std::sync::Arc;

use exs::mem::Region;
use exs::{Buffer, MemError, MemoryRegion};

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

/// A file in memory, of `len` bytes.
///
/// # Errors
/// The kernel's.
pub fn memfd(len: usize) -> io::Result<File> {
    // SAFETY: a constant name.
    let fd = unsafe { libc::memfd_create(c"exs-test".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just made, which has no other owner.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len as u64)?;
    Ok(file)
}

/// A dma-buf over the pages of a memfd, whose length is a multiple of the page size.
///
/// # Errors
/// The kernel's: it has no `/dev/udmabuf` (CONFIG_UDMABUF), or this user may not use it.
pub fn udmabuf(len: usize) -> io::Result<(File, OwnedFd)> {
    /// `struct udmabuf_create` and `UDMABUF_CREATE` of <linux/udmabuf.h>.
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    const UDMABUF_CREATE: libc::c_ulong = 0x4018_7542;
    let device = File::options().read(true).write(true).open("/dev/udmabuf")?;
    // SAFETY: a constant name.
    let fd = unsafe {
        libc::memfd_create(c"exs-test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just made, which has no other owner.
    let memfd = unsafe { File::from_raw_fd(fd) };
    memfd.set_len(len as u64)?;
    // SAFETY: takes no pointers.
    let sealed = unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    let numbers = (u32::try_from(fd), u64::try_from(len));
    let (Ok(memfd_number), Ok(size), 0) = (numbers.0, numbers.1, sealed) else {
        return Err(io::Error::last_os_error());
    };
    let create = Create { memfd: memfd_number, flags: 1, offset: 0, size };
    // SAFETY: the request and its structure belong together.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE as _, &raw const create) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just made, which has no other owner.
    Ok((memfd, unsafe { OwnedFd::from_raw_fd(made) }))
}

/// A region over memory of a descriptor.
///
/// # Errors
/// As `MemoryRegion::from_dmabuf`.
pub fn region_of(fd: OwnedFd, offset: u64, len: usize) -> Result<MemoryRegion, MemError> {
    // SAFETY: the tests access the bytes by other ways only while no operation has them.
    unsafe { MemoryRegion::from_dmabuf(fd, offset, len) }
}

/// A mapping of a program's own.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<libc::c_void>,
    len: usize,
    mapped: usize,
}

// SAFETY: an address range that nothing refers to but the region that it becomes.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize, mapped: usize, flags: i32, fd: i32) -> io::Result<Mapping> {
        let (any, rights) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping, where the kernel wants it.
        let base = unsafe { libc::mmap(any, mapped, rights, flags, fd, 0) };
        match NonNull::new(base) {
            Some(base) if base.as_ptr() != libc::MAP_FAILED => Ok(Mapping { base, len, mapped }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The first `len` bytes of a file, shared or private.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of_file(file: &File, len: usize, shared: bool) -> io::Result<Mapping> {
        let flags = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        Mapping::new(len, len, flags, file.as_raw_fd())
    }

    /// Huge pages, of which the first `len` bytes are used.
    ///
    /// # Errors
    /// The kernel's: the administrator has set none aside.
    pub fn of_huge_pages(len: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
        Mapping::new(len, len.next_multiple_of(2 << 20), flags, -1)
    }

    /// A region over the mapping. It keeps `owner`, too.
    ///
    /// # Errors
    /// As `MemoryRegion::from_raw_parts`.
    pub fn into_region<O: Send + Sync + 'static>(self, owner: O) -> Result<MemoryRegion, MemError> {
        let (base, len) = (self.base.cast(), self.len);
        // SAFETY: the mapping stays until it is dropped, and nothing else accesses it. The tests
        // write to the file by this mapping only, and do not shorten it.
        unsafe { MemoryRegion::from_raw_parts(base, len, (self, owner)) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing uses any more.
        unsafe { libc::munmap(self.base.as_ptr(), self.mapped) };
    }
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

/// Runs `child` in a child of fork(2), for `seconds` at most. Returns true if it has come to its end.
pub fn ends_in_a_fork(seconds: u32, child: impl FnOnce()) -> bool {
    // SAFETY: the child has this thread alone. glibc keeps its allocator usable there. `child` takes no
    // lock that another thread may have held: if it does, the alarm ends the child.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: takes no pointers. The default action of SIGALRM ends the process.
        unsafe { libc::alarm(seconds) };
        child();
        // SAFETY: ends the process, without the handlers of exit(3).
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the child of this process, for which no other thread waits, and a place for its status.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid, "waitpid: {}", io::Error::last_os_error());
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}
