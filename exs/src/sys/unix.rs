//! UNIX sockets with abstract names, which keep message boundaries and carry descriptors.

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::addr::socklen;
use super::foreign::{ForeignFd, PeerListener, PeerSocket};
use super::note_calls;

/// Most descriptors in one message.
const MAX_FDS: usize = 4;

/// The process at the other end, as the kernel noted it when the connection was made. For the
/// side that connects, it is the process that began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCred {
    /// Process id in this process's namespace; 0 if it is not visible there.
    pub pid: i32,
    /// Effective user id.
    pub uid: u32,
}

fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

/// Returns this process's effective user id.
pub fn effective_uid() -> u32 {
    // SAFETY: a system call without arguments that cannot fail.
    unsafe { libc::geteuid() }
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a system call without pointers.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: a descriptor just made, with no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the address of an abstract name. It is in no file system and goes with its socket.
fn address(name: &[u8]) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let mut addr = libc::sockaddr_un {
        sun_family: libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or_default(),
        sun_path: [0; 108],
    };
    let room = addr.sun_path.get_mut(1..=name.len());
    let room = room.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    for (to, from) in room.iter_mut().zip(name) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    Ok((addr, socklen(offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len())))
}

/// Makes a non-blocking listener of this abstract name.
pub fn listen_abstract(name: &[u8], backlog: u32) -> io::Result<PeerListener> {
    let (fd, (addr, len)) = (socket()?, address(name)?);
    // SAFETY: an address of `len` bytes, alive for the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(&addr).cast(), len) })?;
    let backlog = libc::c_int::try_from(backlog).unwrap_or(libc::c_int::MAX);
    // SAFETY: a system call without pointers.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) })?;
    Ok(PeerListener::new(fd))
}

/// Connects to an abstract name at once. `WouldBlock`: the listener has no room, and the caller
/// must try again later.
pub fn connect_abstract(name: &[u8]) -> io::Result<PeerSocket> {
    let (fd, (addr, len)) = (socket()?, address(name)?);
    // SAFETY: an address of `len` bytes, alive for the call.
    check(unsafe { libc::connect(fd.as_raw_fd(), std::ptr::from_ref(&addr).cast(), len) })?;
    Ok(PeerSocket::new(fd))
}

