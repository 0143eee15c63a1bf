//! TCP sockets: options, gathered sends, scattered receives, sendfile(2).
//!
//! No call here blocks or raises SIGPIPE: the library may be part of a program that keeps that
//! signal's default, which ends the process.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use super::addr::{RawAddr, family, socklen};
use super::{IoVec, IoVecMut, note_calls};

/// Turns a C result into an `io::Result`.
pub(super) fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

fn check_len(n: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

pub(super) fn set_option<T>(fd: &impl AsFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    let ptr = std::ptr::from_ref(value).cast();
    // SAFETY: the kernel reads exactly the bytes of `value`, whose size is given.
    check(unsafe { libc::setsockopt(fd, level, name, ptr, socklen(size_of::<T>())) })?;
    Ok(())
}

/// Returns true if accept(2) failed because it lacked a resource that may come back.
pub fn starved(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Makes a non-blocking socket for addresses like `addr`.
fn socket(addr: &SocketAddr) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a system call without pointers.
    let fd = check(unsafe { libc::socket(family(addr).into(), kind, 0) })?;
    // SAFETY: the descriptor was just made, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bind(fd: &OwnedFd, addr: &SocketAddr) -> io::Result<()> {
    let (raw, len) = RawAddr::new(addr);
    // SAFETY: `raw` holds an address of `len` bytes.
    check(unsafe { libc::bind(fd.as_raw_fd(), raw.as_ptr(), len) })?;
    Ok(())
}

/// Makes a non-blocking listener. SO_REUSEADDR lets a server start again while old connections
/// linger.
pub fn listen(addr: &SocketAddr, backlog: u32, v6_only: bool) -> io::Result<TcpListener> {
    let fd = socket(addr)?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1)?;
    if addr.is_ipv6() {
        // Always set, because the administrator chooses the default (net.ipv6.bindv6only).
        set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &libc::c_int::from(v6_only))?;
    }
    bind(&fd, addr)?;
    let backlog = libc::c_int::try_from(backlog).unwrap_or(libc::c_int::MAX);
    // SAFETY: a system call without pointers.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) })?;
    Ok(TcpListener::from(fd))
}

/// Ports that the kernel may propose before one is free.
const PROPOSALS: usize = 64;

/// Takes a TCP port for a socket that will listen or connect, and returns its address. A
/// listener, or a connection, takes the port over with SO_REUSEADDR. Fails while another socket
/// listens there.
///
/// For port 0 the kernel chooses one. For the unspecified address it may choose a port on which a
/// connection lingers (TIME_WAIT), and then refuses the port to the listener. So a port that cannot be
/// taken over is given back, and the kernel is asked for another one.
pub fn claim_port(addr: &SocketAddr, v6_only: bool) -> io::Result<(OwnedFd, SocketAddr)> {
    let mut refused = Vec::new();
    loop {
        let bound = bound_for_reuse(addr, v6_only)?;
        let claimed = bound.local_addr()?;
        let chosen = addr.port() == 0 && refused.len() < PROPOSALS;
        if !chosen || bound_for_reuse(&claimed, v6_only).is_ok() {
            return Ok((bound.into(), claimed));
        }
        // It stays taken meanwhile, so that the kernel proposes another one.
        refused.push(bound);
    }
}

/// A socket that is bound with SO_REUSEADDR. The standard library's type tells its address; it does
/// not listen.
fn bound_for_reuse(addr: &SocketAddr, v6_only: bool) -> io::Result<TcpListener> {
    let fd = socket(addr)?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1)?;
    if addr.is_ipv6() {
        set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &libc::c_int::from(v6_only))?;
    }
    bind(&fd, addr)?;
    Ok(TcpListener::from(fd))
}

/// Takes a TCP port without listening on it: no other socket can take it, and callers are
/// refused. It has no SO_REUSEADDR, because then another socket could take the port.
pub fn hold_port(addr: &SocketAddr, v6_only: bool) -> io::Result<OwnedFd> {
    let fd = socket(addr)?;
    if addr.is_ipv6() {
        set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &libc::c_int::from(v6_only))?;
    }
    bind(&fd, addr)?;
    Ok(fd)
}

/// Sets the traffic class of what a socket sends (IP_TOS, IPV6_TCLASS). Connections of a listener
/// begin with that of the listener.
pub fn traffic_class(fd: &impl AsFd, v6: bool, class: u8) -> io::Result<()> {
    let value = libc::c_int::from(class);
    if !v6 {
        return set_option(fd, libc::IPPROTO_IP, libc::IP_TOS, &value);
    }
    set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &value)?;
    // For IPv4 packets of the same socket. A kernel without IPv4 sends none.
    let _ = set_option(fd, libc::IPPROTO_IP, libc::IP_TOS, &value);
    Ok(())
}

