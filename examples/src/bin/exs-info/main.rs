//! What EXS finds on this host: transports, RDMA devices and their ports and limits; and
//! what it would choose for an address, and why.
//!
//! Shape: `facts` collects, `show` prints; `--json` prints the facts as they are. `doctor` looks for
//! what is wrong with the host.

mod doctor;
mod facts;
mod show;

use std::process::ExitCode;

use clap::Parser;
use exs_tools::road::Road;
use exs_tools::{address, out};
use facts::Facts;

const AFTER: &str = "\
Examples:
  exs-info                          what there is
  exs-info 192.0.2.7                what a connection to that host would go by
  exs-info host:7471 --json         the same, as one JSON object
  exs-info 192.0.2.7 --transport verbs   as a program that insists on a device
  exs-info --doctor                 what is wrong with this host, and what to do
  exs-info --doctor --serve         on the other host: the end of a test connection
  exs-info --doctor host            the checks, and a test connection to that

Without --doctor nothing is sent to the address: whether a peer answers there, only a connection tells.

Exit status: 0; 1 if the transport or the device that was asked for is not there, or the address
cannot be reached by it; 2 wrong usage. With --doctor: 0 all is well; 1 something that is there, or
was asked for, does not work; 2 wrong usage; 3 all works, with warnings.";

#[derive(Parser)]
#[command(name = "exs-info", version, about = "Show what EXS finds on this host",
          max_term_width = 100, after_help = AFTER)]
struct Args {
    /// Show what would be chosen for this address (ADDR or ADDR:PORT, or a name)
    #[arg(value_name = "ADDRESS")]
    address: Option<String>,
    /// Look for what is wrong with this host, and say what to do; with ADDRESS try a
    /// connection to an EXS program there, or to --serve
    #[arg(long)]
    doctor: bool,
    /// Be the other end of test connections [default: 0.0.0.0:7471]
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, require_equals = true,
          default_missing_value = "0.0.0.0:7471", requires = "doctor",
          conflicts_with_all = ["address", "json"])]
    serve: Option<String>,
    #[command(flatten)]
    road: Road,
    /// Print one JSON object instead of lines for people
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    out::main(|args: Args| match args.doctor {
        true => doctor(&args),
        false => out::failed(run(&args)),
    })
}

fn doctor(args: &Args) -> Result<u8, (u8, String)> {
    let options = args.road.options();
    if let Some(listen) = &args.serve {
        let listen = address::one(listen).map_err(|e| (2, e))?;
        return out::failed(doctor::serve(listen, &options));
    }
    let to = args.address.as_deref().map(address::with_or_without_port).transpose();
    let mut to = to.map_err(|e| (2, e))?;
    if let Some(addr) = to.as_mut().filter(|addr| addr.port() == 0) {
        addr.set_port(doctor::PORT);
    }
    doctor::examine(to, &options, args.json)
}

fn run(args: &Args) -> Result<(), String> {
    let to = args.address.as_deref().map(address::with_or_without_port).transpose()?;
    let options = args.road.options();
    let facts = Facts::collect(to, &options).map_err(|e| e.to_string())?;
    let written = if args.json {
        out!("{}", serde_json::to_string(&facts).map_err(|e| e.to_string())?)
    } else {
        out!("{}", show::text(&facts).trim_end())
    };
    written.map_err(|e| e.to_string())?;
    facts.missing(&options).map_or(Ok(()), Err)
}
