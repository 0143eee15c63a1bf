//! F2: registered memory, its keys, and every check between a peer and a byte.
//!
//! What this floor promises:
//! - A [`Region`] keeps its memory mapped while anything refers to it. A [`Segment`] is a
//!   bounds-checked part of a region, and the floors above hold nothing else. No Rust reference
//!   to the bytes exists here, because a peer or the kernel may write them at any time (see
//!   `raw`).
//! - A [`KeyTable`] maps keys (STags; lkeys and rkeys in the verbs) to segments with rights. It
//!   decides whether a key may touch bytes for a purpose on a connection, before anything moves.
//!   Sums of addresses and lengths never wrap.
//!
//! What it must never know: sockets, states of connections, wire formats, time. Callers pass
//! randomness in.

mod atomic;
mod buffer;
mod conversions;
mod dmabuf;
mod error;
mod keys;
mod raw;
mod registrations;
mod sgl;

pub use atomic::{AtomicOp, Atomics, WORD};
pub use buffer::{Buffer, MemoryRegion, SpareBuffer};
pub use error::MemError;
pub(crate) use keys::KeyHasher;
pub use keys::{Access, AccessFault, Grant, GrantedPart, Key, KeyTable, Scope};
pub use raw::{Region, Segment};
pub use registrations::ReleaseRegistration;
pub use sgl::{MAX_SGE, Sgl};
