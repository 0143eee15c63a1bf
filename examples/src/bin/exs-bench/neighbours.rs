//! Other people's programs: UCX, libfabric, iperf3, sockperf. Each is a server, a client, and
//! a way to read what the client prints.

use std::process::Command;
use std::time::Duration;

use exs_tools::args::Wait;
use exs_tools::fail::Failure;
use serde_json::Value;

use crate::plan::{Case, Plan, Test};
use crate::process::{Background, free_port, on_path, run};
use crate::results::Sample;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Neighbour {
    UcxTcp,
    UcxShm,
    FabricTcp,
    FabricShm,
    Iperf,
    Sockperf,
}

use Neighbour::{FabricShm, FabricTcp, Iperf, Sockperf, UcxShm, UcxTcp};

impl Neighbour {
    pub(crate) const ALL: [Neighbour; 6] = [UcxTcp, UcxShm, FabricTcp, FabricShm, Iperf, Sockperf];

    pub(crate) fn name(self) -> &'static str {
        match self {
            UcxTcp => "UCX tcp",
            UcxShm => "UCX shared memory",
            FabricTcp => "libfabric tcp",
            FabricShm => "libfabric shm",
            Iperf => "iperf3",
            Sockperf => "sockperf",
        }
    }

    pub(crate) fn program(self) -> &'static str {
        match self {
            UcxTcp | UcxShm => "ucx_perftest",
            FabricTcp | FabricShm => "fi_pingpong",
            Iperf => "iperf3",
            Sockperf => "sockperf",
        }
    }

    /// Whether it is installed, and measures such a thing.
    pub(crate) fn takes_part(self, case: &Case) -> bool {
        let fits = !case.of_many
            && match (self, case.test) {
                (_, Test::Idle) => false,
                // They spin.
                (UcxTcp | UcxShm | FabricTcp | FabricShm, Test::Lat) => case.poll == Wait::Busy,
                (UcxTcp | UcxShm, _) => true,
                // fi_pingpong knows round trips only: its throughput has nothing in flight.
                (FabricTcp | FabricShm, Test::Bw) => case.size >= 64 << 10,
                (FabricTcp | FabricShm, Test::Rate) => false,
                (Iperf, test) => test == Test::Bw && (1 << 10..=1 << 20).contains(&case.size),
                (Sockperf, Test::Lat) => case.poll == Wait::Notify,
                (Sockperf, test) => test == Test::Rate,
            };
        fits && on_path(self.program()).is_some()
    }

    /// One run: a server of its own, and a client.
    pub(crate) fn measure(self, case: &Case, plan: &Plan) -> Result<Sample, Failure> {
        let port = free_port(plan.address)?;
        let mut server = Background::start(&mut self.server(case, plan, port))?;
        server.await_port(port, Duration::from_secs(10))?;
        let text = run(&mut self.client(case, plan, port), plan.duration + plan.patience)?;
        let odd = || Failure(format!("{} prints what is not understood: {text}", self.program()));
        self.read(case, &text).ok_or_else(odd)
    }

    fn command(self) -> Command {
        let program = self.program();
        let mut command = Command::new(on_path(program).unwrap_or_else(|| program.into()));
        match self {
            UcxTcp => drop(command.env("UCX_TLS", "tcp,self")),
            UcxShm => drop(command.env("UCX_TLS", "sm,self")),
            _ => {}
        }
        // It warns of versions and libraries otherwise.
        command.env("UCX_WARN_UNUSED_ENV_VARS", "n");
        command
    }

    fn server(self, case: &Case, plan: &Plan, port: u16) -> Command {
        let mut command = self.command();
        let port = port.to_string();
        match self {
            UcxTcp | UcxShm => command.args(["-p", &port]),
            // Both sides must be told how much comes; they wait for each other otherwise.
            FabricTcp | FabricShm => {
                command.args(self.fabric_words(case, plan)).args(["-B", &port])
            }
            Iperf => command.args(["-s", "-1", "-p", &port]),
            Sockperf => command.args(["server", "--tcp", "-p", &port]),
        };
        command
    }

    fn fabric_words(self, case: &Case, plan: &Plan) -> Vec<String> {
        let way = if self == FabricTcp { "-p tcp -e msg" } else { "-p shm -e rdm" };
        let much = format!("{way} -S {} -I {}", case.size, enough(case, plan.duration));
        much.split(' ').map(str::to_owned).collect()
    }

    fn client(self, case: &Case, plan: &Plan, port: u16) -> Command {
        let mut command = self.command();
        let (port, size) = (port.to_string(), case.size.to_string());
        let addr = plan.address.to_string();
        let count = enough(case, plan.duration);
        let bytes = (count * case.size as u64).to_string();
        let (count, warm) = (count.to_string(), (count / 10).clamp(2, 1000).to_string());
        // sockperf counts in whole seconds.
        let seconds = plan.duration.as_secs().max(1).to_string();
        let ucx = if case.test == Test::Lat { "tag_lat" } else { "tag_bw" };
        let sockperf = if case.test == Test::Lat { "ping-pong" } else { "throughput" };
        match self {
            UcxTcp | UcxShm => command
                .args([&addr, "-p", &port, "-t", ucx, "-s", &size])
                .args(["-n", &count, "-w", &warm, "-f", "-v"]),
            FabricTcp | FabricShm => {
                command.args(self.fabric_words(case, plan)).args(["-P", &port, &addr])
            }
            Iperf => command.args(["-c", &addr, "-p", &port, "-l", &size, "-n", &bytes, "-J"]),
            Sockperf => command
                .args([sockperf, "--tcp", "-i", &addr, "-p", &port, "-m", &size, "-t", &seconds]),
        };
        command
    }

    fn read(self, case: &Case, text: &str) -> Option<Sample> {
        match self {
            UcxTcp | UcxShm => ucx(case, text),
            FabricTcp | FabricShm => fabric(case, text),
            Iperf => {
                let end: Value = serde_json::from_str(text).ok()?;
                let bits = end.pointer("/end/sum_received/bits_per_second")?.as_f64()?;
                Some(throughput(bits / 8e9, case.size))
            }
            Sockperf => sockperf(text),
        }
    }
}

