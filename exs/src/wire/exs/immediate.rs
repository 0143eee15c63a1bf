//! The 32 bits of immediate data, which announce a WRITE without a message.
//!
//! ```text
//!  31 30                                                          0
//! +--+------------------------------------------------------------+
//! |D |                           length                           |
//! +--+------------------------------------------------------------+
//! ```
//!
//! Immediate data have no room for a piggyback or for a second length. So due credits and ACKs
//! travel in a CREDIT message, and a DATA message announces a seqpacket message that was cut off
//! (its true length differs).

const DIRECT: u32 = 1 << 31;

/// The content of a WRITE's immediate data: the same as that of DATA without `inline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Immediate {
    /// The WRITE went into an advertised receive. If false, it went into the ring.
    pub direct: bool,
    /// Number of bytes written.
    pub len: u32,
}

impl Immediate {
    /// The longest WRITE that immediate data can announce.
    pub const MAX_LEN: u32 = DIRECT - 1;

    /// Returns the 32 bits. None if `len` is over [`Immediate::MAX_LEN`]; then a message must
    /// announce the WRITE.
    pub const fn emit(self) -> Option<u32> {
        if self.len > Self::MAX_LEN {
            return None;
        }
        Some(if self.direct { self.len | DIRECT } else { self.len })
    }

    /// Decodes the 32 bits. Each value has a meaning.
    pub const fn parse(imm: u32) -> Immediate {
        Immediate { direct: imm & DIRECT != 0, len: imm & Self::MAX_LEN }
    }
}
