//! The processes of this host that use EXS and offer their figures: their sockets, peers,
//! transports, rates, counters and stalls. It is for EXS what `ss -ti` and top(1) are for TCP and
//! processes.
//!
//! Shape: `source` finds the processes and reads a snapshot of each. `model` is what a snapshot says.
//! `world` puts the snapshots of one moment together, and computes rates from two moments. `columns`
//! makes rows of text of it. `once` prints them. `app` is the state of the live view, which keys
//! change; `view` draws it; `live` owns the terminal.

mod app;
mod columns;
mod live;
mod model;
mod once;
mod source;
mod units;
mod view;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use exs_tools::out;

use crate::columns::Sort;

const AFTER: &str = "\
Examples:
  exs-top                        a live view, as top(1)
  exs-top --filter 7471          only what names that port
  exs-top --once                 a table of all sockets
  exs-top --once --interval 1    the same, with the rates of one second
  exs-top --once --json          for scripts
  exs-top --pid 4711             only that process

A process offers its figures if the environment variable EXS_STATS is `on`, or if it asks EXS to.

Exit status: 0; 1 no process offers its figures, or that of --pid does not; 2 wrong usage.";

#[derive(Parser)]
#[command(name = "exs-top", version, about = "Show the processes of this host that use EXS, live",
          max_term_width = 100, after_help = AFTER)]
struct Args {
    /// Print once, and end
    #[arg(long)]
    once: bool,
    /// With --once: print one JSON object instead of a table
    #[arg(long, requires = "once")]
    json: bool,
    /// Only this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Only sockets and processes whose line has this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Sort by this column
    #[arg(long, value_name = "COLUMN", value_enum)]
    sort: Option<Sort>,
    /// The time between two snapshots [default: 1s]; with --once: measure rates over this time
    #[arg(long, value_name = "TIME", value_parser = interval)]
    interval: Option<Duration>,
    /// Look only in this directory for processes
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<std::path::PathBuf>,
}

/// From 50 ms on: more often, a view only costs.
fn interval(text: &str) -> Result<Duration, String> {
    let time = exs::parse_time(text).map_err(|e| e.to_string())?;
    if time < Duration::from_millis(50) {
        return Err("the interval is 50ms or more".to_owned());
    }
    Ok(time)
}

fn main() -> ExitCode {
    out::main(|args: Args| {
        let source = source::Source::new(args.directory.clone(), args.pid);
        match args.once {
            true => once::run(&args, &source),
            false => live::run(&args, source),
        }
    })
}
