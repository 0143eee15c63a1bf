//! Options of sockets.
//!
//! A table of names, with what each reads and sets. The options of kernel sockets go to the
//! kernel. Those of EXS sockets are mostly fields of `exs::Options`.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::Duration;

use exs::{Options, SocketType, Transport};
use libc::{c_void, linger, socklen_t, timeval};

use crate::abi::*;
use crate::blocking::{MOST, Patience};
use crate::connect::os;
use crate::data::not_ours;
use crate::error::{Fail, Result, border};
use crate::kernel;
use crate::path::{self, PathValue};
use crate::pollable;
use crate::ptr::{In, Out};
use crate::queues::duration;
use crate::sockets::{self, Entry, Target};
use crate::timeouts::{self, Way, change};
use crate::{atomic, tcp, told};

/// Returns how long a call without a queue waits.
pub(crate) fn patience(entry: &Entry, fd: c_int, flags: c_int, way: Way) -> Patience {
    // SAFETY: takes no pointers.
    let status = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags & libc::MSG_DONTWAIT != 0 || (status >= 0 && status & libc::O_NONBLOCK != 0) {
        return Patience::None;
    }
    entry.state().patience[way as usize].map_or(Patience::Endless, Patience::Limited)
}

/// Returns the bytes of a stream that one call sends. A message cannot be cut.
pub(crate) fn clip(entry: &Entry, len: usize) -> Result<usize> {
    if len > MOST && entry.kind == SocketType::SeqPacket {
        return Err(Fail::fixed(libc::EMSGSIZE, "no message is longer than 0x7ffff000 bytes"));
    }
    Ok(len.min(MOST))
}

const UNKNOWN: Fail = Fail::fixed(libc::ENOPROTOOPT, "EXS sockets have no such option");
const SHORT: Fail = Fail::fixed(libc::EINVAL, "the option's value has another size");

fn value<T: Copy>(from: In<c_void>, len: socklen_t) -> Result<T> {
    if (len as usize) < size_of::<T>() { Err(SHORT) } else { from.cast::<T>().read() }
}

fn switch(from: In<c_void>, len: socklen_t) -> Result<bool> {
    Ok(value::<c_int>(from, len)? != 0)
}

/// Reads SO_SNDTIMEO or SO_RCVTIMEO. Zero is no limit, and a negative time does not wait
/// (socket(7)).
fn wait_limit(from: In<c_void>, len: socklen_t) -> Result<Option<Duration>> {
    let t = value::<timeval>(from, len)?;
    if !(0..1_000_000).contains(&t.tv_usec) {
        return Err(Fail::fixed(libc::EDOM, "tv_usec is from 0 to 999999"));
    }
    if t.tv_sec < 0 {
        return Ok(Some(Duration::ZERO));
    }
    Ok(Some(duration(t)?).filter(|t| !t.is_zero()))
}

/// Returns true for switches that programs set by habit. They read back as set and change
/// nothing: an address can be used again at once, streams have no urgent data and no broadcasts,
/// and the data of a send leave with it.
fn is_habit(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => {
            matches!(name, libc::SO_REUSEADDR | libc::SO_OOBINLINE | libc::SO_BROADCAST)
        }
        libc::IPPROTO_TCP => matches!(name, libc::TCP_CORK | libc::TCP_QUICKACK),
        _ => false,
    }
}

/// Reads a time. Zero is None.
fn time(from: In<c_void>, len: socklen_t) -> Result<Option<Duration>> {
    Ok(Some(duration(value::<timeval>(from, len)?)?).filter(|t| !t.is_zero()))
}

fn text(from: In<c_void>, len: socklen_t) -> Result<String> {
    let bytes = from.cast::<u8>().bytes((len as usize).min(256))?;
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let text = std::str::from_utf8(&bytes[..end]);
    Ok(text.map_err(|_| Fail::fixed(libc::EINVAL, "a text that is not UTF-8"))?.to_owned())
}

/// Returns true for the options of EXS that kernel sockets have, too.
fn is_limit(name: c_int) -> bool {
    matches!(name, SO_ASYNC_SEND_TIMEOUT | SO_ASYNC_RECV_TIMEOUT | SO_ASYNC_RECV_ORDERED)
}

fn set_kernel(fd: c_int, name: c_int, from: In<c_void>, len: socklen_t) -> Result<()> {
    let way = match name {
        SO_ASYNC_SEND_TIMEOUT => Way::Send,
        SO_ASYNC_RECV_TIMEOUT => Way::Recv,
        _ => return value::<c_int>(from, len).map(drop),
    };
    let (time, once) = timeout(from, len)?;
    kernel::set_limit(fd, way, time, once)
}

