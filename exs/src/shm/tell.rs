//! How the reader of a ring tells how far it is.
//!
//! A word of shared memory says it ([`Word::Consumed`]). To write it is cheap; then to look whether
//! the peer sleeps, and is to be woken, takes a fence, which waits for all stores before: those of the message
//! that was just copied. So a record that was taken the short way, and of which the peer has no
//! use but room, is told of with others, and several transfers in one turn share a look.

use super::link::{FOR_ROOM, Link};
use super::record::Head;
use super::ring::{Whose, Word};
use super::ring_window::LEAST_OF_ALL;
use super::rx::Rx;

/// A transfer so long is worth a look of its own.
const WORTH_A_LOOK: u64 = 128 << 10;

/// What the peer was told.
pub(super) struct Told {
    /// Up to where we are done.
    upto: u64,
    /// Bytes that may stay untold.
    untold: u64,
    /// It was written, and the peer may sleep.
    unrung: bool,
}

impl Default for Told {
    fn default() -> Told {
        let mut told = Told { upto: 0, untold: 0, unrung: false };
        told.pace(0);
        told
    }
}

impl Told {
    /// The peer says how long its next lap is.
    fn pace(&mut self, lap: u64) {
        self.untold = (lap / 8).max(LEAST_OF_ALL / 4);
    }
}

impl Rx {
    /// Up to where the peer may write again.
    fn done(&self) -> u64 {
        self.pos - self.lent
    }

    /// The peer has not heard how far we are.
    pub(super) fn lags(&self) -> bool {
        self.done() != self.told.upto
    }
}

impl Link {
    /// Lets the peer see how far we are.
    pub(super) fn publish_consumed(&mut self) {
        if self.rx.lags() {
            self.rx.told.upto = self.rx.done();
            self.mem.set(Word::Consumed, self.rx.told.upto);
        }
    }

    /// The same, and wakes it if it waits for that.
    pub(super) fn tell_consumed(&mut self) {
        if self.rx.lags() | std::mem::take(&mut self.rx.told.unrung) {
            self.publish_consumed();
            self.ring(FOR_ROOM);
        }
    }

    /// A transfer of so many bytes is done: the peer sees it, and is woken before this turn
    /// ends.
    pub(super) fn tell_of(&mut self, len: u64) {
        self.publish_consumed();
        self.rx.told.unrung = true;
        if len >= WORTH_A_LOOK {
            self.tell_consumed();
        }
    }

    /// The peer has room enough: it will hear of what was taken with our next message, or when we
    /// look around, or before we sleep.
    pub(super) fn tell_in_time(&mut self) {
        if self.rx.done() - self.rx.told.upto > self.rx.told.untold {
            self.tell_consumed();
        }
    }

    /// The next record is at the beginning of the ring.
    pub(super) fn skip(&mut self, head: &Head) {
        self.rx.told.pace(head.lap());
        self.rx.pos += self.mem.to_end(Whose::Theirs, self.rx.pos);
    }
}

#[cfg(test)]
impl Told {
    /// For a reader that is simulated.
    pub(super) fn untold_after(&mut self, lap: Option<u64>) -> u64 {
        lap.into_iter().for_each(|lap| self.pace(lap));
        self.untold
    }
}
