//! What waits for the end of tasks' turns: writes that streams keep, and output in link groups.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// An object that keeps writes back until the task that wrote has had its turn.
pub(super) trait Keeps: Send + Sync {
    /// Sends what it has kept.
    fn send_kept(&self);
}

/// Output that tasks leave in link groups for the driver.
///
/// Output waits only while the driver has a turn to come, and so never for a driver that must be woken
/// first. The driver promises a turn behind the tasks that it wakes where it has seen that their output
/// could have waited.
///
/// | state | [`keep`](TaskOutput::keep) | [`note_ahead`](TaskOutput::note_ahead) | [`promise`](TaskOutput::promise) |
/// |---|---|---|---|
/// | asleep | ahead: the caller sends | ahead | coming |
/// | ahead | ahead: the caller sends | ahead | coming |
/// | coming | kept | coming | coming |
/// | kept | kept | kept | kept |
///
/// A turn begins with *asleep* ([`begin_turn`](TaskOutput::begin_turn)). The driver sends what was kept.
#[derive(Default)]
pub(super) struct TaskOutput(AtomicU8);

/// What tasks have done since the last turn of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftOutput {
    /// They have sent nothing that could have waited.
    Nothing,
    /// They have sent what could have waited for others.
    Ahead,
    /// They have kept output, which waits for the driver.
    Kept,
}

impl TaskOutput {
    const ASLEEP: u8 = 0;
    const AHEAD: u8 = 1;
    const COMING: u8 = 2;
    const KEPT: u8 = 3;

    fn step(&self, step: impl FnMut(u8) -> Option<u8>) -> Option<u8> {
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step).ok()
    }

    /// True if the driver has a turn to come. It may begin at any time: [`TaskOutput::keep`] follows.
    pub(super) fn may_wait(&self) -> bool {
        self.0.load(Ordering::SeqCst) >= TaskOutput::COMING
    }

    /// A task has left output. False: no turn of the driver will come for it, and the caller must send it.
    pub(super) fn keep(&self) -> bool {
        let waits =
            |state| if state >= TaskOutput::COMING { TaskOutput::KEPT } else { TaskOutput::AHEAD };
        self.step(|state| Some(waits(state))).is_some_and(|before| before >= TaskOutput::COMING)
    }

    /// A task has sent what could have waited.
    pub(super) fn note_ahead(&self) {
        self.step(|state| (state == TaskOutput::ASLEEP).then_some(TaskOutput::AHEAD));
    }

    /// The driver will have another turn, behind those of the tasks that it wakes now.
    pub(super) fn promise(&self) {
        self.step(|state| (state < TaskOutput::COMING).then_some(TaskOutput::COMING));
    }

    /// The driver begins a turn.
    pub(super) fn begin_turn(&self) -> LeftOutput {
        match self.0.swap(TaskOutput::ASLEEP, Ordering::SeqCst) {
            TaskOutput::KEPT => LeftOutput::Kept,
            TaskOutput::AHEAD => LeftOutput::Ahead,
            _ => LeftOutput::Nothing,
        }
    }
}

/// What waits for the driver. A runtime polls the driver after the task that has woken it, so the driver
/// marks the end of the task's turn.
#[derive(Default)]
pub(super) struct TurnEnds {
    inner: Mutex<TurnState>,
    pub(super) output: TaskOutput,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_waits_only_for_a_turn_that_the_driver_has_promised() {
        let output = TaskOutput::default();
        assert!(!output.may_wait() && !output.keep(), "the driver must be woken first");
        assert_eq!(
            [output.begin_turn(), output.begin_turn()],
            [LeftOutput::Ahead, LeftOutput::Nothing]
        );
        output.note_ahead();
        output.promise();
        assert!(output.may_wait());
        assert_eq!(output.begin_turn(), LeftOutput::Nothing, "nothing since the promise");

        output.promise();
        assert!(output.keep() && output.keep());
        output.promise();
        output.note_ahead();
        assert_eq!(output.begin_turn(), LeftOutput::Kept);
        assert!(!output.keep(), "the turn has ended the promise");
        assert_eq!(output.begin_turn(), LeftOutput::Ahead);
    }
}
