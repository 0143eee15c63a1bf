//! What EXS finds on this host: transports, RDMA devices and their ports and limits; and
//! what it would choose for an address, and why.
//!
//! Shape: `facts` collects, `show` prints; `--json` prints the facts as they are.

mod facts;
mod show;

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use clap::Parser;
use exs_examples::road::Road;
use facts::Facts;

const AFTER: &str = "\
Examples:
  exs-info                          what there is
  exs-info 192.0.2.7                what a connection to that host would go by
  exs-info host:7471 --json         the same, as one JSON object
  exs-info 192.0.2.7 --transport verbs   as a program that insists on a device

Nothing is sent to the address: whether a peer answers there, only a connection tells.";

#[derive(Parser)]
#[command(name = "exs-info", version, about = "Show what EXS finds on this host",
          max_term_width = 100, after_help = AFTER)]
struct Args {
    /// Show what would be chosen for this address (ADDR or ADDR:PORT, or a name)
    #[arg(value_name = "ADDRESS")]
    address: Option<String>,
    #[command(flatten)]
    road: Road,
    /// Print one JSON object instead of lines for people
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("exs-info: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    let to = args.address.as_deref().map(resolve).transpose()?;
    let facts = Facts::collect(to, &args.road.options()).map_err(|e| e.to_string())?;
    if args.json {
        println!("{}", serde_json::to_string(&facts).map_err(|e| e.to_string())?);
    } else {
        print!("{}", show::text(&facts));
    }
    Ok(())
}

/// An address, with or without a port, which does not matter here; or a name.
fn resolve(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.to_socket_addrs();
    let found = with_port.or_else(|_| (text.trim_matches(['[', ']']), 0).to_socket_addrs());
    let found = found.map_err(|e| format!("`{text}` is no ADDRESS or ADDRESS:PORT ({e})"))?;
    let mut found = found;
    found.next().ok_or_else(|| format!("`{text}` has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_need_no_port() {
        for (text, ip, port) in [
            ("192.0.2.7", "192.0.2.7", 0),
            ("192.0.2.7:7471", "192.0.2.7", 7471),
            ("::1", "::1", 0),
            ("[::1]", "::1", 0),
            ("[2001:db8::1]:7", "2001:db8::1", 7),
        ] {
            let addr = resolve(text).unwrap();
            assert_eq!((addr.ip().to_string().as_str(), addr.port()), (ip, port));
        }
        assert!(resolve("192.0.2.7:port").is_err());
    }
}
