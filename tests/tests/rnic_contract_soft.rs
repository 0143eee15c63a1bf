//! The `Rnic` contract, met by the software RNIC.

use exs::sys::RandomSource;
use exs::tcp::SoftRnic;
use exs_tests::rnic::Harness;

struct Soft;

impl Harness for Soft {
    type Rnic = SoftRnic;
    fn make(_node: usize, registry: mio::Registry, token_base: usize) -> SoftRnic {
        let random = RandomSource::kernel().expect("random numbers");
        SoftRnic::new(registry, token_base, random)
    }
}

exs_tests::rnic_contract!(Soft);
