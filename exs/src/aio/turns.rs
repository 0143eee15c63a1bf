//! Streams with writes that wait for the end of their task's turn.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// An object that keeps writes back until the task that wrote has had its turn.
pub(super) trait Keeps: Send + Sync {
    /// Sends what it has kept.
    fn send_kept(&self);
}

/// The list. A runtime polls the driver after the task that has woken it, so the driver marks the end of
/// the task's turn.
#[derive(Default)]
pub(super) struct TurnEnds {
    inner: Mutex<TurnState>,
}

#[derive(Default)]
struct TurnState {
    keeping: Vec<Arc<dyn Keeps>>,
    driver: Option<Waker>,
}

impl TurnEnds {
    fn lock(&self) -> MutexGuard<'_, TurnState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task that drives, if it is another than before.
    pub(super) fn set_driver(&self, waker: &Waker) {
        let mut inner = self.lock();
        match &mut inner.driver {
            Some(same) => same.clone_from(waker),
            None => inner.driver = Some(waker.clone()),
        }
    }

    /// No task drives any more.
    pub(super) fn clear_driver(&self) {
        let waker = self.lock().driver.take();
        drop(waker);
        self.end_turn();
    }

    /// Notes an object that keeps writes. False if no task drives: the object must send them itself.
    pub(super) fn keep(&self, object: Arc<dyn Keeps>) -> bool {
        let mut inner = self.lock();
        let Some(driver) = inner.driver.clone() else { return false };
        inner.keeping.push(object);
        let first = inner.keeping.len() == 1;
        drop(inner);
        if first {
            driver.wake();
        }
        true
    }

    /// Sends what was kept.
    pub(super) fn end_turn(&self) {
        loop {
            let mut keeping = std::mem::take(&mut self.lock().keeping);
            if keeping.is_empty() {
                return;
            }
            keeping.drain(..).for_each(|object| object.send_kept());
            let mut inner = self.lock();
            if inner.keeping.is_empty() {
                inner.keeping = keeping;
                return;
            }
        }
    }
}
