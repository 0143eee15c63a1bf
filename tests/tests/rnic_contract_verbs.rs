//! The `Rnic` contract, met by an RDMA device.
//!
//! Which device is told by the environment (`exs_tests::rdma`); without one the tests
//! say so and pass.
#![cfg(feature = "verbs")]

use std::net::SocketAddr;

use exs::verbs::VerbsRnic;
use exs_tests::rdma::{self, device};
use exs_tests::rnic::Harness;

struct Verbs;

impl Harness for Verbs {
    type Rnic = VerbsRnic;
    /// Devices that tests find are software on an emulated machine.
    const SHRINK: usize = 4;

    fn make(_node: usize, registry: mio::Registry, token_base: usize) -> VerbsRnic {
        let name = &device().expect("not missing").name;
        VerbsRnic::open_named(&registry, token_base, name).expect("the device")
    }
    fn local() -> SocketAddr {
        SocketAddr::new(device().expect("not missing").addr, 0)
    }
    fn local6() -> Option<SocketAddr> {
        Some(SocketAddr::new(device()?.addr6?, 0))
    }
    fn dials_by_tcp(_node: usize) -> bool {
        device().is_some_and(|d| d.iwarp)
    }
    fn is_software(_node: usize) -> bool {
        false
    }
    fn missing() -> Option<String> {
        rdma::missing()
    }
    fn known(test: &str) -> Option<&'static str> {
        device()?.known(test)
    }
}

exs_tests::rnic_contract!(Verbs);
