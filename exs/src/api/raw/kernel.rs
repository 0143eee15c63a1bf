//! Ordinary kernel sockets by descriptor: what [`KernelSocket`](crate::KernelSocket) and
//! the C library are built on.
//!
//! A [`Descriptor`] is a descriptor of the program's and what it stood for when it was
//! looked at; it owns nothing. Its calls take the flags of the system calls that they
//! stand for, as integers, and a time limit for each operation. [`KernelSocket`](crate::KernelSocket)
//! says what is promised of order, cancel, and the owner's close.

use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::super::{EventQueue, Refused, Token};
use crate::mem::{Buffer, MemError};
use crate::plain::{Kind, Pieces, Request, Target};
use crate::progress::{
    Bufs, Context, Error, EventKind, Interest, OwnTicket, Part, Short, first_shard,
};
use crate::rnic::FileRange;
use crate::sys::{self, Identity, KernelAddr, PIECES_MAX};

/// Flags that say nothing new: no call waits, and none raises SIGPIPE.
const IMPLIED: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC;
/// Flags of sends that are handed on.
const SEND: i32 =
    libc::MSG_OOB | libc::MSG_DONTROUTE | libc::MSG_MORE | libc::MSG_EOR | libc::MSG_CONFIRM;
/// Flags of receives that are handed on.
const RECV: i32 = libc::MSG_PEEK | libc::MSG_WAITALL | libc::MSG_TRUNC;

/// For a thread that is about to call the kernel itself: sends that are kept for the ones
/// behind them leave now.
pub fn send_kept() {
    Context::send_kept();
}

/// sendfile(2): sends up to `len` bytes of a file at `offset`, and returns how many went, 0 at
/// its end. It waits for room if the socket does, and raises no SIGPIPE.
///
/// # Errors
/// The error of sendfile(2).
pub fn send_file_now(
    to: BorrowedFd<'_>,
    file: &File,
    offset: u64,
    len: usize,
) -> io::Result<usize> {
    sys::send_file(&to, file, offset, len)
}

/// The number of buffers.
///
/// # Errors
/// [`MemError::Unmapped`]: the kernel could not reach some of them.
fn count_of(buffers: &[Buffer]) -> Result<usize, Error> {
    match buffers.iter().all(Buffer::is_mapped) {
        true => Ok(buffers.len()),
        false => Err(MemError::Unmapped.into()),
    }
}

/// A descriptor of the program's.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    target: Target<'a>,
    /// The number that the program has given to the socket; 0 is none.
    user_data: u64,
}

