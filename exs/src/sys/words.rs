//! Words that several processes read and write.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use super::memfd::{SharedMap, open_shared, share};

/// Memory that is words and nothing else, shared with other processes by its descriptor.
#[derive(Debug)]
pub struct SharedWords {
    map: SharedMap,
    count: usize,
}

// SAFETY: all that can be had of it are references to atomics, in a mapping that lives as long.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// So many words that are zero, and the descriptor for the others.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create(count: usize) -> io::Result<(SharedWords, OwnedFd)> {
        let (map, fd) = share(count * size_of::<AtomicU64>())?;
        Ok((SharedWords { map, count }, fd))
    }

    /// The words that another process has made.
    ///
    /// # Errors
    /// As [`open_shared`].
    pub fn open(fd: BorrowedFd<'_>, count: usize) -> io::Result<SharedWords> {
        let map = open_shared(fd, count * size_of::<AtomicU64>(), true)?;
        Ok(SharedWords { map, count })
    }

    /// One of them.
    ///
    /// # Panics
    /// There are not so many.
    #[inline]
    pub fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: `count` words are mapped, for as long as `self` lives: by `share`, or by
        // `open_shared`, which has checked that the file is as long and never gets shorter.
        let at = unsafe { self.map.base().as_ptr().cast::<u64>().add(index) };
        // SAFETY: aligned, as a mapping begins with a page; everybody who maps it, other
        // processes too, has atomics only. (One that breaks that rule harms itself: any value
        // that a word can have is one that its reader is prepared for.)
        unsafe { AtomicU64::from_ptr(at) }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_one_writes_the_other_reads() {
        let (ours, fd) = SharedWords::create(600).unwrap();
        let theirs = SharedWords::open(fd.as_fd(), 600).unwrap();
        theirs.at(599).fetch_or(5, Ordering::SeqCst);
        ours.at(0).store(7, Ordering::SeqCst);
        assert_eq!([ours.at(599), theirs.at(0)].map(|w| w.load(Ordering::SeqCst)), [5, 7]);
        assert!(SharedWords::open(fd.as_fd(), 601).is_err(), "there are not so many");
    }

    #[test]
    #[should_panic(expected = "word 8 of 8")]
    fn there_is_none_behind_the_last() {
        SharedWords::create(8).unwrap().0.at(8);
    }
}
