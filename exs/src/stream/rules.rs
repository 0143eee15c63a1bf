//! The rules of the protocol by name, so that tests can break one at a time.
//!
//! A model check that passes says little unless it also fails when it should: `model/broken.rs`
//! drops each of these rules in turn and demands a counterexample. Outside of tests a rule always
//! holds, and the question costs nothing.

/// A rule that a test may drop. Numbers as in `spec-notes/stream-protocol.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Rule {
    /// R1: advertise only while the ring is empty.
    RingEmpty,
    /// R1: advertise only if every earlier receive is wholly advertised.
    EarlierAdvertised,
    /// R1: a receiver that holds ADVERTs back after misses stops that when the ring is used up.
    HoldEnds,
    /// R2: an ADVERT of a later phase counts only if its `seq` is the next byte.
    SeqMatches,
    /// R2: after a mismatch no ADVERT of that phase counts any more.
    PhaseSpoiled,
    /// R2: ADVERTs of an earlier phase are dropped.
    OldPhaseDropped,
    /// R3: a partly filled WAITALL ADVERT stays first.
    WaitallStays,
    /// R10: a sender does not wait where the receiver may hold its ADVERTs back.
    WaitEnds,
    /// R4: indirect data in an even phase takes back every ADVERT.
    Unadvertise,
    /// R7: a cancelled receive that is advertised waits for WITHDRAWN.
    AwaitWithdrawn,
    /// R7: nothing is advertised while a withdrawal is out.
    QuietWhileWithdrawing,
    /// R7: the sender forgets its ADVERTs before it answers.
    WithdrawForgets,
    /// R6: freed ring bytes are acknowledged.
    AckFreed,
    /// R6: a waiting peek that wants more than is there has all freed bytes
    /// acknowledged at once.
    AckForPeek,
    /// R8: the end completes the receives that wait.
    FinCompletes,
    /// R9: the ring is given back only when nothing is in it.
    ReleaseEmpty,
    /// R5: a window is closed before its receive ends.
    RetractFirst,
}

/// Which rules hold: all of them, except in the checker's counter-tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Rules {
    /// The rule that does not hold; None: all hold.
    #[cfg(test)]
    pub(super) broken: Option<Rule>,
}

impl Rules {
    /// Whether `rule` must be obeyed.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the test build looks into it")]
    pub(super) const fn hold(self, _rule: Rule) -> bool {
        true
    }

    /// Whether `rule` must be obeyed.
    #[cfg(test)]
    pub(super) fn hold(self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }
}
