//! `exs-cp ls`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;

use crate::cli::Ls;
use crate::disk::meta::{Kind, Meta};
use crate::disk::relpath::{RelPath, printable};
use crate::error::CpError;
use crate::net::session::unexpected;
use crate::report::{print_json, say, tell};
use crate::wire::frame::Frame;

#[derive(Serialize)]
struct Listing {
    entries: Vec<Line>,
    errors: Vec<String>,
}

#[derive(Serialize)]
struct Line {
    path: String,
    kind: &'static str,
    mode: String,
    size: u64,
    mtime: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

pub(crate) fn run(args: &Ls, stop: &Arc<AtomicBool>) -> Result<u8, CpError> {
    let done = list(args, stop);
    if let (Err(e), true) = (&done, args.client.json) {
        print_json(&Listing { entries: Vec::new(), errors: vec![e.to_string()] });
    }
    done
}

fn list(args: &Ls, stop: &Arc<AtomicBool>) -> Result<u8, CpError> {
    let dialer = args.client.dialer(&args.server, stop)?;
    let path = match &args.path {
        Some(p) => {
            RelPath::from_user(p).map_err(|e| CpError::Usage(format!("`{}`: {e}", p.display())))?
        }
        None => RelPath::root(),
    };
    let mut ch = dialer.open(&Frame::List { path: path.clone() })?;
    let mut listing = Listing { entries: Vec::new(), errors: Vec::new() };
    loop {
        match ch.frame()? {
            // The directory itself comes first; its entries are the answer.
            Frame::Entry { path: p, meta, .. } if p == path && meta.kind == Kind::Dir => {}
            Frame::Entry { path, meta, target } => {
                listing.entries.push(line(&path, &meta, &target))
            }
            Frame::Warn { error: true, text } => listing.errors.push(format!("the server {text}")),
            Frame::Warn { error: false, text } if !args.client.json => tell(&text),
            Frame::Warn { .. } => {}
            Frame::EndOfList => break,
            Frame::Refuse { text } => {
                return Err(CpError::Refused { peer: ch.peer().to_owned(), reason: text });
            }
            other => return Err(unexpected(&other)),
        }
    }
    for e in &listing.errors {
        tell(e);
    }
    if args.client.json {
        print_json(&listing);
    } else {
        listing.entries.iter().for_each(show);
    }
    Ok(u8::from(!listing.errors.is_empty()))
}

#[expect(clippy::cast_precision_loss, reason = "a time in seconds for JSON, exact to microseconds")]
fn line(path: &RelPath, meta: &Meta, target: &[u8]) -> Line {
    use std::os::unix::ffi::OsStrExt;
    let kind = match meta.kind {
        Kind::File => "file",
        Kind::Dir => "dir",
        Kind::Symlink => "symlink",
    };
    let target = (meta.kind == Kind::Symlink)
        .then(|| printable(std::path::Path::new(std::ffi::OsStr::from_bytes(target))));
    Line {
        path: printable(path.as_path()),
        kind,
        mode: format!("{:04o}", meta.mode),
        size: meta.size,
        mtime: meta.mtime.seconds as f64 + f64::from(meta.mtime.nanos) / 1e9,
        target,
    }
}

fn show(l: &Line) {
    let letter = match l.kind {
        "dir" => 'd',
        "symlink" => 'l',
        _ => '-',
    };
    let arrow = l.target.as_ref().map_or(String::new(), |t| format!(" -> {t}"));
    say(&format!("{letter} {} {:>15}  {}{arrow}", l.mode, l.size, l.path));
}
