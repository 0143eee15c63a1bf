//! The examples in C: built once, and run as processes.
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// No step of a test takes this long, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// True if there is such a program; if not, that is said where the test runner does not
/// keep it to itself.
pub(crate) fn has(program: &str) -> bool {
    let look = format!("command -v {program} >/dev/null");
    let there = Command::new("sh").args(["-c", &look]).status().is_ok_and(|s| s.success());
    if !there {
        let why = "`make deps` installs it where it can";
        let _ = writeln!(std::io::stderr().lock(), "skipped: there is no {program} ({why})");
    }
    there
}

/// Runs a command that must end well.
fn must(command: &mut Command) {
    let out = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {}\n{said}", out.status);
}

/// libexs.so, built when first asked for.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let out = tmp.join("lib-c-examples");
        let features = if cfg!(feature = "verbs") { "verbs" } else { "" };
        must(
            Command::new(top().join("exs-ffi/build.sh"))
                .arg(&out)
                .env("CARGO_TARGET_DIR", tmp.parent().unwrap())
                .env("PROFILE", "dev")
                .env("FEATURES", features),
        );
        out
    })
}

/// Builds all programs by their own Makefile; `more` are variables for it.
pub(crate) fn make(name: &str, more: &[&str]) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-examples").join(name);
    let lib = library().display();
    must(
        Command::new("make")
            .args(["--silent", "--always-make", "-j2", "-C"])
            .arg(top().join("examples/c"))
            .arg(format!("OUT={}", out.display()))
            .arg(format!("EXS_CFLAGS=-I{}", top().join("exs-ffi/include").display()))
            .arg(format!("EXS_LIBS=-L{lib} -Wl,-rpath,{lib} -lexs"))
            .args(more)
            // A make that runs the tests hands these on, and they are not for this one.
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL"),
    );
    out
}

/// Where the programs are: built when first asked for.
pub(crate) fn programs() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| make("plain", &["CFLAGS=-O1"]))
}

/// Ends the process, with a message, unless it is dropped in time: a panic would not end a
/// thread that hangs.
pub(crate) struct Watchdog(#[allow(dead_code)] Sender<()>);

impl Watchdog {
    pub(crate) fn new(what: String) -> Watchdog {
        let (alive, dog) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if dog.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                // Not by eprintln, which the test runner keeps, and would lose.
                let line = format!("watchdog: {what} has not ended within {PATIENCE:?}\n");
                let _ = std::io::stderr().lock().write_all(line.as_bytes());
                std::process::abort();
            }
        });
        Watchdog(alive)
    }
}

/// A library of `tests/cp_support` for LD_PRELOAD, which makes some calls of a program fail.
pub(crate) fn preload(name: &str) -> PathBuf {
    let source = top().join("examples/tests/cp_support").join(name).with_extension("c");
    let lib = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).with_extension("so");
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"];
    must(Command::new(cc).args(flags).args([&lib, &source]));
    lib
}

/// A program and its arguments, as a line.
pub(crate) fn command(dir: &Path, line: &[&str]) -> Command {
    let mut c = Command::new(dir.join(line[0]));
    c.args(&line[1..]);
    // A sanitizer's finding ends the program with a status that no test takes for good.
    c.env("ASAN_OPTIONS", "exitcode=99").env("UBSAN_OPTIONS", "print_stacktrace=1");
    c
}

/// A server that runs; killed when it is dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) addr: String,
    pub(crate) stdin: Option<ChildStdin>,
    what: String,
    lines: Lines,
    errors: Lines,
}

impl Server {
    /// Starts it, and waits until it says where it listens. `transport` is EXS_TRANSPORT.
    pub(crate) fn start(dir: &Path, line: &[&str], transport: &str) -> Server {
        let mut c = command(dir, line);
        c.env("EXS_TRANSPORT", transport);
        Server::spawn(c)
    }

    /// Any command that says "listening on ADDRESS".
    pub(crate) fn spawn(mut c: Command) -> Server {
        c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = c.spawn().unwrap_or_else(|e| panic!("{c:?}: {e}"));
        let lines = collect(child.stdout.take().unwrap());
        let errors = collect(child.stderr.take().unwrap());
        let stdin = child.stdin.take();
        let what = format!("{c:?}");
        let mut server = Server { child, addr: String::new(), stdin, what, lines, errors };
        server.addr = server.expect("listening on ");
        server
    }

    /// Waits for a line with these words; what follows them.
    pub(crate) fn expect(&self, words: &str) -> String {
        loop {
            match self.lines.lock().unwrap().recv_timeout(PATIENCE) {
                Ok(line) => {
                    if let Some((_, rest)) = line.split_once(words) {
                        return rest.to_owned();
                    }
                }
                Err(e) => panic!("{} never said \"{words}\": {e}; {}", self.what, self.said()),
            }
        }
    }

