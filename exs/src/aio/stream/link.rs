//! What the handles of one stream share.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::ReadBuf;

use super::attend::{Attending, TaskStream};
use super::pool::{BufferPool, Size};
use super::rx::{BytesFound, Look, ReadSide, Reads};
use super::tx::{SendPort, WriteSide, Written};
use super::{IS_SEND, IS_SHUTDOWN};
use crate::aio::reactor::AioReactor;
use crate::aio::slots::{Sink, Uses, token};
use crate::aio::turns::Keeps;
use crate::api::{Buffer, Error, Event, RecvFlags, Refused, Socket};
use crate::session::VisitRead;
use crate::sys::IoVec;

/// The state that events change. The reactor refers to it while operations are in flight, and it has
/// no handle of the socket: the socket closes with the last handle of the stream.
struct StreamState {
    rx: Mutex<ReadSide>,
    tx: Mutex<WriteSide>,
    uses: Uses,
    pool: Arc<BufferPool>,
}

impl StreamState {
    fn rx(&self) -> MutexGuard<'_, ReadSide> {
        self.rx.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tx(&self) -> MutexGuard<'_, WriteSide> {
        self.tx.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamState {
    fn drop(&mut self) {
        self.rx().give_back(&self.pool);
        self.tx().give_back(&self.pool);
    }
}

impl Sink for StreamState {
    fn complete(&self, tag: u32, event: Event, wakers: &mut Vec<Waker>) {
        match tag {
            // The library ends the direction whether a task waits for it or not.
            IS_SHUTDOWN => {}
            IS_SEND => self.tx().complete(event, &self.pool, wakers),
            number => self.rx().complete(number, event, &self.pool, wakers),
        }
    }

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

/// A connection with its receives and sends.
pub(super) struct StreamCore {
    socket: Socket,
    reactor: Arc<AioReactor>,
    slot: usize,
    state: Arc<StreamState>,
}

impl StreamCore {
    pub(super) fn new(socket: Socket, reactor: Arc<AioReactor>) -> StreamCore {
        let state = Arc::new(StreamState {
            rx: Mutex::new(ReadSide::new()),
            tx: Mutex::new(WriteSide::new()),
            uses: Uses::owned(),
            pool: Arc::clone(reactor.pool()),
        });
        let sink: Arc<dyn Sink> = state.clone();
        let slot = reactor.slots().insert_sink(sink);
        StreamCore { socket, reactor, slot, state }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Posts an operation whose event comes to this stream.
    fn post<E>(
        &self,
        tag: u32,
        f: impl FnOnce(crate::api::Token) -> Result<(), E>,
    ) -> Result<(), E> {
        self.state.uses.add();
        f(token(self.slot, tag)).inspect_err(|_| {
            // The owner's use remains.
            let _ = self.state.uses.end();
        })
    }

    /// Reads what has come, or posts receives and notes the task. Only one caller at a time reads.
    pub(super) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.find(Some((cx, Reads::Alone)), Look::Read(out)).into_poll()
    }

    /// The same, but leaves the bytes. Any number of callers may do this.
    pub(super) fn poll_peek(
        &self,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.find(Some((cx, Reads::Beside)), Look::Peek(out)).into_poll()
    }

    /// Reads what has come, or posts receives. No task is noted.
    pub(super) fn try_read(&self, out: &mut ReadBuf<'_>) -> BytesFound {
        self.find(None, Look::Read(out))
    }

    /// Looks at what has come, moves what is under way, and looks again. If there is nothing, the task
    /// of the context is noted, if there is one.
    fn find(
        &self,
        mut cx: Option<(&mut Context<'_>, Reads)>,
        mut look: Look<'_, '_>,
    ) -> BytesFound {
        let (mut flushed, mut taken, mut waits) = (false, false, false);
        loop {
            let mut rx = self.state.rx();
            if taken {
                rx.attendance.note_taken();
            }
            let found = rx.look(&mut look, &self.state.pool);
            self.post_receives(&mut rx);
            if !matches!(found, BytesFound::Nothing) {
                return found;
            }
            let mut attended = None;
            if let Some((cx, reads)) = &cx {
                if waits {
                    rx.note_task(cx, *reads);
                } else {
                    attended = self.attend(&mut rx);
                    rx.forget_task(*reads);
                }
            }
            if waits {
                return BytesFound::Nothing;
            }
            drop(rx);
            if !std::mem::replace(&mut flushed, true) {
                // The task waits for the peer, which may wait for what the task has written.
                self.send_kept();
                self.reactor.collect();
            }
            waits = true;
            if let (Some(stream), Some((cx, _))) = (attended, &mut cx) {
                let mut passed = 0;
                match stream.poll(cx, || self.visit(&mut look, &mut passed)) {
                    Attending::Waits => {}
                    Attending::Came => (taken, waits) = (true, false),
                    Attending::Ended => {
                        self.state.rx().attendance.end();
                        waits = false;
                    }
                }
                if passed > 0 {
                    return BytesFound::Some;
                }
            }
        }
    }

    /// Takes what has come on a connection that the task attends. A read that finds nothing before it gets
    /// the bytes of small messages straight from the engine: `passed` counts them. The receives stay
    /// posted. True if the task attends the connection further on.
    fn visit(&self, look: &mut Look<'_, '_>, passed: &mut usize) -> bool {
        self.reactor.run_for_task(|queue, events| {
            // No event changes the receives until the bytes are in their place.
            let mut rx = self.state.rx();
            let (Look::Read(out), Some(posted)) = (look, rx.all_in_flight()) else {
                drop(rx);
                return queue.run_for_task(&self.socket, events, None);
            };
            // Full buffers say that larger ones are worth while, so such messages go there.
            let room = out.remaining().min(Size::Small.bytes() - 1);
            let mut take = |bytes: &[u8]| {
                out.put_slice(bytes);
                *passed += bytes.len();
            };
            let mut read = VisitRead { posted, room, take: &mut take };
            let stays = queue.run_for_task(&self.socket, events, Some(&mut read));
            if *passed > 0 {
                rx.note_passed(*passed);
            }
            stays
        })
    }

    /// The stream of the connection, if the task that waits attends it.
    fn attend(&self, rx: &mut ReadSide) -> Option<Arc<TaskStream>> {
        if rx.is_busy() {
            rx.attendance.note_wait(&self.socket, &self.reactor);
        }
        rx.attendance.stream()
    }

    #[cfg(any(test, feature = "internals"))]
    pub(super) fn attend_always(&self) {
        self.state.rx().attendance.attend_always();
    }

    fn post_receives(&self, rx: &mut ReadSide) {
        rx.post_ahead(&self.state.pool, |number, buffer| {
            let posted = self.post(number, |token| {
                self.socket.recv(self.reactor.queue(), token, buffer, RecvFlags::NONE)
            });
            posted.map_err(|Refused { error, buffer }| (error, buffer))
        });
    }

    /// Waits until a read would not wait.
    pub(super) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.find(Some((cx, Reads::Beside)), Look::Ready) {
            BytesFound::Nothing => Poll::Pending,
            BytesFound::Some | BytesFound::Failed(_) => Poll::Ready(()),
        }
    }

