//! RDMAP: the control octet, and the two headers that go beyond DDP's
//! (RFC 5040 section 4).
//!
//! ```text
//! control octet:  | RV 2 | rsvd 2 | opcode 4 |
//!
//! READ request, 28 bytes:            TERMINATE, 4 bytes and more:
//! | sink STag          32 |          | layer 4 | etype 4 | code 8 |M|D|R| rsvd 13 |
//! | sink TO            64 |          | M: DDP segment length 16                   |
//! | read size          32 |          | D: DDP header of the offending segment     |
//! | source STag        32 |          | R: its READ request header                 |
//! | source TO          64 |
//! ```

use super::ddp;

/// The RDMAP version of this codec.
pub const VERSION: u8 = 1;
/// Bytes of a READ request after the DDP header.
pub const READ_REQUEST_LEN: usize = 28;
/// Bytes of the longest TERMINATE after its DDP header.
pub const TERMINATE_MAX: usize = 4 + 2 + ddp::UNTAGGED_LEN + READ_REQUEST_LEN;

/// Untagged queue of the SENDs.
pub const QN_SEND: u32 = 0;
/// Untagged queue of the READ requests and of the atomic requests (RFC 7306).
pub const QN_READ: u32 = 1;
/// Untagged queue of the TERMINATE.
pub const QN_TERMINATE: u32 = 2;
/// Untagged queue of the atomic responses (RFC 7306).
pub const QN_ATOMIC: u32 = 3;

/// RDMA messages (RFC 5040 section 4.3, figure 4; RFC 7306).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// RDMA WRITE.
    Write = 0,
    /// RDMA READ request.
    ReadRequest = 1,
    /// RDMA READ response.
    ReadResponse = 2,
    /// SEND.
    Send = 3,
    /// SEND with invalidate.
    SendInvalidate = 4,
    /// SEND with solicited event.
    SendSolicited = 5,
    /// SEND with solicited event and invalidate.
    SendSolicitedInvalidate = 6,
    /// TERMINATE.
    Terminate = 7,
    /// Atomic request.
    AtomicRequest = 10,
    /// Atomic response.
    AtomicResponse = 11,
}

/// The reason why an RDMAP header cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RdmapError {
    /// The header has another version of RDMAP.
    #[error("RDMAP version {0}; only {VERSION} is known")]
    Version(u8),
    /// Immediate data (RFC 7306), or an undefined opcode.
    #[error("RDMAP opcode {0} is not known")]
    Opcode(u8),
    /// An undefined atomic operation.
    #[error("atomic operation {0} is not known")]
    Atomic(u32),
    /// The bytes are fewer or more than the header has.
    #[error("an RDMAP header of {len} bytes; {need} were awaited")]
    Length {
        /// Number of bytes that are there.
        len: usize,
        /// Number of bytes expected.
        need: usize,
    },
}

impl Opcode {
    /// Parses the control octet.
    pub fn parse(control: u8) -> Result<Opcode, RdmapError> {
        if control >> 6 != VERSION {
            return Err(RdmapError::Version(control >> 6));
        }
        Ok(match control & 0x0f {
            0 => Opcode::Write,
            1 => Opcode::ReadRequest,
            2 => Opcode::ReadResponse,
            3 => Opcode::Send,
            4 => Opcode::SendInvalidate,
            5 => Opcode::SendSolicited,
            6 => Opcode::SendSolicitedInvalidate,
            7 => Opcode::Terminate,
            10 => Opcode::AtomicRequest,
            11 => Opcode::AtomicResponse,
            other => return Err(RdmapError::Opcode(other)),
        })
    }

    /// Returns the control octet.
    pub const fn control(self) -> u8 {
        VERSION << 6 | self as u8
    }

    /// Returns the SEND opcode with these properties.
    pub const fn send(invalidate: bool, solicited: bool) -> Opcode {
        match (invalidate, solicited) {
            (false, false) => Opcode::Send,
            (true, false) => Opcode::SendInvalidate,
            (false, true) => Opcode::SendSolicited,
            (true, true) => Opcode::SendSolicitedInvalidate,
        }
    }