/// The value of a timeout option: the time, and whether it applies to one operation only.
fn timeout(from: In<c_void>, len: socklen_t) -> Result<(Option<Duration>, bool)> {
    let full = len as usize >= size_of::<Timeout>();
    let flags = if full { value::<Timeout>(from, len)?.exs_to_flags } else { 0 };
    match flags {
        0 | EXS_TIMEOUT_ONCE => Ok((time(from, len)?, flags != 0)),
        _ => Err(Fail::fixed(libc::EINVAL, "a timeout knows the flag EXS_TIMEOUT_ONCE only")),
    }
}

fn set_timeout(entry: &Entry, way: Way, from: In<c_void>, len: socklen_t) -> Result<()> {
    let (time, once) = timeout(from, len)?;
    timeouts::set(entry, way, time, once)
}

fn set_linger(entry: &Entry, l: linger) -> Result<()> {
    entry.cut.store(l.l_onoff != 0 && l.l_linger == 0, Ordering::Relaxed);
    let time = match u64::try_from(l.l_linger) {
        Ok(s) if l.l_onoff != 0 => Duration::from_secs(s),
        // Off means the library's default: in the background, for the default time.
        _ => Options::default().linger,
    };
    change(entry, |o| o.linger = time)
}

fn set(
    entry: &Entry,
    fd: c_int,
    level: c_int,
    name: c_int,
    from: In<c_void>,
    len: socklen_t,
) -> Result<()> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_LINGER) => set_linger(entry, value(from, len)?),
        _ if is_habit(level, name) => {
            let on = c_int::from(switch(from, len)?);
            entry.state().habits.insert((level, name), on);
            Ok(())
        }
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => {
            entry.state().patience[Way::Send as usize] = wait_limit(from, len)?;
            Ok(())
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
            entry.state().patience[Way::Recv as usize] = wait_limit(from, len)?;
            Ok(())
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
            let usual = Options::default().keep_alive.or(Some(Duration::from_secs(15)));
            let on = switch(from, len)?;
            change(entry, |o| o.keep_alive = if on { usual } else { None })
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            let size = usize::try_from(value::<c_int>(from, len)?).map_err(|_| SHORT)?;
            change(entry, |o| o.ring_size = size)
        }
        // Accepted because programs set them by habit: nothing is buffered on sending.
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_REUSEPORT | SO_ASYNC_RECV_ORDERED) => {
            value::<c_int>(from, len).map(drop)
        }
        (libc::SOL_SOCKET, SO_ASYNC_SEND_TIMEOUT) => set_timeout(entry, Way::Send, from, len),
        (libc::SOL_SOCKET, SO_ASYNC_RECV_TIMEOUT) => set_timeout(entry, Way::Recv, from, len),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
            let on = switch(from, len)?;
            change(entry, |o| o.no_delay = on)
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) if entry.family == libc::AF_INET6 => {
            let on = switch(from, len)?;
            if entry.socket.local_addr().is_ok() {
                return Err(Fail::fixed(libc::EINVAL, "IPV6_V6ONLY is set before bind"));
            }
            change(entry, |o| o.v6_only = on)
        }
        _ if path::is_class(entry, level, name) => path::set_class(entry, value(from, len)?),
        (SOL_EXS, EXS_SO_POLLABLE) => pollable::set(entry, fd, switch(from, len)?),
        (SOL_EXS, _) => set_own(entry, name, from, len),
        _ => Err(UNKNOWN),
    }
}

