//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use exs_tools::road::Road;

/// Copy files and directory trees between machines over EXS.
///
/// THE DATA ARE NOT ENCRYPTED. A program that can listen on the network between
/// the two sides can read the files that are copied, and can change them on
/// the way. A token proves to each side that the other knows it; it hides
/// nothing. Use exs-cp on networks you trust, or inside a VPN.
#[derive(Parser)]
#[command(name = "exs-cp", version, max_term_width = 100, after_help = AFTER)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER: &str = "\
The data are not encrypted; see --help.

Directories, modes, times, symbolic links (as links) and sparse files are kept; set-user-ID, \
set-group-ID and sticky bits of files with --preserve-special only; hard links become \
files of their own; owners, ACLs and extended attributes are not copied; fifos, sockets and \
devices in a directory are skipped with a warning, one that is named itself is an error. At the destination a copy \
replaces files and symbolic links; anything else that has its name is an error, and stays.

A file gets its name when the side that wrote it has hashed all of its bytes (BLAKE3), when that is \
the hash of the source, and when the data are on the disk. The command ends when the names are on \
the disk, too. A file that is there already, of the same size and modification time, is read on both \
sides and compared. \"Verified\" means that all of this holds for every file in this run. A command \
that was interrupted, run again, reads back what it finds of an unfinished file, and continues there.

Exit status: 0 all done; 1 something could not be copied (the rest was); 2 wrong usage; \
3 the token was refused; 130 interrupted.";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Offer a directory: clients may read all of it, and write into it.
    Serve(Serve),
    /// Copy files and directories to a server: put PATH... ADDR:PORT
    #[command(override_usage = "exs-cp put [OPTIONS] PATH... ADDR:PORT")]
    Put(Put),
    /// Copy files and directories from a server: get ADDR:PORT PATH... DEST
    #[command(override_usage = "exs-cp get [OPTIONS] ADDR:PORT PATH... DEST")]
    Get(Get),
    /// List what a server has.
    Ls(Ls),
    /// Show all of it: a server and a client on this machine, a real tree, both ways, compared.
    Demo(Demo),
}

#[derive(Args)]
pub(crate) struct Serve {
    /// The directory to serve. Nothing outside it is reachable.
    pub(crate) dir: PathBuf,
    /// Where to listen; port 0 takes a free one. The data are not encrypted.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7471")]
    pub(crate) listen: String,
    /// Only clients that know the content of this file (`-`: standard input) are served.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Print one JSON object at the end instead of lines for people.
    #[arg(long)]
    pub(crate) json: bool,
    /// Listen on other addresses than loopback without a token: every host that
    /// reaches the port can read and write the directory.
    #[arg(long)]
    pub(crate) allow_anonymous: bool,
    /// Let clients that ask for it set set-user-ID, set-group-ID and sticky bits of what they put.
    #[arg(long)]
    pub(crate) preserve_special: bool,
    /// End a connection on which nothing has happened for this long.
    #[arg(long, value_name = "SECONDS", default_value_t = 600,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) idle_timeout: u64,
    #[command(flatten)]
    pub(crate) road: Road,
}

/// Options of all clients.
#[derive(Args, Clone, Default)]
pub(crate) struct Client {
    /// Prove to the server that this side knows the content of this file (`-`: standard input), and
    /// ask the server for the same proof.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Print exactly one JSON object at the end instead of lines for people.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) road: Road,
}

/// Options of put and get.
#[derive(Args, Clone, Default)]
pub(crate) struct Moving {
    /// Use this many connections, each with a thread of its own.
    #[arg(short, long = "jobs", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) jobs: u16,
    /// Do not compute and compare BLAKE3 hashes; implies --quick. Nothing is reported as
    /// verified.
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Believe files that are there with equal size and modification time, instead of reading
    /// them on both sides. They are reported as present, not as verified.
    #[arg(long, conflicts_with = "force")]
    pub(crate) quick: bool,
    /// Send all files, also those that are there with equal size and modification time.
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not wait for the disk: faster with many small files, but a power cut soon after the
    /// end can leave files empty, or with wrong content under their names.
    #[arg(long, conflicts_with = "sync")]
    pub(crate) no_sync: bool,
    /// Report success when everything is on the disk, which is the default.
    #[arg(long, hide = true)]
    pub(crate) sync: bool,
    /// Keep set-user-ID, set-group-ID and sticky bits of files, which a copy loses otherwise.
    /// The copy belongs to the user that the receiving side runs as. For put, the server must
    /// have been started with the same option.
    #[arg(long)]
    pub(crate) preserve_special: bool,
}

#[derive(Args)]
pub(crate) struct Put {
    /// Files and directories, and last the server's address.
    #[arg(required = true, num_args = 2.., value_names = ["PATH", "ADDR:PORT"])]
    pub(crate) words: Vec<OsString>,
    /// Put them into this directory of the server's (made if missing).
    #[arg(long, value_name = "DIR")]
    pub(crate) into: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) client: Client,
    #[command(flatten)]
    pub(crate) moving: Moving,
}

#[derive(Args)]
pub(crate) struct Get {
    /// The server's address, paths on it, and last where to put them here.
    #[arg(required = true, num_args = 3.., value_names = ["ADDR:PORT", "PATH", "DEST"])]
    pub(crate) words: Vec<OsString>,
    #[command(flatten)]
    pub(crate) client: Client,
    #[command(flatten)]
    pub(crate) moving: Moving,
}

#[derive(Args)]
pub(crate) struct Ls {
    /// The server.
    #[arg(value_name = "ADDR:PORT")]
    pub(crate) server: String,
    /// A file or directory on it.
    pub(crate) path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) client: Client,
}

#[derive(Args)]
pub(crate) struct Demo {
    /// Copy about this much: a number of MiB, or a size with a unit (64MiB, 1g).
    #[arg(long, value_name = "SIZE", value_parser = size_limit)]
    pub(crate) size_limit: Option<u64>,
    /// Copy this tree instead of the Rust toolchain's lib and share.
    #[arg(long, value_name = "DIR")]
    pub(crate) tree: Option<PathBuf>,
    /// Use this many connections.
    #[arg(short, long = "jobs", value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) jobs: u16,
}

/// A size; a number alone is of MiB.
fn size_limit(text: &str) -> Result<u64, String> {
    let bare = text.trim().bytes().all(|b| b.is_ascii_digit());
    let unit = if bare { "MiB" } else { "" };
    exs::parse_size(&format!("{text}{unit}")).map_err(|e| e.to_string())
}
