//! The private data: a hello in connect and accept, a refusal in a reject.
//!
//! ```text
//! hello            0        1        2        3
//!              +--------+--------+--------+--------+
//!            0 |   'E'      'X'      'S'      'H'  |
//!            4 | first  |  last  |  kind  |   0    |
//!            8 |             features              |
//!           12 |     credits     |      most       |
//!           16 |               slot                |
//!           20 |               ring                |
//!           24 |                                   |
//!           28 |              max_msg              |
//!           32 |                                   |
//!           36 |                 0                 |
//!              +--------+--------+--------+--------+
//! refusal    0 |   'E'      'X'      'S'      'R'  |
//!            4 | first  |  last  |  code  |   0    |
//!              +--------+--------+--------+--------+
//! ```
//!
//! Transports pad private data (InfiniBand always delivers 56 bytes, or 148 with a reject), so
//! the codec ignores bytes after the record. A zero that this version does not use is sent as
//! zero and not checked.

use super::{be16, be32, be64, field};
use crate::wire::exs::MAX_HEADER;

/// The protocol versions of this codec: first and last.
pub const VERSIONS: (u8, u8) = (1, 1);
/// Bytes of a hello.
pub const HELLO_LEN: usize = 40;
/// Most bytes in a hello of any version: InfiniBand's REQ private data without the IP addressing
/// annex.
pub const MAX_HELLO: usize = 56;
/// Bytes of a refusal.
pub const REFUSAL_LEN: usize = 8;
/// Fewest credits of a side. With fewer, none could be kept back for control and for returning
/// credits, and two sides that both have data to send would wait for ever.
pub const MIN_CREDITS: u16 = 4;

const HELLO_MAGIC: [u8; 4] = *b"EXSH";
const REFUSAL_MAGIC: [u8; 4] = *b"EXSR";

/// The properties of one side, in the private data of connect and accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The protocol versions that the side speaks: first and last.
    pub versions: (u8, u8),
    /// Stream or seqpacket.
    pub kind: SocketKind,
    /// Optional features, one bit each. A bit of the low half is in use if both sides set it. A
    /// bit of the high half describes this side alone.
    pub features: u32,
    /// Receives that this side keeps posted: the peer's initial credits.
    pub credits: u16,
    /// Receives that this side may come to have posted, beyond [`Hello::credits`] at first. 0, or
    /// fewer than these: it keeps to them.
    pub most: u16,
    /// Size of each of these receives in bytes.
    pub slot: u32,
    /// Size of this side's ring (stream) or stash (seqpacket) in bytes.
    pub ring: u32,
    /// Most bytes in one message that this side takes. Seqpacket only.
    pub max_msg: u64,
}

/// Socket types on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketKind {
    /// SOCK_STREAM.
    Stream,
    /// SOCK_SEQPACKET.
    SeqPacket,
}

impl SocketKind {
    const fn code(self) -> u8 {
        match self {
            SocketKind::Stream => 1,
            SocketKind::SeqPacket => 2,
        }
    }

    const fn from_code(code: u8) -> Option<SocketKind> {
        match code {
            1 => Some(SocketKind::Stream),
            2 => Some(SocketKind::SeqPacket),
            _ => None,
        }
    }
}

/// The reason why private data are no usable hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// The first bytes are not those of EXS.
    #[error(
        "not an EXS peer (its private data do not begin with \"EXSH\"): check address and port"
    )]
    NotExs,
    /// The private data are shorter than a hello.
    #[error("the EXS hello is cut off: {len} bytes, {need} expected")]
    Truncated {
        /// Number of bytes that are there.
        len: usize,
        /// Number of bytes needed.
        need: usize,
    },
    /// The sides have no common version, so the rest of the hello cannot be read.
    #[error(
        "the peer speaks EXS protocol versions {first} to {last}, this side {} to {}: update the older of the two",
        VERSIONS.0, VERSIONS.1
    )]
    Version {
        /// The peer's first.
        first: u8,
        /// The peer's last.
        last: u8,
    },
    /// This version does not have the socket type.
    #[error("the peer's socket type has the unknown code {code} (1 is stream, 2 is seqpacket)")]
    UnknownKind {
        /// The code.
        code: u8,
    },
}

