//! Makes the declarations of libibverbs and librdmacm that EXS uses, from those of rdma-sys.
//!
//!     exs-bindings BINDINGS TYPES RAW LIBRARY...
//!
//! BINDINGS is the file that rdma-sys generates when it is built, TYPES its hand-written unions. RAW
//! is the directory of EXS that uses the declarations. Each LIBRARY is a shared library: readelf(1)
//! gives the versions of its symbols. The result goes to the standard output.
//!
//! The result has the names that the code below RAW uses after `sys::`, and the types that they
//! contain. A type that EXS only points to is opaque. A pointer to a function that EXS does not call
//! has no signature. So the file stays small, and a reviewer can read it.

mod names;
mod print;
mod versions;

use std::path::Path;
use std::process::ExitCode;

fn run(args: &[String]) -> Result<String, String> {
    let [bindings, types, raw, libraries @ ..] = args else {
        return Err("usage: exs-bindings BINDINGS TYPES RAW LIBRARY...".to_owned());
    };
    let used = names::Used::of(Path::new(raw))?;
    let files = [names::parse(Path::new(bindings))?, names::parse(Path::new(types))?];
    let versions = versions::read(libraries)?;
    print::declarations(&used, &files, &versions)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("exs-bindings: {e}");
            ExitCode::FAILURE
        }
    }
}