    /// Returns true if the message names a key to invalidate.
    pub const fn invalidates(self) -> bool {
        matches!(self, Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate)
    }

    /// Returns true if the message asks for a solicited event.
    pub const fn solicited(self) -> bool {
        matches!(self, Opcode::SendSolicited | Opcode::SendSolicitedInvalidate)
    }

    /// Returns the queue of an untagged message. None for tagged messages.
    pub const fn queue(self) -> Option<u32> {
        match self {
            Opcode::Write | Opcode::ReadResponse => None,
            Opcode::ReadRequest | Opcode::AtomicRequest => Some(QN_READ),
            Opcode::Terminate => Some(QN_TERMINATE),
            Opcode::AtomicResponse => Some(QN_ATOMIC),
            _ => Some(QN_SEND),
        }
    }
}

/// The header of a READ request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The requester's key, which the response goes to.
    pub sink_stag: u32,
    /// The requester's address, which the response goes to.
    pub sink_to: u64,
    /// Number of bytes to read.
    pub size: u32,
    /// The responder's key.
    pub src_stag: u32,
    /// The responder's address.
    pub src_to: u64,
}

impl ReadRequest {
    /// Parses a header. `bytes` must be exactly as long as it.
    pub fn parse(bytes: &[u8]) -> Result<ReadRequest, RdmapError> {
        let bytes: &[u8; READ_REQUEST_LEN] = bytes
            .try_into()
            .map_err(|_| RdmapError::Length { len: bytes.len(), need: READ_REQUEST_LEN })?;
        let [a, b, c, d, e, f, g] = std::array::from_fn(|i| {
            u32::from_be_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
        });
        let wide = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        Ok(ReadRequest {
            sink_stag: a,
            sink_to: wide(b, c),
            size: d,
            src_stag: e,
            src_to: wide(f, g),
        })
    }

    /// Returns the bytes of the header.
    pub fn emit(&self) -> [u8; READ_REQUEST_LEN] {
        let mut out = [0; READ_REQUEST_LEN];
        out[..4].copy_from_slice(&self.sink_stag.to_be_bytes());
        out[4..12].copy_from_slice(&self.sink_to.to_be_bytes());
        out[12..16].copy_from_slice(&self.size.to_be_bytes());
        out[16..20].copy_from_slice(&self.src_stag.to_be_bytes());
        out[20..28].copy_from_slice(&self.src_to.to_be_bytes());
        out
    }
}

/// The segment that a TERMINATE reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offender {
    /// Its ULPDU length.
    pub len: u16,
    /// Its DDP header.
    pub header: ddp::Header,
    /// Its READ request header. None if it was no READ request.
    pub read: Option<ReadRequest>,
}

/// A TERMINATE (RFC 5040 section 4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// 0 RDMAP, 1 DDP, 2 MPA.
    pub layer: u8,
    /// Error type inside the layer.
    pub etype: u8,
    /// Error code inside the type.
    pub code: u8,
    /// The segment that broke the rule. None if the sender did not quote it.
    pub offender: Option<Offender>,
}

const HAS_LEN: u8 = 0x80;
const HAS_DDP: u8 = 0x40;
const HAS_RDMAP: u8 = 0x20;

impl Terminate {
    /// Parses the bytes behind the DDP header. It is lenient, because the reason of a peer that
    /// gives up is worth knowing: it drops an offender that cannot be parsed, and accepts Linux
    /// siw's order of bits.
    pub fn parse(bytes: &[u8]) -> Result<Terminate, RdmapError> {
        let Some(&[kind, code, flags, _]) = bytes.first_chunk::<4>() else {
            return Err(RdmapError::Length { len: bytes.len(), need: 4 });
        };
        // siw lays out its bit-fields from the low end on little-endian hosts: its own flags are
        // in the low bits, the RFC's in the high ones.
        let (siw, flags) = match flags {
            f if f & 0xe0 == 0 && f & 7 != 0 => (true, f << 7 | (f & 2) << 5 | (f & 4) << 3),
            f => (false, f),
        };
        let (layer, etype) = Terminate::octets(kind, code, siw, flags);
        let offender = Terminate::offender(&bytes[4..], flags);
        Ok(Terminate { layer, etype, code, offender })
    }

