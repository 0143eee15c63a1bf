//! Writing into the memory of the other side.

use std::path::Path;
use std::process::Command;

use exs::{Socket, SocketType};

use crate::ANY;
use crate::support::{Server, programs, text};

pub(crate) fn remote_write(dir: &Path) {
    let server = Server::start(dir, &["remote_write", "serve", ANY, "plain text"], "soft");
    let said = text(dir, &["remote_write", &server.addr], "soft", "");
    assert_eq!(said, "lent: 4096 bytes\nfound: plain text\n");
    server.expect("written: 10 bytes");
    server.stop_at_once();
    for transport in crate::support::transports() {
        let server = Server::start(dir, &["exs_remote_write", "serve", ANY, "by RDMA"], transport);
        for _ in 0..3 {
            let said = text(dir, &["exs_remote_write", &server.addr], transport, "");
            assert_eq!(said, "lent: 4096 bytes\nfound: by RDMA\n");
            server.expect("written: 7 bytes");
            server.expect("read back: 7 bytes");
        }
        server.stop_at_once();
    }
}

#[test]
fn memory_is_written_by_the_other_side() {
    remote_write(programs());
}

/// Rust's exs-rdma-write and its C twin, either way round.
#[test]
fn c_and_rust_write_into_each_others_memory() {
    let dir = programs();
    let rust = env!("CARGO_BIN_EXE_exs-rdma-write");
    for transport in crate::support::transports() {
        let server =
            Server::start(dir, &["exs_remote_write", "serve", ANY, "C to Rust"], transport);
        let mut client = Command::new(rust);
        client.arg(&server.addr).env("EXS_TRANSPORT", transport);
        let out = crate::support::run_command(client, b"");
        assert!(out.status.success(), "{out:?}");
        assert!(String::from_utf8_lossy(&out.stdout).contains("\"C to Rust\""), "{out:?}");
        server.stop_at_once();

        let mut server = Command::new(rust);
        server.args(["serve", "--once", "--listen", ANY, "--text", "Rust to C"]);
        let server = Server::spawn(server);
        let said = text(dir, &["exs_remote_write", &server.addr], transport, "");
        assert!(said.ends_with("found: Rust to C\n"), "{said}");
        server.ends();
    }
}

/// A client that sends no descriptor loses its connection; other clients are served.
#[test]
fn a_client_that_lends_nonsense_is_told_off() {
    let dir = programs();
    let server = Server::start(dir, &["exs_remote_write", "serve", ANY], "soft");
    for nonsense in [&[0xff; 24][..], b"short"] {
        let socket = Socket::new(SocketType::SeqPacket).unwrap();
        socket.blocking().connect(&*server.addr).unwrap();
        socket.blocking().send_all(nonsense).unwrap();
        let mut answer = [0; 64];
        let got = socket.blocking().recv(&mut answer);
        assert!(matches!(got, Ok(0) | Err(_)), "{got:?}");
    }
    text(dir, &["exs_remote_write", &server.addr], "soft", "");
    server.stop_at_once();
}
