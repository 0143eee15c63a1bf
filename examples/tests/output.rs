//! What the programs do when what they print cannot be written, and what they say of errors.

#![allow(missing_docs)]

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

const PROGRAMS: [&str; 7] = [
    env!("CARGO_BIN_EXE_exs-bench"),
    env!("CARGO_BIN_EXE_exs-cp"),
    env!("CARGO_BIN_EXE_exs-info"),
    env!("CARGO_BIN_EXE_exs-perf"),
    env!("CARGO_BIN_EXE_exs-pingpong"),
    env!("CARGO_BIN_EXE_exs-rdma-write"),
    env!("CARGO_BIN_EXE_exs-top"),
];
const CP: &str = env!("CARGO_BIN_EXE_exs-cp");
const INFO: &str = env!("CARGO_BIN_EXE_exs-info");
const PERF: &str = env!("CARGO_BIN_EXE_exs-perf");
const PINGPONG: &str = env!("CARGO_BIN_EXE_exs-pingpong");
const RDMA_WRITE: &str = env!("CARGO_BIN_EXE_exs-rdma-write");
const SIGPIPE: i32 = 13;

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

fn program(path: &str, words: &[&str]) -> Command {
    let mut command = Command::new(path);
    command.args(words).env("EXS_TRANSPORT", "soft").env_remove("EXS_DEVICE");
    command.stdin(Stdio::null());
    command
}

fn run(path: &str, words: &[&str]) -> Output {
    program(path, words).output().unwrap()
}

/// A program that prints something, with few words and in little time.
fn talkers() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut all: Vec<(&str, Vec<&str>)> = Vec::new();
    for path in PROGRAMS {
        all.extend([(path, vec!["--help"]), (path, vec!["--version"])]);
    }
    let quick = ["demo", "--iters", "10", "--mode", "lat"];
    all.extend([
        (INFO, vec![]),
        (INFO, vec!["--json"]),
        (INFO, vec!["127.0.0.1"]),
        (PINGPONG, quick.to_vec()),
        (PINGPONG, [&quick[..], &["--json"]].concat()),
        (PERF, vec!["bw", "demo", "--duration", "20ms", "--size", "1k"]),
        (PERF, vec!["lat", "demo", "--duration", "20ms", "--json"]),
        (PERF, vec!["idle", "demo", "--connections", "2"]),
        (PERF, vec!["memcpy", "--duration", "20ms"]),
        (PERF, vec!["serve", "--listen", "127.0.0.1:0"]),
        (PINGPONG, vec!["--listen", "127.0.0.1:0"]),
        (RDMA_WRITE, vec!["serve", "--listen", "127.0.0.1:0"]),
        (RDMA_WRITE, vec!["demo"]),
        (CP, vec!["demo", "--tree", env!("CARGO_MANIFEST_DIR"), "--size-limit", "64KiB"]),
    ]);
    all
}

#[test]
fn a_full_output_is_one_line_and_status_1() {
    for (path, words) in talkers() {
        let out = program(path, &words).stdout(full()).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{path} {words:?}: {said}");
        let complaint: Vec<_> = said.lines().filter(|l| l.contains("standard output")).collect();
        // exs-cp's demonstration runs clients of its own, which say it too.
        let most = if path == CP && words[0] == "demo" { 2 } else { 1 };
        assert!((1..=most).contains(&complaint.len()), "{path} {words:?}: {said}");
        for line in complaint {
            assert!(line.ends_with(": No space left on device"), "{path} {words:?}: {said}");
        }
        assert!(!said.contains("panicked"), "{path} {words:?}: {said}");
    }
}

#[test]
fn a_reader_that_goes_away_ends_it_as_other_tools() {
    for (path, words) in talkers() {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let out = program(path, &words).stdout(write).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.signal(), Some(SIGPIPE), "{path} {words:?}: {:?} {said}", out.status);
        assert!(!said.contains("panicked"), "{path} {words:?}: {said}");
    }
}

