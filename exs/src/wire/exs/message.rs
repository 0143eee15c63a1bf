//! Messages: what travels in SENDs.
//!
//! ```text
//!                  0        1        2        3
//!              +--------+--------+--------+--------+
//!            0 |  kind  | flags  |     credits     |
//!            4 |               freed               |
//!            8 |                len                |
//!           12 |                aux                |
//!              +--------+--------+--------+--------+
//!           16 |  more fields, then inline data    |
//! ```
//!
//! | kind | name         | flags       | len   | aux        | 16..         | 24..    | 32.. | 40..       |
//! |------|--------------|-------------|-------|------------|--------------|---------|------|------------|
//! | 1    | READY        |             |       |            |              |         |      |            |
//! | 2    | CREDIT       |             |       |            |              |         |      |            |
//! | 3    | PING         |             |       |            |              |         |      |            |
//! | 4    | PONG         |             |       |            |              |         |      |            |
//! | 5    | CLOSE        |             |       |            |              |         |      |            |
//! | 6    | CLOSE_ACK    |             |       |            |              |         |      |            |
//! | 7    | ABORT        |             |       | code       |              |         |      |            |
//! | 8    | FIN          |             |       |            |              |         |      |            |
//! | 9    | CONFIRM      |             |       | number     |              |         |      |            |
//! | 10   | CONFIRMED    |             |       | number     |              |         |      |            |
//! | 16   | DATA         | 1 direct, 2 inline | bytes |     | inline data  |         |      |            |
//! | 17   | ADVERT       | 1 waitall, 2 invalidate | bytes | key        | seq          | addr    | phase (32 bits) |  |
//! | 18   | RING_REQ     |             |       |            |              |         |      |            |
//! | 19   | RING         |             |       | key        | addr         |         |      |            |
//! | 20   | RING_RELEASE |             |       |            |              |         |      |            |
//! | 21   | WITHDRAW     |             |       | generation |              |         |      |            |
//! | 22   | WITHDRAWN    |             |       | generation | next message |         |      |            |
//! | 32   | EAGER        |             | bytes |            | data         |         |      |            |
//! | 33   | RTS          |             |       |            | message      | total   |      |            |
//! | 34   | PACKET_ADVERT|             |       | key        | message      | addr    | len  | generation (32 bits) |
//! | 35   | PACKET_DATA  |             |       |            | len          | total   |      |            |
//!
//! A field that a kind does not use is 0, and is checked to be.
//!
//! Behind an ADVERT further receives may follow, of 16 bytes each: address, key, length. All
//! else is as in the ADVERT, but the position, which is that behind the receive before.

use super::{MessageError, MessageKind, be16, be32, be64, field};

/// Bytes that every message begins with.
pub const COMMON_HEADER: usize = 16;
/// Room for the longest header (that of PACKET_ADVERT, 44 bytes).
pub const MAX_HEADER: usize = 48;
/// Bytes of each further receive behind an ADVERT ([`AdvertRepr::parse_further`]).
pub const FURTHER: usize = 16;
/// How many of them there are at most.
pub const MAX_FURTHER: usize = 13;

/// What every message carries besides its own content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piggyback {
    /// Receives posted again since the last message.
    pub credits: u16,
    /// Ring (or stash) bytes freed since the last message.
    pub freed: u32,
}

/// A message in a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The initiator's first message: the responder may send from now on.
    Ready,
    /// Only the piggyback: credits, or ring space.
    Credit,
    /// Are you there?
    Ping,
    /// Yes.
    Pong,
    /// Say when all that was written before this is there.
    Confirm {
        /// Counts from 1, modulo 2^32.
        number: u32,
    },
    /// The answer to CONFIRM, and to all CONFIRMs before it.
    Confirmed {
        /// That of the last CONFIRM.
        number: u32,
    },
    /// Stream data; `inline` data follow the header.
    Data {
        /// Into an advertised receive (else into the ring).
        direct: bool,
        /// The bytes follow in this message.
        inline: bool,
        /// Bytes.
        len: u32,
    },
    /// A receive buffer of a stream.
    Advert(AdvertRepr),
    /// The sender needs the ring's address.
    RingReq,
    /// The ring's address.
    Ring {
        /// Address.
        addr: u64,
        /// Key.
        key: u32,
    },
    /// The sender forgets the ring.
    RingRelease,
    /// Forget all ADVERTs.
    Withdraw {
        /// Seqpacket: the generation that ends. Stream: 0.
        generation: u32,
    },
    /// Forgotten.
    Withdrawn {
        /// Seqpacket: the generation withdrawn. Stream: 0.
        generation: u32,
        /// Seqpacket: the next message. Stream: 0.
        next_msg: u64,
    },
    /// No more data in this direction.
    Fin,
    /// This side is about to close: send nothing more.
    Close,
    /// The answer to Close, after everything sent before.
    CloseAck,
    /// This side gives up; an EXS error code for the log.
    Abort {
        /// Code.
        code: u32,
    },
    /// A whole small message follows the header (seqpacket).
    Eager {
        /// Bytes.
        len: u32,
    },
    /// A large message waits for its ADVERT.
    Rts {
        /// Number of the message.
        msg: u64,
        /// Its length.
        total: u64,
    },
    /// A receive buffer of a seqpacket socket.
    PacketAdvert {
        /// Number of the message it is for.
        msg: u64,
        /// Generation.
        generation: u32,
        /// Address.
        addr: u64,
        /// Key.
        key: u32,
        /// Length.
        len: u64,
    },
    /// A large message was written into its ADVERT.
    PacketData {
        /// Bytes written.
        len: u64,
        /// True length of the message.
        total: u64,
    },
}

