//! The measurements of a run.

use std::net::IpAddr;
use std::time::Duration;

use exs_tools::args::Wait;
use serde::Serialize;

/// What a case measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Test {
    Bw,
    Lat,
    Rate,
    Idle,
}

/// One thing that several contenders do.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Case {
    /// For people.
    pub(crate) title: String,
    pub(crate) test: Test,
    pub(crate) size: usize,
    pub(crate) depth: u32,
    pub(crate) connections: u32,
    pub(crate) poll: Wait,
    /// Beside the same case with many connections, which not every contender can have.
    #[serde(skip)]
    pub(crate) of_many: bool,
}

/// Cases that belong together: a file, a table, perhaps a plot.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) cases: Vec<Case>,
}

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) quick: bool,
    pub(crate) rounds: u32,
    /// Of one run.
    pub(crate) duration: Duration,
    /// Time that a neighbour may take longer: some crawl where they have no core to themselves.
    pub(crate) patience: Duration,
    pub(crate) address: IpAddr,
    pub(crate) sections: Vec<Section>,
}

/// Sizes of the throughput plot. 64 KiB, 1 MiB and 100 MiB have aims.
const SIZES: [usize; 8] =
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20, 100 << 20];

impl Plan {
    pub(crate) fn new(quick: bool, rounds: Option<u32>, address: IpAddr) -> Plan {
        let sizes: &[usize] = if quick { &[4 << 10, 1 << 20] } else { &SIZES };
        let (some, many) = if quick { (20, 100) } else { (1000, 10_000) };
        let sections = vec![
            Section {
                id: "bandwidth",
                title: "Throughput over the size of messages",
                cases: sizes.iter().map(|&size| bandwidth(size)).collect(),
            },
            Section {
                id: "latency",
                title: "Half a round trip of 64 bytes",
                cases: [Wait::Busy, Wait::Notify, Wait::Adaptive].map(latency).to_vec(),
            },
            Section { id: "rate", title: "64-byte messages in a second", cases: vec![rate()] },
            Section {
                id: "connections",
                title: "Many connections at the same time",
                cases: [1 << 20, 64 << 10].map(|size| of_many(size, some)).concat(),
            },
            Section { id: "idle", title: "Memory of idle connections", cases: vec![idle(many)] },
        ];
        Plan {
            quick,
            rounds: rounds.unwrap_or(if quick { 1 } else { 3 }),
            duration: Duration::from_millis(if quick { 50 } else { 700 }),
            patience: Duration::from_secs(if quick { 6 } else { 30 }),
            address,
            sections,
        }
    }

    /// A thousand connections move some messages of a mebibyte each in a second, some of them through
    /// rings that are touched for the first time: they have longer for it.
    pub(crate) fn duration_of(&self, case: &Case) -> Duration {
        if case.of_many && case.size >= 1 << 20 { 4 * self.duration } else { self.duration }
    }

    /// Memory is no matter of chance; the time that it takes to wake a thread is, more than
    /// anything else.
    pub(crate) fn rounds_of(&self, section: &Section) -> u32 {
        match section.id {
            "idle" => 1,
            "latency" if self.rounds > 1 => 2 * self.rounds + 1,
            _ => self.rounds,
        }
    }
}

fn bandwidth(size: usize) -> Case {
    // The bytes in flight should neither starve the pipe nor leave the caches needlessly. There
    // are three buffers for each message of EXS (receives are posted ahead), and a second-level
    // cache has a megabyte or two. UCX's and libfabric's programs use one buffer each way.
    let depth = match size {
        0..=0x4000 => 16,
        0x4001..=0x1_0000 => 8,
        0x1_0001..=0x4_0000 => 2,
        _ => 1,
    };
    Case { size, depth, ..usual(bytes(size), Test::Bw) }
}

fn usual(title: String, test: Test) -> Case {
    let poll = Wait::Adaptive;
    Case { title, test, size: 64, depth: 1, connections: 1, poll, of_many: false }
}

/// Messages of one size on one connection where they go well, on one with as many in flight as
/// `many` have together, and on `many`: what is in flight in all decides whether it is in a
/// cache. (exs-perf has 256 MiB in flight on one at most, which is in none either.)
fn of_many(size: usize, many: u32) -> [Case; MANY] {
    let most = u32::try_from((256 << 20) / size).unwrap_or(u32::MAX);
    [(1, 8), (1, many.min(most)), (many, 1)].map(|(connections, depth)| {
        let s = if connections == 1 { "" } else { "s" };
        let size_text = bytes(size);
        let title = format!("{connections} connection{s}, {size_text}, {depth} in flight on each");
        Case { title, connections, depth, of_many: true, ..bandwidth(size) }
    })
}

/// The number of cases with one size of messages: many connections last.
pub(crate) const MANY: usize = 3;

fn latency(poll: Wait) -> Case {
    let title = match poll {
        Wait::Busy => "busy-polling",
        Wait::Notify => "sleeping",
        Wait::Adaptive => "adaptive (the default)",
    };
    Case { poll, ..usual(title.to_owned(), Test::Lat) }
}

fn rate() -> Case {
    Case { depth: 64, ..usual("64 in flight".to_owned(), Test::Rate) }
}

fn idle(connections: u32) -> Case {
    Case { connections, ..usual(format!("{connections} connections"), Test::Idle) }
}

/// 4 KiB for 4096.
pub(crate) fn bytes(size: usize) -> String {
    match size {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}
