//! Kernel sockets: the asynchronous calls on what socket(2) made.

mod calls;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::raw::kernel::Descriptor;
use crate::plain::Kind;
use crate::progress::{Context, Error};
use crate::sys::Identity;

/// EXS's asynchronous calls on an ordinary kernel socket (TCP, UDP, UNIX-domain), whose
/// peer knows nothing of EXS. In Rust this is an EXS extension; in C, the ES-API's own use.
///
/// `S` is whatever owns the socket: a [`TcpStream`](std::net::TcpStream), an
/// [`OwnedFd`](std::os::fd::OwnedFd), an `Arc` of one, a borrowed descriptor; its
/// `as_fd` must always give the same one.
/// The socket stays as its owner left it: no flag and no option is changed, whether
/// it blocks or not, and the owner's own calls ([`KernelSocket::get_ref`]) go on working
/// as before and beside. Buffers need no registration, and may be of a
/// [`MemoryRegion`](crate::MemoryRegion) all the same. EXS and kernel sockets may share a
/// queue.
///
/// # Order
/// Sends, files and shutdowns end in the order of posting, so do receives, and so do
/// accepts. Operations posted while a connect is under way wait for it. The owner's own
/// calls take part in no order: a recv(2) beside a posted receive takes what comes first.
///
/// A send that finds room leaves at once, in the call that posts it. From the fifth send of a burst
/// on, sends on a stream wait for the next ones, to leave in one system call. They leave when
/// they are 256 KiB; when the program waits for an event on any queue, or takes one 50 us after
/// the first of them was posted; when the program takes the socket for calls of its own; and
/// after a few milliseconds at most.
///
/// # Ends
/// The kernel's errors of a socket (ECONNRESET, EPIPE, ...) come as the error of the
/// event; [`Event::bytes`](crate::Event::bytes) has what was moved before. SIGPIPE is never raised.
///
/// While operations are in flight EXS holds a descriptor of its own for the socket. So
/// after the owner's close(2) the peer sees the end when the last of them has ended. If
/// events of a burst of sends are not dequeued by then, it sees the end up to a tenth of a second
/// later. Operations posted with a descriptor that the owner has closed are cancelled (ECANCELED): at
/// once when a `KernelSocket` is dropped with its socket, else within a tenth of a second.
/// Sends that wait are lost then, as nothing would tell whether they arrive: dequeue
/// their events before you close. A shutdown(2) by the owner ends operations that wait with EPIPE,
/// or as the end of the stream.
///
/// # Connect and accept
/// These have no form in the kernel that does not wait on a socket that blocks. Where the
/// kernel has io_uring they wait there; where not (or with `EXS_KERNEL_IO=readiness`) in
/// threads, 64 at most, and with one flaw: if another caller of accept(2) takes a
/// connection between the moment EXS sees it and its own accept, a cancelled accept may
/// take the next one and close it.
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::{TcpListener, TcpStream};
/// use exs::{EventQueue, KernelSocket, RecvFlags, Token};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let client = KernelSocket::new(TcpStream::connect(listener.local_addr()?)?)?;
/// let (mut peer, _) = listener.accept()?; // which knows nothing of EXS
///
/// let queue = EventQueue::new(16)?;
/// client.recv(&queue, Token(1), vec![0; 5], RecvFlags::WAITALL)?;
/// client.send(&queue, Token(2), *b"hello")?;
/// let mut text = [0; 5];
/// peer.read_exact(&mut text)?;
/// peer.write_all(&text)?;
/// for event in queue.dequeue_at_least(2, 2, None)? {
///     assert_eq!(event.bytes(), 5);
/// }
/// // The socket is as it was: its owner may use it as ever.
/// client.get_ref().write_all(b"bye")?;
/// # let mut text = [0; 3];
/// # peer.read_exact(&mut text)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct KernelSocket<S> {
    socket: S,
    limits: (Option<Duration>, Option<Duration>),
    /// The program's number for the socket; 0 is none.
    user_data: AtomicU64,
    /// After `socket`: it is dropped when that is.
    known: Known,
}

/// Identity and kind of the socket. When the socket goes, so may the descriptor.
#[derive(Debug)]
struct Known {
    identity: Identity,
    kind: Kind,
}

impl Drop for Known {
    fn drop(&mut self) {
        if let Ok(context) = Context::global() {
            context.release_kernel(self.identity.dev, self.identity.ino);
        }
    }
}

impl<S: AsFd> KernelSocket<S> {
    /// Takes a socket, of any family and type, connected or not. Other descriptors can only be
    /// polled.
    ///
    /// # Errors
    /// The kernel's error if EXS cannot start, or if it refuses to describe the descriptor.
    pub fn new(socket: S) -> Result<KernelSocket<S>, Error> {
        Context::global()?;
        let (identity, kind) = Descriptor::new(socket.as_fd())?.parts();
        let known = Known { identity, kind };
        Ok(KernelSocket { socket, limits: (None, None), user_data: AtomicU64::new(0), known })
    }

    /// The owner's socket. Sends that wait for the ones behind them leave before it is
    /// handed out, as far as there is room.
    pub fn get_ref(&self) -> &S {
        Context::send_kept();
        &self.socket
    }

    /// Gives the socket back. Operations in flight go on.
    pub fn into_inner(self) -> S {
        Context::send_kept();
        self.socket
    }

    /// Time that operations posted from now on may take (ETIMEDOUT): sends, files and
    /// connects; receives and accepts. `None`, as in the beginning: any. SO_SNDTIMEO and
    /// SO_RCVTIMEO are the owner's and do not count here.
    pub fn set_limits(&mut self, send: Option<Duration>, recv: Option<Duration>) {
        self.limits = (send, recv);
    }

    /// The number that the program has given to the socket; 0 if it has given none.
    pub fn user_data(&self) -> u64 {
        self.user_data.load(Ordering::Relaxed)
    }

    /// Gives the socket a number that the event of each operation posted from now on carries
    /// ([`Event::user_data`](crate::Event::user_data)). As [`Socket::set_user_data`](crate::Socket::set_user_data).
    pub fn set_user_data(&self, number: u64) {
        self.user_data.store(number, Ordering::Relaxed);
    }

    fn raw(&self) -> Descriptor<'_> {
        let Known { identity, kind } = self.known;
        Descriptor::known(self.socket.as_fd(), identity, kind, self.user_data())
    }
}
