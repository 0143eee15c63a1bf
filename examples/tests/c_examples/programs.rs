//! Requirements on all the programs: good ends, good usage, no warnings.

use std::io::Write;
use std::net::TcpStream;

use exs::Socket;
use rustix::process::Signal;

use crate::ANY;
use crate::support::{Server, has, make, programs, run};

/// A signal ends each server in good order also while it has clients.
#[test]
fn servers_with_clients_end_when_told_to() {
    let dir = programs();
    let lines = [
        ["echo_server", "-k"],
        ["exs_echo_server", "-k"],
        ["kv_server", "-k"],
        ["exs_kv_server", "-k"],
        ["exs_http_server", "-k"],
        ["http_server", "-k"],
    ];
    for [program, kernel] in lines {
        let args = if program.starts_with("exs_") {
            vec![program, kernel, ANY]
        } else {
            vec![program, ANY]
        };
        for told in [Signal::TERM, Signal::INT] {
            let server = Server::start(dir, &args, "soft");
            let mut clients: Vec<TcpStream> =
                (0..5).map(|_| TcpStream::connect(&server.addr).unwrap()).collect();
            for c in &mut clients {
                c.write_all(b"half a request").unwrap();
            }
            crate::support::signal(&server.child, told);
            server.ends();
        }
    }
    for transport in crate::support::transports() {
        for program in ["exs_echo_server", "exs_kv_server", "exs_http_server"] {
            let server = Server::start(dir, &[program, ANY], transport);
            let clients: Vec<Socket> = (0..5).map(|_| Socket::stream().unwrap()).collect();
            for c in &clients {
                c.blocking().connect(&*server.addr).unwrap();
                c.blocking().send_all(b"half a request").unwrap();
            }
            server.stop();
        }
    }
}

#[test]
fn wrong_arguments_are_answered_by_the_usage() {
    let dir = programs();
    for program in [
        "echo_server",
        "exs_echo_server",
        "echo_client",
        "exs_echo_client",
        "kv_server",
        "exs_kv_server",
        "kv_client",
        "exs_kv_client",
        "http_server",
        "exs_http_server",
        "pingpong",
        "exs_pingpong",
        "remote_write",
        "exs_remote_write",
        "file_send",
        "exs_file_send",
        "file_recv",
        "exs_file_recv",
        "exs-gateway",
    ] {
        for args in [&["-Z"][..], &["a", "b", "c", "d", "e", "f"]] {
            let out = run(dir, &[&[program], args].concat(), "soft", b"");
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(2), "{program} {args:?}: {said}");
            assert!(said.contains(&format!("usage: {program} ")), "{program} {args:?}: {said}");
        }
    }
    for (line, why) in [
        (&["exs_kv_server", "-c", "0"][..], "a number from"),
        (&["kv_client", "-n", "-1", "h:1"], "a number from"),
        (&["exs_pingpong", "-s", "1x"], "a size from"),
        (&["exs_pingpong", "-p", "65536"], "a number from"),
        (&["exs-gateway", "-c", ""], "a number from"),
    ] {
        let out = run(dir, line, "soft", b"");
        assert_eq!(out.status.code(), Some(2), "{line:?}: {out:?}");
        assert!(String::from_utf8_lossy(&out.stderr).contains(why), "{out:?}");
    }
    // A port without a listener, and an address that does not exist: told in a sentence.
    for (line, why) in [
        (["exs_echo_client", "nowhere"], "HOST:PORT"),
        (["exs_echo_client", "127.0.0.1:1"], "refused"),
        (["exs_echo_server", "192.0.2.1:1"], "cannot bind to 192.0.2.1:1"),
        (["echo_client", "127.0.0.1:1"], "refused"),
    ] {
        let out = run(dir, &line, "soft", b"");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{line:?}: {said}");
        assert!(said.contains(why) && said.lines().count() == 1, "{line:?}: {said}");
    }
}

#[test]
fn a_second_compiler_has_nothing_to_say_either() {
    if has("clang") {
        make("clang", &["CC=clang", "CFLAGS=-O1"]);
    }
}
