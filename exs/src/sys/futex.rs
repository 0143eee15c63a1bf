//! Sleeping on a word of memory that another process shares.
//!
//! To wake a thread by a futex takes half the time that a message on a socket takes. Such a thread can
//! wait for nothing else, so it waits for two words (futex_waitv(2)): the shared one, and one of its
//! own, by which the threads of this process wake it. A hostile peer can write to the shared word only.
//!
//! The kernel goes on with futex_waitv(2) after a signal handler with SA_RESTART. A thread whose sleep
//! any handler must end sleeps on the shared word alone (futex(2), with a limit). The threads of this
//! process wake it there, by setting the word to 0. A hostile peer could undo that, so the peer must be
//! trusted.

use std::any::Any;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::note_calls;

/// FUTEX2_SIZE_U32, and FUTEX2_PRIVATE: values of the kernel's interface that `libc` lacks.
const SIZE_U32: u32 = 2;
const PRIVATE: u32 = 128;

/// One entry of futex_waitv(2), as the kernel defines it.
#[repr(C)]
struct WaitEntry {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// The longest sleep of a thread that a signal handler must end.
const LONGEST: Duration = Duration::from_secs(3600);

/// States of a [`FutexBell`].
const AWAKE: u32 = 0;
const SLEEPS: u32 = 1;
const RUNG: u32 = 2;

/// How the threads of this process wake one that sleeps on a [`SharedWord`].
#[derive(Debug, Default)]
pub struct FutexBell {
    /// The thread's own word.
    state: AtomicU32,
    /// The shared word, if the thread sleeps on that one alone. A thread that rings has the lock while it
    /// writes there, so no such write comes after [`disarm`](FutexBell::disarm).
    alone: Mutex<Option<SharedWord>>,
}

impl FutexBell {
    /// The thread is about to sleep on its own word and a shared one. It must look once more for what it
    /// waits for.
    pub fn arm(&self) {
        self.state.store(SLEEPS, Ordering::SeqCst);
    }

    /// The same for a thread that sleeps on the shared word alone.
    pub fn arm_alone(&self, word: &SharedWord) {
        *self.alone() = Some(word.clone());
        self.arm();
    }

    /// The thread is awake.
    pub fn disarm(&self) {
        self.state.store(AWAKE, Ordering::SeqCst);
    }

    /// The same for a thread that has slept on the shared word alone.
    pub fn disarm_alone(&self) {
        self.disarm();
        *self.alone() = None;
    }

    /// Wakes the thread. False if it does not sleep here.
    pub fn ring(&self) -> bool {
        let rung = self.state.compare_exchange(SLEEPS, RUNG, Ordering::SeqCst, Ordering::SeqCst);
        if rung.is_ok() {
            match &*self.alone() {
                Some(word) => word.wake(),
                None => wake(&self.state, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG),
            }
        }
        rung != Err(AWAKE)
    }

    fn alone(&self) -> MutexGuard<'_, Option<SharedWord>> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the thread, of any process, that sleeps on the low half of this word.
pub fn wake_shared(word: &AtomicU64) {
    // SAFETY: the low half of a live word, which is aligned for 8 bytes.
    wake(unsafe { &*low_half(word.as_ptr()).as_ptr() }, libc::FUTEX_WAKE);
}

/// The half of a word that has its low bits.
fn low_half(word: *mut u64) -> NonNull<AtomicU32> {
    let at = word.cast::<AtomicU32>().wrapping_add(usize::from(cfg!(target_endian = "big")));
    NonNull::new(at).unwrap_or(NonNull::dangling())
}

fn wake(word: &AtomicU32, operation: libc::c_int) {
    note_calls(1);
    // SAFETY: a live word. The kernel does not even read it. The call fails for an address that is
    // not mapped only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 1) };
}

/// A word of shared memory on which a thread sleeps.
#[derive(Clone)]
pub struct SharedWord {
    word: NonNull<AtomicU64>,
    /// The low half of the value with which the thread sleeps.
    value: u32,
    /// Keeps the word mapped.
    _memory: Arc<dyn Any + Send + Sync>,
}

// SAFETY: all threads use the word as an atomic one, in memory that stays mapped.
unsafe impl Send for SharedWord {}

impl fmt::Debug for SharedWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWord").field("value", &self.value).finish_non_exhaustive()
    }
}

