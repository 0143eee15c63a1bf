//! The 32 bits of immediate data that announce a WRITE by themselves.
//!
//! ```text
//!  31 30                                                          0
//! +--+------------------------------------------------------------+
//! |D |                           length                           |
//! +--+------------------------------------------------------------+
//! ```
//!
//! Immediate data have no room for a piggyback or for a second length. So credits
//! and ACKs that are due then travel in a CREDIT message, and a seqpacket message
//! that was cut off (whose true length differs) is announced by a DATA message.

const DIRECT: u32 = 1 << 31;

/// What the immediate data of a WRITE say: the same as DATA without `inline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Immediate {
    /// Into an advertised receive (else into the ring).
    pub direct: bool,
    /// Bytes written.
    pub len: u32,
}

impl Immediate {
    /// The longest WRITE that immediate data can announce.
    pub const MAX_LEN: u32 = DIRECT - 1;

    /// The 32 bits, or `None` if `len` is over [`Immediate::MAX_LEN`] (announce it
    /// by a message, then).
    pub const fn emit(self) -> Option<u32> {
        if self.len > Self::MAX_LEN {
            return None;
        }
        Some(if self.direct { self.len | DIRECT } else { self.len })
    }

    /// Every value of the 32 bits means something.
    pub const fn parse(imm: u32) -> Immediate {
        Immediate { direct: imm & DIRECT != 0, len: imm & Self::MAX_LEN }
    }
}