impl HelloError {
    /// Returns the refusal to send to the peer.
    pub const fn refusal(self) -> Refusal {
        let code = match self {
            HelloError::NotExs | HelloError::Truncated { .. } => RefusalCode::BadHello,
            HelloError::Version { .. } => RefusalCode::VersionUnsupported,
            HelloError::UnknownKind { .. } => RefusalCode::KindMismatch,
        };
        Refusal { code, versions: VERSIONS }
    }
}

impl Hello {
    /// Feature of both sides: an ADVERT may ask the sender to close its window.
    pub const INVALIDATE: u32 = 1;
    /// Feature of both sides: an ADVERT may cover several receives.
    pub const SEVERAL: u32 = 1 << 1;
    /// Feature of both sides: a side may give its peer more credits than its hello says, and ask it
    /// to use some up. The peer may ask for more.
    pub const MORE: u32 = 1 << 2;
    /// The features of both sides that this build has.
    pub const FEATURES: u32 = Hello::INVALIDATE | Hello::SEVERAL | Hello::MORE;
    /// Feature of one side: its peer must confirm WRITEs towards it by CONFIRM, which it answers,
    /// and not by READs of no bytes.
    pub const CONFIRM: u32 = 1 << 16;
    /// Feature of one side: its RNIC executes atomic operations of its peer.
    pub const ATOMICS: u32 = 1 << 17;
    /// Feature of one side, with [`Hello::ATOMICS`]: these are atomic with the processors of its host.
    pub const ATOMICS_HOST: u32 = 1 << 18;

    /// Writes the hello to the start of `out` and returns its length, [`HELLO_LEN`].
    pub fn emit(&self, out: &mut [u8; MAX_HELLO]) -> usize {
        out[..HELLO_LEN].fill(0);
        out[0..4].copy_from_slice(&HELLO_MAGIC);
        out[4] = self.versions.0;
        out[5] = self.versions.1;
        out[6] = self.kind.code();
        out[8..12].copy_from_slice(&self.features.to_be_bytes());
        out[12..14].copy_from_slice(&self.credits.to_be_bytes());
        out[14..16].copy_from_slice(&self.most.to_be_bytes());
        out[16..20].copy_from_slice(&self.slot.to_be_bytes());
        out[20..24].copy_from_slice(&self.ring.to_be_bytes());
        out[24..32].copy_from_slice(&self.max_msg.to_be_bytes());
        HELLO_LEN
    }

    /// Parses a hello from private data.
    ///
    /// It checks the version range before the bytes behind it, because only a common version
    /// defines them.
    pub fn parse(bytes: &[u8]) -> Result<Hello, HelloError> {
        if field::<4>(bytes, 0) != Some(HELLO_MAGIC) {
            return Err(HelloError::NotExs);
        }
        let truncated = HelloError::Truncated { len: bytes.len(), need: HELLO_LEN };
        let [first, last, kind, _] = field::<4>(bytes, 4).ok_or(truncated)?;
        if common_version(VERSIONS, (first, last)).is_none() {
            return Err(HelloError::Version { first, last });
        }
        let max_msg = be64(bytes, 24).ok_or(truncated)?;
        if bytes.len() < HELLO_LEN {
            return Err(truncated);
        }
        Ok(Hello {
            versions: (first, last),
            kind: SocketKind::from_code(kind).ok_or(HelloError::UnknownKind { code: kind })?,
            features: be32(bytes, 8).ok_or(truncated)?,
            credits: be16(bytes, 12).ok_or(truncated)?,
            most: be16(bytes, 14).ok_or(truncated)?,
            slot: be32(bytes, 16).ok_or(truncated)?,
            ring: be32(bytes, 20).ok_or(truncated)?,
            max_msg,
        })
    }
}

/// Returns the highest version in both ranges. Version 0 does not exist.
fn common_version(a: (u8, u8), b: (u8, u8)) -> Option<u8> {
    let low = a.0.max(b.0).max(1);
    let high = a.1.min(b.1);
    (a.0 <= a.1 && b.0 <= b.1 && low <= high).then_some(high)
}

/// The agreement of two hellos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The highest version that both speak.
    pub version: u8,
    /// The features that both have.
    pub features: u32,
}

