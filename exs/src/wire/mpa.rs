//! MPA: the start-up frames and the FPDU's frame (RFC 5044, RFC 6581).
//!
//! ```text
//! Request and reply (RFC 5044 section 7.1.1):
//!  0                               16      18      20
//! +-------------------------------+-------+-------+----------------+
//! | "MPA ID Req Frame" or "..Rep.."| bits  | PD len| private data...|
//! +-------------------------------+-------+-------+----------------+
//! bits: M 0x8000 markers, C 0x4000 CRC, R 0x2000 reject, S 0x1000 enhanced,
//!       0x0800 large FPDUs (siw's, and ours), 0x00ff revision
//!
//! Revision 2 with S set begins its private data (RFC 6581 section 9) with
//! +---------------+---------------+
//! |A B    IRD     |C D    ORD     |  A peer-to-peer, B SEND, C WRITE, D READ
//! +---------------+---------------+  as the first message
//!
//! FPDU (RFC 5044 section 4):
//! +--------+------------------------+------------+-----------+
//! | length | ULPDU (DDP segment)    | pad 0..3   | CRC32C    |
//! +--------+------------------------+------------+-----------+
//! ```

/// Bytes of a request or reply before its private data.
pub const FRAME_LEN: usize = 20;
/// Most private data in a frame (RFC 5044 section 7.1.1).
pub const MAX_PRIVATE: usize = 512;
/// Bytes of IRD and ORD at the head of the private data of revision 2.
pub const ENHANCED_LEN: usize = 4;
/// Bytes of the FPDU's length field.
pub const LENGTH_LEN: usize = 2;
/// Bytes of the FPDU's CRC field, which is there even if the CRC is off.
pub const CRC_LEN: usize = 4;
/// The value of IRD or ORD that means "not negotiated here" (RFC 6581 section 9).
pub const READS_UNNEGOTIATED: u16 = 0x3fff;

const KEY_REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const KEY_REPLY: &[u8; 16] = b"MPA ID Rep Frame";
const MARKERS: u16 = 0x8000;
const CRC: u16 = 0x4000;
const REJECT: u16 = 0x2000;
const ENHANCED: u16 = 0x1000;
const LARGE: u16 = 0x0800;

/// The reason why bytes are not an MPA start-up frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MpaError {
    /// The first 16 bytes are not the expected key.
    #[error("not an MPA {awaited:?} frame: is the peer an iWARP endpoint?")]
    Key {
        /// The frame that was expected.
        awaited: FrameKind,
    },
    /// The frame announces more private data than the standard allows.
    #[error("MPA frame with {len} bytes of private data; the standard allows {MAX_PRIVATE}")]
    PrivateLen {
        /// Number of bytes that the frame announces.
        len: u16,
    },
    /// Revision 2 needs 4 bytes for IRD and ORD.
    #[error("enhanced MPA frame with only {len} bytes of private data")]
    Enhanced {
        /// Number of bytes that are there.
        len: usize,
    },
}

/// The kind of a start-up frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// From the initiator.
    Request,
    /// From the responder.
    Reply,
}

/// The fixed part of a start-up frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRepr {
    /// Request or reply.
    pub kind: FrameKind,
    /// The sender wants to receive markers.
    pub markers: bool,
    /// The sender wants CRC32C.
    pub crc: bool,
    /// The responder refuses.
    pub reject: bool,
    /// IRD and ORD precede the private data (revision 2).
    pub enhanced: bool,
    /// The sender takes FPDUs larger than the MSS.
    pub large: bool,
    /// Revision of MPA.
    pub revision: u8,
    /// Bytes of private data that follow, IRD and ORD included.
    pub private_len: u16,
}

