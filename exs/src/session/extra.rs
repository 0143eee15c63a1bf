//! Extra receives: more credits for a busy peer, and fewer again when it is idle.
//!
//! A receive takes memory, and where each queue pair has receives of its own that memory serves one
//! connection alone. So there a connection begins with few receives, gets more while its peer is
//! busy, and loses them when the peer is idle (`demand.rs` says what that means):
//!
//! ```text
//! sender of data                         receiver of data, 8 receives
//!   waits for credits, often
//!   MORE  ----------------------------->   posts 24 further receives, and owes their credits
//!   <------------------- CREDIT (24 more)
//!   ...                                    ...
//!                                          few messages in a second
//!   <---------------------- USE (n = 32)   retires 24 receives: as messages use them up, posts none
//!   CREDIT, 32 times  ----------------->   instead, and owes no credit
//! ```
//!
//! A posted receive cannot be taken back from a queue pair. Only a message ends it, so an idle peer
//! must send some. Any message does: data that the peer sends meanwhile count, and the CREDIT
//! messages are for the rest. They leave like data, so two credits stay, and need no answer. The
//! credits are accounted for by one side alone: the peer uses what it has been given, as ever.
//!
//! Both sides must have the feature MORE. Older peers keep the credits of the hello: they are never
//! given more, which they would take for a mistake, and are never asked to use any.

use super::demand::{Demand, Lull, Stalls};
use super::{Port, Session, SessionConfig, Violation};
use crate::time::Time;
use crate::wire::exs::{Hello, Message};

/// How far this side's extra receives are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Extent {
    /// It has those of its hello.
    #[default]
    Usual,
    /// It has more.
    Grown,
    /// It is about to retire those.
    Idle,
    /// It retires those. The port has not used up all of them yet.
    Retiring,
}

/// What a session knows about extra receives, of both sides.
#[derive(Debug, Default)]
pub(super) struct Extra {
    /// The most receives that this side may have posted. 0: the peer never gets more.
    most: u16,
    /// The peer may give more credits than it has.
    peer_gives: bool,
    stage: Extent,
    /// Extra receives that this side has.
    added: u16,
    /// The peer has asked for more.
    wanted: bool,
    /// The peer's messages since this side has extra receives.
    lull: Lull,
    /// This side's waits for credits.
    stalls: Stalls,
}

impl Extra {
    /// Both hellos are known.
    pub(super) fn new(cfg: &SessionConfig, peer: &Hello) -> Extra {
        let agreed = cfg.features & peer.features & Hello::MORE != 0;
        let most = if agreed && cfg.most_credits > cfg.credits { cfg.most_credits } else { 0 };
        let peer_gives = agreed && peer.most > peer.credits;
        Extra { most, peer_gives, ..Extra::default() }
    }

    /// Messages have arrived that the peer wanted to send.
    #[inline]
    pub(super) fn note_messages(&mut self, messages: u64) {
        self.lull.note_messages(messages);
    }

    /// This side has the receives of its hello, and is not asked for more.
    pub(super) fn is_usual(&self) -> bool {
        !self.wanted && self.stage == Extent::Usual
    }

    /// Nothing waits for `drive`.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        !self.wanted && matches!(self.stage, Extent::Usual | Extent::Grown)
    }

    /// When the connection may be idle.
    pub(super) fn lull_ends(&self, is: &Demand) -> Option<Time> {
        (self.stage == Extent::Grown).then(|| self.lull.ends(is))
    }
}

impl Session {
    /// Counts a message, unless it only returns credits or uses up a receive.
    #[inline]
    pub(super) fn note_message(&mut self, message: &Message) {
        if !matches!(message, Message::Credit) {
            self.extra.note_messages(1);
        }
    }

    /// The peer waits for credits, and could use more.
    pub(super) fn handle_more(&mut self) -> Result<(), Violation> {
        if self.extra.most == 0 {
            return Err(Violation::Unexpected("MORE: this side's hello did not offer it"));
        }
        self.extra.wanted = true;
        Ok(())
    }

    /// The peer asks for messages that use up its receives.
    pub(super) fn handle_use(&mut self, messages: u32) -> Result<(), Violation> {
        if !self.extra.peer_gives {
            return Err(Violation::Unexpected("USE: its hello did not announce it"));
        }
        self.credits.ask_to_use(messages)
    }

    /// A period of [`Lull`] is over. An idle connection gives its extra receives back.
    pub(super) fn end_lull(&mut self, now: Time) {
        let is = &self.cfg.demand;
        if self.extra.lull_ends(is).is_none_or(|at| at > now) {
            return;
        }
        if self.extra.lull.is_idle(is, now) {
            match self.life.is_open() {
                true => self.extra.stage = Extent::Idle,
                // All receives go with the connection.
                false => self.extra.lull.begin(now),
            }
        }
    }

    /// Asks for more credits, gives the peer more, and takes them back.
    pub(super) fn drive_extra(&mut self, now: Time, port: &mut dyn Port) {
        let stalls = self.counters.credit_stalls;
        if self.extra.peer_gives && self.extra.stalls.note(&self.cfg.demand, now, stalls) {
            self.out.request_more();
        }
        if self.extra.is_settled() {
            return;
        }
        // A request that cannot be met is forgotten: a peer that still waits asks again.
        let wanted = std::mem::take(&mut self.extra.wanted);
        match self.extra.stage {
            Extent::Usual | Extent::Grown if wanted => self.add_receives(now, port),
            Extent::Usual | Extent::Grown => {}
            Extent::Idle => {
                self.extra.stage = Extent::Retiring;
                self.credits.retire(self.extra.added);
                self.out.request_use(port.drop_receives().messages);
            }
            Extent::Retiring => {
                if self.credits.has_retired() && port.drop_receives().left == 0 {
                    self.counters.receives_dropped += u64::from(self.extra.added);
                    (self.extra.stage, self.extra.added) = (Extent::Usual, 0);
                }
            }
        }
    }

    fn add_receives(&mut self, now: Time, port: &mut dyn Port) {
        let room = self.extra.most.saturating_sub(self.credits.ours());
        let added = if room > 0 { port.add_receives(room).min(room) } else { 0 };
        if added == 0 {
            return;
        }
        self.counters.receives_added += u64::from(added);
        self.credits.grow(added);
        self.extra.added += added;
        if self.extra.stage == Extent::Usual {
            self.extra.lull.begin(now);
        }
        self.extra.stage = Extent::Grown;
    }
}

#[cfg(test)]
mod tests;
