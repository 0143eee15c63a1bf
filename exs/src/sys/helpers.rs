//! Helper threads, for calls that a peer, a file system or a disk can hold up.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::HeldSignals;

/// Time that an idle thread waits for more work before it ends.
const REST: Duration = Duration::from_millis(100);

/// Work for a helper thread.
pub(super) type Task = Box<dyn FnOnce() + Send>;

struct PoolState {
    /// Tasks that no thread has begun.
    waiting: VecDeque<Task>,
    /// Number of threads that live.
    threads: usize,
    /// Number of threads that wait for a task.
    idle: usize,
}

/// A pool of helper threads. They start when there is work, and end when there is none.
pub(super) struct Helpers {
    name: &'static str,
    most: usize,
    state: Mutex<PoolState>,
    more: Condvar,
}

impl Helpers {
    /// Makes a pool of up to `most` threads of this name. A peer can hold up each for as long as
    /// it likes; tasks beyond that wait until a thread comes free.
    pub(super) const fn new(name: &'static str, most: usize) -> Helpers {
        let state = PoolState { waiting: VecDeque::new(), threads: 0, idle: 0 };
        Helpers { name, most, state: Mutex::new(state), more: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a task. Returns false if there is no thread and none can be made; then the task
    /// waits until the pool starts a thread for a later task.
    pub(super) fn run(&'static self, task: Task) -> bool {
        let mut state = self.lock();
        state.waiting.push_back(task);
        if state.idle < state.waiting.len() && state.threads < self.most {
            // The new thread inherits the mask: the program's signals are for the program's
            // threads.
            let _held = HeldSignals::new();
            let thread = std::thread::Builder::new().name(self.name.into());
            if thread.spawn(move || self.work()).is_ok() {
                state.threads += 1;
            }
        }
        self.more.notify_one();
        state.threads > 0
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            while let Some(task) = state.waiting.pop_front() {
                drop(state);
                task();
                state = self.lock();
            }
            state.idle += 1;
            let rest = self.more.wait_timeout(state, REST);
            let (back, rest) = rest.unwrap_or_else(PoisonError::into_inner);
            state = back;
            state.idle -= 1;
            if rest.timed_out() && state.waiting.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_waiting_task_holds_up_no_other_and_the_threads_end() {
        static POOL: Helpers = Helpers::new("exs-test", 2);
        let ((stop, stopped), (done, end)) = (channel::<()>(), channel());
        assert!(POOL.run(Box::new(move || {
            let _ = stopped.recv();
        })));
        for i in 0..5 {
            let done = done.clone();
            assert!(POOL.run(Box::new(move || done.send(i).unwrap())));
        }
        let limit = Duration::from_secs(60);
        assert!((0..5).eq((0..5).map(|_| end.recv_timeout(limit).unwrap())), "in order");
        drop(stop);
        while POOL.lock().threads > 0 {
            std::thread::yield_now();
        }
    }
}
