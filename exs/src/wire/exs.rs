//! EXS messages: the hello in the private data, and what travels in SENDs.

/// What one side says of itself in the private data of connect and accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Protocol versions spoken: first and last.
    pub versions: (u8, u8),
    /// Stream or seqpacket.
    pub kind: SocketKind,
    /// Optional features, a bit each.
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
}