    /// Returns layer and type. The RFC has the layer in the high nibble; siw, on little-endian
    /// hosts, in the low one. Where both readings name an error that exists, the code and the
    /// flags decide.
    fn octets(kind: u8, code: u8, siw: bool, flags: u8) -> (u8, u8) {
        let (rfc, swapped) = ((kind >> 4, kind & 15), (kind & 15, kind >> 4));
        if siw {
            return swapped;
        }
        match kind {
            // MPA's only type is 0, so this is DDP's untagged buffer error in siw's order.
            0x21 => swapped,
            // DDP's local catastrophic error has code 0 and names no segment. siw's RDMAP
            // protection error has other codes, or a segment.
            0x10 if code != 0 || flags & HAS_DDP != 0 => swapped,
            // A connected MPA has codes 1 to 4, RDMAP's remote operation error 5 and up.
            0x20 if code >= 5 => swapped,
            0x02 if code < 5 => swapped,
            _ => rfc,
        }
    }

    fn offender(rest: &[u8], flags: u8) -> Option<Offender> {
        if flags & (HAS_LEN | HAS_DDP) != HAS_LEN | HAS_DDP {
            return None;
        }
        let (len, rest) = rest.split_first_chunk::<2>()?;
        let header = ddp::Header::parse(rest).ok()?;
        let read = rest.get(header.len()..header.len() + READ_REQUEST_LEN);
        let read = read.filter(|_| flags & HAS_RDMAP != 0);
        let read = read.and_then(|bytes| ReadRequest::parse(bytes).ok());
        Some(Offender { len: u16::from_be_bytes(*len), header, read })
    }

