//! One connection: an EXS stream socket with its own event queue and memory.
//!
//! [`pipe`] is the only file of this program that posts operations; it turns
//! them into "these buffers are free again" and "these bytes have come".
//! [`channel`] makes frames of that: small frames are gathered, file data are
//! read from the file straight into registered memory and hashed there, and
//! several sends and receives are always on their way. [`lent`] lets a thread that writes keep
//! received bytes where they are until they are written. [`session`] is how two
//! sides meet: hello, proof, request.

pub(crate) mod channel;
pub(crate) mod lent;
pub(crate) mod pipe;
pub(crate) mod session;
#[cfg(test)]
mod tests;

/// What EXS says when something fails.
pub(crate) type NetError = exs::Error;
