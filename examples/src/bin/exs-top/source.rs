//! Finds the processes that offer their figures, and reads a snapshot of each.
//!
//! The text at the other end is not trusted: it may be endless, late or no text at all.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::model::Snapshot;

/// The time for which a process may be silent.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time that a whole snapshot may take.
const LIMIT: Duration = Duration::from_secs(10);
/// The most bytes of a snapshot: those of about 100,000 sockets.
const MOST: u64 = 128 << 20;
/// Snapshots that are read at a time.
const AT_A_TIME: usize = 16;

/// A process that could not be read, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) path: PathBuf,
    pub(crate) why: String,
}

/// What was found at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) snapshots: Vec<Snapshot>,
    pub(crate) troubles: Vec<Trouble>,
}

/// Where processes are looked for.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    directory: Option<PathBuf>,
    pid: Option<u32>,
}

/// Why there is no snapshot.
enum Missing {
    /// The process is dead.
    Dead,
    /// Another reason.
    Why(String),
}

impl Source {
    pub(crate) fn new(directory: Option<PathBuf>, pid: Option<u32>) -> Source {
        Source { directory, pid }
    }

    /// The process that was asked for. None: all.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    fn paths(&self) -> Vec<PathBuf> {
        let directories = match &self.directory {
            Some(directory) => vec![directory.clone()],
            None => exs::stats::directories(),
        };
        let entries = directories.iter().flat_map(|dir| fs::read_dir(dir).into_iter().flatten());
        let paths = entries.flatten().filter(|entry| {
            let is_socket = entry.file_type().is_ok_and(|t| t.is_socket());
            is_socket && pid_of(&entry.path()).is_some_and(|pid| self.pid.is_none_or(|p| p == pid))
        });
        let mut paths: Vec<PathBuf> = paths.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    }

    /// Reads a snapshot of each process. Removes the sockets of those that are dead.
    pub(crate) fn read(&self) -> Found {
        let mut found = Found::default();
        for paths in self.paths().chunks(AT_A_TIME) {
            let (tell, told) = channel();
            std::thread::scope(|threads| {
                for path in paths {
                    let tell = tell.clone();
                    threads.spawn(move || {
                        // The receiver outlives the threads.
                        let _ = tell.send((path, read(path)));
                    });
                }
            });
            drop(tell);
            for (path, result) in told {
                match result {
                    Ok(snapshot) => found.snapshots.push(snapshot),
                    Err(Missing::Dead) => {
                        // Only its user and root may.
                        let _ = fs::remove_file(path);
                    }
                    Err(Missing::Why(why)) => {
                        found.troubles.push(Trouble { path: path.clone(), why });
                    }
                }
            }
        }
        found.snapshots.sort_by_key(|s| (s.process.data.pid, s.process.data.started));
        found.troubles.sort_by(|a, b| a.path.cmp(&b.path));
        found
    }
}

/// The process that a socket is named after: `4711.sock`, `4711-1.sock`.
fn pid_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_suffix(".sock")?;
    name.split('-').next()?.parse().ok()
}

/// Connects without waiting for a process that does not accept.
fn call(path: &Path) -> Result<UnixStream, Missing> {
    let why = |e: Errno| Missing::Why(io::Error::from(e).to_string());
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(why)?;
    let address = SocketAddrUnix::new(path).map_err(why)?;
    match connect(&fd, &address) {
        Ok(()) => Ok(UnixStream::from(fd)),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Err(Missing::Dead),
        Err(Errno::AGAIN) => Err(Missing::Why("it has too many readers".to_owned())),
        Err(e) => Err(why(e)),
    }
}

/// True if the process that began to listen is gone. A child that it forked may still have the
/// socket.
fn has_died(stream: &UnixStream) -> bool {
    let listens = getsockopt(stream, PeerCredentials).map_or(0, |cred| cred.pid());
    // 0: the process is in another PID namespace, and may live.
    listens != 0 && !Path::new(&format!("/proc/{listens}")).exists()
}

fn read(path: &Path) -> Result<Snapshot, Missing> {
    let stream = call(path)?;
    let io = |e: io::Error| Missing::Why(e.to_string());
    stream.set_nonblocking(false).map_err(io)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
    let (begun, mut bytes, mut buffer) = (Instant::now(), Vec::new(), vec![0; 64 << 10]);
    loop {
        match (&stream).read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && has_died(&stream) => {
                return Err(Missing::Dead);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(Missing::Why("it does not answer".to_owned()));
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset && bytes.is_empty() => {
                return Err(Missing::Why("it refuses this user".to_owned()));
            }
            Err(e) => return Err(io(e)),
        }
        if bytes.len() as u64 > MOST || begun.elapsed() > LIMIT {
            return Err(Missing::Why("its snapshot does not end".to_owned()));
        }
    }
    if bytes.is_empty() {
        return Err(Missing::Why("it refuses this user".to_owned()));
    }
    let text = std::str::from_utf8(&bytes).map_err(|e| Missing::Why(e.to_string()))?;
    Snapshot::parse(text).map_err(Missing::Why)
}
