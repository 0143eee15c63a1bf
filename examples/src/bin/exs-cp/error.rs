//! Errors, and what the user can do about each.
//!
//! There are two kinds. A [`Trouble`] is of *one file* (no space, no permission,
//! changed while it was read): a line of text for the user, and all other files
//! go on. A [`CpError`] is of the *connection*, or of the whole command: it ends
//! a worker.

use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::disk::relpath::{RelPath, printable, shown};
use crate::wire::codec::WireError;

/// The end of a connection, or of the whole command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CpError {
    /// EXS could not reach the peer.
    #[error("{cause}. Is `exs-cp serve` running there?")]
    Connect { cause: crate::net::NetError },
    /// The connection broke.
    #[error(
        "the connection to {peer} was lost: {cause}. \
         Run the same command again: it continues where this one stopped"
    )]
    Lost { peer: String, cause: crate::net::NetError },
    /// The peer closed the connection before it was done.
    #[error(
        "{peer} closed the connection before everything was done. \
         Run the same command again: it continues where this one stopped"
    )]
    Vanished { peer: String },
    /// The peer said nothing for too long where an answer was due at once.
    #[error("{peer} did not answer within {seconds} s; is it an exs-cp server?")]
    Silent { peer: String, seconds: u64 },
    /// EXS itself refused a local call.
    #[error("EXS: {0}")]
    Exs(crate::net::NetError),
    /// The peer's bytes are not this protocol.
    #[error("the peer broke the exs-cp protocol: {0}")]
    Wire(WireError),
    /// Well-formed frames that make no sense where they came.
    #[error("the peer broke the exs-cp protocol: {0}")]
    Protocol(String),
    /// The peer said no, with its reason.
    #[error("{peer} refused: {reason}")]
    Refused { peer: String, reason: String },
    /// The proof of one of the sides is missing or wrong.
    #[error("{0}")]
    Auth(String),
    /// A local path that the command cannot do without.
    #[error("cannot {what} `{}`: {}{}", printable(path), reason(cause), remedy(cause))]
    Local { what: &'static str, path: PathBuf, cause: io::Error },
    /// All places of a server are taken.
    #[error("as many connections are open already as this server takes; try again later")]
    Busy,
    /// The peer had proved nothing when others needed its place.
    #[error("it proved nothing while others waited, and was dropped")]
    SentAway,
    /// The user's words do not make a command.
    #[error("{0}")]
    Usage(String),
    /// SIGINT or SIGTERM.
    #[error("interrupted; run the same command again: it continues where this one stopped")]
    Interrupted,
}

impl From<crate::net::NetError> for CpError {
    fn from(cause: crate::net::NetError) -> CpError {
        CpError::Exs(cause)
    }
}

impl From<WireError> for CpError {
    fn from(cause: WireError) -> CpError {
        CpError::Wire(cause)
    }
}

impl CpError {
    pub(crate) fn local(
        what: &'static str,
        path: impl Into<PathBuf>,
        cause: impl Into<io::Error>,
    ) -> Self {
        CpError::Local { what, path: path.into(), cause: cause.into() }
    }

    /// The user wrote `-` where a file must be one with a name.
    pub(crate) fn no_stdio(what: &str) -> CpError {
        CpError::Usage(format!(
            "`-` would be {what}, which exs-cp does not copy: it has no name, size and time. Give a \
             file (one that is called `-` is ./-)"
        ))
    }

    /// The exit status that scripts see.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            CpError::Usage(_) => 2,
            CpError::Auth(_) => 3,
            CpError::Interrupted => 130,
            _ => 1,
        }
    }
}

/// Trouble with one file: named, explained, and with the way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    what: String,
    path: RelPath,
    why: String,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}`{}`{}", self.what, self.path, self.why)
    }
}

impl Trouble {
    /// Names the file, the action, the reason, and the way out.
    pub(crate) fn io(what: &str, path: &RelPath, e: impl Into<io::Error>) -> Self {
        let e = e.into();
        let why = format!(": {}{}", reason(&e), remedy(&e));
        Trouble { what: format!("cannot {what} "), path: path.clone(), why }
    }

