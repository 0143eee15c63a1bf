//! Counts the system calls that EXS makes to move data, to wait, and to wake.
//!
//! Each thread counts for itself, in a word that no other thread writes: a load and a
//! store, next to nothing beside the call that is counted. Who wants the sum takes a lock
//! that otherwise only threads take which begin or end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Those of threads that run, and the sum of those that have ended.
static ALL: Mutex<(Vec<Arc<AtomicU64>>, u64)> = Mutex::new((Vec::new(), 0));
/// Calls of threads that are so far in their ending that they have no word any more.
static LATE: AtomicU64 = AtomicU64::new(0);

struct Mine(Arc<AtomicU64>);

thread_local! {
    static MINE: Mine = {
        let word = Arc::new(AtomicU64::new(0));
        all().0.push(Arc::clone(&word));
        Mine(word)
    };
}

impl Drop for Mine {
    fn drop(&mut self) {
        let mut all = all();
        all.0.retain(|word| !Arc::ptr_eq(word, &self.0));
        all.1 += self.0.load(Ordering::Relaxed);
    }
}

fn all() -> MutexGuard<'static, (Vec<Arc<AtomicU64>>, u64)> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts so many calls of this thread.
pub(crate) fn note_calls(n: u64) {
    let noted = MINE.try_with(|mine| {
        // Nobody else writes it, so nothing can come between the two.
        mine.0.store(mine.0.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    });
    if noted.is_err() {
        LATE.fetch_add(n, Ordering::Relaxed);
    }
}

/// System calls so far: transfers, waits and wake-ups of all threads. Those of set-up
/// (sockets, memory, files), and those by which threads wait for a lock, are not counted;
/// nor what a device's driver does.
pub(crate) fn system_calls() -> u64 {
    let all = all();
    let running: u64 = all.0.iter().map(|word| word.load(Ordering::Relaxed)).sum();
    running + all.1 + LATE.load(Ordering::Relaxed)
}

/// Lets another thread run on this processor.
pub(crate) fn yield_now() {
    note_calls(1);
    std::thread::yield_now();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_beyond_the_end_of_their_thread() {
        let before = system_calls();
        note_calls(2);
        std::thread::spawn(|| note_calls(40)).join().unwrap();
        // Other tests count meanwhile.
        assert!(system_calls() >= before + 42);
    }
}