/// Starts to connect, from `source` if given, with this traffic class if given. The socket becomes writable when the attempt has
/// ended.
pub fn connect_nonblocking(
    addr: &SocketAddr,
    source: Option<&SocketAddr>,
    class: Option<u8>,
) -> io::Result<TcpStream> {
    let fd = socket(addr)?;
    if let Some(class) = class {
        traffic_class(&fd, addr.is_ipv6(), class)?;
    }
    if let Some(source) = source {
        set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1)?;
        bind(&fd, source)?;
    }
    super::congestion::unpaced_towards(&fd, addr);
    let (raw, len) = RawAddr::new(addr);
    // SAFETY: `raw` holds an address of `len` bytes.
    match check(unsafe { libc::connect(fd.as_raw_fd(), raw.as_ptr(), len) }) {
        // An interrupted connect of a non-blocking socket goes on by itself.
        Err(e) if !matches!(e.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => Err(e),
        _ => Ok(TcpStream::from(fd)),
    }
}

/// Returns a port of this local address that no TCP socket has. The port of `any` is ignored.
/// While the descriptor lives, only a socket bound to the port with SO_REUSEADDR gets it.
#[cfg(any(test, feature = "internals", feature = "verbs"))]
pub fn reserve_port(mut any: SocketAddr) -> io::Result<(OwnedFd, u16)> {
    any.set_port(0);
    let fd = socket(&any)?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1)?;
    bind(&fd, &any)?;
    // The standard library asks for the address. Nothing listens.
    let bound = TcpListener::from(fd);
    let port = bound.local_addr()?.port();
    Ok((bound.into(), port))
}

/// Sets TCP_NODELAY. EXS batches its writes, so the kernel rarely has a reason to wait for more.
pub fn no_delay(fd: &impl AsFd, on: bool) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &libc::c_int::from(on))
}

/// Makes the close of this socket a reset (SO_LINGER with time 0).
pub fn abort_on_close(fd: &impl AsFd) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger)
}

/// Sets TCP_USER_TIMEOUT: the connection breaks when sent bytes stay
/// unacknowledged for this long. Zero means the system's default.
#[cfg(any(test, feature = "internals"))]
pub fn user_timeout(fd: &impl AsFd, limit: std::time::Duration) -> io::Result<()> {
    let millis = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &millis)
}

/// Returns the maximum segment size of a connection (TCP_MAXSEG).
pub fn max_segment(fd: &impl AsFd) -> io::Result<usize> {
    let (mut value, mut len) = (0, socklen(size_of::<libc::c_int>()));
    let (fd, ptr) = (fd.as_fd().as_raw_fd(), std::ptr::from_mut::<libc::c_int>(&mut value).cast());
    // SAFETY: `value` has room for the `len` bytes that the kernel may write.
    check(unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, ptr, &mut len) })?;
    Ok(usize::try_from(value).unwrap_or(0))
}

/// Ends the sending side of a connection (FIN).
pub fn shutdown_write(fd: &impl AsFd) -> io::Result<()> {
    // SAFETY: a system call without pointers.
    check(unsafe { libc::shutdown(fd.as_fd().as_raw_fd(), libc::SHUT_WR) })?;
    Ok(())
}

/// Makes an empty message header. The structure has padding on some systems, so it has no literal
/// form.
fn message() -> libc::msghdr {
    // SAFETY: `msghdr` is plain integers and pointers: all zeros is an empty one.
    unsafe { std::mem::zeroed() }
}

/// The flags of a send.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpSendFlags {
    /// Further bytes follow at once (MSG_MORE).
    pub more: bool,
    /// The next bytes must not share a segment with the last of these (MSG_EOR).
    pub end_of_record: bool,
}

