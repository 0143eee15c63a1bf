//! The software RNIC and a kernel's iWARP device (siw), face to face: both contracts
//! across the pair, in both directions of connecting, with CRC and without.
//!
//! The environment names the device (`exs_tests::rdma`). Without a device, or if it is no iWARP
//! device, the tests say so and pass.
#![cfg(feature = "verbs")]

use std::net::SocketAddr;

use exs::sys::RandomSource;
use exs::tcp::SoftRnic;
use exs::verbs::VerbsRnic;
use exs::{Options, Transport};
use exs_tests::either_rnic::EitherRnic;
use exs_tests::harness::Env;
use exs_tests::rdma::{self, device};
use exs_tests::rnic::Harness;
use exs_tests::socket_contract;

/// Nodes with an even number are software if `SOFT_FIRST`, the others the device; or
/// the other way round. Node 0 connects, as a rule.
struct Mixed<const SOFT_FIRST: bool, const CRC: bool>;

impl<const SOFT_FIRST: bool, const CRC: bool> Harness for Mixed<SOFT_FIRST, CRC> {
    type Rnic = EitherRnic<SoftRnic, VerbsRnic>;
    const SHRINK: usize = 4;
    const CRC: bool = CRC;

    fn make(node: usize, registry: mio::Registry, token_base: usize) -> Self::Rnic {
        if Self::is_software(node) {
            let random = RandomSource::kernel().expect("random numbers");
            return EitherRnic::A(SoftRnic::new(registry, token_base, random));
        }
        let name = &device().expect("not missing").name;
        EitherRnic::B(VerbsRnic::open_named(&registry, token_base, name).expect("the device"))
    }
    fn local() -> SocketAddr {
        SocketAddr::new(device().expect("not missing").addr, 0)
    }
    fn local6() -> Option<SocketAddr> {
        Some(SocketAddr::new(device()?.addr6?, 0))
    }
    fn is_software(node: usize) -> bool {
        node.is_multiple_of(2) == SOFT_FIRST
    }
    fn missing() -> Option<String> {
        rdma::missing_iwarp()
    }
    fn known(test: &str) -> Option<&'static str> {
        // What the device does wrong as the target of what is tested.
        let as_target =
            ["refusals::a_read_without_rights", "refusals::a_window_closed_in_mid_read"]
                .contains(&test);
        if SOFT_FIRST || !as_target { device()?.known(test) } else { None }
    }
}

mod soft_to_siw {
    use super::Mixed;
    exs_tests::rnic_contract!(Mixed<true, false>);
}

mod siw_to_soft {
    use super::Mixed;
    exs_tests::rnic_contract!(Mixed<false, false>);
}

mod soft_to_siw_with_crc {
    use super::Mixed;
    exs_tests::rnic_contract!(Mixed<true, true>);
}

mod siw_to_soft_with_crc {
    use super::Mixed;
    exs_tests::rnic_contract!(Mixed<false, true>);
}

fn sockets(client: Transport, server: Transport, crc: bool) -> Result<Env, String> {
    match rdma::missing_iwarp() {
        Some(why) => Err(why),
        None => {
            let options = Options::default().with_transport(client).with_crc(crc);
            let addr = device().expect("not missing").addr;
            Ok(Env::new(options, addr).served_by(server))
        }
    }
}

mod sockets_soft_to_siw {
    fn env() -> Result<super::Env, String> {
        super::sockets(super::Transport::Soft, super::Transport::Verbs, false)
    }
    super::socket_contract!(super::env);
}

mod sockets_siw_to_soft {
    fn env() -> Result<super::Env, String> {
        super::sockets(super::Transport::Verbs, super::Transport::Soft, false)
    }
    super::socket_contract!(super::env);
}

mod sockets_soft_to_siw_with_crc {
    fn env() -> Result<super::Env, String> {
        super::sockets(super::Transport::Soft, super::Transport::Verbs, true)
    }
    super::socket_contract!(super::env);
}
