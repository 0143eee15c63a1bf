//! Staging: helper threads read ahead the bytes of files that are not in memory, one piece for
//! each send.
//!
//! A driver that is about to send bytes of a file asks here first, because a read may wait for
//! the file's server while the driver holds the engine's lock. Bytes in memory are read, or sent
//! by sendfile(2), directly. Other bytes are *away*: a helper thread fetches them into an
//! anonymous file, which takes the place of the original. A callback tells the driver when they
//! have come.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use super::source::{Fetched, FileRange, SourceFile, at_hand, fetch};

/// Bytes that are fetched at a time.
const PIECE: u64 = 512 << 10;
/// Most files that are remembered as local.
const KNOWN: usize = 256;

/// The number of the last fetch. No number is used twice.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A fetch that has ended: its key, its number, and its result.
pub type FetchDone<K> = (K, u64, Fetched);

enum FetchState {
    /// [`Staging::start`] will begin it.
    Wanted,
    /// A helper thread reads it.
    Fetching,
    /// It has ended.
    Here(Fetched),
}

/// One piece of a file that is fetched for a send.
struct Fetch {
    number: u64,
    file: SourceFile,
    offset: u64,
    len: u64,
    state: FetchState,
}

/// The result of [`Staging::find`].
pub enum FileBytes {
    /// The bytes are in memory: as many as were asked for.
    AtHand,
    /// The bytes were fetched. The range is in the copy, and is as long as asked for, or as the
    /// piece. The copy may be shorter; the errno says why, and is None at the end of the file.
    /// Err: there was no memory for a copy.
    Staged(Result<(FileRange, Option<i32>), i32>),
    /// The bytes are being fetched, or will be.
    Away,
}

/// Fetches, each for the connection or operation that a `K` names.
pub struct Staging<K> {
    by: BTreeMap<K, Fetch>,
    wanted: Vec<K>,
    /// Files on local file systems that cannot say which bytes are in memory.
    local: Vec<Weak<File>>,
}

impl<K> Default for Staging<K> {
    fn default() -> Staging<K> {
        Staging { by: BTreeMap::new(), wanted: Vec::new(), local: Vec::new() }
    }
}

impl<K: Copy + Ord + Send + 'static> Staging<K> {
    /// Finds out where the first bytes of a range are. After `Away` the caller must call
    /// [`Staging::start`].
    pub fn find(&mut self, key: K, range: &FileRange) -> FileBytes {
        if let Some(found) = self.copy(key, range) {
            return found;
        }
        let weak = range.file.downgrade();
        let local = self.local.iter().any(|known| known.ptr_eq(&weak));
        let len = range.len.min(PIECE);
        if at_hand(&range.file, range.offset, len, local) {
            self.by.remove(&key);
            return FileBytes::AtHand;
        }
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let (file, offset, state) = (range.file.clone(), range.offset, FetchState::Wanted);
        self.by.insert(key, Fetch { number, file, offset, len, state });
        self.wanted.push(key);
        FileBytes::Away
    }

    /// Returns the copy of a range's first bytes, if they were fetched or will be. None: they are
    /// in memory, or `find` was never asked for them.
    pub fn copy(&self, key: K, range: &FileRange) -> Option<FileBytes> {
        let staged = self.by.get(&key).filter(|staged| staged.file.is(&range.file))?;
        let skip = range.offset.checked_sub(staged.offset).filter(|skip| *skip < staged.len)?;
        let FetchState::Here(fetched) = &staged.state else { return Some(FileBytes::Away) };
        let Some(file) = &fetched.file else {
            return Some(FileBytes::Staged(Err(fetched.errno.unwrap_or(libc::EIO))));
        };
        let (file, len) = (file.clone(), range.len.min(staged.len - skip));
        Some(FileBytes::Staged(Ok((FileRange { file, offset: skip, len }, fetched.errno))))
    }

    /// Returns true if a fetch waits for [`Staging::start`].
    pub fn wants(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Begins all fetches that wait. Helper threads call `tell` once for each when it has ended.
    pub fn start(&mut self, tell: impl Fn(FetchDone<K>) + Clone + Send + 'static) {
        for key in std::mem::take(&mut self.wanted) {
            let Some(staged) = self.by.get_mut(&key) else { continue };
            if matches!(staged.state, FetchState::Wanted) {
                staged.state = FetchState::Fetching;
                let (number, tell) = (staged.number, tell.clone());
                let then = move |fetched| tell((key, number, fetched));
                fetch(staged.file.clone(), staged.offset, staged.len, then);
            }
        }
    }

    /// Takes the result of a fetch. Returns false if no send waits for it any more.
    pub fn arrived(&mut self, (key, number, fetched): FetchDone<K>) -> bool {
        let Some(staged) = self.by.get_mut(&key).filter(|s| s.number == number) else {
            return false;
        };
        if fetched.local {
            self.local.retain(|known| known.strong_count() > 0);
            self.local.truncate(KNOWN - 1);
            self.local.push(staged.file.downgrade());
        }
        staged.state = FetchState::Here(fetched);
        true
    }

    /// Removes the fetch of a send or connection that is gone.
    pub fn forget(&mut self, key: K) {
        if !self.by.is_empty() {
            self.by.remove(&key);
        }
    }

    /// Makes all fetches that wait for [`Staging::start`] fail with this errno.
    pub fn fail(&mut self, errno: i32) {
        for key in std::mem::take(&mut self.wanted) {
            if let Some(staged) = self.by.get_mut(&key) {
                let fetched = Fetched { file: None, had: 0, errno: Some(errno), local: false };
                staged.state = FetchState::Here(fetched);
            }
        }
    }
}
