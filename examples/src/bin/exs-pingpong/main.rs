//! Latency and bandwidth of EXS between two processes, as ibv_rc_pingpong shows them for
//! verbs; and, if asked, plain TCP beside it in the same run.
//!
//! Shape: a client and a server talk over a *control* connection (`control`), by which the
//! client has the server open *links* (`link`: EXS or plain TCP) and take its part in
//! each measurement. `client` decides what is measured and prints it (`report`).

mod cli;
mod client;
mod control;
mod exs_link;
mod link;
mod report;
mod server;
mod tcp_link;

use std::process::ExitCode;

use exs_tools::out;

fn main() -> ExitCode {
    out::main(|args: cli::Args| {
        out::failed(match args.role() {
            cli::Role::Serve => server::serve(args.listen, &args.road, args.once),
            cli::Role::Client(addr) => client::run(&addr, &args),
            cli::Role::Demo => client::demo(&args),
        })
    })
}
