//! exs-gateway.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::ANY;
use crate::support::{Server, noise, programs, run};

/// Through two gateways: TCP to EXS, and back to TCP.
pub(crate) fn gateways(dir: &Path) {
    for transport in crate::support::transports() {
        let server = Server::start(dir, &["echo_server", ANY], "soft");
        let far = Server::start(dir, &["exs-gateway", "-r", ANY, &server.addr], transport);
        let near = Server::start(dir, &["exs-gateway", ANY, &far.addr], transport);
        std::thread::scope(|s| {
            for i in 0..6 {
                let near = &near;
                s.spawn(move || {
                    let data = noise(i, 1 << 20);
                    let back =
                        crate::support::well(dir, &["echo_client", &near.addr], "soft", &data);
                    assert!(back == data);
                });
            }
        });
        // Killed in the middle: the gateways go on.
        let mut client = Command::new(dir.join("echo_client"))
            .arg(&near.addr)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        client.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        client.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        client.kill().unwrap();
        client.wait().unwrap();
        assert_eq!(crate::support::well(dir, &["echo_client", &near.addr], "soft", b"!"), b"!");
        // No server behind it: the client sees its connection end without a byte.
        server.stop();
        let out = run(dir, &["echo_client", &near.addr], "soft", b"!");
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        near.stop();
        far.stop();
    }
}

#[test]
fn gateways_join_tcp_and_exs() {
    gateways(programs());
}
