//! The kinds of messages, and the faults that a message can have.

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

            /// Returns the kind of a code on the wire. None if this version does not know it.
            pub const fn from_code(code: u8) -> Option<MessageKind> {
                match code { $($code => Some(MessageKind::$name),)* _ => None }
            }

            /// Returns the length of its header in bytes.
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
    /// MORE.
    More = 11, 16;
    /// USE.
    Use = 12, 16;
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

/// The fault of bytes that are no message. The connection must end: the peer is broken, or the
/// two sides do not speak the same protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The bytes end inside the header.
    #[error("a message of {len} bytes, but its header alone takes {need}")]
    Truncated {
        /// Number of bytes that are there.
        len: usize,
        /// Number of bytes in the header.
        need: usize,
    },
    /// This version does not have the kind.
    #[error("a message of the unknown kind {kind}")]
    UnknownKind {
        /// The kind.
        kind: u8,
    },
    /// The kind does not have the flag.
    #[error("a {kind:?} message with the unknown flags {flags:#04x}")]
    UnknownFlags {
        /// The kind.
        kind: MessageKind,
        /// The flags of the message.
        flags: u8,
    },
    /// A field that this kind does not use is not 0.
    #[error("a {kind:?} message with {value:#x} in a field that must be 0")]
    NotZero {
        /// The kind.
        kind: MessageKind,
        /// The value of the field.
        value: u32,
    },
    /// The message is longer or shorter than its header says.
    #[error("a {kind:?} message of {len} bytes, but its header says {expected}")]
    Length {
        /// The kind.
        kind: MessageKind,
        /// Number of bytes that are there.
        len: usize,
        /// Number of bytes that the header announces, itself included.
        expected: u64,
    },
    /// A buffer goes beyond the end of the address space.
    #[error("a buffer of {len} bytes at {addr:#x} is advertised, which wraps")]
    Wraps {
        /// Its address.
        addr: u64,
        /// Its length in bytes.
        len: u64,
    },
}
