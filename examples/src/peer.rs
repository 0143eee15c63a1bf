//! A server as a child process: how the demonstrations start their other half.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// What a server prints when it takes connections, before its address.
pub const LISTENING: &str = "listening on ";

/// A server that runs as a process of its own, from the program's own file. It is ended
/// when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    addr: SocketAddr,
}

impl Server {
    /// Starts this program again with `args`, and waits until it prints [`LISTENING`]
    /// and an address. Whatever else it prints is handed to `line`, on a thread.
    ///
    /// # Errors
    /// If it cannot be started, or ends without having said so.
    pub fn start(args: &[&str], line: impl FnMut(&str) + Send + 'static) -> io::Result<Server> {
        Server::of(&std::env::current_exe()?, args, line)
    }

    /// As [`Server::start`], from another program.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn of(
        program: &Path,
        args: &[&str],
        mut line: impl FnMut(&str) + Send + 'static,
    ) -> io::Result<Server> {
        let mut child =
            Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let Some(out) = child.stdout.take() else {
            return Err(io::Error::other("the server has no output"));
        };
        let mut out = BufReader::new(out);
        let mut text = String::new();
        let addr = loop {
            text.clear();
            if out.read_line(&mut text)? == 0 {
                let status = child.wait()?;
                return Err(io::Error::other(format!("the server ended at once: {status}")));
            }
            match text.trim_end().split_once(LISTENING).map(|(_, a)| a.parse()) {
                Some(Ok(addr)) => break addr,
                _ => line(text.trim_end()),
            }
        };
        std::thread::spawn(move || {
            for text in out.lines().map_while(Result::ok) {
                line(&text);
            }
        });
        Ok(Server { child, addr })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its own end, for at most `limit`; true if it ended well.
    pub fn wait(&mut self, limit: Duration) -> bool {
        matches!(await_end(&mut self.child, limit), Ok(Some(status)) if status.success())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Either may fail only because it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a child has ended; `None` if it runs still after `limit`. The caller sleeps in
/// poll(2): a caller that polled every few milliseconds would take processor time from the
/// programs that are measured.
///
/// # Errors
/// The system's, of pidfd_open(2), poll(2) or wait(2).
pub fn await_end(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // A limit that the system has no number for is none.
        let left = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(&ended, PollFlags::IN)], left.as_ref()) {
            Ok(0) => return Ok(None),
            Ok(_) => return child.wait().map(Some),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
