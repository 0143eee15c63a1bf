//! Process exit: connections end in order, as those of kernel sockets do.
//!
//! After a process has exited, the kernel closes its TCP sockets in order and sends the data that
//! it has accepted. EXS must do this in the process itself, before the process ends. Otherwise a
//! program that sends and returns from `main` would look to its peer as if it had been killed. So
//! exit(3) closes all connections, and waits for their ends up to [`Options::linger`].
//!
//! Other threads run until the process ends. They must see nothing of the exit, as with kernel
//! sockets: their operations have no more events, and their calls do not return. But handlers of
//! atexit(3) and destructors run after this, and may wait for such a thread. So if the process
//! still exists some time later, it goes on: its threads get the events, and their calls return.
//!
//! Programs call exit(3) in signal handlers, too. The interrupted thread may be the leader, and may
//! hold locks of EXS or of the allocator. So a separate thread, which waits for nothing else, does
//! the work. The exiting thread takes no lock, and its wait is bounded.
//!
//! [`Options::linger`]: super::Options::linger

use std::io;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::context::Context;
use super::reactor::Reactor;
use super::shards;
use crate::sys::{EventFd, HeldSignals, at_exit, this_thread};
use crate::time::nanos;

/// How long the working thread may take to get the engine's lock. The exiting thread may hold it.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// How long a thread may take for a write that the engine has left to it. The exiting thread may have one
/// and never come back.
const WRITE_PATIENCE: Duration = Duration::from_millis(500);
/// The time that the process has to end after this, before its threads go on.
const GRACE: Duration = Duration::from_secs(1);
/// The shortest and the longest pause between two checks.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(2));

/// The state that the exiting thread shares with the working thread.
struct Exit {
    process: u32,
    begin: EventFd,
    over: EventFd,
    /// The exiting thread. 0: the process is not exiting.
    leaver: AtomicI32,
    /// The time (ns) that the connections have to end. The working thread sets it; 0 until all are
    /// closed.
    patience: AtomicU64,
    /// True once the process has not ended in time, and goes on.
    goes_on: (Mutex<bool>, Condvar),
}

static EXIT: OnceLock<Exit> = OnceLock::new();

impl Exit {
    fn new() -> io::Result<Exit> {
        Ok(Exit {
            process: std::process::id(),
            begin: EventFd::new()?,
            over: EventFd::new()?,
            leaver: AtomicI32::new(0),
            patience: AtomicU64::new(0),
            goes_on: Default::default(),
        })
    }

    /// Any other thread waits here until the process ends or goes on.
    fn stay(&self) {
        let (goes_on, changed) = &self.goes_on;
        let goes_on = goes_on.lock().unwrap_or_else(PoisonError::into_inner);
        drop(changed.wait_while(goes_on, |goes_on| !*goes_on));
    }

    fn go_on(&self) {
        let (goes_on, changed) = &self.goes_on;
        *goes_on.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }

    /// Starts the working thread, and waits until it is done or the time is over. Called by the
    /// exiting thread.
    fn wait(&self) {
        self.leaver.store(this_thread(), Ordering::Release);
        self.begin.signal();
        let begun = Instant::now();
        loop {
            let limit = LOCK_PATIENCE + Duration::from_nanos(self.patience.load(Ordering::Relaxed));
            let left = limit.saturating_sub(begun.elapsed());
            // A signal handler may interrupt the wait, which then goes on.
            if left.is_zero() || self.over.wait(Some(left.min(LOCK_PATIENCE))).unwrap_or(false) {
                return;
            }
        }
    }
}

/// False in the child of a fork(2): the sockets belong to the parent alone.
pub(crate) fn owns_sockets() -> bool {
    EXIT.get().is_none_or(|exit| exit.process == std::process::id())
}

extern "C" fn leave() {
    if let Some(exit) = EXIT.get().filter(|_| owns_sockets()) {
        exit.wait();
    }
    super::stats::withdraw();
}

/// From now on exit(3) closes the connections of all shards.
pub(super) fn close_at_exit() {
    if let Err(e) = try_close_at_exit() {
        crate::trace::warn!(
            "connections will be reset where the process ends without a close: {e}"
        );
    }
}

