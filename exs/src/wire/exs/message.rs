//! Messages: the content of SENDs.
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
//! | 11   | MORE         |             |       |            |              |         |      |            |
//! | 12   | USE          |             |       | messages   |              |         |      |            |
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
//! A field that a kind does not use is 0, and `parse` checks it.
//!
//! Further receives may follow behind an ADVERT, 16 bytes each: address, key, length. Each shares
//! the other fields with the ADVERT, except its position, which is the end of the receive before
//! it.

use super::{MessageError, MessageKind, be16, be32, be64, field};

/// Bytes of the header that every message has.
pub const COMMON_HEADER: usize = 16;
/// Room for the longest header (that of PACKET_ADVERT, 44 bytes).
pub const MAX_HEADER: usize = 48;
/// Bytes of each further receive behind an ADVERT ([`AdvertRepr::parse_further`]).
pub const FURTHER: usize = 16;
/// Most further receives behind one ADVERT.
pub const MAX_FURTHER: usize = 13;

/// The fields that every message carries beside its own content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piggyback {
    /// Receives that the sender posted again since its last message.
    pub credits: u16,
    /// Ring (or stash) bytes that the sender freed since its last message.
    pub freed: u32,
}

/// A message in a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The initiator's first message: the responder may send after it.
    Ready,
    /// Only the piggyback: credits or ring space.
    Credit,
    /// Asks whether the peer is alive.
    Ping,
    /// Answers PING.
    Pong,
    /// Asks for CONFIRMED once all WRITEs before this message are placed.
    Confirm {
        /// Counts from 1, modulo 2^32.
        number: u32,
    },
    /// Answers a CONFIRM and all CONFIRMs before it.
    Confirmed {
        /// The number of the last CONFIRM.
        number: u32,
    },
    /// This side waits for credits, and could use more of them.
    More,
    /// Asks the peer to send some messages soon, so that they use up receives.
    Use {
        /// Number of messages.
        messages: u32,
    },
    /// Announces stream data.
    Data {
        /// The data are in an advertised receive. If false, they are in the ring (or inline).
        direct: bool,
        /// The data follow the header in this message.
        inline: bool,
        /// Number of bytes.
        len: u32,
    },
    /// Offers a receive buffer of a stream.
    Advert(AdvertRepr),
    /// Asks for the ring's address.
    RingReq,
    /// Tells the ring's address.
    Ring {
        /// Address of the first byte.
        addr: u64,
        /// The ring's key.
        key: u32,
    },
    /// The sender of the data no longer uses the ring.
    RingRelease,
    /// Tells the peer to forget all ADVERTs.
    Withdraw {
        /// Seqpacket: the generation that ends. Stream: 0.
        generation: u32,
    },
    /// Answers WITHDRAW: the ADVERTs are forgotten.
    Withdrawn {
        /// Seqpacket: the generation that was withdrawn. Stream: 0.
        generation: u32,
        /// Seqpacket: the number of the next message. Stream: 0.
        next_msg: u64,
    },
    /// Ends the data of this direction.
    Fin,
    /// This side is about to close; the peer must send nothing more.
    Close,
    /// Answers CLOSE, after everything that was sent before.
    CloseAck,
    /// This side gives up. The code is for the log.
    Abort {
        /// An EXS error code.
        code: u32,
    },
    /// A whole small message follows the header (seqpacket).
    Eager {
        /// Number of bytes.
        len: u32,
    },
    /// Announces a large message that waits for its ADVERT.
    Rts {
        /// Number of the message.
        msg: u64,
        /// Length of the message in bytes.
        total: u64,
    },
    /// Offers a receive buffer of a seqpacket socket.
    PacketAdvert {
        /// Number of the message that the buffer is for.
        msg: u64,
        /// Generation of the ADVERT.
        generation: u32,
        /// Address of the first byte.
        addr: u64,
        /// The buffer's key.
        key: u32,
        /// Length of the buffer in bytes.
        len: u64,
    },
    /// A large message was written into its advertised buffer.
    PacketData {
        /// Number of bytes written.
        len: u64,
        /// True length of the message in bytes.
        total: u64,
    },
}

