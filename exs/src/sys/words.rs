//! Words that several processes read and write.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use super::memfd::{SharedMap, open_shared, share};

/// Shared memory that holds nothing but words. Its descriptor shares it with other processes.
#[derive(Debug)]
pub struct SharedWords {
    map: SharedMap,
    count: usize,
}

// SAFETY: it hands out only references to atomics, in a mapping that lives as long.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Makes `count` words that are zero, and the descriptor for other processes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(count: usize) -> io::Result<(SharedWords, OwnedFd)> {
        let (map, fd) = share(count * size_of::<AtomicU64>())?;
        Ok((SharedWords { map, count }, fd))
    }

    /// Opens words that another process has made.
    ///
    /// # Errors
    /// As [`open_shared`].
    pub fn open(fd: BorrowedFd<'_>, count: usize) -> io::Result<SharedWords> {
        let map = open_shared(fd, count * size_of::<AtomicU64>(), true)?;
        Ok(SharedWords { map, count })
    }

    /// Returns one word.
    ///
    /// # Panics
    /// If `index` is not below the number of words.
    #[inline]
    pub fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: `count` words are mapped while `self` lives: by `share`, or by `open_shared`,
        // which has checked that the file is long enough and never gets shorter.
        let at = unsafe { self.map.base().as_ptr().cast::<u64>().add(index) };
        // SAFETY: aligned, because a mapping begins at a page. Every process that maps it uses
        // atomics only. A process that breaks this rule harms itself: readers accept any value of
        // a word.
        unsafe { AtomicU64::from_ptr(at) }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    #[test]
    fn words_written_by_one_side_are_read_by_the_other() {
        let (ours, fd) = SharedWords::create(600).unwrap();
        let theirs = SharedWords::open(fd.as_fd(), 600).unwrap();
        theirs.at(599).fetch_or(5, Ordering::SeqCst);
        ours.at(0).store(7, Ordering::SeqCst);
        assert_eq!([ours.at(599), theirs.at(0)].map(|w| w.load(Ordering::SeqCst)), [5, 7]);
        assert!(SharedWords::open(fd.as_fd(), 601).is_err(), "it is out of range");
    }

    #[test]
    #[should_panic(expected = "word 8 of 8")]
    fn an_index_behind_the_last_word_panics() {
        SharedWords::create(8).unwrap().0.at(8);
    }
}
