//! The contract of sockets on an RDMA device, by its IPv4 and its IPv6 address.
//!
//! Which device is told by the environment (`exs_tests::rdma`); without one the tests
//! say so and pass.
#![cfg(feature = "verbs")]

use std::net::IpAddr;

use exs::{Options, Transport};
use exs_tests::harness::Env;
use exs_tests::rdma::{self, Device};
use exs_tests::socket_contract;

fn verbs(addr: impl FnOnce(&Device) -> Option<IpAddr>) -> Result<Env, String> {
    let device = rdma::device().ok_or_else(|| rdma::missing().unwrap_or_default())?;
    let addr = addr(device).ok_or_else(|| format!("{} has no such address", device.name))?;
    Ok(Env::new(Options::default().with_transport(Transport::Verbs), addr))
}

mod ipv4 {
    fn env() -> Result<super::Env, String> {
        super::verbs(|device| Some(device.addr))
    }
    super::socket_contract!(super::env);
}

mod ipv6 {
    fn env() -> Result<super::Env, String> {
        super::verbs(|device| device.addr6)
    }
    super::socket_contract!(super::env);
}
