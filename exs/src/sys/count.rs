//! Counts the system calls that EXS makes to move data, to wait, and to wake.
//!
//! Each thread has a counter of its own, which no other thread writes. To count is a load and a
//! store, next to nothing beside the call. A thread that wants the sum takes a lock, which
//! otherwise only starting and ending threads take.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The words of running threads, and the sum of those that have ended.
static ALL: Mutex<(Vec<Arc<AtomicU64>>, u64)> = Mutex::new((Vec::new(), 0));
/// Calls of ending threads whose word is already gone.
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

/// Counts `n` calls of this thread.
pub(crate) fn note_calls(n: u64) {
    let noted = MINE.try_with(|mine| {
        // No other thread writes it, so nothing can come between load and store.
        mine.0.store(mine.0.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    });
    if noted.is_err() {
        LATE.fetch_add(n, Ordering::Relaxed);
    }
}

/// Returns the system calls so far: transfers, waits and wake-ups of all threads. Calls for
/// set-up (sockets, memory, files), waits for a lock, and the work of a device's driver are not
/// counted.
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
    fn calls_stay_counted_after_their_thread_has_ended() {
        let before = system_calls();
        note_calls(2);
        std::thread::spawn(|| note_calls(40)).join().unwrap();
        // Other tests count meanwhile.
        assert!(system_calls() >= before + 42);
    }
}
