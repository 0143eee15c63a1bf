//! The shapes of programs that are measured, each with its parameters.

use std::fmt;
use std::time::Duration;

use exs_tools::args::Kind;
use exs_tools::fail::Failure;
use serde::{Deserialize, Serialize};

use super::carrier::Carrier;
use super::connects::Sharing;
use super::loops::Way;
use super::placement::Placement;
use super::pooled::Waiting;
use super::rarely::Cost;
use super::{ask, connects, copies, handed, memory, own, pairs, pooled, queued_pairs, rarely};
use crate::client;
use crate::job::{Job, Test};

/// A run with many connections is longer by this: each has its share of the messages.
const LONGER: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Shape {
    /// Each thread has a queue and a pair of sockets, and sends itself messages.
    Own { threads: usize, size: usize },
    /// Each thread copies memory. No transport takes part.
    Copies { threads: usize, size: usize },
    /// Two threads for each connection ask and answer with calls that block.
    Pairs { pairs: usize },
    /// The same, with an event queue for each thread.
    QueuedPairs { pairs: usize },
    /// One thread asks another process on each connection.
    Ask { way: Way, connections: u32, placement: Placement },
    /// As many threads ask another process as serve there, each at one place for all of its connections.
    /// One more thread there accepts. `answers`: it answers the first question of each connection.
    Handed { threads: usize, connections: u32, answers: bool },
    /// Threads ask another process on the connections of a pool, each on one at a time.
    Pooled { threads: usize, connections: u32, waiting: Waiting },
    /// One thread asks another process, and pauses before each question.
    Rarely { pause: Duration, cost: Cost },
    /// A stream of messages to another process. Each process has this many threads and queues.
    Flow { connections: u32, depth: u32, threads: u32, size: usize },
    /// Connections one after the other.
    InTurn,
    /// As many threads as `clients` make connections, and a server of threads serves them.
    Served { sharing: Sharing, clients: usize },
    /// Connections that are begun all at once.
    AtOnce { connects: u32 },
    /// Connections that this many threads accept from one listener.
    Accepted { threads: usize },
    /// Connections that do nothing.
    IdleConnection { connections: u32 },
    /// Queues that carry nothing any more, or never did.
    IdleQueue { queues: u32 },
}

/// What one run gives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) figure: f64,
    /// The messages of the slowest connection beside the mean, where there are many.
    pub(super) slowest: Option<f64>,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) enum Unit {
    #[serde(rename = "/s")]
    PerSecond,
    #[serde(rename = "us")]
    Micros,
    #[serde(rename = "bytes")]
    Bytes,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Unit::PerSecond => "/s",
            Unit::Micros => "us",
            Unit::Bytes => "bytes",
        })
    }
}

impl Shape {
    /// Runs it in this process.
    pub(super) fn measure(
        self,
        carrier: Option<Carrier>,
        duration: Duration,
    ) -> Result<Sample, Failure> {
        let over = || {
            let none = || Failure(format!("`{self}` needs a transport"));
            carrier.ok_or_else(none)
        };
        let figure = match self {
            Shape::Own { threads, size } => own::measure(over()?, threads, size, duration)?,
            Shape::Copies { threads, size } => copies::measure(threads, size, duration)?,
            Shape::Pairs { pairs } => pairs::measure(over()?, pairs, duration)?,
            Shape::QueuedPairs { pairs } => queued_pairs::measure(over()?, pairs, duration)?,
            Shape::Ask { way, connections, placement } => {
                let rate = ask::measure(over()?, way, connections, placement, duration)?;
                if connections == 1 { 1e6 / rate / 2.0 } else { rate }
            }
            Shape::Handed { threads, connections, answers } => {
                handed::measure(over()?, (threads, connections, answers), duration)?
            }
            Shape::Pooled { threads, connections, waiting } => {
                pooled::measure(over()?, (threads, connections, waiting), duration)?
            }
            Shape::Rarely { pause, cost } => rarely::measure(over()?, pause, cost, duration)?,
            Shape::Flow { connections, depth, threads, size } => {
                let job = Job {
                    way: over()?.into(),
                    kind: Kind::Stream,
                    size,
                    depth,
                    connections,
                    threads,
                    ..Job::new(Test::Bw)
                };
                let record = client::once(&job, LONGER * duration)?;
                let slowest = Some(record.slowest_to_mean);
                return Ok(Sample { figure: record.msgs_per_s, slowest });
            }
            Shape::InTurn => connects::in_turn(over()?, duration)?,
            Shape::Served { sharing, clients } => {
                connects::served(over()?, sharing, clients, duration)?
            }
            Shape::AtOnce { connects } => connects::at_once(over()?, connects)?,
            Shape::Accepted { threads } => connects::accepted_by(over()?, threads, duration)?,
            Shape::IdleConnection { connections } => memory::of_connection(over()?, connections)?,
            Shape::IdleQueue { queues } => memory::of_queue(carrier, queues)?,
        };
        Ok(Sample { figure, slowest: None })
    }

