//! Connections that tasks of an asynchronous runtime attend.
//!
//! A runtime has an epoll set of its own. A task that waits for the bytes of one connection can
//! have the connection's stream there, and take what has come itself, as a thread that attends its
//! connection does (`attend`). Then neither the shard's reactor nor the runtime's driver takes part
//! in a message. Between two visits of the task the connection is out of the reactor, as one that an
//! attending thread has left. A sweep returns it to the leader if the task does not come for its bytes,
//! or if it is idle.

use std::sync::Arc;

use super::attend::LeftBy;
use super::{Engine, SockId};
use crate::sys::SharedStream;
use crate::time::Time;

impl Engine {
    /// Takes a connection out of the reactor, for a task that waits for its stream. None: the
    /// connection has no stream, or something is under way for which the task does not wait.
    pub(crate) fn attend_by_task(&mut self, id: SockId, now: Time) -> Option<Arc<SharedStream>> {
        let stream = match self.only_receives(id) {
            true => self.attendances().lend_stream(id)?,
            false => return None,
        };
        self.attendances().leave_to_program(id, LeftBy::Task, now).then_some(stream)
    }
}
