//! One kernel socket with operations in flight: its queues, and the code that moves them.
//!
//! Sends, files and shutdowns are one queue, receives another. Each queue is carried out in order,
//! and both wait while a connect is under way. Accepts and polls have lists of their own.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use super::call::{PIECES, Step, Xfer};
use super::files::Scratch;
use super::types::{CALL_MAX, End, Failure, Kind, Posted, Target};
use crate::sys::{self, IoVec};

/// Tries of one direction before other sockets have their turn.
const TRIES: usize = 32;

/// The name of an entry: device and inode. A file that is no socket has its number too, because
/// both ends of a pipe have one inode.
pub(super) type Name = (u64, u64, RawFd);
/// The number in the name of a socket, for which the inode is enough.
pub(super) const NO_NUMBER: RawFd = -1;

/// The name of the entry for `target`.
pub(super) fn name(target: &Target<'_>) -> Name {
    let number = if target.identity.socket { NO_NUMBER } else { target.fd.as_raw_fd() };
    (target.identity.dev, target.identity.ino, number)
}

/// Closes the library's descriptor of a socket, unless it is shared. If the owner has closed its own
/// descriptor, this is the last one, and SO_LINGER may make its close(2) wait for the peer. Then another
/// thread closes it.
pub(super) fn release(fd: Arc<OwnedFd>) {
    if let Some(fd) = Arc::into_inner(fd)
        && sys::close_may_wait(fd.as_fd())
    {
        sys::close_elsewhere(fd);
    }
}

/// A connect under way.
pub(super) struct Connecting {
    pub(super) posted: Posted,
    /// The helper's job; None if the reactor reports the end.
    pub(super) job: Option<u64>,
    /// Set when the connect must end before the helper has answered: the reason.
    pub(super) cut: Option<Failure>,
}

/// The accepts of a socket that wait.
#[derive(Default)]
pub(super) struct Accepting {
    pub(super) queue: VecDeque<Posted>,
    /// The helper's job, which takes the next connection for the first accept; None: none runs.
    pub(super) job: Option<u64>,
    /// Set when the first accept must end and the helper has not answered yet: the reason.
    pub(super) cut: Option<Failure>,
}

/// A socket with operations in flight, held by a descriptor of the library's own.
pub(super) struct Sock {
    pub(super) name: Name,
    /// Shared with the socket's batch of kept sends (`batch`), whose sends are not in `tx`.
    pub(super) fd: Arc<OwnedFd>,
    pub(super) kind: Kind,
    pub(super) tx: VecDeque<Xfer>,
    pub(super) rx: VecDeque<Xfer>,
    pub(super) polls: Vec<(Posted, i16)>,
    pub(super) accepting: Accepting,
    pub(super) connecting: Option<Connecting>,
    /// What the reactor watches: (readable, writable).
    pub(super) watched: (bool, bool),
    /// What the reactor has reported since the last `pump`.
    pub(super) ready: (bool, bool),
    /// The socket is on the table's list `work`.
    pub(super) listed: bool,
    /// The socket is on the table's list `full`.
    pub(super) counted: bool,
    /// The first send is for an address whose queue is full; readiness does not report its end.
    pub(super) must_retry: bool,
}

/// The result of several sends in one call.
enum Gathered {
    /// Some bytes left. Only a refused call says that the socket is full.
    Moved,
    /// The socket is full.
    Blocked,
    /// There is at most one send.
    Nothing,
}

/// Operations that have ended, for the table to hand on.
pub(super) type Ended = Vec<(Posted, End)>;

impl Sock {
    pub(super) fn new(name: Name, fd: Arc<OwnedFd>, kind: Kind) -> Sock {
        Sock {
            name,
            fd,
            kind,
            tx: VecDeque::new(),
            rx: VecDeque::new(),
            polls: Vec::new(),
            accepting: Accepting::default(),
            connecting: None,
            watched: (false, false),
            ready: (false, false),
            listed: false,
            counted: false,
            must_retry: false,
        }
    }

