//! Makes sockets, handles their addresses, and connects.

use std::ffi::{c_char, c_int};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6};

use exs::{EventQueue, Host, KernelAddr, Socket, SocketType, Token};
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::abi::*;
use crate::blocking::{self, Patience, TOKEN};
use crate::data::not_ours;
use crate::epoll_set::EpollSet;
use crate::error::{Fail, Result, border};
use crate::event::Call;
use crate::pair::Pair;
use crate::pollable::{self, Plug};
use crate::ptr::{In, Out};
use crate::sockets::{self, Entry, Target};
use crate::timeouts::Way;
use crate::{fork, kernel, late, options, poll, queues, told};

/// Reads an address of any family, for a kernel socket.
pub(crate) fn any_address(addr: In<sockaddr>, len: socklen_t) -> Result<KernelAddr> {
    let bytes = addr.cast::<u8>().bytes((len as usize).min(256))?;
    KernelAddr::from_sockaddr(&bytes).map_err(|e| Fail::io("the address", &e))
}

/// Reads a C address of AF_INET or AF_INET6.
pub(crate) fn address(addr: In<sockaddr>, len: socklen_t) -> Result<SocketAddr> {
    let short = Fail::fixed(libc::EINVAL, "the address is shorter than those of its family");
    if (len as usize) < size_of::<libc::sa_family_t>() {
        return Err(short);
    }
    let family = c_int::from(addr.cast::<libc::sa_family_t>().read()?);
    let room = len as usize;
    match family {
        libc::AF_INET if room >= size_of::<sockaddr_in>() => {
            let a: sockaddr_in = addr.cast().read()?;
            let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
            Ok(SocketAddrV4::new(ip, u16::from_be(a.sin_port)).into())
        }
        libc::AF_INET6 if room >= size_of::<sockaddr_in6>() => {
            let a: sockaddr_in6 = addr.cast().read()?;
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            let port = u16::from_be(a.sin6_port);
            Ok(SocketAddrV6::new(ip, port, u32::from_be(a.sin6_flowinfo), a.sin6_scope_id).into())
        }
        libc::AF_INET | libc::AF_INET6 => Err(short),
        _ => Err(Fail::fixed(libc::EAFNOSUPPORT, "EXS has addresses of AF_INET and AF_INET6")),
    }
}

/// Returns the bytes of an address in the form of C.
pub(crate) fn to_bytes(addr: SocketAddr) -> Vec<u8> {
    let mut out = Vec::with_capacity(size_of::<sockaddr_in6>());
    match addr {
        SocketAddr::V4(a) => {
            out.extend(libc::sa_family_t::try_from(libc::AF_INET).unwrap_or(0).to_ne_bytes());
            out.extend(a.port().to_be_bytes());
            out.extend(a.ip().octets());
            out.resize(size_of::<sockaddr_in>(), 0);
        }
        SocketAddr::V6(a) => {
            out.extend(libc::sa_family_t::try_from(libc::AF_INET6).unwrap_or(0).to_ne_bytes());
            out.extend(a.port().to_be_bytes());
            out.extend(a.flowinfo().to_be_bytes());
            out.extend(a.ip().octets());
            out.extend(a.scope_id().to_ne_bytes());
        }
    }
    out
}

/// Stores an address in a place of limited size, as getsockname(2) does: it cuts the address off
/// if needed, and stores its true length.
fn store(addr: SocketAddr, place: Out<sockaddr>, len: Out<socklen_t>) -> Result<c_int> {
    let room = len.read()? as usize;
    let bytes = to_bytes(addr);
    for (i, b) in bytes.iter().take(room).enumerate() {
        place.cast::<u8>().write_at(i, *b)?;
    }
    len.write(socklen_t::try_from(bytes.len()).unwrap_or(0))?;
    Ok(0)
}

/// Stores an address in the caller's `sockaddr_storage` and returns its length.
pub(crate) fn store_whole(addr: SocketAddr, place: Out<sockaddr_storage>) -> socklen_t {
    let bytes = to_bytes(addr);
    for (i, b) in bytes.iter().enumerate() {
        // The caller has checked that it is not NULL.
        let _ = place.cast::<u8>().write_at(i, *b);
    }
    socklen_t::try_from(bytes.len()).unwrap_or(0)
}

