//! The command line.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use exs_tools::address;
use exs_tools::args::{self, Kind, Wait};

use crate::cores::Carrier;
use crate::job::Way;

/// Measure EXS, and plain sockets beside it.
#[derive(Debug, Parser)]
#[command(name = "exs-perf", version, max_term_width = 100, after_help = AFTER)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER: &str = "\
Examples:
  exs-perf bw demo --sweep                       both ends on this machine, 64 bytes to 16 MiB
  exs-perf serve --listen 0.0.0.0:7472           a server that other hosts reach
  exs-perf bw HOST:7472 --transport soft         1 MiB messages, 8 in flight
  exs-perf lat HOST:7472 --poll busy --json      half round trips of 64 bytes, as JSON
  exs-perf rate HOST:7472 --transport tcp        one send() for each 64 bytes, over plain TCP
  exs-perf idle demo --connections 1000          memory of connections that do nothing
  exs-perf cores --only own-64 --threads 1,2     what a second thread gains, beside plain TCP

One line (with --json one JSON object) for each run. GB are 10^9 bytes. Nothing is encrypted; a server
serves every host that reaches its port, one client at a time.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve clients, one at a time, with whatever transport they ask for
    Serve(Serve),
    /// Throughput, from here to the server
    Bw(Run),
    /// Throughput, both ways at the same time
    Bibw(Run),
    /// Half a round trip
    Lat(Run),
    /// Small messages in a second, from here to the server
    Rate(Run),
    /// Memory that idle connections cost
    Idle(Idle),
    /// How fast this machine copies memory: no server, no sockets
    Memcpy(Memcpy),
    /// How programs of several shapes use all cores, over EXS and plain TCP, beside the aims
    Cores(Cores),
    /// One run of `cores`
    #[command(hide = true)]
    CoresSample(Inner),
    /// The server of a run of `cores`
    #[command(hide = true)]
    CoresServe(Inner),
}

#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// Where to listen; port 0 takes a free one. The measured connections use ports of their own
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7472",
          value_parser = address::one)]
    pub(crate) listen: SocketAddr,
    /// End after one client
    #[arg(long, hide = true)]
    pub(crate) once: bool,
}

/// How the connections are made.
#[derive(Args, Clone, Debug)]
pub(crate) struct Path {
    /// What carries the bytes: a transport of EXS (auto, soft, shm, verbs), or plain kernel sockets
    /// as the baseline: tcp, or unix (UNIX-domain, on one host) [default: EXS_TRANSPORT, else auto]
    #[arg(long, value_name = "NAME")]
    pub(crate) transport: Option<Way>,
    /// Of the RDMA devices, use this one only, for example rxe0 [default: EXS_DEVICE]
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// How both ends wait. A plain socket blocks, or with busy is asked again and again
    #[arg(long, value_enum, default_value_t = Wait::Adaptive)]
    pub(crate) poll: Wait,
    /// Which kind of EXS socket
    #[arg(long, value_enum, default_value_t = Kind::Stream)]
    pub(crate) socket: Kind,
    /// Protect every FPDU of the software RNIC by CRC32C
    #[arg(long)]
    pub(crate) crc: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Run {
    /// The server; `demo` starts one on this machine
    #[arg(value_name = "ADDR:PORT")]
    pub(crate) server: String,
    #[command(flatten)]
    pub(crate) path: Path,
    #[command(flatten)]
    pub(crate) load: Load,
    /// Connections at the same time
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) connections: u32,
    /// Threads of each side that share the EXS connections. A plain connection has its own
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
}

/// How much is moved.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    /// Bytes of a message: 64, 4k, 1MiB [default: 1m for throughput, 64 otherwise]
    #[arg(long, value_name = "N", value_parser = size, conflicts_with = "sweep")]
    pub(crate) size: Option<usize>,
    /// Every fourth power of two from 64 bytes to 16 MiB, a run for each
    #[arg(long)]
    pub(crate) sweep: bool,
    /// Time of each run, after a warm-up: seconds, or 500ms, 2min
    #[arg(long, value_name = "TIME", default_value = "2", value_parser = seconds)]
    pub(crate) duration: Duration,
    /// Messages in flight on each connection (less if they would take more than 256 MiB together)
    /// [default: 8 for throughput, 64 for the rate]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) depth: Option<u32>,
    /// Print JSON, one object for each run
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Idle {
    /// The server; `demo` starts one on this machine
    #[arg(value_name = "ADDR:PORT")]
    pub(crate) server: String,
    #[command(flatten)]
    pub(crate) path: Path,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(2..=100_000))]
    pub(crate) connections: u32,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Memcpy {
    #[command(flatten)]
    pub(crate) load: Load,
}