/// The content of a stream ADVERT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvertRepr {
    /// Stream position.
    pub seq: u64,
    /// Phase.
    pub phase: u32,
    /// Address.
    pub addr: u64,
    /// Key.
    pub key: u32,
    /// Length.
    pub len: u32,
    /// Complete only when full.
    pub waitall: bool,
    /// The key is of a window that the sender may close with its last use, by announcing that
    /// with a SEND with Invalidate (RFC 5040 section 5.3). A request, not a duty.
    pub invalidate: bool,
}

const DIRECT: u8 = 1;
const INLINE: u8 = 2;
const WAITALL: u8 = 1;
const INVALIDATE: u8 = 2;

/// The fields of a header, whatever its kind: what lies between a [`Message`] and
/// its bytes. Which of `w16`, `w24`, `w32` (8 bytes each) and `tail` (the last 4
/// bytes) are on the wire, the length of the kind's header says.
#[derive(Default)]
struct Raw {
    flags: u8,
    len: u32,
    aux: u32,
    w16: u64,
    w24: u64,
    w32: u64,
    tail: u32,
}

impl Message {
    /// Its kind.
    pub const fn kind(&self) -> MessageKind {
        match self {
            Message::Ready => MessageKind::Ready,
            Message::Credit => MessageKind::Credit,
            Message::Ping => MessageKind::Ping,
            Message::Pong => MessageKind::Pong,
            Message::Confirm { .. } => MessageKind::Confirm,
            Message::Confirmed { .. } => MessageKind::Confirmed,
            Message::Data { .. } => MessageKind::Data,
            Message::Advert(_) => MessageKind::Advert,
            Message::RingReq => MessageKind::RingReq,
            Message::Ring { .. } => MessageKind::Ring,
            Message::RingRelease => MessageKind::RingRelease,
            Message::Withdraw { .. } => MessageKind::Withdraw,
            Message::Withdrawn { .. } => MessageKind::Withdrawn,
            Message::Fin => MessageKind::Fin,
            Message::Close => MessageKind::Close,
            Message::CloseAck => MessageKind::CloseAck,
            Message::Abort { .. } => MessageKind::Abort,
            Message::Eager { .. } => MessageKind::Eager,
            Message::Rts { .. } => MessageKind::Rts,
            Message::PacketAdvert { .. } => MessageKind::PacketAdvert,
            Message::PacketData { .. } => MessageKind::PacketData,
        }
    }

    /// Bytes of data that follow the header in the same SEND.
    pub const fn inline_len(&self) -> u32 {
        match *self {
            Message::Data { inline: true, len, .. } | Message::Eager { len } => len,
            _ => 0,
        }
    }

    /// Puts the header at the start of `out` and returns its length; inline data
    /// go behind it.
    pub fn emit(&self, pb: Piggyback, out: &mut [u8; MAX_HEADER]) -> usize {
        let kind = self.kind();
        let raw = self.to_raw();
        let end = kind.header_len();
        // Whole words: who reads them soon waits until smaller stores have come together.
        let [kind, flags, credits] = [kind as u64, raw.flags.into(), pb.credits.into()];
        let w0 = kind << 56 | flags << 48 | credits << 32 | u64::from(pb.freed);
        let w8 = u64::from(raw.len) << 32 | u64::from(raw.aux);
        for (at, word) in [(0, w0), (8, w8), (16, raw.w16), (24, raw.w24), (32, raw.w32)] {
            if at + 8 <= end {
                out[at..at + 8].copy_from_slice(&word.to_be_bytes());
            }
        }
        if end % 8 == 4 {
            out[end - 4..end].copy_from_slice(&raw.tail.to_be_bytes());
        }
        end
    }

