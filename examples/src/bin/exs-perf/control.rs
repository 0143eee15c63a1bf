//! What client and server tell each other: frames of JSON over plain TCP.
//!
//! The greeting comes first and names the program, so that another program on that port is
//! recognised before a job is sent to it.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use exs_tools::address;
use exs_tools::fail::{During, Failure};
use exs_tools::frame;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::job::Job;
use crate::usage::Usage;

const PROGRAM: &str = "exs-perf";
/// The version of the frames. It is raised with each change of their meaning.
const PROTOCOL: u32 = 1;
/// An exs-perf server greets at once.
const GREETING_LIMIT: Duration = Duration::from_secs(5);
/// What comes later may take this long on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The program that speaks, and its version.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Greeting {
    program: String,
    protocol: u32,
    version: String,
}

/// What the client says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Open connections for this; the answers are `Opened`, then `Warm`.
    Run(Job),
    /// Start the clock: `Going`, and `Done` at the end.
    Go,
}

/// Where the server waits for the connections of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Place {
    /// At the address of the control connection.
    Port(u16),
    /// In the abstract namespace of UNIX-domain sockets.
    Abstract(String),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Opened(Place),
    /// All connections are there, and warm.
    Warm,
    Going,
    Done(Usage),
    /// Memory (bytes) before and after all connections but the first.
    Idle {
        before: u64,
        after: u64,
    },
    Failed {
        why: String,
    },
}

/// The control connection.
pub(crate) struct Control(TcpStream);

impl Control {
    /// Calls a server.
    pub(crate) fn call(server: &str) -> Result<Control, Failure> {
        let stream = address::call_tcp(server)
            .map_err(|e| Failure(format!("no exs-perf server at {server}: {e}")))?;
        let addr = stream.peer_addr().during("peer address")?;
        Control::greet(stream).map_err(|e| {
            Failure(format!("what listens at {addr} is no exs-perf server of this version: {e}"))
        })
    }

    /// Greets, and checks the peer's greeting.
    pub(crate) fn greet(stream: TcpStream) -> Result<Control, Failure> {
        stream.set_nodelay(true).during("TCP_NODELAY")?;
        let mut control = Control(stream);
        let version = exs::VERSION.to_owned();
        control.send(&Greeting { program: PROGRAM.to_owned(), protocol: PROTOCOL, version })?;
        control.limit(Some(GREETING_LIMIT))?;
        let other: Greeting = control.recv()?.ok_or_else(|| {
            Failure(
                "it closed the connection without a greeting (or serves another client)".to_owned(),
            )
        })?;
        if other.program != PROGRAM || other.protocol != PROTOCOL {
            return Err(Failure(format!(
                "it is {} {}, protocol {}, and this is {PROGRAM} {}, protocol {PROTOCOL}: use the same \
                 version on both sides",
                other.program,
                other.version,
                other.protocol,
                exs::VERSION
            )));
        }
        control.limit(Some(LIMIT))?;
        Ok(control)
    }

    /// How long a frame may take to come.
    pub(crate) fn limit(&self, limit: Option<Duration>) -> Result<(), Failure> {
        self.0.set_read_timeout(limit).during("control connection")
    }

    pub(crate) fn send(&mut self, message: &impl Serialize) -> Result<(), Failure> {
        frame::send(&mut self.0, message)
    }

    /// The next frame; None at the end.
    pub(crate) fn recv<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Failure> {
        frame::recv(&mut self.0, PROGRAM)
    }

    /// Waits for the server's next reply. A failure of the server is an error here.
    pub(crate) fn reply(&mut self) -> Result<Reply, Failure> {
        match self.recv()? {
            Some(Reply::Failed { why }) => Err(Failure(format!("the server: {why}"))),
            Some(reply) => Ok(reply),
            None => Err(Failure("the server has ended".to_owned())),
        }
    }

    /// The server's reason for a failure, if it has one: it says more than the error of a broken
    /// connection.
    pub(crate) fn blame(&mut self, ours: Failure) -> Failure {
        let asked = self.limit(Some(Duration::from_secs(1))).and_then(|()| self.recv());
        match asked {
            Ok(Some(Reply::Failed { why })) => Failure(format!("{ours} (the server: {why})")),
            _ => ours,
        }
    }

    /// True if the peer is gone. Call it only while the peer has nothing to send.
    pub(crate) fn is_over(&self) -> bool {
        let asked = self.0.set_nonblocking(true).and_then(|()| self.0.peek(&mut [0]));
        let restored = self.0.set_nonblocking(false);
        restored.is_err()
            || match asked {
                Ok(n) => n == 0,
                Err(e) => e.kind() != std::io::ErrorKind::WouldBlock,
            }
    }

    /// The addresses of both ends: ours, theirs.
    pub(crate) fn addrs(&self) -> Result<(SocketAddr, SocketAddr), Failure> {
        let ours = self.0.local_addr().during("local address")?;
        Ok((ours, self.0.peer_addr().during("peer address")?))
    }
}

pub(crate) fn unexpected(reply: &Reply) -> Failure {
    Failure(format!("the server answered {reply:?} out of turn"))
}
