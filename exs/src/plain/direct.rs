//! Small sends on TCP sockets by their number alone: one system call.
//!
//! A call that moves data must know which file a number stands for. A number that was a TCP socket
//! a moment ago may now be an EXS socket, whose descriptor is an end of a socketpair(2): a byte sent
//! there would be lost. fstat(2) tells, but costs as much as a quarter of a small send. So the send
//! itself asks, by an address and control data that make no sense ([`sys::send_tcp_only`]): TCP does not
//! look at them, and every other socket refuses the call before it takes a byte. A refused send goes
//! the usual way, which looks at the number by fstat(2).
//!
//! Such a send does not know the inode, and so not the socket's queue of sends. It is tried only while
//! no socket has sends that wait for room. A kept send (`coalesce`) must know its socket, but saves its
//! own call. The first send of a batch asks by fstat(2). For each send behind it, the kernel says
//! whether its number is a duplicate of the batch's descriptor ([`sys::is_duplicate`]), at half of the
//! cost.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::call::{What, Xfer};
use super::types::{CALL_MAX, End, Failure, Kind, Pieces, Posted, Target};
use super::{Plain, TRIES, name};
use crate::mem::Segment;
use crate::sys;
use crate::time::Time;

/// The result of a send by number.
#[derive(Debug)]
pub enum Direct<'a> {
    /// Nothing was sent: the caller must look which file the number stands for.
    No,
    /// The kernel has taken the send, or refused it for good.
    Sent(Sent),
    /// The caller must post the send as any other, on this socket.
    Seen(Target<'a>),
    /// The caller must post the send by [`Plain::post_kept`].
    Kept {
        /// The send follows the last one without a pause.
        burst: bool,
    },
}

/// What the kernel said to a send by number.
#[derive(Debug)]
pub struct Sent {
    /// Bytes that the kernel took.
    bytes: usize,
    why: Option<Failure>,
}

