//! The contract of sockets on a device that can do little: it cannot read files, it
//! answers no READs of no bytes, its receive queue must never be empty, and its limits are tight. The device is the
//! software RNIC, and a request beyond these limits fails the test.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Once;

use exs::rnic::Caps;
use exs::{Options, Transport};
use exs_tests::fake;
use exs_tests::harness::Env;
use exs_tests::socket_contract;

fn poor(caps: &mut Caps) {
    caps.file_source = false;
    caps.srq_waits = false;
    caps.small_reads = false;
    caps.pins = true;
    // Receives of 125 connections.
    caps.max_srq_wr = 1000;
    caps.max_sge = 2;
    caps.max_send_wr = 16;
    caps.max_inline = 128;
    caps.max_msg = 48 << 10;
    (caps.max_ord, caps.max_ird) = (1, 1);
}

fn poor_env() -> Env {
    static DEVICE: Once = Once::new();
    DEVICE.call_once(|| fake::install_soft(poor));
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Env::new(Options::default().with_transport(Transport::Soft), local)
}

socket_contract!(crate::poor_env);

/// More connections send files at a time than there are pieces to read them into.
#[test]
fn many_files_at_once() {
    use exs::{RecvFlags, Socket};
    use exs_tests::harness::{Ledger, Watchdog, check, pattern};
    use std::io::Write;
    use std::sync::Arc;
    const PAIRS: usize = 20;
    const SIZE: usize = 3 << 20;
    let _dog = Watchdog::new("many_files_at_once");
    let path = std::env::temp_dir().join(format!("exs-test-many-{}", std::process::id()));
    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all(&pattern(7, 0, SIZE)).unwrap();
    let file = Arc::new(file);

    let env = poor_env();
    let pairs: Vec<(Socket, Socket)> = (0..PAIRS).map(|_| env.streams()).collect();
    let mut ledger = Ledger::with_depth(4 * PAIRS);
    let mut ends = Vec::new();
    for (a, b) in &pairs {
        let recv = ledger.post("recv", |q, t| b.recv(q, t, vec![0; SIZE], RecvFlags::WAITALL));
        let send =
            ledger.post("send_file", |q, t| a.send_file(q, t, Arc::clone(&file), 0, SIZE as u64));
        ends.push((recv, send));
    }
    // A connection that dies in the middle leaves its piece to the others.
    pairs[0].0.abort();
    for (i, (recv, send)) in ends.into_iter().enumerate() {
        let (sent, received) = (ledger.wait(send), ledger.wait(recv));
        if i > 0 {
            assert_eq!((sent.bytes(), received.bytes()), (SIZE, SIZE));
            check(7, 0, &received.into_buffer().unwrap());
        }
    }
    ledger.finish();
}
