//! What the programs that measure have in common on their command lines.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How an end waits for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// Spin
    Busy,
    /// Sleep at once
    Notify,
    /// Spin for a moment, then sleep
    Adaptive,
}

impl From<Wait> for exs::WaitPolicy {
    fn from(wait: Wait) -> exs::WaitPolicy {
        match wait {
            Wait::Busy => exs::WaitPolicy::BusyPoll,
            Wait::Notify => exs::WaitPolicy::Notify,
            Wait::Adaptive => exs::WaitPolicy::Adaptive,
        }
    }
}

/// Which kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Bytes in order
    Stream,
    /// Whole messages
    Seqpacket,
}

impl From<Kind> for exs::SocketType {
    fn from(kind: Kind) -> exs::SocketType {
        match kind {
            Kind::Stream => exs::SocketType::Stream,
            Kind::Seqpacket => exs::SocketType::SeqPacket,
        }
    }
}

/// Reads a size of 1 byte to `most`, with a unit, which is a power of two: 64, 4k, 1m, 1g,
/// or written out as in 64KiB.
///
/// # Errors
/// What sizes there are.
pub fn size(text: &str, most: usize) -> Result<usize, String> {
    let lower = text.to_ascii_lowercase();
    let units = [("kib", 10), ("mib", 20), ("gib", 30), ("k", 10), ("m", 20), ("g", 30), ("", 0)];
    units
        .iter()
        .find_map(|&(unit, shift)| Some((lower.strip_suffix(unit)?, shift)))
        .and_then(|(digits, shift)| digits.parse::<usize>().ok()?.checked_mul(1 << shift))
        .filter(|n| (1..=most).contains(n))
        .ok_or_else(|| {
            format!("a size is a number from 1 to {}m, for example 64, 4k or 1m", most >> 20)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let size = |text| size(text, 64 << 20);
        assert_eq!(size("64"), Ok(64));
        assert_eq!(size("4K"), Ok(4096));
        assert_eq!(size("1m"), Ok(1 << 20));
        assert_eq!(size("64KiB"), Ok(64 << 10));
        assert_eq!(size("2mib"), Ok(2 << 20));
        for bad in [
            "0",
            "65m",
            "1g",
            "-1",
            "k",
            "",
            "64ib",
            "64kb",
            "kib",
            "99999999999999999999m",
            "1\u{b5}",
        ] {
            assert!(size(bad).unwrap_err().contains("from 1 to 64m"), "{bad}");
        }
        assert_eq!(super::size("1g", 1 << 30), Ok(1 << 30));
    }
}