/// Compares two hellos. Both sides get the same result, so the accepting side need not send it.
/// The refusal is the one for the reject.
pub fn negotiate(ours: &Hello, theirs: &Hello) -> Result<Negotiated, Refusal> {
    let refuse = |code| Err(Refusal { code, versions: ours.versions });
    let Some(version) = common_version(ours.versions, theirs.versions) else {
        return refuse(RefusalCode::VersionUnsupported);
    };
    if ours.kind != theirs.kind {
        return refuse(RefusalCode::KindMismatch);
    }
    // A slot must hold the longest header, or some message could never be sent.
    let slot_too_small = usize::try_from(theirs.slot).is_ok_and(|slot| slot < MAX_HEADER);
    if theirs.credits < MIN_CREDITS || slot_too_small {
        return refuse(RefusalCode::LimitsTooSmall);
    }
    Ok(Negotiated { version, features: ours.features & theirs.features })
}

/// The reason why a connection request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalCode {
    /// The request's private data were no hello.
    BadHello,
    /// No protocol version in common.
    VersionUnsupported,
    /// One side is a stream, the other a seqpacket socket.
    KindMismatch,
    /// The hello offers less than the protocol needs (credits, slot size).
    LimitsTooSmall,
    /// The listener's backlog is full.
    BacklogFull,
    /// The listener has no memory or no queue pair left for one more.
    Busy,
    /// The listener was closed while the request waited.
    Closed,
    /// The program on the other side refused.
    Refused,
    /// A code that this version does not know.
    Other(u8),
}

impl RefusalCode {
    /// Returns the code on the wire.
    pub const fn code(self) -> u8 {
        match self {
            RefusalCode::BadHello => 1,
            RefusalCode::VersionUnsupported => 2,
            RefusalCode::KindMismatch => 3,
            RefusalCode::LimitsTooSmall => 4,
            RefusalCode::BacklogFull => 5,
            RefusalCode::Busy => 6,
            RefusalCode::Closed => 7,
            RefusalCode::Refused => 8,
            RefusalCode::Other(code) => code,
        }
    }

    /// Decodes the code on the wire.
    pub const fn from_code(code: u8) -> RefusalCode {
        match code {
            1 => RefusalCode::BadHello,
            2 => RefusalCode::VersionUnsupported,
            3 => RefusalCode::KindMismatch,
            4 => RefusalCode::LimitsTooSmall,
            5 => RefusalCode::BacklogFull,
            6 => RefusalCode::Busy,
            7 => RefusalCode::Closed,
            8 => RefusalCode::Refused,
            other => RefusalCode::Other(other),
        }
    }
}

/// The private data of a reject. It is also the error that the connecting side reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The reason.
    pub code: RefusalCode,
    /// The protocol versions that the refusing side speaks: first and last.
    pub versions: (u8, u8),
}

impl Refusal {
    /// Returns the bytes of the record.
    pub fn emit(&self) -> [u8; REFUSAL_LEN] {
        let [e, x, s, r] = REFUSAL_MAGIC;
        [e, x, s, r, self.versions.0, self.versions.1, self.code.code(), 0]
    }

    /// Parses a refusal. None if the reject did not come from EXS or carries no reason.
    pub fn parse(bytes: &[u8]) -> Option<Refusal> {
        if field::<4>(bytes, 0)? != REFUSAL_MAGIC {
            return None;
        }
        let [first, last, code, _] = field::<4>(bytes, 4)?;
        Some(Refusal { code: RefusalCode::from_code(code), versions: (first, last) })
    }
}

impl std::error::Error for Refusal {}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (first, last) = self.versions;
        match self.code {
            RefusalCode::BadHello => f.write_str("the peer could not read our EXS hello"),
            RefusalCode::VersionUnsupported => write!(
                f,
                "no common protocol version: the peer speaks EXS {first} to {last}, this side \
                 {} to {}; update the older of the two",
                VERSIONS.0, VERSIONS.1
            ),
            RefusalCode::KindMismatch => f.write_str(
                "the socket types differ: use SOCK_STREAM, or SOCK_SEQPACKET, on both sides",
            ),
            RefusalCode::LimitsTooSmall => write!(
                f,
                "the receive slots offered are too few or too small: at least {MIN_CREDITS} of \
                 {MAX_HEADER} bytes are needed"
            ),
            RefusalCode::BacklogFull => f.write_str(
                "the listener's backlog is full: try again, or listen with a longer one",
            ),
            RefusalCode::Busy => f.write_str("the peer is out of resources: try again later"),
            RefusalCode::Closed => f.write_str("the listener was closed"),
            RefusalCode::Refused => f.write_str("the peer's program refused the connection"),
            RefusalCode::Other(code) => write!(f, "the peer refused, with the unknown code {code}"),
        }
    }
}