    /// True if the next read finds the end, or an error.
    pub(super) fn is_at_end(&self) -> bool {
        self.state.rx().is_at_end()
    }

    /// Waits until a write would not wait.
    pub(super) fn poll_write_ready(&self, cx: &Context<'_>) -> Poll<()> {
        if self.state.tx().is_full() {
            self.reactor.collect();
        }
        let mut tx = self.state.tx();
        if !tx.is_full() {
            return Poll::Ready(());
        }
        tx.wakers.add(cx);
        Poll::Pending
    }

    /// Takes bytes of a write. None: there is no room, and the task, if any, is noted.
    pub(super) fn write(
        self: &Arc<StreamCore>,
        data: &[IoSlice<'_>],
        cx: Option<&Context<'_>>,
    ) -> Option<io::Result<usize>> {
        let mut collected = false;
        loop {
            let mut tx = self.state.tx();
            match tx.write(data, &self.state.pool, &mut &**self) {
                Ok(Written::Sent(n)) => return Some(Ok(n)),
                Ok(Written::Kept(n)) => {
                    let listed = std::mem::replace(&mut tx.listed, true);
                    drop(tx);
                    if !listed && !self.reactor.turns.keep(self.clone()) {
                        self.send_kept_of_turn();
                    }
                    return Some(Ok(n));
                }
                Ok(Written::Full) if !collected => {
                    drop(tx);
                    self.reactor.collect();
                    collected = true;
                }
                Ok(Written::Full) => {
                    if let Some(cx) = cx {
                        tx.wakers.add(cx);
                    }
                    return None;
                }
                Err(error) => return Some(Err(error.map_or_else(closed, io::Error::from))),
            }
        }
    }

    /// Sends what is kept.
    pub(super) fn flush(&self) -> io::Result<()> {
        let mut tx = self.state.tx();
        tx.end_turn(&self.state.pool, &mut &*self);
        tx.take_error().map_or(Ok(()), |error| Err(error.into()))
    }

    fn send_kept(&self) {
        self.state.tx().end_turn(&self.state.pool, &mut &*self);
    }

    fn send_kept_of_turn(&self) {
        let mut tx = self.state.tx();
        tx.listed = false;
        tx.end_turn(&self.state.pool, &mut &*self);
    }

    /// Ends the sending direction behind what was written, or does nothing if it has ended.
    pub(super) fn shutdown(&self) -> io::Result<()> {
        let mut tx = self.state.tx();
        if !tx.shut() {
            return Ok(());
        }
        tx.end_turn(&self.state.pool, &mut &*self);
        let failed = tx.take_error();
        drop(tx);
        let queue = self.reactor.queue();
        // A refusal says that the connection has ended, which is no error here, as with TCP.
        let _ = self.post(IS_SHUTDOWN, |token| self.socket.shutdown(queue, token, Shutdown::Write));
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the sending direction was shut down")
}

impl SendPort for &StreamCore {
    fn send_at_once(&mut self, bytes: &[u8]) -> bool {
        self.reactor.send_at_once(&self.socket, &IoVec::new(bytes))
    }

    fn send(&mut self, buffer: Buffer) -> Result<(), (Error, Buffer)> {
        let queue = self.reactor.queue();
        self.post(IS_SEND, |token| self.socket.send(queue, token, buffer))
            .map_err(|Refused { error, buffer }| (error, buffer))
    }
}

impl Keeps for StreamCore {
    fn send_kept(&self) {
        self.send_kept_of_turn();
    }
}

impl Drop for StreamCore {
    /// What was written is delivered: the socket closes behind it.
    fn drop(&mut self) {
        self.send_kept();
        // The runtime's epoll set keeps the connection's descriptor no longer.
        self.state.rx().attendance.end();
        if self.state.uses.end() {
            self.reactor.slots().remove(self.slot);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
