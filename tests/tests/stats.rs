//! The figures that a process offers: what they say, which users may read them, and what becomes of the
//! socket.
//!
//! [`child`] is the process that is watched: the test program runs itself.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use exs::{
    EventQueue, Interest, KernelSocket, Options, RecvFlags, Socket, SocketType, Token, Transport,
};
use exs_tests::harness::peer::{self, Peer};
use exs_tests::harness::{LIMIT, Watchdog, stream_pair};
use exs_tests::skip;
use serde_json::{Value, json};

/// Bytes that the child moves from one of its sockets to another.
const BYTES: usize = 300_000;

/// A directory for the sockets of a test, which goes with it.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let dir = std::env::temp_dir().join(format!("exs-stats-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        Place(dir)
    }

    /// A child that offers its figures here.
    fn child(&self, part: &str, args: &[&str]) -> Peer {
        let variable = format!("EXS_STATS={}", self.0.display());
        Peer::start_by(&["env", &variable, "EXS_SHARDS=2"], "child", part, args)
    }

    /// The socket that a child offers.
    fn socket_of(&self, child: &Peer) -> PathBuf {
        self.0.join(format!("{}.sock", child.pid()))
    }

    fn names(&self) -> Vec<PathBuf> {
        let mut all: Vec<_> = fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().path()).collect();
        all.sort();
        all
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// All lines of a snapshot, the last of which closes it.
fn snapshot(path: &Path) -> Vec<Value> {
    let mut text = String::new();
    UnixStream::connect(path).unwrap().read_to_string(&mut text).unwrap();
    let lines = lines(&text);
    let sockets = lines.iter().filter(|l| l["type"] == "socket").count();
    assert_eq!(lines.last().unwrap()["sockets"], sockets, "{text}");
    lines
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Not a test in the parent: the process that is watched.
#[test]
fn child() {
    let Some(words) = peer::part() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let _dog = Watchdog::with_limit(&format!("the child {words:?}"), LIMIT * 2);
    match words[..] {
        ["moves"] => moves(),
        ["kernel", path] => kernel(Path::new(path)),
        ["many", count] => many(count.parse().unwrap()),
        ["execs"] => {
            exs::stats::offer().unwrap();
            let program = std::env::current_exe().unwrap();
            let args = ["child", "--exact", "--nocapture", "--test-threads=1"];
            let e = Command::new(program).args(args).env("PART_OF_EXS_TEST", "moves").exec();
            panic!("exec: {e}");
        }
        ["reads", path] => {
            let mut text = String::new();
            let read = UnixStream::connect(path).and_then(|mut s| s.read_to_string(&mut text));
            // A reader that is refused may see a reset.
            let _ = read;
            peer::say(&format!("read {}", text.len()));
        }
        _ => panic!("no such part: {words:?}"),
    }
}

fn soft() -> Options {
    Options::default().with_transport(Transport::Soft)
}

/// A pair of sockets with known traffic, a receive that waits, and a send for which the peer has no
/// room.
fn moves() {
    let (a, b) = stream_pair(&soft().with_ring_size(64 << 10));
    let queue = EventQueue::new(8).unwrap();
    b.recv(&queue, Token(1), vec![0; BYTES], RecvFlags::WAITALL).unwrap();
    a.blocking().send_all(&vec![7; BYTES]).unwrap();
    assert_eq!(queue.next().unwrap().bytes(), BYTES);
    a.recv(&queue, Token(2), vec![0; 10], RecvFlags::default()).unwrap();
    a.send(&queue, Token(3), vec![0; 1 << 20]).unwrap();
    // The rest of the send waits until the peer has room.
    while !exs::stats::snapshot().unwrap().contains(r#""waits":["peer"]"#) {
        std::thread::yield_now();
    }
    peer::say("ready");
    peer::listen();
}

/// Kernel sockets of each kind, with operations in flight.
fn kernel(unix: &Path) {
    let queue = EventQueue::new(64).unwrap();
    let adopt = |socket: OwnedFd| KernelSocket::new(socket).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (a, stuck) = (adopt(connect().into()), adopt(connect().into()));
    let (b, _reads_nothing) = (adopt(listener.accept().unwrap().0.into()), listener.accept());
    b.recv(&queue, Token(1), vec![0; 1000], RecvFlags::WAITALL).unwrap();
    a.send(&queue, Token(2), vec![7; 1000]).unwrap();
    for _ in 0..2 {
        assert_eq!(queue.next().unwrap().bytes(), 1000);
    }
    let listener = adopt(listener.into());
    listener.accept(&queue, Token(3)).unwrap();
    a.recv(&queue, Token(4), vec![0; 10], RecvFlags::NONE).unwrap();
    b.recv(&queue, Token(5), vec![0; 10], RecvFlags::NONE).unwrap();
    stuck.send(&queue, Token(9), vec![0; 64 << 20]).unwrap();
    let udp = adopt(UdpSocket::bind("127.0.0.1:0").unwrap().into());
    udp.recv(&queue, Token(6), vec![0; 10], RecvFlags::NONE).unwrap();
    let unix = adopt(UnixListener::bind(unix).unwrap().into());
    unix.poll(&queue, Token(7), Interest::READABLE).unwrap();
    let (pair, _other) = UnixStream::pair().unwrap();
    let pair = adopt(pair.into());
    pair.recv(&queue, Token(8), vec![0; 10], RecvFlags::NONE).unwrap();
    let idle = adopt(UdpSocket::bind("127.0.0.1:0").unwrap().into());
    peer::say("ready");
    peer::listen();
    drop((a, b, stuck, listener, udp, unix, pair, idle));
}

/// Many sockets that do nothing.
fn many(count: usize) {
    let _all: Vec<_> = (0..count).map(|_| Socket::stream().unwrap()).collect();
    peer::say("ready");
    peer::listen();
}

#[test]
fn a_snapshot_has_the_counters_of_known_traffic() {
    let place = Place::new("known");
    let child = place.child("moves", &[]);
    child.expect("ready");
    let lines = snapshot(&place.socket_of(&child));
    let process = &lines[0];
    assert_eq!(
        (&process["type"], &process["format"], &process["pid"]),
        (&"process".into(), &1.into(), &child.pid().into())
    );
    assert_eq!(process["exs"], env!("CARGO_PKG_VERSION"));
    let comm = fs::read_to_string(format!("/proc/{}/comm", child.pid())).unwrap();
    assert_eq!(process["name"], comm.trim_end());
    let sockets: Vec<_> = lines.iter().filter(|l| l["type"] == "socket").collect();
    let receiver = sockets.iter().find(|s| s["counters"]["recvs"] == 1).expect("the receiver");
    let sender = sockets.iter().find(|s| s["peer"] == receiver["local"]).expect("the sender");
    assert_eq!(receiver["received_bytes"].as_u64().unwrap() - ring(receiver), BYTES as u64);
    assert_eq!(sender["sent_bytes"], receiver["received_bytes"]);
    for s in [sender, receiver] {
        assert_eq!(
            (&s["state"], &s["kind"], &s["transport"], &s["device"]),
            (&"open".into(), &"stream".into(), &"soft".into(), &"soft".into())
        );
    }
    // The receive and the send that are in flight. The send waits for the peer.
    let flight = &sender["in_flight"];
    assert_eq!((&flight["sends"], &flight["recvs"]), (&1.into(), &1.into()), "{sender}");
    assert_eq!(sender["waits"], json!(["peer"]), "{sender}");
    assert_eq!(receiver["waits"], json!([]), "{receiver}");
    // The sums of the process are those of its sockets.
    assert_eq!(process["sent_bytes"], sender["sent_bytes"]);
    let soft = process["devices"].as_array().unwrap().iter().find(|d| d["device"] == "soft");
    assert_eq!(soft.unwrap()["sent_bytes"], sender["sent_bytes"]);
    assert_eq!(soft.unwrap()["connections"], 2);
    assert_eq!(process["in_flight"], 2);
}

#[test]
fn kernel_sockets_have_lines_of_their_own() {
    let place = Place::new("kernel");
    let path = place.0.join("listener");
    let child = place.child("kernel", &[path.to_str().unwrap()]);
    child.expect("ready");
    let lines = loop {
        let lines = snapshot(&place.socket_of(&child));
        // The kernel takes bytes until the buffers of both ends are full.
        if lines.iter().any(|l| l["waits"] == json!(["peer"])) {
            break lines;
        }
        std::thread::yield_now();
    };
    assert_eq!(lines[0]["kernel_sockets"], 7, "those with operations in flight");
    let sockets: Vec<_> = lines.iter().filter(|l| l["transport"] == "kernel").collect();
    assert_eq!((sockets.len(), &lines[0]["sockets"]), (7, &0.into()));
    for s in &sockets {
        for field in ["id", "kind", "state"] {
            assert!(s[field].is_string(), "{s}");
        }
        for field in ["sends", "recvs", "accepts", "polls"] {
            assert!(s["in_flight"][field].is_u64(), "{s}");
        }
        assert!(s["shard"].is_u64() && s["at_us"].is_u64() && s["inode"].as_u64() > Some(0), "{s}");
        assert!(s["waits"].is_array() && s.get("counters").is_none(), "{s}");
    }
    let is = |s: &Value, kind: &str, state: &str| s["kind"] == kind && s["state"] == state;
    let one = |which: &dyn Fn(&Value) -> bool| {
        let mut found = sockets.iter().filter(|s| which(s));
        let first = found.next().unwrap_or_else(|| panic!("{sockets:#?}"));
        assert!(found.next().is_none(), "{sockets:#?}");
        *first
    };
    let listener = one(&|s| is(s, "stream", "listening") && s["in_flight"]["accepts"] == 1);
    let stuck = one(&|s| is(s, "stream", "open") && s["in_flight"]["sends"] == 1);
    assert!(stuck["sent_bytes"].as_u64() > Some(0), "{stuck}");
    let a = one(&|s| s["sent_bytes"] == 1000);
    let b = one(&|s| s["received_bytes"] == 1000);
    assert_eq!((&a["local"], &a["peer"]), (&b["peer"], &b["local"]));
    assert_eq!((&a["state"], &b["local"]), (&"open".into(), &listener["local"]));
    assert_eq!((&a["in_flight"]["recvs"], &a["waits"]), (&1.into(), &json!([])));
    let udp = one(&|s| is(s, "datagram", "new"));
    assert_eq!((&udp["in_flight"]["recvs"], udp.get("peer")), (&1.into(), None));
    assert_eq!(udp.get("sent_bytes"), None, "the kernel does not count them");
    let unix = one(&|s| is(s, "stream", "listening") && s["in_flight"]["polls"] == 1);
    assert_eq!(unix["local"], format!("unix:{}", path.display()));
    let pair = one(&|s| is(s, "stream", "open") && s.get("local").is_none());
    assert_eq!((&pair["in_flight"]["recvs"], pair.get("peer")), (&1.into(), None));
}

/// Bytes that wait in the ring of a socket for a receive.
fn ring(socket: &Value) -> u64 {
    socket["available"].as_u64().unwrap()
}

#[test]
fn a_process_of_another_user_cannot_read() {
    if !nix::unistd::geteuid().is_root() {
        return skip::skip("only root can start a process of another user");
    }
    let place = Place::new("foreign");
    let child = place.child("moves", &[]);
    child.expect("ready");
    let path = place.socket_of(&child);
    // Even where the rights of the files would let another user in.
    fs::set_permissions(&place.0, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let shown = path.to_str().unwrap();
    let as_user = |user: u32| {
        let run = format!("exec setpriv --reuid={user} --clear-groups \"$0\" \"$@\"");
        let reader = Peer::start_by(&["sh", "-c", &run], "child", "reads", &[shown]);
        let read = reader.expect("read");
        read.parse::<usize>().unwrap()
    };
    assert!(as_user(0) > 0, "root may read");
    assert_eq!(as_user(65534), 0, "another user may not");
}

#[test]
fn readers_that_stall_or_send_rubbish_disturb_no_other() {
    let place = Place::new("stall");
    let child = place.child("many", &["3000"]);
    child.expect("ready");
    let path = place.socket_of(&child);
    // More than the places for readers. None takes anything, and the snapshot is longer than what
    // the kernel keeps for a socket.
    let stalled: Vec<_> = (0..12).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let mut rubbish = UnixStream::connect(&path).unwrap();
    let _ = rubbish.write_all(&[0xff; 4096]);
    drop(rubbish);
    let half = UnixStream::connect(&path).unwrap();
    half.shutdown(Shutdown::Both).unwrap();
    let lines = snapshot(&path);
    assert_eq!(lines[0]["sockets"], 3000);
    assert_eq!(lines.len(), 3002);
    let mut ids: Vec<_> = lines[1..3001].iter().map(|l| l["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 3000, "each socket once");
    drop(stalled);
}

#[test]
fn the_socket_goes_with_its_process() {
    let place = Place::new("ends");
    let mut killed = place.child("moves", &[]);
    killed.expect("ready");
    let left = place.socket_of(&killed);
    killed.kill();
    assert!(left.exists(), "nothing removes it at once");
    let child = place.child("moves", &[]);
    child.expect("ready");
    assert_eq!(place.names(), [place.socket_of(&child)], "the next process has removed it");
    child.finish();
    assert_eq!(place.names(), [] as [PathBuf; 0], "exit(3) removes it");
}

#[test]
fn a_program_that_exec_starts_offers_figures_of_its_own() {
    let place = Place::new("exec");
    let child = place.child("execs", &[]);
    child.expect("ready");
    let path = place.socket_of(&child);
    assert_eq!(place.names(), std::slice::from_ref(&path));
    assert_eq!(snapshot(&path)[0]["devices"][0]["connections"], 2);
}

#[test]
fn a_process_starts_though_it_cannot_offer_its_figures() {
    let file = Place::new("denied");
    let none = file.0.join("file");
    fs::write(&none, "").unwrap();
    let variable = format!("EXS_STATS={}/below", none.display());
    let child = Peer::start_by(&["env", &variable], "child", "moves", &[]);
    child.expect("ready");
    child.finish();
    // A value that is neither a switch nor a path is a mistake of the user.
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["child", "--exact", "--nocapture"]).env("EXS_STATS", "perhaps");
    let out = command.env("PART_OF_EXS_TEST", "many 1").output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(said.contains("EXS_STATS") && said.contains("perhaps"), "{said}");
}

#[test]
fn listeners_and_messages_have_lines_of_their_own() {
    let listener = Socket::with_options(SocketType::SeqPacket, soft()).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(7).unwrap();
    let at = listener.local_addr().unwrap();
    let client = Socket::with_options(SocketType::SeqPacket, soft()).unwrap();
    client.blocking().connect(at).unwrap();
    let (server, _) = listener.blocking().accept().unwrap();
    server.blocking().send_all(b"one").unwrap();
    let text = exs::stats::snapshot().unwrap();
    let lines = lines(&text);
    let at = at.to_string();
    let listening = lines.iter().find(|l| l["state"] == "listening").expect("the listener");
    assert_eq!(
        (&listening["local"], &listening["kind"]),
        (&at.clone().into(), &"seqpacket".into())
    );
    let l = &listening["listener"];
    assert_eq!((&l["backlog"], &l["established"], &l["ready"]), (&7.into(), &1.into(), &0.into()));
    assert_eq!(l["devices"], json!(["soft"]));
    let accepted = lines.iter().find(|s| s["local"] == at && s["state"] == "open").unwrap();
    assert_eq!(accepted["counters"]["sent_inline"], 3);
    assert_eq!(lines[0]["listeners"], 1);
    // The counters of connections that are gone stay in the sums of their device.
    let before = exs::counters().unwrap();
    client.blocking().close().unwrap();
    server.blocking().close().unwrap();
    let text = exs::stats::snapshot().unwrap();
    let process: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(process["devices"][0]["connections"], 0);
    assert_eq!(process["counters"]["sent_inline"], before.sent_inline);
}