    /// A line for a server that has a console.
    pub(crate) fn tell(&mut self, line: &str) {
        self.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Its standard error so far.
    fn said(&self) -> String {
        self.errors.lock().unwrap().try_iter().collect::<Vec<_>>().join("\n")
    }

    /// The port of its address.
    pub(crate) fn port(&self) -> &str {
        self.addr.rsplit_once(':').unwrap().1
    }

    /// Ends by SIGTERM, and that well.
    pub(crate) fn stop(self) {
        signal(&self.child, Signal::TERM);
        self.ends();
    }

    /// Ends by SIGTERM, as the signal has it.
    pub(crate) fn stop_at_once(mut self) {
        signal(&self.child, Signal::TERM);
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), None, "{}: {status}; {}", self.what, self.said());
    }

    /// Ends by itself, and that well.
    pub(crate) fn ends(mut self) {
        let _dog = Watchdog::new(self.what.clone());
        let status = self.child.wait().unwrap();
        let said: Vec<String> = self.errors.lock().unwrap().iter().collect();
        assert!(status.success(), "{}: {status}\n{}", self.what, said.join("\n"));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Either fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "--- {} said:\n{}", self.what, self.said());
        }
    }
}

/// What a process says, line by line.
type Lines = Mutex<Receiver<String>>;

fn collect(from: impl Read + Send + 'static) -> Lines {
    let (tell, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    Mutex::new(lines)
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Runs a program to its end, and gives it something to read.
pub(crate) fn run(dir: &Path, line: &[&str], transport: &str, input: &[u8]) -> Output {
    let mut c = command(dir, line);
    c.env("EXS_TRANSPORT", transport);
    run_command(c, input)
}

pub(crate) fn run_command(mut c: Command, input: &[u8]) -> Output {
    let _dog = Watchdog::new(format!("{c:?}"));
    c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = c.spawn().unwrap_or_else(|e| panic!("{c:?}: {e}"));
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|s| {
        // A program that does not read all of it has ended.
        s.spawn(move || {
            let _ = stdin.write_all(input);
        });
        child.wait_with_output().unwrap()
    })
}

/// The same, for a program that must end well. Returns what it printed.
pub(crate) fn well(dir: &Path, line: &[&str], transport: &str, input: &[u8]) -> Vec<u8> {
    let out = run(dir, line, transport, input);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{line:?}: {}\n{said}", out.status);
    out.stdout
}

/// The same as text.
pub(crate) fn text(dir: &Path, line: &[&str], transport: &str, input: &str) -> String {
    String::from_utf8(well(dir, line, transport, input.as_bytes())).unwrap()
}

/// Bytes that do not repeat and do not compress, the same for the same seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let mut h = blake3::Hasher::new();
    h.update(&seed.to_le_bytes());
    h.finalize_xof().read_exact(&mut out).unwrap();
    out
}

/// A directory that goes when it is dropped.
pub(crate) struct TempDir(pub(crate) PathBuf);

impl TempDir {
    pub(crate) fn new(what: &str) -> TempDir {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("exs-c-{what}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// The names in it.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.0)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server and a client: the beginnings of their command lines, and EXS_TRANSPORT.
pub(crate) struct Way {
    pub(crate) server: Vec<&'static str>,
    pub(crate) client: Vec<&'static str>,
    pub(crate) transport: &'static str,
}

/// The EXS transports that two processes of one host have.
pub(crate) fn transports() -> Vec<&'static str> {
    ["soft", "shm"].into_iter().filter(|t| t.parse::<exs::Transport>().is_ok()).collect()
}

/// Every way for the pair of programs that have these names over plain sockets: either side
/// over plain sockets, over kernel sockets through EXS, and both over EXS.
pub(crate) fn ways(server: [&'static str; 2], client: [&'static str; 2]) -> Vec<Way> {
    let [plain_server, exs_server] = server;
    let [plain_client, exs_client] = client;
    let tcp = [vec![plain_server], vec![exs_server, "-k"]];
    let mut all = Vec::new();
    for server in &tcp {
        for client in [vec![plain_client], vec![exs_client, "-k"]] {
            all.push(Way { server: server.clone(), client, transport: "soft" });
        }
    }
    for transport in transports() {
        all.push(Way { server: vec![exs_server], client: vec![exs_client], transport });
    }
    all
}

impl Way {
    pub(crate) fn serve(&self, dir: &Path, args: &[&str]) -> Server {
        Server::start(dir, &[&self.server, args].concat(), self.transport)
    }

    pub(crate) fn call(&self, dir: &Path, args: &[&str], input: &[u8]) -> Output {
        run(dir, &[&self.client, args].concat(), self.transport, input)
    }

    pub(crate) fn call_well(&self, dir: &Path, args: &[&str], input: &[u8]) -> Vec<u8> {
        well(dir, &[&self.client, args].concat(), self.transport, input)
    }
}
