//! The figures of this process, for readers outside of it. This is an EXS extension.
//!
//! A process *offers* its figures by a Unix socket, if the environment variable `EXS_STATS` is `on`
//! (or `1`), or if it calls [`offer`]. `exs-top` shows the processes of the host that do. So does any
//! program that reads a Unix socket: each connection gets one snapshot as lines of JSON, and then the
//! end of the data. What a reader sends is ignored.
//!
//! ```text
//! $ socat - UNIX-CONNECT:/run/user/1000/exs/4711.sock
//! {"type":"process","format":1,"exs":"0.1.0","pid":4711,"name":"server","at_us":5000012,...}
//! {"type":"socket","id":"0.0.1","state":"open","local":"127.0.0.1:7471","transport":"soft",...}
//! {"type":"end","sockets":1}
//! ```
//!
//! The socket is named after the process, as `4711.sock`. Its directory is the first of these:
//! 1. the directory that `EXS_STATS` names by an absolute path;
//! 2. `$XDG_RUNTIME_DIR/exs`, if that directory of the system belongs to the user;
//! 3. `/run/exs` for root, `/run/user/UID/exs` for others, if `/run` or `/run/user/UID` belongs to
//!    the user;
//! 4. `/tmp/exs-UID`.
//!
//! Only processes of the same user, and of root, can read. A snapshot copies the figures of some
//! sockets at a time, and traffic goes on in between. [The guide](crate::guide::watching) describes
//! all fields.

use std::path::{Path, PathBuf};

use crate::progress::{Error, first_shard, offer_stats, stats_directories, stats_snapshot};

/// Offers the figures of this process, and starts EXS if need be. Returns the path of the Unix
/// socket. Further calls return the same path. The offer lasts until the process ends.
///
/// # Errors
/// [`Error::Start`] if EXS cannot start. [`Error::Stats`] if the socket cannot be made: its directory
/// is missing, full, or not the user's alone. A later call tries again.
///
/// ```
/// use std::io::Read;
/// use std::os::unix::net::UnixStream;
/// # let scratch = std::env::temp_dir().join(format!("exs-doc-{}", std::process::id()));
/// # std::fs::create_dir(&scratch)?;
/// # // SAFETY: no other thread of this program has begun.
/// # unsafe { std::env::set_var("EXS_STATS", &scratch) };
///
/// let path = exs::stats::offer()?;
/// let mut text = String::new();
/// UnixStream::connect(path)?.read_to_string(&mut text)?;
/// assert!(text.starts_with(r#"{"type":"process","format":1,"#));
/// # std::fs::remove_dir_all(&scratch)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn offer() -> Result<&'static Path, Error> {
    offer_stats()
}

/// A snapshot of this process, as readers get it: lines of JSON. The process need not offer it.
///
/// # Errors
/// [`Error::Start`] if EXS cannot start.
///
/// ```
/// let lines = exs::stats::snapshot()?;
/// assert!(lines.ends_with("{\"type\":\"end\",\"sockets\":0}\n"));
/// # Ok::<(), exs::Error>(())
/// ```
pub fn snapshot() -> Result<String, Error> {
    first_shard()?;
    Ok(stats_snapshot())
}

/// The directories in which processes of this host offer their figures, as far as they exist and this
/// process may read them: that of this user first, then those of others.
///
/// ```
/// for directory in exs::stats::directories() {
///     println!("{}", directory.display());
/// }
/// ```
pub fn directories() -> Vec<PathBuf> {
    stats_directories()
}