    /// True if nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.tx.is_empty()
            && self.rx.is_empty()
            && self.polls.is_empty()
            && self.connecting.is_none()
            && self.accepting.queue.is_empty()
            && self.accepting.job.is_none()
    }

    /// What the reactor must watch now: (readable, writable).
    pub(super) fn wanted(&self) -> (bool, bool) {
        let poll = |event: i16| self.polls.iter().any(|(_, events)| events & event != 0);
        let accept = !self.accepting.queue.is_empty() && self.accepting.job.is_none();
        let (rx, tx) = match &self.connecting {
            Some(c) => (false, c.job.is_none()),
            None => (!self.rx.is_empty() || accept, !self.tx.is_empty()),
        };
        // A poll for nothing waits for errors, which any watch reports.
        let errors = self.polls.iter().any(|(_, events)| *events == 0);
        (rx || poll(libc::POLLIN) || errors, tx || poll(libc::POLLOUT))
    }

    /// Sends until the queue is empty or the socket is full. True if there may be more to do at once.
    pub(super) fn pump_tx(&mut self, scratch: &mut Scratch, ended: &mut Ended) -> bool {
        self.must_retry = false;
        if self.connecting.is_some() {
            return false;
        }
        for _ in 0..TRIES {
            if self.kind == Kind::Stream && self.tx.len() > 1 {
                match self.send_gathered(ended) {
                    Gathered::Moved => continue,
                    Gathered::Blocked => return false,
                    Gathered::Nothing => {}
                }
            }
            let Some(first) = self.tx.front_mut() else { return false };
            match first.step(self.fd.as_fd(), self.kind, scratch) {
                Step::Moved => {}
                Step::Blocked => {
                    self.must_retry = first.has_address();
                    return false;
                }
                Step::Ended(end) => self.end_first(end, ended),
            }
        }
        !self.tx.is_empty()
    }

    /// Ends the first send. If it failed, the parts of the same send behind it end too.
    fn end_first(&mut self, end: End, ended: &mut Ended) {
        let Some(first) = self.tx.pop_front() else { return };
        let (group, failed) = (first.posted.group, end.result.is_err());
        ended.push((first.posted, end));
        if failed && group != 0 {
            self.cut(|p| p.group == group, |_| Failure::Cancelled, ended);
        }
    }

    /// Sends the bytes of several sends in one call: they are one stretch of the stream.
    fn send_gathered(&mut self, ended: &mut Ended) -> Gathered {
        let (mut list, mut used, mut room) = ([IoVec::EMPTY; PIECES], 0, CALL_MAX);
        let mut sends = 0;
        for xfer in &self.tx {
            let Some(pieces) = xfer.gatherable().filter(|_| room > 0 && used < PIECES) else {
                break;
            };
            let left = pieces.bytes() - xfer.done;
            let (n, bytes) = pieces.to_read(xfer.done, room, &mut list[used..]);
            (used, room, sends) = (used + n, room - bytes, sends + 1);
            if bytes < left {
                break;
            }
        }
        if sends < 2 {
            return Gathered::Nothing;
        }
        match sys::send_message(self.fd.as_fd(), &list[..used.max(1)], None, 0) {
            Ok(n) => {
                self.credit(n, ended);
                Gathered::Moved
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Gathered::Blocked,
            // The error is the first send's; the others find out for themselves.
            Err(e) => {
                if let Some(first) = self.tx.front() {
                    let end = first.end(Err(Failure::os("send", &e)));
                    self.end_first(end, ended);
                }
                Gathered::Moved
            }
        }
    }

    /// Credits the bytes that a gathered call has taken to the sends, in order.
    fn credit(&mut self, mut bytes: usize, ended: &mut Ended) {
        while let Some(first) = self.tx.front_mut() {
            let Some(pieces) = first.gatherable() else { return };
            let left = pieces.bytes() - first.done;
            if left > bytes {
                first.done += bytes;
                return;
            }
            (first.done, bytes) = (first.done + left, bytes - left);
            let end = first.end(Ok(()));
            if let Some(first) = self.tx.pop_front() {
                ended.push((first.posted, end));
            }
            // Empty sends behind this one have left with it.
            if bytes == 0 && !self.tx.front().is_some_and(Xfer::is_empty) {
                return;
            }
        }
    }

    /// As `pump_tx`, for receives.
    pub(super) fn pump_rx(&mut self, scratch: &mut Scratch, ended: &mut Ended) -> bool {
        if self.connecting.is_some() {
            return false;
        }
        for _ in 0..TRIES {
            let Some(first) = self.rx.front_mut() else { return false };
            match first.step(self.fd.as_fd(), self.kind, scratch) {
                Step::Moved => {}
                Step::Blocked => return false,
                Step::Ended(end) => {
                    if let Some(first) = self.rx.pop_front() {
                        ended.push((first.posted, end));
                    }
                }
            }
        }
        !self.rx.is_empty()
    }

    /// Ends the polls that find something.
    pub(super) fn look(&mut self, ended: &mut Ended) {
        let fd = self.fd.as_fd();
        self.polls.retain(|(posted, events)| match poll_once(fd, *events) {
            Some(end) => {
                ended.push((*posted, end));
                false
            }
            None => true,
        });
    }

    /// Ends operations for which `which` is true: cancelled, late, or of a closed descriptor. An
    /// operation that the helper carries out goes on. Returns how many ended.
    pub(super) fn cut(
        &mut self,
        mut which: impl FnMut(&Posted) -> bool,
        why: impl Fn(&Posted) -> Failure,
        ended: &mut Ended,
    ) -> usize {
        let before = ended.len();
        for queue in [&mut self.tx, &mut self.rx] {
            queue.retain(|x| {
                let keep = !which(&x.posted);
                if !keep {
                    ended.push((x.posted, x.end(Err(why(&x.posted)))));
                }
                keep
            });
        }
        let mut end = |posted: &Posted| {
            let keep = !which(posted);
            if !keep {
                ended.push((*posted, End::new(0, Err(why(posted)))));
            }
            keep
        };
        self.polls.retain(|(posted, _)| end(posted));
        let held = usize::from(self.accepting.job.is_some() && !self.accepting.queue.is_empty());
        let mut at = 0;
        self.accepting.queue.retain(|posted| {
            at += 1;
            at <= held || end(posted)
        });
        ended.len() - before
    }

    /// All operations in flight.
    pub(super) fn posted(&self) -> impl Iterator<Item = &Posted> {
        (self.tx.iter().map(|x| &x.posted))
            .chain(self.rx.iter().map(|x| &x.posted))
            .chain(self.polls.iter().map(|(p, _)| p))
            .chain(self.accepting.queue.iter())
            .chain(self.connecting.iter().map(|c| &c.posted))
    }

    /// True if the program has closed the descriptor `number`, or given the number to another file.
    pub(super) fn has_lost(&self, number: RawFd) -> bool {
        let (dev, ino, _) = self.name;
        !sys::identify(number).is_ok_and(|id| (id.dev, id.ino) == (dev, ino))
    }
}

/// The end of a poll; None if poll(2) finds nothing.
pub(super) fn poll_once(fd: BorrowedFd<'_>, events: i16) -> Option<End> {
    match sys::poll_now(fd, events) {
        Ok(0) => None,
        Ok(revents) => Some(End { revents, ..End::new(0, Ok(())) }),
        Err(e) => Some(End::new(0, Err(Failure::os("poll", &e)))),
    }
}
