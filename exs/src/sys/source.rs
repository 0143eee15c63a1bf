//! Files as the source of a send.
//!
//! A read of a file of FUSE or NFS waits for its server, and a read from a disk waits for the
//! disk. A thread that others wait for must do neither. [`at_hand`] finds out whether bytes are
//! in memory already, without waiting. [`fetch`] reads the other bytes on a helper thread.
//! Closing such a file may wait, too (`flush`), so a helper thread closes a [`SourceFile`].

use std::fs::File;
use std::io::{self, Write};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::foreign::close_elsewhere;
use super::helpers::{Helpers, Task};
use super::memfd::anonymous_file;
use super::{IoVecMut, note_calls, read_at};

/// Reads that may be under way. Each waits for its own file.
static READERS: Helpers = Helpers::new("exs-read", 64);

/// Types of local file systems that cannot say whether bytes are in memory (overlayfs, ext4, XFS,
/// btrfs and tmpfs of older kernels, ZFS, F2FS).
const LOCAL: [u64; 7] =
    [0x794C_7630, 0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x2FC1_2FC1, 0xF2F5_2010];

/// An open file that several sends and threads share. The last of them closes it, or has a helper
/// thread close it.
#[derive(Debug)]
pub struct SourceFile {
    file: ManuallyDrop<Arc<File>>,
    /// Number of the send. A program may send from one file again after it has changed the file.
    send: u64,
}

/// The number of the last send.
static SENDS: AtomicU64 = AtomicU64::new(0);

impl SourceFile {
    /// Returns the file as the sender passed it.
    pub fn into_shared(self) -> Arc<File> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once, as `drop` does not run.
        unsafe { ManuallyDrop::take(&mut this.file) }
    }

    /// Returns true if both belong to the same send.
    pub fn is(&self, other: &SourceFile) -> bool {
        self.send == other.send
    }

    /// Returns a weak reference, which does not keep the file open.
    pub fn downgrade(&self) -> std::sync::Weak<File> {
        Arc::downgrade(&self.file)
    }
}

impl From<Arc<File>> for SourceFile {
    fn from(file: Arc<File>) -> SourceFile {
        let send = SENDS.fetch_add(1, Ordering::Relaxed);
        SourceFile { file: ManuallyDrop::new(file), send }
    }
}

impl Clone for SourceFile {
    fn clone(&self) -> SourceFile {
        SourceFile { file: self.file.clone(), send: self.send }
    }
}

impl Deref for SourceFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for SourceFile {
    fn drop(&mut self) {
        // SAFETY: taken once, as the value ends here.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        if let Some(file) = Arc::into_inner(file)
            && peek(&file, 0) == Peek::Unknown
        {
            close_elsewhere(OwnedFd::from(file));
        }
    }
}

/// A part of a file as the payload of a WRITE.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The file.
    pub file: SourceFile,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes. If the file is shorter, zeros take the place of the missing bytes, and
    /// the completion's `byte_len` says how many bytes are the file's.
    pub len: u64,
}

/// The result of a look at one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peek {
    /// The byte is in memory, or will never come.
    Here,
    /// A read would wait for it.
    Away,
    /// The file system cannot look without waiting.
    Unknown,
}

/// Looks at one byte. The kernel refuses RWF_NOWAIT before it asks a file system that does not
/// know it.
fn peek(file: &File, offset: u64) -> Peek {
    let Ok(offset) = libc::off64_t::try_from(offset) else { return Peek::Here };
    let mut byte = [0u8; 1];
    let iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    note_calls(1);
    let (fd, flags) = (file.as_raw_fd(), libc::RWF_NOWAIT);
    // SAFETY: one piece of one byte, exclusively ours.
    #[cfg(not(target_env = "musl"))]
    let n = unsafe { libc::preadv2(fd, &raw const iov, 1, offset, flags) };
    // musl has no preadv2. The kernel takes the offset in two words, of which 64-bit machines use
    // the first.
    // SAFETY: as above.
    #[cfg(target_env = "musl")]
    let n = unsafe { libc::syscall(libc::SYS_preadv2, fd, &raw const iov, 1, offset, 0, flags) };
    match n {
        0.. => Peek::Here,
        _ => match io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN) => Peek::Away,
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => Peek::Unknown,
            // The read will report the error.
            _ => Peek::Here,
        },
    }
}

/// Returns true if the bytes of this range can be read, or sent by sendfile(2), without waiting
/// for anything but this host's memory. Only the first and the last byte are looked at. A file on
/// a disk may lack bytes between them, and then the read waits for the disk, as for memory that
/// was swapped out. `local`: the file's file system is known to be one of [`LOCAL`].
pub(super) fn at_hand(file: &File, offset: u64, len: u64, local: bool) -> bool {
    let here = |offset| match peek(file, offset) {
        Peek::Here => true,
        Peek::Away => false,
        Peek::Unknown => local,
    };
    here(offset) && (len <= 1 || here(offset.saturating_add(len - 1)))
}

