//! What all threads of the process share: locks, and numbers that they write.
//!
//! Shards share nothing on the data path, so that what two cores gain, sixty-four gain too. A
//! static with a lock or an atomic number is of one of the types here: a house rule looks at each
//! `static`. Built for tests, they count how often they are taken or written. So a test can show
//! that the data path does without.

#[cfg(any(test, feature = "internals"))]
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A lock of the process.
pub struct ProcessLock<T>(Mutex<T>);

impl<T> ProcessLock<T> {
    /// A lock of `value`.
    pub const fn new(value: T) -> ProcessLock<T> {
        ProcessLock(Mutex::new(value))
    }

    /// Takes the lock. A thread that panicked with it leaves the value as it is.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        note_touch();
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A table of the process, which several threads can read at a time. To read it is a touch, too:
/// readers write to the lock.
pub struct ProcessTable<T>(RwLock<T>);

impl<T> ProcessTable<T> {
    /// A table that begins as `value`.
    pub const fn new(value: T) -> ProcessTable<T> {
        ProcessTable(RwLock::new(value))
    }

    /// Takes the lock for reading. A thread that panicked with the lock leaves the table as it is.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        note_touch();
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock for writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        note_touch();
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number of the process.
pub struct ProcessNumber(AtomicU64);

impl ProcessNumber {
    /// A number that begins with `value`.
    pub const fn new(value: u64) -> ProcessNumber {
        ProcessNumber(AtomicU64::new(value))
    }

    /// Adds; returns the number before.
    pub fn add(&self, n: u64) -> u64 {
        note_touch();
        self.0.fetch_add(n, Ordering::Relaxed)
    }

    /// Subtracts.
    pub fn subtract(&self, n: u64) {
        note_touch();
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// Replaces the number.
    pub fn set(&self, value: u64) {
        note_touch();
        self.0.store(value, Ordering::Relaxed);
    }

    /// Reads it, which touches nothing that another thread writes often.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often locks of the process were taken, and its numbers written.
#[cfg(any(test, feature = "internals"))]
static TOUCHES: AtomicU64 = AtomicU64::new(0);

#[cfg(any(test, feature = "internals"))]
thread_local! {
    /// The touches of this thread.
    static MINE: Cell<u64> = const { Cell::new(0) };
}

#[inline]
fn note_touch() {
    #[cfg(any(test, feature = "internals"))]
    {
        TOUCHES.fetch_add(1, Ordering::Relaxed);
        MINE.with(|mine| mine.set(mine.get() + 1));
    }
}

/// How often this thread has taken locks of the process and written its numbers so far.
#[cfg(any(test, feature = "internals"))]
pub fn thread_touches() -> u64 {
    MINE.with(Cell::get)
}

/// How often threads have taken locks of the process and written its numbers so far.
#[cfg(any(test, feature = "internals"))]
pub fn process_touches() -> u64 {
    TOUCHES.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lock_and_each_change_of_a_number_counts() {
        static LOCK: ProcessLock<u32> = ProcessLock::new(1);
        static NUMBER: ProcessNumber = ProcessNumber::new(5);
        static TABLE: ProcessTable<u32> = ProcessTable::new(1);
        let (before, mine) = (process_touches(), thread_touches());
        *LOCK.lock() += 1;
        assert_eq!((*LOCK.lock(), NUMBER.add(3), NUMBER.get()), (2, 5, 8));
        NUMBER.subtract(1);
        assert_eq!(NUMBER.get(), 7);
        NUMBER.set(9);
        assert_eq!(NUMBER.get(), 9);
        *TABLE.write() += 1;
        assert_eq!(*TABLE.read(), 2);
        assert_eq!(thread_touches(), mine + 7);
        std::thread::spawn(|| drop(LOCK.lock())).join().unwrap();
        assert_eq!(thread_touches(), mine + 7, "another thread's do not count");
        // Other tests touch theirs meanwhile.
        assert!(process_touches() >= before + 8);
    }
}
