//! The kinds of messages, and what can be wrong with one.

macro_rules! kinds {
    ($($(#[$m:meta])* $name:ident = $code:literal, $header:literal;)*) => {
        /// The kinds of messages, by their code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum MessageKind { $($(#[$m])* $name = $code,)* }

        impl MessageKind {
            /// Every kind.
            pub const ALL: &[MessageKind] = &[$(MessageKind::$name,)*];

            /// From the code on the wire.
            pub const fn from_code(code: u8) -> Option<MessageKind> {
                match code { $($code => Some(MessageKind::$name),)* _ => None }
            }

            /// Bytes of its header.
            pub const fn header_len(self) -> usize {
                match self { $(MessageKind::$name => $header,)* }
            }
        }
    };
}

kinds! {
    /// READY.
    Ready = 1, 16;
    /// CREDIT.
    Credit = 2, 16;
    /// PING.
    Ping = 3, 16;
    /// PONG.
    Pong = 4, 16;
    /// CLOSE.
    Close = 5, 16;
    /// CLOSE_ACK.
    CloseAck = 6, 16;
    /// ABORT.
    Abort = 7, 16;
    /// FIN.
    Fin = 8, 16;
    /// CONFIRM.
    Confirm = 9, 16;
    /// CONFIRMED.
    Confirmed = 10, 16;
    /// DATA.
    Data = 16, 16;
    /// ADVERT.
    Advert = 17, 36;
    /// RING_REQ.
    RingReq = 18, 16;
    /// RING.
    Ring = 19, 24;
    /// RING_RELEASE.
    RingRelease = 20, 16;
    /// WITHDRAW.
    Withdraw = 21, 16;
    /// WITHDRAWN.
    Withdrawn = 22, 24;
    /// EAGER.
    Eager = 32, 16;
    /// RTS.
    Rts = 33, 32;
    /// PACKET_ADVERT.
    PacketAdvert = 34, 44;
    /// PACKET_DATA.
    PacketData = 35, 32;
}

/// Bytes that are no message. The connection must be ended: the peer is broken,
/// or the two sides do not mean the same protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// Not even a header.
    #[error("a message of {len} bytes, but its header alone takes {need}")]
    Truncated {
        /// Bytes there.
        len: usize,
        /// Bytes of the header.
        need: usize,
    },
    /// A kind that this version does not have.
    #[error("a message of the unknown kind {kind}")]
    UnknownKind {
        /// The kind.
        kind: u8,
    },
    /// A flag that this kind does not have.
    #[error("a {kind:?} message with the unknown flags {flags:#04x}")]
    UnknownFlags {
        /// The kind.
        kind: MessageKind,
        /// Its flags.
        flags: u8,
    },
    /// A field that this kind does not use is not 0.
    #[error("a {kind:?} message with {value:#x} in a field that must be 0")]
    NotZero {
        /// The kind.
        kind: MessageKind,
        /// What the field holds.
        value: u32,
    },
    /// The message is longer or shorter than its header says.
    #[error("a {kind:?} message of {len} bytes, but its header says {expected}")]
    Length {
        /// The kind.
        kind: MessageKind,
        /// Bytes there.
        len: usize,
        /// Header and data.
        expected: u64,
    },
    /// A buffer that does not end within the address space.
    #[error("a buffer of {len} bytes at {addr:#x} is advertised, which wraps")]
    Wraps {
        /// Its address.
        addr: u64,
        /// Its length.
        len: u64,
    },
}
