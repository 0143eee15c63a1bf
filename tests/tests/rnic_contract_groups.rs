//! The `Rnic` contract, met by the software RNIC with all connections in link groups.

use exs::sys::RandomSource;
use exs::tcp::SoftRnic;
use exs_tests::rnic::Harness;

struct Grouped;

impl Harness for Grouped {
    type Rnic = SoftRnic;
    // A turn moves that much of all links of a group together.
    const LONGER_THAN_A_TURN: usize = 3 << 15;
    fn make(_node: usize, registry: mio::Registry, token_base: usize) -> SoftRnic {
        let random = RandomSource::kernel().expect("random numbers");
        let mut rnic = SoftRnic::new(registry, token_base, random);
        rnic.group_from(0);
        rnic
    }
}

exs_tests::rnic_contract!(Grouped);

/// The same with CRC on every connection.
struct Checked;

impl Harness for Checked {
    type Rnic = SoftRnic;
    const CRC: bool = true;
    const LONGER_THAN_A_TURN: usize = Grouped::LONGER_THAN_A_TURN;
    fn make(node: usize, registry: mio::Registry, token_base: usize) -> SoftRnic {
        Grouped::make(node, registry, token_base)
    }
}

mod with_crc {
    use super::Checked;
    exs_tests::rnic_contract!(Checked);
}
