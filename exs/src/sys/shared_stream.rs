//! A TCP stream that other threads use beside the thread that has its driver.
//!
//! A driver is behind a lock. A thread that writes to a socket, or waits for it, while it has the
//! lock keeps every other thread of the shard waiting. So the driver lends a thread the stream for
//! one call, which the thread makes without the lock.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use super::addr::socklen;
use super::{IoVecMut, note_calls, receive};

/// The party that may write to the stream.
///
/// ```text
/// Driver   -lend-----------> Borrower
/// Borrower -end_loan-------> Driver     the driver did not ask meanwhile
/// Borrower -may_write------> Wanted     the driver has something to write
/// Wanted   -take_back------> Driver     the borrower has come back to the driver
/// Borrower -take_back------> Driver
/// ```
const DRIVER: u8 = 0;
/// A thread writes without the driver.
const BORROWER: u8 = 1;
/// The same, and the driver has something to write behind it.
const WANTED: u8 = 2;

/// The stream of a connection. The driver has one reference, and a borrower another.
#[derive(Debug)]
pub struct SharedStream {
    stream: TcpStream,
    writer: AtomicU8,
}

impl SharedStream {
    /// Makes a stream that only the driver uses.
    pub fn new(stream: TcpStream) -> SharedStream {
        SharedStream { stream, writer: AtomicU8::new(DRIVER) }
    }

    /// The error that the kernel keeps for the socket, if there is one.
    ///
    /// # Errors
    /// The error of the call.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.stream.take_error()
    }

    /// Our address, and the peer's.
    ///
    /// # Errors
    /// The kernel's: ENOTCONN while a connect is under way.
    pub fn addrs(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        let peer = self.stream.peer_addr()?;
        Ok((self.stream.local_addr()?, peer))
    }

    /// How a connect that does not block has ended: with these addresses, ours and the peer's, or with
    /// this errno. None: it is under way.
    pub fn connect_outcome(&self) -> Option<Result<(SocketAddr, SocketAddr), i32>> {
        let errno = |e: io::Error| e.raw_os_error().unwrap_or(libc::EIO);
        match self.take_error() {
            Ok(Some(e)) | Err(e) => return Some(Err(errno(e))),
            Ok(None) => {}
        }
        match self.addrs() {
            Ok(addrs) => Some(Ok(addrs)),
            Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => None,
            Err(e) => Some(Err(errno(e))),
        }
    }

    /// Makes reads that do not ask otherwise block, for `limit` at most.
    ///
    /// # Errors
    /// The error of the call.
    pub fn make_blocking(&self, limit: Duration) -> io::Result<()> {
        note_calls(2);
        self.stream.set_read_timeout(Some(limit))?;
        self.stream.set_nonblocking(false)
    }

    /// Makes no call block.
    ///
    /// # Errors
    /// The error of the call.
    pub fn make_nonblocking(&self) -> io::Result<()> {
        note_calls(1);
        self.stream.set_nonblocking(true)
    }

    /// Waits for bytes, and reads them. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock`: no bytes came in time. `Interrupted`: a signal handler ran.
    pub fn read_blocking(&self, room: &mut [u8]) -> io::Result<usize> {
        note_calls(1);
        (&self.stream).read(room)
    }

    /// Reads the bytes that are there. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock`: there are none.
    pub fn read_now(&self, room: &mut [u8]) -> io::Result<usize> {
        receive(self, &mut [IoVecMut::new(room)])
    }

    /// Ends a read that waits, and all later ones.
    pub fn end_reads(&self) {
        note_calls(1);
        // Fails if the connection is gone: then no read waits.
        let _ = self.stream.shutdown(Shutdown::Read);
    }

    /// Ends the connection, though another owner may keep the stream open. With `orderly`, bytes that
    /// were sent still arrive. Otherwise the peer gets a reset.
    pub fn end(&self, orderly: bool) {
        note_calls(1);
        if orderly {
            // Fails if the connection is gone.
            let _ = self.stream.shutdown(Shutdown::Both);
            return;
        }
        // An address of all zeros has the family AF_UNSPEC. To connect there resets the connection.
        let unspec = libc::sockaddr { sa_family: 0, sa_data: [0; 14] };
        let len = socklen(size_of::<libc::sockaddr>());
        // SAFETY: the kernel reads the address, whose size is given.
        unsafe { libc::connect(self.as_raw_fd(), &raw const unspec, len) };
    }

    /// The driver lends the stream to a thread, for one write.
    pub fn lend(&self) {
        let before = self.writer.swap(BORROWER, Ordering::AcqRel);
        debug_assert_eq!(before, DRIVER, "the stream is lent already");
    }

    /// True if a borrower has the stream.
    #[inline]
    pub fn is_lent(&self) -> bool {
        self.writer.load(Ordering::Acquire) != DRIVER
    }

    /// True if the driver may write. False: a borrower writes, and comes back to the driver after
    /// that, since the driver now has something to write.
    #[inline]
    pub fn may_write(&self) -> bool {
        !self.is_lent() || self.want()
    }

    #[cold]
    fn want(&self) -> bool {
        let wanted =
            self.writer.compare_exchange(BORROWER, WANTED, Ordering::AcqRel, Ordering::Acquire);
        // The borrower may have ended its loan between the two looks.
        wanted == Err(DRIVER)
    }

    /// The borrower has written everything. False: the driver wants to write, and the borrower must
    /// come back to it.
    #[must_use]
    pub fn end_loan(&self) -> bool {
        self.writer.compare_exchange(BORROWER, DRIVER, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The borrower has come back to the driver.
    pub fn take_back(&self) {
        self.writer.store(DRIVER, Ordering::Release);
    }
}

impl AsFd for SharedStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl AsRawFd for SharedStream {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn shared() -> SharedStream {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        SharedStream::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap())
    }

    #[test]
    fn a_connection_ends_while_another_owner_keeps_it_open() {
        for orderly in [true, false] {
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let ended = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let ended = SharedStream::new(ended);
            let (mut peer, _) = listener.accept().unwrap();
            ended.end(orderly);
            match peer.read(&mut [0; 1]) {
                Ok(n) => assert!(orderly && n == 0, "{n} bytes"),
                Err(e) => assert!(!orderly && e.kind() == io::ErrorKind::ConnectionReset, "{e}"),
            }
            assert!(!ended.read_blocking(&mut [0; 1]).is_ok_and(|n| n > 0), "nothing was sent");
        }
    }

    #[test]
    fn a_borrower_comes_back_only_if_the_driver_wants_to_write() {
        let shared = shared();
        assert!(shared.may_write());
        shared.lend();
        assert!(shared.end_loan(), "the driver did not ask");
        assert!(shared.may_write());
        shared.lend();
        assert!(!shared.may_write() && !shared.may_write(), "a borrower writes");
        assert!(!shared.end_loan(), "the driver has asked");
        assert!(!shared.may_write(), "the borrower has not come back yet");
        shared.take_back();
        assert!(shared.may_write());
        shared.lend();
        shared.take_back();
        assert!(shared.may_write(), "a short write brings the borrower back, too");
    }
}
