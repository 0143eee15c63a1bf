//! Credits: they keep a SEND from meeting no receive.
//!
//! Each SEND, and each WRITE WITH IMMEDIATE, costs one of the receives that the peer keeps
//! posted: a *credit*. When the peer has handled the message it posts the receive again, and
//! *owes* the credit from then on. It returns what it owes with its next message of any kind, or
//! with a CREDIT message as soon as it owes half of its receives.
//!
//! The number of receives need not stay the same (`extra.rs`). A side that posts further receives
//! owes them from then on, like receives that were used. A side that wants to have fewer again
//! *retires* them: it posts no receive in the place of one that a message has used up, and owes no
//! credit for it. So only a message can retire a receive, and the peer need not know which one did.
//!
//! An ADVERT that is not worth a doorbell can lie in the send queue for long. It takes no
//! credits back, and leaves at the latest when another message has to wait.
//!
//! # Why this never locks up
//! Three levels share the credits. Data leave two behind ([`Level::Data`]), other control
//! messages one ([`Level::Control`]), and the last one is for CREDIT messages alone
//! ([`Level::Return`]). Let each side have `n >= 4` receives, at any time. `n` changes only together
//! with what the side owes (more receives) or with what the peer has used (fewer).
//!
//! Suppose that no message is on its way and that A waits. All of B's receives are either
//! credits of A's or owed by B. A has at most two, so B owes at least `n - 2 >= n / 2`, and a
//! CREDIT message is due at B. It leaves unless B has no credit at all. But then A owes all of
//! its receives to B, a CREDIT message is due at A too, and leaves unless A has no credit either.
//!
//! Both cannot be without. A side uses its last credit only for a CREDIT message, which is sent
//! only when at least two credits are owed, and brings these to the other side. Look at the
//! message that arrived last, say at A. Up to then it was B's last one, so if B is at zero it was
//! a CREDIT message, with which A had two or more. For A to be at zero too, A must have sent
//! since, and then A's message would have arrived last. So while a side waits, some message is
//! on its way or can be sent.
//!
//! CREDIT messages do not answer each other for ever: one is due only when two or more messages
//! have arrived, so their number halves with each exchange.

#[cfg(test)]
mod model;

use super::Violation;

/// How many credits must remain after a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Data: two stay.
    Data,
    /// Control messages: one stays.
    Control,
    /// CREDIT when it is due: down to none.
    Return,
}

/// The credits of one side.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(PartialEq, Eq, Hash))]
pub(super) struct Credits {
    /// Receives of the peer's that this side may use.
    avail: u16,
    /// Receives that the peer may have, at most.
    theirs: u16,
    /// Messages that the peer has asked for, to use up its receives, and that have not left yet.
    to_use: u16,
    /// This side's receives that were used and posted again, and not yet returned to the peer.
    owed: u16,
    /// This side's receives that the peer may use.
    granted: u16,
    /// Receives that this side has.
    ours: u16,
    /// Receives that are retired as messages use them.
    retiring: u16,
}

impl Credits {
    /// Both sides' receives, none of them used. The peer may come to have `most` of them.
    pub(super) fn new(ours: u16, theirs: u16, most: u16) -> Credits {
        Credits {
            avail: theirs,
            theirs: theirs.max(most),
            to_use: 0,
            owed: 0,
            granted: ours,
            ours,
            retiring: 0,
        }
    }

    /// Receives that this side has.
    pub(super) fn ours(&self) -> u16 {
        self.ours
    }

    /// This side has posted further receives. The peer gets their credits as if it had used them.
    pub(super) fn grow(&mut self, count: u16) {
        self.ours += count;
        self.owed += count;
    }

    /// Retires this many receives as messages use them, so that four stay at least.
    pub(super) fn retire(&mut self, count: u16) {
        self.retiring = count.min(self.ours.saturating_sub(4));
    }

    /// No receive is still to be retired.
    pub(super) fn has_retired(&self) -> bool {
        self.retiring == 0
    }

    /// The peer asks for messages that use up its receives. More of them than it has are no use.
    pub(super) fn ask_to_use(&mut self, messages: u32) -> Result<(), Violation> {
        let most = self.theirs;
        match u16::try_from(messages).ok().filter(|messages| *messages <= most) {
            Some(messages) => self.to_use = messages,
            None => return Err(Violation::Use { messages, most }),
        }
        Ok(())
    }

