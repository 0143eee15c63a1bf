//! `exs-info --doctor`: looks at what goes wrong in the field, and says what to do about it.
//!
//! Shape: `read` takes a picture of the host, a [`Host`]. `probe` adds the connections that it tries to
//! that. The checks, in `checks` and `network`, are functions from the picture to [`Finding`]s, and look
//! at nothing else: a test makes up a host, and no check depends on the machine. `serve` is the other
//! end of a test connection.

mod checks;
mod finding;
mod host;
mod network;
mod probe;
mod read;
mod serve;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use exs::{Options, Transport};
use exs_tools::out;
use exs_tools::out::Lost;
use finding::{Finding, Severity};
use host::Host;
use serde::Serialize;

pub(crate) use serve::serve;

/// The port of `--serve`, unless the user gives another one.
pub(crate) const PORT: u16 = 7471;

/// Statuses of the program.
const FAULTS: u8 = 1;
const WARNINGS: u8 = 3;

/// What is printed as JSON.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    /// The worst severity of all findings.
    worst: Severity,
    findings: Vec<Finding>,
}

/// Looks at this host, and tries a connection to `to`. The result is the exit status.
pub(crate) fn examine(
    to: Option<SocketAddr>,
    options: &Options,
    json: bool,
) -> Result<u8, (u8, String)> {
    let mut host = read::host(options);
    host.insists = options.transport == Transport::Verbs || options.device.is_some();
    if host.broken.is_none() {
        host.tries = probe::within(&host, options);
        if let Some(to) = to {
            host.tries.extend(probe::to(to, options).map_err(|e| (FAULTS, e))?);
        }
    }
    let findings = findings(&host);
    let worst = findings.iter().map(|f| f.severity).max().unwrap_or(Severity::Ok);
    let report = Report { version: exs::VERSION, worst, findings };
    show(&report, json).map_err(|e| (FAULTS, e.to_string()))?;
    Ok(status(worst))
}

fn findings(host: &Host) -> Vec<Finding> {
    checks::ALL.iter().chain(&network::ALL).flat_map(|check| check(host)).collect()
}

fn status(worst: Severity) -> u8 {
    match worst {
        Severity::Ok | Severity::Note => 0,
        Severity::Warning => WARNINGS,
        Severity::Fault => FAULTS,
    }
}

fn show(report: &Report, json: bool) -> Result<(), Lost> {
    if json {
        let text = serde_json::to_string(report).unwrap_or_default();
        return out!("{text}");
    }
    for finding in &report.findings {
        out!("{}", line(finding))?;
    }
    let count = |severity| report.findings.iter().filter(|f| f.severity == severity).count();
    let (faults, warnings) = (count(Severity::Fault), count(Severity::Warning));
    let many = |n: usize, what| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    out!("EXS {}: {}, {}", report.version, many(faults, "fault"), many(warnings, "warning"))
}

fn line(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Ok => "ok",
        Severity::Note => "note",
        Severity::Warning => "WARNING",
        Severity::Fault => "FAULT",
    };
    let line = format!("{severity:<8} {:<12} {}", finding.check, finding.text);
    match &finding.advice {
        Some(advice) => format!("{line}\n{:<21} -> {advice}", ""),
        None => line,
    }
}
