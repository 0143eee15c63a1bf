//! Link groups: one TCP connection that carries the byte streams of many links.
//!
//! ```text
//! Hello and its answer, once in each direction:
//!  0                                16        18        20        24        28        32        40
//! +--------------------------------+---------+---------+---------+---------+---------+---------+
//! | "EXS Group Hello " or "..Answ.." | version | flags   | window  | streams | groups  | token   |
//! +--------------------------------+---------+---------+---------+---------+---------+---------+
//! version: 2      flags: 1: the streams are brief; the other bits are 0      window: bytes that may be under way to the sender of this frame
//! on a stream      streams: streams that it takes at a time; 0 in an answer: none, for now
//! groups: in an answer, the groups among which the other end may spread its streams; 0: one
//! token: in an answer, the name of the group for requests to move; 0: no stream can move
//!
//! Request to move, the first bytes of the TCP connection to which a stream is to move:
//!  0                                16        18        20        24                  32        40
//! +--------------------------------+---------+---------+---------+-------------------+---------+
//! | "EXS Group Stream"               | version | flags   | stream  | 0                 | token   |
//! +--------------------------------+---------+---------+---------+-------------------+---------+
//!
//! Frames, after the hello:
//!  0               4       5                   8
//! +---------------+-------+-------------------+------------------+
//! | stream        | kind  | length            | payload ...      |
//! +---------------+-------+-------------------+------------------+
//! kind 1 OPEN    length 4    begins a stream: only from the side that sent the hello. Two bytes: the
//!                            port that the link at that end reports as its own; two bytes: 0
//!      2 DATA    bytes of the stream, at most 65,536
//!      3 WINDOW  length 4    the number of bytes that may be under way beyond the others
//!      4 FIN     length 0    no more DATA from this side
//!      5 RESET   length 4    the stream is over: a reason
//!      6 MOVED   length 0    no more DATA from this side here: the bytes of the stream go on on the
//!                            TCP connection that has asked for it
//! ```
//!
//! All numbers are big endian. A hello differs from an MPA request in its first byte, and is longer
//! than the fixed part of one, so an end that knows MPA only refuses it at once.

/// Bytes of a hello, and of a request to move.
pub const HELLO_LEN: usize = 40;
/// Bytes of a frame's head.
pub const HEAD_LEN: usize = 8;
/// The longest payload of a DATA frame.
pub const MAX_DATA: usize = 64 << 10;
/// The version of the format.
pub const VERSION: u16 = 2;
/// The first byte of a hello and of a request to move, which no MPA frame has.
pub const FIRST_BYTE: u8 = KEY_HELLO[0];
/// Bytes of the payload of OPEN, WINDOW and RESET.
pub const WORD: usize = 4;

const KEY_HELLO: &[u8; 16] = b"EXS Group Hello ";
const KEY_ANSWER: &[u8; 16] = b"EXS Group Answer";
const KEY_MOVE: &[u8; 16] = b"EXS Group Stream";

/// In the low byte of the flags: the streams are brief.
const FLAG_BRIEF: u8 = 1;

/// The smallest window that a hello may name: a window must hold the longest start-up frame.
pub const LEAST_WINDOW: u32 = 4 << 10;

/// The reason why bytes are no frame of a link group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupWireError {
    /// The first 16 bytes are not the expected key.
    #[error("not a hello of a link group")]
    Key,
    /// The peer has another version.
    #[error("version {0} of link groups; {VERSION} is known here")]
    Version(u16),
    /// The window of the hello is too small.
    #[error("a window of {0} bytes for a stream; the least is {LEAST_WINDOW}")]
    Window(u32),
    /// There is no such kind of frame.
    #[error("frame of kind {0} in a link group")]
    Kind(u8),
    /// The length does not fit the kind.
    #[error("{kind:?} frame of {len} bytes in a link group")]
    Length {
        /// The kind.
        kind: GroupFrameKind,
        /// Bytes that the frame announces.
        len: u32,
    },
}