impl Plain {
    /// Sends a piece, which is not empty, if the number is a TCP socket.
    pub fn send_direct<'a>(
        &mut self,
        now: Time,
        fd: BorrowedFd<'a>,
        piece: &Segment,
    ) -> Direct<'a> {
        if self.socks.has_full() {
            return Direct::No;
        }
        let burst = self.coalescer.burst.grow(fd.as_raw_fd(), now);
        let number = fd.as_raw_fd();
        let may_wait = burst && self.coalescer.may_keep();
        if self.coalescer.keeps_for_number(number) || may_wait && self.resume_batch(now, number) {
            return Direct::Kept { burst };
        }
        if self.coalescer.keeps() || may_wait {
            return self.tcp(fd).map_or(Direct::No, Direct::Seen);
        }
        if burst {
            self.coalescer.note_would_keep();
        }
        match sys::send_piece_tcp_only(fd, &piece.io_vec(0, piece.len().min(CALL_MAX))) {
            Ok(bytes) => Direct::Sent(Sent { bytes, why: None }),
            // The connection is over, and the next call would not say why. EPIPE is not here: the next
            // call repeats it, and a socket that is about to be connected says it too.
            Err(e) => match e.raw_os_error() {
                Some(
                    libc::ECONNRESET | libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH,
                ) => Direct::Sent(Sent { bytes: 0, why: Some(Failure::os("send", &e)) }),
                _ => Direct::No,
            },
        }
    }

    /// The TCP socket that a number stands for; None if it is none. While the table holds a socket, no other
    /// socket has its inode.
    fn tcp<'a>(&self, fd: BorrowedFd<'a>) -> Option<Target<'a>> {
        let identity = sys::identify(fd.as_raw_fd()).ok().filter(|i| i.socket)?;
        let target = Target { fd, identity, kind: Kind::Stream };
        let is_tcp = match self.held_kind(&target) {
            Some(kind) => kind == Kind::Stream,
            None => sys::socket_option(fd, libc::SO_PROTOCOL).is_ok_and(|p| p == libc::IPPROTO_TCP),
        };
        is_tcp.then_some(target)
    }

    /// Ends the operation of a send by number. Bytes that the kernel did not take follow the usual way.
    pub fn post_sent(
        &mut self,
        now: Time,
        posted: Posted,
        fd: BorrowedFd<'_>,
        pieces: Pieces,
        sent: Sent,
    ) {
        let whole = sent.bytes >= pieces.bytes();
        let result = sent.why.map_or(Ok(()), Err);
        if whole || result.is_err() {
            return self.end(posted, End::new(sent.bytes as u64, result));
        }
        match sys::identify(fd.as_raw_fd()) {
            Ok(identity) if identity.socket => {
                let what = What::Send { pieces, to: None, flags: 0 };
                let target = Target { fd, identity, kind: Kind::Stream };
                self.post_xfer(now, &target, Xfer { posted, what, done: sent.bytes });
            }
            // Another thread has closed the number since.
            _ => self.end(posted, End::new(sent.bytes as u64, Err(Failure::Cancelled))),
        }
    }

    /// Posts a send on a socket whose type is not known. One call sends a small piece on a stream and
    /// on a message socket alike, so most sends need not ask for the type.
    pub(super) fn post_unseen(&mut self, now: Time, target: &Target<'_>, mut xfer: Xfer) {
        let idle = self.socks.of(&name(target)).is_none();
        if idle && xfer.gatherable().is_some_and(|p| p.count() == 1 && p.bytes() <= CALL_MAX) {
            for _ in 0..TRIES {
                match xfer.step(target.fd, Kind::Stream, &mut self.scratch) {
                    super::call::Step::Ended(end) => return self.end(xfer.posted, end),
                    super::call::Step::Moved => {}
                    super::call::Step::Blocked => break,
                }
            }
        }
        let target = self.seen(target);
        self.post_xfer(now, &target, xfer);
    }

    /// The target with its kind, from the table or from the kernel.
    pub(super) fn seen<'a>(&self, target: &Target<'a>) -> Target<'a> {
        if target.kind != Kind::Unseen {
            return *target;
        }
        // If it is no socket any more, the call that follows fails.
        let ask = || Kind::of(target.fd).unwrap_or(Kind::Datagram);
        Target { kind: self.held_kind(target).unwrap_or_else(ask), ..*target }
    }

    /// The kind of a socket that the table or the batch holds.
    fn held_kind(&self, target: &Target<'_>) -> Option<Kind> {
        let name = name(target);
        if self.coalescer.keeps_for(&name) {
            return Some(Kind::Stream);
        }
        self.socks.of(&name).map(|s| s.kind)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;
    use crate::mem::Buffer;

    fn send(fd: BorrowedFd<'_>, text: &'static [u8]) -> std::io::Result<usize> {
        let buffer = Buffer::from(text.to_vec());
        sys::send_piece_tcp_only(fd, &buffer.io_vec())
    }

    #[test]
    fn tcp_takes_it_as_send_does() {
        for addr in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(addr) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut peer, _) = listener.accept().unwrap();
            assert_eq!(send(client.as_fd(), b"hello").unwrap(), 5);
            let mut text = [0; 5];
            peer.read_exact(&mut text).unwrap();
            assert_eq!(&text, b"hello");
            // The flags of the socket do not change, and a send on a full one does not wait.
            while send(client.as_fd(), &[0; 65536]).is_ok() {}
            let full = send(client.as_fd(), &[0; 65536]).unwrap_err();
            assert_eq!(full.kind(), ErrorKind::WouldBlock);
        }
    }

    /// Above all the ends of a socketpair(2), which are the descriptors of EXS sockets.
    #[test]
    fn all_others_refuse_it_and_take_nothing() {
        let (a, mut b) = UnixStream::pair().unwrap();
        b.set_nonblocking(true).unwrap();
        assert_eq!(send(a.as_fd(), b"x").unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert_eq!(b.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        let (a, b) = crate::sys::pair().unwrap();
        assert_eq!(send(a.as_fd(), b"x").unwrap_err().raw_os_error(), Some(libc::EBADF));
        let nothing = crate::sys::recv_with_fds(b.as_fd(), &mut [0]).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock, "SOCK_SEQPACKET");
        let (a, b) = UnixDatagram::pair().unwrap();
        b.set_nonblocking(true).unwrap();
        assert!(send(a.as_fd(), b"x").is_err());
        assert_eq!(b.recv(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        for addr in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(b) = UdpSocket::bind(addr) else { continue };
            let a = UdpSocket::bind(addr).unwrap();
            a.connect(b.local_addr().unwrap()).unwrap();
            b.set_nonblocking(true).unwrap();
            assert!(send(a.as_fd(), b"x").is_err());
            assert_eq!(b.recv(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        let (_, write) = std::io::pipe().unwrap();
        let file = send(write.as_fd(), b"x").unwrap_err();
        assert_eq!(file.raw_os_error(), Some(libc::ENOTSOCK));
    }
}