impl SharedWord {
    /// The low half of `word`, with the value (of which the low half counts) at which the thread sleeps.
    ///
    /// # Safety
    /// `memory` keeps the word mapped.
    pub unsafe fn new(
        word: &AtomicU64,
        value: u64,
        memory: Arc<dyn Any + Send + Sync>,
    ) -> SharedWord {
        let value = u32::try_from(value & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        SharedWord { word: NonNull::from(word), value, _memory: memory }
    }

    /// Sleeps until the word has another value and its writer has woken this thread. It may return
    /// sooner.
    pub fn sleep_alone(&self) {
        // An interrupted sleep returns sooner.
        let _ = self.sleep_for(None);
    }

    /// The same for `limit` at most, and any signal handler ends the sleep. The kernel sets a timer for
    /// that.
    ///
    /// # Errors
    /// `Interrupted` if a signal handler ran.
    pub fn sleep_until_signal(&self, limit: Option<Duration>) -> io::Result<()> {
        // Without a limit the kernel would go on sleeping after a handler with SA_RESTART.
        self.sleep_for(Some(limit.map_or(LONGEST, |limit| limit.min(LONGEST))))
    }

    /// Where the kernel looks.
    fn at(&self) -> NonNull<AtomicU32> {
        low_half(self.word.as_ptr().cast())
    }

    /// Sets the word to 0, and wakes the thread that sleeps on it.
    fn wake(&self) {
        // SAFETY: the word is mapped while this value exists.
        let word = unsafe { self.word.as_ref() };
        word.store(0, Ordering::Release);
        wake_shared(word);
    }

    fn sleep_for(&self, limit: Option<Duration>) -> io::Result<()> {
        note_calls(1);
        let limit = limit.map(|limit| libc::timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the kernel reads the word and the limit, if there is one. A word that is not mapped is
        // an error.
        let slept = unsafe {
            libc::syscall(libc::SYS_futex, self.at().as_ptr(), libc::FUTEX_WAIT, self.value, limit)
        };
        match io::Error::last_os_error() {
            e if slept < 0 && e.kind() == io::ErrorKind::Interrupted => Err(e),
            _ => Ok(()),
        }
    }

    /// Sleeps until the word has another value and its writer has woken this thread, or until
    /// `bell`, which is armed, rings, or until the time is up. It may return sooner.
    ///
    /// # Errors
    /// `Interrupted` if a signal handler ran.
    pub fn sleep(&self, bell: &FutexBell, timeout: Option<Duration>) -> io::Result<()> {
        match wait_for_both((self.at(), self.value), bell, timeout) {
            // A word has another value already; or the time is up.
            Err(e) if [Some(libc::EAGAIN), Some(libc::ETIMEDOUT)].contains(&e.raw_os_error()) => {
                Ok(())
            }
            slept => slept,
        }
    }
}

fn wait_for_both(
    (at, value): (NonNull<AtomicU32>, u32),
    bell: &FutexBell,
    timeout: Option<Duration>,
) -> io::Result<()> {
    let entry = |at: *const AtomicU32, value: u32, flags| WaitEntry {
        value: u64::from(value),
        address: at as u64,
        flags: SIZE_U32 | flags,
        reserved: 0,
    };
    let entries = [entry(at.as_ptr(), value, 0), entry(&raw const bell.state, SLEEPS, PRIVATE)];
    let until = timeout.map(at_monotonic);
    let until = until.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    note_calls(1);
    // SAFETY: two entries, and a time or none, that are alive for the call; no flags. The kernel reads
    // the two words. One that is not mapped is an error.
    let slept = unsafe {
        let clock = libc::CLOCK_MONOTONIC;
        libc::syscall(libc::SYS_futex_waitv, entries.as_ptr(), 2, 0, until, clock)
    };
    if slept < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The time of the monotonic clock after this long.
fn at_monotonic(after: Duration) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let nanos = now.tv_nsec + i64::from(after.subsec_nanos());
    let seconds = i64::try_from(after.as_secs()).unwrap_or(i64::MAX);
    let tv_sec = now.tv_sec.saturating_add(seconds).saturating_add(nanos / 1_000_000_000);
    libc::timespec { tv_sec, tv_nsec: nanos % 1_000_000_000 }
}

/// True if the kernel can wait for two words (Linux 5.16).
pub fn waits_for_words() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let (word, bell) = (AtomicU32::new(0), FutexBell::default());
        // The bell is not armed, so the call does not sleep.
        let slept = wait_for_both((NonNull::from(&word), 0), &bell, None);
        slept.is_err_and(|e| e.raw_os_error() == Some(libc::EAGAIN))
    })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::sys::SharedWords;
    use std::thread;

    fn word(words: &Arc<SharedWords>, value: u64) -> SharedWord {
        let memory = Arc::clone(words) as _;
        // SAFETY: `memory` is what has it mapped.
        unsafe { SharedWord::new(words.at(0), value, memory) }
    }

    #[test]
    fn another_value_and_a_bell_end_the_sleep() {
        assert!(waits_for_words());
        let words = Arc::new(SharedWords::create(1).unwrap().0);
        let bell = FutexBell::default();
        words.at(0).store(7, Ordering::SeqCst);
        bell.arm();
        word(&words, 8).sleep(&bell, None).expect("it does not sleep at another value");
        assert!(bell.ring());
        word(&words, 7).sleep(&bell, None).expect("the bell has rung");
        assert!(bell.ring(), "it was rung already");
        bell.disarm();
        assert!(!bell.ring(), "no thread sleeps");
        bell.arm();
        for timeout in [Duration::ZERO, Duration::from_micros(1)] {
            word(&words, 7).sleep(&bell, Some(timeout)).expect("the time is up");
        }
    }

    #[test]
    fn a_bell_wakes_a_thread_that_sleeps_on_the_word_alone() {
        let words = Arc::new(SharedWords::create(1).unwrap().0);
        let bell = Arc::new(FutexBell::default());
        for _ in 0..3 {
            words.at(0).store(1 << 40 | 3, Ordering::SeqCst);
            let sleeps = word(&words, 3);
            bell.arm_alone(&sleeps);
            let sleeper = thread::spawn(move || sleeps.sleep_until_signal(None));
            // It may not sleep yet; a wake-up before the sleep must not be lost either.
            assert!(bell.ring());
            sleeper.join().unwrap().unwrap();
            bell.disarm_alone();
        }
        words.at(0).store(3, Ordering::SeqCst);
        assert!(!bell.ring(), "no thread sleeps");
        assert_eq!(words.at(0).load(Ordering::SeqCst), 3, "the word is another thread's by now");
        let limit = Some(Duration::from_micros(1));
        word(&words, 3).sleep_until_signal(limit).expect("the time is up");
    }

    #[test]
    fn a_writer_and_a_bell_wake_a_sleeper() {
        let words = Arc::new(SharedWords::create(1).unwrap().0);
        words.at(0).store(1 << 40 | 3, Ordering::SeqCst);
        let bell = Arc::new(FutexBell::default());
        for by_bell in [false, true] {
            bell.arm();
            let sleeper = {
                let (word, bell) = (word(&words, 3), Arc::clone(&bell));
                thread::spawn(move || word.sleep(&bell, None))
            };
            // It may not sleep yet; a wake-up before the sleep must not be lost either.
            if by_bell {
                assert!(bell.ring());
            } else {
                words.at(0).store(0, Ordering::SeqCst);
                wake_shared(words.at(0));
            }
            sleeper.join().unwrap().unwrap();
            words.at(0).store(3, Ordering::SeqCst);
        }
    }
}
