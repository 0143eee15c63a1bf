//! RNICs of software whose connections share TCP connections, as link groups.

use std::net::SocketAddr;

use exs::rnic::{ConnParam, Rnic};
use exs::sys::RandomSource;
use exs::tcp::SoftRnic;
use exs::time::Time;

use super::world::{End, Pair, param};
use super::{Harness, World};

/// Connections from the third to an address on share a TCP connection.
pub struct Third;

impl Harness for Third {
    type Rnic = SoftRnic;
    fn make(_node: usize, registry: mio::Registry, token_base: usize) -> SoftRnic {
        let mut rnic = SoftRnic::new(registry, token_base, RandomSource::seeded(7));
        rnic.group_from(2);
        rnic
    }
}

/// All connections are in groups.
pub struct All;

impl Harness for All {
    type Rnic = SoftRnic;
    fn make(node: usize, registry: mio::Registry, token_base: usize) -> SoftRnic {
        let mut rnic = Third::make(node, registry, token_base);
        rnic.group_from(0);
        rnic
    }
}

/// Connects a queue pair of node 0 to a listener of node 1.
///
/// # Panics
/// If it is not connected.
pub fn call<H: Harness>(w: &mut World<H>, addr: SocketAddr) -> Pair {
    let now = w.now();
    call_with(w, addr, &param(&[]), now)
}

/// The same with these parameters, at this time.
///
/// # Panics
/// If it is not connected.
pub fn call_with<H: Harness>(
    w: &mut World<H>,
    addr: SocketAddr,
    with: &ConnParam<'_>,
    at: Time,
) -> Pair {
    let (a, b) = (w.end(0), w.end(1));
    w.rnics[0].connect(a.qp, addr, with, at).unwrap();
    let (req, _) = w.request(1);
    let now = w.now();
    w.rnics[1].accept(req, b.qp, &param(&[]), now).unwrap();
    w.established(a);
    w.established(b);
    Pair { a, b }
}

/// The addresses of an end.
///
/// # Panics
/// If it has none.
pub fn addrs<H: Harness>(w: &World<H>, end: End) -> (SocketAddr, SocketAddr) {
    w.rnics[end.node].addrs(end.qp).unwrap()
}

/// The address of the TCP connection that carries an end.
///
/// # Panics
/// If it has no connection.
pub fn carrier<H: Harness<Rnic = SoftRnic>>(w: &World<H>, end: End) -> SocketAddr {
    w.rnics[end.node].carrier(end.qp).unwrap()
}
