//! Throughput, latency, message rate and their cost, of EXS over each of its transports and
//! of plain sockets between the same two processes.
//!
//! Shape: client and server talk over a *control* connection (`control`), plain TCP, so that
//! it takes no part in what is measured. For each run the client sends a `job`; both sides
//! open its connections (`links`) and hand them to *parts*, one for each thread (`crew`): an
//! event loop over EXS sockets (`exs_flow`, `exs_echo`), or a blocking loop over a plain one
//! (`plain_part`). All parts warm up, meet at a gate, and run until the client's time is up;
//! then each end of a connection is shut down, so that the last byte is known to have arrived
//! before the clock stops. `usage` is what that cost, `report` prints it. `cores` stands apart: it
//! measures how programs of several shapes use all cores.

mod cli;
mod client;
mod control;
mod cores;
mod crew;
mod exs_echo;
mod exs_flow;
mod idle;
mod job;
mod links;
mod memcpy;
mod plain_part;
mod report;
mod server;
mod usage;

use std::process::ExitCode;

use cli::Command;
use exs_tools::out;

fn main() -> ExitCode {
    out::main(|cli: cli::Cli| {
        out::failed(match cli.command {
            Command::Serve(args) => server::serve(&args),
            Command::Bw(args) => client::run(job::Test::Bw, &args),
            Command::Bibw(args) => client::run(job::Test::Bibw, &args),
            Command::Lat(args) => client::run(job::Test::Lat, &args),
            Command::Rate(args) => client::run(job::Test::Rate, &args),
            Command::Idle(args) => idle::run(&args),
            Command::Memcpy(args) => memcpy::run(&args),
            Command::Cores(args) => cores::run(&args),
            Command::CoresSample(inner) => cores::sample::run(&inner.json),
            Command::CoresServe(inner) => cores::serve::run(&inner.json),
        })
    })
}