/// The connections that a group is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GroupKind {
    /// Many at a time.
    #[default]
    Many,
    /// Those that end soon. One that lives on leaves the group.
    Brief,
}

/// The first frame of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloRepr {
    /// It answers a hello.
    pub answer: bool,
    /// The connections that the group is for. The answer repeats it.
    pub kind: GroupKind,
    /// Bytes that may be under way to its sender on each stream.
    pub window: u32,
    /// Streams that its sender takes at a time. 0 in an answer: none, for now.
    pub streams: u32,
    /// In an answer, the groups among which the other end may spread its streams: each may come to
    /// another thread of the sender. 0 counts as 1.
    pub groups: u32,
    /// In an answer, the name of the group for requests to move. 0: no stream can move.
    pub token: u64,
}

/// Checks the key and the version.
fn check_head(bytes: &[u8; HELLO_LEN], key: &[u8; 16]) -> Result<(), GroupWireError> {
    if bytes[..16] != key[..] {
        return Err(GroupWireError::Key);
    }
    match u16::from_be_bytes([bytes[16], bytes[17]]) {
        VERSION => Ok(()),
        version => Err(GroupWireError::Version(version)),
    }
}

/// What a hello and a request to move have in common.
fn emit_frame(key: &[u8; 16], token: u64) -> [u8; HELLO_LEN] {
    let mut out = [0; HELLO_LEN];
    out[..16].copy_from_slice(key);
    out[16..18].copy_from_slice(&VERSION.to_be_bytes());
    out[32..].copy_from_slice(&token.to_be_bytes());
    out
}

/// The word at this place.
fn word_at(bytes: &[u8; HELLO_LEN], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The token, which ends a hello and a request to move.
fn token_of(bytes: &[u8; HELLO_LEN]) -> u64 {
    u64::from(word_at(bytes, 32)) << 32 | u64::from(word_at(bytes, 36))
}

impl HelloRepr {
    /// The hello of a side that opens a group of this kind.
    #[must_use]
    pub fn of_dialer(kind: GroupKind, window: u32, streams: u32) -> HelloRepr {
        HelloRepr { answer: false, kind, window, streams, groups: 0, token: 0 }
    }

    /// Reads a hello, or the answer to one.
    ///
    /// # Errors
    /// The bytes are something else, or of another version.
    pub fn parse(bytes: &[u8; HELLO_LEN], answer: bool) -> Result<HelloRepr, GroupWireError> {
        check_head(bytes, if answer { KEY_ANSWER } else { KEY_HELLO })?;
        let (window, streams, groups) =
            (word_at(bytes, 20), word_at(bytes, 24), word_at(bytes, 28));
        if window < LEAST_WINDOW {
            return Err(GroupWireError::Window(window));
        }
        let kind = if bytes[19] & FLAG_BRIEF != 0 { GroupKind::Brief } else { GroupKind::Many };
        Ok(HelloRepr { answer, kind, window, streams, groups, token: token_of(bytes) })
    }

    /// Writes it.
    pub fn emit(&self) -> [u8; HELLO_LEN] {
        let mut out = emit_frame(if self.answer { KEY_ANSWER } else { KEY_HELLO }, self.token);
        out[19] = if self.kind == GroupKind::Brief { FLAG_BRIEF } else { 0 };
        out[20..24].copy_from_slice(&self.window.to_be_bytes());
        out[24..28].copy_from_slice(&self.streams.to_be_bytes());
        out[28..32].copy_from_slice(&self.groups.to_be_bytes());
        out
    }
}

/// The request that a stream may move to the TCP connection which begins with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveRepr {
    /// The stream.
    pub stream: u32,
    /// The name of its group.
    pub token: u64,
}

impl MoveRepr {
    /// Writes it.
    pub fn emit(&self) -> [u8; HELLO_LEN] {
        let mut out = emit_frame(KEY_MOVE, self.token);
        out[20..24].copy_from_slice(&self.stream.to_be_bytes());
        out
    }
}

/// The first bytes of a TCP connection that is no link of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupGreeting {
    /// It is to carry a group.
    Hello(HelloRepr),
    /// A stream of a group is to move to it.
    Move(MoveRepr),
}