/// `exs-pingpong demo | head -1`: the server that it has started goes, too.
#[test]
fn a_demo_whose_reader_has_enough_ends_with_its_server() {
    let mut child = program(PINGPONG, &["demo"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("EXS stream to"), "{line}");
    assert_eq!(child.wait().unwrap().signal(), Some(SIGPIPE));
    let addr = line.split_whitespace().nth(3).unwrap();
    // It has been killed and waited for before its parent ended.
    let error = std::net::TcpStream::connect(addr).expect_err(addr);
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn messages_that_cannot_be_written_change_nothing() {
    for (path, words, status) in [
        (INFO, vec!["--no-such-option"], 2),
        (CP, vec!["ls", "no port"], 2),
        (PINGPONG, vec!["127.0.0.1:1"], 1),
        (PERF, vec!["bw", "127.0.0.1:1"], 1),
        (RDMA_WRITE, vec!["127.0.0.1:1"], 1),
    ] {
        let out = program(path, &words).stderr(full()).stdout(Stdio::null()).status().unwrap();
        assert_eq!(out.code(), Some(status), "{path} {words:?}");
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let out = program(path, &words).stderr(write).stdout(Stdio::null()).status().unwrap();
        assert_eq!(out.code(), Some(status), "{path} {words:?}");
    }
}

#[test]
fn an_error_is_said_once() {
    for (path, words) in [
        (PINGPONG, vec!["127.0.0.1:1"]),
        (PERF, vec!["bw", "127.0.0.1:1"]),
        (RDMA_WRITE, vec!["127.0.0.1:1"]),
        (CP, vec!["ls", "127.0.0.1:1"]),
        (CP, vec!["put", "Cargo.toml", "127.0.0.1:1"]),
        (PINGPONG, vec!["--listen", "192.0.2.1:0"]),
        (PERF, vec!["serve", "--listen", "192.0.2.1:0"]),
        (RDMA_WRITE, vec!["serve", "--listen", "192.0.2.1:0"]),
        (CP, vec!["serve", ".", "--allow-anonymous", "--listen", "192.0.2.1:0"]),
        (INFO, vec!["no-such-host.invalid"]),
    ] {
        let out = run(path, &words);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success(), "{path} {words:?}: {said}");
        for phrase in ["cannot connect", "cannot listen", "127.0.0.1:1", "192.0.2.1:0", "refused"] {
            assert!(said.matches(phrase).count() <= 1, "{path} {words:?}: {said}");
        }
        for line in said.lines() {
            let mut parts: Vec<_> = line.split(": ").collect();
            let all = parts.len();
            parts.sort_unstable();
            parts.dedup();
            assert_eq!(parts.len(), all, "{path} {words:?}: {line}");
        }
    }
}

#[test]
fn a_transport_that_is_not_there_is_a_failure() {
    // Where there is a device, nothing can be said of its absence.
    let facts = run(INFO, &["--json"]);
    let facts: serde_json::Value = serde_json::from_slice(&facts.stdout).unwrap();
    let verbs = facts["transports"].as_array().unwrap().iter().find(|t| t["name"] == "verbs");
    if verbs.unwrap()["available"] == false {
        let out = run(INFO, &["--transport", "verbs"]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.starts_with("exs-info: verbs is not available: "), "{said}");
        assert!(!out.stdout.is_empty(), "what there is is still shown");
    }
    let out = run(INFO, &["--device", "no-such-device"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(run(INFO, &["--transport", "shm"]).status.success());
}

#[test]
fn what_a_program_is_for_is_in_its_help() {
    for path in PROGRAMS {
        let text = String::from_utf8(run(path, &["--help"]).stdout).unwrap();
        let first = text.lines().next().unwrap();
        assert!(first.len() > 20 && !first.starts_with("Usage"), "{path}: {text}");
    }
}

#[test]
fn a_dash_is_standard_input_or_refused() {
    for (words, status) in [
        (vec!["put", "-", "127.0.0.1:1"], 1),
        (vec!["get", "127.0.0.1:1", "x", "-"], 2),
        (vec!["serve", "-"], 2),
    ] {
        let out = run(CP, &words);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains("`-` would be"), "{words:?}: {said}");
        assert_eq!(out.status.code(), Some(status), "{words:?}: {said}");
    }
    // A token comes from there: what is missing is a server.
    let mut ls = program(CP, &["ls", "127.0.0.1:1", "--token-file", "-"]);
    let token = File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
    let out = ls.stdin(token).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("cannot connect to 127.0.0.1:1"), "{said}");
    let said = run(CP, &["ls", "127.0.0.1:1", "--token-file", "-"]).stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("must hold 16 bytes"), "nothing comes from an empty input: {said}");
}

#[test]
fn a_variable_that_cannot_be_read_is_named() {
    for (name, value, why) in [
        ("EXS_RING_SIZE", "64kb", "is not a size"),
        ("EXS_INLINE_THRESHOLD", "-1", "is not a size"),
        ("EXS_MAX_MESSAGE", "big", "is not a size"),
        ("EXS_CONNECT_TIMEOUT", "off", "is not a time"),
        ("EXS_SEND_TIMEOUT", "1d", "is not a time limit"),
        ("EXS_RECV_TIMEOUT", "never", "is not a time limit"),
        ("EXS_LINGER", "5 m", "is not a time"),
        ("EXS_KEEP_ALIVE", "x", "is not a time limit"),
        ("EXS_DEAD_AFTER", "1e400", "is not a time limit"),
        ("EXS_NO_DELAY", "maybe", "is not a switch"),
        ("EXS_CRC", "2", "is not a switch"),
        ("EXS_TRANSPORT", "infiniband", "is none of"),
        ("EXS_WAIT", "sleep", "is none of"),
        ("EXS_KERNEL_IO", "aio", "is none of"),
    ] {
        let out = program(PINGPONG, &["127.0.0.1:1"]).env(name, value).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{name}={value}: {said}");
        let whole = said.contains(name) && said.contains(&format!("`{value}` {why}"));
        assert!(whole, "{name}={value}: {said}");
    }
    // The grammar is that of the command lines, and an empty variable is none.
    let mut command =
        program(PINGPONG, &["demo", "--mode", "lat", "--iters", "10", "--size", "1KiB"]);
    command.env("EXS_RING_SIZE", "256KiB").env("EXS_LINGER", "500 ms").env("EXS_CRC", "");
    assert!(command.stdout(Stdio::null()).status().unwrap().success());
}
