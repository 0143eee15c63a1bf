//! The `Rnic` contract, met by an RDMA device.
//!
//! Which device is told by the environment (`exs_tests::rdma`); without one the tests
//! say so and pass.
#![cfg(feature = "verbs")]

use std::net::SocketAddr;

use exs::rnic::{ConnParam, PathAttr};
use exs::verbs::VerbsRnic;
use exs_tests::rdma::{self, device};
use exs_tests::rnic::Harness;
use exs_tests::rnic::world::{World, param};
use exs_tests::skip::skip;

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

/// The device's queue pairs have the path that was asked for: those of the side that connects, and,
/// as far as a side can choose, those of the other.
#[test]
fn the_path_that_was_asked_for() {
    let Some(found) = device() else {
        return skip(&rdma::missing().unwrap_or_default());
    };
    if found.iwarp {
        return skip("the TCP below iWARP has retries and timers of its own");
    }
    let path = PathAttr {
        traffic_class: Some(26 << 2),
        retry_count: Some(3),
        rnr_retry_count: Some(2),
        rnr_timer: Some(20),
        ack_timeout: Some(15),
    };
    let mut w = World::<Verbs>::new(2);
    let (a, b) = (w.end(0), w.end(1));
    let p = w.join(a, b, &ConnParam { path, ..param(&[]) });
    assert_eq!(w.rnics[0].path(p.a.qp).unwrap(), path, "the side that connects");
    let other = w.rnics[1].path(p.b.qp).unwrap();
    assert_eq!((other.retry_count, other.rnr_timer), (Some(3), Some(20)), "{other:?}");
    assert_eq!(other.traffic_class, Some(26 << 2), "the other side takes it from the request");
    w.assert_alive(p);
    let (a, b) = (w.end(0), w.end(1));
    let usual = w.join(a, b, &param(&[]));
    let usual = w.rnics[0].path(usual.a.qp).unwrap();
    assert_eq!(
        (usual.retry_count, usual.rnr_timer, usual.ack_timeout),
        (Some(7), Some(12), Some(18))
    );
}
