//! How a task of an asynchronous runtime attends its connection: see `engine/tasks.rs`.

use std::sync::Arc;

use super::context::Context;
use super::engine::{SockId, StreamRun};
use super::event::RawEvent;
use super::queue::{QueueCore, Want};
use crate::session::VisitRead;
use crate::sys::SharedStream;

impl Context {
    /// Takes a connection out of the reactor, for a task that waits for its stream. None: the task
    /// cannot attend it now.
    pub(crate) fn attend_by_task(&self, id: SockId) -> Option<Arc<SharedStream>> {
        self.call(|engine, now| engine.attend_by_task(id, now))
    }

    /// The task does not wait for the stream any more.
    pub(crate) fn end_attendance_of_task(&self, id: SockId) {
        self.call(|engine, _| engine.attendances().end_left(id));
    }

    /// Takes what has come on a connection whose stream the task has found readable, and the events
    /// of `queue`. Bytes may go to `read`, which come before those of the events. True if the task waits
    /// for the stream again. False: another thread looks after the connection from now on.
    pub(crate) fn run_for_task<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        id: SockId,
        want: &mut Want<'_, E>,
        read: Option<&mut VisitRead<'_>>,
    ) -> bool {
        let mut engine = self.lock();
        let now = self.clock.now_locked(None);
        engine.delivery.catch_for(queue);
        let run = engine.run_left(id, now, read);
        engine.delivery.hand_over(queue, want);
        match run {
            StreamRun::Calm => self.finish_idle(engine),
            StreamRun::Stays | StreamRun::Ended => {
                self.finish(engine, None);
            }
        }
        run != StreamRun::Ended
    }
}
