//! What kernel sockets with operations in flight are doing, for readers outside of the process.
//!
//! The data path counts nothing for this. The kernel is asked when a reader asks: it knows the
//! addresses and the state of each socket, and of TCP how many bytes have moved.

use std::os::fd::{AsFd, RawFd};

use super::Plain;
use super::sock::{NO_NUMBER, Sock};
use super::types::Kind;
use crate::sys::{self, KernelAddr, TcpFigures, TcpState};

/// What a kernel socket is doing.
#[derive(Clone, Debug)]
pub struct KernelFigures {
    /// The inode of the file. The kernel gives no two sockets the same number at a time.
    pub inode: u64,
    /// The number of the descriptor. None: the file is a socket, and its inode is enough.
    pub number: Option<RawFd>,
    /// What the file carries.
    pub kind: Kind,
    /// A word for its state.
    pub state: &'static str,
    /// The address of this end; None: it has no name.
    pub local: Option<KernelAddr>,
    /// The address of the peer; None: it is not known, or has no name.
    pub peer: Option<KernelAddr>,
    /// Sends, files and shutdowns that have not ended.
    pub sends: usize,
    /// Receives that have not ended.
    pub recvs: usize,
    /// Accepts that wait for a connection.
    pub accepts: usize,
    /// Polls that have found nothing yet.
    pub polls: usize,
    /// Sends wait until the peer takes data. False if they wait for a connect, or for bytes of a file.
    pub is_full: bool,
    /// Bytes that a receive would get without waiting; None: the kernel does not say.
    pub available: Option<u64>,
    /// Bytes that have left since the connection began; None: the kernel does not count them.
    pub sent: Option<u64>,
    /// Bytes that have come since the connection began; None: the kernel does not count them.
    pub received: Option<u64>,
}

/// A word for the state of a socket, in the vocabulary of EXS sockets.
fn state_of(
    is_connecting: bool,
    tcp: Option<&TcpFigures>,
    listens: bool,
    is_met: bool,
) -> &'static str {
    match tcp.map(|t| t.state) {
        _ if is_connecting => "connecting",
        Some(TcpState::Listen) => "listening",
        Some(TcpState::Established) => "open",
        Some(TcpState::SynSent) => "connecting",
        Some(TcpState::SynReceived) => "starting",
        Some(TcpState::FinWait | TcpState::CloseWait) => "half-closed",
        Some(TcpState::Closing) => "closing",
        // A socket that was never connected has this state, too.
        Some(TcpState::Closed) => "closed",
        None if listens => "listening",
        None if is_met => "open",
        None => "new",
    }
}

impl Sock {
    fn figures(&self) -> KernelFigures {
        let (_, inode, number) = self.name;
        let fd = self.fd.as_fd();
        let (tcp, peer) = (sys::tcp_figures(fd), sys::peer_name(fd));
        // TCP has told its state.
        let listens =
            tcp.is_none() && sys::socket_option(fd, libc::SO_ACCEPTCONN).is_ok_and(|on| on != 0);
        let kind = match self.kind {
            Kind::Unseen => Kind::of(fd).unwrap_or(Kind::Other),
            known => known,
        };
        let connecting = self.connecting.is_some();
        let waits = !self.tx.is_empty() && !connecting;
        KernelFigures {
            inode,
            number: (number != NO_NUMBER).then_some(number),
            kind,
            state: state_of(connecting, tcp.as_ref(), listens, peer.is_some()),
            local: sys::local_name(fd).filter(KernelAddr::is_named),
            peer: peer.filter(KernelAddr::is_named),
            sends: self.tx.len(),
            recvs: self.rx.len(),
            accepts: self.accepting.queue.len(),
            polls: self.polls.len(),
            is_full: self.must_retry
                || waits && sys::poll_now(fd, libc::POLLOUT).is_ok_and(|n| n == 0),
            available: sys::waiting_bytes(fd),
            sent: tcp.and_then(|t| t.sent),
            received: tcp.and_then(|t| t.received),
        }
    }
}

impl Plain {
    /// What the sockets in the next `most` slots from `from` on are doing, and the slot after them.
    /// None in place of the slot: there are no more.
    pub fn inspect(&self, from: usize, most: usize) -> (Vec<KernelFigures>, Option<usize>) {
        let (slots, end) = (self.socks.capacity(), from.saturating_add(most));
        let found = (from..end.min(slots)).filter_map(|slot| self.socks.get(slot));
        (found.map(Sock::figures).collect(), (end < slots).then_some(end))
    }
}
