//! What client and server tell each other besides what is measured.
//!
//! Each frame is a length (4 bytes, big-endian) and that many bytes of JSON, on an EXS
//! stream socket of its own.

use std::fmt;

use exs::Socket;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cli::{Kind, Wait};

/// Longest frame.
const MAX_FRAME: usize = 4096;

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

/// What to tell the user.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An error, and what was tried.
pub(crate) trait During<T> {
    fn during(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> During<T> for Result<T, E> {
    fn during(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|e| Failure(format!("{what}: {e}")))
    }
}

pub(crate) fn send(socket: &Socket, frame: &impl Serialize) -> Result<(), Failure> {
    let body = serde_json::to_vec(frame).during("control message")?;
    let len = u32::try_from(body.len()).during("control message")?;
    let mut bytes = len.to_be_bytes().to_vec();
    bytes.extend(body);
    socket.blocking().send_all(&bytes).during("control connection")
}

/// The next frame; None at the end.
pub(crate) fn recv<T: DeserializeOwned>(socket: &Socket) -> Result<Option<T>, Failure> {
    let mut head = [0; 4];
    match socket.blocking().recv_exact(&mut head) {
        Err(exs::Error::EndOfStream { got: 0, .. }) => return Ok(None),
        other => other.during("control connection")?,
    }
    let len = usize::try_from(u32::from_be_bytes(head)).unwrap_or(usize::MAX);
    if len > MAX_FRAME {
        return Err(Failure("the other side does not speak exs-pingpong".to_owned()));
    }
    let mut body = vec![0; len];
    socket.blocking().recv_exact(&mut body).during("control connection")?;
    serde_json::from_slice(&body).during("control message").map(Some)
}
