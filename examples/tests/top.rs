//! exs-top, as a process, beside processes with known traffic, dead ones and ones that only pretend.
//!
//! [`child`] is the process that is watched: the test program runs itself.

#![allow(missing_docs)]

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use exs::{EventQueue, KernelSocket, Options, RecvFlags, Socket, SocketType, Token, Transport};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::{Value, json};

const TOP: &str = env!("CARGO_BIN_EXE_exs-top");
/// Bytes that the child moves from one of its sockets to another.
const BYTES: usize = 300_000;
/// A number that no process has (proc(5): pid_max is below 2^22).
const NO_PROCESS: u32 = 1 << 23;
const LIMIT: Duration = Duration::from_secs(120);

/// A directory for the sockets of a test, which goes with it.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let dir = std::env::temp_dir().join(format!("exs-top-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        Place(dir)
    }

    fn top(&self, words: &[&str]) -> Command {
        let mut command = Command::new(TOP);
        command.args(words).arg("--directory").arg(&self.0).env_remove("EXS_STATS");
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.top(words).output().unwrap()
    }

    /// The output of a run that succeeds.
    fn text(&self, words: &[&str]) -> String {
        let out = self.run(words);
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        let out = self.run(&[&["--once", "--json"], words].concat());
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
    }

    fn watched(&self) -> Watched {
        self.watched_with("exs")
    }

    /// A process with sockets of this kind.
    fn watched_with(&self, sockets: &str) -> Watched {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env("EXS_STATS", &self.0)
            .env("PART_OF_TOP_TEST", sockets)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.map_while(Result::ok).any(|line| line.ends_with("@@ ready"));
        assert!(ready, "the child has ended: {:?}", child.wait());
        Watched(child)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that is watched. Killed when dropped.
struct Watched(Child);

impl Watched {
    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// kill -9, after which nothing removes its socket.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test in the parent: two connected sockets with known traffic, and a receive that waits.
#[test]
fn child() {
    match std::env::var("PART_OF_TOP_TEST").as_deref() {
        Ok("exs") => exs_sockets(),
        Ok("kernel") => kernel_sockets(),
        _ => {}
    }
}

fn kernel_sockets() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    a.write_all(&[7; 3000]).unwrap();
    let (queue, b) = (EventQueue::new(8).unwrap(), listener.accept().unwrap().0);
    let b = KernelSocket::new(b).unwrap();
    b.recv(&queue, Token(1), vec![0; 3001], RecvFlags::WAITALL).unwrap();
    stay();
}

/// Says that all is ready, and lives until the parent ends.
fn stay() {
    println!("\n@@ ready");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn exs_sockets() {
    let options = Options::default().with_transport(Transport::Soft);
    let socket = || Socket::with_options(SocketType::Stream, options.clone()).unwrap();
    let (listener, a) = (socket(), socket());
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(5).unwrap();
    a.blocking().connect(listener.local_addr().unwrap()).unwrap();
    let (b, _) = listener.blocking().accept().unwrap();
    let queue = EventQueue::new(8).unwrap();
    b.recv(&queue, Token(1), vec![0; BYTES], RecvFlags::WAITALL).unwrap();
    a.blocking().send_all(&vec![7; BYTES]).unwrap();
    queue.next().unwrap().into_result().unwrap();
    a.recv(&queue, Token(2), vec![0; 10], RecvFlags::NONE).unwrap();
    stay();
}

fn sockets(top: &Value) -> &Vec<Value> {
    top["processes"][0]["sockets"].as_array().unwrap()
}

#[test]
fn a_process_is_shown_with_its_exact_counters() {
    let place = Place::new("exact");
    let child = place.watched();
    let top = place.json(&[]);
    let process = &top["processes"][0];
    assert_eq!(process["pid"], child.pid());
    assert_eq!(process["counters"]["recvs"], 1);
    assert_eq!(
        (&process["sent_bytes"], &process["received_bytes"]),
        (&json!(BYTES), &json!(BYTES))
    );
    assert_eq!(top["troubles"], json!([]));
    assert_eq!(sockets(&top).len(), 3);
    let sender = sockets(&top).iter().find(|s| s["sent_bytes"] == BYTES).expect("the sender");
    assert_eq!((&sender["in_flight"]["recvs"], &sender["state"]), (&json!(1), &json!("open")));
    let listener = sockets(&top).iter().find(|s| s["state"] == "listening").expect("the listener");
    assert_eq!(listener["listener"]["backlog"], 5);
    assert_eq!(sender["peer"], listener["local"]);
    assert!(sender.get("rates").is_none() && process.get("rates").is_none());

    let table = place.text(&["--once", "--sort", "sent"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert_eq!(lines[0][..3], ["PID", "PROCESS", "STATE"]);
    let row = &lines[1];
    assert_eq!((row[0], row[2], row[3]), (&*child.pid().to_string(), "open", "soft"), "{table}");
    assert_eq!(row[5], sender["peer"]);
    assert!(row.contains(&"293k"), "{table}");
}

#[test]
fn kernel_sockets_are_shown_with_what_the_kernel_counts() {
    let place = Place::new("kernel");
    let _child = place.watched_with("kernel");
    let top = place.json(&["--interval", "60ms"]);
    let [socket] = &sockets(&top)[..] else { panic!("{top}") };
    let shown = (&socket["transport"], &socket["state"], &socket["received_bytes"]);
    assert_eq!(shown, (&json!("kernel"), &json!("open"), &json!(3000)));
    // The kernel counts bytes, and nothing counts operations.
    let wanted = json!({ "sent_bytes_per_s": 0.0, "received_bytes_per_s": 0.0 });
    assert_eq!(socket["rates"], wanted);
    let table = place.text(&["--once"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 2, "{table}");
    assert_eq!(rows[1][2..4], ["open", "kernel"]);
    assert_eq!(
        (rows[1][4], rows[1][5]),
        (socket["local"].as_str().unwrap(), socket["peer"].as_str().unwrap())
    );
    assert_eq!(rows[1][6..], ["-", "-", "-", "0", "2.9k", "0s", "1r", "-"], "{table}");
}

#[test]
fn what_is_asked_for_is_shown() {
    let place = Place::new("asked");
    let (first, second) = (place.watched(), place.watched());
    assert_eq!(place.json(&[])["processes"].as_array().unwrap().len(), 2);
    let pid = second.pid().to_string();
    let top = place.json(&["--pid", &pid]);
    assert_eq!(top["processes"].as_array().unwrap().len(), 1);
    assert_eq!(top["processes"][0]["pid"], second.pid());
    let top = place.json(&["--pid", &pid, "--filter", "LISTENING"]);
    assert_eq!(sockets(&top).len(), 1);
    let table = place.text(&["--once", "--filter", &first.pid().to_string()]);
    assert_eq!(table.lines().count(), 4, "{table}");
    // Rates need two snapshots. Nothing moves between these two.
    let top = place.json(&["--interval", "60ms"]);
    assert_eq!(top["processes"][0]["rates"]["sent_bytes_per_s"], 0.0);
    assert!(sockets(&top).iter().all(|s| s["rates"]["operations_per_s"] == 0.0), "{top}");
}

#[test]
fn a_process_that_is_not_there_is_status_1() {
    let place = Place::new("none");
    let out = place.run(&["--once"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0));
    assert!(said.contains("EXS_STATS=on"), "{said}");
    let out = place.run(&["--once", "--pid", "1"]);
    assert_eq!(out.status.code(), Some(1));
    let mut child = place.watched();
    child.kill();
    let left = place.0.join(format!("{}.sock", child.pid()));
    assert!(left.exists());
    assert_eq!(place.json(&[]), json!({ "processes": [], "troubles": [] }));
    assert!(!left.exists(), "the socket of a dead process is removed");
    for wrong in
        [&["--json"][..], &["--once", "--interval", "1ms"], &["--once", "--sort", "x"], &["x"]]
    {
        assert_eq!(place.run(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let out = place.run(&[]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("--once"), "{said}");
}

/// A server at the place of a process, which does this with each reader.
fn pretend(
    dir: &Path,
    number: u32,
    serve: impl Fn(std::os::unix::net::UnixStream) + Send + 'static,
) {
    let path = dir.join(format!("{}.sock", NO_PROCESS + number));
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            serve(stream);
        }
    });
}

#[test]
fn servers_that_only_pretend_disturb_nothing() {
    let place = Place::new("pretend");
    let child = place.watched();
    pretend(&place.0, 0, |mut s| drop(s.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")));
    pretend(&place.0, 1, |mut s| drop(s.write_all(&[0xff; 9000])));
    pretend(&place.0, 2, std::mem::forget);
    pretend(&place.0, 3, |mut s| {
        let line = format!("{{\"type\":\"news\",\"text\":\"{}\"}}\n", "x".repeat(1 << 16));
        while s.write_all(line.as_bytes()).is_ok() {}
    });
    pretend(&place.0, 4, |mut s| drop(s.write_all(b"{\"type\":\"process\",\"format\":99}\n")));
    pretend(&place.0, 5, drop);
    let begun = Instant::now();
    let top = place.json(&[]);
    assert!(begun.elapsed() < LIMIT);
    assert_eq!(top["processes"].as_array().unwrap().len(), 1);
    assert_eq!(top["processes"][0]["pid"], child.pid());
    let troubles: Vec<_> =
        top["troubles"].as_array().unwrap().iter().map(|t| t["why"].as_str().unwrap()).collect();
    let wanted = ["line 1", "utf-8", "does not answer", "does not end", "version 99", "refuses"];
    assert_eq!(troubles.len(), wanted.len(), "{troubles:?}");
    for (why, wanted) in troubles.iter().zip(wanted) {
        assert!(why.contains(wanted), "{why} and not {wanted}");
    }
}

#[test]
fn another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can start a process of another user");
    }
    let place = Place::new("foreign");
    let child = place.watched();
    let socket = place.0.join(format!("{}.sock", child.pid()));
    // A copy that another user can reach.
    let program = place.0.join("exs-top");
    fs::copy(TOP, &program).unwrap();
    for (path, mode) in [(&place.0, 0o755), (&socket, 0o666), (&program, 0o755)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let out = Command::new("setpriv")
        .args(["--reuid=65534", "--clear-groups"])
        .arg(&program)
        .args(["--once", "--json", "--directory"])
        .arg(&place.0)
        .output()
        .unwrap();
    let top: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    assert_eq!(top["processes"], json!([]));
    assert_eq!(top["troubles"][0]["why"], "it refuses this user");
    assert!(socket.exists(), "and cannot remove it");
}

/// Reads what a terminal shows until it has this text.
fn read_until(terminal: &mut File, text: &str, all: &mut Vec<u8>) {
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(all).contains(text) {
        match terminal.read(&mut buffer) {
            Ok(n) if n > 0 => all.extend_from_slice(&buffer[..n]),
            end => panic!("{end:?} before {text}: {}", String::from_utf8_lossy(all)),
        }
    }
}

#[test]
fn the_live_view_draws_on_a_terminal_and_gives_it_back() {
    let place = Place::new("live");
    let child = place.watched();
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let size = Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let open = || File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut command = place.top(&["--interval", "100ms"]);
    command.stdin(open()).stdout(open()).stderr(open()).env("TERM", "xterm").env("NO_COLOR", "1");
    let mut top = command.spawn().unwrap();
    drop(command);
    let (mut terminal, mut seen) = (File::from(master), Vec::new());
    read_until(&mut terminal, &child.pid().to_string(), &mut seen);
    terminal.write_all(b"\r").unwrap();
    read_until(&mut terminal, "engine runs", &mut seen);
    terminal.write_all(b"q").unwrap();
    // The end of the alternate screen.
    read_until(&mut terminal, "\u{1b}[?1049l", &mut seen);
    assert!(top.wait().unwrap().success());
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.contains("\u{1b}[?1049h") && seen.contains("exs-top"), "{seen}");
    assert!(!seen.contains("\u{1b}[36m") && !seen.contains("\u{1b}[38;5;"), "NO_COLOR: {seen}");
}
