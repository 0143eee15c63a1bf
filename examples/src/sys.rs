//! Sockets of the C library of EXS, used without a queue (an `unsafe` island).
//!
//! The Rust API has queues and calls that block. Only the sockets of the C library have descriptors of
//! their own, which poll(2) and epoll can watch, and calls that return at once: they are for programs
//! that were written for kernel sockets. [`Descriptor`] is such a socket.
//!
//! # Why the uses of `unsafe` are sound
//! The functions are those of `<sys/exs.h>`, which the crate `exs_ffi` exports under these names and
//! with these types; its own test holds it to the header. Each call gets a descriptor that this module
//! owns, and memory that the call uses only until it returns, as it gets no queue.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// Linked for the functions below.
use exs_ffi as _;
use libc::{sockaddr, sockaddr_in, socklen_t};

/// No queue: the call itself returns the result (`EXS_QHANDLE_INVALID`).
const NO_QUEUE: c_int = -1;
/// The memory is not registered (`EXS_MHANDLE_UNREGISTERED`).
const UNREGISTERED: c_int = -2;

unsafe extern "C" {
    fn exs_socket(domain: c_int, ty: c_int, protocol: c_int) -> c_int;
    fn exs_bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn exs_listen(fd: c_int, backlog: c_int) -> c_int;
    fn exs_getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn exs_connect(
        fd: c_int,
        addr: *const sockaddr,
        len: socklen_t,
        flags: c_int,
        queue: c_int,
        ahandle: usize,
    ) -> c_int;
    fn exs_accept(
        fd: c_int,
        place: *mut c_void,
        flags: c_int,
        queue: c_int,
        ahandle: usize,
    ) -> c_int;
    fn exs_send(
        fd: c_int,
        buf: *mut c_void,
        len: usize,
        flags: c_int,
        queue: c_int,
        ahandle: usize,
        mhandle: c_int,
    ) -> c_int;
    fn exs_getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t,
    ) -> c_int;
    fn exs_epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;
    fn exs_epoll_wait(
        epfd: c_int,
        events: *mut libc::epoll_event,
        max: c_int,
        timeout: c_int,
    ) -> c_int;
    fn exs_recv(
        fd: c_int,
        buf: *mut c_void,
        len: usize,
        flags: c_int,
        queue: c_int,
        ahandle: usize,
        mhandle: c_int,
    ) -> c_int;
}

/// A stream socket of the C library, with the transport that `EXS_TRANSPORT` names. It is closed in
/// the background when this is dropped.
#[derive(Debug)]
pub struct Descriptor(OwnedFd);

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The length of an IPv4 address.
#[allow(clippy::cast_possible_truncation)] // 16
const LEN: socklen_t = size_of::<sockaddr_in>() as socklen_t;

#[allow(clippy::cast_possible_truncation)] // the family is 2
fn address(ip: Ipv4Addr, port: u16) -> sockaddr_in {
    sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
        sin_zero: [0; 8],
    }
}

/// The length of an error as an option of a socket.
#[allow(clippy::cast_possible_truncation)] // 4
const ERRNO_LEN: socklen_t = size_of::<c_int>() as socklen_t;

/// A result of the C library: below zero, errno says why.
fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// How many bytes a call has moved.
fn count(result: c_int) -> io::Result<usize> {
    checked(result).map(|n| usize::try_from(n).unwrap_or(0))
}