/// Sets an option of the level SOL_EXS.
fn set_own(entry: &Entry, name: c_int, from: In<c_void>, len: socklen_t) -> Result<()> {
    match name {
        EXS_SO_TRANSPORT => {
            let transport = text(from, len)?.parse::<Transport>()?;
            change(entry, |o| o.transport = transport)
        }
        EXS_SO_DEVICE => {
            let device = Some(text(from, len)?).filter(|d| !d.is_empty());
            change(entry, |o| o.device = device)
        }
        EXS_SO_RING_SIZE => {
            let size = value::<usize>(from, len)?;
            change(entry, |o| o.ring_size = size)
        }
        EXS_SO_INLINE => {
            let size = value::<usize>(from, len)?;
            change(entry, |o| o.inline_threshold = Some(size))
        }
        EXS_SO_MAX_MESSAGE => {
            let size = value::<u64>(from, len)?;
            change(entry, |o| o.max_message = size)
        }
        EXS_SO_CONNECT_TIMEOUT => {
            let time = time(from, len)?.ok_or(SHORT)?;
            change(entry, |o| o.connect_timeout = time)
        }
        EXS_SO_KEEP_ALIVE => {
            let time = time(from, len)?;
            change(entry, |o| o.keep_alive = time)
        }
        EXS_SO_DEAD_AFTER => {
            let time = time(from, len)?;
            change(entry, |o| o.dead_after = time)
        }
        EXS_SO_RETRY_COUNT | EXS_SO_RNR_RETRY_COUNT => {
            path::set_count(entry, name, value(from, len)?)
        }
        EXS_SO_PKEY | EXS_SO_SERVICE_LEVEL | EXS_SO_PATH_MTU => {
            path::set_route(entry, name, value(from, len)?)
        }
        EXS_SO_RNR_TIMER | EXS_SO_ACK_TIMEOUT => path::set_timer(entry, name, time(from, len)?),
        EXS_SO_CRC => {
            let on = switch(from, len)?;
            change(entry, |o| o.crc = on)
        }
        _ => Err(UNKNOWN),
    }
}

/// The value of an option.
enum Value {
    Int(c_int),
    Size(u64),
    Time(Option<Duration>),
    Linger(linger),
    Text(String),
    Bytes(Vec<u8>),
}

fn int(n: usize) -> Value {
    Value::Int(c_int::try_from(n).unwrap_or(c_int::MAX))
}

fn get(entry: &Entry, level: c_int, name: c_int) -> Result<Value> {
    let o = entry.socket.options();
    let flag = |on: bool| Value::Int(c_int::from(on));
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            crate::poll::inner_events();
            crate::late::reap(entry, false);
            pollable::forgive(entry);
            Value::Int(told::take(entry))
        }
        (libc::SOL_SOCKET, libc::SO_TYPE) => Value::Int(match entry.kind {
            SocketType::Stream => libc::SOCK_STREAM,
            _ => libc::SOCK_SEQPACKET,
        }),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => Value::Int(entry.family),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => Value::Int(0),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => flag(entry.socket.is_listening()),
        (libc::SOL_SOCKET, libc::SO_LINGER) => Value::Linger(linger {
            l_onoff: c_int::from(
                entry.cut.load(Ordering::Relaxed) || o.linger != Options::default().linger,
            ),
            // Off: the library closes in the background.
            l_linger: if entry.cut.load(Ordering::Relaxed) || o.linger == Options::default().linger
            {
                0
            } else {
                c_int::try_from(o.linger.as_secs()).unwrap_or(c_int::MAX)
            },
        }),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => {
            Value::Time(entry.state().patience[Way::Send as usize])
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
            Value::Time(entry.state().patience[Way::Recv as usize])
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => flag(o.keep_alive.is_some()),
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => int(o.ring_size),
        _ if is_habit(level, name) => {
            // TCP_QUICKACK is on by default.
            let usual = c_int::from((level, name) == (libc::IPPROTO_TCP, libc::TCP_QUICKACK));
            Value::Int(entry.state().habits.get(&(level, name)).copied().unwrap_or(usual))
        }
        (libc::SOL_SOCKET, SO_ASYNC_RECV_ORDERED) => Value::Int(1),
        // A receive is ready with the first byte, and a send with room for one.
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT | libc::SO_SNDLOWAT) => Value::Int(1),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => int(tcp::segment(entry, &o)),
        (libc::IPPROTO_TCP, libc::TCP_INFO) => Value::Bytes(tcp::info(entry, &o)),
        (libc::SOL_SOCKET, libc::SO_REUSEPORT) => Value::Int(0),
        (libc::SOL_SOCKET, SO_ASYNC_SEND_TIMEOUT) => Value::Time(timeouts::get(entry, Way::Send)),
        (libc::SOL_SOCKET, SO_ASYNC_RECV_TIMEOUT) => Value::Time(timeouts::get(entry, Way::Recv)),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => flag(o.no_delay),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) if entry.family == libc::AF_INET6 => {
            flag(o.v6_only)
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
            return Err(Fail::fixed(libc::EOPNOTSUPP, "an option of AF_INET6"));
        }
        _ if path::is_class(entry, level, name) => Value::Int(path::class(&o)),
        (SOL_EXS, _) => return get_own(entry, name, o),
        _ => return Err(UNKNOWN),
    })
}

