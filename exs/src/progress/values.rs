//! Sizes, times and switches as text: one grammar for the environment and for the command lines of
//! programs.
//!
//! ```text
//! size     = digits [ unit ]      unit: B, or k, M, G, T, each alone or with i or iB behind it
//! time     = digits [ "." digits ] [ unit ]          unit: us, ms, s, min, h
//! limit    = time | "off"
//! switch   = "on" | "off" | "yes" | "no" | "true" | "false" | "1" | "0"
//! ```
//!
//! Units of sizes are powers of 1024 (`64k`, `64Ki` and `64KiB` are the same); a time without
//! a unit is in seconds. Upper and lower case are the same, and spaces may stand around the
//! number. `kB` is refused: to some it is 1000 bytes, to others 1024.

use std::time::Duration;

use super::Error;

/// The grammar of a size, for error messages.
const SIZES: &str =
    "a size is a number of bytes, or a number with k, M, G or T (64, 64k, 64KiB; powers of 1024)";
/// The grammar of a time.
const TIMES: &str =
    "a time is a number of seconds, or a number with us, ms, s, min or h (2, 1.5s, 20ms)";

/// Reads a size in bytes: `64`, `64k`, `64KiB`, `1M`, `2GiB`. Units are powers of 1024, in upper or
/// lower case. This is an EXS extension. The environment variables of [`Options`](crate::Options)
/// and the options of the programs have this grammar.
///
/// # Errors
/// [`Error::Invalid`] with the text and the grammar. A size of more than 2^64 - 1 bytes is invalid,
/// too.
///
/// ```
/// assert_eq!(exs::parse_size("64KiB")?, 65536);
/// assert_eq!(exs::parse_size("1m")?, 1 << 20);
/// assert!(exs::parse_size("64kB").is_err()); // 64,000 or 65,536?
/// # Ok::<(), exs::Error>(())
/// ```
pub fn parse_size(text: &str) -> Result<u64, Error> {
    size(text).ok_or_else(|| Error::invalid(format!("`{text}` is not a size: {SIZES}")))
}

/// Reads a time: `2` and `2s` are seconds, `1.5`, `20ms`, `50us`, `5min`, `1h`. This is an EXS
/// extension, used like [`parse_size`].
///
/// # Errors
/// [`Error::Invalid`] with the text and the grammar.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(exs::parse_time("1.5")?, Duration::from_millis(1500));
/// assert_eq!(exs::parse_time("20 ms")?, Duration::from_millis(20));
/// # Ok::<(), exs::Error>(())
/// ```
pub fn parse_time(text: &str) -> Result<Duration, Error> {
    time(text).ok_or_else(|| Error::invalid(format!("`{text}` is not a time: {TIMES}")))
}

/// Reads a time limit: a time, or `off` for no limit.
pub(super) fn parse_limit(text: &str) -> Result<Option<Duration>, Error> {
    if text.trim().eq_ignore_ascii_case("off") {
        return Ok(None);
    }
    let limit = time(text).map(Some);
    limit.ok_or_else(|| {
        Error::invalid(format!("`{text}` is not a time limit: `off` is none, and {TIMES}"))
    })
}

/// Reads a switch.
pub(super) fn parse_switch(text: &str) -> Result<bool, Error> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "on" | "true" | "yes" => Ok(true),
        "0" | "off" | "false" | "no" => Ok(false),
        _ => Err(Error::invalid(format!("`{text}` is not a switch: write `on` or `off`"))),
    }
}

fn size(text: &str) -> Option<u64> {
    let (number, unit) = split(text);
    let shift = match unit.as_str() {
        "" | "b" => 0,
        "k" | "ki" | "kib" => 10,
        "m" | "mi" | "mib" => 20,
        "g" | "gi" | "gib" => 30,
        "t" | "ti" | "tib" => 40,
        _ => return None,
    };
    digits(number).then_some(())?;
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn time(text: &str) -> Option<Duration> {
    let (number, unit) = split(text);
    let scale = match unit.as_str() {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    (digits(whole) && digits(part)).then_some(())?;
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * scale).ok()
}

/// Splits a text into the number and the unit, which is in lower case.
fn split(text: &str) -> (&str, String) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start().to_ascii_lowercase())
}

/// True for one or more digits. Rust's own parsers take a sign, too.
fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("0", 0),
            ("3", 3),
            ("64b", 64),
            ("64k", 65536),
            ("64K", 65536),
            ("64Ki", 65536),
            ("64KiB", 65536),
            (" 64 kib ", 65536),
            ("1m", 1 << 20),
            ("2MiB", 2 << 20),
            ("1g", 1 << 30),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for bad in [
            "",
            "k",
            "x",
            "-1",
            "+1",
            "1kb",
            "64kB",
            "1.5m",
            "0x10",
            "1e3",
            "1 2",
            "1_000",
            "1é",
            "99999999999999g",
            "18446744073709551616",
        ] {
            let said = parse_size(bad).unwrap_err().to_string();
            assert!(
                said.contains(&format!("`{bad}` is not a size")) && said.contains("64KiB"),
                "{said}"
            );
        }
    }

    #[test]
    fn times_have_units() {
        for (text, micros) in [
            ("0", 0),
            ("1.5", 1_500_000),
            ("3s", 3_000_000),
            ("20ms", 20_000),
            ("20 MS", 20_000),
            ("50us", 50),
            ("2min", 120_000_000),
            ("1h", 3_600_000_000),
        ] {
            assert_eq!(parse_time(text).unwrap(), Duration::from_micros(micros), "{text}");
        }
        for bad in [
            "", "s", "-1", "+1", "1d", "1m", "nan", "inf", "1e400", "1e3", "1.", ".5", "1.2.3",
            "off",
        ] {
            let said = parse_time(bad).unwrap_err().to_string();
            assert!(
                said.contains(&format!("`{bad}` is not a time")) && said.contains("20ms"),
                "{said}"
            );
        }
    }

    #[test]
    fn limits_can_be_off_and_switches_are_words() {
        assert_eq!(parse_limit("off").unwrap(), None);
        assert_eq!(parse_limit("20ms").unwrap(), Some(Duration::from_millis(20)));
        assert!(parse_limit("never").unwrap_err().to_string().contains("`off` is none"));
        assert!(parse_switch("On").unwrap() && !parse_switch("0").unwrap());
        assert!(parse_switch("maybe").unwrap_err().to_string().contains("`on` or `off`"));
    }
}
