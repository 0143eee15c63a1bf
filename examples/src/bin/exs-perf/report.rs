//! What was measured, as lines for people or as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use exs_tools::args::{Kind, Wait};
use exs_tools::fail::{During, Failure};
use exs_tools::out;
use exs_tools::out::Lost;
use hdrhistogram::Histogram;
use quanta::Instant;
use serde::Serialize;

use crate::crew::{Outcome, histogram};
use crate::job::{Job, Test};
use crate::usage::Usage;

/// What a run has given.
pub(crate) struct Run {
    pub(crate) route: String,
    pub(crate) transport: String,
    pub(crate) begun: Instant,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) local: Usage,
    pub(crate) remote: Usage,
}

/// Half round trips, microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct HalfRtt {
    min: f64,
    mean: f64,
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

/// Processor time of one side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Cpu {
    seconds: f64,
    ns_per_byte: f64,
    ns_per_msg: f64,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Record {
    test: Test,
    /// By what the bytes went: a transport of EXS, tcp, unix, or memcpy.
    transport: String,
    /// The same with its device.
    route: String,
    size: usize,
    depth: u32,
    connections: u32,
    threads: u32,
    poll: Wait,
    socket: Kind,
    crc: bool,
    seconds: f64,
    /// Of all connections, both ways.
    messages: u64,
    gbytes_per_s: f64,
    pub(crate) msgs_per_s: f64,
    half_rtt_us: Option<HalfRtt>,
    cpu_local: Cpu,
    cpu_remote: Cpu,
    /// Messages of the slowest connection, beside the mean of all.
    pub(crate) slowest_to_mean: f64,
    /// Where they are counted: of both sides together.
    system_calls_per_msg: Option<f64>,
    counters_local: BTreeMap<String, u64>,
    counters_remote: BTreeMap<String, u64>,
    version: &'static str,
}

impl Record {
    pub(crate) fn new(job: &Job, run: Run) -> Result<Record, Failure> {
        let moved: Vec<u64> =
            run.outcomes.iter().flat_map(|o| &o.moved).map(|(s, r)| s + r).collect();
        let messages: u64 = moved.iter().sum();
        let ended = run.outcomes.iter().map(|o| o.ended).max().unwrap_or(run.begun);
        let seconds = (ended - run.begun).as_secs_f64().max(1e-9);
        let mean = messages as f64 / moved.len().max(1) as f64;
        let slowest = moved.iter().min().copied().unwrap_or(0) as f64;
        let msgs_per_s = messages as f64 / seconds;
        let bytes = messages as f64 * job.size as f64;
        let cpu = |used: Duration| Cpu {
            seconds: used.as_secs_f64(),
            ns_per_byte: used.as_secs_f64() * 1e9 / bytes.max(1.0),
            ns_per_msg: used.as_secs_f64() * 1e9 / (messages as f64).max(1.0),
        };
        let calls = |usage: &Usage| usage.counters.get("system_calls").copied();
        let both = calls(&run.local).zip(calls(&run.remote)).map(|(a, b)| a as f64 + b as f64);
        Ok(Record {
            test: job.test,
            transport: run.transport,
            route: run.route,
            size: job.size,
            depth: job.depth,
            connections: job.connections,
            threads: job.threads,
            poll: job.wait,
            socket: job.kind,
            crc: job.crc,
            seconds,
            messages,
            gbytes_per_s: bytes / seconds / 1e9,
            msgs_per_s,
            half_rtt_us: half_rtt(&run.outcomes)?,
            cpu_local: cpu(run.local.cpu),
            cpu_remote: cpu(run.remote.cpu),
            slowest_to_mean: if mean > 0.0 { slowest / mean } else { 0.0 },
            system_calls_per_msg: both.map(|n| n / (messages as f64).max(1.0)),
            counters_local: run.local.counters,
            counters_remote: run.remote.counters,
            version: exs::VERSION,
        })
    }
}

