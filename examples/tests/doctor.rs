//! `exs-info --doctor`, as a process: what it says of this host, of the other end of a connection, and
//! how it ends. What it says of hosts with devices is in its unit tests and in the test bed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const INFO: &str = env!("CARGO_BIN_EXE_exs-info");

fn doctor(args: &[&str]) -> Command {
    let mut command = Command::new(INFO);
    command.arg("--doctor").args(args).env_remove("EXS_TRANSPORT").env_remove("EXS_DEVICE");
    command
}

/// The exit status, and the findings.
fn findings(command: &mut Command) -> (i32, Vec<Value>) {
    let out: Output = command.arg("--json").output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    let findings = report["findings"].as_array().unwrap().clone();
    let has = |severity| findings.iter().any(|f| f["severity"] == severity);
    let (status, worst) = match (has("fault"), has("warning"), has("note")) {
        (true, ..) => (1, "fault"),
        (_, true, _) => (3, "warning"),
        (.., true) => (0, "note"),
        _ => (0, "ok"),
    };
    assert_eq!(
        (out.status.code(), &report["worst"]),
        (Some(status), &Value::from(worst)),
        "{text}"
    );
    (status, findings)
}

fn of<'a>(findings: &'a [Value], check: &str) -> Vec<&'a Value> {
    findings.iter().filter(|f| f["check"] == check).collect()
}

fn says(finding: &Value, words: &[&str]) {
    let text = finding.to_string();
    assert!(words.iter().all(|w| text.contains(w)), "{words:?} are not in {text}");
}

/// A server of ours, which is ended at the end.
struct Server {
    child: Child,
    addr: String,
}

impl Server {
    fn start(command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let addr = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
        Server { child, addr }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn this_host_can_connect_to_itself() {
    let (_, all) = findings(&mut doctor(&[]));
    for by in ["by shm", "by soft"] {
        let found = of(&all, "self").into_iter().find(|f| f["text"].as_str().unwrap().contains(by));
        let found = found.unwrap_or_else(|| panic!("nothing {by}: {all:?}"));
        assert_eq!(found["severity"], "ok", "{found}");
        says(found, &["1 MiB there and back"]);
    }
    assert_eq!(of(&all, "peer").len(), 0);
    assert!(!of(&all, "nofile").is_empty() && !of(&all, "library").is_empty());
    // For people, a line each and what to do below it.
    let out = doctor(&[]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(text.lines().filter(|l| !l.starts_with(' ')).count(), all.len() + 1, "{text}");
    assert!(text.lines().last().unwrap().starts_with("EXS "), "{text}");
}

#[test]
fn a_low_limit_is_a_warning() {
    let script = format!("ulimit -n 200 && exec {INFO} --doctor \"$@\"");
    let (status, all) = findings(Command::new("sh").args(["-c", &script, "sh"]));
    let found = of(&all, "nofile")[0];
    assert_eq!((status, &found["severity"]), (3, &"warning".into()), "{all:?}");
    says(found, &["200", "LimitNOFILE"]);
}

#[test]
fn a_variable_that_cannot_be_read_is_a_fault() {
    let (status, all) = findings(doctor(&[]).env("EXS_WAIT", "often"));
    assert_eq!(status, 1);
    says(of(&all, "start")[0], &["EXS_WAIT", "often"]);
    assert_eq!(of(&all, "self").len(), 0);
}

#[test]
fn the_other_end_answers() {
    let server = Server::start(&mut doctor(&["--serve=127.0.0.1:0"]));
    for (args, ways) in
        [(&[][..], &["by shm", "by soft"][..]), (&["--transport", "soft"], &["by soft"])]
    {
        let (_, all) = findings(doctor(&[&server.addr]).args(args));
        let peers = of(&all, "peer");
        assert_eq!(peers.len(), ways.len(), "{all:?}");
        for (found, way) in peers.iter().zip(ways) {
            assert_eq!(found["severity"], "ok", "{found}");
            says(found, &[way, "1 MiB there and back", &server.addr]);
        }
    }
}

#[test]
fn another_exs_program_is_an_answer() {
    let program = env!("CARGO_BIN_EXE_exs-pingpong");
    let server = Server::start(Command::new(program).args([
        "--listen",
        "127.0.0.1:0",
        "--transport",
        "soft",
    ]));
    let (_, all) = findings(&mut doctor(&[&server.addr, "--transport", "soft"]));
    let found = of(&all, "peer")[0];
    assert_eq!(found["severity"], "ok");
    says(found, &["understands this one", "--serve"]);
}

#[test]
fn a_program_without_exs_and_no_program_are_faults() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let stranger = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let (status, all) = findings(&mut doctor(&[&addr, "--transport", "soft"]));
    stranger.join().unwrap();
    assert_eq!((status, &of(&all, "peer")[0]["severity"]), (1, &"fault".into()));
    // The listener is gone now.
    let (status, all) = findings(&mut doctor(&[&addr, "--transport", "soft"]));
    assert_eq!(status, 1);
    says(of(&all, "peer")[0], &["refused", "exs-info --doctor --serve"]);
}

#[test]
fn wrong_usage_has_its_own_status() {
    for args in [&["--serve=nowhere"][..], &["--serve", "127.0.0.1"], &["no.such.host.invalid"]] {
        assert_eq!(doctor(args).output().unwrap().status.code(), Some(2), "{args:?}");
    }
    let alone = Command::new(INFO).arg("--serve").output().unwrap();
    assert_eq!(alone.status.code(), Some(2), "{alone:?}");
}
