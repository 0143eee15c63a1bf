//! The contract of sockets, on every transport and family of addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use exs::{Error, MemoryRegion, Options, RecvFlags, Transport};
use exs_tests::harness::{Env, Ledger};
use exs_tests::{socket_contract, sys};

fn shm(local: IpAddr) -> Env {
    Env::new(Options::default().with_transport(Transport::Shm), local)
}

mod shm_ipv4 {
    fn env() -> super::Env {
        super::shm(super::Ipv4Addr::LOCALHOST.into())
    }
    super::socket_contract!(super::env);
}

mod shm_ipv6 {
    fn env() -> super::Env {
        super::shm(super::Ipv6Addr::LOCALHOST.into())
    }
    super::socket_contract!(super::env);
}

fn soft(local: IpAddr, crc: bool) -> Env {
    Env::new(Options::default().with_transport(Transport::Soft).with_crc(crc), local)
}

mod soft_ipv4 {
    fn env() -> super::Env {
        super::soft(super::Ipv4Addr::LOCALHOST.into(), false)
    }
    super::socket_contract!(super::env);
}

mod soft_ipv6 {
    fn env() -> super::Env {
        super::soft(super::Ipv6Addr::LOCALHOST.into(), false)
    }
    super::socket_contract!(super::env);
}

mod soft_with_crc {
    fn env() -> super::Env {
        super::soft(super::Ipv4Addr::LOCALHOST.into(), true)
    }
    super::socket_contract!(super::env);
}

/// All connections in link groups.
mod soft_grouped {
    fn env() -> super::Env {
        let options = super::Options::default().with_transport(super::Transport::Soft);
        super::Env::new(
            options.with_link_group(exs::Grouping::Beyond(0)),
            super::Ipv4Addr::LOCALHOST.into(),
        )
    }
    super::socket_contract!(super::env);
}

/// Memory that its program takes away while it is sent ends its connection, and all that is
/// under way on it.
#[test]
fn memory_taken_away_ends_the_connection() {
    let env = soft(Ipv4Addr::LOCALHOST.into(), false);
    let (client, server) = env.streams();
    let mut buffer = MemoryRegion::new(256 << 10).unwrap().buffer(..).unwrap();
    sys::make_half_unreadable(&mut buffer);
    let mut ledger = Ledger::new();
    let there = |e: &Error| e.errno();
    let recv = ledger.post("recv", |q, t| client.recv(q, t, vec![0; 64], RecvFlags::NONE));
    let far =
        ledger.post("far recv", |q, t| server.recv(q, t, vec![0; 256 << 10], RecvFlags::WAITALL));
    let send = ledger.post("send", |q, t| client.send(q, t, buffer));
    assert_eq!(ledger.wait(send).error().map(there), Some(libc::EFAULT));
    assert_eq!(ledger.wait(recv).error().map(there), Some(libc::EFAULT));
    assert!(ledger.wait(far).error().is_some());
    ledger.finish();
}
