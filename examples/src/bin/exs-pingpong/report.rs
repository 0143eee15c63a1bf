//! The results, as tables or as one JSON object.

use std::net::SocketAddr;
use std::time::Duration;

use exs_tools::args::{Kind, Wait};
use exs_tools::fail::{During, Failure};
use exs_tools::out;
use exs_tools::out::Lost;
use exs_tools::stats::Samples;
use serde::Serialize;

use crate::cli::Args;

/// Half round trips, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Latency {
    bytes: usize,
    iters: usize,
    min: f64,
    mean: f64,
    pub(crate) p50: f64,
    p99: f64,
    #[serde(rename = "p99.9")]
    p999: f64,
    max: f64,
}

impl Latency {
    pub(crate) fn new(bytes: usize, rounds: Samples) -> Latency {
        let iters = rounds.len();
        let s = rounds.sort();
        let half = |permille| s.percentile(permille) / 2.0;
        Latency {
            bytes,
            iters,
            min: half(0),
            mean: s.mean() / 2.0,
            p50: half(500),
            p99: half(990),
            p999: half(999),
            max: half(1000),
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Bandwidth {
    bytes: usize,
    iters: u32,
    in_flight: u32,
    pub(crate) gbytes_per_s: f64,
    messages_per_s: f64,
}

impl Bandwidth {
    pub(crate) fn new(bytes: usize, iters: u32, in_flight: u32, took: Duration) -> Bandwidth {
        let seconds = took.as_secs_f64().max(1e-9);
        let messages_per_s = f64::from(iters) / seconds;
        let gbytes_per_s = messages_per_s * bytes as f64 / 1e9;
        Bandwidth { bytes, iters, in_flight, gbytes_per_s, messages_per_s }
    }
}

/// A figure of both sides.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Side {
    pub(crate) exs: f64,
    pub(crate) tcp: f64,
}

/// EXS beside plain TCP: medians of rounds that took turns.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Comparison {
    rounds: u32,
    /// Half round trip of 64 bytes, microseconds.
    latency_64: Side,
    latency_ratio: f64,
    /// The same of TCP on a socket that is asked again and again, never slept on.
    latency_64_tcp_spinning: f64,
    /// Bandwidth of 1 MiB messages, GB/s.
    bandwidth_1m: Side,
    bandwidth_ratio: f64,
}

impl Comparison {
    pub(crate) fn new(
        rounds: u32,
        latency_64: Side,
        latency_64_tcp_spinning: f64,
        bandwidth_1m: Side,
    ) -> Comparison {
        let latency_ratio = latency_64.exs / latency_64.tcp;
        let bandwidth_ratio = bandwidth_1m.exs / bandwidth_1m.tcp;
        Comparison {
            rounds,
            latency_64,
            latency_ratio,
            latency_64_tcp_spinning,
            bandwidth_1m,
            bandwidth_ratio,
        }
    }
}

/// Everything, in the order in which it was measured; printed as it comes, or at the end.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    server: SocketAddr,
    socket: Kind,
    wait: Wait,
    crc: bool,
    transport: String,
    latency_us: Vec<Latency>,
    bandwidth: Vec<Bandwidth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compared_to_tcp: Option<Comparison>,
    #[serde(skip)]
    json: bool,
}

impl Report {
    pub(crate) fn new(server: SocketAddr, args: &Args, transport: &str) -> Report {
        Report {
            server,
            socket: args.socket,
            wait: args.wait,
            crc: args.crc,
            transport: transport.to_owned(),
            latency_us: Vec::new(),
            bandwidth: Vec::new(),
            compared_to_tcp: None,
            json: args.json,
        }
    }

    fn say(&self, line: &str) -> Result<(), Lost> {
        if self.json { Ok(()) } else { out!("{line}") }
    }

    pub(crate) fn headline(&self) -> Result<(), Lost> {
        let socket = format!("{:?}", self.socket).to_lowercase();
        let wait = format!("{:?}", self.wait).to_lowercase();
        let crc = if self.crc { ", CRC32C" } else { "" };
        self.say(&format!(
            "EXS {socket} to {} over {}{crc}, waiting: {wait}",
            self.server,
            match self.transport.as_str() {
                "soft" => "the software RNIC",
                other => other,
            }
        ))
    }

    pub(crate) fn latency(&mut self, l: Latency) -> Result<(), Lost> {
        if self.latency_us.is_empty() {
            self.say("\nlatency: half a round trip, microseconds")?;
            self.say(
                "     bytes     rounds      min     mean      p50      p99    p99.9      max",
            )?;
        }
        self.say(&format!(
            "{:>10} {:>10} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>8.1}",
            l.bytes, l.iters, l.min, l.mean, l.p50, l.p99, l.p999, l.max
        ))?;
        self.latency_us.push(l);
        Ok(())
    }

    pub(crate) fn bandwidth(&mut self, b: Bandwidth) -> Result<(), Lost> {
        if self.bandwidth.is_empty() {
            self.say("\nbandwidth, one way")?;
            self.say("     bytes   messages  in flight     GB/s     Gbit/s   messages/s")?;
        }
        self.say(&format!(
            "{:>10} {:>10} {:>10} {:>8.3} {:>10.2} {:>12.0}",
            b.bytes,
            b.iters,
            b.in_flight,
            b.gbytes_per_s,
            b.gbytes_per_s * 8.0,
            b.messages_per_s
        ))?;
        self.bandwidth.push(b);
        Ok(())
    }

    pub(crate) fn comparison(&mut self, c: Comparison) -> Result<(), Lost> {
        self.say(&format!(
            "\nbeside plain TCP (blocking, TCP_NODELAY) between the same processes: medians of {} rounds in turn",
            c.rounds
        ))?;
        self.say("                                       EXS        TCP    EXS/TCP")?;
        self.say(&format!(
            "half round trip, 64 bytes (us)  {:>10.2} {:>10.2} {:>10.3}   (aim: at most 1.15)",
            c.latency_64.exs, c.latency_64.tcp, c.latency_ratio
        ))?;
        self.say(&format!(
            "  beside TCP that spins         {:>10.2} {:>10.2} {:>10.3}",
            c.latency_64.exs,
            c.latency_64_tcp_spinning,
            c.latency_64.exs / c.latency_64_tcp_spinning
        ))?;
        self.say(&format!(
            "bandwidth, 1 MiB (GB/s)         {:>10.3} {:>10.3} {:>10.3}   (aim: at least 0.95)",
            c.bandwidth_1m.exs, c.bandwidth_1m.tcp, c.bandwidth_ratio
        ))?;
        self.compared_to_tcp = Some(c);
        Ok(())
    }

    /// The JSON object, if that is what was asked for.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        if self.json {
            out!("{}", serde_json::to_string(self).during("JSON")?)?;
        }
        Ok(())
    }
}
