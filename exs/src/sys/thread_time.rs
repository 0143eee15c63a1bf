//! What the kernel says of the threads of this process.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
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

/// How long a thread of this process has had a processor so far. None: the thread is gone.
pub(crate) fn processor_time(thread: i32) -> Option<Duration> {
    /// The lowest bits of the clock of a thread, which count its time on a processor.
    const OF_THREAD: i32 = 0b110;
    // The kernel has a clock for each thread, whose number pthread_getcpuclockid(3) makes in this way. That
    // call wants the thread's handle, and the number of the thread is what is known here.
    let clock = !thread << 3 | OF_THREAD;
    note_calls(1);
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the time.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) } != 0;
    let (seconds, nanos) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    (!failed).then(|| Duration::new(seconds, nanos))
}

/// True if a thread of this process has a processor or waits for one (state R of proc(5)). False if
/// it sleeps or is gone, or there is no `/proc`.
pub(crate) fn is_runnable(thread: i32) -> bool {
    let mut room = [0; 128];
    note_calls(3);
    let read = File::open(format!("/proc/self/task/{thread}/stat"))
        .and_then(|mut file| file.read(&mut room));
    let text = read.ok().and_then(|len| std::str::from_utf8(room.get(..len)?).ok());
    // The name, in brackets before the state, may itself have brackets and spaces.
    let state = text.and_then(|text| Some(text.rsplit_once(") ")?.1));
    state.is_some_and(|state| state.starts_with('R'))
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
