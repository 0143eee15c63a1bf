//! Where it was measured: figures without a machine are worth nothing.

use std::fs;
use std::process::Command;
use std::time::Duration;

use exs_examples::fail::Failure;
use serde::Serialize;

use crate::neighbours::versions;
use crate::process::run;

/// The machine, as it says of itself.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: f64,
    pub(crate) kernel: String,
    /// Hypervisor or container, if it says so.
    pub(crate) inside: Option<String>,
    /// Of how TCP paces itself.
    pub(crate) tcp_congestion: String,
    pub(crate) date: String,
    /// Runnable threads, mean of one minute: before, and after.
    pub(crate) load_before: f64,
    pub(crate) load_after: f64,
    pub(crate) exs: &'static str,
    pub(crate) commit: Option<String>,
    pub(crate) neighbours: Vec<String>,
    /// Only to see whether everything runs.
    pub(crate) quick: bool,
}

impl Machine {
    pub(crate) fn look(quick: bool) -> Result<Machine, Failure> {
        let cpuinfo = read("/proc/cpuinfo");
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|l| l.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let kib = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|m| m.split(' ').next()?.parse::<f64>().ok());
        let load = load();
        Ok(Machine {
            cpu: field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: kib.unwrap_or(0.0) / f64::from(1 << 20),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            inside: say("systemd-detect-virt", &[])
                .filter(|v| v != "none")
                .or_else(|| cpuinfo.contains(" hypervisor").then(|| "a hypervisor".to_owned())),
            tcp_congestion: read("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned(),
            date: say("date", &["-u", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_default(),
            load_before: load,
            load_after: load,
            exs: exs::VERSION,
            commit: say("git", &["describe", "--always", "--dirty"]),
            neighbours: versions(),
            quick,
        })
    }

    pub(crate) fn note_load_after(&mut self) {
        self.load_after = load();
    }

    /// As a line for people.
    pub(crate) fn line(&self) -> String {
        let inside = self.inside.as_ref().map_or_else(String::new, |i| format!(" ({i})"));
        format!(
            "{}, {} cores{inside}, {:.1} GiB of memory, Linux {} (TCP: {}), {}; load {:.2} before, {:.2} after",
            self.cpu,
            self.cores,
            self.memory_gib,
            self.kernel,
            self.tcp_congestion,
            self.date,
            self.load_before,
            self.load_after
        )
    }

    /// True if others had a good part of the machine: the load before counts no thread of ours.
    pub(crate) fn is_noisy(&self) -> bool {
        self.load_before > 0.25 * self.cores as f64
    }
}

fn read(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

fn load() -> f64 {
    read("/proc/loadavg").split(' ').next().and_then(|l| l.parse().ok()).unwrap_or(0.0)
}

/// What a small program says, if it is there.
fn say(program: &str, args: &[&str]) -> Option<String> {
    let text = run(Command::new(program).args(args), Duration::from_secs(10)).ok()?;
    Some(text.trim().to_owned()).filter(|t| !t.is_empty())
}