/// Sends the pieces, in order, as far as there is room. Returns the bytes taken.
pub fn send(fd: &impl AsFd, pieces: &[IoVec<'_>], how: TcpSendFlags) -> io::Result<usize> {
    let mut msg = message();
    // The kernel only reads these: sendmsg's type has no const.
    msg.msg_iov = pieces.as_ptr().cast_mut().cast();
    msg.msg_iovlen = pieces.len().min(1024) as _;
    let more = if how.more { libc::MSG_MORE } else { 0 };
    let record = if how.end_of_record { libc::MSG_EOR } else { 0 };
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | more | record;
    loop {
        note_calls(1);
        let fd = fd.as_fd().as_raw_fd();
        let n = if let [one] = pieces {
            let (ptr, len) = one.parts();
            // SAFETY: the maker of an `IoVec` answers for its bytes.
            unsafe { libc::send(fd, ptr, len, flags) }
        } else {
            // SAFETY: `IoVec` is a transparent `iovec` whose maker answers for its bytes for the
            // lifetime of `pieces`. There are `msg_iovlen` of them.
            unsafe { libc::sendmsg(fd, &raw const msg, flags) }
        };
        let n = check_len(n);
        match n {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            n => return n,
        }
    }
}

/// Receives the bytes that are there into the pieces, in order. Returns their number, 0 at the
/// end of the stream.
pub fn receive(fd: &impl AsFd, pieces: &mut [IoVecMut<'_>]) -> io::Result<usize> {
    let mut msg = message();
    msg.msg_iov = pieces.as_mut_ptr().cast();
    msg.msg_iovlen = pieces.len().min(1024) as _;
    loop {
        note_calls(1);
        let fd = fd.as_fd().as_raw_fd();
        // One piece is the usual case, and the shorter path through the kernel. The difference
        // shows where a thread busy-polls.
        let n = if let [one] = pieces {
            let (ptr, len) = one.parts();
            // SAFETY: the maker of an `IoVecMut` holds its bytes exclusively.
            unsafe { libc::recv(fd, ptr, len, libc::MSG_DONTWAIT) }
        } else {
            // SAFETY: `IoVecMut` is a transparent `iovec` whose maker holds its bytes exclusively
            // for the lifetime of `pieces`.
            unsafe { libc::recvmsg(fd, &raw mut msg, libc::MSG_DONTWAIT) }
        };
        let n = check_len(n);
        match n {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            n => return n,
        }
    }
}

/// Sends up to `len` bytes of a file at `offset` straight from the page cache. Returns their
/// number, 0 at the end of the file.
pub fn send_file(fd: &impl AsFd, file: &File, offset: u64, len: usize) -> io::Result<usize> {
    let mut offset = libc::off64_t::try_from(offset)
        .map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    // sendfile(2) has no MSG_NOSIGNAL.
    without_sigpipe(len, || {
        let (to, from) = (fd.as_fd().as_raw_fd(), file.as_raw_fd());
        // SAFETY: `offset` is ours to be written.
        check_len(unsafe { libc::sendfile64(to, from, &raw mut offset, len) })
    })
}

/// Reads bytes of a file at `offset`. Returns their number, 0 at the end of the file.
pub fn read_at(file: &File, offset: u64, mut piece: IoVecMut<'_>) -> io::Result<usize> {
    let offset = libc::off64_t::try_from(offset)
        .map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    loop {
        note_calls(1);
        let vec = std::ptr::from_mut(&mut piece).cast();
        // SAFETY: `IoVecMut` is a transparent `iovec` whose maker holds its bytes.
        let n = check_len(unsafe { libc::preadv64(file.as_raw_fd(), vec, 1, offset) });
        match n {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            n => return n,
        }
    }
}

/// Advises the kernel that bytes of a file will soon be read, so that it may fetch them.
pub fn will_need(file: &File, offset: u64, len: u64) {
    let (Ok(offset), Ok(len)) = (libc::off64_t::try_from(offset), libc::off64_t::try_from(len))
    else {
        return;
    };
    note_calls(1);
    // SAFETY: a system call without pointers. It is advice, so its failure changes nothing.
    unsafe { libc::posix_fadvise64(file.as_raw_fd(), offset, len, libc::POSIX_FADV_WILLNEED) };
}

/// Runs `call`, which writes up to `len` bytes, with SIGPIPE blocked in this thread, and consumes
/// the signal if it raised one. The signal of a write belongs to the thread, so no other thread's
/// signal is consumed.
fn without_sigpipe(len: usize, call: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
    // This call to sigpending, the call itself, and the mask twice.
    note_calls(4);
    let set = sigpipe_set();
    let mut pending = empty_set();
    // SAFETY: `pending` is ours to be written.
    unsafe { libc::sigpending(&raw mut pending) };
    // SAFETY: reads an initialised set.
    if unsafe { libc::sigismember(&raw const pending, libc::SIGPIPE) } == 1 {
        // SIGPIPE is blocked and pending already, so another one changes nothing.
        return call();
    }
    let mut before = empty_set();
    // SAFETY: both sets are initialised and ours.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
    let result = call();
    // A call that waits may have written bytes before the peer went. Then it returns their number
    // and also raises the signal.
    let raised = match &result {
        Ok(n) => *n < len,
        Err(e) => e.raw_os_error() == Some(libc::EPIPE),
    };
    if raised {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: waits no time, for a set of ours; no signal info is asked for.
        unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const now) };
    }
    // SAFETY: the mask that the thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result
}

fn empty_set() -> libc::sigset_t {
    // SAFETY: `sigset_t` is plain integers.
    let mut set = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is ours to be written.
    unsafe { libc::sigemptyset(&raw mut set) };
    set
}

