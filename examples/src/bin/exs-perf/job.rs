//! One run, as the client asks the server for it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use exs::{Options, Transport};
use exs_tools::args::{Kind, Wait};
use exs_tools::fail::Failure;
use exs_tools::road;
use serde::{Deserialize, Serialize};

use crate::cli::MAX_SIZE;
use crate::exs_flow::AHEAD;

/// Bytes in flight of all connections together, each way.
const MAX_IN_FLIGHT: usize = 256 << 20;
/// What one job may have each side set aside.
const MAX_MEMORY: usize = 4 << 30;
/// Bytes, and messages, of each connection before the clock starts.
const WARM_BYTES: usize = 32 << 20;
const WARM_MESSAGES: usize = 2000;
/// The least for each connection.
const WARM_EACH: usize = 3 << 19;
const WARM_MESSAGES_EACH: usize = 64;

const PATIENCE: Duration = Duration::from_secs(30);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Test {
    /// The client sends, the server receives.
    Bw,
    /// Both send and receive.
    Bibw,
    /// The server sends each message back.
    Lat,
    /// As `Bw`, of small messages.
    Rate,
    /// Nothing is sent.
    Idle,
}

impl Test {
    /// Bytes of a message, if the user does not say.
    pub(crate) fn usual_size(self) -> usize {
        if matches!(self, Test::Bw | Test::Bibw) { 1 << 20 } else { 64 }
    }

    /// Messages in flight, if the user does not say.
    pub(crate) fn usual_depth(self) -> u32 {
        if self == Test::Rate { 64 } else { 8 }
    }
}

/// What carries the bytes. As text: a transport of EXS, or `tcp` or `unix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Way {
    Exs(Transport),
    Tcp,
    Unix,
}

impl Way {
    /// Plain kernel sockets.
    pub(crate) fn is_plain(self) -> bool {
        !matches!(self, Way::Exs(_))
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(name: &str) -> Result<Way, String> {
        match name {
            "tcp" => Ok(Way::Tcp),
            "unix" => Ok(Way::Unix),
            other => other.parse().map(Way::Exs).map_err(|_| {
                format!(
                    "this exs-perf knows no transport `{other}`: {}, tcp, unix",
                    road::NAMES.join(", ")
                )
            }),
        }
    }
}

impl TryFrom<String> for Way {
    type Error = String;

    fn try_from(name: String) -> Result<Way, String> {
        name.parse()
    }
}

impl From<Way> for String {
    fn from(way: Way) -> String {
        way.to_string()
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Exs(transport) => transport.fmt(f),
            Way::Tcp => f.write_str("tcp"),
            Way::Unix => f.write_str("unix"),
        }
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) test: Test,
    pub(crate) way: Way,
    pub(crate) device: Option<String>,
    pub(crate) size: usize,
    pub(crate) depth: u32,
    pub(crate) connections: u32,
    pub(crate) threads: u32,
    pub(crate) wait: Wait,
    pub(crate) kind: Kind,
    pub(crate) crc: bool,
}

impl Job {
    /// The job for a command line without options.
    pub(crate) fn new(test: Test) -> Job {
        let defaults = Options::default();
        Job {
            test,
            way: Way::Exs(defaults.transport),
            device: defaults.device,
            size: test.usual_size(),
            depth: test.usual_depth(),
            connections: 1,
            threads: 1,
            wait: Wait::Adaptive,
            kind: Kind::Stream,
            crc: false,
        }
    }

    /// Lowers the depth until the messages in flight fit a reasonable amount of memory.
    pub(crate) fn fit(mut self) -> Job {
        let each = self.size.saturating_mul(self.connections as usize).max(1);
        let most = u32::try_from(MAX_IN_FLIGHT / each).unwrap_or(u32::MAX).max(1);
        self.depth = if self.test == Test::Lat { 1 } else { self.depth.min(most) };
        self
    }

    /// How long nothing may move before the other side is given up: half a minute, and time
    /// for what is in flight by a slow network (1 MB/s).
    pub(crate) fn patience(&self) -> Duration {
        let flying = (self.depth as usize).saturating_mul(self.size) as u64;
        PATIENCE + Duration::from_micros(flying)
    }

    /// Refuses what no side should take on.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        // Both ways, or the four buffers of an echo.
        let buffers = (self.depth as usize).saturating_mul(1 + AHEAD).max(4);
        let memory = self.size.saturating_mul(buffers).saturating_mul(self.connections as usize);
        let sane = (1..=MAX_SIZE).contains(&self.size)
            && (1..=1024).contains(&self.depth)
            && (1..=100_000).contains(&self.connections)
            && (1..=256).contains(&self.threads);
        if !sane || (self.test != Test::Idle && memory > MAX_MEMORY) {
            return Err(Failure(format!(
                "{} connections with messages of {} bytes, {} in flight, would take {} MiB of memory, \
                 {} are the limit: use a smaller size, or fewer connections",
                self.connections,
                self.size,
                self.depth,
                memory >> 20,
                MAX_MEMORY >> 20
            )));
        }
        Ok(())
    }

    /// The client sends in a stream.
    pub(crate) fn client_sends(&self) -> bool {
        matches!(self.test, Test::Bw | Test::Rate | Test::Bibw)
    }

    /// The server does.
    pub(crate) fn server_sends(&self) -> bool {
        self.test == Test::Bibw
    }

    /// Messages of each connection before the clock starts. Memory that is used for the first
    /// time costs a page fault: each connection goes once around its ring, and its buffers.
    pub(crate) fn warm(&self) -> u64 {
        let all = (WARM_BYTES / self.size).clamp(4, WARM_MESSAGES) / self.connections as usize;
        let each = (WARM_EACH / self.size).clamp(2, WARM_MESSAGES_EACH);
        all.max(each) as u64
    }

    /// The options of EXS sockets.
    pub(crate) fn options(&self) -> Options {
        let mut options = Options::default();
        if let Way::Exs(transport) = self.way {
            options.transport = transport;
        }
        options.device.clone_from(&self.device);
        options.crc |= self.crc;
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_read_back() {
        for name in road::NAMES.into_iter().chain(["tcp", "unix"]) {
            assert_eq!(name.parse::<Way>().unwrap().to_string(), name);
        }
        let job = Job { way: Way::Exs(Transport::Soft), ..Job::new(Test::Bibw) };
        let text = serde_json::to_string(&job).unwrap();
        assert!(text.contains("\"soft\"") && text.contains("\"bibw\""), "{text}");
        assert_eq!(serde_json::from_str::<Job>(&text).unwrap(), job);
    }

    #[test]
    fn memory_is_bounded() {
        let much = |size, connections| Job { size, connections, ..Job::new(Test::Bw) }.fit();
        assert_eq!(much(1 << 20, 1).depth, 8);
        assert_eq!(much(100 << 20, 1).depth, 2);
        assert_eq!(much(1 << 30, 1).depth, 1);
        assert_eq!(much(64 << 10, 1000).depth, 4);
        assert!(much(100 << 20, 1).check().is_ok());
        let error = much(1 << 20, 20_000).check().unwrap_err().to_string();
        assert!(error.contains("80000 MiB"), "{error}");
        assert!(Job { size: 0, ..Job::new(Test::Bw) }.check().is_err());
        assert!(Job { depth: 0, ..Job::new(Test::Bw) }.check().is_err());
        assert!(Job { size: usize::MAX, ..Job::new(Test::Bw) }.check().is_err());
    }
}