/// Number of socket types that Linux has (include/linux/net.h).
const SOCK_MAX: c_int = 11;

/// Length of the shortest address that an IPv6 socket takes (RFC 2133 had no scope).
const LEAST_V6: usize = 24;

/// Reads an address of the socket's own family. As with the kernel's sockets, an IPv6 socket
/// takes an IPv4 address only as `::ffff:a.b.c.d`.
fn suits(entry: &Entry, addr: In<sockaddr>, len: socklen_t) -> Result<SocketAddr> {
    if entry.family == libc::AF_INET6 && (len as usize) < LEAST_V6 {
        return Err(Fail::fixed(libc::EINVAL, "the address is shorter than those of AF_INET6"));
    }
    let addr = address(addr, len)?;
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    if family == entry.family {
        return Ok(addr);
    }
    Err(Fail::fixed(libc::EAFNOSUPPORT, "the address is of another family than the socket"))
}

/// Converts an address to the form of a socket of this family. AF_INET6 has IPv4 addresses as
/// `::ffff:a.b.c.d`, whatever transport the connection uses.
pub(crate) fn as_family(addr: SocketAddr, family: c_int) -> SocketAddr {
    match addr {
        SocketAddr::V4(a) if family == libc::AF_INET6 => {
            SocketAddr::new(a.ip().to_ipv6_mapped().into(), a.port())
        }
        other => other,
    }
}

fn named(entry: &Entry, addr: SocketAddr) -> SocketAddr {
    as_family(addr, entry.family)
}

/// `exs_socket`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_socket(domain: c_int, ty: c_int, protocol: c_int) -> c_int {
    border(|| {
        fork::used();
        if domain != libc::AF_INET && domain != libc::AF_INET6 {
            let why =
                "EXS sockets are AF_INET or AF_INET6 (InfiniBand is reached by IP addresses, too)";
            return Err(Fail::fixed(libc::EAFNOSUPPORT, why));
        }
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let kind = match ty & !flags {
            libc::SOCK_STREAM => SocketType::Stream,
            libc::SOCK_SEQPACKET => SocketType::SeqPacket,
            other if !(0..SOCK_MAX).contains(&other) => {
                return Err(Fail::fixed(libc::EINVAL, "there is no such type of socket"));
            }
            _ => {
                let why = "EXS sockets are SOCK_STREAM or SOCK_SEQPACKET";
                return Err(Fail::fixed(libc::ESOCKTNOSUPPORT, why));
            }
        };
        // getaddrinfo(3) returns this protocol for a stream.
        if protocol != 0 && (protocol, kind) != (libc::IPPROTO_TCP, SocketType::Stream) {
            let why = "the protocol of an EXS socket is 0, or IPPROTO_TCP for a stream";
            return Err(Fail::fixed(libc::EPROTONOSUPPORT, why));
        }
        let pair = Pair::new(ty & libc::SOCK_NONBLOCK != 0)?;
        Ok(sockets::install(Socket::new(kind)?, kind, domain, pair))
    })
}

/// Reads an address without a family, all zeros, which Linux takes for INADDR_ANY in bind(2).
fn unspecified(entry: &Entry, addr: In<sockaddr>, len: socklen_t) -> Option<SocketAddr> {
    if entry.family != libc::AF_INET || (len as usize) < size_of::<sockaddr_in>() {
        return None;
    }
    let a: sockaddr_in = addr.cast().read().ok()?;
    let none = a.sin_family == 0 && a.sin_addr.s_addr == 0;
    none.then(|| (Ipv4Addr::UNSPECIFIED, u16::from_be(a.sin_port)).into())
}

/// `exs_bind`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_bind(fd: c_int, addr: In<sockaddr>, len: socklen_t) -> c_int {
    border(|| match sockets::find(fd)? {
        Target::Exs(entry) => {
            entry.socket.bind(
                unspecified(&entry, addr, len).map_or_else(|| suits(&entry, addr, len), Ok)?,
            )?;
            Ok(0)
        }
        // SAFETY: the caller's promise is that of bind(2).
        Target::Kernel(_) => os("bind", unsafe { libc::bind(fd, addr.raw(), len) }),
        Target::File => not_ours(fd),
    })
}