impl Descriptor {
    fn socket(flags: c_int) -> io::Result<Descriptor> {
        // SAFETY: the call takes numbers only.
        let fd = checked(unsafe { exs_socket(libc::AF_INET, libc::SOCK_STREAM | flags, 0) })?;
        // SAFETY: the descriptor is new, so nothing else owns it.
        Ok(Descriptor(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn fd(&self) -> c_int {
        self.0.as_raw_fd()
    }

    /// Listens on a free port. Its accepts do not wait.
    ///
    /// # Errors
    /// What the C library sets errno to.
    pub fn listen(ip: Ipv4Addr, backlog: i32) -> io::Result<Descriptor> {
        let listener = Descriptor::socket(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)?;
        let addr = address(ip, 0);
        // SAFETY: the address and its length are of one object, which outlives the call.
        checked(unsafe { exs_bind(listener.fd(), (&raw const addr).cast(), LEN) })?;
        // SAFETY: the call takes numbers only.
        checked(unsafe { exs_listen(listener.fd(), backlog) })?;
        Ok(listener)
    }

    /// The address that it is bound to.
    ///
    /// # Errors
    /// What the C library sets errno to.
    pub fn local_addr(&self) -> io::Result<SocketAddrV4> {
        let (mut addr, mut len) = (address(Ipv4Addr::UNSPECIFIED, 0), LEN);
        let place = (&raw mut addr).cast();
        // SAFETY: the address and its length are objects that outlive the call, which writes at most
        // `len` bytes.
        checked(unsafe { exs_getsockname(self.fd(), place, &raw mut len) })?;
        let ip = Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr));
        Ok(SocketAddrV4::new(ip, u16::from_be(addr.sin_port)))
    }

    /// Connects, and waits for it. The other calls of the connection do not wait.
    ///
    /// # Errors
    /// What the C library sets errno to; that the address is none of IPv4.
    pub fn connect(to: SocketAddr) -> io::Result<Descriptor> {
        let socket = Descriptor::socket(libc::SOCK_CLOEXEC)?;
        socket.connect_to(to)?;
        rustix::fs::fcntl_setfl(&socket, rustix::fs::OFlags::NONBLOCK)?;
        Ok(socket)
    }

    /// Begins to connect, with calls that do not wait. The descriptor is writable at the end, whose
    /// outcome [`Descriptor::connected`] returns. True if the connection is there already.
    ///
    /// # Errors
    /// As [`Descriptor::connect`].
    pub fn begin(to: SocketAddr) -> io::Result<(Descriptor, bool)> {
        let socket = Descriptor::socket(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)?;
        match socket.connect_to(to) {
            Ok(()) => Ok((socket, true)),
            Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => Ok((socket, false)),
            Err(e) => Err(e),
        }
    }

    fn connect_to(&self, to: SocketAddr) -> io::Result<()> {
        let SocketAddr::V4(to) = to else {
            return Err(io::Error::other(format!("{to} is no IPv4 address")));
        };
        let addr = address(*to.ip(), to.port());
        let place = (&raw const addr).cast();
        // SAFETY: the address and its length are of one object, which outlives the call.
        checked(unsafe { exs_connect(self.fd(), place, LEN, 0, NO_QUEUE, 0) }).map(|_| ())
    }

    /// The outcome of a connect that was begun.
    ///
    /// # Errors
    /// Why it has failed.
    pub fn connected(&self) -> io::Result<()> {
        let (mut errno, mut len): (c_int, socklen_t) = (0, ERRNO_LEN);
        let (level, name) = (libc::SOL_SOCKET, libc::SO_ERROR);
        let place = (&raw mut errno).cast();
        // SAFETY: the value and its length are objects that outlive the call, which writes at most `len`
        // bytes.
        checked(unsafe { exs_getsockopt(self.fd(), level, name, place, &raw mut len) })?;
        if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
    }

    /// Accepts a connection whose calls do not wait; `None` if none is there.
    ///
    /// # Errors
    /// What the C library sets errno to.
    pub fn accept(&self) -> io::Result<Option<Descriptor>> {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no place for an address is given, and without a queue nothing is kept.
        match checked(unsafe { exs_accept(self.fd(), std::ptr::null_mut(), flags, NO_QUEUE, 0) }) {
            // SAFETY: the descriptor is new, so nothing else owns it.
            Ok(fd) => Ok(Some(Descriptor(unsafe { OwnedFd::from_raw_fd(fd) }))),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Registers it in an epoll set, which reports `data`.
    ///
    /// # Errors
    /// What the C library sets errno to.
    pub fn watch(&self, epoll: BorrowedFd<'_>, data: u64, events: u32) -> io::Result<()> {
        self.control(epoll, libc::EPOLL_CTL_ADD, data, events)
    }

    /// Changes what the epoll set waits for.
    ///
    /// # Errors
    /// What the C library sets errno to.
    pub fn watch_again(&self, epoll: BorrowedFd<'_>, data: u64, events: u32) -> io::Result<()> {
        self.control(epoll, libc::EPOLL_CTL_MOD, data, events)
    }

    fn control(&self, epoll: BorrowedFd<'_>, op: c_int, data: u64, events: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: data };
        let epoll = epoll.as_raw_fd();
        // SAFETY: the event outlives the call.
        checked(unsafe { exs_epoll_ctl(epoll, op, self.fd(), &raw mut event) }).map(|_| ())
    }

    /// Waits for events of the epoll set, `limit` milliseconds at most. Appends the data of up to `max`
    /// events.
    ///
    /// # Errors
    /// What the C library sets errno to.
    pub fn wait(
        epoll: BorrowedFd<'_>,
        data: &mut Vec<u64>,
        max: usize,
        limit: Option<i32>,
    ) -> io::Result<()> {
        let mut events: Vec<libc::epoll_event> = Vec::with_capacity(max);
        let (room, limit) = (c_int::try_from(max).unwrap_or(c_int::MAX), limit.unwrap_or(-1));
        // SAFETY: there is room for `room` events, and the vector outlives the call.
        let n =
            count(unsafe { exs_epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), room, limit) })?;
        // SAFETY: the call has written `n` events, and never more than it had room for.
        unsafe { events.set_len(n.min(max)) };
        data.extend(events.iter().map(|event| event.u64));
        Ok(())
    }

    /// Sends what there is room for; returns how much.
    ///
    /// # Errors
    /// What the C library sets errno to, `WouldBlock` among it.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let base = bytes.as_ptr().cast_mut().cast();
        // SAFETY: the slice outlives the call, which only reads it: without a queue nothing is kept.
        count(unsafe { exs_send(self.fd(), base, bytes.len(), 0, NO_QUEUE, 0, UNREGISTERED) })
    }

