//! One transfer: its system calls, and what their results mean.
//!
//! No call here waits. A transfer whose call would have to wait is *blocked*: its caller asks the
//! reactor, and tries again.

use std::io;
use std::os::fd::BorrowedFd;

use super::files::Scratch;
use super::types::{CALL_MAX, End, Failure, Kind, Pieces, Posted};
use crate::rnic::FileRange;
use crate::sys::{self, IoVec, IoVecMut, KernelAddr, Received};

/// Pieces of one call that need no allocation. A stream sends this many at a time.
pub(super) const PIECES: usize = 64;

/// A transfer that waits for its turn, or is under way.
pub(super) struct Xfer {
    pub(super) posted: Posted,
    pub(super) what: What,
    /// Bytes moved.
    pub(super) done: usize,
}

/// What a transfer moves.
pub(super) enum What {
    Send { pieces: Pieces, to: Option<KernelAddr>, flags: i32 },
    File(FileRange),
    Shutdown(i32),
    Recv { pieces: Pieces, flags: i32, from: bool },
}

/// The result of one try.
pub(super) enum Step {
    /// The transfer has ended.
    Ended(End),
    /// The kernel took or gave bytes, and may take or give more at once.
    Moved,
    /// The kernel can move nothing now.
    Blocked,
}

impl Xfer {
    /// The bytes of a send that may share a call with others: it has no flags and no address.
    pub(super) fn gatherable(&self) -> Option<&Pieces> {
        match &self.what {
            What::Send { pieces, to: None, flags: 0 } => Some(pieces),
            _ => None,
        }
    }

    /// A send of no bytes.
    pub(super) fn is_empty(&self) -> bool {
        self.gatherable().is_some_and(|p| p.bytes() == self.done)
    }

    /// A send to an address.
    pub(super) fn has_address(&self) -> bool {
        matches!(&self.what, What::Send { to: Some(_), .. })
    }

    /// True if the transfer belongs to the queue of sends.
    pub(super) fn is_tx(&self) -> bool {
        !matches!(&self.what, What::Recv { .. })
    }

    /// The end of the transfer, with the bytes moved so far.
    pub(super) fn end(&self, result: Result<(), Failure>) -> End {
        End::new(self.done as u64, result)
    }

    /// Tries once.
    pub(super) fn step(&mut self, fd: BorrowedFd<'_>, kind: Kind, scratch: &mut Scratch) -> Step {
        match &self.what {
            What::Send { .. } => self.send(fd, kind),
            What::File(_) => self.send_file(fd, kind, scratch),
            What::Recv { .. } => self.receive(fd, kind),
            What::Shutdown(how) => {
                let done = sys::shutdown(fd, *how).map_err(|e| Failure::os("shutdown", &e));
                Step::Ended(End::new(0, done))
            }
        }
    }

    /// The result of a try whose call failed.
    fn failed(&self, call: &'static str, e: &io::Error) -> Step {
        if e.kind() == io::ErrorKind::WouldBlock {
            return Step::Blocked;
        }
        Step::Ended(self.end(Err(Failure::os(call, e))))
    }

    fn send(&mut self, fd: BorrowedFd<'_>, kind: Kind) -> Step {
        let What::Send { pieces, to, flags } = &self.what else { return Step::Blocked };
        let len = pieces.bytes();
        let sent = if kind == Kind::Stream {
            let mut list = [IoVec::EMPTY; PIECES];
            let (n, bytes) = pieces.to_read(self.done, CALL_MAX, &mut list);
            // More bytes of the same send follow.
            let more = if self.done + bytes < len { libc::MSG_MORE } else { 0 };
            sys::send_message(fd, &list[..n], to.as_ref(), flags | more)
        } else {
            send_whole(fd, pieces, to.as_ref(), *flags)
        };
        match sent {
            Err(e) => self.failed("send", &e),
            Ok(n) => {
                self.done += n;
                if self.done >= len || kind != Kind::Stream {
                    return Step::Ended(self.end(Ok(())));
                }
                Step::Moved
            }
        }
    }

    fn receive(&mut self, fd: BorrowedFd<'_>, kind: Kind) -> Step {
        let What::Recv { pieces, flags, from } = &self.what else { return Step::Blocked };
        let (len, flags, stream) = (pieces.bytes(), *flags, kind == Kind::Stream);
        // MSG_TRUNC asks for the true length of a message. TCP would throw the bytes away.
        let ask = flags & !(libc::MSG_WAITALL | libc::MSG_TRUNC)
            | if stream { 0 } else { libc::MSG_TRUNC };
        let skip = if flags & libc::MSG_PEEK == 0 { self.done } else { 0 };
        match receive_into(fd, pieces, skip, ask, *from) {
            Err(e) => self.failed("recv", &e),
            Ok(got) if stream => self.received(fd, got, len, flags),
            Ok(got) => {
                self.done = got.bytes.min(len);
                let mut end = self.end(Ok(()));
                end.total = got.bytes as u64;
                // The kernel reports an empty message as it does the end of the connection.
                end.eof = kind == Kind::SeqPacket && got.bytes == 0 && ended(fd);
                end.from = got.from.map(Box::new);
                Step::Ended(end)
            }
        }
    }

