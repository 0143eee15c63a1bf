//! What a program may set of the path of its connections through the network.

use std::time::Duration;

use super::Error;
use super::options::{read, with};
use super::values::parse_time;
use crate::rnic::PathAttr;

/// The path of a connection through the network: [`Options::path`](crate::Options::path). Each field
/// is `None` by default, which leaves the value to EXS or to the device. `connect` and `listen` read
/// them; an accepted socket has those of its listener. Shared memory has no network, and ignores
/// them.
///
/// What is not set comes from the network's own set-up, as with TCP. The partition (P_Key) is that of
/// the network interface (`ib0.8001`), by which librdmacm finds the way. The path MTU is that of the
/// interface (`ip link set mtu`). The service level follows from the traffic class on RoCE, and from
/// the subnet manager's rules on InfiniBand. librdmacm negotiates ECE by itself.
///
/// [`pkey`](Self::pkey), [`service_level`](Self::service_level) and [`path_mtu`](Self::path_mtu) are
/// properties of a route of InfiniBand or RoCE. If one of them is set, EXS resolves the route, changes
/// its path record, and asks for the connection by that record (librdmacm, `RDMA_OPTION_IB_PATH`). The
/// request carries the record to the peer, whose device follows it, whatever the peer's own options
/// are. A device that cannot do so fails the connect with
/// [`RnicError::Path`](crate::RnicError::Path): iWARP has none of the three.
///
/// ```
/// use exs::{Options, PathOptions};
/// use std::time::Duration;
/// let path = PathOptions::new()
///     .with_traffic_class(Some(26 << 2)) // DSCP AF31
///     .with_retry_count(Some(3))
///     .with_ack_timeout(Some(Duration::from_millis(67)));
/// let options = Options::default().with_path(path);
/// let socket = exs::Socket::with_options(exs::SocketType::Stream, options)?;
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathOptions {
    /// The traffic class of IPv6 packets, and the type of service of IPv4 packets: the DSCP (RFC 2474)
    /// times 4, so that the two low bits are 0. They belong to congestion notification (RFC 3168).
    /// The software RNIC sets it on its TCP connections (IP_TOS, IPV6_TCLASS), and RDMA devices use it
    /// in their packets. `EXS_TRAFFIC_CLASS` = a number (`104`, `0x68`) or the name of a DSCP (`ef`,
    /// `af31`, `cs3`).
    pub traffic_class: Option<u8>,
    /// How many times a device sends again what the peer has not acknowledged before the connection
    /// breaks: 0 to 7. Only the side that connects sets it, for both. For InfiniBand and RoCE, like the
    /// fields below; iWARP leaves it to TCP. `EXS_RETRY_COUNT`. Default: 7.
    pub retry_count: Option<u8>,
    /// How many times a device sends again what found no receive at the peer: 0 to 6, and 7 for ever.
    /// Each side tells the peer its own. EXS posts receives ahead, so this concerns a peer that is
    /// stopped or overloaded. `EXS_RNR_RETRY_COUNT`. Default: 7.
    pub rnr_retry_count: Option<u8>,
    /// How long the peer's device waits before it does so: 10 us to 655.36 ms. The next longer time
    /// of the 32 that InfiniBand has is used (InfiniBand Architecture, table of RNR NAK timers).
    /// `EXS_RNR_TIMER`. Default: 640 us.
    pub rnr_timer: Option<Duration>,
    /// How long a device waits for an acknowledgement before it sends again: up to 8796 s. The next
    /// longer of 4.096 us times a power of 2 is used, and devices may wait up to four times as long.
    /// `EXS_ACK_TIMEOUT`. Default: 1.07 s.
    pub ack_timeout: Option<Duration>,
    /// The partition of the connection: a P_Key of InfiniBand, 1 to 0xffff (InfiniBand Architecture
    /// Specification, volume 1, section 10.9). The device finds it in the table of its port, whether or
    /// not the bit of full membership (0x8000) is set. The peer's address must be on an interface of
    /// that partition. RoCE has the default partition, 0xffff. Only the side that connects sets it, for
    /// both, like the fields below. `EXS_PKEY` = a number (`0x8001`).
    pub pkey: Option<u16>,
    /// The service level of the packets: 0 to 15. Switches of InfiniBand take the virtual lane from it,
    /// Ethernet its priority. `EXS_SERVICE_LEVEL`.
    pub service_level: Option<u8>,
    /// The most bytes of data in a packet: 256, 512, 1024, 2048 or 4096, and no more than the active MTU
    /// of the ports at both ends. `EXS_PATH_MTU`. Default: that of the network interface.
    pub path_mtu: Option<u16>,
}