    pub(super) fn unit(self) -> Unit {
        match self {
            Shape::Ask { connections: 1, .. } | Shape::Rarely { .. } => Unit::Micros,
            Shape::IdleConnection { .. } | Shape::IdleQueue { .. } => Unit::Bytes,
            _ => Unit::PerSecond,
        }
    }

    /// How many shards the library makes at most, where the shape asks for more than there are cores.
    pub(super) fn shards(self) -> Option<u32> {
        match self {
            Shape::IdleQueue { queues } => Some(queues + 1),
            _ => None,
        }
    }

    /// How long a run may take before it has failed.
    pub(super) fn limit(self, duration: Duration) -> Duration {
        Duration::from_secs(120) + 4 * LONGER * duration
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Shape::Own { threads, size } => write!(f, "own, {}, {}", bytes(size), of(threads)),
            Shape::Copies { threads, size } => {
                write!(f, "memcpy, {}, {}", bytes(size), of(threads))
            }
            Shape::Pairs { pairs: 1 } => write!(f, "1 pair of threads"),
            Shape::Pairs { pairs } => write!(f, "{pairs} pairs of threads"),
            Shape::QueuedPairs { pairs: 1 } => write!(f, "1 pair, each with a queue"),
            Shape::QueuedPairs { pairs } => write!(f, "{pairs} pairs, each with a queue"),
            Shape::Ask { way, connections: 1, placement } => {
                let place = match placement {
                    Placement::Free => "",
                    Placement::One => ", one core",
                    Placement::Two => ", two cores",
                };
                write!(f, "half trip, epoll, {way}{place}")
            }
            Shape::Ask { way, connections, .. } => {
                write!(f, "{connections} asked, epoll, {way}")
            }
            Shape::Handed { threads, connections, answers } => {
                let when = if answers { " after an answer" } else { "" };
                write!(f, "{connections} handed to {}{when}", of(threads))
            }
            Shape::Pooled { threads, connections, waiting } => {
                write!(f, "{connections} in a pool of {}, {waiting}", of(threads))
            }
            Shape::Rarely { pause, cost } => {
                let what = match cost {
                    Cost::Trip => "round trip",
                    Cost::Processor => "processor time",
                };
                write!(f, "{what}, every {} ms", pause.as_millis())
            }
            Shape::Flow { connections: 1, depth, size, .. } => {
                write!(f, "1 connection, {depth} x {}", bytes(size))
            }
            Shape::Flow { connections, threads, size, .. } => {
                write!(f, "{connections} connections, {}, {}", bytes(size), of(threads as usize))
            }
            Shape::InTurn => write!(f, "connects in turn"),
            Shape::Served { sharing, clients } => {
                write!(f, "connects of {}, {sharing}", of(clients))
            }
            Shape::AtOnce { connects } => write!(f, "{connects} connects at once"),
            Shape::Accepted { threads: 1 } => write!(f, "connects, 1 thread accepts"),
            Shape::Accepted { threads } => write!(f, "connects, {threads} threads accept"),
            Shape::IdleConnection { connections } => {
                write!(f, "1 of {connections} idle connections")
            }
            Shape::IdleQueue { queues } => write!(f, "1 of {queues} idle queues"),
        }
    }
}

/// Threads, in words.
fn of(threads: usize) -> String {
    if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") }
}

/// A size, in words.
fn bytes(size: usize) -> String {
    match size {
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}
