//! One kernel socket with operations in flight: its queues, and what moves them.
//!
//! Sends (with files and shutdowns) are one queue, receives another; each is carried
//! out in order. While a connect is under way both wait. Accepts and polls are lists of
//! their own.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use super::call::{PIECES, Step, Xfer};
use super::files::Scratch;
use super::types::{CALL_MAX, End, Failure, Kind, Posted, Target};
use crate::sys::{self, IoVec};

/// Tries for one direction before the others have their turn.
const TRIES: usize = 32;

/// What names a socket: its inode; of what is no socket the number too, as both ends
/// of a pipe have one inode.
pub(super) type Name = (u64, u64, RawFd);
/// The number in the name of a socket, whose inode is enough.
pub(super) const NO_NUMBER: RawFd = -1;

/// The name of the entry for `target`.
pub(super) fn name(target: &Target<'_>) -> Name {
    let number = if target.identity.socket { NO_NUMBER } else { target.fd.as_raw_fd() };
    (target.identity.dev, target.identity.ino, number)
}

/// Closes our descriptor of a socket. If the owner has closed its own, this one is the last, and
/// SO_LINGER may make its close(2) wait for the peer: another thread does that.
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
    /// The helper's job; none if the reactor will tell.
    pub(super) job: Option<u64>,
    /// It was asked to end before the helper has answered.
    pub(super) cut: Option<Failure>,
}

/// Accepts that wait.
#[derive(Default)]
pub(super) struct Accepting {
    pub(super) queue: VecDeque<Posted>,
    /// The helper's job, which takes the next connection for the first of them.
    pub(super) job: Option<u64>,
    /// The first was asked to end, and the helper has yet to say how.
    pub(super) cut: Option<Failure>,
}

/// A socket, held by a descriptor of our own while operations are in flight.
pub(super) struct Sock {
    pub(super) name: Name,
    /// Shared with a batch of kept sends (`coalesce`), which has them before they are in `tx`.
    pub(super) fd: Arc<OwnedFd>,
    pub(super) kind: Kind,
    pub(super) tx: VecDeque<Xfer>,
    pub(super) rx: VecDeque<Xfer>,
    pub(super) polls: Vec<(Posted, i16)>,
    pub(super) accepting: Accepting,
    pub(super) connecting: Option<Connecting>,
    /// What the reactor watches: (readable, writable).
    pub(super) watched: (bool, bool),
    /// What it has reported since the last look.
    pub(super) ready: (bool, bool),
    /// On the list of those to be looked after.
    pub(super) listed: bool,
    /// It is counted among those that wait for room.
    pub(super) counted: bool,
    /// Its first send is for an address whose queue is full, which no readiness tells.
    pub(super) must_retry: bool,
}

/// What became of several sends in one call.
enum Gathered {
    /// Some of it left (all or not: only a refusal says that the socket is full).
    Moved,
    /// The socket is full.
    Blocked,
    /// There are not several.
    Nothing,
}

/// What ended, for the table to hand on.
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

    /// What must be watched now.
    pub(super) fn wanted(&self) -> (bool, bool) {
        let poll = |event: i16| self.polls.iter().any(|(_, events)| events & event != 0);
        let accept = !self.accepting.queue.is_empty() && self.accepting.job.is_none();
        let (rx, tx) = match &self.connecting {
            Some(c) => (false, c.job.is_none()),
            None => (!self.rx.is_empty() || accept, !self.tx.is_empty()),
        };
        // A poll for nothing is told of errors, which any watch brings.
        let errors = self.polls.iter().any(|(_, events)| *events == 0);
        (rx || poll(libc::POLLIN) || errors, tx || poll(libc::POLLOUT))
    }

    /// Sends until the queue is empty or nothing more can be taken. True if there may be
    /// more to do at once.
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

    /// The first send has ended; with one that failed, the parts behind it of the same send.
    fn end_first(&mut self, end: End, ended: &mut Ended) {
        let Some(first) = self.tx.pop_front() else { return };
        let (group, failed) = (first.posted.group, end.result.is_err());
        ended.push((first.posted, end));
        if failed && group != 0 {
            self.cut(|p| p.group == group, |_| Failure::Cancelled, ended);
        }
    }

    /// Sends what several sends hold in one call: they are one stretch of the stream.
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
            // It is the first one's: the others meet it, or another, themselves.
            Err(e) => {
                if let Some(first) = self.tx.front() {
                    let end = first.end(Err(Failure::os("send", &e)));
                    self.end_first(end, ended);
                }
                Gathered::Moved
            }
        }
    }

    /// Shares out what a gathered send has taken.
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
            // Empty sends behind it have left with it.
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

    /// Ends the polls that have found something.
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

    /// Ends operations that the program, a time limit or a closed descriptor ends;
    /// those that the helper has in hand only if it can let go of them. Returns how many.
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

    /// True if the program has closed (or made another file of) the descriptor `number`.
    pub(super) fn has_lost(&self, number: RawFd) -> bool {
        let (dev, ino, _) = self.name;
        !sys::identify(number).is_ok_and(|id| (id.dev, id.ino) == (dev, ino))
    }
}

/// A poll that has something to tell.
pub(super) fn poll_once(fd: BorrowedFd<'_>, events: i16) -> Option<End> {
    match sys::poll_now(fd, events) {
        Ok(0) => None,
        Ok(revents) => Some(End { revents, ..End::new(0, Ok(())) }),
        Err(e) => Some(End::new(0, Err(Failure::os("poll", &e)))),
    }
}