fn try_close_at_exit() -> io::Result<()> {
    let new = Exit::new()?;
    let exit = EXIT.get_or_init(|| new);
    // The thread inherits this mask, so that it handles none of the program's signals.
    let _held = HeldSignals::new();
    std::thread::Builder::new().name("exs-exit".into()).spawn(move || {
        while !exit.begin.wait(None).unwrap_or(false) {}
        // The wait also ends when a program closes descriptors that are not its own. That is not an
        // exit.
        if exit.leaver.load(Ordering::Acquire) != 0 {
            leave_shards(exit);
            exit.over.signal();
            // sleep-ok: threads that go on too soon would see the exit, as calls that return
            std::thread::sleep(GRACE);
            shards::all().for_each(|context| context.go_on());
            exit.go_on();
        }
    })?;
    at_exit(leave)
}

/// Closes the connections of all shards, and waits for their ends.
fn leave_shards(exit: &Exit) {
    let thread = exit.leaver.load(Ordering::Relaxed);
    // Both ends of a connection may be in this process, in two shards. No thread may see that the other
    // end has closed.
    shards::all().for_each(|context| context.suppress_events(thread));
    let patience = shards::all().map(|context| context.close_all()).max();
    exit.patience.store(nanos(patience.unwrap_or_default()), Ordering::Relaxed);
    let (begun, mut pause, mut waits) = (Instant::now(), PAUSES.0, true);
    while shards::all().fold(false, |left, context| left | !context.has_left(pause)) {
        pause = PAUSES.1.min(pause * 2);
        if waits && begun.elapsed() > WRITE_PATIENCE {
            waits = false;
            shards::all().for_each(|context| context.lock().forget_deferred());
        }
    }
}

impl Context {
    /// `thread` ends the process: the other threads get no events any more.
    fn suppress_events(&self, thread: i32) {
        let mut engine = self.lock();
        engine.suppress_events(thread, self.now());
        self.finish(engine, None);
    }

    /// Closes all connections. Returns the time that they may take to end.
    fn close_all(&self) -> Duration {
        let mut engine = self.lock();
        let patience = engine.leave_all(self.now());
        self.finish(engine, None);
        // The turn also lets coalesced sends of kernel sockets leave, as far as the kernel accepts
        // them.
        self.turn(None, true, None);
        patience
    }

    /// True if every connection has ended. Otherwise runs the engine once, and sleeps for `pause`
    /// at most.
    fn has_left(&self, pause: Duration) -> bool {
        if self.lock().sockets.have_ended() {
            return true;
        }
        match self.lead.try_lead(false) {
            Some(reactor) => self.lead_while_exiting(reactor, pause),
            None => {
                self.turn_beside_leader();
                // sleep-ok: the thread that leads sleeps in the reactor, and may never leave it
                std::thread::sleep(pause);
            }
        }
        false
    }

    /// Runs the engine, though another thread has the reactor. If that is the exiting thread, whose sleep
    /// there a signal handler has interrupted, no other thread learns what has become ready.
    fn turn_beside_leader(&self) {
        let found = self.drive.take_ready(Duration::ZERO);
        let mut engine = self.lock();
        found.into_iter().for_each(|(token, ready)| engine.handle_ready(token, ready));
        drop(engine);
        self.turn(None, true, None);
    }

    fn lead_while_exiting(&self, mut reactor: Reactor, pause: Duration) {
        let polled = reactor.poll(Some(pause));
        self.turn(Some(&mut reactor), true, None);
        self.lead.leave(reactor, None, false);
        if polled.is_err() {
            // sleep-ok: the reactor cannot sleep; the next round looks at the devices without it
            std::thread::sleep(pause);
        }
    }

    /// The process goes on: delivers the events that were suppressed.
    fn go_on(&self) {
        let mut engine = self.lock();
        engine.delivery.resume();
        self.finish(engine, None);
    }

    /// Keeps a thread in its call while the process exits. The exiting thread itself goes on.
    #[cold]
    pub(super) fn stay(&self) {
        let leaver = self.lock().delivery.leaver();
        if leaver.is_some_and(|thread| thread != this_thread())
            && let Some(exit) = EXIT.get()
        {
            exit.stay();
        }
    }
}
