//! Kernel sockets: the asynchronous calls on what socket(2) made.

use std::fs::File;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use super::raw::kernel::Descriptor;
use super::{EventQueue, Refused, SendFlags, Token};
use crate::mem::Buffer;
use crate::plain::Kind;
use crate::progress::{Context, Error, Interest, RecvFlags};
use crate::sys::{Identity, KernelAddr};

/// EXS's asynchronous calls on an ordinary kernel socket (TCP, UDP, UNIX-domain), whose
/// peer knows nothing of EXS. (EXS extension in Rust; in C, the ES-API's own use.)
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
/// accepts. What is posted while a connect is under way waits for it. The owner's own
/// calls take part in no order: a recv(2) beside a posted receive takes what comes first.
///
/// A send that finds room leaves at once, in the call that posts it; but from the fifth on
/// of a burst, sends on a stream wait for the next ones, to leave in one call of the
/// kernel's: until there are 256 KiB, until the program waits for an event (on any queue), or
/// takes one 50 us after the first of them was posted, until it takes the socket for calls of its
/// own, and a few milliseconds at most.
///
/// # Ends
/// What the kernel says of a socket (ECONNRESET, EPIPE, ...) comes as the error of the
/// event; [`Event::bytes`](crate::Event::bytes) has what was moved before. SIGPIPE is never raised.
///
/// While operations are in flight EXS holds a descriptor of its own for the socket. So
/// after the owner's close(2) the peer sees the end when the last of them has ended. (If
/// events of a burst of sends are not dequeued by then, up to a tenth of a second later.) What
/// was posted with a descriptor that the owner has closed is cancelled (ECANCELED): at
/// once when a `KernelSocket` is dropped with its socket, else within a tenth of a second.
/// Sends that wait are lost then, as nothing would tell whether they arrive: dequeue
/// their events before you close. A shutdown(2) by the owner ends what waits with EPIPE,
/// or as the end of the stream.
///
/// # Connect and accept
/// These have no form in the kernel that does not wait on a socket that blocks. Where the
/// kernel has io_uring they wait there; where not (or with `EXS_KERNEL_IO=readiness`) in
/// threads, 64 at most, and with one flaw: if a connection goes to
/// somebody else between the moment it is seen and the accept, a cancelled accept may
/// take the next one and close it.
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::{TcpListener, TcpStream};
/// use exs::{EventQueue, KernelSocket, RecvFlags, SendFlags, Token};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let client = KernelSocket::new(TcpStream::connect(listener.local_addr()?)?)?;
/// let (mut peer, _) = listener.accept()?; // which knows nothing of EXS
///
/// let queue = EventQueue::new(16)?;
/// client.recv(&queue, Token(1), vec![0; 5], RecvFlags::WAITALL)?;
/// client.send(&queue, Token(2), "hello", SendFlags::NONE)?;
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
pub struct KernelSocket<S: AsFd> {
    socket: S,
    limits: (Option<Duration>, Option<Duration>),
    /// After `socket`: it is dropped when that is.
    known: Known,
}