fn get_own(entry: &Entry, name: c_int, o: Options) -> Result<Value> {
    let route = entry.socket.transport();
    Ok(match name {
        EXS_SO_TRANSPORT => Value::Text(route.map_or(o.transport, |r| r.transport).to_string()),
        EXS_SO_DEVICE => Value::Text(o.device.unwrap_or_default()),
        EXS_SO_RING_SIZE => Value::Size(o.ring_size as u64),
        EXS_SO_INLINE => {
            let by_memory = route.is_some_and(|r| r.transport == Transport::Shm);
            Value::Size(o.inline_by(by_memory) as u64)
        }
        EXS_SO_MAX_MESSAGE => Value::Size(o.max_message),
        EXS_SO_CONNECT_TIMEOUT => Value::Time(Some(o.connect_timeout)),
        EXS_SO_KEEP_ALIVE => Value::Time(o.keep_alive),
        EXS_SO_DEAD_AFTER => Value::Time(o.dead_after),
        EXS_SO_CRC => Value::Int(c_int::from(o.crc)),
        EXS_SO_ROUTE => match route {
            Some(r) => Value::Text(r.to_string()),
            None => {
                return Err(Fail::fixed(libc::ENOTCONN, "there is no connection, and so no route"));
            }
        },
        EXS_SO_POLLABLE => Value::Int(c_int::from(entry.face.is_shown())),
        EXS_SO_ATOMICS => Value::Int(atomic::to_c(entry.socket.atomics())),
        EXS_SO_PEER_ATOMICS => Value::Int(atomic::to_c(entry.socket.peer_atomics())),
        _ => match path::get(&o.path, name) {
            Some(PathValue::Count(n)) => Value::Int(n),
            Some(PathValue::Time(t)) => Value::Time(t),
            None => return Err(UNKNOWN),
        },
    })
}

/// Stores a value, cut off where the caller's room ends, and its length.
fn store(value: Value, place: Out<c_void>, len: Out<socklen_t>) -> Result<()> {
    let room = len.read()? as usize;
    let bytes: Vec<u8> = match value {
        Value::Int(n) => n.to_ne_bytes().into(),
        Value::Size(n) => n.to_ne_bytes().into(),
        Value::Time(t) => {
            let t = t.unwrap_or_default();
            let s = i64::try_from(t.as_secs()).unwrap_or(i64::MAX);
            [s.to_ne_bytes(), i64::from(t.subsec_micros()).to_ne_bytes()].concat()
        }
        Value::Linger(l) => [l.l_onoff.to_ne_bytes(), l.l_linger.to_ne_bytes()].concat(),
        Value::Bytes(bytes) => bytes,
        Value::Text(t) => {
            let mut bytes = t.into_bytes();
            bytes.push(0);
            if bytes.len() > room && room > 0 {
                // A text that is cut off still ends with a zero.
                bytes.truncate(room);
                bytes[room - 1] = 0;
            }
            bytes
        }
    };
    let n = bytes.len().min(room);
    for (i, b) in bytes.iter().take(n).enumerate() {
        place.cast::<u8>().write_at(i, *b)?;
    }
    len.write(socklen_t::try_from(n).unwrap_or(0))
}

/// `exs_setsockopt`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    from: In<c_void>,
    len: socklen_t,
) -> c_int {
    border(|| match sockets::find(fd)? {
        Target::Exs(entry) => set(&entry, fd, level, name, from, len).map(|()| 0),
        Target::Kernel(_) if level == libc::SOL_SOCKET && is_limit(name) => {
            set_kernel(fd, name, from, len).map(|()| 0)
        }
        Target::Kernel(_) => {
            // SAFETY: the caller's promise is that of setsockopt(2).
            os("setsockopt", unsafe { libc::setsockopt(fd, level, name, from.raw(), len) })
        }
        Target::File => not_ours(fd),
    })
}

/// `exs_getsockopt`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    place: Out<c_void>,
    len: Out<socklen_t>,
) -> c_int {
    border(|| match sockets::find(fd)? {
        Target::Exs(entry) => store(get(&entry, level, name)?, place, len).map(|()| 0),
        Target::Kernel(_) if level == libc::SOL_SOCKET && is_limit(name) => {
            let value = match name {
                SO_ASYNC_SEND_TIMEOUT => Value::Time(kernel::limit(fd, Way::Send)?),
                SO_ASYNC_RECV_TIMEOUT => Value::Time(kernel::limit(fd, Way::Recv)?),
                _ => Value::Int(1),
            };
            store(value, place, len).map(|()| 0)
        }
        Target::Kernel(_) => {
            // SAFETY: the caller's promise is that of getsockopt(2).
            os("getsockopt", unsafe { libc::getsockopt(fd, level, name, place.raw(), len.raw()) })
        }
        Target::File => not_ours(fd),
    })
}
