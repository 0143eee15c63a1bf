//! Each run is a process of its own, so that none finds what the one before left behind: queues,
//! threads, memory, sockets that are closing. [`take`] starts it, and [`run`] is what it does.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use exs_tools::fail::{During, Failure};
use exs_tools::out;
use exs_tools::peer::await_end;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::carrier::Carrier;
use super::shape::{Sample, Shape};

/// The command of exs-perf that runs a task. Users do not see it.
const COMMAND: &str = "cores-sample";

/// A shape over a transport, or over none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Subject {
    pub(super) shape: Shape,
    pub(super) carrier: Option<Carrier>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Task {
    subject: Subject,
    duration: Duration,
}

/// Measures once, in a new process.
pub(super) fn take(subject: Subject, duration: Duration) -> Result<Sample, Failure> {
    let text = serde_json::to_string(&Task { subject, duration }).during("JSON")?;
    let program = std::env::current_exe().during("the path of this program")?;
    let mut command = Command::new(program);
    command.args([COMMAND, &text]).stdin(Stdio::null()).stdout(Stdio::piped());
    // The C library has no other way to choose.
    if let Some(Carrier::Exs(transport)) = subject.carrier {
        command.env("EXS_TRANSPORT", transport.to_string());
    }
    if let Some(shards) = subject.shape.shards() {
        command.env("EXS_SHARDS", shards.to_string());
    }
    let mut child = command.stderr(Stdio::piped()).spawn().during("cannot start a run")?;
    let limit = subject.shape.limit(duration);
    let ended = await_end(&mut child, limit);
    if !matches!(ended, Ok(Some(_))) {
        // It fails only if the process has ended already.
        let _ = child.kill();
    }
    let status = child.wait().during("a run")?;
    let (mut result, mut why) = (String::new(), String::new());
    if matches!(ended, Ok(None)) {
        return Err(Failure(format!(
            "the run has not ended after {} s: it hangs, or the machine is overloaded",
            limit.as_secs()
        )));
    }
    if let (Some(out), Some(err)) = (&mut child.stdout, &mut child.stderr) {
        out.read_to_string(&mut result).during("the output of a run")?;
        err.read_to_string(&mut why).during("the output of a run")?;
    }
    if !status.success() {
        return Err(Failure(format!("{status}: {}", why.trim())));
    }
    serde_json::from_str(&result).during("the output of a run")
}

/// Runs a task, as [`take`] has written it.
pub(crate) fn run(text: &str) -> Result<(), Failure> {
    end_with_parent()?;
    let Task { subject, duration } = serde_json::from_str(text).during("the task")?;
    let sample = subject.shape.measure(subject.carrier, duration)?;
    out!("{}", serde_json::to_string(&sample).during("JSON")?)?;
    Ok(())
}

/// Has the system end this process when its parent ends.
pub(super) fn end_with_parent() -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::TERM)).during("PR_SET_PDEATHSIG")
}
