//! What the kernel says of the threads of this process.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::str::FromStr;
use std::time::Duration;

use super::note_calls;

/// Returns a number of the calling thread that no other living thread has. The standard library's
/// number is gone when the thread's own variables are, which go first at the end of the process.
pub(crate) fn this_thread() -> i32 {
    thread_local! {
        /// Zero until the thread has asked for its number. It has no destructor, so it stays until
        /// the thread is gone.
        static NUMBER: Cell<i32> = const { Cell::new(0) };
    }
    // SAFETY: no arguments, and it cannot fail.
    let ask = || unsafe { libc::gettid() };
    let known = |number: &Cell<i32>| {
        if number.get() == 0 {
            number.set(ask());
        }
        number.get()
    };
    NUMBER.try_with(known).unwrap_or_else(|_| ask())
}

/// How long a thread of this process has had a processor so far (schedstat, see proc(5)). None: the
/// thread is gone, or the kernel does not say.
pub(crate) fn processor_time(thread: i32) -> Option<Duration> {
    let first = |text: &str| u64::from_str(text.split(' ').next()?).ok();
    // A kernel that does not count says zero.
    read(thread, "schedstat", first).filter(|&nanos| nanos > 0).map(Duration::from_nanos)
}

/// True if a thread of this process has a processor or waits for one (state R of proc(5)). False if
/// it sleeps or is gone, or there is no `/proc`.
pub(crate) fn is_runnable(thread: i32) -> bool {
    // The name, in brackets before the state, may itself have brackets and spaces.
    let state = read(thread, "stat", |text| Some(text.rsplit_once(") ")?.1.starts_with('R')));
    state == Some(true)
}

/// Passes the beginning of the text of a file of the thread to `take`.
fn read<T>(thread: i32, file: &str, take: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let mut room = [0; 128];
    note_calls(3);
    let mut opened = File::open(format!("/proc/self/task/{thread}/{file}")).ok()?;
    let len = opened.read(&mut room).ok()?;
    take(std::str::from_utf8(room.get(..len)?).ok()?)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_thread_that_runs_is_told_from_one_that_sleeps() {
        let me = this_thread();
        assert!(me > 0 && me == this_thread());
        assert!(is_runnable(me));
        let (number, numbers) = channel();
        let (end, ended) = channel::<()>();
        let sleeper = std::thread::spawn(move || {
            number.send(this_thread()).unwrap();
            ended.recv().unwrap_err();
        });
        let thread = numbers.recv().unwrap();
        assert_ne!(thread, me);
        while is_runnable(thread) {
            std::thread::yield_now();
        }
        let had = processor_time(thread);
        assert!(had.is_some());
        assert_eq!(processor_time(thread), had, "it sleeps");
        drop(end);
        sleeper.join().unwrap();
    }

    #[test]
    fn time_on_a_processor_is_counted() {
        let me = this_thread();
        let begun = processor_time(me);
        while processor_time(me) == begun {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_thread_that_is_gone_has_no_state() {
        let thread = std::thread::spawn(this_thread);
        let thread = thread.join().unwrap();
        // The kernel may take a moment to forget it.
        while processor_time(thread).is_some() {
            std::thread::yield_now();
        }
        assert!(!is_runnable(thread));
    }
}
