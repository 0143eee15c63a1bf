//! What a kill at the wrong moment leaves beside a finished file.
//!
//! A file gets its name before its journal is removed. A process that ends in between leaves
//! the journal, of which no later transfer of that file has any use.

use std::fs::File;
use std::io;

use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::part::is_named;
use super::relpath::{JOURNAL, PART, RelPath, side_name};
use super::root::{Root, writing};

/// Removes the journal of a file that is whole, and the partial file that it is about, unless
/// another process is writing that.
pub(crate) fn remove(root: &Root, path: &RelPath) -> io::Result<()> {
    let (dir, name) = root.place(path)?;
    let (journal, part) = (side_name(name, JOURNAL), side_name(name, PART));
    match fs::statat(&dir, &*journal, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        there => there?,
    };
    // Made if it is missing: a transfer that begins now finds it locked, and waits.
    let flags =
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = || fs::openat(&dir, &*part, flags, Mode::from_raw_mode(0o600));
    let file = File::from(writing(&dir, open)?);
    match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(()),
        locked => locked?,
    }
    // Its last owner may have given it its final name before it let go.
    if !is_named(&file, &dir, &part)? {
        return Ok(());
    }
    fs::unlinkat(&dir, &*journal, AtFlags::empty())?;
    Ok(fs::unlinkat(&dir, &*part, AtFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn a_journal_goes_unless_its_partial_file_is_being_written() {
        let tmp = TempDir::new("leftover");
        let root = Root::open(tmp.path()).unwrap();
        let path = RelPath::parse(b"f").unwrap();
        let (journal, part) = (tmp.path().join(".f.exs-journal"), tmp.path().join(".f.exs-part"));
        for with_part in [false, true] {
            std::fs::write(&journal, "old").unwrap();
            if with_part {
                std::fs::write(&part, "old").unwrap();
            }
            remove(&root, &path).unwrap();
            assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 0);
        }
        std::fs::write(&journal, "new").unwrap();
        let writer = File::create(&part).unwrap();
        fs::flock(&writer, FlockOperation::LockExclusive).unwrap();
        remove(&root, &path).unwrap();
        assert!(journal.exists() && part.exists());
    }
}
