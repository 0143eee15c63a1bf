//! The end of the process: its connections end as those of kernel sockets do.
//!
//! The kernel closes a process's TCP sockets in order, and sends what was written, after the process is
//! gone. Here the process itself has to do it, before it goes: else a program that sends and
//! returns from `main` would look to its peer like one that was killed. So exit(3) has everything
//! closed, and waits for the ends, for as long as [`Options::linger`] lets a close take.
//!
//! Other threads still run meanwhile, and die with the process. They are to see nothing of all this,
//! as they would see nothing with kernel sockets: their operations have no more events, and
//! their calls do not return. But what runs at the end of the process after this, handlers of
//! atexit(3) and destructors, may wait for such a thread. So a process that is still there some time
//! later goes on: it has the events, and calls return.
//!
//! Programs call exit(3) in signal handlers, too. What that interrupts may hold locks, ours or
//! the allocator's, and lead. So a thread that waits for nothing else does the work; the one that exits
//! takes no lock, and does not wait for ever.
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

/// How long the engine may be another's, which may be the thread that exits.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// How long the process may take to end after all this, before its threads hear of it.
const GRACE: Duration = Duration::from_secs(1);
/// Between two looks.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(2));

/// What the thread that exits and the one that does the work have between them.
struct Exit {
    process: u32,
    begin: EventFd,
    over: EventFd,
    /// The thread that exits.
    leaver: AtomicI32,
    /// How long (ns) the ends may take: 0 until everything is closed.
    patience: AtomicU64,
    /// The process has not ended, and goes on.
    goes_on: (Mutex<bool>, Condvar),
}

static LEAVING: OnceLock<Exit> = OnceLock::new();

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

    /// Another thread stays here until the process ends, or goes on.
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

    /// On the thread that exits.
    fn wait(&self) {
        self.leaver.store(this_thread(), Ordering::Release);
        self.begin.signal();
        let begun = Instant::now();
        loop {
            let limit = LOCK_PATIENCE + Duration::from_nanos(self.patience.load(Ordering::Relaxed));
            let left = limit.saturating_sub(begun.elapsed());
            // (A signal handler may interrupt it.)
            if left.is_zero() || self.over.wait(Some(left.min(LOCK_PATIENCE))).unwrap_or(false) {
                return;
            }
        }
    }
}

extern "C" fn leave() {
    // What a fork(2) has copied is the parent's.
    if let Some(leaving) = LEAVING.get().filter(|l| l.process == std::process::id()) {
        leaving.wait();
    }
}

/// From now on the end of the process closes what its shards hold.
pub(super) fn close_at_exit() {
    if let Err(e) = try_close_at_exit() {
        crate::trace::warn!(
            "connections will be reset where the process ends without a close: {e}"
        );
    }
}

fn try_close_at_exit() -> io::Result<()> {
    let new = Exit::new()?;
    let leaving = LEAVING.get_or_init(|| new);
    // The thread inherits it: the program's signals are for the program's threads.
    let _held = HeldSignals::new();
    std::thread::Builder::new().name("exs-exit".into()).spawn(move || {
        while !leaving.begin.wait(None).unwrap_or(false) {}
        // A program that closes descriptors which are not its own does not end by that.
        if leaving.leaver.load(Ordering::Acquire) != 0 {
            leave_shards(leaving);
            leaving.over.signal();
            // sleep-ok: a thread that hears of it that soon would hear of an end in order
            std::thread::sleep(GRACE);
            shards::all().for_each(|context| context.go_on());
            leaving.go_on();
        }
    })?;
    at_exit(leave)
}

/// Closes everything in all shards, and waits for the ends.
fn leave_shards(leaving: &Exit) {
    let thread = leaving.leaver.load(Ordering::Relaxed);
    let patience = shards::all().map(|context| context.close_all(thread)).max();
    let nanos = u64::try_from(patience.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX);
    leaving.patience.store(nanos, Ordering::Relaxed);
    let mut pause = PAUSES.0;
    while shards::all().fold(false, |left, context| left | !context.has_left(pause)) {
        pause = PAUSES.1.min(pause * 2);
    }
}

impl Context {
    /// Closes everything; returns how long the ends may take.
    fn close_all(&self, thread: i32) -> Duration {
        let mut engine = self.lock();
        let patience = engine.leave_all(thread, self.now());
        self.finish(engine, None);
        // Sends of kernel sockets that are kept, too, as far as the kernel takes them.
        self.turn(None, true, None);
        patience
    }

    /// True if every connection has ended. Else it moves what can be moved, within this time.
    fn has_left(&self, pause: Duration) -> bool {
        if self.lock().has_left() {
            return true;
        }
        match self.lead.try_lead(false) {
            Some(reactor) => self.lead_out(reactor, pause),
            None => {
                self.turn(None, true, None);
                // sleep-ok: the thread that leads sleeps in the reactor, and may never leave it
                std::thread::sleep(pause);
            }
        }
        false
    }

    fn lead_out(&self, mut reactor: Reactor, pause: Duration) {
        let polled = reactor.poll(Some(pause));
        self.turn(Some(&mut reactor), true, None);
        self.lead.leave(reactor, None, (false, false));
        if polled.is_err() {
            // sleep-ok: the reactor does not, and the devices are looked at all the same
            std::thread::sleep(pause);
        }
    }

    /// The process is still there: what came while nobody was to hear of it is heard.
    fn go_on(&self) {
        let mut engine = self.lock();
        engine.leave_off();
        self.finish(engine, None);
    }

    /// A thread that calls while the process ends stays in the call.
    #[cold]
    pub(super) fn stay(&self) {
        let leaver = self.lock().leaver();
        if leaver.is_some_and(|thread| thread != this_thread())
            && let Some(leaving) = LEAVING.get()
        {
            leaving.stay();
        }
    }
}
