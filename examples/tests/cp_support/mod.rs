//! Processes, directories and trees for the tests of exs-cp.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

pub mod raw;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub const EXS_CP: &str = env!("CARGO_BIN_EXE_exs-cp");
/// No step of a test takes this long, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A directory that goes when it is dropped.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new(what: &str) -> TempDir {
        let path = std::env::temp_dir().join(format!("exs-cp-test-{what}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }
    pub fn path(&self) -> &Path {
        &self.0
    }
    /// A directory in it, made if missing.
    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running `exs-cp serve`; killed when it is dropped.
pub struct Server {
    pub child: Child,
    pub addr: String,
    pub log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(dir: &Path, more: &[&str]) -> Server {
        let mut c = Command::new(EXS_CP);
        c.arg("serve").arg(dir).args(["--listen", "127.0.0.1:0"]).args(more);
        Server::spawn(c)
    }

    /// `command` becomes a server that announces itself as exs-cp does.
    pub fn spawn(command: Command) -> Server {
        Server::spawn_to(command, Stdio::null())
    }

    /// The same, and its summary goes to `out`.
    pub fn spawn_to(mut command: Command, out: Stdio) -> Server {
        let mut child = command.stdout(out).stderr(Stdio::piped()).spawn().expect("server starts");
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        let addr = match first.rsplit_once(" on ") {
            Some((_, tail)) => tail.split(' ').next().unwrap().to_owned(),
            None => panic!("the server said: {first}"),
        };
        let log = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|n| n > 0) {
                sink.lock().unwrap().push_str(&line);
                line.clear();
            }
        });
        Server { child, addr, log, reader: Some(reader) }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        if let Some(r) = self.reader.take() {
            let _ = r.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the server said:\n{}---", self.log.lock().unwrap());
        }
    }
}

/// Builds a library of this directory for LD_PRELOAD: some calls of the program fail or do more.
pub fn shim(tmp: &TempDir, name: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cp_support");
    let source = sources.join(name).with_extension("c");
    let lib = tmp.path().join(name).with_extension("so");
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let built = Command::new(cc)
        .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&lib, &source])
        .status();
    assert!(built.unwrap().success());
    lib
}

/// Runs `script` (with `$1`, `$2`, ...) in a mount namespace of its own, where
/// it may mount; `None` where this user may not.
pub fn in_namespace(script: &str, args: &[&str]) -> Option<Command> {
    let may = Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
    if !may.is_ok_and(|s| s.success()) {
        eprintln!("skipped: a mount namespace needs root, and unshare(1)");
        return None;
    }
    let mut c = Command::new("unshare");
    c.args(["-m", "sh", "-c", script, "sh"]).args(args);
    Some(c)
}

/// The names in a directory, in order.
pub fn names(dir: &Path) -> Vec<String> {
    let all = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// A client's command line, `--json` included.
pub fn client<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut c = Command::new(EXS_CP);
    c.args(args).arg("--json").stdin(Stdio::null());
    c
}

/// What a finished client said.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub json: Value,
    pub stderr: String,
}

impl Said {
    pub fn errors(&self) -> Vec<&str> {
        self.json["errors"].as_array().unwrap().iter().map(|e| e.as_str().unwrap()).collect()
    }
    pub fn number(&self, field: &str) -> u64 {
        self.json[field].as_u64().unwrap_or_else(|| panic!("no {field} in {}", self.json))
    }
    /// Everything was done, and verified.
    pub fn assert_ok(self) -> Said {
        assert_eq!(self.code, Some(0), "{self:?}");
        assert!(self.errors().is_empty(), "{self:?}");
        assert_eq!(self.json["verified"], true, "{self:?}");
        self
    }
}

pub fn run(mut command: Command) -> Said {
    said(command.output().unwrap())
}

pub fn said(out: Output) -> Said {
    let stdout = String::from_utf8(out.stdout).unwrap();
    // Exactly one object, on one line.
    assert_eq!(stdout.lines().count(), 1, "standard output: {stdout:?}");
    Said {
        code: out.status.code(),
        json: serde_json::from_str(&stdout).unwrap(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

/// Runs a client as another user than root, for whom permissions count.
pub fn output_unprivileged(command: &Command, tmp: &TempDir) -> Output {
    let mut other = Command::new(EXS_CP);
    if rustix::process::geteuid().is_root() {
        // The program itself may lie where only root may look.
        let copy = tmp.path().join("exs-cp");
        fs::copy(EXS_CP, &copy).unwrap();
        other = Command::new(&copy);
        other.uid(65534).gid(65534);
    }
    other.args(command.get_args()).stdin(Stdio::null());
    // A child that another test forks just now may still hold the copy open for
    // writing; until it executes its own program, ours is "busy".
    let mut out = None;
    until("the program to be free", || match other.output() {
        Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => false,
        done => (out = Some(done.unwrap()), true).1,
    });
    out.unwrap()
}

/// Runs a client that must fail before it has a summary to print.
pub fn fails(mut command: Command) -> (Option<i32>, String) {
    let out = command.output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

/// Waits until something can be observed.
pub fn until(what: &str, mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        // sleep-ok: looks every so often at what another process does.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Bytes that do not repeat and do not compress, the same for the same seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let mut h = blake3::Hasher::new();
    h.update(&seed.to_le_bytes());
    h.finalize_xof().read_exact(&mut out).unwrap();
    out
}

/// What must be the same of a copy: everything but owner, access time, and
/// where the holes are exactly.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    pub path: Vec<u8>,
    pub kind: char,
    pub mode: u32,
    pub mtime: (i64, i64),
    pub hash: String,
}

/// Lists a tree.
pub fn look(top: &Path) -> Vec<Seen> {
    use std::os::unix::ffi::OsStrExt;
    let mut out = Vec::new();
    let mut todo = vec![top.to_owned()];
    while let Some(path) = todo.pop() {
        let m = fs::symlink_metadata(&path).unwrap();
        let (kind, hash) = if m.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
            ('d', String::new())
        } else if m.is_symlink() {
            ('l', format!("{:?}", fs::read_link(&path).unwrap()))
        } else if m.is_file() {
            let mut h = blake3::Hasher::new();
            std::io::copy(&mut File::open(&path).unwrap(), &mut h).unwrap();
            ('f', h.finalize().to_hex().to_string())
        } else {
            continue;
        };
        let mode = if kind == 'l' { 0 } else { m.mode() & 0o7777 };
        let path = path.strip_prefix(top).unwrap().as_os_str().as_bytes().to_vec();
        out.push(Seen { path, kind, mode, mtime: (m.mtime(), m.mtime_nsec()), hash });
    }
    out.sort_by(|a, b| a.path.cmp(&b.path));
    out
}

pub fn assert_same(a: &Path, b: &Path) {
    let (a, b) = (look(a), look(b));
    for (x, y) in a.iter().zip(&b) {
        assert_eq!(x, y, "{}", String::from_utf8_lossy(&x.path));
    }
    assert_eq!(a.len(), b.len());
}

/// Length of the journal of a file; 0 if there is none.
pub fn journal_len(dir: &Path, name: &str) -> u64 {
    fs::metadata(dir.join(format!(".{name}.exs-journal"))).map_or(0, |m| m.len())
}
