//! Memory that processes share: sealed memfds, and mappings of them.
//!
//! A descriptor from a peer may be anything. It is mapped only if the kernel says that it is a
//! memfd whose size is fixed (`F_SEAL_SHRINK`). A file that its owner can cut off would make
//! every access beyond its end a SIGBUS.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::IoVecMut;
use super::cache::copy_past_cache;
use super::map::page_size;

/// The file-system type that `fstatfs` reports for a memfd with pages of ordinary size.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// `F_SEAL_FUTURE_WRITE`: no process gets a writable mapping any more (Linux 5.1).
const SEAL_FUTURE_WRITE: libc::c_int = 0x10;
/// `MFD_NOEXEC_SEAL`: the file can never be executed (Linux 6.3).
const NOEXEC_SEAL: libc::c_uint = 8;

/// A mapping that ends when it is dropped. No Rust references into it exist.
#[derive(Debug)]
pub struct SharedMap {
    base: NonNull<u8>,
    len: usize,
    /// The mapping that this is a part of; None: this one is whole.
    whole: Option<Arc<SharedMap>>,
}

// SAFETY: the value is an address range. Each use of the bytes has its own argument.
unsafe impl Send for SharedMap {}
// SAFETY: as above. No method changes the range.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Returns the address of the first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns a part of the mapping, which keeps all of it. None if it is not all inside.
    pub fn part(whole: Arc<SharedMap>, offset: usize, len: usize) -> Option<SharedMap> {
        if offset.checked_add(len).is_none_or(|end| end > whole.len) {
            return None;
        }
        // SAFETY: in bounds, just checked.
        let base = unsafe { whole.base.add(offset) };
        Some(SharedMap { base, len, whole: Some(whole) })
    }

    /// Returns the mapping of which this is a part, and the offset there.
    pub fn place(&self) -> Option<(&Arc<SharedMap>, usize)> {
        let whole = self.whole.as_ref()?;
        Some((whole, self.base.addr().get() - whole.base.addr().get()))
    }

    /// Returns false: the kernel maps no zero bytes.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the whole pages of a range to the kernel. They read as zeros from then on, in all
    /// mappings. Does nothing where the kernel cannot do that.
    pub fn discard(&self, offset: usize, len: usize) {
        let Some(end) = offset.checked_add(len).filter(|end| *end <= self.len) else { return };
        // The kernel would take the other bytes of the last page, too.
        let Some((from, len)) = whole_pages(offset, end, page_size()) else { return };
        // SAFETY: in bounds, just checked.
        let at = unsafe { self.base.as_ptr().add(from) };
        // SAFETY: the range is in our own mapping, to which no references exist. Its bytes become
        // zeros, as if written.
        unsafe { libc::madvise(at.cast(), len, libc::MADV_REMOVE) };
    }

    /// Copies bytes at `offset` to `to`. Returns false, and copies nothing, if they are not all
    /// inside. `much`: they are a part of more bytes than caches hold.
    #[must_use]
    pub fn copy_out(&self, offset: u64, to: &IoVecMut<'_>, much: bool) -> bool {
        let (dst, len) = to.parts();
        let Ok(offset) = usize::try_from(offset) else { return false };
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: in bounds, just checked.
        let src = unsafe { self.base.as_ptr().add(offset) };
        if much {
            // SAFETY: as below.
            unsafe { copy_past_cache(src, dst.cast(), len) };
            return true;
        }
        // SAFETY: `src` is mapped, and its file cannot shrink; `dst` is as `IoVecMut` promises.
        // The peer may write the source meanwhile: then the copy is some mixture, as by a NIC.
        // The two are different mappings; `copy` because the peer may be this very process.
        unsafe { std::ptr::copy(src, dst.cast(), len) };
        true
    }
}

