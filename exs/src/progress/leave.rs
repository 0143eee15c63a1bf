//! The end of the process: its connections end as those of kernel sockets do.
//!
//! The kernel closes a process's TCP sockets in order, and sends what was written, after the process is
//! gone. Here the process itself has to do it, before it goes: else a program that sends and
//! returns from `main` would look to its peer like one that was killed. So exit(3) closes
//! what is open, and waits for the ends, for as long as [`Options::linger`] lets a close take.
//!
//! Other threads still run meanwhile, and die with the process. They are to see nothing of all this,
//! as they would see nothing with kernel sockets: their operations have no more events, and
//! their calls do not return.
//!
//! [`Options::linger`]: super::Options::linger

use std::sync::TryLockError;
use std::time::{Duration, Instant};

use super::context::Context;
use super::lead::Reactor;
use crate::sys::{at_exit, this_thread};

/// The engine may be the exiting thread's own, which a signal handler ends here: no longer than this.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(2));

impl Context {
    /// From now on the end of the process closes what this context, its only one, holds.
    pub(super) fn close_at_exit() {
        extern "C" fn leave() {
            let Some(context) = Context::existing() else { return };
            // What a fork(2) has copied is the parent's.
            if context.process == std::process::id() {
                context.leave();
            }
        }
        if let Err(e) = at_exit(leave) {
            crate::trace::warn!("atexit: {e}: connections are reset where the process ends without a close");
        }
    }

    fn leave(&self) {
        let begun = Instant::now();
        let patience = loop {
            match self.try_engine() {
                Ok(mut engine) => {
                    let patience = engine.leave_all(this_thread(), self.now());
                    self.finish(engine, None);
                    break patience;
                }
                Err(TryLockError::Poisoned(_)) => return,
                Err(TryLockError::WouldBlock) if begun.elapsed() > LOCK_PATIENCE => return,
                // sleep-ok: a mutex has no wait with a time limit
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSES.0),
            }
        };
        let mut pause = PAUSES.0;
        while !self.try_engine().is_ok_and(|engine| engine.has_left()) && begun.elapsed() < patience {
            // (Whoever leads may be this thread, below a signal handler.)
            match self.lead.try_lead(false) {
                Some(reactor) => self.lead_out(reactor, pause),
                None => {
                    self.turn(None, true, None);
                    // sleep-ok: who leads sleeps in the reactor, and may never leave it
                    std::thread::sleep(pause);
                }
            }
            pause = PAUSES.1.min(pause * 2);
        }
    }

    fn lead_out(&self, mut reactor: Reactor, pause: Duration) {
        let polled = reactor.poll(Some(pause));
        self.turn(Some(&mut reactor), true, None);
        self.lead.leave(reactor, None, false);
        if polled.is_err() {
            // sleep-ok: the reactor does not, and the devices are looked at all the same
            std::thread::sleep(pause);
        }
    }

    /// A thread that calls while the process ends stays in the call.
    #[cold]
    pub(super) fn stay(&self) {
        let leaver = self.lock().leaver();
        if leaver.is_some_and(|thread| thread != this_thread()) {
            loop {
                std::thread::park();
            }
        }
    }
}
