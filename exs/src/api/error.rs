//! What the variants of errors hold.
//!
//! [`Error`](crate::Error), [`OpError`](crate::OpError) and the others say which of these they have. Each can be matched on,
//! and each can grow, so a `match` needs an arm for variants that later versions add.
//!
//! ```
//! use exs::{Error, SessionError, error::RefusalCode};
//!
//! fn is_other_type_of_socket(e: &Error) -> bool {
//!     let Error::Refused { cause: SessionError::Mismatch(why), .. } = e else { return false };
//!     why.code == RefusalCode::KindMismatch
//! }
//! # let listener = exs::Socket::stream()?;
//! # listener.bind("127.0.0.1:0".parse().unwrap())?;
//! # listener.listen(1)?;
//! # let addr = listener.local_addr()?;
//! let e = exs::Socket::seqpacket()?.blocking().connect(addr).unwrap_err();
//! # let _ = is_other_type_of_socket(&e);
//! # Ok::<(), exs::Error>(())
//! ```

pub use crate::mem::{Access, AccessFault};
pub use crate::packet::PacketViolation;
pub use crate::rnic::QpState;
pub use crate::stream::StreamViolation;
pub use crate::wire::exs::{HelloError, MessageError, MessageKind, Refusal, RefusalCode};
