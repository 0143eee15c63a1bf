//! What all threads of the process share: locks, and numbers that they write.
//!
//! Shards share nothing on the data path, so that what two cores gain, sixty-four gain too. A
//! static with a lock or an atomic number is of one of the types here: a house rule looks at each
//! `static`. Built for tests, they count how often they are taken or written. So a test can show
//! that the data path does without.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

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

    /// Reads it, which touches nothing that another thread writes often.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often locks of the process were taken, and its numbers written.
#[cfg(any(test, feature = "internals"))]
static TOUCHES: AtomicU64 = AtomicU64::new(0);

#[inline]
fn note_touch() {
    #[cfg(any(test, feature = "internals"))]
    TOUCHES.fetch_add(1, Ordering::Relaxed);
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
        let before = process_touches();
        *LOCK.lock() += 1;
        assert_eq!((*LOCK.lock(), NUMBER.add(3), NUMBER.get()), (2, 5, 8));
        NUMBER.subtract(1);
        assert_eq!(NUMBER.get(), 7);
        // Other tests touch theirs meanwhile.
        assert!(process_touches() >= before + 4);
    }
}