    fn to_raw(self) -> Raw {
        let none = Raw::default();
        match self {
            Message::Ready
            | Message::Credit
            | Message::Ping
            | Message::Pong
            | Message::RingReq
            | Message::RingRelease
            | Message::Fin
            | Message::Close
            | Message::CloseAck => none,
            Message::Data { direct, inline, len } => {
                let flags = if direct { DIRECT } else { 0 } | if inline { INLINE } else { 0 };
                Raw { flags, len, ..none }
            }
            Message::Advert(a) => Raw {
                flags: if a.waitall { WAITALL } else { 0 }
                    | if a.invalidate { INVALIDATE } else { 0 },
                len: a.len,
                aux: a.key,
                w16: a.seq,
                w24: a.addr,
                tail: a.phase,
                ..none
            },
            Message::Ring { addr, key } => Raw { aux: key, w16: addr, ..none },
            Message::Withdraw { generation } => Raw { aux: generation, ..none },
            Message::Withdrawn { generation, next_msg } => {
                Raw { aux: generation, w16: next_msg, ..none }
            }
            Message::Abort { code } => Raw { aux: code, ..none },
            Message::Confirm { number } | Message::Confirmed { number } => {
                Raw { aux: number, ..none }
            }
            Message::Eager { len } => Raw { len, ..none },
            Message::Rts { msg, total } => Raw { w16: msg, w24: total, ..none },
            Message::PacketAdvert { msg, generation, addr, key, len } => {
                Raw { aux: key, w16: msg, w24: addr, w32: len, tail: generation, ..none }
            }
            Message::PacketData { len, total } => Raw { w16: len, w24: total, ..none },
        }
    }

    /// Reads a message: the message, its piggyback, and the length of its header,
    /// behind which [`Message::inline_len`] bytes of data follow and nothing else, but for
    /// the further receives of an ADVERT.
    #[cfg(any(test, feature = "internals"))]
    pub fn parse(bytes: &[u8]) -> Result<(Message, Piggyback, usize), MessageError> {
        Message::parse_prefix(bytes, bytes.len())
    }

    /// As [`Message::parse`], of a message of `len` bytes whose first bytes (at
    /// least [`MAX_HEADER`], if it has as many) are `bytes`: memory that an RNIC
    /// writes is copied before it is interpreted, and the data need not be.
    pub fn parse_prefix(
        bytes: &[u8],
        len: usize,
    ) -> Result<(Message, Piggyback, usize), MessageError> {
        match Message::parse_data(bytes, len) {
            Some((message, pb)) => Ok((message, pb, COMMON_HEADER)),
            None => Message::parse_any(bytes, len),
        }
    }

    /// The short way of DATA and EAGER, which most messages are: they have none of the other
    /// fields. None: it is something else, or there is something wrong with it.
    #[inline]
    pub(super) fn parse_data(bytes: &[u8], len: usize) -> Option<(Message, Piggyback)> {
        let head = bytes.first_chunk::<COMMON_HEADER>()?;
        let [kind, flags, c0, c1, f0, f1, f2, f3, l0, l1, l2, l3, aux @ ..] = *head;
        let data = kind == MessageKind::Data as u8 && flags & !(DIRECT | INLINE) == 0;
        let eager = kind == MessageKind::Eager as u8 && flags == 0;
        if !(data || eager) || aux != [0; 4] {
            return None;
        }
        let data_len = u32::from_be_bytes([l0, l1, l2, l3]);
        let message = match eager {
            true => Message::Eager { len: data_len },
            false => Message::Data {
                direct: flags & DIRECT != 0,
                inline: flags & INLINE != 0,
                len: data_len,
            },
        };
        let credits = u16::from_be_bytes([c0, c1]);
        let pb = Piggyback { credits, freed: u32::from_be_bytes([f0, f1, f2, f3]) };
        let whole = len as u64 == COMMON_HEADER as u64 + u64::from(message.inline_len());
        whole.then_some((message, pb))
    }