/// What the socket is; when it goes, so may the descriptor.
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
    /// Takes a socket, of any family and type, connected or not. (Other descriptors can be
    /// polled.)
    ///
    /// # Errors
    /// What the kernel says if EXS cannot start, or of the descriptor.
    pub fn new(socket: S) -> Result<KernelSocket<S>, Error> {
        Context::global()?;
        let (identity, kind) = Descriptor::new(socket.as_fd())?.parts();
        Ok(KernelSocket { socket, limits: (None, None), known: Known { identity, kind } })
    }

    /// The owner's socket. (Sends that wait for the ones behind them leave before it is
    /// handed out, as far as there is room.)
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

    fn raw(&self) -> Descriptor<'_> {
        Descriptor::known(self.socket.as_fd(), self.known.identity, self.known.kind)
    }

    /// Sends the buffer's window: all of it, in order, or as one message. The event says
    /// that the kernel has it.
    ///
    /// # Errors
    /// Refused, with the buffer: [`Error::WouldBlock`]; ENOTSOCK.
    pub fn send(
        &self,
        queue: &EventQueue,
        token: Token,
        buffer: impl Into<Buffer>,
        _flags: SendFlags,
    ) -> Result<(), Refused> {
        self.raw().send(queue, token, buffer.into(), 0, self.limits.0)
    }

    /// Receives into the buffer's window: as many bytes as are there (all of it with
    /// [`RecvFlags::WAITALL`]), or one message. 0 bytes with `eof` is the end.
    ///
    /// # Errors
    /// As [`KernelSocket::send`].
    pub fn recv(
        &self,
        queue: &EventQueue,
        token: Token,
        buffer: impl Into<Buffer>,
        flags: RecvFlags,
    ) -> Result<(), Refused> {
        self.raw().recv(queue, token, buffer.into(), bits(flags), self.limits.1)
    }

    /// Sends several buffers as one stretch of bytes, or one message.
    ///
    /// # Errors
    /// As [`KernelSocket::send`]; EMSGSIZE for a message of more than 1024 buffers.
    pub fn send_vectored(
        &self,
        queue: &EventQueue,
        token: Token,
        buffers: Vec<Buffer>,
        _flags: SendFlags,
    ) -> Result<(), Refused<Vec<Buffer>>> {
        self.raw().send_message(queue, token, buffers, None, 0, self.limits.0)
    }

    /// Receives into several buffers, filled one after the other.
    ///
    /// # Errors
    /// As [`KernelSocket::send_vectored`].
    pub fn recv_vectored(
        &self,
        queue: &EventQueue,
        token: Token,
        buffers: Vec<Buffer>,
        flags: RecvFlags,
    ) -> Result<(), Refused<Vec<Buffer>>> {
        self.raw().recv_message(queue, token, buffers, false, bits(flags), self.limits.1)
    }

    /// Sends one message, of several buffers, to an address (sendmsg(2) of a datagram
    /// socket).
    ///
    /// # Errors
    /// As [`KernelSocket::send_vectored`].
    pub fn send_to(
        &self,
        queue: &EventQueue,
        token: Token,
        buffers: Vec<Buffer>,
        to: impl Into<KernelAddr>,
    ) -> Result<(), Refused<Vec<Buffer>>> {
        self.raw().send_message(queue, token, buffers, Some(to.into()), 0, self.limits.0)
    }

    /// Receives one message into several buffers; the event has its sender
    /// ([`Event::peer`](crate::Event::peer)), and its true length
    /// ([`Event::total`](crate::Event::total)) if that is more than there was room for.
    ///
    /// # Errors
    /// As [`KernelSocket::send_vectored`].
    pub fn recv_from(
        &self,
        queue: &EventQueue,
        token: Token,
        buffers: Vec<Buffer>,
        flags: RecvFlags,
    ) -> Result<(), Refused<Vec<Buffer>>> {
        self.raw().recv_message(queue, token, buffers, true, bits(flags), self.limits.1)
    }

    /// Sends a part of a file; as one message, it may have up to 256 KiB. If the file
    /// turns out to be shorter, the event has the bytes sent and an error.
    ///
    /// # Errors
    /// As [`KernelSocket::send`].
    pub fn send_file(
        &self,
        queue: &EventQueue,
        token: Token,
        file: Arc<File>,
        offset: u64,
        len: u64,
    ) -> Result<(), Error> {
        self.raw().send_file(queue, token, (file, offset, len), self.limits.0)
    }

    /// Connects. The event's error says what went wrong, if anything did. Cancelled, or at
    /// the end of its time, it leaves the socket as an interrupted connect(2) does: of no
    /// more use than to be closed.
    ///
    /// # Errors
    /// As [`KernelSocket::send`].
    pub fn connect(
        &self,
        queue: &EventQueue,
        token: Token,
        to: impl Into<KernelAddr>,
    ) -> Result<(), Error> {
        self.raw().connect(queue, token, to.into(), self.limits.0)
    }

    /// Accepts one connection; the event brings its descriptor
    /// ([`Event::take_descriptor`](crate::Event::take_descriptor)).
    ///
    /// # Errors
    /// As [`KernelSocket::send`].
    pub fn accept(&self, queue: &EventQueue, token: Token) -> Result<(), Error> {
        self.raw().accept(queue, token, self.limits.1)
    }

    /// One event when poll(2) finds what is asked for, or an error.
    ///
    /// # Errors
    /// [`Error::WouldBlock`].
    pub fn poll(&self, queue: &EventQueue, token: Token, want: Interest) -> Result<(), Error> {
        self.raw().poll(queue, token, want, None)
    }

    /// Ends one direction, or both, after all sends posted before.
    ///
    /// # Errors
    /// As [`KernelSocket::send`].
    pub fn shutdown(&self, queue: &EventQueue, token: Token, how: Shutdown) -> Result<(), Error> {
        self.raw().shutdown(queue, token, how)
    }

    /// Asks the operations with this token to end; returns how many there were. Each
    /// still has its one event: cancelled, with the bytes moved before, or done if that
    /// was faster. (A send that is cancelled after some of its bytes have left leaves a
    /// hole in the stream: better shut it down.)
    pub fn cancel(&self, token: Token) -> usize {
        self.raw().cancel(Some(token))
    }

    /// As [`KernelSocket::cancel`], for every operation that was posted with this
    /// descriptor.
    pub fn cancel_all(&self) -> usize {
        self.raw().cancel(None)
    }
}

/// The flags of recv(2).
fn bits(flags: RecvFlags) -> i32 {
    let bit = |on, flag| if on { flag } else { 0 };
    bit(flags.waitall, libc::MSG_WAITALL) | bit(flags.peek, libc::MSG_PEEK)
}