/// Accepts a connection, non-blocking.
pub fn accept_unix(listener: BorrowedFd<'_>) -> io::Result<PeerSocket> {
    let (flags, null) = (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, std::ptr::null_mut());
    // SAFETY: null pointers tell the kernel not to write the address.
    let fd = check(unsafe { libc::accept4(listener.as_raw_fd(), null, null.cast(), flags) })?;
    // SAFETY: a descriptor just made, with no other owner.
    Ok(PeerSocket::new(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Returns the process at the other end.
pub fn peer_cred(fd: BorrowedFd<'_>) -> io::Result<PeerCred> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = socklen(size_of::<libc::ucred>());
    let (level, name, at) = (libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast());
    // SAFETY: the structure has room for the `len` bytes that the kernel may write.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, at, &raw mut len) })?;
    Ok(PeerCred { pid: cred.pid, uid: cred.uid })
}

/// Room for a control message with all descriptors that the kernel lets a peer send at once
/// (253), and one with credentials, aligned as it must be. The kernel would close descriptors
/// without room in this thread.
#[repr(C, align(8))]
struct Control([u8; 1088]);

impl Control {
    const EMPTY: Control = Control([0; 1088]);
}

/// An empty message header.
fn header() -> libc::msghdr {
    // SAFETY: plain integers and pointers, for which zeros are valid.
    unsafe { std::mem::zeroed() }
}

/// The length of a control buffer as `msghdr` has it: a usize on glibc, a u32 on musl.
#[cfg(target_env = "musl")]
fn control_len(len: usize) -> libc::socklen_t {
    socklen(len)
}

#[cfg(not(target_env = "musl"))]
fn control_len(len: usize) -> usize {
    len
}

/// Sends one message with descriptors. Never blocks and never raises a signal.
pub fn send_with_fds(fd: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if fds.len() > MAX_FDS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut control = Control::EMPTY;
    let iov_base = bytes.as_ptr().cast_mut().cast();
    let mut iov = libc::iovec { iov_base, iov_len: bytes.len() };
    let mut msg = header();
    (msg.msg_iov, msg.msg_iovlen) = (&raw mut iov, 1);
    if !fds.is_empty() {
        let payload = socklen(size_of_val(fds));
        // cmsghdr: length, level, type; then the descriptors (all are 4 bytes).
        // SAFETY: arithmetic only.
        let (len, space) = (unsafe { libc::CMSG_LEN(payload) }, fds.len() * 4 + 16);
        control.0[..8].copy_from_slice(&u64::from(len).to_ne_bytes());
        control.0[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
        control.0[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
        for (i, fd) in fds.iter().enumerate() {
            control.0[16 + 4 * i..][..4].copy_from_slice(&fd.as_raw_fd().to_ne_bytes());
        }
        msg.msg_control = control.0.as_mut_ptr().cast();
        msg.msg_controllen = control_len(space.next_multiple_of(8));
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    note_calls(1);
    // SAFETY: the header points to one element and a control buffer, alive for the call,
    // which the kernel only reads.
    let n = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const msg, flags) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A message that was received.
struct UnixMessage {
    len: usize,
    fds: Vec<ForeignFd>,
    /// Control messages of any kind came with it.
    controlled: bool,
    flags: libc::c_int,
}

/// Receives one message. Returns its length (0 is the end) and its descriptors; None if this
/// process has no room for them all. Fails with `InvalidData` if the message does not fit `buf`.
pub fn recv_with_fds(
    fd: BorrowedFd<'_>,
    buf: &mut [u8],
) -> io::Result<(usize, Option<Vec<ForeignFd>>)> {
    let UnixMessage { len, fds, flags, .. } = receive(fd, buf)?;
    if flags & libc::MSG_TRUNC != 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let all = flags & libc::MSG_CTRUNC == 0;
    Ok((len, all.then_some(fds)))
}

/// Takes a message out of a socket that was shut down, and drops it. Returns false if there is
/// none. Credentials come with each message and so tell an empty message from the end.
pub(super) fn take_out(fd: BorrowedFd<'_>) -> bool {
    let one: libc::c_int = 1;
    let (level, at, len) =
        (libc::SOL_SOCKET, std::ptr::from_ref(&one).cast(), socklen(size_of::<libc::c_int>()));
    // SAFETY: an integer of `len` bytes, alive for the call.
    unsafe { libc::setsockopt(fd.as_raw_fd(), level, libc::SO_PASSCRED, at, len) };
    receive(fd, &mut [0]).is_ok_and(|got| got.len > 0 || got.controlled)
}

fn receive(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<UnixMessage> {
    let mut control = Control::EMPTY;
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut msg = header();
    (msg.msg_iov, msg.msg_iovlen) = (&raw mut iov, 1);
    msg.msg_control = control.0.as_mut_ptr().cast();
    msg.msg_controllen = control_len(control.0.len());
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    note_calls(1);
    // SAFETY: the header points to one element and a control buffer, both exclusively ours and
    // alive for the call.
    let n = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut msg, flags) };
    let len = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    #[allow(clippy::unnecessary_cast, reason = "a u32 on musl")]
    let used = (msg.msg_controllen as usize).min(control.0.len());
    let fds = owned_fds(&control.0[..used]);
    Ok(UnixMessage { len, fds, controlled: used > 0, flags: msg.msg_flags })
}

/// Takes the descriptors out of a control buffer that the kernel has filled.
fn owned_fds(mut control: &[u8]) -> Vec<ForeignFd> {
    let word = |b: &[u8], at: usize| -> Option<i32> {
        Some(i32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?))
    };
    let mut fds = Vec::new();
    while let Some(len) = control.get(..8).and_then(|b| b.try_into().ok()) {
        let len = usize::try_from(u64::from_ne_bytes(len)).unwrap_or(0).min(control.len());
        if len < 16 {
            break;
        }
        let rights = (Some(libc::SOL_SOCKET), Some(libc::SCM_RIGHTS));
        if (word(control, 8), word(control, 12)) == rights {
            let raw = (16..len).step_by(4).filter_map(|at| word(&control[..len], at));
            // SAFETY: the kernel has just put each of them there for this process.
            fds.extend(raw.map(|fd| ForeignFd::new(unsafe { OwnedFd::from_raw_fd(fd) })));
        }
        control = control.get(len.next_multiple_of(8)..).unwrap_or(&[]);
    }
    fds
}

/// Makes a connected pair, for tests.
#[cfg(any(test, feature = "internals"))]
pub fn pair() -> io::Result<(PeerSocket, PeerSocket)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    // SAFETY: descriptors just made, with no other owner.
    let [a, b] = fds.map(|fd| PeerSocket::new(unsafe { OwnedFd::from_raw_fd(fd) }));
    Ok((a, b))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn messages_carry_descriptors() {
        let (a, b) = pair().unwrap();
        let (_, file) = super::super::memfd::share(4096).unwrap();
        send_with_fds(a.as_fd(), b"two", &[file.as_fd(), file.as_fd()]).unwrap();
        send_with_fds(a.as_fd(), b"none", &[]).unwrap();
        let mut buf = [0; 16];
        let (n, fds) = recv_with_fds(b.as_fd(), &mut buf).unwrap();
        assert_eq!((&buf[..n], fds.unwrap().len()), (&b"two"[..], 2));
        let (n, fds) = recv_with_fds(b.as_fd(), &mut buf).unwrap();
        assert_eq!((&buf[..n], fds.unwrap().len()), (&b"none"[..], 0));
        let none = recv_with_fds(b.as_fd(), &mut buf).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        send_with_fds(a.as_fd(), &[1; 17], &[]).unwrap();
        assert!(recv_with_fds(b.as_fd(), &mut buf).is_err(), "longer than its buffer");
        drop(a);
        assert_eq!(recv_with_fds(b.as_fd(), &mut buf).unwrap().0, 0, "the end");
    }

    #[test]
    fn an_abstract_name_has_one_owner_and_goes_with_it() {
        let name = format!("exs-test-{}", std::process::id());
        let first = listen_abstract(name.as_bytes(), 4).unwrap();
        let taken = listen_abstract(name.as_bytes(), 4).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        let client = connect_abstract(name.as_bytes()).unwrap();
        let server = accept_unix(first.as_fd()).unwrap();
        for end in [&client, &server] {
            let cred = peer_cred(end.as_fd()).unwrap();
            assert_eq!(cred.uid, effective_uid());
            assert_eq!(cred.pid, i32::try_from(std::process::id()).unwrap());
        }
        drop(first);
        let gone = connect_abstract(name.as_bytes()).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::ConnectionRefused);
        assert!(listen_abstract(&[b'x'; 200], 1).is_err());
    }
}