#[derive(Args, Debug)]
pub(crate) struct Cores {
    /// Only the rows whose group has a name that begins so: own, pairs, handed, pooled, half-trip,
    /// rarely, server, many, connects, idle, or longer, as own-64, pairs-8, many-1m, connects-at-once, idle-queues
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Small numbers and short runs, which show that everything works and measure nothing
    #[arg(long)]
    pub(crate) quick: bool,
    /// What to compare: tcp (plain), and transports of EXS
    #[arg(long = "transports", value_name = "NAMES", value_delimiter = ',',
          default_values = ["tcp", "soft", "shm"])]
    pub(crate) carriers: Vec<Carrier>,
    /// Threads with a queue and a pair of sockets of their own
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values = ["1", "2", "4", "8"],
          value_parser = threads)]
    pub(crate) threads: Vec<usize>,
    /// Bytes of their messages
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = size,
          default_values = ["64", "4KiB", "64KiB"])]
    pub(crate) sizes: Vec<usize>,
    /// Connections with two threads each, which ask and answer
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = threads,
          default_values = ["1", "2", "8", "32", "128"])]
    pub(crate) pairs: Vec<usize>,
    /// Connections of the rows server and many [default: 1000; quick: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=20_000))]
    pub(crate) connections: Option<u32>,
    /// Connections that are begun at the same time, and those that idle [default: 10000; quick: 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=25_000))]
    pub(crate) at_once: Option<u32>,
    /// Event queues of the rows idle-queues [default: 64; quick: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) queues: Option<u32>,
    /// Time of each run, after a warm-up: seconds, or 500ms, 2min. Rows many: twice that
    /// [default: 1; quick: 100ms]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,
    /// Runs of each, in turn; medians are printed [default: 3; quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(crate) rounds: Option<u32>,
    /// Print JSON, one object for each row
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a run of `cores` hands to the processes that it starts.
#[derive(Args, Debug)]
pub(crate) struct Inner {
    pub(crate) json: String,
}

/// Largest message.
pub(crate) const MAX_SIZE: usize = 1 << 30;

/// More threads than this measure the scheduler.
const MAX_THREADS: usize = 4096;

fn threads(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (1..=MAX_THREADS).contains(n));
    n.ok_or_else(|| format!("a number of threads is from 1 to {MAX_THREADS}"))
}

fn size(text: &str) -> Result<usize, String> {
    args::size(text, MAX_SIZE)
}

fn seconds(text: &str) -> Result<Duration, String> {
    args::time(text, Duration::from_millis(10), Duration::from_secs(3600))
}

impl Load {
    /// The size of each run.
    pub(crate) fn sizes(&self, default: usize) -> Vec<usize> {
        if self.sweep {
            (6..=24).step_by(2).map(|bits| 1 << bits).collect()
        } else {
            vec![self.size.unwrap_or(default)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let refused = |words: &[&str]| {
            let all = ["exs-perf", "bw", "localhost:1"].iter().chain(words);
            Cli::try_parse_from(all).unwrap_err().to_string()
        };
        assert!(refused(&["--size", "0"]).contains("from 1 to 1024m"));
        assert!(refused(&["--duration", "0"]).contains("from 0.01 to 3600"));
        assert!(refused(&["--duration", "NaN"]).contains("is not a time"));
        assert!(refused(&["--connections", "0"]).contains("1..=20000"));
        assert!(refused(&["--depth", "0"]).contains("1..=1024"));
        assert!(refused(&["--size", "1", "--sweep"]).contains("cannot be used with"));
        let said = refused(&["--transport", "carrier-pigeon"]);
        assert!(said.contains("carrier-pigeon") && said.contains("soft"), "{said}");
    }
}
