//! The exs-cp protocol, as bytes: what travels over one EXS stream socket.
//!
//! ```text
//!   client                                server
//!     | Hello(version, nonce, auth?)  ->    |
//!     |    <-  Hello(version, nonce, auth?) |
//!     | Proof  ->                           |  only with a token
//!     |                          <-  Proof  |
//!     | List | Walk | Put | Fetch  ->       |  one request per connection
//! ```
//!
//! After that, files flow from the *sender* to the *receiver*; either may be
//! the client. With `Put` the sender makes an `Offer` per file and the receiver
//! answers `Have` (what is there already); with `Fetch` the receiver says
//! `Want`, which tells both at once. Offers and wants run up to a window ahead
//! of the data, so no file costs a round trip:
//!
//! ```text
//!   sender                                receiver
//!     | Offer(1) Offer(2) ... ->            |
//!     |              <-  Have(1) Have(2)    |
//!     | Begin(1)                            |
//!     |   Data(offset) <raw bytes>          |  straight behind the header,
//!     |   Hole(offset, len)                 |  in rising order
//!     |   Chunk(index, chaining value)      |  every 4 MiB and at the end
//!     | End(1, BLAKE3 of the file)          |
//!     |                       <-  Done(1)   |  after the data are on the disk, and the rename
//! ```
//!
//! A receiver that has a file of the same name, size and modification time reads it, and its
//! `Have` or `Want` lists all chunks ([`frame::What::Whole`]). The sender hashes its own, and
//! says `Same` or sends the file. Neither believes a size and a time, unless the user asks for
//! that.
//!
//! A side that has nothing to send for long says `Busy` now and then: a connection on which
//! nothing happens is ended. A path has a 16-bit length; 65,535 there says that a 32-bit
//! length follows.
//!
//! This directory knows bytes and nothing else: no socket, no file. Parsing
//! never panics and never allocates more than a frame's limit.

pub(crate) mod codec;
pub(crate) mod frame;
#[cfg(test)]
mod tests;
