//! Echo: what is sent comes back.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use exs::Socket;

use crate::ANY;
use crate::support::{Server, Watchdog, Way, noise, programs, ways};

fn echo_ways() -> Vec<Way> {
    ways(["echo_server", "exs_echo_server"], ["echo_client", "exs_echo_client"])
}

pub(crate) fn echo(dir: &Path, bytes: usize) {
    let data = noise(1, bytes);
    for way in echo_ways() {
        let server = way.serve(dir, &[ANY]);
        assert!(way.call_well(dir, &[&server.addr], &data) == data, "{:?}", way.server);
        assert!(way.call_well(dir, &[&server.addr], b"").is_empty());
        server.stop();
    }
}

#[test]
fn echo_comes_back() {
    echo(programs(), 3 << 20);
}

#[test]
fn echo_of_many_at_once_and_of_one_that_dies() {
    let dir = programs();
    for way in echo_ways() {
        let server = way.serve(dir, &[ANY]);
        // A client that has its connection, and is killed.
        let mut doomed = Command::new(dir.join(way.client[0]))
            .args(&way.client[1..])
            .arg(&server.addr)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        doomed.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let mut back = [0];
        doomed.stdout.as_mut().unwrap().read_exact(&mut back).unwrap();
        std::thread::scope(|s| {
            for i in 0..8 {
                let (way, server) = (&way, &server);
                s.spawn(move || {
                    let data = noise(i, 300_000);
                    assert!(way.call_well(dir, &[&server.addr], &data) == data);
                });
                if i == 3 {
                    doomed.kill().unwrap();
                }
            }
        });
        doomed.wait().unwrap();
        server.stop();
    }
}

/// The server goes away while the client still has something to say.
#[test]
fn an_echo_client_reports_a_server_that_has_gone() {
    let dir = programs();
    for way in echo_ways() {
        let mut server = way.serve(dir, &[ANY]);
        let mut client = Command::new(dir.join(way.client[0]))
            .args(&way.client[1..])
            .arg(&server.addr)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        client.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let mut back = [0];
        client.stdout.as_mut().unwrap().read_exact(&mut back).unwrap();
        server.child.kill().unwrap();
        let _dog = Watchdog::new(format!("{:?}", way.client));
        let stdin = client.stdin.take();
        let out = client.wait_with_output().unwrap();
        drop(stdin);
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        assert!(!out.stderr.is_empty());
    }
}

#[test]
fn a_rust_client_and_the_c_echo_server_understand_each_other() {
    let dir = programs();
    for transport in crate::support::transports() {
        let server = Server::start(dir, &["exs_echo_server", ANY], transport);
        let socket = Socket::stream().unwrap();
        socket.blocking().connect(&*server.addr).unwrap();
        let data = noise(2, 200_000);
        let mut back = vec![0; data.len()];
        for (sent, got) in data.chunks(10_000).zip(back.chunks_mut(10_000)) {
            socket.blocking().send_all(sent).unwrap();
            socket.blocking().recv_exact(got).unwrap();
        }
        assert!(back == data);
        socket.blocking().close().unwrap();
        server.stop();
    }
}

#[test]
fn the_c_echo_client_and_a_rust_server_understand_each_other() {
    crate::support::transports().into_iter().for_each(the_c_echo_client_by);
}

fn the_c_echo_client_by(transport: &str) {
    let dir = programs();
    let listener = Socket::stream().unwrap();
    listener.bind(ANY.parse().unwrap()).unwrap();
    listener.listen(1).unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let rust = std::thread::spawn(move || {
        let (socket, _) = listener.blocking().accept().unwrap();
        let mut bytes = vec![0; 65536];
        loop {
            match socket.blocking().recv(&mut bytes).unwrap() {
                0 => return socket.blocking().close().unwrap(),
                n => socket.blocking().send_all(&bytes[..n]).unwrap(),
            }
        }
    });
    let data = noise(3, 2 << 20);
    assert!(crate::support::well(dir, &["exs_echo_client", &addr], transport, &data) == data);
    rust.join().unwrap();
}