with!(
    PathOptions:
    with_traffic_class traffic_class: Option<u8>,
    with_retry_count retry_count: Option<u8>,
    with_rnr_retry_count rnr_retry_count: Option<u8>,
    with_rnr_timer rnr_timer: Option<Duration>,
    with_ack_timeout ack_timeout: Option<Duration>,
    with_pkey pkey: Option<u16>,
    with_service_level service_level: Option<u8>,
    with_path_mtu path_mtu: Option<u16>,
);

/// The codes of the RNR timer in the order of their times, each with its time in units of 10 us
/// (InfiniBand Architecture Specification, volume 1, section 9.7.5.2.8). Code 0 is the longest.
const RNR_TIMES: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// The code of the shortest RNR time that is not shorter than this. None: there is none.
fn rnr_code(time: Duration) -> Option<u8> {
    let fits = |&code: &usize| {
        !time.is_zero() && Duration::from_micros(u64::from(RNR_TIMES[code]) * 10) >= time
    };
    // Code 0 comes last: it is the longest.
    let code = (1..RNR_TIMES.len()).chain([0]).find(fits)?;
    u8::try_from(code).ok()
}

/// The exponent of the shortest acknowledgement timeout that is not shorter than this.
fn ack_exponent(time: Duration) -> Option<u8> {
    let lasts = |e: &u8| Duration::from_nanos(4096 << e) >= time;
    (1..=31).find(lasts).filter(|_| !time.is_zero())
}

impl PathOptions {
    /// No field is set: EXS and the devices choose.
    pub fn new() -> PathOptions {
        PathOptions::default()
    }

    /// As `new`, except for what the environment sets.
    pub(super) fn from_env() -> Result<PathOptions, Error> {
        let count = |what: &'static str| move |text: &str| number(text, 7, what);
        let o = PathOptions {
            traffic_class: read("EXS_TRAFFIC_CLASS", traffic_class)?,
            retry_count: read("EXS_RETRY_COUNT", count("retry count"))?,
            rnr_retry_count: read("EXS_RNR_RETRY_COUNT", count("retry count"))?,
            rnr_timer: read("EXS_RNR_TIMER", checked(PathOptions::rnr_code))?,
            ack_timeout: read("EXS_ACK_TIMEOUT", checked(PathOptions::ack_exponent))?,
            pkey: read("EXS_PKEY", pkey)?,
            service_level: read("EXS_SERVICE_LEVEL", service_level)?,
            path_mtu: read("EXS_PATH_MTU", path_mtu)?,
        };
        Ok(o)
    }

    fn rnr_code(time: Duration) -> Result<u8, Error> {
        rnr_code(time).ok_or_else(|| {
            Error::invalid(format!("an RNR timer is from 10 us to 655.36 ms, and {time:?} is not"))
        })
    }

    fn ack_exponent(time: Duration) -> Result<u8, Error> {
        ack_exponent(time).ok_or_else(|| {
            Error::invalid(format!(
                "an acknowledgement timeout is more than 0 and at most 8796 s, and {time:?} is not"
            ))
        })
    }

    /// What an RNIC needs, of options that were checked when the socket got them.
    pub(super) fn checked(&self) -> PathAttr {
        self.attr().unwrap_or_default()
    }

    /// What an RNIC needs.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a value is out of its range.
    pub(super) fn attr(&self) -> Result<PathAttr, Error> {
        let most = |value: Option<u8>, what| match value {
            Some(n @ 8..) => Err(out_of_range(what, &n.to_string(), 7)),
            other => Ok(other),
        };
        if let Some(class) = self.traffic_class {
            check_class(class)?;
        }
        Ok(PathAttr {
            traffic_class: self.traffic_class,
            retry_count: most(self.retry_count, "retry count")?,
            rnr_retry_count: most(self.rnr_retry_count, "RNR retry count")?,
            rnr_timer: self.rnr_timer.map(PathOptions::rnr_code).transpose()?,
            ack_timeout: self.ack_timeout.map(PathOptions::ack_exponent).transpose()?,
            pkey: self.pkey.map(check_pkey).transpose()?,
            service_level: self.service_level.map(check_level).transpose()?,
            mtu: self.path_mtu.map(check_mtu).transpose()?,
        })
    }
}

