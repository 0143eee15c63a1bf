//! Other programs: run with a time limit, or beside us.

use std::io::Read;
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use exs_tools::fail::{During, Failure};
use exs_tools::peer::await_end;

/// How often a thread that waits for a program to listen looks again.
const LOOK: Duration = Duration::from_millis(2);

/// A program that runs beside us; it is ended when this is dropped.
pub(crate) struct Background(Child);

impl Background {
    pub(crate) fn start(command: &mut Command) -> Result<Background, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Background).during(name)
    }

    /// Waits until it listens on a TCP port.
    pub(crate) fn await_port(&mut self, port: u16, limit: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + limit;
        while !listens(port) {
            if let Some(status) = self.0.try_wait().during("server")? {
                return Err(Failure(format!("the server has ended: {status}")));
            }
            if Instant::now() >= deadline {
                return Err(Failure(format!("the server does not listen on port {port}")));
            }
            // sleep-ok: no event tells that another program listens; this looks every so often.
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Either may fail only because it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// True if some process of this network namespace listens on the port. Calling it to find
/// out would be taken for a client by many servers.
fn listens(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|file| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().is_some_and(|w| w.ends_with(&wanted));
            local && words.nth(1) == Some("0A")
        })
    })
}

/// Runs a program to its end and returns what it printed. The error of a program that fails has its
/// standard error.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<String, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().during(&name)?;
    let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let status = await_end(&mut child, limit);
    if !matches!(status, Ok(Some(_))) {
        // It may have ended just now.
        let _ = child.kill();
        let _ = child.wait();
    }
    let text = |thread: JoinHandle<String>| thread.join().unwrap_or_default();
    let (out, err) = (text(out), text(err));
    match status.during(&name)? {
        Some(status) if status.success() => Ok(out),
        Some(status) => {
            let last = err.lines().chain(out.lines()).rfind(|l| !l.trim().is_empty());
            Err(Failure(format!("{name}: {status}: {}", last.unwrap_or("it says nothing"))))
        }
        None => Err(Failure(format!("{name}: not done after {} s", limit.as_secs()))),
    }
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // Keeps the bytes that were read before an error.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A port that was free a moment ago.
pub(crate) fn free_port(address: IpAddr) -> Result<u16, Failure> {
    let listener = TcpListener::bind((address, 0)).during("a free port")?;
    Ok(listener.local_addr().during("a free port")?.port())
}

/// Where a program is, if it is installed.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps some tools where an ordinary user's PATH does not look.
    let extra = [PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")];
    std::env::split_paths(&path).chain(extra).map(|d| d.join(program)).find(|p| p.is_file())
}

/// A program of this project, which is built beside this one.
pub(crate) fn sibling(program: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().during("own path")?;
    let path = own.parent().unwrap_or(Path::new(".")).join(program);
    match path.is_file() {
        true => Ok(path),
        false => Err(Failure(format!("{} is not there: build it first", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_run_and_limited() {
        let run = |script: &str, limit| run(Command::new("sh").args(["-c", script]), limit);
        let long = Duration::from_secs(60);
        assert_eq!(run("echo hello", long).unwrap(), "hello\n");
        let failed = run("echo out; echo why >&2; exit 3", long).unwrap_err().to_string();
        assert!(failed.contains("exit status: 3") && failed.contains("out"), "{failed}");
        let late = run("exec sleep 60", Duration::from_millis(20)).unwrap_err().to_string();
        assert!(late.contains("not done after"), "{late}");
        assert!(super::run(&mut Command::new("no-such-program"), long).is_err());
    }

    #[test]
    fn a_listener_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(port));
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert!(!listens(client.local_addr().unwrap().port()), "it is connected, that is all");
    }
}
