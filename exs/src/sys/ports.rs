//! Ports that connections report, and that no socket of the kernel has.
//!
//! A connection over shared memory has no TCP socket, and the connections of a link group have one
//! together. A program that tells its connections by their addresses needs a port for each.

use std::ops::RangeInclusive;
use std::sync::OnceLock;

use super::ProcessNumber;

/// The dynamic ports (RFC 6335 section 6).
const PORTS: RangeInclusive<u16> = 49_152..=65_535;

/// The port of the next such connection. All threads take them in turn, from a random one on. So two
/// connections of the process have the same port only if 16,384 were made between them.
pub fn next_reported_port(random: impl FnOnce() -> u64) -> u16 {
    static FIRST: OnceLock<u64> = OnceLock::new();
    static TAKEN: ProcessNumber = ProcessNumber::new(0);
    port_at(FIRST.get_or_init(|| random() % COUNT) + TAKEN.add(1))
}

const COUNT: u64 = (*PORTS.end() - *PORTS.start()) as u64 + 1;

fn port_at(turn: u64) -> u16 {
    // The remainder is below 16,384.
    PORTS.start() + u16::try_from(turn % COUNT).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_are_the_dynamic_ones_in_turn() {
        assert_eq!((port_at(0), port_at(1), port_at(COUNT - 1)), (49_152, 49_153, 65_535));
        assert_eq!((port_at(COUNT), port_at(u64::MAX)), (49_152, 65_535));
        let (first, second) = (next_reported_port(|| 5), next_reported_port(|| 5));
        assert_ne!(first, second);
        assert!(PORTS.contains(&first) && PORTS.contains(&second));
    }
}