impl<'a> Descriptor<'a> {
    /// Looks at a descriptor: two system calls, without changing anything.
    ///
    /// # Errors
    /// [`Error::Os`] with EBADF if it is none.
    pub fn new(fd: BorrowedFd<'a>) -> Result<Descriptor<'a>, Error> {
        let identity =
            sys::identify(fd.as_raw_fd()).map_err(|e| Error::os("fstat of the descriptor", &e))?;
        let kind = if identity.socket { kind_of(fd)? } else { Kind::Other };
        Ok(Descriptor { target: Target { fd, identity, kind }, user_data: 0 })
    }

    /// A socket whose inode, (st_dev, st_ino), the caller has just seen: no system call.
    pub fn of_socket(fd: BorrowedFd<'a>, (dev, ino): (u64, u64)) -> Descriptor<'a> {
        let identity = Identity { dev, ino, socket: true };
        Descriptor { target: Target { fd, identity, kind: Kind::Unseen }, user_data: 0 }
    }

    /// The same with what was found out before.
    pub(in crate::api) fn known(
        fd: BorrowedFd<'a>,
        identity: Identity,
        kind: Kind,
        user_data: u64,
    ) -> Self {
        Descriptor { target: Target { fd, identity, kind }, user_data }
    }

    pub(in crate::api) fn parts(&self) -> (Identity, Kind) {
        (self.target.identity, self.target.kind)
    }

    /// True if it is a socket: others can be polled, and that is all.
    pub fn is_socket(&self) -> bool {
        self.target.kind != Kind::Other
    }

    fn kind(&self) -> Kind {
        match self.target.kind {
            // The call that follows reports what is no socket any more.
            Kind::Unseen => Kind::of(self.target.fd).unwrap_or(Kind::Datagram),
            kind => kind,
        }
    }

    /// (st_dev, st_ino): of a socket, no other has them while it exists.
    pub fn inode(&self) -> (u64, u64) {
        (self.target.identity.dev, self.target.identity.ino)
    }

    /// send(2): one buffer to the peer. `flags`: MSG_OOB, MSG_DONTROUTE, MSG_MORE, MSG_EOR,
    /// MSG_CONFIRM. `limit`: the operation ends with ETIMEDOUT after this.
    ///
    /// # Errors
    /// Refused, with the buffer: [`Error::WouldBlock`]; [`Error::Invalid`] for other flags;
    /// ENOTSOCK. The event has the kernel's errors.
    pub fn send(
        &self,
        queue: &EventQueue,
        token: Token,
        buffer: Buffer,
        flags: i32,
        limit: Option<Duration>,
    ) -> Result<(), Refused> {
        let on = (queue, token, limit);
        let how = (EventKind::Send, flags, SEND);
        let request = |pieces, flags| Request::Send { pieces, to: None, flags };
        let count = count_of(std::slice::from_ref(&buffer));
        self.post_memory(on, (buffer, count, Bufs::One), how, request)
    }

    /// sendmsg(2): several buffers as one stretch, or one message, to an address or to the
    /// peer. As [`Descriptor::send`].
    ///
    /// # Errors
    /// As [`Descriptor::send`]; EMSGSIZE for a message of more than 1024 buffers.
    pub fn send_message(
        &self,
        queue: &EventQueue,
        token: Token,
        buffers: Vec<Buffer>,
        to: Option<KernelAddr>,
        flags: i32,
        limit: Option<Duration>,
    ) -> Result<(), Refused<Vec<Buffer>>> {
        let on = (queue, token, limit);
        let (count, how) = (count_of(&buffers), (EventKind::Send, flags, SEND));
        let request = |pieces, flags| Request::Send { pieces, to, flags };
        self.post_memory(on, (buffers, count, Bufs::Many), how, request)
    }

    /// recv(2) into one buffer. `flags`: MSG_PEEK, MSG_WAITALL. MSG_TRUNC is not needed:
    /// [`Event::total`](crate::Event::total) always has a message's true length.
    ///
    /// # Errors
    /// As [`Descriptor::send`].
    pub fn recv(
        &self,
        queue: &EventQueue,
        token: Token,
        buffer: Buffer,
        flags: i32,
        limit: Option<Duration>,
    ) -> Result<(), Refused> {
        let on = (queue, token, limit);
        let how = (EventKind::Recv, flags, RECV);
        let request = |pieces, flags| Request::Recv { pieces, flags, from: false };
        let count = count_of(std::slice::from_ref(&buffer));
        self.post_memory(on, (buffer, count, Bufs::One), how, request)
    }

    /// recvmsg(2) into several buffers; with `from`, the event has the sender's address
    /// ([`Event::peer`](crate::Event::peer)). Control messages are not taken.
    ///
    /// # Errors
    /// As [`Descriptor::send_message`].
    pub fn recv_message(
        &self,
        queue: &EventQueue,
        token: Token,
        buffers: Vec<Buffer>,
        from: bool,
        flags: i32,
        limit: Option<Duration>,
    ) -> Result<(), Refused<Vec<Buffer>>> {
        let on = (queue, token, limit);
        let (count, how) = (count_of(&buffers), (EventKind::Recv, flags, RECV));
        let request = |pieces, flags| Request::Recv { pieces, flags, from };
        self.post_memory(on, (buffers, count, Bufs::Many), how, request)
    }

    /// sendfile(2): a part of a file, of a stream any size, as a message up to 256 KiB.
    ///
    /// # Errors
    /// As [`Descriptor::send`].
    pub fn send_file(
        &self,
        queue: &EventQueue,
        token: Token,
        (file, offset, len): (Arc<File>, u64, u64),
        limit: Option<Duration>,
    ) -> Result<(), Error> {
        let range = FileRange { file: file.into(), offset, len };
        self.post_bare(queue, token, EventKind::SendFile, limit, Request::File(range))
    }

    /// Memory and parts of files as one stretch of bytes, with one event; with `shut` the
    /// sending direction ends after them. Streams only, or one part.
    ///
    /// # Errors
    /// As [`Descriptor::send`]; EOPNOTSUPP.
    pub fn send_parts(
        &self,
        queue: &EventQueue,
        token: Token,
        parts: Vec<Part>,
        shut: bool,
        limit: Option<Duration>,
    ) -> Result<(), Refused<Vec<Part>>> {
        let error = if parts.is_empty() {
            Some(Error::invalid("there is nothing to send: give at least one part"))
        } else if !parts.iter().all(Part::is_mapped) {
            Some(MemError::Unmapped.into())
        } else if parts.len() > 1 && self.kind() != Kind::Stream {
            let errno = libc::EOPNOTSUPP;
            Some(Error::Os { call: "a message of memory and files together", errno })
        } else {
            None
        };
        let ready = match error {
            Some(e) => Err(e),
            None => self.ready(queue, 0, 0, 0),
        };
        match ready {
            Err(error) => Err(Refused { error, buffer: parts }),
            Ok((context, _)) => {
                let target = Target { kind: self.kind(), ..self.target };
                let short = Short::of(&parts);
                context.post(queue.shard(), |e, call| {
                    let target = (&target, limit);
                    e.post_kernel_parts(
                        target,
                        &queue.ticket(token, self.user_data),
                        (parts, short),
                        shut,
                        call.now(),
                    );
                });
                Ok(())
            }
        }
    }

    /// shutdown(2), after what was posted to be sent before.
    ///
    /// # Errors
    /// As [`Descriptor::send`].
    pub fn shutdown(&self, queue: &EventQueue, token: Token, how: Shutdown) -> Result<(), Error> {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        self.post_bare(queue, token, EventKind::Shutdown, None, Request::Shutdown(how))
    }

    /// connect(2).
    ///
    /// # Errors
    /// As [`Descriptor::send`].
    pub fn connect(
        &self,
        queue: &EventQueue,
        token: Token,
        to: KernelAddr,
        limit: Option<Duration>,
    ) -> Result<(), Error> {
        self.post_bare(queue, token, EventKind::Connect, limit, Request::Connect(to))
    }

    /// accept4(2) with SOCK_CLOEXEC; the event brings the descriptor
    /// (`take_descriptor`) and the peer's address.
    ///
    /// # Errors
    /// As [`Descriptor::send`].
    pub fn accept(
        &self,
        queue: &EventQueue,
        token: Token,
        limit: Option<Duration>,
    ) -> Result<(), Error> {
        self.post_bare(queue, token, EventKind::Accept, limit, Request::Accept)
    }

    /// poll(2), once: of any descriptor that can be polled.
    ///
    /// # Errors
    /// [`Error::WouldBlock`].
    pub fn poll(
        &self,
        queue: &EventQueue,
        token: Token,
        want: Interest,
        limit: Option<Duration>,
    ) -> Result<(), Error> {
        let request = Request::Poll { readable: want.readable, writable: want.writable };
        let context = first_shard()?;
        queue.core().reserve()?;
        self.post(context, (queue, token, limit), EventKind::Poll, Bufs::None, |_| request);
        Ok(())
    }

    /// Asks what was posted with this descriptor to end, all of it or what has a token;
    /// returns how much that is. Each operation still has its one event. Called before
    /// close(2), it makes that the last one without waiting for the next look.
    pub fn cancel(&self, token: Option<Token>) -> usize {
        let Ok(context) = first_shard() else { return 0 };
        context.call(|e, now| e.cancel_kernel(&self.target, token.map(|t| t.0), now))
    }

    /// Whether an operation can be posted: books its place in the queue, and returns the
    /// flags that count.
    fn ready(
        &self,
        queue: &EventQueue,
        flags: i32,
        allowed: i32,
        buffers: usize,
    ) -> Result<(&'static Arc<Context>, i32), Error> {
        if !self.is_socket() {
            return Err(Error::Os { call: "the descriptor", errno: libc::ENOTSOCK });
        }
        let other = flags & !(allowed | IMPLIED);
        if other != 0 {
            let why =
                format!("flags {other:#x} have no meaning for this operation: leave them out");
            return Err(Error::invalid(why));
        }
        if buffers > PIECES_MAX && self.kind() != Kind::Stream {
            return Err(Error::Os {
                call: "a message of more than 1024 buffers",
                errno: libc::EMSGSIZE,
            });
        }
        let context = first_shard()?;
        queue.core().reserve()?;
        Ok((context, flags & allowed))
    }

    /// Posts a send or a receive of `count` buffers, which `wrap` makes [`Bufs`] of. `request` gets
    /// those of `flags` that count.
    fn post_memory<T>(
        &self,
        on: (&EventQueue, Token, Option<Duration>),
        (buffer, count, wrap): (T, Result<usize, Error>, impl FnOnce(T) -> Bufs),
        (kind, flags, allowed): (EventKind, i32, i32),
        request: impl FnOnce(Pieces, i32) -> Request,
    ) -> Result<(), Refused<T>> {
        match count.and_then(|count| self.ready(on.0, flags, allowed, count)) {
            Err(error) => Err(Refused { error, buffer }),
            Ok((context, flags)) => {
                self.post(context, on, kind, wrap(buffer), |pieces| request(pieces, flags));
                Ok(())
            }
        }
    }

    fn post_bare(
        &self,
        queue: &EventQueue,
        token: Token,
        kind: EventKind,
        limit: Option<Duration>,
        request: Request,
    ) -> Result<(), Error> {
        let (context, _) = self.ready(queue, 0, 0, 0)?;
        self.post(context, (queue, token, limit), kind, Bufs::None, |_| request);
        Ok(())
    }

    fn post(
        &self,
        context: &Context,
        (queue, token, limit): (&EventQueue, Token, Option<Duration>),
        kind: EventKind,
        bufs: Bufs,
        request: impl FnOnce(Pieces) -> Request,
    ) {
        context.post(queue.shard(), |e, call| {
            e.post_kernel(
                (&self.target, limit),
                &queue.ticket(token, self.user_data),
                kind,
                bufs,
                call.now(),
                request,
            );
        });
    }
}

fn kind_of(fd: BorrowedFd<'_>) -> Result<Kind, Error> {
    Kind::of(fd).map_err(|e| Error::os("getsockopt of the socket's type", &e))
}

pub use crate::sys::send_tcp_only;

/// True if the descriptor is a TCP socket, for which [`send_at_once`] and [`send_tcp_only`] are made.
pub fn is_tcp(fd: BorrowedFd<'_>) -> bool {
    Kind::of(fd).is_ok_and(|kind| kind == Kind::Stream)
        && sys::socket_option(fd, libc::SO_PROTOCOL).is_ok_and(|p| p == libc::IPPROTO_TCP)
}

/// A booked place in a queue for one event, and the words that the event carries. Dropped, it gives the
/// place back.
#[derive(Debug)]
pub struct Booked(OwnTicket);

impl Drop for Booked {
    fn drop(&mut self) {
        if let Some(queue) = self.0.queue.take() {
            queue.unreserve(1);
        }
    }
}

/// Books a place for the event of [`send_at_once`], which carries `tag` as its second name
/// (`raw::tag`). None: the queue is full.
pub fn book(queue: &EventQueue, token: Token, tag: [u64; 2]) -> Option<Booked> {
    queue.core().reserve().ok()?;
    let queue = Some(Arc::clone(queue.core()));
    Some(Booked(OwnTicket { queue, token: token.0, tag }))
}

/// send(2) on a number that was a TCP socket at the last look, without another look: one system
/// call. If the number stands for another file now, the call sends nothing.
///
/// # Errors
/// The buffer, if the caller must send it by [`Descriptor::send`], which looks first. The place is
/// free again then.
pub fn send_at_once(fd: BorrowedFd<'_>, mut place: Booked, buffer: Buffer) -> Result<(), Buffer> {
    let Ok(context) = first_shard() else { return Err(buffer) };
    let Some(shard) = place.0.queue.as_ref().map(|queue| queue.shard()) else { return Err(buffer) };
    context.post(shard, |e, call| e.send_kernel_at_once(fd, &mut place.0, buffer, call))
}
