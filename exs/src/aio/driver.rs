//! The driver of a reactor in a tokio runtime: a task that moves the data of the reactor's sockets.
//!
//! The task waits for the descriptors that drive the shard of the reactor's event queue, which are
//! registered once with the runtime's own poll. One of them is readable when the shard has something
//! to do. So the thread of the runtime that found it readable moves the data, and no other thread takes
//! part.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::runtime::Handle;
use tokio::task::yield_now;

use super::crowd::Crowd;
use super::reactor::{AioReactor, BATCH};
use super::turns::LeftOutput;
use crate::api::{Driven, Error, Event, LoopLook};

/// Starts a reactor, and its driver, in a runtime that the calling thread is in. `crowd` counts the
/// busy streams of the runtime.
///
/// # Errors
/// What the kernel says if EXS cannot start, or has no descriptor left.
pub(super) fn start(handle: &Handle, crowd: Arc<Crowd>) -> Result<Arc<AioReactor>, Error> {
    let reactor = Arc::new(AioReactor::of_runtime(handle.id(), crowd)?);
    let error = |e: std::io::Error| Error::os("registering the event queue with tokio", &e);
    let fds = reactor.queue().drive_fds().map_err(error)?;
    #[allow(deprecated, reason = "they are owned, and older versions have no `register`")]
    let register = |fd| AsyncFd::with_interest(fd, Interest::READABLE);
    let [events, reactors, timer] = fds.map(register);
    let mut driver = RuntimeDriver {
        reactor: Some(Arc::clone(&reactor)),
        fds: [events.map_err(error)?, reactors.map_err(error)?, timer.map_err(error)?],
        events: Vec::with_capacity(BATCH),
        wakers: Vec::new(),
        look: None,
        output: OutputTurns::default(),
    };
    handle.spawn(async move {
        while poll_fn(|cx| driver.poll(cx)).await.is_continue() {
            // The tasks that were woken have their turns first, the future of `block_on` included.
            // A task that wakes itself would run before that future, and would wake a worker.
            yield_now().await;
        }
    });
    Ok(reactor)
}

/// The state of the task.
struct RuntimeDriver {
    /// None: the runtime has ended.
    reactor: Option<Arc<AioReactor>>,
    /// The driver's own descriptors of what drives the shard: the queue's events, the reactor, the timer.
    fds: [AsyncFd<OwnedFd>; 3],
    events: Vec<Event>,
    wakers: Vec<Waker>,
    /// The driver looks for what comes before it sleeps.
    look: Option<LoopLook>,
    output: OutputTurns,
}

/// Whether the driver has another turn behind the tasks that it wakes, for what they leave in link
/// groups. It then sends all of that in one write.
#[derive(Default)]
struct OutputTurns {
    /// The tasks that were woken last have left output, or could have.
    expected: bool,
    /// The driver has woken tasks in its last turn.
    woke: bool,
}

impl OutputTurns {
    /// A turn begins: sends what the tasks have left.
    fn begin_turn(&mut self, reactor: &AioReactor) {
        let left = reactor.turns.output.begin_turn();
        if left == LeftOutput::Kept {
            reactor.queue().write_kept();
        }
        self.expected = left != LeftOutput::Nothing || self.expected && !self.woke;
        self.woke = false;
    }

    /// The driver will have another turn. `wakes`: it wakes tasks before.
    fn promise_turn(&mut self, reactor: &AioReactor, wakes: bool) {
        reactor.turns.output.promise();
        self.woke = wakes;
    }
}

impl RuntimeDriver {
    /// A turn of the task. `Continue`: another turn must follow behind those of the tasks. `Break`: the
    /// runtime ends.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        let Some(reactor) = &self.reactor else { return Poll::Ready(ControlFlow::Break(())) };
        reactor.turns.set_driver(cx.waker());
        reactor.turns.end_turn();
        self.output.begin_turn(reactor);
        loop {
            let Some(ready) = readable(&self.fds, cx) else {
                return Poll::Ready(ControlFlow::Break(()));
            };
            if ready.iter().all(Option::is_none) {
                return Poll::Pending;
            }
            let queue = reactor.queue();
            // The readiness above is older than the question to the kernel, so what comes after that
            // question is not cleared with it.
            let driven = match &mut self.look {
                Some(look) => queue.look_into(&mut self.events, BATCH, look),
                None => Some(queue.drive_into(&mut self.events, BATCH)),
            };
            if driven.is_some() {
                self.look = None;
            }
            let sleeps = match driven {
                Some(Driven::Found { asked }) => {
                    self.look = queue.begin_look();
                    let comes_again = self.look.is_some() || self.output.expected;
                    asked && !comes_again && queue.announce_sleep()
                }
                Some(Driven::Asleep) => true,
                Some(Driven::Again) | None => false,
            };
            if sleeps {
                ready.into_iter().flatten().for_each(|mut ready| ready.clear_ready());
            } else {
                self.output.promise_turn(reactor, !self.events.is_empty());
            }
            reactor.deliver(&mut self.events, &mut self.wakers);
            self.wakers.drain(..).for_each(Waker::wake);
            if !sleeps {
                return Poll::Ready(ControlFlow::Continue(()));
            }
        }
    }
}

/// The descriptors that are readable. If all are not, the task of the context wakes when one is. None: the
/// runtime ends.
fn readable<'a>(
    fds: &'a [AsyncFd<OwnedFd>; 3],
    cx: &mut Context<'_>,
) -> Option<[Option<AsyncFdReadyGuard<'a, OwnedFd>>; 3]> {
    let mut all = [const { None }; 3];
    for (fd, ready) in fds.iter().zip(&mut all) {
        if let Poll::Ready(found) = fd.poll_read_ready(cx) {
            *ready = Some(found.ok()?);
        }
    }
    Some(all)
}

impl Drop for RuntimeDriver {
    /// The runtime ends. Operations whose futures live on elsewhere need another driver. So does a
    /// thread that enters the runtime at this moment: it finds the reactor, or that it is gone.
    fn drop(&mut self) {
        let Some(reactor) = self.reactor.take() else { return };
        reactor.turns.clear_driver();
        self.output.begin_turn(&reactor);
        if let Err(needed) = Arc::try_unwrap(reactor)
            && let Err(e) = needed.drive_by_thread()
        {
            crate::trace::warn!("the sockets of a tokio runtime that has ended stand still: {e}");
        }
    }
}

#[cfg(test)]
mod tests;