    /// Writes the bytes behind the DDP header and returns their number.
    pub fn emit(&self, out: &mut [u8; TERMINATE_MAX]) -> usize {
        *out = [0; TERMINATE_MAX];
        out[0] = self.layer << 4 | self.etype & 15;
        out[1] = self.code;
        let Some(offender) = &self.offender else {
            return 4;
        };
        out[2] = HAS_LEN | HAS_DDP;
        out[4..6].copy_from_slice(&offender.len.to_be_bytes());
        let mut header = [0; ddp::UNTAGGED_LEN];
        let mut at = 6 + offender.header.emit(&mut header);
        out[6..at].copy_from_slice(&header[..at - 6]);
        if let Some(read) = &offender.read {
            out[2] |= HAS_RDMAP;
            out[at..at + READ_REQUEST_LEN].copy_from_slice(&read.emit());
            at += READ_REQUEST_LEN;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_octets_of_all_opcodes() {
        use Opcode::*;
        let all = [
            (Write, 0x40, None),
            (ReadRequest, 0x41, Some(1)),
            (ReadResponse, 0x42, None),
            (Send, 0x43, Some(0)),
            (SendInvalidate, 0x44, Some(0)),
            (SendSolicited, 0x45, Some(0)),
            (SendSolicitedInvalidate, 0x46, Some(0)),
            (Terminate, 0x47, Some(2)),
            (AtomicRequest, 0x4a, Some(1)),
            (AtomicResponse, 0x4b, Some(3)),
        ];
        for (opcode, octet, queue) in all {
            assert_eq!(opcode.control(), octet);
            assert_eq!(Opcode::parse(octet), Ok(opcode));
            assert_eq!(Opcode::parse(octet | 0x30), Ok(opcode), "reserved bits are ignored");
            assert_eq!(opcode.queue(), queue);
        }
        for opcode in [8, 9, 12, 13, 14, 15] {
            assert_eq!(Opcode::parse(0x40 | opcode), Err(RdmapError::Opcode(opcode)));
        }
        assert_eq!(Opcode::parse(0x03), Err(RdmapError::Version(0)));
        assert_eq!(Opcode::send(true, true), SendSolicitedInvalidate);
        assert!(SendInvalidate.invalidates() && !SendInvalidate.solicited());
        assert!(!SendSolicited.invalidates() && SendSolicited.solicited());
    }

    const REQUEST: ReadRequest = ReadRequest {
        sink_stag: 0x0102_0304,
        sink_to: 0x1112_1314_1516_1718,
        size: 0x2122_2324,
        src_stag: 0x3132_3334,
        src_to: 0x4142_4344_4546_4748,
    };

    #[test]
    fn read_request_vector() {
        let bytes = [
            0x01, 0x02, 0x03, 0x04, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22,
            0x23, 0x24, 0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
        ];
        assert_eq!(REQUEST.emit(), bytes);
        assert_eq!(ReadRequest::parse(&bytes), Ok(REQUEST));
        assert_eq!(ReadRequest::parse(&bytes[1..]), Err(RdmapError::Length { len: 27, need: 28 }));
    }

    fn offender(read: Option<ReadRequest>) -> Offender {
        let place = ddp::DdpBuffer::Untagged { ulp: 0, qn: 1, msn: 7, mo: 0 };
        let header = ddp::Header { last: true, control: 0x41, place };
        Offender { len: 46, header, read }
    }

    #[test]
    fn terminate_vector() {
        let repr =
            Terminate { layer: 0, etype: 1, code: 2, offender: Some(offender(Some(REQUEST))) };
        let mut out = [0; TERMINATE_MAX];
        assert_eq!(repr.emit(&mut out), TERMINATE_MAX);
        assert_eq!(out[..10], [0x01, 0x02, 0xe0, 0x00, 0x00, 0x2e, 0x41, 0x41, 0, 0]);
        assert_eq!(out[6 + 18..], REQUEST.emit());
        assert_eq!(Terminate::parse(&out), Ok(repr));

        let bare = Terminate { layer: 2, etype: 0, code: 2, offender: None };
        assert_eq!(bare.emit(&mut out), 4);
        assert_eq!(out[..4], [0x20, 0x02, 0, 0]);
        assert_eq!(Terminate::parse(&out[..4]), Ok(bare));
        assert!(Terminate::parse(&out[..3]).is_err());
    }

    #[test]
    fn siw_nibbles_are_understood() {
        let read = |bytes: &[u8]| {
            let t = Terminate::parse(bytes).unwrap();
            (t.layer, t.etype, t.code)
        };
        // RDMAP protection error, access rights: RFC 0x01, siw 0x10.
        assert_eq!(read(&[0x01, 2, 0, 0]), (0, 1, 2));
        assert_eq!(read(&[0x10, 2, 0, 0]), (0, 1, 2));
        // DDP untagged, no buffer: RFC 0x12, siw 0x21.
        assert_eq!(read(&[0x12, 2, 0, 0]), (1, 2, 2));
        assert_eq!(read(&[0x21, 2, 0, 0]), (1, 2, 2));
        // DDP tagged is the same in both; MPA CRC: RFC 0x20, siw 0x02.
        assert_eq!(read(&[0x11, 1, 0, 0]), (1, 1, 1));
        assert_eq!(read(&[0x20, 2, 0, 0]), (2, 0, 2));
        assert_eq!(read(&[0x02, 2, 0, 0]), (2, 0, 2));
        // RDMAP remote operation, opcode: RFC 0x02, siw 0x20.
        assert_eq!(read(&[0x02, 6, 0, 0]), (0, 2, 6));
        assert_eq!(read(&[0x20, 6, 0, 0]), (0, 2, 6));
        // siw's flags (M, D in the low bits) reveal its order, and its offender is parsed.
        let mut bytes = vec![0x10, 0, 0x07, 0];
        let repr =
            Terminate { layer: 0, etype: 1, code: 0, offender: Some(offender(Some(REQUEST))) };
        let mut out = [0; TERMINATE_MAX];
        let n = repr.emit(&mut out);
        bytes.extend(&out[4..n]);
        assert_eq!(Terminate::parse(&bytes), Ok(repr));
    }

    proptest! {
        #[test]
        fn terminate_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Terminate::parse(&bytes);
        }

        #[test]
        fn read_requests_round_trip(bytes in any::<[u8; 28]>()) {
            prop_assert_eq!(ReadRequest::parse(&bytes).unwrap().emit(), bytes);
        }
    }
}
