//! DDP segment headers (RFC 5041 section 4).
//!
//! ```text
//!  0 1 2 3 4 5 6 7 8             16                             31
//! +-+-+-------+---+---------------+
//! |T|L| rsvd  |DV | RsvdULP (RDMAP control)                        both
//! +-+-+-------+---+---------------+-------------------------------+
//! tagged (T=1), 14 bytes:           untagged (T=0), 18 bytes:
//! | STag                32 |        | RsvdULP (STag to invalidate) 32 |
//! | tagged offset (TO)  64 |        | queue number (QN)            32 |
//!                                   | message sequence number (MSN)32 |
//!                                   | message offset (MO)          32 |
//! ```

/// The DDP version of this codec.
pub const VERSION: u8 = 1;
/// Bytes of a tagged header.
pub const TAGGED_LEN: usize = 14;
/// Bytes of an untagged header.
pub const UNTAGGED_LEN: usize = 18;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;

/// The reason why bytes are not a DDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DdpError {
    /// The header has another version of DDP.
    #[error("DDP version {version} in a header (tagged: {tagged}); only {VERSION} is known")]
    Version {
        /// The version in the header.
        version: u8,
        /// The header is tagged. The error codes of the two kinds differ.
        tagged: bool,
    },
    /// The segment ends inside its header.
    #[error("a DDP segment of {len} bytes cannot hold its header of {need}")]
    Short {
        /// Number of bytes that are there.
        len: usize,
        /// Number of bytes in such a header.
        need: usize,
    },
}

/// The buffer that a header addresses (RFC 5041: tagged or untagged buffer model).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DdpBuffer {
    /// The memory that a key names.
    Tagged {
        /// The key.
        stag: u32,
        /// The address of the first byte.
        to: u64,
    },
    /// The next buffer of a queue.
    Untagged {
        /// Reserved for the ULP: RDMAP's STag to invalidate.
        ulp: u32,
        /// Queue number.
        qn: u32,
        /// Message sequence number.
        msn: u32,
        /// Offset of this segment in the message, in bytes.
        mo: u32,
    },
}

/// A DDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// This is the last segment of its message.
    pub last: bool,
    /// The octet reserved for the ULP: RDMAP's control octet.
    pub control: u8,
    /// The buffer that the payload belongs to.
    pub place: DdpBuffer,
}

/// Returns the length of the header that begins with this octet.
pub const fn header_len(first: u8) -> usize {
    if first & TAGGED == 0 { UNTAGGED_LEN } else { TAGGED_LEN }
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_be_bytes(*b))
}

impl Header {
    /// Reads a header from the start of a segment.
    pub fn parse(bytes: &[u8]) -> Result<Header, DdpError> {
        let first = bytes.first().copied().unwrap_or(0);
        let need = header_len(first);
        if bytes.len() < need {
            return Err(DdpError::Short { len: bytes.len(), need });
        }
        let (version, tagged) = (first & 3, first & TAGGED != 0);
        if version != VERSION {
            return Err(DdpError::Version { version, tagged });
        }
        let place = if tagged {
            DdpBuffer::Tagged { stag: be32(bytes, 2), to: be64(bytes, 6) }
        } else {
            DdpBuffer::Untagged {
                ulp: be32(bytes, 2),
                qn: be32(bytes, 6),
                msn: be32(bytes, 10),
                mo: be32(bytes, 14),
            }
        };
        Ok(Header { last: first & LAST != 0, control: bytes[1], place })
    }

    /// Returns the number of bytes that `emit` writes.
    pub const fn len(&self) -> usize {
        match self.place {
            DdpBuffer::Tagged { .. } => TAGGED_LEN,
            DdpBuffer::Untagged { .. } => UNTAGGED_LEN,
        }
    }

    /// Returns false: a header has bytes.
    #[cfg(any(test, feature = "internals"))]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the header to the start of `out` and returns its length. 18 bytes are enough for
    /// both kinds.
    pub fn emit(&self, out: &mut [u8; UNTAGGED_LEN]) -> usize {
        out[0] = VERSION | if self.last { LAST } else { 0 };
        out[1] = self.control;
        match self.place {
            DdpBuffer::Tagged { stag, to } => {
                out[0] |= TAGGED;
                out[2..6].copy_from_slice(&stag.to_be_bytes());
                out[6..14].copy_from_slice(&to.to_be_bytes());
            }
            DdpBuffer::Untagged { ulp, qn, msn, mo } => {
                for (i, word) in [ulp, qn, msn, mo].into_iter().enumerate() {
                    out[2 + 4 * i..6 + 4 * i].copy_from_slice(&word.to_be_bytes());
                }
            }
        }
        self.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tagged_vector() {
        let bytes = [0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
        let repr = Header {
            last: true,
            control: 0x40,
            place: DdpBuffer::Tagged { stag: 0x0102_0304, to: 0x1112_1314_1516_1718 },
        };
        assert_eq!(Header::parse(&bytes), Ok(repr));
        let mut out = [0; UNTAGGED_LEN];
        assert_eq!(repr.emit(&mut out), TAGGED_LEN);
        assert_eq!(out[..TAGGED_LEN], bytes);
    }

    #[test]
    fn untagged_vector() {
        let bytes = [0x01, 0x43, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0];
        let place = DdpBuffer::Untagged { ulp: 9, qn: 0, msn: 1, mo: 0x10000 };
        let repr = Header { last: false, control: 0x43, place };
        assert_eq!(Header::parse(&bytes), Ok(repr));
        let mut out = [0; UNTAGGED_LEN];
        assert_eq!(repr.emit(&mut out), UNTAGGED_LEN);
        assert_eq!(out, bytes);
    }

    #[test]
    fn other_versions_and_short_segments_are_errors() {
        assert_eq!(Header::parse(&[0x82; 14]), Err(DdpError::Version { version: 2, tagged: true }));
        assert_eq!(
            Header::parse(&[0x00; 18]),
            Err(DdpError::Version { version: 0, tagged: false })
        );
        assert_eq!(Header::parse(&[0x81; 13]), Err(DdpError::Short { len: 13, need: 14 }));
        assert_eq!(Header::parse(&[0x01; 17]), Err(DdpError::Short { len: 17, need: 18 }));
        assert_eq!(Header::parse(&[]), Err(DdpError::Short { len: 0, need: 18 }));
    }

    proptest! {
        #[test]
        fn what_parses_is_emitted_again(mut bytes in any::<[u8; 18]>()) {
            bytes[0] = bytes[0] & 0xc0 | VERSION;
            let repr = Header::parse(&bytes).unwrap();
            let mut out = [0; UNTAGGED_LEN];
            let n = repr.emit(&mut out);
            prop_assert_eq!(&out[..n], &bytes[..n]);
        }
    }
}
