//! F4: the EXS stream protocol (dynamic direct/indirect), without I/O.
//!
//! One direction of a stream is a [`StreamTx`] at one end and a [`StreamRx`] at
//! the other, joined by the queue pair: messages one way (DATA, FIN, RING_REQ,
//! RING_RELEASE, WITHDRAWN), messages the other way (ADVERT, ACK, RING, WITHDRAW),
//! each way in order and without loss. The two directions of a connection share
//! nothing but the queue pair, so each is checked on its own.
//!
//! Bytes never pass through here: the machines speak of operations, offsets and
//! lengths, and the session above them moves the memory. `spec-notes/stream-protocol.md`
//! is the specification; `rx.rs` and `tx.rs` cite its rules by number.

#[cfg(test)]
mod model;
mod ring;
mod rules;
mod rx;
mod tx;
mod types;

pub use rx::StreamRx;
pub use tx::StreamTx;
pub use types::*;