/// Returns the whole pages between two offsets: the first byte, and the length.
fn whole_pages(from: usize, to: usize, page: usize) -> Option<(usize, usize)> {
    let (from, to) = (from.next_multiple_of(page), to / page * page);
    (from < to).then(|| (from, to - from))
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        if self.whole.is_none() {
            // SAFETY: the mapping is ours, and no longer used: each part keeps the whole.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

/// Makes an empty file that is in memory and in no directory.
pub(super) fn anonymous_file() -> io::Result<std::fs::File> {
    create(0).map(Into::into)
}

fn create(len: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a name that ends in a zero.
    let mut fd = unsafe { libc::memfd_create(c"exs".as_ptr(), flags | NOEXEC_SEAL) };
    if fd < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        // SAFETY: as above.
        fd = unsafe { libc::memfd_create(c"exs".as_ptr(), flags) };
    }
    check(fd)?;
    // SAFETY: a descriptor just made, with no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let size = libc::off_t::try_from(len).map_err(io::Error::other)?;
    // SAFETY: a system call without pointers.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), size) })?;
    Ok(fd)
}

fn seal(fd: &OwnedFd, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: a system call without pointers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map(drop)
}

fn map(fd: BorrowedFd<'_>, len: usize, protection: libc::c_int) -> io::Result<SharedMap> {
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    let at = unsafe {
        let (null, raw) = (std::ptr::null_mut(), fd.as_raw_fd());
        libc::mmap(null, len, protection, libc::MAP_SHARED | libc::MAP_NORESERVE, raw, 0)
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let base = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mmap gave page 0"))?;
    Ok(SharedMap { base, len, whole: None })
}

/// Makes zeroed memory that another process can get to read and write.
pub fn share(len: usize) -> io::Result<(SharedMap, OwnedFd)> {
    let fd = create(len)?;
    let map = map(fd.as_fd(), len, libc::PROT_READ | libc::PROT_WRITE)?;
    seal(&fd, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL)?;
    Ok((map, fd))
}

/// Makes zeroed memory that another process can get to read, but never to write.
pub fn share_readable(len: usize) -> io::Result<(NonNull<u8>, OwnedFd)> {
    let fd = create(len)?;
    let map = map(fd.as_fd(), len, libc::PROT_READ | libc::PROT_WRITE)?;
    let size = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    seal(&fd, size | SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL)?;
    // The caller's region unmaps it.
    let map = std::mem::ManuallyDrop::new(map);
    Ok((map.base, fd))
}

fn bad(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Checks that a descriptor is a memfd whose size is fixed.
fn check_seals(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a system call without pointers. It comes first because the kernel answers it from
    // memory. The calls below ask the file system, and the file system of any other descriptor
    // may be served by a peer, which answers when it likes.
    let seals = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })
        .map_err(|_| bad("the descriptor is no memfd"))?;
    if seals & libc::F_SEAL_SHRINK == 0 {
        return Err(bad("the memfd may shrink"));
    }
    Ok(())
}

/// Returns the kernel's data about a memfd whose size is fixed. Fails for other descriptors.
fn stat_of(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    check_seals(fd)?;
    let mut fs = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills in the structure that it is given.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), fs.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so it is filled in.
    let fs = unsafe { fs.assume_init() };
    if u64::try_from(fs.f_type).ok() != Some(TMPFS_MAGIC) {
        return Err(bad("the memfd has pages of another size"));
    }
    fstat(fd)
}