impl GroupGreeting {
    /// Reads it.
    ///
    /// # Errors
    /// The bytes are something else, or of another version.
    pub fn parse(bytes: &[u8; HELLO_LEN]) -> Result<GroupGreeting, GroupWireError> {
        match check_head(bytes, KEY_MOVE) {
            Ok(()) => {
                let (stream, token) = (word_at(bytes, 20), token_of(bytes));
                Ok(GroupGreeting::Move(MoveRepr { stream, token }))
            }
            Err(GroupWireError::Key) => HelloRepr::parse(bytes, false).map(GroupGreeting::Hello),
            Err(e) => Err(e),
        }
    }

    /// Reads it from what has come so far. None: more must come. Another version is seen before its
    /// last byte has come, as its frames may be shorter.
    pub fn parse_begun(bytes: &[u8]) -> Option<Result<GroupGreeting, GroupWireError>> {
        let Some(whole) = bytes.first_chunk::<HELLO_LEN>() else {
            let version = bytes.get(16..18)?.iter().fold(0, |n, byte| n << 8 | u16::from(*byte));
            return (version != VERSION).then_some(Err(GroupWireError::Version(version)));
        };
        // Nothing may follow before the answer.
        let alone = bytes.len() == HELLO_LEN;
        Some(if alone { GroupGreeting::parse(whole) } else { Err(GroupWireError::Key) })
    }
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupFrameKind {
    /// Begins a stream.
    Open,
    /// Bytes of a stream.
    Data,
    /// The peer may send more.
    Window,
    /// The end of a direction.
    Fin,
    /// The end of a stream, without order.
    Reset,
    /// The rest of a direction takes another TCP connection.
    Moved,
}

impl GroupFrameKind {
    fn of(byte: u8) -> Result<GroupFrameKind, GroupWireError> {
        Ok(match byte {
            1 => GroupFrameKind::Open,
            2 => GroupFrameKind::Data,
            3 => GroupFrameKind::Window,
            4 => GroupFrameKind::Fin,
            5 => GroupFrameKind::Reset,
            6 => GroupFrameKind::Moved,
            other => return Err(GroupWireError::Kind(other)),
        })
    }

    fn byte(self) -> u8 {
        match self {
            GroupFrameKind::Open => 1,
            GroupFrameKind::Data => 2,
            GroupFrameKind::Window => 3,
            GroupFrameKind::Fin => 4,
            GroupFrameKind::Reset => 5,
            GroupFrameKind::Moved => 6,
        }
    }

    /// True if a frame of this kind may have a payload of `len` bytes.
    fn takes(self, len: u32) -> bool {
        match self {
            GroupFrameKind::Fin | GroupFrameKind::Moved => len == 0,
            GroupFrameKind::Data => (1..=MAX_DATA).contains(&(len as usize)),
            GroupFrameKind::Open | GroupFrameKind::Window | GroupFrameKind::Reset => {
                len as usize == WORD
            }
        }
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupHead {
    /// The stream.
    pub stream: u32,
    /// The kind.
    pub kind: GroupFrameKind,
    /// Bytes of the payload that follows.
    pub len: u32,
}

impl GroupHead {
    /// Reads a head.
    ///
    /// # Errors
    /// The kind is unknown, or the length does not fit it.
    pub fn parse(bytes: &[u8; HEAD_LEN]) -> Result<GroupHead, GroupWireError> {
        let [s0, s1, s2, s3, kind, l0, l1, l2] = *bytes;
        let kind = GroupFrameKind::of(kind)?;
        let len = u32::from_be_bytes([0, l0, l1, l2]);
        if !kind.takes(len) {
            return Err(GroupWireError::Length { kind, len });
        }
        Ok(GroupHead { stream: u32::from_be_bytes([s0, s1, s2, s3]), kind, len })
    }

    /// Writes it. `len` must be below 2^24, as it is for each kind.
    pub fn emit(&self) -> [u8; HEAD_LEN] {
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        let [_, l0, l1, l2] = self.len.to_be_bytes();
        [s0, s1, s2, s3, self.kind.byte(), l0, l1, l2]
    }
}

/// Writes the payload of OPEN: the port that the link at the opening end reports as its own.
pub fn emit_port(port: u16) -> [u8; WORD] {
    let [p0, p1] = port.to_be_bytes();
    [p0, p1, 0, 0]
}

/// Reads the payload of OPEN.
pub fn parse_port(word: [u8; WORD]) -> u16 {
    let [p0, p1, ..] = word;
    u16::from_be_bytes([p0, p1])
}

/// Why a stream was reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetReason {
    /// Its link ended without order.
    Aborted,
    /// No listener takes it.
    Refused,
}

impl ResetReason {
    /// Reads a reason. One that is unknown counts as the general one.
    pub fn parse(word: [u8; WORD]) -> ResetReason {
        match u32::from_be_bytes(word) {
            2 => ResetReason::Refused,
            _ => ResetReason::Aborted,
        }
    }

