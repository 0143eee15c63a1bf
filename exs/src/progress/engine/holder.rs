//! The holder of a socket: the program, by a handle or an event, or the engine alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::progress::handle::Claim;

/// See the module's essay.
pub(super) struct Holder {
    /// The program has a handle, or an event that waits for the program has one.
    held: bool,
    /// Of a connection that an accept has: whether the program has taken the event.
    taken: Option<Claim>,
}

impl Holder {
    /// The program has made the socket.
    pub(super) const PROGRAM: Holder = Holder { held: true, taken: None };
    /// The engine has made the socket for itself, perhaps to hand it out later.
    pub(super) const ENGINE: Holder = Holder { held: false, taken: None };

    /// An accept gets the connection. Returns the claim, which is set when the program takes it.
    pub(super) fn hand_out(&mut self) -> Claim {
        let taken = Claim::default();
        *self = Holder { held: true, taken: Some(Arc::clone(&taken)) };
        taken
    }

    /// The last handle is gone.
    pub(super) fn let_go(&mut self) {
        self.held = false;
    }

    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    /// True if the program has never had the socket.
    pub(super) fn is_untaken(&self) -> bool {
        self.taken.as_ref().map_or(!self.held, |taken| !taken.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accepted_connection_is_untaken_until_the_program_takes_its_event() {
        let mut holder = Holder::ENGINE;
        assert!(holder.is_untaken() && !holder.is_held(), "no accept has it yet");
        let claim = holder.hand_out();
        assert!(holder.is_untaken() && holder.is_held(), "its event waits");
        claim.store(true, Ordering::Relaxed);
        assert!(!holder.is_untaken() && holder.is_held());
        holder.let_go();
        assert!(!holder.is_untaken() && !holder.is_held(), "the program has had it");
    }

    #[test]
    fn the_event_of_a_connection_may_go_untaken() {
        let mut holder = Holder::ENGINE;
        holder.hand_out();
        holder.let_go();
        assert!(holder.is_untaken() && !holder.is_held());
        assert!(!Holder::PROGRAM.is_untaken());
    }
}
