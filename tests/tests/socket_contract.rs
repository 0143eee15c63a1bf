//! The contract of sockets, on every transport and family of addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use exs::{Options, Transport};
use exs_tests::harness::Env;
use exs_tests::socket_contract;

fn shm(local: IpAddr) -> Env {
    Env::new(Options { transport: Transport::Shm, ..Options::default() }, local)
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
    Env::new(Options { transport: Transport::Soft, crc, ..Options::default() }, local)
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