    /// The same for something that is written or made at the destination.
    pub(crate) fn at_destination(what: &str, path: &RelPath, e: impl Into<io::Error>) -> Self {
        use rustix::io::Errno;
        let e = e.into();
        let why = match Errno::from_io_error(&e) {
            Some(Errno::ISDIR) => {
                "it is a directory at the destination, which no file or link replaces. \
                 Move it away, and run the same command again"
            }
            Some(Errno::NOTDIR) => {
                "a directory is needed where the destination has something else. \
                 Move it away, and run the same command again"
            }
            _ => return Trouble::io(what, path, e),
        };
        Trouble { what: format!("cannot {what} "), path: path.clone(), why: format!(": {why}") }
    }

    pub(crate) fn of(path: &RelPath, text: impl fmt::Display) -> Self {
        Trouble { what: String::new(), path: path.clone(), why: format!(": {text}") }
    }

    /// The same with paths as the user typed them: `typed` stands for `top`.
    pub(crate) fn as_typed(&self, typed: &Path, top: &RelPath) -> String {
        let mut path = typed.as_os_str().as_bytes().to_vec();
        let below = self.path.as_bytes().strip_prefix(top.as_bytes()).unwrap_or_default();
        let below = below.strip_prefix(b"/").unwrap_or(below);
        if !below.is_empty() {
            if path.last().is_some_and(|last| *last != b'/') {
                path.push(b'/');
            }
            path.extend_from_slice(below);
        }
        format!("{}`{}`{}", self.what, shown(&path), self.why)
    }
}

/// The operating system's words without the `(os error N)` behind them.
fn reason(e: &io::Error) -> String {
    let text = e.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

fn remedy(e: &io::Error) -> &'static str {
    use rustix::io::Errno;
    match Errno::from_io_error(e) {
        Some(Errno::NOSPC | Errno::DQUOT) => {
            ". Free some space there and run the same command again: \
             it continues where this one stopped"
        }
        Some(Errno::MFILE | Errno::NFILE) => {
            ". Let exs-cp open more files there (`ulimit -n`) and run the same command again: \
             it continues where this one stopped"
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            ". Give the user that runs exs-cp there the right to it, and run the same command again"
        }
        Some(Errno::XDEV | Errno::LOOP) => {
            ". The path leaves the served directory (through a symbolic link or `..`): refused"
        }
        Some(Errno::NOENT) => {
            ". Check the name. If it was removed meanwhile, there is nothing left to copy"
        }
        Some(Errno::NOTDIR) => ". A directory is needed there. Check the path",
        Some(Errno::FBIG) => ". That file system cannot hold so large a file",
        Some(Errno::ROFS) => ". That file system is mounted read-only",
        Some(Errno::IO) => ". The device reports an error: check it before you rely on the copy",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_path_is_shown_safely_and_its_trouble_without_numbers() {
        let path = Path::new("a\nb\x1b[2J");
        let e = CpError::local("serve", path, rustix::io::Errno::NOTDIR);
        let want = "cannot serve `a\\nb\\u{1b}[2J`: Not a directory. A directory is needed there. \
                    Check the path";
        assert_eq!(e.to_string(), want);
    }

    #[test]
    fn paths_are_shown_as_they_were_typed() {
        let path = |text: &str| RelPath::parse(text.as_bytes()).unwrap();
        for (typed, top, at, shown) in [
            ("/srv/tree", "tree", "tree/a/b", "/srv/tree/a/b"),
            ("/srv/tree/", "tree", "tree/a", "/srv/tree/a"),
            ("./*.txt", "*.txt", "*.txt", "./*.txt"),
            (".", "home", "home/x", "./x"),
            ("/", "", "etc/x", "/etc/x"),
        ] {
            let top = if top.is_empty() { RelPath::root() } else { path(top) };
            let told = Trouble::of(&path(at), "why").as_typed(Path::new(typed), &top);
            assert_eq!(told, format!("`{shown}`: why"));
        }
    }
}
