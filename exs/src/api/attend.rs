//! Connections that the program attends: a thread that blocks, a task of an asynchronous runtime, or an
//! event loop that polls streams.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use super::Socket;
use super::private_queues::{keep, queue_for};
#[cfg(feature = "tokio")]
use super::{Event, EventQueue};
use crate::mem::Buffer;
#[cfg(feature = "tokio")]
use crate::progress::Want;
use crate::progress::{Destination, Error, LentRecv, PassingRecv, Ringer};
#[cfg(feature = "tokio")]
use crate::session::VisitRead;
use crate::sys::SharedStream;

/// The stream of a connection, for an epoll set. It is readable, by edges, when bytes come.
#[derive(Debug)]
pub struct AttendedStream(Arc<SharedStream>);

impl AsFd for AttendedStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for AttendedStream {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// What can make a descriptor of the program's readable when data come on a connection, without a
/// thread of the library.
#[derive(Debug)]
#[non_exhaustive]
pub enum RungBy {
    /// There is no connection yet, or none any more.
    Unknown,
    /// Nothing: a thread of the library shows the data.
    Nothing,
    /// The peer, at the end of a socket pair ([`polled`](super::raw::polled)).
    Peer,
    /// The kernel, at this stream. From now on a receive that does not wait reads the stream until
    /// nothing more is there, and the program must come for each edge.
    Stream(AttendedStream),
}

impl Socket {
    /// Waits for a small message on a connection that threads serve by blocking calls, and takes its bytes
    /// without a receive. Returns their number; 0: a receive must be posted.
    pub(super) fn pass(&self, bytes: &mut [u8]) -> Result<usize, Error> {
        if bytes.is_empty() {
            return Ok(0);
        }
        self.pass_to(PassingRecv { out: Destination::Slice(bytes), ends_at_signal: false })
    }

    /// The same for a call of C, which a signal handler ends.
    pub(super) fn pass_exactly(&self, buffer: &Buffer) -> Result<usize, Error> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let memory = buffer.segment();
        let out = Destination::Memory(&memory);
        self.pass_to(PassingRecv { out, ends_at_signal: true })
    }

    /// True if the next receive may pass.
    pub(super) fn may_pass(&self) -> bool {
        self.handle()
            .home()
            .is_some_and(|(context, _)| self.handle().is_lent() || context.has_threads_attend())
    }

    fn pass_to(&self, mut to: PassingRecv<'_>) -> Result<usize, Error> {
        let Some((context, id)) = self.handle().home() else { return Ok(0) };
        let read = match self.handle().recv_lent(context, id, &mut to) {
            LentRecv::Message(n) => return Ok(n),
            LentRecv::Last(n) => {
                context.recall(id);
                return Ok(n);
            }
            LentRecv::Interrupted => return Err(Error::Interrupted),
            LentRecv::NotLent if !context.has_threads_attend() => return Ok(0),
            LentRecv::NotLent => None,
            // Only a wait with an operation, which holds signals back, sleeps more than once.
            LentRecv::Other(read) if to.ends_at_signal && read.result.is_err() => {
                let interrupted = read.interrupted;
                context.give_back(id, read);
                return if interrupted { Err(Error::Interrupted) } else { Ok(0) };
            }
            LentRecv::Other(read) => Some(read),
        };
        match queue_for(self) {
            Ok(queue) => {
                let loan = self.handle().loan();
                let passed = context.pass_to_thread((queue.core(), id), loan, to, read);
                keep(queue);
                passed
            }
            Err(e) => {
                if let Some(read) = read {
                    context.give_back(id, read);
                }
                Err(e)
            }
        }
    }

    /// What can make a descriptor readable when data come.
    pub(super) fn rung_by(&self) -> RungBy {
        match self.handle().look(|engine, id| engine.rung_by(id)) {
            None => RungBy::Unknown,
            Some(Ringer::Nothing) => RungBy::Nothing,
            Some(Ringer::Peer) => RungBy::Peer,
            Some(Ringer::Stream(stream)) => RungBy::Stream(AttendedStream(stream)),
        }
    }

    /// The program polls the connection no longer.
    pub(super) fn end_polling(&self) {
        self.handle().call(|engine, id, _| engine.end_polling(id));
    }

    /// The same for a connection whose peer sends nothing any more.
    pub(super) fn end_polling_at_end(&self) {
        self.handle().look(|engine, id| engine.end_polling(id));
    }
}

#[cfg(feature = "tokio")]
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

#[cfg(feature = "tokio")]
impl EventQueue {
    /// Takes what has come on such a connection, and up to `max` events of the queue. Bytes may go to
    /// `read`, which come before those of the events. True if the task waits for the stream again.
    /// False: it does not attend the connection any more.
    pub(crate) fn run_for_task(
        &self,
        socket: &Socket,
        (out, max): (&mut Vec<Event>, usize),
        read: Option<&mut VisitRead<'_>>,
    ) -> bool {
        let Some((context, id)) = socket.handle().home() else { return false };
        context.run_for_task(self.core(), id, &mut Want { min: 1, max, out }, read)
    }
}
