//! How the driver of an event loop looks for events before it sleeps.
//!
//! To wake a thread that sleeps costs both ends: the thread, and the peer that wakes it. Where the
//! kernel has put the processor to rest, that takes longer than a message. So a driver looks first,
//! as long as that pays: the queue's [`Pace`](super::pace::Pace) has the record. But its thread has an
//! event loop to run. So a look is a row of short slices, and the loop has a turn between two of them.
//!
//! The first slice is a peek: the thread keeps its processor. In the others it spins, and yields the
//! processor between looks, as the peer may wait for it. On a machine whose processors are busy only the
//! first slice pays. On one processor, which both ends share, only the others do.

use std::time::Duration;

use super::context::Context;
use super::drive::{DriveTurn, Driven, LedFor};
use super::event::RawEvent;
use super::pace::{Rhythm, Spin};
use super::queue::{QueueCore, Want};
use super::spin::{AskedWhere, UNYIELDING};
use super::wait::Waited;
use crate::time::Time;

/// How long a driver that spins keeps the thread of its event loop at a time.
const SLICE: Duration = Duration::from_micros(25);

/// A look that is under way.
pub(crate) struct LoopLook {
    /// The length of the peek. None: there is none, or it is over.
    peek: Option<Duration>,
    /// None: the look ends with the peek.
    spin: Option<Spin>,
    /// When the look has begun. None: the loop's tasks have their turns before.
    begun: Option<Time>,
}

impl LoopLook {
    /// True if the look goes on after the peek.
    #[cfg(test)]
    pub(crate) fn spins(&self) -> bool {
        self.spin.is_some()
    }
}

/// The result of a slice.
enum SliceEnd {
    /// Events.
    Found,
    /// Nothing yet. The look goes on.
    GoesOn,
    /// The same, and a thread must lead for a turn before it goes on.
    WantsTurn,
    /// Nothing: the look is over.
    Over,
}

impl Context {
    /// Begins a look of a driver that has found events, where looks have lately paid. None: the driver
    /// must sleep at once.
    pub(crate) fn begin_look(&self, queue: &QueueCore) -> Option<LoopLook> {
        let (peek, spin) = (queue.pace().peek_in_loop(SLICE), self.spin(queue, Rhythm::Steady));
        (peek.is_some() || spin.is_some()).then_some(LoopLook { peek, spin, begun: None })
    }

    /// Goes on with a look, and wants `want.min` events. None: it has found too few yet, and the driver must
    /// come again behind the other work of its event loop.
    pub(crate) fn look_once<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        want: &mut Want<'_, E>,
        look: &mut LoopLook,
    ) -> Option<Driven> {
        let min = want.min;
        // The background thread may have armed the shard meanwhile.
        self.disarm();
        match self.look_for_a_slice(queue, want, look) {
            SliceEnd::Found => Some(Driven::Found { asked: false }),
            SliceEnd::GoesOn => None,
            SliceEnd::WantsTurn => match self.lead_for(queue, min, true) {
                Ok(LedFor::Found { asked }) => {
                    self.note_spin_found(queue, Rhythm::Steady);
                    Some(Driven::Found { asked })
                }
                Ok(LedFor::Nothing(DriveTurn::Led)) => None,
                Ok(LedFor::Nothing(turn)) => Some(self.arm_after(turn)),
                // The kernel's error comes again if it lasts.
                Err(_) => Some(Driven::Again),
            },
            SliceEnd::Over => Some(self.drive_once(queue, min)),
        }
    }

    fn look_for_a_slice<E: From<RawEvent>>(
        &self,
        queue: &QueueCore,
        want: &mut Want<'_, E>,
        look: &mut LoopLook,
    ) -> SliceEnd {
        let now = self.clock.about();
        let begun = *look.begun.get_or_insert(now);
        if self.attention.lacks_leader(now) {
            return SliceEnd::WantsTurn;
        }
        let peek = look.peek.take();
        let times = peek.map_or((SLICE, Duration::ZERO), |limit| (limit, UNYIELDING));
        let slice = || self.look_until(queue, want.min, now, times, Some(want));
        // One thread of a shard that looks is enough.
        let Some(looks) = self.attention.peek(slice) else { return SliceEnd::Over };
        if peek.is_some() {
            queue.pace().note_peek(peek, self.has_paid(&looks));
        }
        if looks.waited != Waited::TooFew {
            self.note_spin_found(queue, Rhythm::Steady);
            return SliceEnd::Found;
        }
        let Some(spin) = look.spin else { return SliceEnd::Over };
        let source = looks.source();
        let now = self.clock.about();
        let crowded = self.attention.crowding.is_crowded(now) && !spin.is_endless();
        let over = spin.is_over(now.since(begun), source == Some(AskedWhere::Memory));
        if crowded || over || source == Some(AskedWhere::Nowhere) {
            queue.pace().note_miss(Rhythm::Steady);
            return SliceEnd::Over;
        }
        if looks.want_turn() {
            return SliceEnd::WantsTurn;
        }
        SliceEnd::GoesOn
    }
}
