//! What each thread has found in a table of the process.
//!
//! Calls name objects by numbers, so each call looks into a table that all threads share. To take
//! its lock, even for reading, writes to memory that the other processors write too. So each thread
//! keeps weak references to the objects that it has found. They hold while no object leaves the
//! table. A table counts its *removals*, and a thread drops what it has kept when that count has
//! changed. A look-up of an object that the thread has used before reads the count and writes
//! nothing that other threads use, unless they use the same object.
//!
//! # A stale number names nothing
//! A thread that removes an object counts the removal first, under the table's lock. A thread that
//! looks an object up takes its reference first, and reads the count after that. So if the remover
//! does not see that reference, the other thread sees the new count. It then looks into the table,
//! where it waits for the lock and finds the object gone.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::thread::LocalKey;

use exs::__ffi::ProcessNumber;

/// A hasher for numbers that are distinct already.
#[derive(Default)]
pub(crate) struct Plain(u64);

impl Hasher for Plain {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*b);
        }
    }

    fn write_u64(&mut self, n: u64) {
        // The table uses the upper bits, too.
        self.0 = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A table of objects by such numbers.
pub(crate) type ByNumber<T> = HashMap<u64, T, BuildHasherDefault<Plain>>;

/// The objects that a thread has found since the last removal that it knows of.
pub(crate) struct Recent<T> {
    removals: u64,
    found: ByNumber<Weak<T>>,
}

impl<T> Recent<T> {
    pub(crate) const fn new() -> RefCell<Recent<T>> {
        let found = HashMap::with_hasher(BuildHasherDefault::new());
        RefCell::new(Recent { removals: 0, found })
    }

    fn get(&self, number: u64) -> Option<Arc<T>> {
        self.found.get(&number)?.upgrade()
    }

    /// Keeps an object that was found after the count of removals was read.
    fn keep(&mut self, removals: u64, number: u64, object: &Arc<T>) {
        if self.removals != removals {
            self.found.clear();
            self.removals = removals;
        }
        self.found.insert(number, Arc::downgrade(object));
    }
}

/// The removals of a table, and what the calling thread has found in it. In lines of its own,
/// because every look-up reads it.
#[repr(align(128))]
pub(crate) struct Recents<T: 'static> {
    removals: ProcessNumber,
    of_thread: &'static LocalKey<RefCell<Recent<T>>>,
}

impl<T> Recents<T> {
    pub(crate) const fn new(of_thread: &'static LocalKey<RefCell<Recent<T>>>) -> Recents<T> {
        Recents { removals: ProcessNumber::new(0), of_thread }
    }

    /// Counts a removal. The caller has the table's lock for writing, and has not removed the object
    /// yet.
    pub(crate) fn note_removal(&self) {
        self.removals.add(1);
        fence(Ordering::SeqCst);
    }

    /// Returns the object with this number: the one that the thread knows, or else what `look`
    /// finds in the table.
    #[inline]
    pub(crate) fn find(
        &self,
        number: u64,
        look: impl FnOnce() -> Option<Arc<T>>,
    ) -> Option<Arc<T>> {
        // A thread that ends has kept nothing. A signal's handler may have interrupted `keep`.
        let known = self.of_thread.try_with(|recent| {
            let recent = recent.try_borrow().ok()?;
            let object = recent.get(number)?;
            fence(Ordering::SeqCst);
            (recent.removals == self.removals.get()).then_some(object)
        });
        match known {
            Ok(Some(object)) => Some(object),
            _ => self.find_anew(number, look),
        }
    }

    #[cold]
    fn find_anew(&self, number: u64, look: impl FnOnce() -> Option<Arc<T>>) -> Option<Arc<T>> {
        let removals = self.removals.get();
        let object = look()?;
        let _ = self.of_thread.try_with(|recent| {
            if let Ok(mut recent) = recent.try_borrow_mut() {
                recent.keep(removals, number, &object);
            }
        });
        Some(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static OF_THREAD: RefCell<Recent<char>> = const { Recent::new() };
    }

    #[test]
    fn a_thread_looks_into_the_table_once_and_after_a_removal() {
        static RECENTS: Recents<char> = Recents::new(&OF_THREAD);
        let table = [Arc::new('a'), Arc::new('b')];
        let mut looks = 0;
        let mut find = |number: usize| {
            let look = || {
                looks += 1;
                table.get(number).cloned()
            };
            (RECENTS.find(number as u64, look).map(|found| *found), looks)
        };
        assert_eq!((find(0), find(0)), ((Some('a'), 1), (Some('a'), 1)));
        assert_eq!((find(1), find(0)), ((Some('b'), 2), (Some('a'), 2)));
        assert_eq!((find(2), find(2)), ((None, 3), (None, 4)), "what is not there is not kept");
        RECENTS.note_removal();
        assert_eq!((find(0), find(1), find(1)), ((Some('a'), 5), (Some('b'), 6), (Some('b'), 6)));
    }

    #[test]
    fn what_a_thread_keeps_does_not_live_on() {
        static RECENTS: Recents<char> = Recents::new(&OF_THREAD);
        let object = Arc::new('x');
        assert!(RECENTS.find(100, || Some(Arc::clone(&object))).is_some());
        assert_eq!(Arc::strong_count(&object), 1);
        drop(object);
        assert!(RECENTS.find(100, || None).is_none());
    }
}
