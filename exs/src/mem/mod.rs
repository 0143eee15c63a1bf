//! F2: registered memory, its keys, and every check that stands between a peer
//! and a byte.
//!
//! What this floor promises:
//! - A [`Region`] keeps its memory mapped for as long as anything refers to it;
//!   a [`Segment`] is a bounds-checked part of a region and is all that the
//!   floors above ever hold. No Rust reference to the bytes exists here, because
//!   a peer or the kernel may write them at any time (see `raw`).
//! - A [`KeyTable`] maps keys (STags; lkeys and rkeys in verbs terms) to
//!   segments with rights, and answers "may this key touch these bytes, for
//!   this purpose, on this connection" before anything moves. Sums of addresses
//!   and lengths never wrap.
//!
//! What it must never know: sockets, connections' states, wire formats, time.
//! Randomness is passed in.

mod buffer;
mod conversions;
mod keys;
mod raw;
mod registrations;
mod sgl;

pub use buffer::{Buffer, MemoryRegion};
pub(crate) use keys::KeyHasher;
pub use keys::{Access, AccessFault, Grant, Key, KeyTable, Part, Scope};
pub use raw::{MemError, Region, Segment};
pub use registrations::ReleaseRegistration;
pub use sgl::{MAX_SGE, Sgl};
