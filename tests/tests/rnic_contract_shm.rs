//! The `Rnic` contract, met by shared memory.

use exs::shm::ShmRnic;
use exs::sys::RandomSource;
use exs_tests::rnic::Harness;

struct Shm;

impl Harness for Shm {
    type Rnic = ShmRnic;
    const SETS_ASIDE: bool = true;
    fn make(_node: usize, registry: mio::Registry, token_base: usize) -> ShmRnic {
        let random = RandomSource::kernel().expect("random numbers");
        ShmRnic::new(registry, token_base, random)
    }
    fn dials_by_tcp(_node: usize) -> bool {
        false
    }
}

// The memory of these is vectors, which no peer can map: it goes by the lane.
exs_tests::rnic_contract!(Shm);

/// The same with memory that the peer maps.
struct Mapped;

impl Harness for Mapped {
    type Rnic = ShmRnic;
    const SETS_ASIDE: bool = true;
    const SHARED: bool = true;
    fn make(node: usize, registry: mio::Registry, token_base: usize) -> ShmRnic {
        Shm::make(node, registry, token_base)
    }
    fn dials_by_tcp(_node: usize) -> bool {
        false
    }
}

mod mapped {
    use super::Mapped;
    exs_tests::rnic_contract!(Mapped);
}

/// The same with peers that do not trust each other: everything goes through the rings.
struct Wary;

impl Harness for Wary {
    type Rnic = ShmRnic;
    const SETS_ASIDE: bool = true;
    const SHARED: bool = true;
    fn make(node: usize, registry: mio::Registry, token_base: usize) -> ShmRnic {
        let mut rnic = Shm::make(node, registry, token_base);
        rnic.distrust_peers();
        rnic
    }
    fn dials_by_tcp(_node: usize) -> bool {
        false
    }
}

mod wary {
    use super::Wary;
    exs_tests::rnic_contract!(Wary);
}
