//! The reactor: an event queue of a runtime, and the tasks that wait for its events.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use super::slots::{Delivered, OperationSlots, token};
use crate::api::{Error, Event, EventQueue, QueueOptions, Socket, Token};
#[cfg(feature = "tokio")]
use crate::progress::TaskSend;
use crate::progress::Workers;
use crate::sys::{IoVec, ProcessLock};

/// The depth of a reactor's queue: more than a program has operations. Each operation belongs to a
/// future, or to a stream, which limits its own, so the depth need not.
const DEPTH: usize = u32::MAX as usize;

/// The events that are taken from the queue at once.
pub(super) const BATCH: usize = 256;

/// How long a thread that drives waits for an event before it looks whether it is still needed.
const IDLE: Duration = Duration::from_secs(1);

/// An event queue, and the tasks that wait for its events.
///
/// A *driver* moves the data and delivers the events: a task of the runtime, or a thread where there
/// is no runtime. A task that posts an operation takes the events that are there already, so an
/// operation that completes at once wakes no driver.
pub(super) struct AioReactor {
    queue: EventQueue,
    slots: Mutex<OperationSlots>,
    /// Room for the events that a task takes, to be used again.
    taken: Mutex<Taken>,
    #[cfg(feature = "tokio")]
    pub(super) turns: super::turns::TurnEnds,
    #[cfg(feature = "tokio")]
    pub(super) crowd: Arc<super::crowd::Crowd>,
    #[cfg(feature = "tokio")]
    pool: Arc<super::stream::BufferPool>,
    /// The runtime whose tasks the sockets belong to, unless a thread has driven from the beginning.
    #[cfg(feature = "tokio")]
    runtime: Option<tokio::runtime::Id>,
}

#[derive(Default)]
struct Taken {
    events: Vec<Event>,
    wakers: Vec<Waker>,
}

/// The reactor of the operations that begin outside of a runtime. It lives as long as its thread, a
/// socket or an operation.
static THREADED: ProcessLock<Weak<AioReactor>> = ProcessLock::new(Weak::new());

impl AioReactor {
    /// A reactor for tasks of no runtime.
    fn of_no_runtime() -> Result<AioReactor, Error> {
        // Any number of threads may poll them.
        AioReactor::run_by(Workers::Several)
    }

    fn run_by(workers: Workers) -> Result<AioReactor, Error> {
        let queue = EventQueue::for_tasks(&QueueOptions::default().with_depth(DEPTH), workers)?;
        Ok(AioReactor {
            queue,
            slots: Mutex::default(),
            taken: Mutex::default(),
            #[cfg(feature = "tokio")]
            turns: super::turns::TurnEnds::default(),
            #[cfg(feature = "tokio")]
            crowd: Arc::new(super::crowd::Crowd::new(1)),
            #[cfg(feature = "tokio")]
            pool: Arc::default(),
            #[cfg(feature = "tokio")]
            runtime: None,
        })
    }

    /// A reactor for tasks of a runtime, whose busy streams `crowd` counts.
    #[cfg(feature = "tokio")]
    pub(super) fn of_runtime(
        runtime: tokio::runtime::Id,
        crowd: Arc<super::crowd::Crowd>,
    ) -> Result<AioReactor, Error> {
        let workers = if crowd.is_possible() { Workers::Several } else { Workers::One };
        Ok(AioReactor { crowd, runtime: Some(runtime), ..AioReactor::run_by(workers)? })
    }

    /// The reactor for a new socket: one of the runtime of this thread, or that of the process if there
    /// is none.
    ///
    /// # Errors
    /// What the kernel says if EXS, or the driver, cannot start.
    pub(super) fn current() -> Result<Arc<AioReactor>, Error> {
        #[cfg(feature = "tokio")]
        if let Some(reactor) = super::runtimes::next_here() {
            return reactor;
        }
        AioReactor::of_thread(&THREADED, IDLE)
    }

    /// The reactors for the connections of a new listener: all of the runtime of this thread, or that of
    /// the process if there is none.
    ///
    /// # Errors
    /// As [`AioReactor::current`].
    #[cfg(feature = "tokio")]
    pub(super) fn all_current() -> Result<Vec<Arc<AioReactor>>, Error> {
        super::runtimes::all_here()
            .unwrap_or_else(|| Ok(vec![AioReactor::of_thread(&THREADED, IDLE)?]))
    }

    /// The reactor for the next connection that a socket of this reactor accepts.
    pub(super) fn for_accepted(self: &Arc<AioReactor>) -> Arc<AioReactor> {
        #[cfg(feature = "tokio")]
        return super::runtimes::next_beside(self);
        #[cfg(not(feature = "tokio"))]
        Arc::clone(self)
    }

    /// The reactor that a thread drives. If the last one has ended, another one begins, whose thread
    /// ends after this time without an event and without another owner of the reactor.
    fn of_thread(
        known: &ProcessLock<Weak<AioReactor>>,
        idle: Duration,
    ) -> Result<Arc<AioReactor>, Error> {
        let mut known = known.lock();
        if let Some(reactor) = known.upgrade() {
            return Ok(reactor);
        }
        let reactor = Arc::new(AioReactor::of_no_runtime()?);
        reactor.drive_for(idle)?;
        *known = Arc::downgrade(&reactor);
        Ok(reactor)
    }

