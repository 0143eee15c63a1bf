//! F4: the EXS seqpacket protocol, without I/O: whole messages, in order.
//!
//! Message `k` of one direction fills receive `k` of the other, counted from 0.
//! A receive may be shown to the sender ahead of time (ADVERT `k`); a message
//! that is small travels inside its announcement (EAGER), a large one is written
//! into ADVERT `k` and announced (DATA); if ADVERT `k` is not there yet, the
//! sender asks for it (RTS) and waits. An ADVERT whose message went another way
//! is void: both sides count, so nothing need be said.
//!
//! As with the stream, a direction is a [`PacketTx`] and a [`PacketRx`], and bytes
//! never pass through here.

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