impl FrameRepr {
    /// Reads the fixed part.
    pub fn parse(bytes: &[u8; FRAME_LEN], awaited: FrameKind) -> Result<FrameRepr, MpaError> {
        let key = match awaited {
            FrameKind::Request => KEY_REQUEST,
            FrameKind::Reply => KEY_REPLY,
        };
        if bytes[..16] != key[..] {
            return Err(MpaError::Key { awaited });
        }
        let bits = u16::from_be_bytes([bytes[16], bytes[17]]);
        let private_len = u16::from_be_bytes([bytes[18], bytes[19]]);
        if usize::from(private_len) > MAX_PRIVATE {
            return Err(MpaError::PrivateLen { len: private_len });
        }
        Ok(FrameRepr {
            kind: awaited,
            markers: bits & MARKERS != 0,
            crc: bits & CRC != 0,
            reject: bits & REJECT != 0,
            enhanced: bits & ENHANCED != 0,
            large: bits & LARGE != 0,
            revision: bytes[17],
            private_len,
        })
    }

    /// Writes the fixed part.
    pub fn emit(&self) -> [u8; FRAME_LEN] {
        let mut out = [0; FRAME_LEN];
        out[..16].copy_from_slice(match self.kind {
            FrameKind::Request => KEY_REQUEST,
            FrameKind::Reply => KEY_REPLY,
        });
        let mut bits = u16::from(self.revision);
        for (on, bit) in [
            (self.markers, MARKERS),
            (self.crc, CRC),
            (self.reject, REJECT),
            (self.enhanced, ENHANCED),
            (self.large, LARGE),
        ] {
            bits |= if on { bit } else { 0 };
        }
        out[16..18].copy_from_slice(&bits.to_be_bytes());
        out[18..20].copy_from_slice(&self.private_len.to_be_bytes());
        out
    }
}

/// IRD, ORD and the first-message bits of revision 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnhancedRepr {
    /// READs that the sender answers at a time (14 bits).
    pub ird: u16,
    /// READs that the sender issues at a time (14 bits).
    pub ord: u16,
    /// The responder wants to be free to send first.
    pub peer_to_peer: bool,
    /// The first message may be (request) or must be (reply) a zero-length SEND.
    pub first_send: bool,
    /// The same for a zero-length WRITE.
    pub first_write: bool,
    /// The same for a zero-length READ.
    pub first_read: bool,
}

impl EnhancedRepr {
    /// Reads the first bytes of the private data.
    pub fn parse(bytes: &[u8]) -> Result<EnhancedRepr, MpaError> {
        let Some(&[a, b, c, d]) = bytes.first_chunk::<ENHANCED_LEN>() else {
            return Err(MpaError::Enhanced { len: bytes.len() });
        };
        let (ird, ord) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Ok(EnhancedRepr {
            ird: ird & READS_UNNEGOTIATED,
            ord: ord & READS_UNNEGOTIATED,
            peer_to_peer: ird & 0x8000 != 0,
            first_send: ird & 0x4000 != 0,
            first_write: ord & 0x8000 != 0,
            first_read: ord & 0x4000 != 0,
        })
    }

    /// Encodes it. Numbers over 14 bits become the largest.
    pub fn emit(&self) -> [u8; ENHANCED_LEN] {
        let flag = |on: bool, bit: u16| if on { bit } else { 0 };
        let ird = self.ird.min(READS_UNNEGOTIATED)
            | flag(self.peer_to_peer, 0x8000)
            | flag(self.first_send, 0x4000);
        let ord = self.ord.min(READS_UNNEGOTIATED)
            | flag(self.first_write, 0x8000)
            | flag(self.first_read, 0x4000);
        let ([a, b], [c, d]) = (ird.to_be_bytes(), ord.to_be_bytes());
        [a, b, c, d]
    }
}

/// Returns the bytes of padding after a ULPDU. They make the CRC field start at a multiple of 4,
/// counted from the length field.
pub const fn pad(ulpdu: usize) -> usize {
    (4 - (LENGTH_LEN + ulpdu) % 4) % 4
}

/// Returns the bytes of pad and CRC field after a ULPDU.
pub const fn trailer_len(ulpdu: usize) -> usize {
    pad(ulpdu) + CRC_LEN
}