/// The result of a fetch.
#[derive(Debug)]
pub struct Fetched {
    /// The bytes, from the beginning of an anonymous file on. None if there was no memory for it.
    pub file: Option<SourceFile>,
    /// Number of bytes read.
    pub had: u64,
    /// The error that ended the read. None at the end of the file or of the range.
    pub errno: Option<i32>,
    /// The file system is one of [`LOCAL`].
    pub local: bool,
}

/// Reads up to `len` bytes at `offset` on a helper thread, and calls `then` there. If no thread
/// can be made, calls `then` here with EAGAIN.
pub(super) fn fetch(
    file: SourceFile,
    offset: u64,
    len: u64,
    then: impl FnOnce(Fetched) + Send + 'static,
) {
    let then = Arc::new(Mutex::new(Some(then)));
    let later = Arc::clone(&then);
    let task: Task = Box::new(move || {
        let fetched = read_now(&file, offset, len);
        // This may be the last reference. This thread can wait for the close.
        drop(Arc::into_inner(file.into_shared()));
        tell(&later, fetched);
    });
    if !READERS.run(task) {
        tell(&then, Fetched { file: None, had: 0, errno: Some(libc::EAGAIN), local: false });
    }
}

fn tell<F: FnOnce(Fetched)>(then: &Mutex<Option<F>>, fetched: Fetched) {
    let then = then.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(then) = then {
        then(fetched);
    }
}

fn read_now(file: &File, offset: u64, len: u64) -> Fetched {
    let mut fetched = Fetched { file: None, had: 0, errno: None, local: is_local(file) };
    let errno = |e: io::Error| Some(e.raw_os_error().unwrap_or(libc::EIO));
    match anonymous_file() {
        Ok(mut to) => {
            fetched.errno =
                copy(file, offset, len, &mut to, &mut fetched.had).err().and_then(errno);
            fetched.file = Some(Arc::new(to).into());
        }
        Err(e) => fetched.errno = errno(e),
    }
    fetched
}

fn copy(file: &File, offset: u64, len: u64, to: &mut File, had: &mut u64) -> io::Result<()> {
    let mut buffer = vec![0; usize::try_from(len.min(128 << 10)).unwrap_or(4096)];
    while *had < len {
        let most = usize::try_from(len - *had).unwrap_or(usize::MAX).min(buffer.len());
        let n =
            match read_at(file, offset.saturating_add(*had), IoVecMut::new(&mut buffer[..most]))? {
                0 => break,
                n => n,
            };
        to.write_all(&buffer[..n])?;
        *had += n as u64;
    }
    Ok(())
}

fn is_local(file: &File) -> bool {
    let mut fs = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills in the structure that it is given.
    if unsafe { libc::fstatfs(file.as_raw_fd(), fs.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call succeeded, so it is filled in.
    let kind = unsafe { fs.assume_init() }.f_type;
    u64::try_from(kind).is_ok_and(|kind| LOCAL.contains(&kind))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn written_bytes_are_at_hand_and_can_be_fetched() {
        let mut file = anonymous_file().unwrap();
        file.write_all(&[7; 300_000]).unwrap();
        let file = SourceFile::from(Arc::new(file));
        for (offset, len) in [(0, 1), (0, 300_000), (299_999, 5), (1 << 40, 1), (u64::MAX, 1)] {
            assert!(at_hand(&file, offset, len, true), "{offset}, {len}");
        }
        let (tell, hear) = channel();
        fetch(file.clone(), 100_000, 1 << 20, move |fetched| tell.send(fetched).unwrap());
        let got = hear.recv().unwrap();
        assert_eq!((got.had, got.errno, got.local), (200_000, None, true));
        let copy = got.file.unwrap();
        assert_eq!(copy.metadata().unwrap().len(), 200_000);
        assert_eq!(Arc::strong_count(&file.into_shared()), 1, "it is not kept");
    }

    #[test]
    fn a_failed_read_reports_its_error() {
        let directory = SourceFile::from(Arc::new(File::open("/").unwrap()));
        let (tell, hear) = channel();
        fetch(directory, 0, 10, move |fetched| tell.send(fetched).unwrap());
        assert_eq!(hear.recv().unwrap().errno, Some(libc::EISDIR));
        let terminal_like = File::open("/proc/self/status").unwrap();
        assert_eq!(peek(&terminal_like, 0), Peek::Unknown);
        assert!(!at_hand(&terminal_like, 0, 1, false) && at_hand(&terminal_like, 0, 1, true));
    }
}
