//! What the programs that measure have in common on their command lines.

use std::time::Duration;

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

/// Reads a size of 1 byte to `most`, in the grammar of [`exs::parse_size`].
///
/// # Errors
/// What sizes there are.
pub fn size(text: &str, most: usize) -> Result<usize, String> {
    let size = exs::parse_size(text).map_err(|e| e.to_string())?;
    let size = usize::try_from(size).ok().filter(|n| (1..=most).contains(n));
    size.ok_or_else(|| {
        format!("a size here is from 1 to {}m bytes, for example 64, 4k or 1MiB", most >> 20)
    })
}

/// Reads a time between two, in the grammar of [`exs::parse_time`].
///
/// # Errors
/// What times there are.
pub fn time(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let time = exs::parse_time(text).map_err(|e| e.to_string())?;
    if (least..=most).contains(&time) {
        return Ok(time);
    }
    Err(format!("a time here is from {} to {} seconds", least.as_secs_f64(), most.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_limits() {
        let size = |text| size(text, 64 << 20);
        assert_eq!(size("64"), Ok(64));
        assert_eq!(size("4K"), Ok(4096));
        assert_eq!(size("64KiB"), Ok(64 << 10));
        for bad in ["0", "65m", "1g"] {
            assert!(size(bad).unwrap_err().contains("from 1 to 64m"), "{bad}");
        }
        for bad in ["-1", "k", "", "64kb", "99999999999999999999m"] {
            assert!(size(bad).unwrap_err().contains("is not a size"), "{bad}");
        }
        assert_eq!(super::size("1g", 1 << 30), Ok(1 << 30));
    }

    #[test]
    fn times_have_units_and_limits() {
        let time = |text| time(text, Duration::from_millis(10), Duration::from_secs(3600));
        assert_eq!(time("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(time("1h"), Ok(Duration::from_secs(3600)));
        assert!(time("2h").unwrap_err().contains("from 0.01 to 3600"));
        assert!(time("soon").unwrap_err().contains("is not a time"));
    }
}
