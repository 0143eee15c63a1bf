//! Syncing many small files for the price of a few.
//!
//! fdatasync(2) of one file costs a flush of the device even where nothing is left to write:
//! 50,000 of them are seconds on the fastest disk, and minutes on a slow one. syncfs(2) writes
//! all that the file system has dirty, and ends with one flush. Since Linux 5.8 it also says
//! whether *any* write of that file system has failed since its descriptor was opened. If none
//! has, then none of the batch's has. If one has, each file is asked by an fdatasync of its
//! own, which knows: the other error may be another program's.
//!
//! That holds for file systems whose syncfs waits for data and metadata. On all others (NFS,
//! FUSE, overlays) each file has its fdatasync.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use nix::errno::Errno;
use rustix::fs::{self, Mode, OFlags};

use super::root::Root;

/// From this many files on, one syncfs costs less than an fdatasync of each.
const WORTH_A_SYNCFS: usize = 4;
/// ext2 to ext4, XFS, btrfs, F2FS, tmpfs (of which nothing is ever on a disk).
const KNOWN: [u32; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x0102_1994];

/// Syncs batches of files below one directory.
pub(crate) struct Batch {
    /// None: syncfs says nothing of use here.
    whole: Option<FileSystem>,
}

struct FileSystem {
    /// An open file description of its own, as the kernel reports an error once for each.
    fd: OwnedFd,
    dev: u64,
}

/// The result of [`Batch::all`], by which each file is synced or known to be.
pub(crate) struct Synced<'a> {
    /// All files of this file system are on the disk.
    of: Option<&'a FileSystem>,
}

impl Batch {
    pub(crate) fn below(root: &Root) -> Batch {
        Batch { whole: file_system(root) }
    }

    /// Syncs the whole file system if `files` are enough to be worth it. Blocks meanwhile.
    pub(crate) fn all(&self, files: usize) -> Synced<'_> {
        let all = self.whole.as_ref().filter(|_| files >= WORTH_A_SYNCFS);
        Synced { of: all.filter(|fs| nix::unistd::syncfs(&fs.fd).is_ok()) }
    }
}

impl Synced<'_> {
    #[cfg(test)]
    pub(crate) fn none() -> Synced<'static> {
        Synced { of: None }
    }

    /// Has the data of a file of the batch on the disk, or says why they are not.
    pub(crate) fn sync(&self, file: &File) -> io::Result<()> {
        match self.of {
            Some(all) if fs::fstat(file)?.st_dev == all.dev => Ok(()),
            _ => file.sync_data(),
        }
    }
}

fn file_system(root: &Root) -> Option<FileSystem> {
    if !tells_errors() {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = fs::openat(root.fd(), ".", flags, Mode::empty()).ok()?;
    let kind = u32::try_from(fs::fstatfs(&fd).ok()?.f_type).ok()?;
    let dev = fs::fstat(&fd).ok()?.st_dev;
    KNOWN.contains(&kind).then_some(FileSystem { fd, dev })
}

/// Linux 5.8 or newer.
fn tells_errors() -> bool {
    static NEW: OnceLock<bool> = OnceLock::new();
    *NEW.get_or_init(|| {
        let uname = rustix::system::uname();
        let release = uname.release().to_string_lossy();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        let (major, minor) = (numbers.next(), numbers.next());
        matches!((major, minor), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (5, 8))
    })
}

/// Some file systems have no fsync of directories, since a rename waits for their disk itself,
/// or since there is no disk.
pub(crate) fn sync_dir(dir: &OwnedFd) -> Result<(), Errno> {
    match nix::unistd::fsync(dir) {
        Err(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(()),
        other => other,
    }
}