    pub(super) fn queue(&self) -> &EventQueue {
        &self.queue
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, OperationSlots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts an operation with a slot of its own. Returns the slot.
    pub(super) fn post<E>(
        &self,
        f: impl FnOnce(&EventQueue, Token) -> Result<(), E>,
    ) -> Result<usize, E> {
        let slot = self.slots().insert();
        f(&self.queue, token(slot, 0)).inspect_err(|_| self.slots().remove(slot))?;
        Ok(slot)
    }

    /// Sends few bytes of a socket of this reactor, if that completes at once. Those of a connection in a
    /// link group may wait for those of other tasks: the driver sends them together, in the turn that it
    /// will have behind the tasks.
    #[cfg(feature = "tokio")]
    pub(super) fn send_at_once(&self, socket: &Socket, payload: &IoVec<'_>) -> bool {
        let output = &self.turns.output;
        match socket.send_for_task(payload, output.may_wait()) {
            TaskSend::Declined => return false,
            TaskSend::Sent => {}
            TaskSend::SentAhead => output.note_ahead(),
            // The driver may have had its turn meanwhile.
            TaskSend::Kept if !output.keep() => self.queue.write_kept(),
            TaskSend::Kept => {}
        }
        true
    }

    /// Sends few bytes of a socket, if that completes at once.
    #[cfg(not(feature = "tokio"))]
    pub(super) fn send_at_once(&self, socket: &Socket, payload: &IoVec<'_>) -> bool {
        socket.send_at_once(payload, false)
    }

    /// Takes the events that are there, without moving data, and wakes their tasks. The caller holds
    /// no lock that a sink takes.
    pub(super) fn collect(&self) {
        if !self.queue.is_empty() {
            // Another task may take events at the same time: each event says where it belongs.
            self.take_and_deliver(|events| self.queue.take_into(events, BATCH));
        }
    }

    /// Takes what has come on a connection that the calling task attends, and delivers the events. `run`
    /// gets the queue and room for events, and calls [`EventQueue::run_for_task`]. The caller holds no
    /// lock that a sink takes, apart from those that `run` releases.
    #[cfg(feature = "tokio")]
    pub(super) fn run_for_task<T>(
        &self,
        run: impl FnOnce(&EventQueue, (&mut Vec<Event>, usize)) -> T,
    ) -> T {
        self.take_and_deliver(|events| run(&self.queue, (events, BATCH)))
    }

    /// Delivers the events that `take` takes, and wakes the tasks that wait for them.
    fn take_and_deliver<T>(&self, take: impl FnOnce(&mut Vec<Event>) -> T) -> T {
        let Taken { mut events, mut wakers } = std::mem::take(&mut *self.taken());
        let taken = take(&mut events);
        self.deliver(&mut events, &mut wakers);
        wakers.drain(..).for_each(Waker::wake);
        *self.taken() = Taken { events, wakers };
        taken
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands events to the operations that wait for them. The caller wakes the tasks.
    pub(super) fn deliver(&self, events: &mut Vec<Event>, wakers: &mut Vec<Waker>) {
        for event in events.drain(..) {
            let slot = event.token();
            let delivered = self.slots().deliver(event);
            match delivered {
                Delivered::Wake(waker) => wakers.extend(waker),
                // The memory is dropped here, outside of the lock.
                Delivered::Unwanted(event) => drop(event),
                Delivered::Sink(sink, tag, event) => {
                    sink.complete(tag, event, wakers);
                    if sink.uses().end() {
                        self.slots().remove(super::slots::split(slot).0);
                    }
                }
            }
        }
    }

    /// The runtime has gone: a thread drives from now on.
    ///
    /// # Errors
    /// What the kernel says if the thread cannot start.
    #[cfg(feature = "tokio")]
    pub(super) fn drive_by_thread(self: &Arc<AioReactor>) -> Result<(), Error> {
        self.drive_for(IDLE)
    }

    fn drive_for(self: &Arc<AioReactor>, idle: Duration) -> Result<(), Error> {
        let reactor = Arc::clone(self);
        let thread = std::thread::Builder::new().name("exs-aio".into());
        let started = thread.spawn(move || reactor.drive_until_alone(idle));
        started.map(drop).map_err(|e| Error::os("starting the thread exs-aio", &e))
    }

    /// Drives until a wait of this length ends without an event, and no other owner of the reactor is
    /// left.
    fn drive_until_alone(mut self: Arc<AioReactor>, idle: Duration) {
        let (mut events, mut wakers) = (Vec::with_capacity(BATCH), Vec::new());
        loop {
            // Only a signal handler ends the wait early.
            let found = self.queue.dequeue_into(&mut events, 1, BATCH, Some(idle)).unwrap_or(0);
            self.deliver(&mut events, &mut wakers);
            wakers.drain(..).for_each(Waker::wake);
            #[cfg(feature = "tokio")]
            self.turns.end_turn();
            if found > 0 {
                continue;
            }
            // This takes the last strong reference in one step. A caller that has upgraded a weak
            // reference before keeps the thread. A later caller finds that the reactor is gone, and
            // starts another.
            match Arc::try_unwrap(self) {
                Ok(_alone) => return,
                Err(needed) => self = needed,
            }
        }
    }

    /// The runtime whose tasks the sockets belong to, if there is one. It may have ended.
    #[cfg(feature = "tokio")]
    pub(super) fn runtime(&self) -> Option<tokio::runtime::Id> {
        self.runtime
    }

    /// The buffers of the streams.
    #[cfg(feature = "tokio")]
    pub(super) fn pool(&self) -> &Arc<super::stream::BufferPool> {
        &self.pool
    }
}

#[cfg(test)]
mod tests;
