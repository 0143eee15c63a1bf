//! The `Rnic` contract, met by an RDMA device.
//!
//! Which device is told by the environment (`exs_tests::rdma`); without one the tests
//! say so and pass.
#![cfg(feature = "verbs")]

use std::net::SocketAddr;

use exs::rnic::{CmEvent, ConnParam, Disconnect, PathAttr, Rnic, RnicError, WcStatus};
use exs::verbs::VerbsRnic;
use exs_tests::rdma::{self, device};
use exs_tests::rnic::Harness;
use exs_tests::rnic::world::{World, param, read_wr, send_wr};
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
        pkey: Some(0x7fff),
        service_level: Some(5),
        mtu: Some(512),
    };
    let mut w = World::<Verbs>::new(2);
    let (a, b) = (w.end(0), w.end(1));
    let p = w.join(a, b, &ConnParam { path, ..param(&[]) });
    // The port has the key of a full member.
    let found = PathAttr { pkey: Some(0xffff), ..path };
    assert_eq!(w.rnics[0].path(p.a.qp).unwrap(), found, "the side that connects");
    let other = w.rnics[1].path(p.b.qp).unwrap();
    assert_eq!((other.retry_count, other.rnr_timer), (Some(3), Some(20)), "{other:?}");
    assert_eq!(other.traffic_class, Some(26 << 2), "the other side takes it from the request");
    assert_eq!((other.pkey, other.service_level, other.mtu), (Some(0xffff), Some(5), Some(512)));
    w.assert_alive(p);
    let (a, b) = (w.end(0), w.end(1));
    let usual = w.join(a, b, &param(&[]));
    let usual = w.rnics[0].path(usual.a.qp).unwrap();
    assert_eq!(
        (usual.retry_count, usual.rnr_timer, usual.ack_timeout),
        (Some(7), Some(12), Some(18))
    );
}

/// The MTUs of InfiniBand and RoCE.
const MTUS: [u16; 5] = [256, 512, 1024, 2048, 4096];

/// The active MTU of the device's port.
fn active_mtu(name: &str) -> u32 {
    let devices = exs::verbs::devices().expect("the devices");
    let device = devices.iter().find(|d| d.name == name).expect("the device");
    device.ports.first().expect("a port").mtu
}

/// The error of a connect with this path, which is refused at once or by an event.
fn refused(path: PathAttr, at: SocketAddr) -> RnicError {
    let mut w = World::<Verbs>::new(1);
    let a = w.end(0);
    let now = w.now();
    match w.rnics[0].connect(a.qp, at, &ConnParam { path, ..param(&[]) }, now) {
        Err(e) => e,
        Ok(()) => w.event_of(0, "ConnectFailed", |e| match e {
            CmEvent::ConnectFailed { error, .. } => Some(error.clone()),
            _ => None,
        }),
    }
}

/// A route that the device or its port does not have is refused, with the name of the option.
#[test]
fn a_route_that_the_device_lacks() {
    let Some(found) = device() else {
        return skip(&rdma::missing().unwrap_or_default());
    };
    let active = active_mtu(&found.name);
    let mut asked = vec![("pkey", PathAttr { pkey: Some(0x8123), ..PathAttr::default() })];
    // Suites lower the MTU of the network interface for this.
    let longer = MTUS.into_iter().find(|mtu| u32::from(*mtu) > active || found.iwarp);
    asked.extend(longer.map(|_| ("path_mtu", PathAttr { mtu: longer, ..PathAttr::default() })));
    if found.iwarp {
        asked.push(("service_level", PathAttr { service_level: Some(1), ..PathAttr::default() }));
    }
    for (name, path) in asked {
        match refused(path, SocketAddr::new(found.addr, 1)) {
            RnicError::Path { option, device, why } => {
                assert_eq!((option, &device), (name, &found.name));
                let reason = if found.iwarp { "iWARP" } else { "its port" };
                assert!(why.contains(reason), "{why}");
                println!("note: {}", RnicError::Path { option, device, why });
            }
            other => panic!("{name}: {other}"),
        }
    }
}

/// Both sides have each MTU that fits into the port's, and long messages arrive in such packets.
#[test]
fn each_mtu_that_fits() {
    let Some(found) = device() else {
        return skip(&rdma::missing().unwrap_or_default());
    };
    if found.iwarp {
        return skip("iWARP has the MTU of TCP");
    }
    let active = active_mtu(&found.name);
    let mut w = World::<Verbs>::new(2);
    for mtu in MTUS.into_iter().filter(|mtu| u32::from(*mtu) <= active) {
        let path = PathAttr { mtu: Some(mtu), ..PathAttr::default() };
        let (a, b) = (w.end(0), w.end(1));
        let p = w.join(a, b, &ConnParam { path, ..param(&[]) });
        for (rnic, qp) in [(0, p.a.qp), (1, p.b.qp)] {
            assert_eq!(w.rnics[rnic].path(qp).unwrap().mtu, Some(mtu));
        }
        w.assert_moves(p, 9000);
    }
}

/// The end of a peer that owes the answer to a READ is reported although the answer does not come.
#[test]
fn an_end_without_an_answer() {
    let Some(found) = device() else {
        return skip(&rdma::missing().unwrap_or_default());
    };
    if found.iwarp {
        return skip("a message that finds no receive ends a connection of iWARP");
    }
    let (mut w, p) = World::<Verbs>::pair();
    let (into, from) = (w.zeros(p.a, 8), w.zeros(p.b, 8));
    // The peer has no receive for the message, and answers the READ after the message.
    w.send(p.a, &send_wr(1, &[]));
    w.send(p.a, &read_wr(2, &[into.sge()], from.addr(), from.mr.key));
    w.disconnect(p.b, Disconnect::Abort);
    w.disconnected(p.a);
    let ended: Vec<_> = w.drain(p.a).0.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ended, [(1, WcStatus::Flushed), (2, WcStatus::Flushed)]);
}
