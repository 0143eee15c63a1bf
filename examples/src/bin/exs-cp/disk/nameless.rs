//! Small files get their name last: made without one, written, and linked.
//!
//! A transfer that breaks off leaves nothing behind, even if this process is killed. No other
//! process can open the file meanwhile, so it needs neither a lock nor a second look. Where a file
//! system has no such files (O_TMPFILE), [`super::part`] uses a partial file with a name.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{self, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::root::{Root, open_up, own_side_name};

/// A file without a name on the file system of `dir`; `None`: it makes none.
pub(super) fn create(root: &Root, dir: &OwnedFd) -> io::Result<Option<File>> {
    if root.no_tmpfile.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let open = || fs::openat(dir, ".", flags, Mode::from_raw_mode(0o600));
    let made = match open() {
        Err(Errno::ACCESS) => {
            open_up(dir)?;
            open()
        }
        other => other,
    };
    match made {
        Ok(fd) => Ok(Some(File::from(fd))),
        // The file system's word, and those of kernels and sandboxes that do not know the flag.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
            root.no_tmpfile.store(true, Ordering::Relaxed);
            Ok(None)
        }
        Err(e) => Err(e.into()),
    }
}

/// Gives the file its name; what had it before is replaced.
pub(super) fn publish(file: &File, dir: &OwnedFd, name: &[u8]) -> io::Result<()> {
    match link(file, dir, name) {
        Err(Errno::EXIST) => {}
        other => return Ok(other?),
    }
    // A link replaces nothing, a rename does.
    let side = own_side_name(name);
    link(file, dir, &side)?;
    let renamed = fs::renameat(dir, &*side, dir, name);
    if renamed.is_err() {
        let _ = fs::unlinkat(dir, &*side, AtFlags::empty());
    }
    Ok(renamed?)
}

fn link(file: &File, dir: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    match fs::linkat(file, "", dir, name, AtFlags::EMPTY_PATH) {
        // Before Linux 6.10 only privileged processes may name a descriptor so.
        Err(Errno::NOENT | Errno::PERM) => {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            fs::linkat(CWD, path, dir, name, AtFlags::SYMLINK_FOLLOW)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use std::io::Write;

    fn names(tmp: &TempDir) -> Vec<String> {
        let all = std::fs::read_dir(tmp.path()).unwrap();
        all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Of ten, the first finds no file of its name, the others one. A directory stays.
    #[test]
    fn a_file_appears_whole_and_replaces_what_was_there() {
        let tmp = TempDir::new("nameless");
        let root = Root::open(tmp.path()).unwrap();
        let dir = OwnedFd::from(File::open(tmp.path()).unwrap());
        // A name as long as names can be leaves no room for a suffix.
        let name = vec![b'n'; 255];
        for n in 0..10u8 {
            let Some(mut file) = create(&root, &dir).unwrap() else {
                eprintln!("no O_TMPFILE here");
                return;
            };
            file.write_all(&[n; 3]).unwrap();
            assert_eq!(names(&tmp).len(), usize::from(n > 0));
            publish(&file, &dir, &name).unwrap();
            let path = tmp.path().join(str::from_utf8(&name).unwrap());
            assert_eq!(std::fs::read(path).unwrap(), [n; 3]);
        }
        std::fs::create_dir(tmp.path().join("d")).unwrap();
        let file = create(&root, &dir).unwrap().unwrap();
        assert!(publish(&file, &dir, b"d").is_err());
        assert_eq!(names(&tmp).len(), 2);
    }
}
