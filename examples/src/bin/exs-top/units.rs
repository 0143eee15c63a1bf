//! Numbers for people.

use std::time::Duration;

/// Bytes, in three or four digits: `999`, `1.5k`, `64M`, powers of 1024.
pub(crate) fn bytes(n: f64) -> String {
    scaled(n, 1024.0)
}

/// A number of things: powers of 1000.
pub(crate) fn count(n: f64) -> String {
    scaled(n, 1000.0)
}

fn scaled(n: f64, step: f64) -> String {
    let mut n = n.max(0.0);
    for unit in ["", "k", "M", "G", "T", "P"] {
        if n < 999.5 {
            return match unit {
                "" => format!("{n:.0}"),
                _ if n < 9.95 => format!("{n:.1}{unit}"),
                _ => format!("{n:.0}{unit}"),
            };
        }
        n /= step;
    }
    format!("{n:.0}E")
}

/// A time since a start, as top(1) shows it: `5s`, `3:05`, `2:00:01`, `4d 02h`.
pub(crate) fn uptime(time: Duration) -> String {
    let s = time.as_secs();
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}:{:02}", s / 60, s % 60),
        3600..86400 => format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60),
        _ => format!("{}d {:02}h", s / 86400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_few_digits() {
        let shown = [0.0, 999.0, 1000.0, 1024.0, 1536.0, 65536.0, 1.5e9, 1e30].map(bytes);
        assert_eq!(shown[..7], ["0", "999", "1.0k", "1.0k", "1.5k", "64k", "1.4G"]);
        assert!(shown[7].ends_with('E'));
        assert_eq!([1000.0, 12345.0, 2e6].map(count), ["1.0k", "12k", "2.0M"]);
    }

    #[test]
    fn times_are_as_long_as_they_must_be() {
        let shown = [5, 185, 7201, 352_800].map(|s| uptime(Duration::from_secs(s)));
        assert_eq!(shown, ["5s", "3:05", "2:00:01", "4d 02h"]);
    }
}
