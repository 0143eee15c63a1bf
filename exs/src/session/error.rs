//! Errors of operations and of connections.

use std::time::Duration;

use crate::mem::Key;
use crate::packet::PacketViolation;
use crate::rnic::{DisconnectCause, RnicError};
use crate::stream::StreamViolation;
use crate::wire::exs::{HelloError, MessageError, Refusal as RefusedBecause};

/// What the peer did against the protocol. The connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Stream.
    #[error(transparent)]
    Stream(#[from] StreamViolation),
    /// Seqpacket.
    #[error(transparent)]
    Packet(#[from] PacketViolation),
    /// The bytes are no EXS message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// This kind of socket, or this state, does not allow the message.
    #[error("unexpected {0}")]
    Unexpected(&'static str),
    /// Credits beyond the receives that the peer has.
    #[error("the peer returned {returned} credits, but only {used} are in use")]
    Credits {
        /// Returned.
        returned: u16,
        /// In use.
        used: u16,
    },
    /// More messages asked for than this side may ever have receives of the peer's.
    #[error("the peer asks for {messages} messages, but has {most} receives at most")]
    Use {
        /// Asked for.
        messages: u32,
        /// The peer's receives.
        most: u16,
    },
    /// Messages beyond the receives that this side has.
    #[error("the peer sent more messages than the {granted} receives that it may use")]
    Overrun {
        /// This side's receives.
        granted: u16,
    },
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// The program cancelled it, or closed the socket.
    #[error("cancelled")]
    Cancelled,
    /// It did not end within its time.
    #[error(
        "{what} did not end within {after:?}: the peer is slow, or waits for this side; raise the timeout if that is normal"
    )]
    TimedOut {
        /// "send", "receive", ...
        what: &'static str,
        /// The limit.
        after: Duration,
    },
    /// The program shut this direction down.
    #[error("this direction of the socket was shut down")]
    Shutdown,
    /// The socket was closed.
    #[error("this socket was closed: nothing more can be asked of it")]
    Closed,
    /// The peer closed the connection.
    #[error("the peer has closed the connection")]
    PeerClosed,
    /// The connection is gone.
    #[error("the connection was reset: {cause}")]
    Reset {
        /// As the RNIC reports it.
        cause: DisconnectCause,
    },
    /// This side gave the connection up.
    #[error("the connection was aborted")]
    Aborted,
    /// The peer's message says that it gives the connection up.
    #[error("the peer aborted the connection (code {code})")]
    PeerAborted {
        /// Its code.
        code: u32,
    },
    /// The peer does not answer.
    #[error(
        "the peer has been silent for {silent:?} although an answer is due: it, or the network, is down"
    )]
    Unreachable {
        /// How long.
        silent: Duration,
    },
    /// The peer refused a READ or WRITE.
    #[error(
        "the peer refused the access to key {rkey:#010x} at {raddr:#x}: it was revoked, or the range or right is not in it"
    )]
    RemoteAccess {
        /// The address.
        raddr: u64,
        /// The key.
        rkey: Key,
    },
    /// A message is longer than the peer takes.
    #[error("a message of {len} bytes is over the limit of {limit}: send it in parts")]
    TooLong {
        /// Its length.
        len: u64,
        /// The limit.
        limit: u64,
    },
    /// There is no connection yet.
    #[error("the socket is not connected")]
    NotConnected,
    /// This connection lacks what the operation needs.
    #[error("this connection has no {0}")]
    Unsupported(&'static str),
    /// The peer broke the protocol.
    #[error("the peer broke the EXS protocol: {0}")]
    Protocol(Violation),
    /// Local memory was refused, or there is none.
    #[error("local memory: {0}")]
    LocalMemory(RnicError),
    /// The RNIC refused a work request.
    #[error("the RNIC refused a work request: {0}")]
    Rnic(RnicError),
    /// The source file could not be read.
    #[error("cannot read the file to send: {}", std::io::Error::from_raw_os_error(*.errno))]
    FileRead {
        /// errno.
        errno: i32,
    },
    /// The source file is shorter than was asked to be sent.
    #[error("the file to send ended after {had} of {asked} bytes: it was cut off meanwhile")]
    FileTooShort {
        /// Bytes that it had.
        had: u64,
        /// Bytes asked for.
        asked: u64,
    },
}

impl From<Violation> for OpError {
    fn from(violation: Violation) -> OpError {
        OpError::Protocol(violation)
    }
}

impl OpError {
    /// The errno that stands for it at the C edge.
    pub fn errno(&self) -> i32 {
        match self {
            OpError::Cancelled => libc::ECANCELED,
            OpError::TimedOut { .. } => libc::ETIMEDOUT,
            OpError::Shutdown | OpError::PeerClosed => libc::EPIPE,
            OpError::Closed => libc::EBADF,
            OpError::Reset { cause } => match cause {
                DisconnectCause::Broken(errno) => *errno,
                DisconnectCause::DeviceRemoved => libc::ENODEV,
                // IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_RESP_TIMEOUT_ERR.
                DisconnectCause::Device(12 | 13 | 20) => libc::ETIMEDOUT,
                DisconnectCause::Device(_) => libc::EIO,
                DisconnectCause::Aborted => libc::ECONNABORTED,
                _ => libc::ECONNRESET,
            },
            OpError::Aborted => libc::ECONNABORTED,
            OpError::PeerAborted { .. } => libc::ECONNRESET,
            OpError::Unreachable { .. } => libc::ETIMEDOUT,
            OpError::RemoteAccess { .. } => libc::EACCES,
            OpError::TooLong { .. } => libc::EMSGSIZE,
            OpError::NotConnected => libc::ENOTCONN,
            OpError::Unsupported(_) => libc::EOPNOTSUPP,
            OpError::Protocol(_) => libc::EPROTO,
            OpError::LocalMemory(RnicError::QueueFull { .. }) => libc::EAGAIN,
            OpError::LocalMemory(_) => libc::ENOMEM,
            OpError::Rnic(_) => libc::EIO,
            OpError::FileRead { errno } => *errno,
            OpError::FileTooShort { .. } => libc::EIO,
        }
    }
}

/// Why two sides cannot make a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The private data are no hello that this version can use.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The two hellos do not go together.
    #[error("the two sides do not fit: {0}")]
    Mismatch(RefusedBecause),
    /// The peer said no.
    #[error("the peer refused the connection: {0}")]
    Refused(RefusedBecause),
    /// The peer said no and nothing else.
    #[error(
        "the peer refused the connection without a reason that EXS knows: is it an EXS listener?"
    )]
    RefusedSilently,
}

/// Why a connection request is turned down, and the private data to say so with.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// For this side's log.
    pub error: SessionError,
    /// For the peer.
    pub private_data: Vec<u8>,
}