/// `exs_listen`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_listen(fd: c_int, backlog: c_int) -> c_int {
    border(|| match sockets::find(fd)? {
        Target::Exs(entry) => {
            // As listen(2): values out of range are brought into range.
            let backlog = u32::try_from(backlog).unwrap_or(u32::MAX).clamp(1, 4096);
            if entry.family == libc::AF_INET6 && entry.socket.local_addr().is_err() {
                entry.socket.bind((Ipv6Addr::UNSPECIFIED, 0).into())?;
            }
            entry.socket.listen(backlog)?;
            pollable::refresh(&entry, fd);
            // Like a TCP listener, the descriptor is never writable.
            pollable::plug(&entry, fd, Plug::Listening);
            Ok(0)
        }
        // SAFETY: takes no pointers.
        Target::Kernel(_) => os("listen", unsafe { libc::listen(fd, backlog) }),
        Target::File => not_ours(fd),
    })
}

/// Turns the result of a system call into a `Result`.
pub(crate) fn os(call: &str, result: c_int) -> Result<c_int> {
    if result < 0 { Err(Fail::os(call)) } else { Ok(result) }
}

/// `exs_connect`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_connect(
    fd: c_int,
    addr: In<sockaddr>,
    len: socklen_t,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
) -> c_int {
    border(|| {
        if flags != 0 {
            return Err(Fail::fixed(libc::EINVAL, "exs_connect has no flags"));
        }
        let call = Call::new(EXS_EVT_CONNECT, fd);
        let entry = match sockets::find(fd)? {
            Target::Exs(entry) => entry,
            Target::Kernel(_) => {
                let Some(answer) = kernel::Answer::of(call, queue, 0, ahandle)? else {
                    return kernel::connect_now(fd, addr, len);
                };
                return kernel::connect(fd, any_address(addr, len)?, &answer);
            }
            Target::File => return not_ours(fd),
        };
        let to = Peer::Addr(suits(&entry, addr, len)?);
        connect(&entry, fd, &to, (call, queue, ahandle))
    })
}

/// The peer of a connect: its address, or a host by name.
pub(crate) enum Peer {
    Addr(SocketAddr),
    Host(Host),
}

impl Peer {
    /// Posts the connect.
    pub(crate) fn connect(&self, socket: &Socket, on: &EventQueue, token: Token) -> Result<()> {
        match self {
            Peer::Addr(addr) => socket.connect(on, token, *addr)?,
            Peer::Host(host) => socket.connect_host(on, token, host)?,
        }
        Ok(())
    }

    /// Posts the connect of a call without a queue.
    pub(crate) fn connect_for_thread(
        &self,
        socket: &Socket,
        on: &EventQueue,
        token: Token,
    ) -> Result<()> {
        match EpollSet::of_thread() {
            Some(_) => self.connect(socket, &exs::__ffi::in_loop(on), token),
            None => self.connect(socket, on, token),
        }
    }
}

/// Connects an EXS socket, as the queue and its flags say: by an event, in the background, or before
/// this returns.
fn connect(
    entry: &Entry,
    fd: c_int,
    to: &Peer,
    (call, queue, ahandle): (Call, c_int, AHandle),
) -> Result<c_int> {
    if let Some(q) = queues::way(queue)? {
        let on = call.on(&q.queue, 0);
        to.connect(&entry.socket, &on, Token(ahandle as u64))?;
        return Ok(0);
    }
    poll::inner_events();
    if let Some(outcome) = told::dialled(entry) {
        return outcome;
    }
    match options::patience(entry, fd, 0, Way::Send) {
        Patience::None => poll::connect(entry, fd, to),
        patience => {
            let post = |q: &EventQueue| to.connect_for_thread(&entry.socket, q, TOKEN);
            let connected = blocking::run(&entry.socket, patience, post)?.into_result();
            pollable::refresh(entry, fd);
            connected?;
            Ok(0)
        }
    }
}

/// Longest text of a host, its NUL included: a name of the DNS has 253 bytes (RFC 1035), and a
/// service is short.
const MAX_HOST: usize = 1024;

