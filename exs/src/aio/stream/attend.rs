//! How the task that reads a stream attends the stream's connection.
//!
//! The driver of a runtime learns what comes on all connections, and wakes their tasks. So a message
//! takes the epoll set of the runtime, that of the shard, and a turn of the driver. A task that waits
//! for small messages again and again can do without: its connection's own descriptor is in the epoll
//! set of the runtime, and the task takes what has come itself.
//!
//! That pays where several workers serve many busy streams, since the driver is one task under one lock.
//! The threads of a runtime with few busy streams wait for bytes, and its driver looks for these before
//! it sleeps. In a runtime of one thread the driver takes what has come for many streams in one turn.
//!
//! To change over takes four system calls. So a task attends its connection after some waits that
//! followed each other closely. The engine ends the attendance as soon as something else is under
//! way, for which the task might not come, when the task has not come for bytes that are there, and
//! when none have come for 200 ms.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::aio::reactor::AioReactor;
use crate::aio::runtimes;
use crate::api::{AttendedStream, Socket};
use crate::progress::busy::BusyWindow;

/// The waits after which a task attends its connection, if each followed the one before within
/// [`CLOSELY`].
const WAITS: u32 = 8;
/// The same after the engine has ended an attendance.
const WAITS_AFTER_END: u32 = 64;
/// The time within which the waits on a busy connection follow each other.
const CLOSELY: Duration = Duration::from_millis(40);

/// The waits of the task that reads a stream, for messages that follow each other.
struct CloseWaits {
    /// The close waits that are still to come before the task attends the connection.
    left: u32,
    /// When the task has waited last.
    since: Option<Instant>,
}

impl CloseWaits {
    fn new(left: u32) -> CloseWaits {
        CloseWaits { left, since: None }
    }

    /// The task waits for the next message after one has come. True if it has done so closely for
    /// long enough.
    fn note(&mut self, now: Instant) -> bool {
        let closely = self.since.replace(now).is_some_and(|since| now - since < CLOSELY);
        self.left = if closely { self.left.saturating_sub(1) } else { WAITS.max(self.left) };
        self.left == 0
    }
}

/// The party that learns what comes on a stream's connection.
enum WatchedBy {
    /// The driver of the runtime.
    Driver(CloseWaits),
    /// The task that reads.
    Task(Arc<TaskStream>),
}

/// Whether a task attends a stream's connection, or how near it is to that.
pub(super) struct StreamAttendance {
    watched: WatchedBy,
    /// The task has taken something from the connection since it waited last.
    taken: bool,
    /// The window for which the stream was counted last among the busy ones.
    counted: BusyWindow,
    /// A task attends whenever it can: for tests.
    always: bool,
}

impl Default for StreamAttendance {
    fn default() -> StreamAttendance {
        let watched = WatchedBy::Driver(CloseWaits::new(WAITS));
        StreamAttendance { watched, taken: false, counted: BusyWindow::default(), always: false }
    }
}

impl StreamAttendance {
    /// From now on a task attends the connection whenever it can.
    #[cfg(any(test, feature = "internals"))]
    pub(super) fn attend_always(&mut self) {
        self.always = true;
    }

    /// The task that attends the connection has taken something from it.
    pub(super) fn note_taken(&mut self) {
        self.taken = true;
    }

    /// A task waits for the next small message after one has come. If it has done so often enough,
    /// in a crowd of busy streams, it attends the connection from now on. It ends the attendance
    /// where there is no crowd any more, and where the driver has brought the message: then the engine
    /// has taken the connection back, and an edge is lost whose bytes the driver has read.
    pub(super) fn note_wait(&mut self, socket: &Socket, reactor: &Arc<AioReactor>) {
        if !reactor.crowd.is_possible() && !self.always {
            return;
        }
        let now = Instant::now();
        let crowd = reactor.crowd.note(now, &mut self.counted) || self.always;
        let taken = std::mem::take(&mut self.taken);
        if matches!(self.watched, WatchedBy::Task(_)) && !(crowd && taken) {
            socket.end_attendance();
            self.watched = WatchedBy::Driver(CloseWaits::new(WAITS));
        }
        if let WatchedBy::Driver(waits) = &mut self.watched
            && (waits.note(now) && crowd || self.always)
        {
            self.watched = match TaskStream::new(socket, reactor) {
                Some(stream) => WatchedBy::Task(Arc::new(stream)),
                None => WatchedBy::Driver(CloseWaits::new(WAITS_AFTER_END)),
            };
        }
    }

    /// The stream that the task must poll, if it attends the connection.
    pub(super) fn stream(&self) -> Option<Arc<TaskStream>> {
        match &self.watched {
            WatchedBy::Task(stream) => Some(Arc::clone(stream)),
            WatchedBy::Driver(_) => None,
        }
    }

    /// The attendance has ended.
    pub(super) fn end(&mut self) {
        self.watched = WatchedBy::Driver(CloseWaits::new(WAITS_AFTER_END));
    }
}

/// What a task has found that attends its connection.
pub(super) enum Attending {
    /// Nothing has come. The runtime wakes the task when something does.
    Waits,
    /// Something has come, perhaps events.
    Came,
    /// The same, and the task does not attend the connection any more.
    Ended,
}

/// The stream of a connection, in the epoll set of the runtime.
pub(super) struct TaskStream {
    fd: AsyncFd<AttendedStream>,
}

impl TaskStream {
    /// None: the connection has no stream that a task could wait for, or there is more to do than to
    /// receive, or the task runs outside of the stream's runtime.
    fn new(socket: &Socket, reactor: &Arc<AioReactor>) -> Option<TaskStream> {
        if !runtimes::is_here(reactor) {
            return None;
        }
        let stream = socket.attend_by_task()?;
        #[allow(
            deprecated,
            reason = "the descriptor is owned, and older versions have no `register`"
        )]
        let fd = AsyncFd::with_interest(stream, Interest::READABLE);
        // If the kernel has no memory for it, the engine takes the connection back in 50 ms.
        Some(TaskStream { fd: fd.ok()? })
    }

    /// Takes what has come on the connection by `run`. It returns true if the task attends the connection
    /// further on. The caller holds no lock that a sink takes.
    pub(super) fn poll(&self, cx: &mut Context<'_>, run: impl FnOnce() -> bool) -> Attending {
        let Poll::Ready(ready) = self.fd.poll_read_ready(cx) else { return Attending::Waits };
        // The readiness is older than the read that follows. So what comes after the read is not
        // cleared with it.
        let stays = run();
        match ready {
            Ok(mut ready) if stays => {
                ready.clear_ready();
                Attending::Came
            }
            // The runtime ends, or something is under way for which the task does not come.
            _ => Attending::Ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_attends_after_waits_that_follow_each_other_closely() {
        let begun = Instant::now();
        let note = |waits: &mut CloseWaits, ms: u64| waits.note(begun + Duration::from_millis(ms));
        let mut waits = CloseWaits::new(WAITS);
        for ms in 0..u64::from(WAITS) {
            assert!(!note(&mut waits, ms), "{ms}");
        }
        assert!(note(&mut waits, 8) && note(&mut waits, 12));
        // A pause begins the count anew.
        for ms in 0..u64::from(WAITS) {
            assert!(!note(&mut waits, 52 + ms), "{ms}");
        }
        assert!(note(&mut waits, 60));

        let mut waits = CloseWaits::new(WAITS_AFTER_END);
        assert_eq!((0..200).position(|ms| note(&mut waits, ms)), Some(WAITS_AFTER_END as usize));
    }
}
