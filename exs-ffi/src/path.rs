//! Options of a connection's path through the network: traffic class, retries, timers, and properties
//! of its route.

use std::ffi::c_int;
use std::time::Duration;

use exs::{Options, PathOptions};

use crate::abi::{
    EXS_SO_ACK_TIMEOUT, EXS_SO_PATH_MTU, EXS_SO_PKEY, EXS_SO_RETRY_COUNT, EXS_SO_RNR_RETRY_COUNT,
    EXS_SO_RNR_TIMER, EXS_SO_SERVICE_LEVEL,
};
use crate::error::{Fail, Result};
use crate::sockets::Entry;
use crate::timeouts::change;

/// True for the options of the kernel that set the traffic class.
pub(crate) fn is_class(entry: &Entry, level: c_int, name: c_int) -> bool {
    match (level, name) {
        (libc::IPPROTO_IP, libc::IP_TOS) => true,
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => entry.family == libc::AF_INET6,
        _ => false,
    }
}

/// Sets IP_TOS or IPV6_TCLASS. As in the kernel, the bits of congestion notification are ignored, and
/// -1 is the default.
pub(crate) fn set_class(entry: &Entry, value: c_int) -> Result<()> {
    let class = match value {
        -1 => None,
        _ => {
            let class = u8::try_from(value).map_err(|_| {
                Fail::fixed(libc::EINVAL, "a traffic class is from 0 to 255, or -1 for the default")
            })?;
            Some(class & !3)
        }
    };
    change(entry, |o| o.path.traffic_class = class)
}

pub(crate) fn class(o: &Options) -> c_int {
    o.path.traffic_class.map_or(0, c_int::from)
}

fn count(value: c_int) -> Result<Option<u8>> {
    match value {
        -1 => Ok(None),
        0..=7 => Ok(u8::try_from(value).ok()),
        _ => Err(Fail::fixed(libc::EINVAL, "a retry count is from 0 to 7, or -1 for the default")),
    }
}

/// Sets a retry count.
pub(crate) fn set_count(entry: &Entry, name: c_int, value: c_int) -> Result<()> {
    let count = count(value)?;
    change(entry, |o| match name {
        EXS_SO_RETRY_COUNT => o.path.retry_count = count,
        _ => o.path.rnr_retry_count = count,
    })
}

/// Sets a timer. None: the default.
pub(crate) fn set_timer(entry: &Entry, name: c_int, time: Option<Duration>) -> Result<()> {
    change(entry, |o| match name {
        EXS_SO_RNR_TIMER => o.path.rnr_timer = time,
        _ => o.path.ack_timeout = time,
    })
}

/// Sets a property of the route. -1: the network chooses it. The Rust library knows the ranges.
pub(crate) fn set_route(entry: &Entry, name: c_int, value: c_int) -> Result<()> {
    let outside = || Fail::fixed(libc::EINVAL, "a P_Key, service level or path MTU out of range");
    let number = match value {
        -1 => None,
        _ => Some(u16::try_from(value).map_err(|_| outside())?),
    };
    let level = number.map(u8::try_from).transpose();
    let level = if name == EXS_SO_SERVICE_LEVEL { level.map_err(|_| outside())? } else { None };
    change(entry, |o| match name {
        EXS_SO_PKEY => o.path.pkey = number,
        EXS_SO_PATH_MTU => o.path.path_mtu = number,
        _ => o.path.service_level = level,
    })
}

/// A value of a path: a count, or a time.
pub(crate) enum PathValue {
    Count(c_int),
    Time(Option<Duration>),
}

/// The value of an option of SOL_EXS. None: it is none of a path.
pub(crate) fn get(path: &PathOptions, name: c_int) -> Option<PathValue> {
    let count = |n: Option<u8>| PathValue::Count(n.map_or(-1, c_int::from));
    let number = |n: Option<u16>| PathValue::Count(n.map_or(-1, c_int::from));
    Some(match name {
        EXS_SO_RETRY_COUNT => count(path.retry_count),
        EXS_SO_RNR_RETRY_COUNT => count(path.rnr_retry_count),
        EXS_SO_SERVICE_LEVEL => count(path.service_level),
        EXS_SO_PKEY => number(path.pkey),
        EXS_SO_PATH_MTU => number(path.path_mtu),
        EXS_SO_RNR_TIMER => PathValue::Time(path.rnr_timer),
        EXS_SO_ACK_TIMEOUT => PathValue::Time(path.ack_timeout),
        _ => return None,
    })
}