/// The content of a stream ADVERT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvertRepr {
    /// Stream position of the first byte.
    pub seq: u64,
    /// Phase of the stream.
    pub phase: u32,
    /// Address of the first byte.
    pub addr: u64,
    /// The buffer's key.
    pub key: u32,
    /// Length of the buffer in bytes.
    pub len: u32,
    /// The receive completes only when it is full.
    pub waitall: bool,
    /// The key is that of a window that the sender may close with its last use, by a SEND with
    /// Invalidate as the announcement (RFC 5040 section 5.3). This is a request, not a duty.
    pub invalidate: bool,
}

const DIRECT: u8 = 1;
const INLINE: u8 = 2;
const WAITALL: u8 = 1;
const INVALIDATE: u8 = 2;

/// The fields of a header of any kind: the form between a [`Message`] and its bytes. The header
/// length of the kind says which of `w16`, `w24`, `w32` (8 bytes each) and `tail` (the last 4
/// bytes) are on the wire.
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
    /// Returns the kind of the message.
    pub const fn kind(&self) -> MessageKind {
        match self {
            Message::Ready => MessageKind::Ready,
            Message::Credit => MessageKind::Credit,
            Message::Ping => MessageKind::Ping,
            Message::Pong => MessageKind::Pong,
            Message::Confirm { .. } => MessageKind::Confirm,
            Message::Confirmed { .. } => MessageKind::Confirmed,
            Message::More => MessageKind::More,
            Message::Use { .. } => MessageKind::Use,
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

    /// Returns how many bytes of data follow the header in the same SEND.
    pub const fn inline_len(&self) -> u32 {
        match *self {
            Message::Data { inline: true, len, .. } | Message::Eager { len } => len,
            _ => 0,
        }
    }

    /// Writes the header to the start of `out` and returns its length. Inline data go behind it.
    pub fn emit(&self, pb: Piggyback, out: &mut [u8; MAX_HEADER]) -> usize {
        let kind = self.kind();
        let raw = self.to_raw();
        let end = kind.header_len();
        // Whole words: a reader that loads them soon would wait until smaller stores have merged.
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
            | Message::More
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
            Message::Use { messages } => Raw { aux: messages, ..none },
            Message::Eager { len } => Raw { len, ..none },
            Message::Rts { msg, total } => Raw { w16: msg, w24: total, ..none },
            Message::PacketAdvert { msg, generation, addr, key, len } => {
                Raw { aux: key, w16: msg, w24: addr, w32: len, tail: generation, ..none }
            }
            Message::PacketData { len, total } => Raw { w16: len, w24: total, ..none },
        }
    }

    /// Parses a message. Returns the message, its piggyback, and the length of its header. Behind
    /// the header follow [`Message::inline_len`] bytes of data and nothing else, except the
    /// further receives of an ADVERT.
    #[cfg(any(test, feature = "internals"))]
    pub fn parse(bytes: &[u8]) -> Result<(Message, Piggyback, usize), MessageError> {
        Message::parse_prefix(bytes, bytes.len())
    }

    /// As [`Message::parse`], for a message of `len` bytes that begins with `bytes`: at least
    /// [`MAX_HEADER`] bytes, if it is that long. Memory that an RNIC writes is copied before it is
    /// interpreted, and the data need not be.
    pub fn parse_prefix(
        bytes: &[u8],
        len: usize,
    ) -> Result<(Message, Piggyback, usize), MessageError> {
        match Message::parse_data(bytes, len) {
            Some((message, pb)) => Ok((message, pb, COMMON_HEADER)),
            None => Message::parse_any(bytes, len),
        }
    }

    /// Fast path for DATA and EAGER, which most messages are: they use none of the other fields.
    /// None: the message is of another kind, or has a fault.
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
    /// Refuses bits that the sides have not agreed on, and impossible buffers.
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
                | K::Use
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
            MessageKind::More => Message::More,
            MessageKind::Use => Message::Use { messages: self.aux },
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
