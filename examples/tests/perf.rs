//! exs-perf, as processes: every test over every way, its JSON, and wrong use.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const EXS_PERF: &str = env!("CARGO_BIN_EXE_exs-perf");

fn perf(words: &[&str]) -> Output {
    let mut command = Command::new(EXS_PERF);
    command.args(words).env_remove("EXS_TRANSPORT").env_remove("EXS_DEVICE");
    command.stdin(Stdio::null()).output().unwrap()
}

/// Each line of its output.
fn records(words: &[&str]) -> Vec<Value> {
    let out = perf(&[words, &["--json"]].concat());
    assert!(out.status.success(), "{words:?}: {out:?}");
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn refused(words: &[&str]) -> String {
    let out = perf(words);
    assert!(!out.status.success(), "{words:?}: {out:?}");
    assert!(out.stdout.is_empty(), "{words:?}: {out:?}");
    String::from_utf8(out.stderr).unwrap()
}

fn above_zero(record: &Value, paths: &[&str]) {
    for path in paths {
        let figure = record.pointer(path).and_then(Value::as_f64);
        assert!(figure.is_some_and(|f| f > 0.0), "{path} is {figure:?} in {record}");
    }
}

/// A server; killed when it is dropped.
struct Server(Child, String);

impl Server {
    fn start() -> Server {
        let mut command = Command::new(EXS_PERF);
        command.args(["serve", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let addr = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Server(child, addr)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn every_test_runs_over_every_way() {
    let server = Server::start();
    for test in ["bw", "bibw", "rate", "lat"] {
        for way in ["soft", "shm", "tcp", "unix"] {
            let transport = format!("--transport={way}");
            let words =
                [test, &server.1, &transport, "--duration=0.02", "--size=1000", "--poll=notify"];
            let all = records(&words);
            let [r] = &all[..] else { panic!("{all:?}") };
            assert_eq!(
                (&r["test"], &r["transport"], &r["size"]),
                (&test.into(), &way.into(), &1000.into())
            );
            above_zero(r, &["/gbytes_per_s", "/msgs_per_s", "/seconds", "/messages"]);
            above_zero(
                r,
                &["/cpu_local/ns_per_byte", "/cpu_remote/ns_per_byte", "/cpu_local/seconds"],
            );
            if test == "lat" {
                above_zero(r, &["/half_rtt_us/p50", "/half_rtt_us/p99", "/half_rtt_us/p999"]);
            } else {
                assert!(r["half_rtt_us"].is_null());
            }
            if ["soft", "shm"].contains(&way) {
                let moved = |side: &str, how: [&str; 3]| -> u64 {
                    how.iter().map(|h| r[side][h].as_u64().unwrap()).sum()
                };
                let sent = moved("counters_local", ["sent_direct", "sent_indirect", "sent_inline"]);
                let got = ["received_direct", "received_indirect", "received_inline"];
                let got = moved("counters_remote", got);
                assert!(sent > 0 && got > 0, "{r}");
            }
            above_zero(r, &["/system_calls_per_msg"]);
        }
    }
}

#[test]
fn many_connections_share_threads() {
    let server = Server::start();
    for test in ["bw", "bibw", "lat"] {
        for way in ["--transport=soft", "--transport=tcp"] {
            let words = [test, &server.1, way, "--duration=0.1", "--size=4k", "--connections=7"];
            let all = records(&[&words[..], &["--threads=3", "--poll=adaptive"]].concat());
            assert_eq!((&all[0]["connections"], &all[0]["threads"]), (&7.into(), &3.into()));
            let fair = all[0]["slowest_to_mean"].as_f64().unwrap();
            assert!((0.0..=1.0).contains(&fair), "{all:?}");
        }
    }
}

#[test]
fn a_demo_needs_no_server() {
    let sweep = records(&["bw", "demo", "--transport=soft", "--sweep", "--duration=0.01"]);
    let sizes: Vec<_> = sweep.iter().map(|r| r["size"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [6, 8, 10, 12, 14, 16, 18, 20, 22, 24].map(|bits| 1 << bits));
    let packets = records(&[
        "rate",
        "demo",
        "--socket=seqpacket",
        "--crc",
        "--duration=0.01",
        "--transport=soft",
    ]);
    assert_eq!((&packets[0]["socket"], &packets[0]["crc"]), (&"seqpacket".into(), &true.into()));
    let copied = records(&["memcpy", "--duration=0.01", "--size=64k"]);
    assert_eq!((&copied[0]["transport"], &copied[0]["size"]), (&"memcpy".into(), &65536.into()));
    above_zero(&copied[0], &["/gbytes_per_s"]);
    let idle = records(&["idle", "demo", "--connections=50", "--transport=soft"]);
    above_zero(&idle[0], &["/bytes_local", "/bytes_remote"]);

    let out = perf(&["lat", "demo", "--transport=soft", "--duration=0.01"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.starts_with("lat by soft") && text.contains("wake-ups"), "{text}");
}

#[test]
fn wrong_use_is_explained() {
    let said = refused(&["bw", "127.0.0.1:1"]);
    assert!(said.contains("no exs-perf server at 127.0.0.1:1"), "{said}");
    let said = refused(&["bw", "nowhere"]);
    assert!(said.contains("HOST:PORT"), "{said}");
    let server = Server::start();
    let said = refused(&["bw", &server.1, "--transport=verbs", "--device=nope0"]);
    assert!(said.contains("verbs") || said.contains("nope0"), "{said}");
    let said = refused(&["bw", &server.1, "--size=1g", "--connections=1000", "--transport=tcp"]);
    assert!(said.contains("MiB of memory"), "{said}");
    // It goes on after all that.
    assert_eq!(records(&["lat", &server.1, "--duration=0.01", "--transport=tcp"]).len(), 1);
}

/// Another program on the port is recognised.
#[test]
fn strangers_are_named() {
    let stranger = |words: &'static [u8]| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(words).unwrap();
            // Until the client has gone.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let said = refused(&["lat", &addr]);
        thread.join().unwrap();
        said
    };
    let said = stranger(b"SSH-2.0-OpenSSH_9.2\r\n");
    assert!(said.contains("no exs-perf server") && said.contains("does not speak"), "{said}");
    let other = b"\0\0\0\x3b{\"program\":\"exs-perf\",\"protocol\":99,\"version\":\"9.9.9     \"}";
    assert_eq!(other.len(), 4 + 0x3b);
    let said = stranger(other);
    assert!(said.contains("protocol 99") && said.contains("same version"), "{said}");
}

/// Two at the same time would measure each other.
#[test]
fn one_client_at_a_time() {
    let server = Server::start();
    let mut first = Command::new(EXS_PERF);
    first.args(["lat", &server.1, "--transport=tcp", "--duration=600", "--json"]);
    let mut first = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // The first may not have come yet: then the second is served.
    let said = loop {
        let out = perf(&["lat", &server.1, "--transport=tcp", "--duration=0.01"]);
        if !out.status.success() {
            break String::from_utf8(out.stderr).unwrap();
        }
    };
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(said.contains("another client"), "{said}");
    // A client that is killed in the middle leaves the server free for the next one.
    while !perf(&["lat", &server.1, "--transport=tcp", "--duration=0.01"]).status.success() {}
}
