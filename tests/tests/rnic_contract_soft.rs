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

/// The same with CRC on every connection.
struct Checked;

impl Harness for Checked {
    type Rnic = SoftRnic;
    const CRC: bool = true;
    fn make(node: usize, registry: mio::Registry, token_base: usize) -> SoftRnic {
        Soft::make(node, registry, token_base)
    }
}

mod with_crc {
    use super::Checked;
    exs_tests::rnic_contract!(Checked);
}