    #[inline(never)]
    pub(super) fn parse_any(
        bytes: &[u8],
        len: usize,
    ) -> Result<(Message, Piggyback, usize), MessageError> {
        let message_len = len;
        let truncated = |need| MessageError::Truncated { len: bytes.len(), need };
        let short = truncated(COMMON_HEADER);
        let [code, flags] = field::<2>(bytes, 0).ok_or(short)?;
        let pb = Piggyback {
            credits: be16(bytes, 2).ok_or(short)?,
            freed: be32(bytes, 4).ok_or(short)?,
        };
        let len = be32(bytes, 8).ok_or(short)?;
        let aux = be32(bytes, 12).ok_or(short)?;
        let kind = MessageKind::from_code(code).ok_or(MessageError::UnknownKind { kind: code })?;
        let header = kind.header_len();
        let head = bytes.get(..header).ok_or(truncated(header))?;
        let raw = Raw {
            flags,
            len,
            aux,
            w16: be64(head, 16).unwrap_or(0),
            w24: be64(head, 24).unwrap_or(0),
            w32: be64(head, 32).unwrap_or(0),
            tail: be32(head, header - 4).unwrap_or(0),
        };
        raw.check(kind)?;
        let message = raw.into_message(kind);
        let expected = header as u64 + u64::from(message.inline_len());
        let behind = (message_len as u64).saturating_sub(expected);
        let further = kind == MessageKind::Advert
            && behind <= (MAX_FURTHER * FURTHER) as u64
            && behind.is_multiple_of(FURTHER as u64);
        if message_len as u64 != expected && !further {
            return Err(MessageError::Length { kind, len: message_len, expected });
        }
        Ok((message, pb, header))
    }
}

impl Raw {
    /// Bits that nobody agreed on, and buffers that cannot be.
    fn check(&self, kind: MessageKind) -> Result<(), MessageError> {
        use MessageKind as K;
        let known_flags = match kind {
            K::Data => DIRECT | INLINE,
            K::Advert => WAITALL | INVALIDATE,
            _ => 0,
        };
        if self.flags & !known_flags != 0 {
            return Err(MessageError::UnknownFlags { kind, flags: self.flags });
        }
        let has_len = matches!(kind, K::Data | K::Advert | K::Eager);
        let has_aux = matches!(
            kind,
            K::Abort
                | K::Confirm
                | K::Confirmed
                | K::Advert
                | K::Ring
                | K::Withdraw
                | K::Withdrawn
                | K::PacketAdvert
        );
        for (used, value) in [(has_len, self.len), (has_aux, self.aux)] {
            if !used && value != 0 {
                return Err(MessageError::NotZero { kind, value });
            }
        }
        let buffer = match kind {
            K::Advert => Some((self.w24, u64::from(self.len))),
            K::PacketAdvert => Some((self.w24, self.w32)),
            _ => None,
        };
        match buffer {
            Some((addr, len)) if addr.checked_add(len).is_none() => {
                Err(MessageError::Wraps { addr, len })
            }
            _ => Ok(()),
        }
    }

    fn into_message(self, kind: MessageKind) -> Message {
        match kind {
            MessageKind::Ready => Message::Ready,
            MessageKind::Credit => Message::Credit,
            MessageKind::Ping => Message::Ping,
            MessageKind::Pong => Message::Pong,
            MessageKind::Close => Message::Close,
            MessageKind::CloseAck => Message::CloseAck,
            MessageKind::Abort => Message::Abort { code: self.aux },
            MessageKind::Confirm => Message::Confirm { number: self.aux },
            MessageKind::Confirmed => Message::Confirmed { number: self.aux },
            MessageKind::Fin => Message::Fin,
            MessageKind::Data => Message::Data {
                direct: self.flags & DIRECT != 0,
                inline: self.flags & INLINE != 0,
                len: self.len,
            },
            MessageKind::Advert => Message::Advert(AdvertRepr {
                seq: self.w16,
                phase: self.tail,
                addr: self.w24,
                key: self.aux,
                len: self.len,
                waitall: self.flags & WAITALL != 0,
                invalidate: self.flags & INVALIDATE != 0,
            }),
            MessageKind::RingReq => Message::RingReq,
            MessageKind::Ring => Message::Ring { addr: self.w16, key: self.aux },
            MessageKind::RingRelease => Message::RingRelease,
            MessageKind::Withdraw => Message::Withdraw { generation: self.aux },
            MessageKind::Withdrawn => {
                Message::Withdrawn { generation: self.aux, next_msg: self.w16 }
            }
            MessageKind::Eager => Message::Eager { len: self.len },
            MessageKind::Rts => Message::Rts { msg: self.w16, total: self.w24 },
            MessageKind::PacketAdvert => Message::PacketAdvert {
                msg: self.w16,
                generation: self.tail,
                addr: self.w24,
                key: self.aux,
                len: self.w32,
            },
            MessageKind::PacketData => Message::PacketData { len: self.w16, total: self.w24 },
        }
    }
}