fn sigpipe_set() -> libc::sigset_t {
    let mut set = empty_set();
    // SAFETY: `set` is initialised and ours, and the signal exists.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGPIPE) };
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read, Write};
    use std::time::Duration;

    /// The kernel proposes ports on which connections linger, for the unspecified address alone.
    #[test]
    fn a_claimed_port_can_be_taken_over_where_connections_linger() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        for _ in 0..2000 {
            // The side that ends first lingers: here the one with a port of the kernel's choice.
            drop(TcpStream::connect(addr).unwrap());
            assert_eq!(listener.accept().unwrap().0.read(&mut [0]).unwrap(), 0);
        }
        for any in ["0.0.0.0:0", "[::]:0", "127.0.0.1:0"] {
            let claims: Vec<_> =
                (0..100).map(|_| claim_port(&any.parse().unwrap(), false).unwrap()).collect();
            for (_, claimed) in &claims {
                listen(claimed, 1, false).unwrap_or_else(|e| panic!("{claimed}: {e}"));
            }
        }
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = listen(&"127.0.0.1:0".parse().unwrap(), 8, false).unwrap();
        let a = connect_nonblocking(&listener.local_addr().unwrap(), None, None).unwrap();
        listener.set_nonblocking(false).unwrap();
        let (b, _) = listener.accept().unwrap();
        a.set_nonblocking(false).unwrap();
        (a, b)
    }

    #[test]
    fn pieces_go_out_in_order_and_come_in_in_order() {
        let (a, b) = pair();
        no_delay(&a, true).unwrap();
        assert!(max_segment(&a).unwrap() > 500);
        let pieces = [IoVec::new(b"ab"), IoVec::EMPTY, IoVec::new(b"cdef")];
        assert_eq!(send(&a, &pieces, TcpSendFlags::default()).unwrap(), 6);
        let (mut x, mut y) = ([0; 3], [0; 5]);
        b.peek(&mut [0; 1]).unwrap();
        let n = receive(&b, &mut [IoVecMut::new(&mut x), IoVecMut::new(&mut y)]).unwrap();
        assert_eq!((n, &x, &y[..3]), (6, b"abc", &b"def"[..]));
        let again = receive(&b, &mut [IoVecMut::new(&mut x)]).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::WouldBlock);
        shutdown_write(&a).unwrap();
        b.peek(&mut [0; 1]).unwrap();
        assert_eq!(receive(&b, &mut [IoVecMut::new(&mut x)]).unwrap(), 0);
    }

    #[test]
    fn a_file_goes_out_and_its_end_is_zero() {
        let (a, mut b) = pair();
        let path = std::env::temp_dir().join(format!("exs-sendfile-{}", std::process::id()));
        let mut file = File::create_new(&path).unwrap();
        file.write_all(b"0123456789").unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(send_file(&a, &file, 4, 100).unwrap(), 6);
        assert_eq!(send_file(&a, &file, 10, 100).unwrap(), 0);
        let mut out = [0; 6];
        b.read_exact(&mut out).unwrap();
        assert_eq!(&out, b"456789");
        assert_eq!(send_file(&a, &file, u64::MAX, 1).unwrap_err().raw_os_error(), Some(75));
    }

    #[test]
    fn a_file_to_a_dead_peer_is_an_error_and_no_signal() {
        // The test process ignores SIGPIPE, as Rust programs do: give it back its
        // deadly default, so that a signal that gets through ends the test.
        // SAFETY: sets a disposition that is always valid.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let (a, b) = pair();
        abort_on_close(&b).unwrap();
        drop(b);
        let file = File::open("/proc/self/exe").unwrap();
        let errno = loop {
            match send_file(&a, &file, 0, 4096) {
                Ok(_) => {}
                Err(e) => break e.raw_os_error().unwrap(),
            }
        };
        assert!([libc::EPIPE, libc::ECONNRESET].contains(&errno), "errno {errno}");
        assert_eq!(send_file(&a, &file, 0, 1).unwrap_err().raw_os_error(), Some(libc::EPIPE));
        assert_eq!(
            send(&a, &[IoVec::new(b"x")], TcpSendFlags::default()).unwrap_err().kind(),
            ErrorKind::BrokenPipe
        );
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    }

    #[test]
    fn an_abort_resets_and_the_user_timeout_is_taken() {
        let (a, mut b) = pair();
        user_timeout(&a, Duration::from_secs(3)).unwrap();
        abort_on_close(&a).unwrap();
        drop(a);
        assert_eq!(b.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_source_address_is_bound() {
        let listener = listen(&"[::1]:0".parse().unwrap(), 8, true).unwrap();
        let source = "[::1]:0".parse().unwrap();
        let a = connect_nonblocking(&listener.local_addr().unwrap(), Some(&source), None).unwrap();
        listener.set_nonblocking(false).unwrap();
        assert_eq!(listener.accept().unwrap().1, a.local_addr().unwrap());
    }
}
