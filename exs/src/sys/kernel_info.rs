//! What the kernel says of a socket: its addresses, its state, and what TCP has counted.
//!
//! Only questions: nothing here changes a socket or waits.

use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::addr::socklen;
use super::sockaddr::{KernelAddr, SOCKADDR_MAX};

/// Room for an address, aligned as the kernel's structures are.
#[repr(C, align(8))]
struct NameRoom([u8; SOCKADDR_MAX]);

/// getsockname(2) and getpeername(2) have one shape.
type AskName = unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32;

/// The address of this end of a socket, which may have no name (`KernelAddr::is_named`). None: `fd` is
/// no socket.
pub fn local_name(fd: BorrowedFd<'_>) -> Option<KernelAddr> {
    name_by(fd, libc::getsockname)
}

/// The address of the peer, which may have no name. None: the socket is not connected, or `fd` is no
/// socket.
pub fn peer_name(fd: BorrowedFd<'_>) -> Option<KernelAddr> {
    name_by(fd, libc::getpeername)
}

fn name_by(fd: BorrowedFd<'_>, ask: AskName) -> Option<KernelAddr> {
    let (mut room, mut len) = (NameRoom([0; SOCKADDR_MAX]), socklen(SOCKADDR_MAX));
    // SAFETY: `room` has the `len` bytes that the kernel may write.
    let got = unsafe { ask(fd.as_raw_fd(), std::ptr::from_mut(&mut room).cast(), &raw mut len) };
    let bytes = room.0.get(..len as usize).filter(|_| got == 0)?;
    KernelAddr::from_sockaddr(bytes).ok()
}

/// The bytes that a receive would get without waiting; of a socket that keeps the bounds of messages,
/// those of the next one. None: the kernel does not say (a listener).
pub fn waiting_bytes(fd: BorrowedFd<'_>) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: FIONREAD writes an integer.
    let got = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    u64::try_from(bytes).ok().filter(|_| got == 0)
}

/// The state of a TCP connection, as the kernel numbers them (`enum` of linux/tcp.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// ESTABLISHED
    Established,
    /// SYN_SENT
    SynSent,
    /// SYN_RECV
    SynReceived,
    /// FIN_WAIT1 and FIN_WAIT2: this side has ended its direction.
    FinWait,
    /// CLOSE_WAIT: the peer has ended its direction.
    CloseWait,
    /// LAST_ACK, CLOSING and TIME_WAIT: both sides have ended theirs.
    Closing,
    /// LISTEN
    Listen,
    /// CLOSE: no connection, not yet or no longer.
    Closed,
}

impl TcpState {
    fn of_number(number: u8) -> TcpState {
        match number {
            1 => TcpState::Established,
            2 => TcpState::SynSent,
            3 | 12 => TcpState::SynReceived,
            4 | 5 => TcpState::FinWait,
            8 => TcpState::CloseWait,
            6 | 9 | 11 => TcpState::Closing,
            10 => TcpState::Listen,
            _ => TcpState::Closed,
        }
    }
}

/// What TCP says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpFigures {
    /// The state of the connection.
    pub state: TcpState,
    /// Bytes of data that have left since the connection began, each counted once. None: the kernel is
    /// older than Linux 4.19.
    pub sent: Option<u64>,
    /// Bytes of data that have come since the connection began, in order. None: the kernel is older than
    /// Linux 4.1.
    pub received: Option<u64>,
}

/// The first members of the kernel's `struct tcp_info`, which grows at its end. That of the crate libc
/// differs among C libraries.
#[repr(C)]
struct TcpInfo {
    state: u8,
    small: [u8; 7],
    words: [u32; 24],
    pacing: [u64; 2],
    bytes_acked: u64,
    bytes_received: u64,
    segments: [u32; 6],
    rates: [u64; 4],
    delivered: [u32; 2],
    bytes_sent: u64,
    bytes_retrans: u64,
}

/// What TCP says of a socket (TCP_INFO). None: it is no TCP socket.
pub fn tcp_figures(fd: BorrowedFd<'_>) -> Option<TcpFigures> {
    // SAFETY: plain integers, for which all zeros are valid.
    let mut info: TcpInfo = unsafe { std::mem::zeroed() };
    let mut len = socklen(size_of::<TcpInfo>());
    let (fd, room) = (fd.as_raw_fd(), std::ptr::from_mut(&mut info).cast());
    // SAFETY: `info` has room for the `len` bytes that the kernel may write.
    let got =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, room, &raw mut len) };
    let has = |end: usize| len as usize >= end;
    if got != 0 || !has(offset_of!(TcpInfo, small)) {
        return None;
    }
    let sent = info.bytes_sent.saturating_sub(info.bytes_retrans);
    Some(TcpFigures {
        state: TcpState::of_number(info.state),
        sent: has(size_of::<TcpInfo>()).then_some(sent),
        received: has(offset_of!(TcpInfo, segments)).then_some(info.bytes_received),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn tcp_says_its_state_and_what_it_has_moved() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        assert_eq!(tcp_figures(listener.as_fd()).unwrap().state, TcpState::Listen);
        assert_eq!(waiting_bytes(listener.as_fd()), None);
        let mut a = TcpStream::connect(at).unwrap();
        let mut b = listener.accept().unwrap().0;
        assert_eq!(local_name(b.as_fd()), Some(at.into()));
        assert_eq!(peer_name(b.as_fd()), Some(a.local_addr().unwrap().into()));
        a.write_all(&[7; 1000]).unwrap();
        b.read_exact(&mut [0; 300]).unwrap();
        assert_eq!(waiting_bytes(b.as_fd()), Some(700));
        let (ours, theirs) = (tcp_figures(a.as_fd()).unwrap(), tcp_figures(b.as_fd()).unwrap());
        assert_eq!((ours.state, ours.received), (TcpState::Established, Some(0)));
        assert_eq!((theirs.sent, theirs.received), (Some(0), Some(1000)));
        assert_eq!(ours.sent, Some(1000));
        a.shutdown(Shutdown::Write).unwrap();
        assert_eq!(b.read_to_end(&mut Vec::new()).unwrap(), 700);
        assert_eq!(tcp_figures(a.as_fd()).unwrap().state, TcpState::FinWait);
        assert_eq!(tcp_figures(b.as_fd()).unwrap().state, TcpState::CloseWait);
    }

    #[test]
    fn other_files_say_what_they_can() {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(tcp_figures(udp.as_fd()), None);
        assert_eq!(local_name(udp.as_fd()), Some(udp.local_addr().unwrap().into()));
        assert_eq!(peer_name(udp.as_fd()), None);
        let (unix, mut other) = UnixStream::pair().unwrap();
        other.write_all(b"three").unwrap();
        let names = [local_name(unix.as_fd()), peer_name(unix.as_fd())];
        assert_eq!(names.map(|name| name.map(|name| name.is_named())), [Some(false); 2]);
        assert_eq!((tcp_figures(unix.as_fd()), waiting_bytes(unix.as_fd())), (None, Some(5)));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!((local_name(file.as_fd()), tcp_figures(file.as_fd())), (None, None));
    }
}