fn out_of_range(what: &str, value: &str, most: u8) -> Error {
    Error::invalid(format!("a {what} is from 0 to {most}, and {value} is not"))
}

fn number(text: &str, most: u8, what: &str) -> Result<u8, Error> {
    let found = text.trim().parse().ok().filter(|n| *n <= most);
    found.ok_or_else(|| out_of_range(what, &format!("`{text}`"), most))
}

/// Reads a time that `convert` can use.
fn checked(convert: fn(Duration) -> Result<u8, Error>) -> impl Fn(&str) -> Result<Duration, Error> {
    move |text| {
        let time = parse_time(text)?;
        convert(time).map(|_| time)
    }
}

fn check_pkey(pkey: u16) -> Result<u16, Error> {
    match pkey & 0x7fff {
        0 => Err(no_pkey(&format!("{pkey:#06x}"))),
        _ => Ok(pkey),
    }
}

fn no_pkey(value: &str) -> Error {
    Error::invalid(format!(
        "a P_Key is from 0x0001 to 0xffff without 0x8000, and {value} is not: \
         /sys/class/infiniband/DEVICE/ports/PORT/pkeys/ has those of a port"
    ))
}

/// Reads a P_Key: a number, decimal or hexadecimal.
fn pkey(text: &str) -> Result<u16, Error> {
    let text = text.trim();
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u16::from_str_radix(hex, 16),
        None => text.parse(),
    };
    check_pkey(parsed.map_err(|_| no_pkey(&format!("`{text}`")))?)
}

const MAX_SERVICE_LEVEL: u8 = 15;

fn check_level(level: u8) -> Result<u8, Error> {
    match level {
        0..=MAX_SERVICE_LEVEL => Ok(level),
        _ => Err(out_of_range("service level", &level.to_string(), MAX_SERVICE_LEVEL)),
    }
}

fn service_level(text: &str) -> Result<u8, Error> {
    number(text, MAX_SERVICE_LEVEL, "service level")
}

fn check_mtu(mtu: u16) -> Result<u16, Error> {
    match mtu {
        256 | 512 | 1024 | 2048 | 4096 => Ok(mtu),
        _ => Err(no_mtu(&mtu.to_string())),
    }
}

fn no_mtu(value: &str) -> Error {
    Error::invalid(format!(
        "a path MTU is 256, 512, 1024, 2048 or 4096 bytes, and {value} is none of these"
    ))
}

fn path_mtu(text: &str) -> Result<u16, Error> {
    check_mtu(text.trim().parse().map_err(|_| no_mtu(&format!("`{text}`")))?)
}

fn check_class(class: u8) -> Result<u8, Error> {
    match class & 3 {
        0 => Ok(class),
        ecn => Err(Error::invalid(format!(
            "the traffic class {class:#04x} has the bits {ecn:#04b} of congestion notification set, \
             which the network sets itself: it is a DSCP times 4"
        ))),
    }
}

