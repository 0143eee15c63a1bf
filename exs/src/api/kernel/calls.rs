//! What a [`KernelSocket`] posts and cancels.

use std::fs::File;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::KernelSocket;
use crate::api::{EventQueue, Refused, Token};
use crate::mem::Buffer;
use crate::progress::{Error, Interest, RecvFlags};
use crate::sys::KernelAddr;

impl<S: AsFd> KernelSocket<S> {
    /// Sends the buffer's window: all of it, in order, or as one message. The event says
    /// that the kernel has it. A send that is cancelled after some of its bytes have left says how
    /// many ([`Failed::bytes`](crate::Failed)).
    ///
    /// ```
    #[doc = include_str!("../examples/kernel.txt")]
    /// ours.send(&queue, Token(1), *b"hello")?;
    /// let mut text = [0; 5];
    /// peer.read_exact(&mut text)?;
    /// assert_eq!(&text, b"hello");
    /// queue.next()?.into_completion()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Refused, with the buffer: [`Error::WouldBlock`]; ENOTSOCK. The event has what the kernel says:
    /// EPIPE, ECONNRESET and the like.
    pub fn send(
        &self,
        queue: &EventQueue,
        token: Token,
        buffer: impl Into<Buffer>,
    ) -> Result<(), Refused> {
        self.raw().send(queue, token, buffer.into(), 0, self.limits.0)
    }

    /// Receives into the buffer's window: as many bytes as are there (all of it with
    /// [`RecvFlags::WAITALL`]), or one message. 0 bytes with `eof` is the end. A receive that is
    /// cancelled keeps the bytes that it had taken.
    ///
    /// ```
    #[doc = include_str!("../examples/kernel.txt")]
    /// ours.recv(&queue, Token(1), vec![0; 100], RecvFlags::NONE)?;
    /// peer.write_all(b"hello")?;
    /// if let Completion::Recv { buffer, bytes, .. } = queue.next()?.into_completion()? {
    ///     assert_eq!(&buffer[..bytes], b"hello");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// ```
    #[doc = include_str!("../examples/kernel.txt")]
    /// let parts = vec![Buffer::from(*b"head"), Buffer::from(*b"body")];
    /// ours.send_vectored(&queue, Token(1), parts)?;
    /// let mut text = [0; 8];
    /// peer.read_exact(&mut text)?;
    /// assert_eq!(&text, b"headbody");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`KernelSocket::send`]; EMSGSIZE for a message of more than 1024 buffers.
    pub fn send_vectored(
        &self,
        queue: &EventQueue,
        token: Token,
        buffers: Vec<Buffer>,
    ) -> Result<(), Refused<Vec<Buffer>>> {
        self.raw().send_message(queue, token, buffers, None, 0, self.limits.0)
    }

