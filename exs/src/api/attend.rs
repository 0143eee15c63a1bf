//! Connections that tasks of an asynchronous runtime attend.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use super::{Event, EventQueue, Socket};
use crate::progress::Want;
use crate::sys::SharedStream;

/// The stream of a connection, for an epoll set. It is readable, by edges, when bytes come.
#[derive(Debug)]
pub(crate) struct AttendedStream(Arc<SharedStream>);

impl AsRawFd for AttendedStream {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Socket {
    /// Leaves the connection to a task that waits for its stream, and then calls
    /// [`EventQueue::run_for_task`]. None: the connection has no stream, or has more to do than to
    /// receive.
    pub(crate) fn attend_by_task(&self) -> Option<AttendedStream> {
        let (context, id) = self.handle().home()?;
        context.attend_by_task(id).map(AttendedStream)
    }

    /// No task attends the connection any more.
    pub(crate) fn end_attendance(&self) {
        if let Some((context, id)) = self.handle().home() {
            context.end_attendance_of_task(id);
        }
    }
}

impl EventQueue {
    /// Takes what has come on such a connection, and up to `max` events of the queue. True if the
    /// task waits for the stream again. False: it does not attend the connection any more.
    pub(crate) fn run_for_task(&self, socket: &Socket, out: &mut Vec<Event>, max: usize) -> bool {
        let Some((context, id)) = socket.handle().home() else { return false };
        context.run_for_task(self.core(), id, &mut Want { min: 1, max, out })
    }
}
