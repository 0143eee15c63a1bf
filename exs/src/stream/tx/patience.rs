//! Rule R10: when a send waits for an ADVERT although it could go by the ring.
//!
//! A receiver that offers a good part of a ring's worth of receives at a time, and works on
//! them, will offer the next ones soon. Waiting for these costs nothing: the bytes would wait in
//! the ring instead, and be copied twice. And a busy stream that has turned indirect seldom turns
//! direct again. So a sender that has run out of ADVERTs in such a direct phase waits, for as
//! long as the session lets it ([`StreamTx::give_up`]). After a wait that misses, it does not wait
//! in the next direct phases: twice as many after each miss.
//!
//! ADVERTs that miss say the same: they arrive too late, when bytes are already on their way to
//! the ring. Most streams begin so. There are receives, and the next ADVERT will find this sender
//! ready if it sends no more by the ring. The exception is a receiver that has missed in one phase
//! after the other: it holds ADVERTs back until the ring is used up, so this sender must not wait
//! for it.

use super::super::rules::Rule;
use super::super::{Advert, MAX_MISSES, is_direct};
use super::{StreamTx, Want};

/// The fraction of a ring that ADVERTs must have offered at a time: one in this many bytes.
const PART: u32 = 4;
/// ADVERTs that are enough if the receiver is on this host: the next one arrives as soon as the
/// receiver has posted it.
const FEW: usize = 2;
/// The longest pause after a wait that missed: 2 to this power of direct phases.
const LONGEST: u32 = 10;

/// How the sender judges its receiver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Patience {
    /// ADVERTs have offered enough at a time, and since then no wait has missed, and none were
    /// taken back. The offer at the beginning of a phase says little: a busy sender uses the
    /// first ADVERT before the second arrives.
    offered: bool,
    /// Waits that missed, in a row.
    misses: u32,
    /// Direct phases, this one included, in which no send waits.
    pause: u32,
    /// The receiver is on this host.
    near: bool,
    /// Direct phases of the receiver in a row whose ADVERTs missed.
    crossed: u32,
    /// From this many on, the receiver may hold the next ADVERTs back (fewer only in tests).
    crossed_max: u32,
    /// The last of these phases.
    crossing: u32,
    /// The offer of that phase: ADVERTs, and their bytes.
    missed_offer: (usize, u64),
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            offered: false,
            misses: 0,
            pause: 0,
            near: false,
            crossed: 0,
            crossed_max: MAX_MISSES,
            crossing: 0,
            missed_offer: (0, 0),
        }
    }
}

impl Patience {
    /// The direct phase ends.
    pub(super) fn end_phase(&mut self) {
        self.pause = self.pause.saturating_sub(1);
    }

    /// An ADVERT is used.
    pub(super) fn reach(&mut self) {
        (self.crossed, self.missed_offer) = (0, (0, 0));
    }

    /// Whether such an offer makes it worth to wait for more.
    fn is_much(&self, (adverts, bytes): (usize, u64), ring: u32) -> bool {
        bytes >= u64::from((ring / PART).max(1)) || self.near && adverts >= FEW
    }

    /// The ADVERTs were taken back.
    pub(super) fn forget(&mut self) {
        self.offered = false;
        self.end_phase();
    }
}

impl StreamTx {
    /// A send waits for an ADVERT, until there is one or [`StreamTx::give_up`]. A send whose bytes
    /// ride in their announcement does not wait: they are copied anyway.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        let long = |total: u64, taken| total - taken > u64::from(self.cfg.inline_max);
        self.adverts.is_empty()
            && self.patience.offered
            && self.patience.pause == 0
            && (is_direct(self.phase) || self.is_crossed())
            && !self.answering
            && self.ops.get(self.cur).is_some_and(|o| match o.want {
                Want::Send(total) => long(total, o.taken),
                Want::Fin => false,
            })
    }

    /// The last ADVERTs missed, in fewer phases than after which the receiver holds the next ones
    /// back.
    fn is_crossed(&self) -> bool {
        let few = self.patience.crossed < self.patience.crossed_max;
        self.patience.crossed > 0 && (few || !self.rules.hold(Rule::WaitEnds))
    }

    /// Whether the receiver is on this host.
    pub fn set_near(&mut self, near: bool) {
        self.patience.near = near;
    }

    /// The send has waited long enough: it goes by the ring.
    pub fn give_up(&mut self) {
        if !self.is_waiting() {
            return;
        }
        let patience = &mut self.patience;
        patience.offered = false;
        patience.misses = (patience.misses + 1).min(LONGEST);
        // This phase is the first of them.
        patience.pause = 1 << patience.misses;
        self.settle();
    }

    /// An ADVERT missed: bytes are already on their way to the ring.
    pub(super) fn note_missed_advert(&mut self, advert: &Advert) {
        let patience = &mut self.patience;
        if patience.crossed == 0 || patience.crossing != advert.phase {
            patience.crossed = (patience.crossed + 1).min(patience.crossed_max);
            patience.crossing = advert.phase;
            patience.missed_offer = (0, 0);
        }
        // Both numbers are the peer's. The sums saturate: beyond some size they do not matter.
        let (count, bytes) = patience.missed_offer;
        patience.missed_offer = (count.saturating_add(1), bytes.saturating_add(advert.len.into()));
        patience.offered |= patience.is_much(patience.missed_offer, self.cfg.ring);
    }

    /// An ADVERT that counts has arrived. `waited`: a send was waiting for it.
    pub(super) fn note_advert(&mut self, waited: bool) {
        if !self.patience.offered {
            let bytes = self.adverts.iter().map(|a| u64::from(a.len)).sum();
            let offer = (self.adverts.len(), bytes);
            self.patience.offered = self.patience.is_much(offer, self.cfg.ring);
        }
        if waited {
            self.patience.misses = 0;
        }
    }
}

#[cfg(test)]
impl StreamTx {
    /// Waits for no ADVERT after `max` misses in a row.
    pub(in crate::stream) fn limit_misses(&mut self, max: u32) {
        self.patience.crossed_max = max;
    }
}