/// Reads a traffic class: a number, or the name of a DSCP (RFC 2474, RFC 2597, RFC 3246).
fn traffic_class(text: &str) -> Result<u8, Error> {
    let name = text.trim().to_ascii_lowercase();
    let digit = |at: usize| name.as_bytes().get(at).map(|b| b.wrapping_sub(b'0'));
    let dscp = match (name.get(..2), digit(2), digit(3), name.len()) {
        (Some("ef"), None, None, 2) => Some(46),
        (Some("cs"), Some(class @ 0..=7), None, 3) => Some(class * 8),
        (Some("af"), Some(class @ 1..=4), Some(drop @ 1..=3), 4) => Some(class * 8 + drop * 2),
        _ => None,
    };
    if let Some(dscp) = dscp {
        return Ok(dscp << 2);
    }
    let parsed = match name.strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16).ok(),
        None => name.parse().ok(),
    };
    parsed.map_or_else(
        || {
            Err(Error::invalid(format!(
                "`{text}` is no traffic class: write a number from 0 to 252 (104, 0x68), which is a \
                 DSCP times 4, or a name: ef, cs0 to cs7, af11 to af43"
            )))
        },
        check_class,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_classes_are_numbers_or_names() {
        for (text, class) in [
            ("0", 0),
            ("104", 104),
            ("0x68", 0x68),
            ("ef", 46 << 2),
            ("EF", 46 << 2),
            ("cs0", 0),
            ("cs3", 24 << 2),
            ("af11", 10 << 2),
            ("af31", 26 << 2),
            ("af43", 38 << 2),
        ] {
            assert_eq!(traffic_class(text).unwrap(), class, "{text}");
        }
        for text in ["", "af44", "af01", "cs8", "ef1", "256", "-4", "0x", "low"] {
            assert!(traffic_class(text).unwrap_err().to_string().contains("af43"), "{text}");
        }
        for text in ["1", "0x69", "255"] {
            let said = traffic_class(text).unwrap_err().to_string();
            assert!(said.contains("congestion notification"), "{said}");
        }
    }

    #[test]
    fn times_become_the_next_longer_code() {
        let us = Duration::from_micros;
        for (time, code) in [
            (us(1), 1),
            (us(10), 1),
            (us(11), 2),
            (us(640), 12),
            (us(641), 13),
            (us(491_520), 31),
            (us(491_521), 0),
            (us(655_360), 0),
        ] {
            assert_eq!(rnr_code(time), Some(code), "{time:?}");
        }
        assert_eq!((rnr_code(us(655_361)), rnr_code(us(0))), (None, None));
        for (time, exponent) in
            [(us(1), 1), (us(9), 2), (us(1_073_741), 18), (Duration::from_secs(8796), 31)]
        {
            assert_eq!(ack_exponent(time), Some(exponent), "{time:?}");
        }
        assert_eq!((ack_exponent(us(0)), ack_exponent(Duration::from_secs(8797))), (None, None));
    }

    #[test]
    fn the_properties_of_a_route_are_read_from_text() {
        for (text, key) in [("0x8001", 0x8001), ("0XFFFF", 0xffff), (" 1 ", 1)] {
            assert_eq!(pkey(text).unwrap(), key, "{text}");
        }
        for text in ["", "0", "0x", "0x8000", "0x10000", "-1", "ib0.8001"] {
            assert!(pkey(text).unwrap_err().to_string().contains("pkeys"), "{text}");
        }
        assert_eq!((service_level("15").unwrap(), path_mtu("4096").unwrap()), (15, 4096));
        assert!(service_level("16").is_err() && service_level("-1").is_err());
        for text in ["", "128", "1500", "8192", "4k"] {
            assert!(path_mtu(text).unwrap_err().to_string().contains("none of these"), "{text}");
        }
        let set = PathOptions::new().with_path_mtu(Some(512)).attr().unwrap();
        assert_eq!(set.route_option(), Some("path_mtu"));
        assert_eq!(PathOptions::new().with_retry_count(Some(1)).checked().route_option(), None);
    }

    #[test]
    fn values_out_of_range_are_refused_with_their_range() {
        let said = |o: PathOptions| o.attr().unwrap_err().to_string();
        assert!(said(PathOptions::new().with_retry_count(Some(8))).contains("0 to 7, and 8"));
        assert!(said(PathOptions::new().with_rnr_retry_count(Some(9))).contains("0 to 7"));
        assert!(said(PathOptions::new().with_traffic_class(Some(3))).contains("times 4"));
        let second = Some(Duration::from_secs(1));
        assert!(said(PathOptions::new().with_rnr_timer(second)).contains("655.36 ms"));
        let zero = Some(Duration::ZERO);
        assert!(said(PathOptions::new().with_ack_timeout(zero)).contains("8796 s"));
        assert!(number("7", 7, "x").is_ok() && number("8", 7, "x").is_err());
        assert!(number("-1", 7, "x").is_err());
        assert!(said(PathOptions::new().with_service_level(Some(16))).contains("0 to 15, and 16"));
        assert!(said(PathOptions::new().with_path_mtu(Some(1500))).contains("and 1500 is none"));
        assert!(said(PathOptions::new().with_pkey(Some(0x8000))).contains("0x8000 is not"));
        assert!(said(PathOptions::new().with_pkey(Some(0))).contains("0x0000 is not"));
        let fine = PathOptions::new().with_ack_timeout(second).with_retry_count(Some(0));
        let attr = PathAttr { ack_timeout: Some(18), retry_count: Some(0), ..PathAttr::default() };
        assert_eq!(fine.attr().unwrap(), attr);
        assert_eq!(PathOptions::new().attr().unwrap(), PathAttr::default());
    }
}
