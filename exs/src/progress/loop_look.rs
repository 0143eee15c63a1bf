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
use super::event::RawEvent;
use super::pace::Spin;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceEnd {
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
        let (peek, spin) = (queue.pace().peek_in_loop(), self.spin(queue));
        (peek.is_some() || spin.is_some()).then_some(LoopLook { peek, spin, begun: None })
    }

    /// A slice of a look.
    pub(super) fn look_on<E: From<RawEvent>>(
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
            queue.pace().note_find();
            return SliceEnd::Found;
        }
        let Some(spin) = look.spin else { return SliceEnd::Over };
        let source = looks.source();
        let now = self.clock.about();
        let crowded = self.attention.is_crowded(now) && !spin.is_endless();
        let over = spin.is_over(now.since(begun), source == Some(AskedWhere::Memory));
        if crowded || over || source == Some(AskedWhere::Nowhere) {
            queue.pace().note_miss();
            return SliceEnd::Over;
        }
        if looks.want_turn() {
            return SliceEnd::WantsTurn;
        }
        SliceEnd::GoesOn
    }
}