    /// Writes it.
    pub fn emit(self) -> [u8; WORD] {
        let number: u32 = match self {
            ResetReason::Aborted => 1,
            ResetReason::Refused => 2,
        };
        number.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hello_has_these_bytes() {
        let (window, streams, groups) = (0x0004_0000, 0x0001_0000, 0x0203);
        let token = 0x0102_0304_0506_0708;
        let hello =
            HelloRepr { answer: false, kind: GroupKind::Many, window, streams, groups, token };
        let mut bytes = *b"EXS Group Hello \0\x02\0\0\0\x04\0\0\0\x01\0\0\0\0\x02\x03\
            \x01\x02\x03\x04\x05\x06\x07\x08";
        assert_eq!(hello.emit(), bytes);
        assert_eq!(HelloRepr::parse(&bytes, false), Ok(hello));
        assert_eq!(HelloRepr::parse(&bytes, true), Err(GroupWireError::Key));
        let brief = HelloRepr { kind: GroupKind::Brief, ..hello };
        bytes[19] = 1;
        assert_eq!(brief.emit(), bytes);
        assert_eq!(HelloRepr::parse(&bytes, false), Ok(brief));
        (bytes[18], bytes[19]) = (0xFF, 0xFE);
        assert_eq!(HelloRepr::parse(&bytes, false), Ok(hello), "other bits say nothing yet");
        (bytes[18], bytes[19]) = (0, 0);
        let answer = HelloRepr { answer: true, ..hello };
        assert_eq!(&answer.emit()[..16], b"EXS Group Answer");
        assert_eq!(HelloRepr::parse(&answer.emit(), true), Ok(answer));
        assert_eq!(GroupGreeting::parse(&bytes), Ok(GroupGreeting::Hello(hello)));
        assert_eq!(GroupGreeting::parse_begun(&bytes), Some(Ok(GroupGreeting::Hello(hello))));
        assert_eq!(GroupGreeting::parse_begun(&bytes[..HELLO_LEN - 1]), None);
        let more = [&bytes[..], &[0]].concat();
        assert_eq!(GroupGreeting::parse_begun(&more), Some(Err(GroupWireError::Key)));
        bytes[17] = 1;
        assert_eq!(GroupGreeting::parse_begun(&bytes[..17]), None);
        let old = Some(Err(GroupWireError::Version(1)));
        assert_eq!(GroupGreeting::parse_begun(&bytes[..18]), old);
        assert_eq!(HelloRepr::parse(&bytes, false), Err(GroupWireError::Version(1)));
        let narrow = HelloRepr { window: LEAST_WINDOW - 1, ..hello };
        let refused = Err(GroupWireError::Window(LEAST_WINDOW - 1));
        assert_eq!(HelloRepr::parse(&narrow.emit(), false), refused);
    }

    #[test]
    fn the_request_to_move_has_these_bytes() {
        let request = MoveRepr { stream: 0x0102_0304, token: 0x0506_0708_090A_0B0C };
        let mut bytes = *b"EXS Group Stream\0\x02\0\0\x01\x02\x03\x04\0\0\0\0\0\0\0\0\
            \x05\x06\x07\x08\x09\x0A\x0B\x0C";
        assert_eq!(request.emit(), bytes);
        assert_eq!(bytes[0], FIRST_BYTE);
        assert_eq!(GroupGreeting::parse(&bytes), Ok(GroupGreeting::Move(request)));
        bytes[17] = 3;
        assert_eq!(GroupGreeting::parse(&bytes), Err(GroupWireError::Version(3)));
        bytes[15] = b'?';
        assert_eq!(GroupGreeting::parse(&bytes), Err(GroupWireError::Key));
    }

    #[test]
    fn an_end_that_knows_mpa_only_refuses_a_hello() {
        use crate::wire::mpa::{FRAME_LEN, FrameKind, FrameRepr};
        let hello = HelloRepr::of_dialer(GroupKind::Many, 1 << 18, 1).emit();
        let head = hello.first_chunk::<FRAME_LEN>().unwrap();
        assert!(FrameRepr::parse(head, FrameKind::Request).is_err());
        let request = FrameRepr {
            kind: FrameKind::Request,
            markers: false,
            crc: false,
            reject: false,
            enhanced: false,
            large: false,
            revision: 1,
            private_len: 0,
        };
        assert_ne!(request.emit()[0], FIRST_BYTE);
    }

    #[test]
    fn each_frame_has_these_bytes() {
        let kinds = [
            (GroupFrameKind::Open, 4, [0, 0, 0, 7, 1, 0, 0, 4]),
            (GroupFrameKind::Data, 65_536, [0, 0, 0, 7, 2, 1, 0, 0]),
            (GroupFrameKind::Data, 1, [0, 0, 0, 7, 2, 0, 0, 1]),
            (GroupFrameKind::Window, 4, [0, 0, 0, 7, 3, 0, 0, 4]),
            (GroupFrameKind::Fin, 0, [0, 0, 0, 7, 4, 0, 0, 0]),
            (GroupFrameKind::Reset, 4, [0, 0, 0, 7, 5, 0, 0, 4]),
            (GroupFrameKind::Moved, 0, [0, 0, 0, 7, 6, 0, 0, 0]),
        ];
        for (kind, len, bytes) in kinds {
            let head = GroupHead { stream: 7, kind, len };
            assert_eq!(head.emit(), bytes, "{kind:?}");
            assert_eq!(GroupHead::parse(&bytes), Ok(head));
        }
    }

    #[test]
    fn bad_frames_are_refused() {
        for kind in [0, 7, 255] {
            let bytes = [0, 0, 0, 1, kind, 0, 0, 0];
            assert_eq!(GroupHead::parse(&bytes), Err(GroupWireError::Kind(kind)));
        }
        use GroupFrameKind::{Data, Fin, Moved, Open, Reset, Window};
        for (kind, len) in [
            (Open, 0),
            (Data, 0),
            (Data, 65_537),
            (Window, 3),
            (Window, 5),
            (Fin, 1),
            (Reset, 0),
            (Moved, 1),
        ] {
            let bytes = GroupHead { stream: 1, kind, len }.emit();
            assert_eq!(GroupHead::parse(&bytes), Err(GroupWireError::Length { kind, len }));
        }
    }

    #[test]
    fn the_port_of_open_comes_first() {
        assert_eq!(emit_port(0xC001), [0xC0, 1, 0, 0]);
        assert_eq!(parse_port([0xC0, 1, 0, 0]), 0xC001);
        assert_eq!(parse_port([0xC0, 1, 9, 9]), 0xC001, "the rest is for later versions");
    }

    #[test]
    fn reasons_are_read_back_and_unknown_ones_are_general() {
        for reason in [ResetReason::Aborted, ResetReason::Refused] {
            assert_eq!(ResetReason::parse(reason.emit()), reason);
        }
        assert_eq!(ResetReason::Refused.emit(), [0, 0, 0, 2]);
        assert_eq!(ResetReason::parse([9; 4]), ResetReason::Aborted);
    }
}
