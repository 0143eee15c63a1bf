//! The command line.

use std::net::SocketAddr;

use clap::{Parser, ValueEnum};
use exs_tools::address;
use exs_tools::args::{self, Kind, Wait};
use exs_tools::road::Road;

const AFTER: &str = "\
Examples:
  exs-pingpong demo                              both ends on this machine, TCP beside it
  exs-pingpong --listen 0.0.0.0:7471             a server that other hosts reach
  exs-pingpong HOST:7471 --size 64 --mode lat    half round trip of 64 bytes
  exs-pingpong HOST:7471 --sweep                 1 byte to 4 MiB
  exs-pingpong HOST:7471 --compare tcp           EXS and plain TCP in turn, and the ratios

Latency is half of a round trip; each sample is one whole round of the loop, posting and
dequeuing included. Bandwidth counts from the first post until the receiver has confirmed
the last byte. Nothing is encrypted; a server serves every host that reaches it.";

/// Measure the latency and the bandwidth of EXS between two processes.
///
/// A client sends messages to a server and back, and prints how long half of a round trip takes and
/// how many bytes go through in a second: what ibv_rc_pingpong does for the verbs. With
/// `--compare tcp` plain TCP sockets are measured beside it, in turn.
#[derive(Debug, Parser)]
#[command(name = "exs-pingpong", version, max_term_width = 100, after_help = AFTER)]
pub(crate) struct Args {
    /// The server (HOST:PORT), or `demo` for both ends on this machine; without it,
    /// be the server
    #[arg(value_name = "ADDR:PORT")]
    pub(crate) server: Option<String>,
    /// Server, and demo: where to listen; port 0 picks a free one (demo always does)
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7471",
          value_parser = address::one)]
    pub(crate) listen: SocketAddr,
    /// The same as `demo`
    #[arg(long = "self", conflicts_with = "server")]
    pub(crate) demo: bool,
    /// Bytes of a message: 64, 4k, 1MiB [default: 64 for latency, 1m for bandwidth]
    #[arg(long, value_name = "N", value_parser = size, conflicts_with = "sweep")]
    pub(crate) size: Option<usize>,
    /// Every fourth power of two from 1 byte to 4 MiB
    #[arg(long)]
    pub(crate) sweep: bool,
    /// Round trips, or messages, of each measurement [default: enough for about half a second]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) iters: Option<u32>,
    /// What to measure
    #[arg(long, value_enum, default_value_t = Mode::Both)]
    pub(crate) mode: Mode,
    /// How both ends wait for events
    #[arg(long, value_enum, default_value_t = Wait::Adaptive)]
    pub(crate) wait: Wait,
    /// Which kind of socket
    #[arg(long, value_enum, default_value_t = Kind::Stream)]
    pub(crate) socket: Kind,
    /// Protect every FPDU by CRC32C
    #[arg(long)]
    pub(crate) crc: bool,
    /// Messages in flight when bandwidth is measured
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) depth: u32,
    /// Also measure this, in turn with EXS, and print the ratios
    #[arg(long, value_enum)]
    pub(crate) compare: Option<Baseline>,
    /// Rounds of the comparison; the median of each side counts
    #[arg(long, value_name = "N", default_value_t = 7,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) road: Road,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Server: end after one client
    #[arg(long, hide = true)]
    pub(crate) once: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Latency
    Lat,
    /// Bandwidth
    Bw,
    /// Latency and bandwidth
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Baseline {
    /// Plain blocking TCP with TCP_NODELAY
    Tcp,
}

/// The role of the program.
pub(crate) enum Role {
    Serve,
    Client(String),
    Demo,
}

impl Args {
    pub(crate) fn role(&self) -> Role {
        match self.server.as_deref() {
            Some("demo") => Role::Demo,
            None if self.demo => Role::Demo,
            Some(addr) => Role::Client(addr.to_owned()),
            None => Role::Serve,
        }
    }
}

/// Largest message: what a server sets aside for one client is bounded by it.
pub(crate) const MAX_SIZE: usize = 64 << 20;

fn size(text: &str) -> Result<usize, String> {
    args::size(text, MAX_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Args::command().debug_assert();
        let demo = Args::parse_from(["exs-pingpong", "--self", "--json"]);
        assert!(matches!(demo.role(), Role::Demo));
        assert!(matches!(Args::parse_from(["exs-pingpong"]).role(), Role::Serve));
    }
}
