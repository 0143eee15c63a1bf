//! Control messages of client and server, beside the connection that is measured.
//!
//! Frames of JSON on an EXS stream socket of its own.

use exs::Socket;
use exs_tools::args::{Kind, Wait};
use exs_tools::fail::Failure;
use exs_tools::frame;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What the client asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Listen for one link; the answer is `Opened`.
    Open(Open),
    /// Take part in a measurement; the answers are `Ready`, then `Done`.
    Run { link: usize, job: Job },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Open {
    Exs { kind: Kind, wait: Wait, crc: bool },
    Tcp { spin: bool },
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) what: What,
    pub(crate) size: usize,
    pub(crate) iters: u32,
    /// Messages in flight (bandwidth).
    pub(crate) depth: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum What {
    /// The server sends each message back.
    Latency,
    /// The server takes all messages, and confirms the last with one byte.
    Bandwidth,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Opened { port: u16 },
    Ready,
    Done,
    Failed { why: String },
}

/// Sends one frame.
pub(crate) fn send(socket: &Socket, message: &impl Serialize) -> Result<(), Failure> {
    frame::send(&mut socket.blocking(), message)
}

/// The next frame; None at the end.
pub(crate) fn recv<T: DeserializeOwned>(socket: &Socket) -> Result<Option<T>, Failure> {
    frame::recv(&mut socket.blocking(), "exs-pingpong")
}
