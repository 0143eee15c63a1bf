//! How a WRITE of the user's is known to be in the peer's memory.
//!
//! Where the completion of a WRITE does not say so (`Caps::write_acked`), something
//! must follow it on the same queue pair whose answer does. There are two such things:
//!
//! - a READ of no bytes (`sided.rs`), which the peer's RNIC answers by itself once the
//!   WRITE was placed (RFC 5040 section 5.5);
//! - the message CONFIRM, which is *delivered* to the peer's session once the WRITE was
//!   placed (the same section: a SEND is delivered behind what was sent before it), and
//!   answered with CONFIRMED. That costs a credit each way, and the answer comes when
//!   the peer's process next moves its connections: at once while a thread of it waits
//!   in EXS, within a tick of the background thread while it computes.
//!
//! The READ is the default, as it needs nobody's processor where the RNIC is hardware.
//! The side whose RNIC does not answer such READs rightly says so in its hello
//! (`SessionConfig::confirm`), and is sent CONFIRM instead.
//!
//! CONFIRMs are numbered from 1 (modulo 2^32). One stands for every WRITE posted
//! before it, and at most [`AHEAD`] wait for their answers at a time, so that many small
//! WRITEs share one and leave the credits to others. CONFIRMED names the last CONFIRM
//! that came, and stands for those before: whoever answers keeps one number, however
//! many come.

use crate::rnic::DisconnectCause;
use crate::wire::exs::Message;

use super::flow::Level;
use super::{OpError, Port, Session, Violation};

/// CONFIRMs that may wait for their answers. With two, WRITEs that come while the
/// first is on its way need not wait for a whole round trip before theirs begins.
const AHEAD: u32 = 2;

/// Both roles of one side.
#[derive(Debug, Default)]
pub(super) struct Confirms {
    /// The peer's hello asks for CONFIRM: its RNIC answers small READs wrongly.
    pub(super) by_message: bool,
    /// The last CONFIRM sent, and the last that was answered.
    sent: u32,
    answered: u32,
    /// WRITEs wait for the next one.
    due: bool,
    /// The last CONFIRM that came, and whether it is to be answered.
    heard: u32,
    answer_due: bool,
}

impl Confirms {
    /// WRITEs were posted that the next CONFIRM is to stand for: its number.
    pub(super) fn next(&mut self) -> u32 {
        self.due = true;
        self.sent.wrapping_add(1)
    }

    /// No message is due.
    pub(super) fn is_idle(&self) -> bool {
        !self.due && !self.answer_due
    }

    fn ahead(&self) -> u32 {
        self.sent.wrapping_sub(self.answered)
    }

    fn handle_confirm(&mut self, number: u32) -> Result<(), Violation> {
        if number != self.heard.wrapping_add(1) {
            return Err(Violation::Unexpected("CONFIRM: its number is not the next"));
        }
        (self.heard, self.answer_due) = (number, true);
        Ok(())
    }

    fn handle_confirmed(&mut self, number: u32) -> Result<(), Violation> {
        let ahead = number.wrapping_sub(self.answered);
        if ahead == 0 || ahead > self.ahead() {
            return Err(Violation::Unexpected("CONFIRMED: nothing was to be confirmed by it"));
        }
        self.answered = number;
        Ok(())
    }

    /// A WRITE that waits for this CONFIRM has its answer.
    fn covers(&self, number: u32) -> bool {
        // It waits for the next one at most, so the distance says which is later.
        self.sent.wrapping_add(1).wrapping_sub(number) >= self.ahead().wrapping_add(1)
    }
}

impl Session {
    /// The peer sends CONFIRM.
    pub(super) fn handle_confirm(&mut self, number: u32) -> Result<(), Violation> {
        if !self.cfg.confirm {
            return Err(Violation::Unexpected("CONFIRM: this side's hello did not ask for it"));
        }
        self.confirms.handle_confirm(number)
    }

    /// The peer sends CONFIRMED: WRITEs have arrived.
    pub(super) fn handle_confirmed(&mut self, number: u32) -> Result<(), Violation> {
        self.confirms.handle_confirmed(number)?;
        for sided in self.sided.iter_mut() {
            if sided.unconfirmed.is_some_and(|number| self.confirms.covers(number)) {
                sided.unconfirmed = None;
            }
        }
        self.reap_sided();
        Ok(())
    }

    /// Asks for the confirmation of what was posted, and answers the peer.
    pub(super) fn flush_confirms(&mut self, port: &mut dyn Port) {
        if self.confirms.answer_due {
            let number = self.confirms.heard;
            if self.say(port, Message::Confirmed { number }, Level::Control) {
                self.confirms.answer_due = false;
            }
        }
        if self.confirms.due && self.confirms.ahead() < AHEAD {
            let number = self.confirms.sent.wrapping_add(1);
            if self.say(port, Message::Confirm { number }, Level::Control) {
                (self.confirms.sent, self.confirms.due) = (number, false);
                self.counters.confirms += 1;
            }
        }
    }

    /// The connection was ended from the other side, which may have said that a WRITE
    /// was not allowed: by then the WRITE itself has completed. If several wait, the
    /// oldest is taken for it: WRITEs are looked at in order, so it is the one of which
    /// least is known to have been allowed.
    pub(super) fn refuse_unconfirmed(&mut self, cause: DisconnectCause) {
        let DisconnectCause::TerminatedByPeer(code) = cause else { return };
        if !code.refuses_access() {
            return;
        }
        if let Some(s) = self.sided.iter_mut().find(|s| s.unconfirmed.is_some()) {
            let (raddr, rkey) = (s.raddr, s.rkey);
            s.error.get_or_insert(OpError::RemoteAccess { raddr, rkey });
        }
    }
}

#[cfg(test)]
mod tests;