/// The file system of a memfd is the kernel's own memory, so this does not wait.
fn fstat(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills in the structure that it is given.
    check(unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so it is filled in.
    Ok(unsafe { stat.assume_init() })
}

/// Returns device and inode of a memfd whose size is fixed.
///
/// # Errors
/// `InvalidInput` for any other descriptor.
pub fn memfd_id(fd: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    stat_of(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Returns device and inode of a memfd whose size is fixed, and the size. It asks less than
/// [`memfd_id`] does: pages of another size make no difference to a caller that has the file mapped.
///
/// # Errors
/// `InvalidInput` for any other descriptor.
pub fn memfd_size(fd: BorrowedFd<'_>) -> io::Result<((u64, u64), usize)> {
    check_seals(fd)?;
    let stat = fstat(fd)?;
    let size = usize::try_from(stat.st_size).map_err(|_| bad("the memfd has no size"))?;
    Ok(((stat.st_dev, stat.st_ino), size))
}

/// Maps the first `len` bytes of memory that another process shares.
///
/// # Errors
/// `InvalidInput` if the descriptor is no memfd, may shrink, or is shorter.
pub fn open_shared(fd: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<SharedMap> {
    let stat = stat_of(fd)?;
    if len == 0 || usize::try_from(stat.st_size).unwrap_or(0) < len {
        return Err(bad("the memfd is shorter than it should be"));
    }
    let write = if writable { libc::PROT_WRITE } else { 0 };
    map(fd, len, libc::PROT_READ | write)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn readable_memory_cannot_be_mapped_for_writing() {
        let (base, fd) = share_readable(8192).unwrap();
        let ours = SharedMap { base, len: 8192, whole: None };
        // SAFETY: inside of the mapping.
        let at = unsafe { base.as_ptr().add(5000) };
        // SAFETY: mapped for writing, and with no other owner.
        unsafe { at.write(7) };
        let theirs = open_shared(fd.as_fd(), 8192, false).unwrap();
        let mut got = [0; 2];
        assert!(theirs.copy_out(4999, &IoVecMut::new(&mut got), false));
        assert_eq!(got, [0, 7]);
        assert!(!theirs.copy_out(8191, &IoVecMut::new(&mut got), true), "beyond its end");
        assert!(!theirs.copy_out(u64::MAX, &IoVecMut::new(&mut got), true));
        let refused = open_shared(fd.as_fd(), 8192, true).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        drop(ours);
    }

    #[test]
    fn files_that_may_shrink_or_are_no_memfds_are_refused() {
        let (_, fd) = share(4096).unwrap();
        assert!(open_shared(fd.as_fd(), 4096, true).is_ok());
        let longer = open_shared(fd.as_fd(), 4097, true).unwrap_err();
        assert_eq!(longer.kind(), io::ErrorKind::InvalidInput, "{longer}");
        let loose = create(4096).unwrap();
        assert!(open_shared(loose.as_fd(), 4096, true).is_err(), "it may shrink");
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(open_shared(file.as_fd(), 4096, false).is_err());
        assert!(std::fs::File::from(fd).set_len(0).is_err(), "sealed");
    }

    #[test]
    fn a_part_keeps_the_whole_mapping() {
        let (whole, _) = share(8192).unwrap();
        let whole = Arc::new(whole);
        assert!(SharedMap::part(Arc::clone(&whole), 4096, 4097).is_none());
        assert!(SharedMap::part(Arc::clone(&whole), usize::MAX, 2).is_none());
        let part = SharedMap::part(Arc::clone(&whole), 4096, 4096).unwrap();
        assert!(part.place().is_some_and(|(of, at)| Arc::ptr_eq(of, &whole) && at == 4096));
        assert!(whole.place().is_none());
        let at = whole.base();
        drop(whole);
        // SAFETY: the part lies there.
        let second = unsafe { at.add(4096) };
        assert_eq!(part.base(), second);
        // SAFETY: mapped, and with no other owner.
        unsafe { second.write(7) };
        let mut got = [0; 2];
        assert!(part.copy_out(0, &IoVecMut::new(&mut got), false));
        assert_eq!(got, [7, 0]);
        part.discard(0, 4096);
        assert!(part.copy_out(0, &IoVecMut::new(&mut got), false));
        assert_eq!(got, [0, 0]);
    }

    #[test]
    fn only_whole_pages_are_discarded() {
        assert_eq!(whole_pages(4096, 12_288, 4096), Some((4096, 8192)));
        assert_eq!(whole_pages(4096, 12_288, 8192), None);
        assert_eq!(whole_pages(1, 12_287, 4096), Some((4096, 4096)));
        assert_eq!(whole_pages(4096, 3 << 16, 1 << 16), Some((1 << 16, 2 << 16)));
    }
}