    /// Receives into several buffers, filled one after the other.
    ///
    /// ```
    #[doc = include_str!("../examples/kernel.txt")]
    /// let parts = vec![vec![0; 4].into(), vec![0; 4].into()];
    /// ours.recv_vectored(&queue, Token(1), parts, RecvFlags::WAITALL)?;
    /// peer.write_all(b"headbody")?;
    /// if let Completion::RecvVectored { buffers, .. } = queue.next()?.into_completion()? {
    ///     assert_eq!(&buffers[1][..], b"body");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// ```
    /// use exs::{Completion, EventQueue, KernelSocket, RecvFlags, Token};
    /// use std::net::UdpSocket;
    ///
    /// let queue = EventQueue::new(4)?;
    /// let peer = UdpSocket::bind("127.0.0.1:0")?;
    /// let ours = KernelSocket::new(UdpSocket::bind("127.0.0.1:0")?)?;
    /// ours.send_to(&queue, Token(1), vec![(*b"hello").into()], peer.local_addr()?)?;
    /// let mut text = [0; 5];
    /// assert_eq!(peer.recv_from(&mut text)?, (5, ours.get_ref().local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Receives one message into several buffers, with the address of its sender, and its true length
    /// (`total`) if that is more than there was room for.
    ///
    /// ```
    /// use exs::{Completion, EventQueue, KernelSocket, RecvFlags, Token};
    /// use std::net::UdpSocket;
    ///
    /// let queue = EventQueue::new(4)?;
    /// let peer = UdpSocket::bind("127.0.0.1:0")?;
    /// let ours = KernelSocket::new(UdpSocket::bind("127.0.0.1:0")?)?;
    /// ours.recv_from(&queue, Token(1), vec![vec![0; 100].into()], RecvFlags::NONE)?;
    /// peer.send_to(b"hello", ours.get_ref().local_addr()?)?;
    /// match queue.next()?.into_completion()? {
    ///     Completion::RecvVectored { bytes, peer: Some(sender), .. } => {
    ///         assert_eq!((bytes, sender.as_ip()), (5, Some(peer.local_addr()?)));
    ///     }
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// ```
    #[doc = include_str!("../examples/kernel.txt")]
    /// let file = std::sync::Arc::new(std::fs::File::open("/proc/self/exe")?);
    /// ours.send_file(&queue, Token(1), file, 1, 3)?;
    /// let mut text = [0; 3];
    /// peer.read_exact(&mut text)?;
    /// assert_eq!(&text, b"ELF");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// ```
    /// use exs::{EventQueue, KernelSocket, Token};
    /// use std::os::unix::net::{UnixDatagram, UnixListener};
    ///
    /// let queue = EventQueue::new(4)?;
    /// let path = std::env::temp_dir().join(format!("exs-connect-{}", std::process::id()));
    /// let peer = UnixDatagram::bind(&path)?;
    /// let ours = KernelSocket::new(UnixDatagram::unbound()?)?;
    /// let to = exs::KernelAddr::unix(&path)?;
    /// ours.connect(&queue, Token(1), to)?;
    /// queue.next()?.into_completion()?;
    /// assert_eq!(ours.get_ref().send(b"hello")?, 5);
    /// # drop(peer);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Accepts one connection, which the event brings
    /// ([`Completion::AcceptKernel`](crate::Completion::AcceptKernel)).
    ///
    /// ```
    /// use exs::{Completion, EventQueue, KernelSocket, Token};
    /// use std::net::{TcpListener, TcpStream};
    ///
    /// let queue = EventQueue::new(4)?;
    /// let listener = KernelSocket::new(TcpListener::bind("127.0.0.1:0")?)?;
    /// listener.accept(&queue, Token(1))?;
    /// let peer = TcpStream::connect(listener.get_ref().local_addr()?)?;
    /// if let Completion::AcceptKernel { socket, .. } = queue.next()?.into_completion()? {
    ///     assert_eq!(TcpStream::from(socket).peer_addr()?, peer.local_addr()?);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`KernelSocket::send`].
    pub fn accept(&self, queue: &EventQueue, token: Token) -> Result<(), Error> {
        self.raw().accept(queue, token, self.limits.1)
    }

    /// One event when poll(2) finds what is asked for, or an error.
    ///
    /// ```
    #[doc = include_str!("../examples/kernel.txt")]
    /// ours.poll(&queue, Token(1), Interest::READABLE)?;
    /// peer.write_all(b"hello")?;
    /// assert!(queue.next()?.readiness().readable);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WouldBlock`].
    pub fn poll(&self, queue: &EventQueue, token: Token, want: Interest) -> Result<(), Error> {
        self.raw().poll(queue, token, want, None)
    }

    /// Ends one direction, or both, after all sends posted before.
    ///
    /// ```
    #[doc = include_str!("../examples/kernel.txt")]
    /// ours.send(&queue, Token(1), *b"the last word")?;
    /// ours.shutdown(&queue, Token(2), std::net::Shutdown::Write)?;
    /// let mut text = String::new();
    /// peer.read_to_string(&mut text)?;
    /// assert_eq!(text, "the last word");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`KernelSocket::send`].
    pub fn shutdown(&self, queue: &EventQueue, token: Token, how: Shutdown) -> Result<(), Error> {
        self.raw().shutdown(queue, token, how)
    }

    /// Asks the operations with this token to end; returns how many there were. Each
    /// still has its one event: cancelled, with the bytes moved before, or done if that
    /// was faster. A send that is cancelled after some of its bytes have left leaves a
    /// hole in the stream: better shut it down.
    ///
    /// ```
    #[doc = include_str!("../examples/kernel.txt")]
    /// ours.recv(&queue, Token(1), vec![0; 100], RecvFlags::NONE)?;
    /// assert_eq!(ours.cancel(Token(1)), 1);
    /// assert!(queue.next()?.into_completion().unwrap_err().error.is_cancelled());
    /// # drop(peer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel(&self, token: Token) -> usize {
        self.raw().cancel(Some(token))
    }

    /// As [`KernelSocket::cancel`], for every operation that was posted with this
    /// descriptor.
    ///
    /// ```
    #[doc = include_str!("../examples/kernel.txt")]
    /// ours.recv(&queue, Token(1), vec![0; 100], RecvFlags::NONE)?;
    /// ours.recv(&queue, Token(2), vec![0; 100], RecvFlags::NONE)?;
    /// assert_eq!(ours.cancel_all(), 2);
    /// # drop(peer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_all(&self) -> usize {
        self.raw().cancel(None)
    }
}

/// The flags of recv(2).
fn bits(flags: RecvFlags) -> i32 {
    let bit = |on, flag| if on { flag } else { 0 };
    bit(flags.waitall, libc::MSG_WAITALL) | bit(flags.peek, libc::MSG_PEEK)
}