/// Messages that take about as long as a run should, as these programs count and do not
/// look at a clock.
fn enough(case: &Case, duration: Duration) -> u64 {
    let each = case.size as f64 / 5e9 + if case.test == Test::Lat { 3e-6 } else { 0.3e-6 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in bounds")]
    let count = (duration.as_secs_f64() / each).clamp(10.0, 1e7) as u64;
    count
}

fn throughput(gbytes_per_s: f64, size: usize) -> Sample {
    Sample {
        gbytes_per_s: Some(gbytes_per_s),
        msgs_per_s: Some(gbytes_per_s * 1e9 / size as f64),
        ..Sample::default()
    }
}

/// `iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,...`: microseconds
/// (half of a round trip), and MiB in a second.
fn ucx(case: &Case, text: &str) -> Option<Sample> {
    let last = text.lines().rfind(|l| l.trim_start().starts_with(|c: char| c.is_ascii_digit()))?;
    let figures: Vec<f64> = last.split(',').filter_map(|w| w.trim().parse().ok()).collect();
    let [_, p50, _, mean, _, mib, ..] = figures[..] else { return None };
    Some(if case.test == Test::Lat {
        Sample { p50_us: Some(p50), mean_us: Some(mean), ..Sample::default() }
    } else {
        throughput(mib * f64::from(1 << 20) / 1e9, case.size)
    })
}

/// `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`: half of a round trip.
fn fabric(case: &Case, text: &str) -> Option<Sample> {
    let last = text.lines().rfind(|l| !l.trim().is_empty())?;
    let words: Vec<_> = last.split_whitespace().collect();
    let [.., mbytes, micros, _] = words[..] else { return None };
    Some(if case.test == Test::Lat {
        Sample { mean_us: micros.parse().ok(), ..Sample::default() }
    } else {
        throughput(mbytes.parse::<f64>().ok()? / 1000.0, case.size)
    })
}

fn sockperf(text: &str) -> Option<Sample> {
    let after = |what: &str| {
        let (_, rest) = text.split_once(what)?;
        rest.trim_start_matches([' ', '=']).split_whitespace().next()?.parse::<f64>().ok()
    };
    if let Some(rate) = after("Message Rate is ") {
        return Some(Sample { msgs_per_s: Some(rate), ..Sample::default() });
    }
    Some(Sample {
        mean_us: after("Latency is "),
        p50_us: Some(after("percentile 50.000")?),
        p99_us: after("percentile 99.000"),
        p999_us: after("percentile 99.900"),
        ..Sample::default()
    })
}

/// Those that are installed, with their versions.
pub(crate) fn versions() -> Vec<String> {
    // Not all of the programs that measure know it.
    let asked = [
        ("UCX", UcxTcp, "ucx_info", "-v"),
        ("libfabric", FabricTcp, "fi_info", "--version"),
        ("iperf3", Iperf, "iperf3", "--version"),
        ("sockperf", Sockperf, "sockperf", "--version"),
    ];
    let is_version =
        |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    let say = |(name, neighbour, program, flag): (&str, Neighbour, &str, &str)| {
        on_path(neighbour.program())?;
        let text = on_path(program)
            .and_then(|p| run(Command::new(p).arg(flag), Duration::from_secs(10)).ok())
            .unwrap_or_default();
        let version = text.split_whitespace().find(is_version).unwrap_or("of unknown version");
        Some(format!("{name} {version}"))
    };
    asked.into_iter().filter_map(say).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    fn case(test: Test) -> Case {
        let plan = Plan::new(true, None, "127.0.0.1".parse().unwrap());
        plan.sections.iter().flat_map(|s| &s.cases).find(|c| c.test == test).unwrap().clone()
    }

    /// As these programs print it.
    #[test]
    fn what_they_print_is_understood() {
        let text = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                    5000,0.106,84.509,84.5,0.72,1000,11833,11833\n";
        let s = UcxShm.read(&case(Test::Lat), text).unwrap();
        assert_eq!((s.p50_us, s.mean_us), (Some(0.106), Some(84.5)));
        let s = UcxTcp.read(&case(Test::Bw), text).unwrap();
        assert_eq!(s.gbytes_per_s, Some(1.048_576));

        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    1m      200     =200     400m        8.06s     52.03   20153.11       0.00\n";
        assert_eq!(FabricTcp.read(&case(Test::Bw), text).unwrap().gbytes_per_s, Some(0.05203));
        assert_eq!(FabricShm.read(&case(Test::Lat), text).unwrap().mean_us, Some(20153.11));

        let text = "sockperf: Summary: Latency is 12.554 usec\n\
                    sockperf: ---> percentile 99.900 = 1888.696\n\
                    sockperf: ---> percentile 99.000 =   15.232\n\
                    sockperf: ---> percentile 50.000 =    6.099\n";
        let s = Sockperf.read(&case(Test::Lat), text).unwrap();
        assert_eq!((s.p50_us, s.p99_us, s.p999_us), (Some(6.099), Some(15.232), Some(1888.696)));
        let text = "sockperf: Summary: Message Rate is 321816 [msg/sec]\n";
        assert_eq!(Sockperf.read(&case(Test::Rate), text).unwrap().msgs_per_s, Some(321_816.0));

        let text = r#"{"end": {"sum_received": {"bits_per_second": 16e9}}}"#;
        assert_eq!(Iperf.read(&case(Test::Bw), text).unwrap().gbytes_per_s, Some(2.0));
        for neighbour in Neighbour::ALL {
            assert!(neighbour.read(&case(Test::Lat), "it failed\n").is_none(), "{neighbour:?}");
        }
    }
}
