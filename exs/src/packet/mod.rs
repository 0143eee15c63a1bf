//! F4: the EXS seqpacket protocol, without I/O: whole messages, in order.
//!
//! Message `k` of one direction fills receive `k` of the other, counted from 0. The receiver can
//! show a receive to the sender ahead of time (ADVERT `k`). A small message travels inside its
//! announcement (EAGER). A large one is written into ADVERT `k` and announced (DATA). If ADVERT
//! `k` is not there yet, the sender asks for it (RTS) and waits. An ADVERT whose message went
//! another way is void: both sides count, so no message need say so.
//!
//! As with the stream, a direction is a [`PacketTx`] and a [`PacketRx`], and bytes never pass
//! through here: calls report what happened, actions say what to do.
//!
//! What this floor promises, whatever the order of events and whatever the peer
//! says (`model` walks every interleaving of short scripts):
//! - Each message is received whole (or cut off, with its true length), once, in
//!   order.
//! - Each operation ends exactly once, with a `Done` or in the list from `abort`.
//! - The peer has no window onto a receive's buffer when the receive ends: a
//!   `Retract` comes before the `Done`. So a cancelled receive that was shown
//!   waits for the sender to forget it.
//! - Memory is bounded: the sender keeps at most [`ADVERT_WINDOW`] ADVERTs, the
//!   receiver at most the agreed stash.
//!
//! What it relies on: each way, messages arrive in the order of the actions that asked for them,
//! control messages included. A WRITE is placed before its DATA arrives.
//!
//! The rules, by which `tx` and `rx` cite them (`spec-notes/packet-protocol.md`
//! gives the reasons):
//! 1. A small message goes eagerly if the stash takes it, with or without an ADVERT.
//! 2. Any other is written into its ADVERT. While that is not there, a large one
//!    sends RTS, once, and a small one waits for an ACK.
//! 3. The sender drops ADVERTs for messages that have gone and of generations that
//!    have ended.
//! 4. The receiver shows, ahead of time, receives that take more than a small
//!    message, unless a peek is in front, or the last messages were all small.
//! 5. For a message that asks (RTS) it shows the receive, whatever its kind.
//! 6. An eager message that finds no receive is stashed. Its bytes are acknowledged after it has
//!    been consumed, at the latest when consumed bytes make half of the stash.
//! 7. To cancel a receive that was shown, or is in front of a receive that was shown, the
//!    receiver sends WITHDRAW, and shows nothing until WITHDRAWN answers. Messages that the
//!    sender began before that answer arrive before it. The other receives are then shown
//!    again, with new numbers, as the next generation.
//! 8. FIN ends the receives that wait and those posted later.

#[cfg(test)]
mod model;
mod rx;
#[cfg(test)]
mod tests;
mod tx;
mod types;

pub use rx::PacketRx;
pub use tx::PacketTx;
pub use types::*;
