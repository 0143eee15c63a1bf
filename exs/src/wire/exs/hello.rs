//! The private data: hello in connect and accept, refusal in a reject.
//!
//! ```text
//! hello            0        1        2        3
//!              +--------+--------+--------+--------+
//!            0 |   'E'      'X'      'S'      'H'  |
//!            4 | first  |  last  |  kind  |   0    |
//!            8 |             features              |
//!           12 |     credits     |        0        |
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
//! Transports pad private data (InfiniBand always hands over 56 bytes, or 148 with
//! a reject), so bytes after the record are passed over. A zero that this version
//! does not use is sent as zero and not looked at.

use super::{be16, be32, be64, field};
use crate::wire::exs::MAX_HEADER;

/// Protocol versions that this codec speaks: first and last.
pub const VERSIONS: (u8, u8) = (1, 1);
/// Bytes of a hello.
pub const HELLO_LEN: usize = 40;
/// The most that a hello of any version may take: what InfiniBand leaves of its
/// REQ private data after the IP addressing annex.
pub const MAX_HELLO: usize = 56;
/// Bytes of a refusal.
pub const REFUSAL_LEN: usize = 8;
/// With fewer credits than this there are none to keep back for control and for
/// returning credits, and two sides that both have something to send would wait for
/// ever.
pub const MIN_CREDITS: u16 = 4;

const HELLO_MAGIC: [u8; 4] = *b"EXSH";
const REFUSAL_MAGIC: [u8; 4] = *b"EXSR";

/// What one side says of itself in the private data of connect and accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Protocol versions spoken: first and last.
    pub versions: (u8, u8),
    /// Stream or seqpacket.
    pub kind: SocketKind,
    /// Optional features, a bit each: one of the low half is used if both sides have
    /// it, one of the high half says something of this side alone.
    pub features: u32,
    /// Receives that this side keeps posted: the peer's initial credits.
    pub credits: u16,
    /// Size of each of these receives.
    pub slot: u32,
    /// Bytes of this side's ring (stream) or stash (seqpacket).
    pub ring: u32,
    /// Bytes of one message that this side takes (seqpacket).
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

/// Private data that are no usable hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// The first bytes are not those of EXS.
    #[error(
        "not an EXS peer (its private data do not begin with \"EXSH\"): check address and port"
    )]
    NotExs,
    /// Shorter than a hello.
    #[error("the EXS hello is cut off: {len} bytes, {need} expected")]
    Truncated {
        /// Bytes there.
        len: usize,
        /// Bytes needed.
        need: usize,
    },
    /// No version in common; the rest of the hello cannot be read.
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
    /// A socket type that this version does not have.
    #[error("the peer's socket type has the unknown code {code} (1 is stream, 2 is seqpacket)")]
    UnknownKind {
        /// The code.
        code: u8,
    },
}

impl HelloError {
    /// What to answer the peer.
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
    /// Feature of both: an ADVERT may ask the sender to close its window.
    pub const INVALIDATE: u32 = 1;
    /// Feature of both: an ADVERT may be of several receives.
    pub const SEVERAL: u32 = 1 << 1;
    /// The features of both that this build has.
    pub const FEATURES: u32 = Hello::INVALIDATE | Hello::SEVERAL;
    /// Feature: WRITEs towards this side are to be confirmed by CONFIRM, which it
    /// answers, and not by READs of no bytes. Unlike most it speaks of one side only.
    pub const CONFIRM: u32 = 1 << 16;

    /// Puts the hello at the start of `out`; returns its length, [`HELLO_LEN`].
    pub fn emit(&self, out: &mut [u8; MAX_HELLO]) -> usize {
        out[..HELLO_LEN].fill(0);
        out[0..4].copy_from_slice(&HELLO_MAGIC);
        out[4] = self.versions.0;
        out[5] = self.versions.1;
        out[6] = self.kind.code();
        out[8..12].copy_from_slice(&self.features.to_be_bytes());
        out[12..14].copy_from_slice(&self.credits.to_be_bytes());
        out[16..20].copy_from_slice(&self.slot.to_be_bytes());
        out[20..24].copy_from_slice(&self.ring.to_be_bytes());
        out[24..32].copy_from_slice(&self.max_msg.to_be_bytes());
        HELLO_LEN
    }

    /// Reads a hello from private data.
    ///
    /// The version range is looked at before anything behind it, because only a
    /// version in common says what is there.
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
            slot: be32(bytes, 16).ok_or(truncated)?,
            ring: be32(bytes, 20).ok_or(truncated)?,
            max_msg,
        })
    }
}

/// The highest version in both ranges; version 0 does not exist.
fn common_version(a: (u8, u8), b: (u8, u8)) -> Option<u8> {
    let low = a.0.max(b.0).max(1);
    let high = a.1.min(b.1);
    (a.0 <= a.1 && b.0 <= b.1 && low <= high).then_some(high)
}

/// What two hellos agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The highest version that both speak.
    pub version: u8,
    /// The features that both have.
    pub features: u32,
}

/// Compares two hellos. Both sides come to the same answer, so the side that
/// accepts need not send it; the refusal is the one to put in the reject.
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

/// Why a connection request was refused.
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
    /// The program on the other side said no.
    Refused,
    /// A code that this version does not know.
    Other(u8),
}

impl RefusalCode {
    /// The number on the wire.
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

    /// From the number on the wire.
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

/// The private data of a reject. It is an error, too: what the side that wanted
/// to connect reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// Why.
    pub code: RefusalCode,
    /// Protocol versions that the refusing side speaks: first and last.
    pub versions: (u8, u8),
}

impl Refusal {
    /// The record's bytes.
    pub fn emit(&self) -> [u8; REFUSAL_LEN] {
        let [e, x, s, r] = REFUSAL_MAGIC;
        [e, x, s, r, self.versions.0, self.versions.1, self.code.code(), 0]
    }

    /// Reads a refusal; `None` if the reject did not come from EXS, or says
    /// nothing (then the connection was simply refused).
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
