//! A server of one's own: how the demonstrations start their other half.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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

    /// Waits for its own end, for at most `limit`; true if it ended well.
    pub fn wait(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status.success(),
                Ok(None) if Instant::now() < deadline => {
                    // sleep-ok: std has no wait for a child with a limit; this looks every so often.
                    std::thread::sleep(Duration::from_millis(5));
                }
                _ => return false,
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Either may fail only because it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
