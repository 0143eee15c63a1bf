//! Where it was measured: figures without a machine are worth nothing.

use std::fs;
use std::process::Command;
use std::time::Duration;

use exs_tools::fail::Failure;
use exs_tools::tell;
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
    /// Share of the processors that others had before.
    pub(crate) busy_before: f64,
    /// Runnable threads afterwards, mean of one minute.
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
        let busy = if quick { busy(MOMENT) } else { quiet() };
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
            busy_before: busy,
            load_after: load(),
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
            "{}, {} cores{inside}, {:.1} GiB of memory, Linux {} (TCP: {}), {}; {:.0} % busy before, load {:.2} after",
            self.cpu,
            self.cores,
            self.memory_gib,
            self.kernel,
            self.tcp_congestion,
            self.date,
            100.0 * self.busy_before,
            self.load_after
        )
    }

    /// True if others had a good part of the machine before, when no thread of ours ran.
    pub(crate) fn is_noisy(&self) -> bool {
        self.busy_before > QUIET
    }
}

fn read(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// How long to look, how often, and what is quiet. After `make` the kernel writes the new files to
/// disk for some seconds more.
const MOMENT: Duration = Duration::from_secs(2);
const MOMENTS: u32 = 15;
const QUIET: f64 = 0.1;

/// Waits for a quiet moment, for half a minute at most; says how busy it was last.
fn quiet() -> f64 {
    let mut share = busy(MOMENT);
    for _ in 1..MOMENTS {
        if share <= QUIET {
            break;
        }
        tell!("exs-bench: {:.0} % of the machine is busy: waiting", 100.0 * share);
        share = busy(MOMENT);
    }
    share
}

/// The share of the processors' time that is not idle during the next `moment`; 0 if the system
/// does not tell.
fn busy(moment: Duration) -> f64 {
    let before = times(&read("/proc/stat"));
    // sleep-ok: nothing is waited for; this is how long the processors are watched.
    std::thread::sleep(moment);
    before.zip(times(&read("/proc/stat"))).map_or(0.0, |(before, after)| {
        let [idle, all] = [after.0 - before.0, after.1 - before.1];
        if all > 0.0 { 1.0 - idle / all } else { 0.0 }
    })
}

/// Time that was idle (or waited for a disk), and all of it, out of /proc/stat (proc_stat(5)):
/// user, nice, system, idle, iowait, irq, softirq, steal. What guests get counts as user already.
fn times(stat: &str) -> Option<(f64, f64)> {
    let line = stat.lines().find_map(|l| l.strip_prefix("cpu "))?;
    let times: Vec<f64> = line.split_whitespace().take(8).map_while(|n| n.parse().ok()).collect();
    let idle = times.get(3)? + times.get(4).unwrap_or(&0.0);
    Some((idle, times.iter().sum()))
}

fn load() -> f64 {
    read("/proc/loadavg").split(' ').next().and_then(|l| l.parse().ok()).unwrap_or(0.0)
}

/// What a small program says, if it is there.
fn say(program: &str, args: &[&str]) -> Option<String> {
    let text = run(Command::new(program).args(args), Duration::from_secs(10)).ok()?;
    Some(text.trim().to_owned()).filter(|t| !t.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_told_from_the_rest() {
        let stat = "cpu  10 1 20 100 5 2 3 4 7 7\ncpu0 1 1 1 1 1 1 1 1 0 0\nintr 5\n";
        assert_eq!(times(stat), Some((105.0, 145.0)));
        assert_eq!(times("cpu 1 2 3"), None);
        assert_eq!(times(""), None);
        let share = busy(Duration::from_millis(20));
        assert!((0.0..=1.0).contains(&share), "{share}");
    }
}