fn half_rtt(outcomes: &[Outcome]) -> Result<Option<HalfRtt>, Failure> {
    let mut all: Option<Histogram<u64>> = None;
    for samples in outcomes.iter().filter_map(|o| o.round_trips.as_ref()) {
        let sum = match &mut all {
            Some(sum) => sum,
            none => none.insert(histogram()?),
        };
        sum.add(samples).during("histogram")?;
    }
    Ok(all.map(|h| {
        let half = |ns: u64| ns as f64 / 2000.0;
        HalfRtt {
            min: half(h.min()),
            mean: h.mean() / 2000.0,
            p50: half(h.value_at_quantile(0.5)),
            p99: half(h.value_at_quantile(0.99)),
            p999: half(h.value_at_quantile(0.999)),
            max: half(h.max()),
        }
    }))
}

/// Prints runs as they come.
pub(crate) struct Report {
    json: bool,
    begun: bool,
}

impl Report {
    pub(crate) fn new(json: bool) -> Report {
        Report { json, begun: false }
    }

    pub(crate) fn print(&mut self, r: &Record) -> Result<(), Failure> {
        if self.json {
            out!("{}", serde_json::to_string(r).during("JSON")?)?;
            return Ok(());
        }
        if !self.begun {
            self.begun = true;
            self.headline(r)?;
        }
        let cpu = (r.cpu_local.ns_per_byte, r.cpu_remote.ns_per_byte);
        if let Some(l) = r.half_rtt_us {
            out!(
                "{:>10} {:>11} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>10.1} {:>9.0} {:>9.0}",
                r.size,
                r.messages / 2,
                l.min,
                l.mean,
                l.p50,
                l.p99,
                l.p999,
                l.max,
                r.cpu_local.ns_per_msg,
                r.cpu_remote.ns_per_msg
            )?;
        } else {
            out!(
                "{:>10} {:>11} {:>9.3} {:>12.0} {:>9.3} {:>9.3}",
                r.size,
                r.messages,
                r.gbytes_per_s,
                r.msgs_per_s,
                cpu.0,
                cpu.1
            )?;
        }
        self.details(r)?;
        Ok(())
    }

    fn headline(&self, r: &Record) -> Result<(), Lost> {
        let many = if r.connections > 1 {
            format!(", {} connections, {} threads", r.connections, r.threads)
        } else {
            String::new()
        };
        let poll = format!("{:?}", r.poll).to_lowercase();
        let test = format!("{:?}", r.test).to_lowercase();
        out!("{test} by {}, {} in flight, waiting: {poll}{many}", r.route, r.depth)?;
        if r.half_rtt_us.is_some() {
            out!(
                "half a round trip, microseconds; processor time of both sides, ns for each message\n\
                 {:>10} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>9}",
                "bytes",
                "rounds",
                "min",
                "mean",
                "p50",
                "p99",
                "p99.9",
                "max",
                "cpu here",
                "there"
            )?;
        } else {
            out!(
                "processor time of both sides: ns for each byte\n\
                 {:>10} {:>11} {:>9} {:>12} {:>9} {:>9}",
                "bytes",
                "messages",
                "GB/s",
                "messages/s",
                "cpu here",
                "there"
            )?;
        }
        Ok(())
    }

    /// What the counters say: how the bytes went.
    fn details(&self, r: &Record) -> Result<(), Lost> {
        let of = |side: &BTreeMap<String, u64>, name| side.get(name).copied().unwrap_or(0);
        let each = |name| {
            let both = of(&r.counters_local, name) + of(&r.counters_remote, name);
            both as f64 / (r.messages as f64).max(1.0)
        };
        let mut notes = Vec::new();
        if r.counters_local.contains_key("sent_direct") {
            let both = |name| (of(&r.counters_local, name) + of(&r.counters_remote, name)) as f64;
            let (direct, indirect) = (both("sent_direct"), both("sent_indirect"));
            let all = (direct + indirect + both("sent_inline")).max(1.0);
            notes.push(format!("direct {:.0} %", 100.0 * direct / all));
            notes.push(format!("by the ring {:.0} %", 100.0 * indirect / all));
            notes.push(format!("for each message: {:.2} copies", each("copies")));
            notes.push(format!("{:.2} wake-ups", each("sleeps")));
        }
        if let Some(calls) = r.system_calls_per_msg {
            notes.push(format!("for each message: {calls:.2} system calls"));
        }
        if r.connections > 1 {
            notes.push(format!("slowest connection: {:.2} of the mean", r.slowest_to_mean));
        }
        if !notes.is_empty() {
            out!("{:>10} {}", "", notes.join(", "))?;
        }
        Ok(())
    }
}