    /// The peer waits for messages that use up its receives.
    pub(super) fn must_use(&self) -> bool {
        self.to_use > 0
    }

    /// Whether a message of this level may leave now.
    pub(super) fn may(&self, level: Level) -> bool {
        let kept = match level {
            Level::Data => 2,
            Level::Control => 1,
            Level::Return => 0,
        };
        self.avail > kept
    }

    /// The messages that this side may send, and the receives that the peer has in all.
    pub(super) fn left(&self) -> (u16, u16) {
        (self.avail, self.theirs)
    }

    /// A message leaves.
    pub(super) fn spend(&mut self) {
        debug_assert!(self.avail > 0, "a message without credit");
        self.avail = self.avail.saturating_sub(1);
        self.to_use = self.to_use.saturating_sub(1);
    }

    /// Takes the credits that a message which leaves returns.
    pub(super) fn take_owed(&mut self) -> u16 {
        self.granted += self.owed;
        std::mem::take(&mut self.owed)
    }

    /// A CREDIT message is due.
    pub(super) fn must_return(&self) -> bool {
        self.owed >= (self.ours / 2).max(2)
    }

    /// The peer can send no data until this side returns credits, and this side owes some.
    pub(super) fn peer_is_short(&self) -> bool {
        self.granted <= 2 && self.owed > 0
    }

    /// A message arrived.
    pub(super) fn handle_received(&mut self) -> Result<(), Violation> {
        if self.granted == 0 {
            return Err(Violation::Overrun { granted: self.ours });
        }
        self.granted -= 1;
        match self.retiring {
            0 => self.owed += 1,
            _ => (self.ours, self.retiring) = (self.ours - 1, self.retiring - 1),
        }
        Ok(())
    }

    /// The peer returns credits.
    pub(super) fn handle_returned(&mut self, returned: u16) -> Result<(), Violation> {
        let used = self.theirs - self.avail;
        if returned > used {
            return Err(Violation::Credits { returned, used });
        }
        self.avail += returned;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_leaves_its_reserve() {
        let mut f = Credits::new(4, 4, 0);
        let mut sent = [0; 3];
        for (i, level) in [Level::Data, Level::Control, Level::Return].into_iter().enumerate() {
            while f.may(level) {
                f.spend();
                sent[i] += 1;
            }
        }
        assert_eq!(sent, [2, 1, 1]);
    }

    #[test]
    fn returns_are_due_at_half_and_checked() {
        let mut f = Credits::new(6, 4, 0);
        for due in [false, false, true] {
            f.handle_received().unwrap();
            assert_eq!(f.must_return(), due);
        }
        assert_eq!(f.take_owed(), 3);
        for _ in 0..6 {
            f.handle_received().unwrap();
        }
        assert_eq!(f.handle_received(), Err(Violation::Overrun { granted: 6 }));
        f.spend();
        assert_eq!(f.handle_returned(2), Err(Violation::Credits { returned: 2, used: 1 }));
        assert_eq!(f.handle_returned(1), Ok(()));
    }

    /// More receives, and fewer again: each credit is with one side at any time.
    #[test]
    fn receives_come_and_go() {
        let (mut us, mut them) = (Credits::new(8, 8, 0), Credits::new(8, 8, 20));
        us.grow(12);
        assert!(us.must_return(), "the peer gets them at once");
        assert_eq!(them.handle_returned(us.take_owed()), Ok(()));
        assert_eq!((them.avail, us.granted, us.ours()), (20, 20, 20));
        assert_eq!(them.handle_returned(1), Err(Violation::Credits { returned: 1, used: 0 }));

        us.retire(12);
        assert_eq!(them.ask_to_use(21), Err(Violation::Use { messages: 21, most: 20 }));
        them.ask_to_use(14).unwrap();
        let mut sent = 0;
        while them.must_use() {
            them.spend();
            us.handle_received().unwrap();
            sent += 1;
        }
        assert!(sent == 14 && us.has_retired());
        // Two messages came after the last receive that was retired.
        assert_eq!((us.ours, us.granted, us.owed, them.avail), (8, 6, 2, 6));
        us.retire(100);
        assert_eq!(us.retiring, 4, "four receives stay");
    }
}
