//! What the handles of one stream share.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::ReadBuf;

use super::pool::BufferPool;
use super::rx::{BytesFound, ReadSide};
use super::tx::{SendPort, WriteSide, Written};
use super::{IS_SEND, IS_SHUTDOWN};
use crate::aio::reactor::AioReactor;
use crate::aio::slots::{Sink, Uses, token};
use crate::aio::turns::Keeps;
use crate::api::raw::send_at_once;
use crate::api::{Buffer, Error, Event, RecvFlags, Refused, Socket};

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

    /// Reads what has come, or posts receives and notes the task.
    pub(super) fn poll_read(
        &self,
        cx: &Context<'_>,
        out: &mut ReadBuf<'_>,
        peek: bool,
    ) -> Poll<io::Result<()>> {
        match self.read(out, peek, Some(cx)) {
            BytesFound::Some => Poll::Ready(Ok(())),
            BytesFound::Failed(error) => Poll::Ready(Err(error.into())),
            BytesFound::Nothing => Poll::Pending,
        }
    }

    /// The same for the task of the context; without one, no task is noted.
    pub(super) fn read(
        &self,
        out: &mut ReadBuf<'_>,
        peek: bool,
        cx: Option<&Context<'_>>,
    ) -> BytesFound {
        let look = |rx: &mut ReadSide, out: &mut ReadBuf<'_>| match peek {
            true => rx.peek(out),
            false => rx.read(out, &self.state.pool),
        };
        let mut rx = self.state.rx();
        let found = look(&mut rx, out);
        self.post_receives(&mut rx);
        if !matches!(found, BytesFound::Nothing) {
            return found;
        }
        drop(rx);
        // The task waits for the peer, which may wait for what the task has written.
        self.send_kept();
        self.reactor.collect();
        let mut rx = self.state.rx();
        let found = look(&mut rx, out);
        match found {
            BytesFound::Nothing => {
                if let Some(cx) = cx {
                    rx.wakers.add(cx);
                }
            }
            _ => self.post_receives(&mut rx),
        }
        found
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
    pub(super) fn poll_read_ready(&self, cx: &Context<'_>) -> Poll<()> {
        self.post_receives(&mut self.state.rx());
        self.send_kept();
        self.reactor.collect();
        let mut rx = self.state.rx();
        if rx.is_ready() {
            return Poll::Ready(());
        }
        rx.wakers.add(cx);
        Poll::Pending
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
    fn send_at_once(&mut self, buffer: &Buffer) -> bool {
        send_at_once(&self.socket, buffer)
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
        if self.state.uses.end() {
            self.reactor.slots().remove(self.slot);
        }
    }
}
