//! The contenders: EXS over each transport that this build and this host have, plain sockets
//! in the same program, a copy in memory, and the neighbours that are installed.

use std::process::Command;

use exs_tools::args::Wait;
use exs_tools::fail::{During, Failure};
use exs_tools::peer::Server;
use exs_tools::road;
use serde_json::Value;

use crate::PATIENCE;
use crate::neighbours::Neighbour;
use crate::plan::{Case, Plan, Test};
use crate::process::{run, sibling};
use crate::results::Sample;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Exs {
        transport: &'static str,
        crc: bool,
    },
    /// exs-perf's own baselines.
    Tcp,
    Unix,
    Memcpy,
    Other(Neighbour),
}

impl Contender {
    /// All that there may be, in the order of the tables.
    pub(crate) fn all() -> Vec<Contender> {
        let exs = road::NAMES.into_iter().filter(|name| *name != "auto");
        let mut all: Vec<_> =
            exs.map(|transport| Contender::Exs { transport, crc: false }).collect();
        all.push(Contender::Exs { transport: "soft", crc: true });
        all.extend([Contender::Tcp, Contender::Unix, Contender::Memcpy]);
        all.extend(Neighbour::ALL.map(Contender::Other));
        all
    }

    /// As the tables have it.
    pub(crate) fn name(&self, case: &Case) -> String {
        let spins = case.test == Test::Lat && case.poll == Wait::Busy;
        match self {
            Contender::Exs { transport, crc: false } => format!("EXS {transport}"),
            Contender::Exs { transport, crc: true } => format!("EXS {transport}, CRC32C"),
            Contender::Tcp if spins => "TCP, spinning".to_owned(),
            Contender::Tcp => "TCP".to_owned(),
            Contender::Unix if spins => "UNIX-domain, spinning".to_owned(),
            Contender::Unix => "UNIX-domain".to_owned(),
            Contender::Memcpy => "memcpy".to_owned(),
            Contender::Other(neighbour) => neighbour.name().to_owned(),
        }
    }

    /// Whether it is here, and has something to say to the case.
    pub(crate) fn takes_part(&self, case: &Case, plan: &Plan) -> bool {
        match self {
            Contender::Exs { crc: true, .. } => {
                case.test == Test::Bw && !case.of_many && case.size >= 64 << 10
            }
            // Devices have addresses of their own.
            Contender::Exs { transport: "verbs", .. } => !plan.address.is_loopback(),
            Contender::Exs { .. } => true,
            // A plain socket spins or sleeps.
            Contender::Tcp | Contender::Unix => {
                case.test != Test::Lat || case.poll != Wait::Adaptive
            }
            Contender::Memcpy => case.test == Test::Bw && !case.of_many,
            Contender::Other(neighbour) => neighbour.takes_part(case),
        }
    }

    /// One run.
    pub(crate) fn measure(&self, case: &Case, plan: &Plan) -> Result<Sample, Failure> {
        match self {
            Contender::Other(neighbour) => neighbour.measure(case, plan),
            Contender::Memcpy => perf(&self.words(case, plan, "")?),
            _ => {
                let listen = format!("{}:0", bracketed(plan));
                let program = sibling("exs-perf")?;
                let words = ["serve", "--once", "--listen", &listen];
                let server = Server::of(&program, &words, |_| {}).during("exs-perf serve")?;
                perf(&self.words(case, plan, &server.addr().to_string())?)
            }
        }
    }

    /// The command line of exs-perf.
    fn words(&self, case: &Case, plan: &Plan, server: &str) -> Result<Vec<String>, Failure> {
        let (transport, crc) = match self {
            Contender::Exs { transport, crc } => (*transport, *crc),
            Contender::Tcp => ("tcp", false),
            Contender::Unix => ("unix", false),
            Contender::Memcpy => ("", false),
            Contender::Other(_) => return Err(Failure("it is no test of exs-perf".to_owned())),
        };
        let test = match case.test {
            _ if *self == Contender::Memcpy => "memcpy",
            Test::Bw => "bw",
            Test::Lat => "lat",
            Test::Rate => "rate",
            Test::Idle => "idle",
        };
        let mut words = vec![test.to_owned()];
        if !transport.is_empty() {
            let poll = match case.poll {
                Wait::Busy => "busy",
                Wait::Notify => "notify",
                Wait::Adaptive => "adaptive",
            };
            words.extend([server.to_owned(), format!("--transport={transport}")]);
            words.extend([format!("--poll={poll}"), format!("--connections={}", case.connections)]);
        }
        if crc {
            words.push("--crc".to_owned());
        }
        if case.test != Test::Idle {
            let seconds = plan.duration_of(case).as_secs_f64();
            words.extend([format!("--size={}", case.size), format!("--depth={}", case.depth)]);
            words.push(format!("--duration={seconds}"));
        }
        words.push("--json".to_owned());
        Ok(words)
    }
}

fn bracketed(plan: &Plan) -> String {
    if plan.address.is_ipv6() { format!("[{}]", plan.address) } else { plan.address.to_string() }
}

fn perf(words: &[String]) -> Result<Sample, Failure> {
    let text = run(Command::new(sibling("exs-perf")?).args(words), PATIENCE)?;
    let record: Value = serde_json::from_str(&text).during("what exs-perf prints")?;
    Ok(sample(&record))
}

/// What exs-perf's record says.
fn sample(record: &Value) -> Sample {
    let of = |path: &str| record.pointer(path).and_then(Value::as_f64);
    let both = |a, b| Some(of(a)? + of(b)?);
    let is_stream = record["half_rtt_us"].is_null();
    let larger = |a: &str, b: &str| Some(of(a)?.max(of(b)?));
    Sample {
        gbytes_per_s: of("/gbytes_per_s").filter(|_| is_stream),
        msgs_per_s: of("/msgs_per_s").filter(|_| is_stream),
        mean_us: of("/half_rtt_us/mean"),
        p50_us: of("/half_rtt_us/p50"),
        p99_us: of("/half_rtt_us/p99"),
        p999_us: of("/half_rtt_us/p999"),
        cpu_ns_per_byte: both("/cpu_local/ns_per_byte", "/cpu_remote/ns_per_byte"),
        cpu_ns_per_msg: both("/cpu_local/ns_per_msg", "/cpu_remote/ns_per_msg"),
        slowest_to_mean: of("/slowest_to_mean"),
        bytes_each: larger("/bytes_local", "/bytes_remote"),
        seconds: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_understood() {
        let record = serde_json::json!({
            "gbytes_per_s": 2.5, "msgs_per_s": 10.0, "half_rtt_us": null, "slowest_to_mean": 1.0,
            "cpu_local": {"ns_per_byte": 0.25, "ns_per_msg": 1.0},
            "cpu_remote": {"ns_per_byte": 0.5, "ns_per_msg": 2.0},
        });
        let s = sample(&record);
        assert_eq!((s.gbytes_per_s, s.cpu_ns_per_byte, s.p50_us), (Some(2.5), Some(0.75), None));
        let record =
            serde_json::json!({"half_rtt_us": {"p50": 3.5, "p99": 4.0}, "msgs_per_s": 1.0});
        let s = sample(&record);
        assert_eq!((s.p50_us, s.p99_us, s.msgs_per_s), (Some(3.5), Some(4.0), None));
    }
}
