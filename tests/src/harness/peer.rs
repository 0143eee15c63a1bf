//! Real processes to talk to: the test program runs itself again.
//!
//! A child is the same test program, told by its environment which part to play. It
//! runs one test, which asks for its [`part`] and does nothing in the parent.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{LIMIT, Watchdog};

/// The variable that tells a child which part to play.
const PART: &str = "PART_OF_EXS_TEST";
/// Lines of a child that are for the parent start with this; the test harness prints
/// lines of its own.
const MARK: &str = "@@ ";

/// A child process. Killed when dropped.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    part: String,
}

impl Peer {
    /// Starts this test program as `part`; `test` is the test in it that asks for its [`part`].
    pub fn start(test: &str, part: &str, args: &[&str]) -> Peer {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        Peer::spawn(command.args([test, "--exact", "--nocapture", "--test-threads=1"]), part, args)
    }

    /// As [`Peer::start`], by a command that ends in this program and its arguments
    /// (such as `ip netns exec`).
    pub fn start_by(wrapper: &[&str], test: &str, part: &str, args: &[&str]) -> Peer {
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).arg(std::env::current_exe().unwrap());
        Peer::spawn(command.args([test, "--exact", "--nocapture", "--test-threads=1"]), part, args)
    }

    fn spawn(command: &mut Command, part: &str, args: &[&str]) -> Peer {
        let mut child = command
            .env(PART, std::iter::once(&part).chain(args).copied().collect::<Vec<_>>().join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                // The harness may have begun a line of its own.
                if let Some((_, said)) = line.split_once(MARK)
                    && tell.send(said.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Peer { child, stdin, lines, part: part.to_owned() }
    }

    /// The next thing that the child says.
    pub fn hear(&self) -> String {
        self.lines
            .recv_timeout(LIMIT)
            .unwrap_or_else(|e| panic!("the child `{}` says nothing: {e}", self.part))
    }

    /// Waits until the child says `word`, and returns what follows it.
    pub fn expect(&self, word: &str) -> String {
        let said = self.hear();
        match said.strip_prefix(word) {
            Some(rest) => rest.trim().to_owned(),
            None => panic!("the child `{}` says `{said}` and not `{word}`", self.part),
        }
    }

    /// Says something to the child.
    pub fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("not closed before");
        writeln!(stdin, "{line}").unwrap();
        stdin.flush().unwrap();
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Ends it by kill -9, and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().unwrap();
    }

    /// Waits for its own end, which must be a good one.
    pub fn finish(mut self) {
        drop(self.stdin.take());
        let _dog = Watchdog::new(&format!("the child `{}`", self.part));
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the child `{}` ended with {status}", self.part);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // This fails only if it has ended already. A stopped process dies by it too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a child: the words that say which part to play. None in the parent.
pub fn part() -> Option<Vec<String>> {
    let words = std::env::var(PART).ok()?;
    Some(words.split(' ').map(str::to_owned).collect())
}

/// In a child: says something to the parent.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A parent that has gone needs no answer.
    let _ = writeln!(out, "\n{MARK}{line}").and_then(|()| out.flush());
}

/// In a child: waits until the parent says something; None once it closes.
pub fn listen() -> Option<String> {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(n) if n > 0 => Some(line.trim().to_owned()),
        _ => None,
    }
}