    /// A stream gave bytes, or none because it has ended.
    fn received(&mut self, fd: BorrowedFd<'_>, got: Received, len: usize, flags: i32) -> Step {
        let waitall = flags & libc::MSG_WAITALL != 0;
        let peek = flags & libc::MSG_PEEK != 0;
        let over = got.bytes == 0 && self.done < len;
        self.done = if peek { got.bytes } else { self.done + got.bytes };
        if waitall && self.done < len && !over {
            // A peek finds the same bytes again. So it waits for more to arrive, unless the stream
            // has ended.
            match (peek, peek && ended(fd)) {
                (false, _) => return Step::Moved,
                (true, false) => return Step::Blocked,
                (true, true) => {}
            }
        }
        let mut end = self.end(Ok(()));
        // Bytes before the end are reported first, as with sockets of EXS.
        end.eof = over && self.done == 0;
        end.from = got.from.map(Box::new);
        Step::Ended(end)
    }

    fn send_file(&mut self, fd: BorrowedFd<'_>, kind: Kind, scratch: &mut Scratch) -> Step {
        let What::File(range) = &self.what else { return Step::Blocked };
        let left = range.len - self.done as u64;
        if left == 0 && (kind == Kind::Stream || range.len > 0) {
            return Step::Ended(self.end(Ok(())));
        }
        if kind == Kind::Stream
            && sys::is_nonblocking(fd).unwrap_or(false)
            && scratch.is_at_hand(self.posted.op, range, self.done as u64)
            && let Some(sent) = send_pages(fd, range, self.done as u64)
        {
            return match sent {
                Err(e) => self.failed("sendfile", &e),
                Ok(n) => {
                    self.done += n;
                    Step::Moved
                }
            };
        }
        let chunk = match scratch.load(self.posted.op, range, self.done as u64) {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Step::Blocked,
            Err(e) => {
                let errno = e.raw_os_error().unwrap_or(libc::EIO);
                return Step::Ended(self.end(Err(Failure::FileRead { errno })));
            }
        };
        if chunk.is_empty() && range.len > 0 {
            let (had, asked) = (self.done as u64, range.len);
            return Step::Ended(self.end(Err(Failure::FileTooShort { had, asked })));
        }
        let more = if (chunk.len() as u64) < left { libc::MSG_MORE } else { 0 };
        match sys::send_message(fd, &[chunk.io_vec(0, chunk.len())], None, more) {
            Err(e) => self.failed("sendfile", &e),
            Ok(n) => {
                self.done += n;
                if kind == Kind::Stream && (self.done as u64) < range.len {
                    return Step::Moved;
                }
                Step::Ended(self.end(Ok(())))
            }
        }
    }
}

/// Sends by sendfile(2), which copies nothing. It waits for room unless the owner has set O_NONBLOCK,
/// and has no flag against that. So it serves only sockets with that flag, and bytes that are in the
/// page cache. None: the bytes must go through a buffer; that way also finds errors of the file.
fn send_pages(fd: BorrowedFd<'_>, range: &FileRange, done: u64) -> Option<io::Result<usize>> {
    let len = usize::try_from(range.len - done).unwrap_or(CALL_MAX).min(CALL_MAX);
    match sys::send_file(&fd, &range.file, range.offset.checked_add(done)?, len) {
        Ok(0) => None,
        Err(e) if e.kind() != io::ErrorKind::WouldBlock => None,
        sent => Some(sent),
    }
}

/// Sends a message, all of it in one call.
fn send_whole(
    fd: BorrowedFd<'_>,
    pieces: &Pieces,
    to: Option<&KernelAddr>,
    flags: i32,
) -> io::Result<usize> {
    let (mut few, mut many) = ([IoVec::EMPTY; PIECES], Vec::new());
    let list = if pieces.count() <= PIECES {
        &mut few[..]
    } else {
        many.resize(pieces.count(), IoVec::EMPTY);
        &mut many[..]
    };
    let (n, _) = pieces.to_read(0, usize::MAX, list);
    sys::send_message(fd, &list[..n.max(1)], to, flags)
}

fn receive_into(
    fd: BorrowedFd<'_>,
    pieces: &Pieces,
    skip: usize,
    flags: i32,
    from: bool,
) -> io::Result<Received> {
    let (mut few, mut many) = ([const { IoVecMut::EMPTY }; PIECES], Vec::new());
    let list = if pieces.count() <= PIECES {
        &mut few[..]
    } else {
        many.resize_with(pieces.count(), || IoVecMut::EMPTY);
        &mut many[..]
    };
    let (n, _) = pieces.to_fill(skip, list);
    // An operation without memory makes a call with one empty piece, so that it waits for its turn.
    sys::receive_message(fd, &mut list[..n.max(1)], flags, from)
}

/// True if no more bytes will come: the peer has ended its direction, or the connection broke.
fn ended(fd: BorrowedFd<'_>) -> bool {
    let over = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    sys::poll_now(fd, libc::POLLRDHUP).is_ok_and(|found| found & over != 0)
}