/// Returns the bytes of the CRC field. Their order is that of iSCSI (RFC 3720 appendix B.4),
/// which RFC 5044 section 4.4 adopts: least significant byte first.
pub const fn emit_crc(crc: u32) -> [u8; CRC_LEN] {
    crc.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn request_vector() {
        let repr = FrameRepr {
            kind: FrameKind::Request,
            markers: false,
            crc: true,
            reject: false,
            enhanced: true,
            large: true,
            revision: 2,
            private_len: 7,
        };
        let bytes = *b"MPA ID Req Frame\x58\x02\x00\x07";
        assert_eq!(repr.emit(), bytes);
        assert_eq!(FrameRepr::parse(&bytes, FrameKind::Request), Ok(repr));
        assert!(matches!(
            FrameRepr::parse(&bytes, FrameKind::Reply),
            Err(MpaError::Key { awaited: FrameKind::Reply })
        ));
    }

    #[test]
    fn reply_vector_of_revision_1_with_markers_and_reject() {
        let bytes = *b"MPA ID Rep Frame\xa0\x01\x00\x00";
        let repr = FrameRepr::parse(&bytes, FrameKind::Reply).unwrap();
        assert!(repr.markers && repr.reject && !repr.crc && !repr.enhanced && !repr.large);
        assert_eq!((repr.revision, repr.private_len), (1, 0));
        assert_eq!(repr.emit(), bytes);
    }

    #[test]
    fn private_data_are_bounded() {
        let mut bytes = *b"MPA ID Rep Frame\x00\x01\x02\x00";
        assert!(FrameRepr::parse(&bytes, FrameKind::Reply).is_ok());
        bytes[19] = 1;
        assert_eq!(
            FrameRepr::parse(&bytes, FrameKind::Reply),
            Err(MpaError::PrivateLen { len: 513 })
        );
    }

    #[test]
    fn enhanced_vector() {
        let repr = EnhancedRepr {
            ird: 0x10,
            ord: 0x1234,
            peer_to_peer: true,
            first_write: true,
            ..EnhancedRepr::default()
        };
        assert_eq!(repr.emit(), [0x80, 0x10, 0x92, 0x34]);
        assert_eq!(EnhancedRepr::parse(&[0x80, 0x10, 0x92, 0x34, 9]), Ok(repr));
        assert_eq!(EnhancedRepr::parse(&[1, 2, 3]), Err(MpaError::Enhanced { len: 3 }));
    }

    #[test]
    fn crc_field_is_that_of_iscsi() {
        // RFC 3720 appendix B.4: 32 bytes of zeros, and 32 of ones.
        assert_eq!(emit_crc(crc32c::crc32c(&[0; 32])), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(emit_crc(crc32c::crc32c(&[0xff; 32])), [0x43, 0xab, 0xa8, 0x62]);
    }

    #[test]
    fn pad_fills_to_four() {
        for ulpdu in 0..100 {
            assert_eq!((LENGTH_LEN + ulpdu + pad(ulpdu)) % 4, 0);
            assert!(pad(ulpdu) < 4);
        }
        assert_eq!(trailer_len(14), 4);
    }

    proptest! {
        #[test]
        fn frames_round_trip(bits in any::<u16>(), len in 0u16..=512) {
            let mut bytes = *b"MPA ID Req Frame\0\0\0\0";
            bytes[16..18].copy_from_slice(&(bits & 0xf8ff).to_be_bytes());
            bytes[18..20].copy_from_slice(&len.to_be_bytes());
            prop_assert_eq!(FrameRepr::parse(&bytes, FrameKind::Request).unwrap().emit(), bytes);
        }

        #[test]
        fn enhanced_round_trips(bytes in any::<[u8; 4]>()) {
            prop_assert_eq!(EnhancedRepr::parse(&bytes).unwrap().emit(), bytes);
        }
    }
}
