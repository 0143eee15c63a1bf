//! Ping-pong, ibv_rc_pingpong's twin.

use std::path::Path;

use exs::{Socket, SocketType};

use crate::support::{Server, programs, run, text, ways};

pub(crate) fn pingpong(dir: &Path) {
    for way in ways(["pingpong", "exs_pingpong"], ["pingpong", "exs_pingpong"]) {
        for job in [["-s", "1", "-n", "100"], ["-s", "70000", "-n", "40"]] {
            let server = way.serve(dir, &["-p", "0", "-e"]);
            let args = [&job[..], &["-e", "-c", "-p", server.port(), "127.0.0.1"]].concat();
            let said = String::from_utf8(way.call_well(dir, &args, b"")).unwrap();
            let bytes = job[1].parse::<u64>().unwrap() * job[3].parse::<u64>().unwrap() * 2;
            assert!(said.contains(&format!("{bytes} bytes in ")), "{said}");
            assert!(said.contains(&format!("{} iters in ", job[3])), "{said}");
            assert!(said.contains(" MB/s"), "{said}");
            server.ends();
        }
    }
}

#[test]
fn ping_pong_goes_to_and_fro() {
    pingpong(programs());
}

/// The options that other tests have no need of.
#[test]
fn ping_pong_takes_the_options_of_ibv_rc_pingpong() {
    let dir = programs();
    let server = Server::start(dir, &["exs_pingpong", "-p", "0", "-e", "-r", "1"], "soft");
    let line = ["exs_pingpong", "-e", "-r", "2", "-i", "1", "-m", "1024", "-l", "0", "-g", "0"];
    let said = text(
        dir,
        &[&line[..], &["-n", "10", "-p", server.port(), "127.0.0.1"]].concat(),
        "soft",
        "",
    );
    assert!(said.contains("by way of soft"), "{said}");
    server.ends();
    // A device that there is not: said, and not gone without.
    let out =
        run(dir, &["exs_pingpong", "-d", "no-such-device", "-p", "1", "127.0.0.1"], "auto", b"");
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert!(String::from_utf8_lossy(&out.stderr).contains("exs_pingpong: "), "{out:?}");
}

/// The protocol, spoken by Rust.
#[test]
fn a_rust_client_plays_ping_pong_with_c() {
    let server = Server::start(programs(), &["exs_pingpong", "-p", "0", "-e"], "soft");
    let socket = Socket::new(SocketType::SeqPacket).unwrap();
    let addr = format!("127.0.0.1:{}", server.port());
    socket.blocking().connect(&*addr).unwrap();
    let hello = format!("{:<47}\n", "ping-pong 0000005000 0000000020 1");
    socket.blocking().send_all(hello.as_bytes()).unwrap();
    let mut back = vec![0; 5000];
    for round in 0..20u8 {
        socket.blocking().send_all(&[round; 5000]).unwrap();
        socket.blocking().recv_exact(&mut back).unwrap();
        assert!(back.iter().all(|b| *b == round), "round {round}");
    }
    server.ends();
}
