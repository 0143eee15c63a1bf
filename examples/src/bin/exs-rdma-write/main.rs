//! The newcomer's RDMA WRITE: a server writes a string into a client's memory, and the
//! client's processor takes no part in it. Each step says what it is in verbs.

mod steps;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use exs::Host;
use exs_tools::fail::{During, Failure};
use exs_tools::peer::Server;
use exs_tools::{address, out};

const AFTER: &str = "\
Try it:  exs-rdma-write demo
Or on two machines:
         exs-rdma-write serve --listen 0.0.0.0:7472     (here)
         exs-rdma-write OTHER-HOST:7472                 (there)

What happens: the client exports a buffer to the connection and sends its descriptor
(address, length, key) to the server; the server writes a string to that address by RDMA
WRITE, and says so by a message; the client prints what it finds in its memory. Without an
RDMA device the software RNIC does it. Nothing is encrypted.";

#[derive(Parser)]
#[command(name = "exs-rdma-write", version, about = "Show the first RDMA WRITE, step by step",
          max_term_width = 100, after_help = AFTER, args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Where the server listens (HOST:PORT)
    #[arg(value_name = "ADDR:PORT", value_parser = address::host)]
    server: Option<Host>,
}

#[derive(Subcommand)]
enum Command {
    /// Be the server, which writes
    Serve {
        /// Where to listen; port 0 picks a free one
        #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7472",
              value_parser = address::one)]
        listen: SocketAddr,
        /// What to write into each client's buffer
        #[arg(long, default_value = "Hello from the other side, by RDMA WRITE")]
        text: String,
        /// End after one client
        #[arg(long)]
        once: bool,
    },
    /// Run both as two processes on this machine
    Demo,
}

fn main() -> ExitCode {
    out::main(|args: Args| {
        out::failed(match (args.command, args.server) {
            (Some(Command::Serve { listen, text, once }), _) => steps::serve(listen, &text, once),
            (Some(Command::Demo), _) => demo(),
            (None, Some(server)) => steps::client(&server),
            (None, None) => Err(Failure(
                "which server? Give its ADDR:PORT, or `serve` to be one, or `demo` (see --help)"
                    .to_owned(),
            )),
        })
    })
}

fn demo() -> Result<(), Failure> {
    let args = ["serve", "--listen", "127.0.0.1:0", "--once"];
    // A line that cannot be printed is told at the end.
    let print = |line: &str| drop(out!("{line}"));
    let mut server = Server::start(&args, print).during("cannot start the server")?;
    steps::client(&Host::from_addresses([server.addr()]))?;
    if server.wait(Duration::from_secs(10)) {
        Ok(())
    } else {
        Err(Failure("the server did not end well".to_owned()))
    }
}