    /// Receives what is there; 0 is the end.
    ///
    /// # Errors
    /// What the C library sets errno to, `WouldBlock` among it.
    pub fn recv(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let base = bytes.as_mut_ptr().cast();
        // SAFETY: the slice is ours alone and outlives the call: without a queue nothing is kept.
        count(unsafe { exs_recv(self.fd(), base, bytes.len(), 0, NO_QUEUE, 0, UNREGISTERED) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn readable(fd: &Descriptor) {
        assert_eq!(poll(&mut [PollFd::new(fd, PollFlags::IN)], None), Ok(1));
    }

    #[test]
    fn a_message_crosses_between_descriptors() {
        let listener = Descriptor::listen(Ipv4Addr::LOCALHOST, 1).unwrap();
        assert!(listener.accept().unwrap().is_none());
        let from = Descriptor::connect(listener.local_addr().unwrap().into()).unwrap();
        readable(&listener);
        let to = listener.accept().unwrap().unwrap();
        let mut bytes = [0; 9];
        let nothing = to.recv(&mut bytes).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(from.send(b"hello").unwrap(), 5);
        readable(&to);
        assert_eq!(to.recv(&mut bytes).unwrap(), 5);
        assert_eq!(&bytes[..5], b"hello");
        drop(from);
        readable(&to);
        assert_eq!(to.recv(&mut bytes).unwrap(), 0);
        let v6 = Descriptor::connect("[::1]:1".parse().unwrap()).unwrap_err();
        assert!(v6.to_string().contains("[::1]:1"), "{v6}");
    }
}
