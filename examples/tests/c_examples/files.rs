//! Files, sent and received.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use crate::ANY;
use crate::support::{Server, TempDir, Way, command, noise, preload, programs, ways};

fn file_ways() -> Vec<Way> {
    ways(["file_recv", "exs_file_recv"], ["file_send", "exs_file_send"])
}

pub(crate) fn files(dir: &Path) {
    for way in file_ways() {
        let (from, to) = (TempDir::new("from"), TempDir::new("to"));
        let into = to.0.to_str().unwrap().to_owned();
        let server = way.serve(dir, &[ANY, &into]);
        for (name, size) in [("empty", 0), ("one", 1), ("large", (5 << 20) + 17)] {
            let path = from.file(name, &noise(9, size));
            let args = [path.to_str().unwrap(), &server.addr];
            let said = String::from_utf8(way.call_well(dir, &args, b"")).unwrap();
            assert!(said.starts_with(&format!("received: {size} bytes")), "{said}");
            assert!(std::fs::read(to.0.join(name)).unwrap() == noise(9, size), "{name}");
        }
        // A file that exists is not replaced, and the sender is told.
        let path = from.file("one", b"another");
        let out = way.call(dir, &[path.to_str().unwrap(), &server.addr], b"");
        assert_eq!(out.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&out.stderr).contains("File exists"), "{out:?}");
        assert_eq!(to.names(), ["empty", "large", "one"]);
        assert_eq!(std::fs::read(to.0.join("one")).unwrap().len(), 1);
        server.stop_at_once();

        let server = way.serve(dir, &["-1", ANY, &into]);
        let path = from.file("last", b"last");
        way.call_well(dir, &[path.to_str().unwrap(), &server.addr], b"");
        server.ends();
    }
}

#[test]
fn files_arrive() {
    files(programs());
}

/// A hostile sender, and a sender that breaks off.
#[test]
fn a_receiver_keeps_to_its_directory_and_to_whole_files() {
    let header = |name: &str, size: u64| {
        let mut h = b"FILE".to_vec();
        h.extend(u32::try_from(name.len()).unwrap().to_be_bytes());
        h.extend(size.to_be_bytes());
        h.extend(name.as_bytes());
        h
    };
    for receiver in [&["file_recv"][..], &["exs_file_recv", "-k"]] {
        let to = TempDir::new("hostile");
        let line = [receiver, &[ANY, to.0.to_str().unwrap()]].concat();
        let server = Server::start(programs(), &line, "soft");
        let cases = [
            (header("../out", 1), "no '/'"),
            (header("/etc/out", 1), "no '/'"),
            (header("..", 1), "no '.' first"),
            (header("a\x1b[2J", 1), "no control"),
            ([header("", 1), b"x".to_vec()].concat(), "no file transfer"),
            ([&b"FILE"[..], &[0xff; 12], &[b'x'; 100]].concat(), "no file transfer"),
            (b"GET / HTTP/1.0\r\n\r\n".to_vec(), "no file transfer"),
            ([header("short", 10), b"12345".to_vec()].concat(), "in the middle"),
            ([header("long", 2), b"12345".to_vec()].concat(), "more than"),
            (Vec::new(), "in the middle"),
        ];
        for (bytes, why) in cases {
            let mut tcp = TcpStream::connect(&server.addr).unwrap();
            tcp.write_all(&bytes).unwrap();
            tcp.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = String::new();
            tcp.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("refused: ") && answer.contains(why), "{answer}: {why}");
        }
        assert!(to.names().is_empty(), "{:?}", to.names());
        server.stop_at_once();
    }
}

/// What a sender reads after it has sent `name` with four bytes.
fn answer(addr: &str, name: &str) -> String {
    let mut tcp = TcpStream::connect(addr).unwrap();
    let head = [&b"FILE"[..], &u32::try_from(name.len()).unwrap().to_be_bytes()].concat();
    tcp.write_all(&[&head, &4u64.to_be_bytes()[..], name.as_bytes(), b"text"].concat()).unwrap();
    tcp.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).unwrap();
    answer
}

/// The answer means that data and name survive a power cut, so an error of either fsync is told.
/// EINVAL for a directory means that the file system has no such call.
#[test]
fn a_file_is_received_when_its_name_is_on_the_disk() {
    let shim = preload("sync_fails");
    for (of, errno, why) in [
        ("f", libc::EIO, Some("cannot write")),
        ("d", libc::EIO, Some("cannot sync the directory")),
        ("d", libc::EINVAL, None),
    ] {
        let to = TempDir::new("unsynced");
        let mut c = command(programs(), &["file_recv", ANY, to.0.to_str().unwrap()]);
        c.env("LD_PRELOAD", &shim).env("SYNC_FAILS_BELOW", &to.0);
        c.env("SYNC_FAILS_OF", of).env("SYNC_FAILS_WITH", errno.to_string());
        let server = Server::spawn(c);
        let answer = answer(&server.addr, "f");
        match why {
            Some(why) => {
                assert!(answer.starts_with(&format!("refused: {why}")), "{answer}");
                assert!(to.names().is_empty(), "{:?}", to.names());
            }
            None => {
                assert_eq!(answer, "received: 4 bytes\n");
                assert_eq!(to.names(), ["f"]);
            }
        }
        server.stop_at_once();
    }
}

/// A killed receiver leaves its partial files, and in a container the next one has its number.
#[test]
fn a_partial_file_that_was_left_behind_does_no_harm() {
    let to = TempDir::new("left");
    let line = ["file_recv", ANY, to.0.to_str().unwrap()];
    let server = Server::start(programs(), &line, "soft");
    for n in 0..3 {
        to.file(&format!(".incoming-{}-{n}", server.child.id()), b"old");
    }
    assert_eq!(answer(&server.addr, "f"), "received: 4 bytes\n");
    assert_eq!(std::fs::read(to.0.join("f")).unwrap(), b"text");
    server.stop_at_once();
}
