//! Event loops that drive shards for the sockets that they wait for.
//!
//! The descriptor of a queue drives its shard (`drive`), and the loop that waits for it takes events.
//! A loop that waits for the descriptors of sockets takes none: it asks which sockets have changed.
//! Such a loop drives a shard in the same way, by a descriptor of a queue that has no events. It takes
//! the changes that its turns bring from the engine's list, before any thread shows them on
//! descriptors. So a message that the loop finds costs no system call for its descriptor.

use std::sync::atomic::Ordering;

use super::Error;
use super::background::PASSING_TURNS;
use super::context::Context;
use super::drive::{DriveTurn, Driven};
use super::engine::LoopId;

impl Context {
    /// Runs the shard for an event loop that does not wait now. `woken`: a descriptor that drives the shard
    /// is readable. Watches keep the changes that it finds for the loop (`Watch::changed_in`), until `found`
    /// returns true.
    pub(crate) fn drive_loop(
        &self,
        event_loop: LoopId,
        woken: bool,
        found: impl Fn() -> bool,
    ) -> Result<Driven, Error> {
        self.reliance.note_loop();
        // A loop that comes again without a sleep has asked the kernel a moment ago.
        let mut ask = self.disarm() || woken;
        for _ in 0..PASSING_TURNS {
            // Before it leaves the lead: a background thread that leads shows what is kept by then.
            let turn = self.lead_once(ask, || self.tell_loop(event_loop))?;
            if turn == DriveTurn::NotLed {
                // The thread that leads was asked to leave the lead, and ticks show what is kept after that.
                self.tell_loop(event_loop);
            }
            if found() {
                return Ok(Driven::Found { asked: ask });
            }
            match self.arm_after(turn) {
                Driven::Again => ask = true,
                driven => return Ok(driven),
            }
        }
        // The shard has more to do: the wake-up keeps the descriptor readable.
        self.lead.wake();
        Ok(Driven::Again)
    }

    /// A thread leaves the loop, and another one may sleep. If this one `leaves` something, it wakes the
    /// other.
    pub(crate) fn leave_loop(&self, leaves: bool) {
        if leaves {
            self.lead.wake();
        } else if !self.is_armed() {
            self.arm_or_wake();
        }
    }

    fn tell_loop(&self, event_loop: LoopId) {
        let due = self.take_news(false);
        if !due.is_empty() {
            due.iter().for_each(|watch| watch.changed_in(event_loop));
            self.has_kept.store(true, Ordering::SeqCst);
        }
    }

    /// True if an event loop may keep changes in memory.
    pub(super) fn keeps_news(&self) -> bool {
        self.has_kept.load(Ordering::SeqCst)
    }

    /// Shows the changes that event loops have kept for too long: a tick of the background thread is
    /// over. With `all`, it shows all: the background thread leads, and looks no more while it sleeps.
    pub(super) fn show_kept(&self, all: bool) {
        if !self.keeps_news() {
            return;
        }
        let mut engine = self.lock();
        let due = engine.take_kept_news(all);
        self.has_kept.store(engine.delivery.has_kept_news(), Ordering::SeqCst);
        drop(engine);
        due.iter().for_each(|watch| watch.changed());
    }
}
