//! Rule R10: when a send waits for an ADVERT although it could go by the ring.
//!
//! A receiver that keeps a good part of a ring's worth of receives before the sender, and is
//! at work on those that it has, is going to show the next ones: to wait for these costs
//! nothing, as the bytes would only wait in the ring instead, and be copied twice. And a busy
//! stream that has turned indirect seldom turns direct again. So a sender that has run out of
//! ADVERTs in such a direct phase waits, for as long as its user lets it
//! ([`StreamTx::give_up`]). If it waits in misses, it does not in the next phases, twice as many
//! each time.
//!
//! The same is said by ADVERTs that come too late, when bytes are on their way to the ring
//! already (most streams begin so): there are receives, and the next ADVERT will find this
//! sender ready if it sends no more by the ring. But not where one phase after the other was
//! in vain: then the receiver waits for the ring to be used up, and this sender must not wait
//! for the receiver.

use super::super::rules::Rule;
use super::super::{Advert, MAX_MISSES, is_direct};
use super::{StreamTx, Want};

/// The part of a ring that ADVERTs must have offered at a time. Where the receiver is on this
/// host, so many ADVERTs will do: the next one is here as soon as the receiver has posted it.
const PART: u32 = 4;
const FEW: usize = 2;
/// The longest pause after a wait in vain: 2 to this power of direct phases.
const LONGEST: u32 = 10;

/// What the sender knows of its receiver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Patience {
    /// ADVERTs have offered enough at a time, and since then none were waited for in vain or
    /// taken back. (What is offered at the beginning of a phase says little: a busy sender
    /// uses the first ADVERT before the second is there.)
    offered: bool,
    /// Waits in vain in a row.
    misses: u32,
    /// Direct phases from this one on in which nothing waits.
    pause: u32,
    /// The receiver is on this host.
    near: bool,
    /// Direct phases of the receiver in a row whose ADVERTs came in vain. From so many on
    /// (fewer only in tests) the receiver may hold the next ones back.
    crossed: u32,
    crossed_max: u32,
    /// The last of these phases, and what was offered in it: ADVERTs, and their bytes.
    crossing: u32,
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

    /// Whether so much makes it worth to wait for more.
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
    /// A send waits for an ADVERT, until there is one or [`StreamTx::give_up`]. (Bytes that
    /// may ride in their announcement do not: they are copied anyway.)
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

    /// The last ADVERTs came in misses, but there were not so many that the receiver holds the
    /// next ones back.
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

    /// An ADVERT has come, but bytes are on their way to the ring.
    pub(super) fn note_missed_advert(&mut self, advert: &Advert) {
        let patience = &mut self.patience;
        if patience.crossed == 0 || patience.crossing != advert.phase {
            patience.crossed = (patience.crossed + 1).min(patience.crossed_max);
            patience.crossing = advert.phase;
            patience.missed_offer = (0, 0);
        }
        // The peer says how many there are, and how long: from some size on it is all the same.
        let (count, bytes) = patience.missed_offer;
        patience.missed_offer = (count.saturating_add(1), bytes.saturating_add(advert.len.into()));
        patience.offered |= patience.is_much(patience.missed_offer, self.cfg.ring);
    }

    /// An ADVERT has come.
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
    /// Waits for no ADVERT after so many phases in vain.
    pub(in crate::stream) fn limit_misses(&mut self, max: u32) {
        self.patience.crossed_max = max;
    }
}
