//! The choice of a congestion control without pacing for connections within this host.
//!
//! Between two ends on one host there is no bottleneck to find, and no other traffic to be fair
//! to. BBR paces all the same, with a timer for every 64 KiB, which with many connections takes a
//! third of the sender's processor time. A socket that has begun with BBR goes on to set timers,
//! whatever replaces it. So such a connection begins with Reno, which does not pace, which every
//! Linux has, and which every user may choose. The listener chooses it for the connections that
//! it accepts, so that those within the host need no call; those from other hosts get the system's
//! choice back.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use super::addr::socklen;
use super::tcp::{check, set_option};

/// The kernel's name of a congestion control: TCP_CA_NAME_MAX bytes, padded with zeros.
type ControlName = [u8; 16];

/// Bytes that may wait to be read.
const ROOM: libc::c_int = 2 << 20;

const UNPACED: &ControlName = b"reno\0\0\0\0\0\0\0\0\0\0\0\0";

/// The congestion control that a listener had before it was changed to one without pacing. None
/// if it was that one, or the kernel did not say. Connections from other hosts get it back.
#[derive(Clone, Copy, Debug)]
pub struct Paced(Option<ControlName>);

fn name_of(fd: &impl AsFd) -> io::Result<ControlName> {
    let (mut name, mut len): (ControlName, _) = ([0; 16], socklen(16));
    let (fd, to) = (fd.as_fd().as_raw_fd(), name.as_mut_ptr().cast());
    // SAFETY: `name` has room for the `len` bytes that the kernel may write.
    check(unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, to, &raw mut len)
    })?;
    Ok(name)
}

/// Sets a congestion control. An error is ignored: the connection is only slower.
fn take(fd: &impl AsFd, name: &ControlName) {
    let _ = set_option(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name);
}

/// Makes connections that a listener accepts begin without pacing.
pub fn unpaced_listener(fd: &impl AsFd) -> Paced {
    let systems = name_of(fd).ok().filter(|name| name != UNPACED);
    if systems.is_some() {
        take(fd, UNPACED);
    }
    Paced(systems)
}

/// Gives a connection that such a listener has accepted from another host the system's choice.
pub fn paced_between_hosts(fd: &impl AsFd, local: SocketAddr, peer: SocketAddr, paced: Paced) {
    if local.ip() != peer.ip()
        && let Some(name) = paced.0
    {
        take(fd, &name);
    }
}

/// Gives a connection within this host a receive buffer in which senders find room. The size is a
/// limit; memory is taken as data come. The kernel lets the buffer grow with the bytes that are
/// read in a round trip. Within a host that takes microseconds, so the buffer would stay small,
/// and the sender would wait for the window.
pub fn roomy_within_host(fd: &impl AsFd, local: SocketAddr, peer: SocketAddr) {
    let low_water = |bytes: libc::c_int| {
        let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &bytes);
    };
    if local.ip() == peer.ip() {
        // The buffer grows to hold as much as a reader would wait for (tcp_set_rcvlowat, up to
        // half of net.ipv4.tcp_rmem), and stays so. SO_RCVBUF would be bounded by
        // net.core.rmem_max, which is small, and would end all growth.
        low_water(ROOM);
        low_water(1);
    }
}

/// Chooses the congestion control of a socket that will connect to `addr`.
pub(super) fn unpaced_towards(fd: &impl AsFd, addr: &SocketAddr) {
    if leads_here(addr) {
        take(fd, UNPACED);
    }
}

/// Returns true if an address is one of this host's. Then traffic to it comes from it, too.
/// Connecting a UDP socket only looks up the route.
fn leads_here(addr: &SocketAddr) -> bool {
    if addr.ip().to_canonical().is_loopback() {
        return true;
    }
    let any: SocketAddr = match addr {
        SocketAddr::V4(_) => ([0; 4], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let source = || {
        let socket = UdpSocket::bind(any)?;
        socket.connect(addr)?;
        socket.local_addr()
    };
    addr.ip().is_unspecified() || source().is_ok_and(|from| from.ip() == addr.ip())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::{connect_nonblocking, socket_option};
    use super::*;

    #[test]
    fn connections_within_a_host_are_not_paced() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let systems = name_of(&listener).unwrap();
        let paced = unpaced_listener(&listener);
        assert_eq!(paced.0, (&systems != UNPACED).then_some(systems));
        let a = connect_nonblocking(&listener.local_addr().unwrap(), None, None).unwrap();
        assert_eq!(&name_of(&a).unwrap(), UNPACED);
        let (b, peer) = listener.accept().unwrap();
        let local = b.local_addr().unwrap();
        paced_between_hosts(&b, local, peer, paced);
        assert_eq!(&name_of(&b).unwrap(), UNPACED);
    }

    #[test]
    fn other_connections_keep_the_choice_of_the_system() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let systems = name_of(&listener).unwrap();
        // As if it paced, whatever it is.
        take(&listener, UNPACED);
        let _a = connect_nonblocking(&listener.local_addr().unwrap(), None, None).unwrap();
        let (b, _) = listener.accept().unwrap();
        assert_eq!(&name_of(&b).unwrap(), UNPACED, "the listener's");
        let elsewhere = "192.0.2.1:9".parse().unwrap();
        paced_between_hosts(&b, b.local_addr().unwrap(), elsewhere, Paced(Some(systems)));
        assert_eq!(name_of(&b).unwrap(), systems);
    }

    #[test]
    fn connections_within_a_host_have_room() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = connect_nonblocking(&listener.local_addr().unwrap(), None, None).unwrap();
        let (b, peer) = listener.accept().unwrap();
        let room = || socket_option(b.as_fd(), libc::SO_RCVBUF).unwrap();
        let before = room();
        roomy_within_host(&b, b.local_addr().unwrap(), "192.0.2.1:9".parse().unwrap());
        assert_eq!(room(), before, "another host's is the system's choice");
        roomy_within_host(&b, b.local_addr().unwrap(), peer);
        // The administrator can allow less (net.ipv4.tcp_rmem).
        assert!(room() > before, "{before} to {}", room());
        drop(a);
    }

    #[test]
    fn addresses_of_this_host_are_known() {
        for (addr, here) in [("127.0.0.1:1", true), ("0.0.0.0:1", true), ("192.0.2.1:1", false)] {
            assert_eq!(leads_here(&addr.parse().unwrap()), here, "{addr}");
        }
    }
}
