//! exs-cp: copies files and directory trees between machines over EXS.
//!
//! The parts, from the bottom up; a part uses those above it in this list only:
//! - `wire`: the protocol as bytes; read its essay for how a file travels;
//! - `hash`, `auth`: BLAKE3 in pieces; proofs that hide what they prove;
//! - `disk`: paths that cannot leave a directory, partial files, journals;
//! - `net`: one EXS socket, its event queue and registered memory;
//! - `transfer`: one file out, one file in;
//! - `command`: put, get, ls, serve, demo.

use std::process::ExitCode;

use exs_tools::out;

mod auth;
mod cli;
mod command;
mod disk;
mod error;
mod hash;
mod net;
mod report;
#[cfg(test)]
mod testing;
mod transfer;
mod wire;

fn main() -> ExitCode {
    out::main(|cli: cli::Cli| {
        let done = command::stop_flag().and_then(|stop| match &cli.command {
            cli::Command::Serve(args) => command::serve::run(args, &stop),
            cli::Command::Put(args) => command::put::run(args, &stop),
            cli::Command::Get(args) => command::get::run(args, &stop),
            cli::Command::Ls(args) => command::ls::run(args, &stop),
            cli::Command::Demo(args) => command::demo::run(args, &stop),
        });
        done.map_err(|e| (e.exit_code(), e.to_string()))
    })
}
