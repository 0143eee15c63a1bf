//! Files whose bytes do not come at once: they are read ahead by other threads, one piece for each send.
//!
//! A driver that is about to send bytes of a file asks here first, as a read waits for the server of the file, and
//! the driver holds the engine's lock. Bytes that are in memory are read, or sent by sendfile(2), as they are.
//! Others are *away*: they are fetched into a file in memory, which takes the place of the other.
//! The driver is told when they have come.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use super::source::{Fetched, FileRange, SourceFile, at_hand, fetch};

/// Bytes that are fetched at a time.
const PIECE: u64 = 512 << 10;
/// Files that are remembered as local, at most.
const KNOWN: usize = 256;

/// What names a fetch: never one that was begun before.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A fetch that has ended: for whom it was, its number, and what came.
pub type Came<K> = (K, u64, Fetched);

enum State {
    Wanted,
    Fetching,
    Here(Fetched),
}

struct Staged {
    number: u64,
    file: SourceFile,
    offset: u64,
    len: u64,
    state: State,
}

/// What a question finds.
pub enum Found {
    /// The bytes are in memory: as many as were asked for.
    AtHand,
    /// They were fetched: the range of the copy that has them. It is as long as was asked for, or as
    /// the piece; the copy may be shorter, and the errno says why if that is not the file's end. An error: there
    /// was no memory for a copy.
    Staged(Result<(FileRange, Option<i32>), i32>),
    /// They will come.
    Away,
}

/// Fetches, each for a connection or an operation that a `K` names.
pub struct Staging<K> {
    by: BTreeMap<K, Staged>,
    wanted: Vec<K>,
    /// On file systems of this host that cannot say what is at hand.
    local: Vec<Weak<File>>,
}

impl<K> Default for Staging<K> {
    fn default() -> Staging<K> {
        Staging { by: BTreeMap::new(), wanted: Vec::new(), local: Vec::new() }
    }
}

impl<K: Copy + Ord + Send + 'static> Staging<K> {
    /// Looks where the first bytes of a range are. `Away`: [`Staging::start`] is to be called.
    pub fn find(&mut self, key: K, range: &FileRange) -> Found {
        if let Some(found) = self.copy(key, range) {
            return found;
        }
        let weak = range.file.downgrade();
        let local = self.local.iter().any(|known| known.ptr_eq(&weak));
        let len = range.len.min(PIECE);
        if at_hand(&range.file, range.offset, len, local) {
            self.by.remove(&key);
            return Found::AtHand;
        }
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let (file, offset, state) = (range.file.clone(), range.offset, State::Wanted);
        self.by.insert(key, Staged { number, file, offset, len, state });
        self.wanted.push(key);
        Found::Away
    }

    /// The copy of a range's first bytes, if they were fetched, or will be. None: they are at hand, or were
    /// never asked for.
    pub fn copy(&self, key: K, range: &FileRange) -> Option<Found> {
        let staged = self.by.get(&key).filter(|staged| staged.file.is(&range.file))?;
        let skip = range.offset.checked_sub(staged.offset).filter(|skip| *skip < staged.len)?;
        let State::Here(fetched) = &staged.state else { return Some(Found::Away) };
        let Some(file) = &fetched.file else {
            return Some(Found::Staged(Err(fetched.errno.unwrap_or(libc::EIO))));
        };
        let (file, len) = (file.clone(), range.len.min(staged.len - skip));
        Some(Found::Staged(Ok((FileRange { file, offset: skip, len }, fetched.errno))))
    }

    /// Something is to be fetched.
    pub fn wants(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Begins what is to be fetched. `tell` is called by other threads, for each when it has ended.
    pub fn start(&mut self, tell: impl Fn(Came<K>) + Clone + Send + 'static) {
        for key in std::mem::take(&mut self.wanted) {
            let Some(staged) = self.by.get_mut(&key) else { continue };
            if matches!(staged.state, State::Wanted) {
                staged.state = State::Fetching;
                let (number, tell) = (staged.number, tell.clone());
                let then = move |fetched| tell((key, number, fetched));
                fetch(staged.file.clone(), staged.offset, staged.len, then);
            }
        }
    }

    /// A fetch has ended. False: no send waits for it any more.
    pub fn arrived(&mut self, (key, number, fetched): Came<K>) -> bool {
        let Some(staged) = self.by.get_mut(&key).filter(|s| s.number == number) else {
            return false;
        };
        if fetched.local {
            self.local.retain(|known| known.strong_count() > 0);
            self.local.truncate(KNOWN - 1);
            self.local.push(staged.file.downgrade());
        }
        staged.state = State::Here(fetched);
        true
    }

    /// The send or connection of this name is gone.
    pub fn forget(&mut self, key: K) {
        if !self.by.is_empty() {
            self.by.remove(&key);
        }
    }

    /// What is to be fetched cannot be, with this errno.
    pub fn fail(&mut self, errno: i32) {
        for key in std::mem::take(&mut self.wanted) {
            if let Some(staged) = self.by.get_mut(&key) {
                let fetched = Fetched { file: None, had: 0, errno: Some(errno), local: false };
                staged.state = State::Here(fetched);
            }
        }
    }
}
