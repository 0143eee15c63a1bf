//! F1: the EXS wire format, version 1.
//!
//! EXS puts bytes in three places. The private data of connect and accept carry a [`Hello`],
//! those of a reject a [`Refusal`] (`hello.rs`). SENDs carry a [`Message`]: a header of 16 bytes
//! or a few more and, for two kinds, the data itself (`message.rs`). A WRITE WITH IMMEDIATE
//! carries an [`Immediate`] in place of a DATA message (`immediate.rs`). `spec-notes/wire-exs.md`
//! draws all of them.
//!
//! What this floor promises:
//! - `parse` takes any bytes and returns a value, or an error with the numbers in it. It never
//!   panics and allocates nothing.
//! - One value has one encoding: `emit` returns the bytes that `parse` accepted. A message with a
//!   bit set that the two sides have not agreed on is refused, because the sides may differ on
//!   the meaning of a bit that one of them ignores. The hello is the exception: the sides make
//!   their agreements in it, so they ignore bits and bytes that their version does not know.
//! - The first eight bytes of hello and refusal keep their meaning in every future version, so
//!   that two sides without a common version can at least report that.
//!
//! What it must never know: whether a message fits the state of a connection. All integers are in
//! network byte order.

mod further;
mod hello;
mod immediate;
mod kind;
mod message;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "internals"))]
pub use hello::{HELLO_LEN, MIN_CREDITS, Negotiated, REFUSAL_LEN};
pub use hello::{
    Hello, HelloError, MAX_HELLO, Refusal, RefusalCode, SocketKind, VERSIONS, negotiate,
};
pub use immediate::Immediate;
pub use kind::{MessageError, MessageKind};
pub use message::{
    AdvertRepr, COMMON_HEADER, FURTHER, MAX_FURTHER, MAX_HEADER, Message, Piggyback,
};

/// `N` bytes at `at`, if they are there.
fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    field(bytes, at).map(u16::from_be_bytes)
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    field(bytes, at).map(u32::from_be_bytes)
}

fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    field(bytes, at).map(u64::from_be_bytes)
}
