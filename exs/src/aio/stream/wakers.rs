//! Tasks that wait for one direction of a stream, or for a listener.

use std::task::{Context, Waker};

/// A set of tasks. Usually there is one.
#[derive(Default)]
pub(in crate::aio) struct Wakers {
    tasks: Vec<Waker>,
}

impl Wakers {
    /// Adds the task of the context.
    pub(in crate::aio) fn add(&mut self, cx: &Context<'_>) {
        if !self.tasks.iter().any(|task| task.will_wake(cx.waker())) {
            self.tasks.push(cx.waker().clone());
        }
    }

    /// True if no task waits.
    pub(in crate::aio) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Moves all tasks to `wakers`, to be woken outside of the lock.
    pub(in crate::aio) fn take_into(&mut self, wakers: &mut Vec<Waker>) {
        wakers.append(&mut self.tasks);
    }
}
