//! F4: the EXS stream protocol (dynamic direct/indirect), without I/O.
//!
//! One direction of a stream is a [`StreamTx`] at one end and a [`StreamRx`] at the other, joined
//! by the queue pair: messages one way (DATA, FIN, RING_REQ, RING_RELEASE, WITHDRAWN), messages
//! the other way (ADVERT, ACK, RING, WITHDRAW), each way in order and without loss. The two
//! directions of a connection share only the queue pair, so each is checked on its own.
//!
//! What this floor promises, whatever the peer says and in whatever order things
//! happen: bytes arrive in order and once each; every operation ends exactly once;
//! no window onto a buffer outlives its operation; the ring is never overrun; a peer
//! that breaks the rules is reported ([`StreamViolation`]), never believed.
//!
//! What it must never know: bytes (the machines speak of operations, offsets and lengths; the
//! session moves the memory), keys other than to hand them back, time (a timer of the session
//! calls `idle` and `idle_ring_release`), and credits (the session passes `can_transfer` to
//! `poll`).
//!
//! The shape of its data: `handle_*` and `post_*` in, `poll` out. A half is a queue of
//! operations, a phase, a position and the ring's accounting (`ring.rs`), no more. It allocates
//! nothing per message once its queues have grown.
//!
//! What the driver of a half, the session, must do:
//! - After each call, `poll` until there is nothing. Copies are due at once.
//! - Messages reach the peer in the order in which their actions were polled. While a
//!   control message waits for a credit, ask for no Transfer.
//! - Every message to a stream's sender carries `take_freed()`, taken when the message
//!   is put in its place in the queue; ADVERTs above all (R1). An Ack action asks for
//!   such a message, and is void if there is nothing left to take.
//! - `handle_ack` comes before the message's own content.
//! - The ring's memory is made for GrantRing, or for the first StashInline, and freed
//!   for DropRing.
//! - `abort` when the connection is gone, on both halves.
//!
//! `spec-notes/stream-protocol.md` is the specification; the code cites its rules by
//! number (R1 to R10). `model/` checks them exhaustively on small worlds.

#[cfg(test)]
mod model;
mod ring;
mod rules;
mod rx;
mod tx;
mod types;

pub use rx::{EagerTarget, RxLoan, StreamRx};
pub use tx::{StreamTx, TxLoan};
pub use types::*;