/// `exs_connect_host`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_connect_host(
    fd: c_int,
    host: In<c_char>,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
) -> c_int {
    border(|| {
        if flags != 0 {
            return Err(Fail::fixed(libc::EINVAL, "exs_connect_host has no flags"));
        }
        let call = Call::new(EXS_EVT_CONNECT, fd);
        let entry = match sockets::find(fd)? {
            Target::Exs(entry) => entry,
            Target::Kernel(_) => {
                let why = "exs_connect_host is for sockets of exs_socket: connect this one to an \
                           address of getaddrinfo(3)";
                return Err(Fail::fixed(libc::EOPNOTSUPP, why));
            }
            Target::File => return not_ours(fd),
        };
        let text = host.text(MAX_HOST)?;
        let host: Host = String::from_utf8_lossy(&text).parse()?;
        let host = if entry.family == libc::AF_INET { host.only_ipv4()? } else { host };
        connect(&entry, fd, &Peer::Host(host), (call, queue, ahandle))
    })
}

/// `exs_shutdown`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_shutdown(
    fd: c_int,
    how: c_int,
    queue: c_int,
    ahandle: AHandle,
) -> c_int {
    border(|| {
        let number = how;
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Fail::fixed(libc::EINVAL, "SHUT_RD, SHUT_WR or SHUT_RDWR")),
        };
        let call = Call::new(EXS_EVT_SHUTDOWN, fd);
        let entry = match sockets::find(fd)? {
            Target::Exs(entry) => entry,
            Target::Kernel(_) => {
                let Some(answer) = kernel::Answer::of(call, queue, 0, ahandle)? else {
                    return kernel::shutdown_now(fd, number);
                };
                return kernel::shutdown(fd, how, &answer);
            }
            Target::File => return not_ours(fd),
        };
        if let Some(q) = queues::way(queue)? {
            let on = call.on(&q.queue, 0);
            entry.socket.shutdown(&on, Token(ahandle as u64), how)?;
            return Ok(0);
        }
        if entry.socket.is_listening() {
            let post = |q: &exs::EventQueue| Ok(entry.socket.shutdown(q, TOKEN, how)?);
            blocking::run(&entry.socket, Patience::Endless, post)?.into_result()?;
            pollable::refresh(&entry, fd);
            if !entry.socket.is_listening() {
                pollable::unplug(&entry, Plug::Listening);
            }
            return Ok(0);
        }
        told::connected(&entry)?;
        // SO_SNDTIMEO is for sends: shutdown(2) has no such limit.
        if options::patience(&entry, fd, 0, Way::Send) == Patience::None {
            return late::shutdown(&entry, how).map(|()| 0);
        }
        let post = |q: &exs::EventQueue| Ok(entry.socket.shutdown(q, TOKEN, how)?);
        blocking::run(&entry.socket, Patience::Endless, post)?.into_result()?;
        Ok(0)
    })
}

/// `exs_getsockname`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_getsockname(
    fd: c_int,
    addr: Out<sockaddr>,
    len: Out<socklen_t>,
) -> c_int {
    border(|| match sockets::find(fd)? {
        Target::Exs(entry) => {
            // As the kernel does, returns the wildcard address for a socket without an address.
            let none: SocketAddr = if entry.family == libc::AF_INET {
                (Ipv4Addr::UNSPECIFIED, 0).into()
            } else {
                (Ipv6Addr::UNSPECIFIED, 0).into()
            };
            store(named(&entry, entry.socket.local_addr().unwrap_or(none)), addr, len)
        }
        Target::Kernel(_) => {
            // SAFETY: the caller's promise is that of getsockname(2).
            os("getsockname", unsafe { libc::getsockname(fd, addr.raw(), len.raw()) })
        }
        Target::File => not_ours(fd),
    })
}

/// `exs_getpeername`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_getpeername(
    fd: c_int,
    addr: Out<sockaddr>,
    len: Out<socklen_t>,
) -> c_int {
    border(|| match sockets::find(fd)? {
        Target::Exs(entry) => {
            told::connected(&entry)?;
            store(named(&entry, entry.socket.peer_addr()?), addr, len)
        }
        Target::Kernel(_) => {
            // SAFETY: the caller's promise is that of getpeername(2).
            os("getpeername", unsafe { libc::getpeername(fd, addr.raw(), len.raw()) })
        }
        Target::File => not_ours(fd),
    })
}
