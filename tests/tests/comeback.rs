//! A device that is removed under a program, and put back: `rdma link delete` and `add`.
//!
//! That changes the machine, so it is done only where the environment says how
//! (`EXS_TEST_RDMA_RELINK`, "siw dummy1": type and interface), in a guest.

use std::net::SocketAddr;
use std::process::Command;

use exs::{MemoryRegion, Options, RecvFlags, Socket, SocketType, Transport};
use exs_tests::harness::{Ledger, Watchdog};
use exs_tests::rdma;
use exs_tests::skip::skip;

fn rdma_link(words: &[&str]) {
    let out = Command::new("rdma").arg("link").args(words).output().expect("rdma (iproute2)");
    assert!(out.status.success(), "rdma link {words:?}: {}", String::from_utf8_lossy(&out.stderr));
}

fn socket() -> Socket {
    let options = Options::default().with_transport(Transport::Verbs);
    Socket::with_options(SocketType::Stream, options).unwrap()
}

/// A listener on the device, and a connection to it that has carried bytes.
fn connected(addr: SocketAddr, region: &MemoryRegion) -> (Socket, Socket, Socket) {
    let listener = socket();
    listener.bind(addr).unwrap();
    listener.listen(8).unwrap();
    let client = socket();
    client.blocking().connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.blocking().accept().unwrap();
    let mut ledger = Ledger::new();
    let buffer = region.buffer(..).unwrap();
    let send = ledger.post("send", |q, t| client.send(q, t, buffer));
    server.blocking().recv_exact(&mut vec![0; region.len()]).unwrap();
    ledger.wait_ok(send);
    ledger.finish();
    (listener, client, server)
}

#[test]
fn the_same_program_uses_it_again() {
    let Some(device) = rdma::device() else { return skip(&rdma::missing().unwrap_or_default()) };
    let Ok(link) = std::env::var("EXS_TEST_RDMA_RELINK") else {
        return skip("the environment does not say that the device may be removed");
    };
    let (kind, netdev) = link.split_once(' ').expect("type and interface");
    let _dog = Watchdog::new("the_same_program_uses_it_again");
    let addr = SocketAddr::new(device.addr, 0);
    let region = MemoryRegion::new(100_000).unwrap();
    for _ in 0..3 {
        let (listener, client, server) = connected(addr, &region);
        let mut ledger = Ledger::new();
        let recv = ledger.post("recv", |q, t| server.recv(q, t, vec![0; 10], RecvFlags::NONE));
        let accept = ledger.post("accept", |q, t| listener.accept(q, t));
        rdma_link(&["delete", &device.name]);
        assert_eq!(ledger.wait(recv).error().unwrap().errno(), libc::ENODEV);
        assert_eq!(ledger.wait(accept).error().unwrap().errno(), libc::ENODEV);
        ledger.finish();
        let gone = socket().blocking().connect(SocketAddr::new(device.addr, 7471)).unwrap_err();
        assert_eq!(gone.errno(), libc::ENODEV, "{gone}");
        drop((client, server));
        rdma_link(&["add", &device.name, "type", kind, "netdev", netdev]);
    }
    connected(addr, &region);
}
