//! How the session learns that a WRITE of the program's is in the peer's memory.
//!
//! Where the completion of a WRITE does not say so (`Caps::write_acked`), a request must follow
//! it on the same queue pair whose answer does. There are two such requests:
//!
//! - a READ of no bytes (`sided.rs`), which the peer's RNIC answers by itself once the
//!   WRITE was placed (RFC 5040 section 5.5);
//! - the message CONFIRM, which is *delivered* to the peer's session once the WRITE was
//!   placed (the same section: a SEND is delivered behind what was sent before it), and
//!   answered with CONFIRMED. That costs a credit each way, and the answer comes when
//!   the peer's process next moves its connections: at once while a thread of it waits
//!   in EXS, within a tick of the background thread while it computes.
//!
//! The READ is the default, as it needs no processor of the peer's where the RNIC is hardware.
//! A side whose RNIC answers such READs wrongly says so in its hello
//! (`SessionConfig::confirm`), and gets CONFIRM instead.
//!
//! CONFIRMs are numbered from 1 (modulo 2^32). One stands for every WRITE posted
//! before it, and at most [`AHEAD`] wait for their answers at a time, so that many small
//! WRITEs share one and leave the credits to others. CONFIRMED names the last CONFIRM
//! that arrived, and stands for those before. So the side that answers keeps one number.

use crate::wire::exs::Message;

use super::credits::Level;
use super::{Port, Session, Violation};

/// CONFIRMs that may wait for their answers. With two, WRITEs that are posted while the first is
/// on its way need not wait for a whole round trip before theirs begins.
const AHEAD: u32 = 2;

/// Both roles of one side.
#[derive(Debug, Default)]
pub(super) struct Confirms {
    /// The peer's hello asks for CONFIRM: its RNIC answers small READs wrongly.
    by_message: bool,
    /// The last CONFIRM sent, and the last that was answered.
    sent: u32,
    answered: u32,
    /// WRITEs wait for the next one.
    due: bool,
    /// The last CONFIRM that arrived, and whether its answer is due.
    heard: u32,
    answer_due: bool,
}

impl Confirms {
    /// WRITEs were posted that the next CONFIRM must stand for: its number.
    pub(super) fn next(&mut self) -> u32 {
        self.due = true;
        self.sent.wrapping_add(1)
    }

    /// No message is due.
    pub(super) fn is_idle(&self) -> bool {
        !self.due && !self.answer_due
    }

    /// The peer's hello asks for CONFIRM.
    pub(super) fn by_message(&self) -> bool {
        self.by_message
    }

    pub(super) fn set_by_message(&mut self, by_message: bool) {
        self.by_message = by_message;
    }

    /// The CONFIRM of the peer's that must be answered.
    fn due_answer(&self) -> Option<u32> {
        self.answer_due.then_some(self.heard)
    }

    /// The number of the CONFIRM that must leave.
    fn due_confirm(&self) -> Option<u32> {
        (self.due && self.ahead() < AHEAD).then(|| self.sent.wrapping_add(1))
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

    pub(super) fn handle_confirmed(&mut self, number: u32) -> Result<(), Violation> {
        let ahead = number.wrapping_sub(self.answered);
        if ahead == 0 || ahead > self.ahead() {
            return Err(Violation::Unexpected("CONFIRMED: nothing was to be confirmed by it"));
        }
        self.answered = number;
        Ok(())
    }

    /// The answer of this CONFIRM is here.
    pub(super) fn covers(&self, number: u32) -> bool {
        // A WRITE waits for the next CONFIRM at most, so the distance says which is later.
        self.sent.wrapping_add(1).wrapping_sub(number) >= self.ahead().wrapping_add(1)
    }
}

impl Session {
    /// The peer's CONFIRM arrived.
    pub(super) fn handle_confirm(&mut self, number: u32) -> Result<(), Violation> {
        if !self.cfg.confirm {
            return Err(Violation::Unexpected("CONFIRM: this side's hello did not ask for it"));
        }
        self.sided.confirms_mut().handle_confirm(number)
    }

    /// Asks for the confirmation of what was posted, and answers the peer.
    pub(super) fn flush_confirms(&mut self, port: &mut dyn Port) {
        if let Some(number) = self.sided.confirms().due_answer()
            && self.say(port, Message::Confirmed { number }, Level::Control)
        {
            self.sided.confirms_mut().answer_due = false;
        }
        if let Some(number) = self.sided.confirms().due_confirm()
            && self.say(port, Message::Confirm { number }, Level::Control)
        {
            let confirms = self.sided.confirms_mut();
            (confirms.sent, confirms.due) = (number, false);
            self.counters.confirms += 1;
        }
    }
}

#[cfg(test)]
mod tests;
