//! Sends that are kept for the ones behind them, so that one call takes several.
//!
//! A program in a burst posts sends on one stream, one after the other, and comes back to
//! dequeue. From the fifth on such sends wait for their like: until there are [`TOGETHER`]
//! bytes of them, until the program waits for an event, or comes for one that is there when
//! [`PAUSE`] is over, or until another thread takes the lead, which is after some milliseconds at
//! most. A program that comes after each single send has none kept. On loopback four sends of 64 KiB in one call move
//! about 1.3 times as much as in four calls: the socket is locked once, its segments are
//! full ones, and the receiver is woken less often.
//!
//! Who posts and then does not come to dequeue (but waits in a call of its own, say) had
//! them kept *in vain*: before the next are kept there must be a much longer burst.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::Plain;
use super::call::{PIECES, What, Xfer};
use super::sock::{Name, name, release};
use super::types::{Done, End, Failure, Kind, Pieces, Posted, Target};
use crate::ids::OpId;
use crate::mem::Segment;
use crate::sys::{self, IoVec};
use crate::time::Time;

/// Sends of a burst that leave one by one: at first, and after ever so many were kept in
/// vain.
const ALONE: u32 = 4;
const ALONE_MAX: u32 = 1 << 10;
/// Bytes that leave together.
const TOGETHER: usize = 256 << 10;
/// A pause that ends a burst.
const PAUSE: Duration = Duration::from_micros(50);

/// Sends that follow each other on one stream.
pub(super) struct Burst {
    /// The number that the program sends by. (If it means another socket meanwhile, nothing
    /// is lost but the count.)
    number: Option<RawFd>,
    sends: u32,
    /// When the last was posted; none if the time since went into system calls.
    last: Option<Time>,
    alone: u32,
}

impl Default for Burst {
    fn default() -> Burst {
        Burst { number: None, sends: 0, last: None, alone: ALONE }
    }
}

impl Burst {
    /// One more; true if it may wait for others.
    pub(super) fn grow(&mut self, number: RawFd, now: Time) -> bool {
        if self.number != Some(number) {
            *self = Burst { number: Some(number), ..Burst::default() };
        } else if self.last.is_some_and(|last| now.since(last) > PAUSE) {
            self.sends = 0;
        }
        (self.sends, self.last) = (self.sends.saturating_add(1), Some(now));
        self.sends > self.alone
    }

    /// The program came for its events.
    fn served(&mut self) {
        (self.alone, self.last) = ((self.alone / 2).max(ALONE), None);
    }

    /// It came after each of them: none has another to wait for.
    fn alone(&mut self) {
        (self.sends, self.alone, self.last) = (0, (self.alone * 2).min(ALONE_MAX), None);
    }

    /// It did not.
    fn in_vain(&mut self) {
        (self.sends, self.alone) = (0, (self.alone * 8).min(ALONE_MAX));
    }
}

/// A kept send: one piece, not empty, without a time limit.
pub(super) struct KeptSend {
    op: OpId,
    /// The descriptor that it was posted with.
    number: RawFd,
    piece: Segment,
}

impl KeptSend {
    /// The same as a transfer of which the kernel has taken `done` bytes.
    fn into_xfer(self, done: usize) -> Xfer {
        let posted = Posted { op: self.op, number: self.number, limit: None, group: 0 };
        let what = What::Send { pieces: Pieces::One(self.piece), to: None, flags: 0 };
        Xfer { posted, what, done }
    }

    /// The reverse, for a transfer that may be kept ([`may_be_kept`]).
    fn of(xfer: Xfer) -> Result<KeptSend, Xfer> {
        match xfer {
            Xfer { posted, what: What::Send { pieces: Pieces::One(piece), .. }, .. } => {
                Ok(KeptSend { op: posted.op, number: posted.number, piece })
            }
            other => Err(other),
        }
    }
}

/// True if a transfer that nobody has tried yet is small and plain enough to be kept.
fn may_be_kept(xfer: &Xfer) -> bool {
    xfer.posted.limit.is_none()
        && xfer.posted.group == 0
        && xfer.gatherable().is_some_and(|p| matches!(p, Pieces::One(_)) && is_small(p.bytes()))
}

fn is_small(len: usize) -> bool {
    (1..TOGETHER).contains(&len)
}

/// The kept sends of one stream, in the order of posting. They are apart from the table, as most
/// leave in one call and never wait for room.
pub(super) struct Batch {
    name: Name,
    /// The socket, whatever becomes of the program's number. The table's entry has the same.
    fd: Arc<OwnedFd>,
    sends: Vec<KeptSend>,
    bytes: usize,
    /// Until when they may wait though a thread comes for its events, and finds them there.
    until: Time,
}

impl Batch {
    /// All of them in one call; returns the bytes that the kernel took.
    fn send(&self) -> std::io::Result<usize> {
        let mut list = [IoVec::EMPTY; PIECES];
        for (place, send) in list.iter_mut().zip(&self.sends) {
            *place = send.piece.io_vec(0, send.piece.len());
        }
        let list = &list[..self.sends.len().min(PIECES)];
        sys::send_message(self.fd.as_fd(), list, None, 0)
    }

    fn is_full(&self) -> bool {
        self.bytes >= TOGETHER || self.sends.len() >= PIECES
    }
}

impl Plain {
    /// Keeps a send that is to be posted, or lets it and those before it leave; gives back
    /// a transfer that is to go its own way.
    pub(super) fn keep(&mut self, now: Time, target: &Target<'_>, xfer: Xfer) -> Result<(), Xfer> {
        if !xfer.is_tx() {
            return Err(xfer);
        }
        let may_wait = may_be_kept(&xfer)
            && matches!(target.kind, Kind::Stream | Kind::Unseen)
            && self.burst.grow(xfer.posted.number, now);
        let target = &if may_wait { self.seen(target) } else { *target };
        let may_wait = may_wait && target.kind == Kind::Stream;
        if self.batch_of(&name(target)).is_some() {
            self.post_behind(now, xfer, may_wait);
            return Ok(());
        }
        let free = || {
            self.by_name.get(&name(target)).is_none_or(|slot| {
                let s = &self.socks[*slot];
                s.connecting.is_none() && s.tx.is_empty()
            })
        };
        if !may_wait || !free() {
            return Err(xfer);
        }
        if !self.may_keep {
            self.would_keep = true;
            return Err(xfer);
        }
        self.start_batch(now, target, xfer)
    }

    /// Begins a batch with a send; those of another socket leave now. A send whose socket cannot be
    /// held goes its own way.
    fn start_batch(&mut self, now: Time, target: &Target<'_>, xfer: Xfer) -> Result<(), Xfer> {
        self.send_batch(now);
        let name = name(target);
        let fd = match self.by_name.get(&name) {
            Some(slot) => Arc::clone(&self.socks[*slot].fd),
            None => match target.fd.try_clone_to_owned() {
                Ok(fd) => Arc::new(fd),
                Err(_) => return Err(xfer),
            },
        };
        let first = KeptSend::of(xfer)?;
        let (bytes, mut sends) = (first.piece.len(), std::mem::take(&mut self.spare));
        sends.push(first);
        self.batch = Some(Batch { name, fd, sends, bytes, until: now + PAUSE });
        Ok(())
    }

    /// The batch, if it is of the socket with this name.
    fn batch_of(&self, name: &Name) -> Option<&Batch> {
        self.batch.as_ref().filter(|b| b.name == *name)
    }

    /// True if there is a batch, and it is of this socket, which is then a stream.
    pub(super) fn keeps_for(&self, name: &Name) -> bool {
        self.batch_of(name).is_some()
    }

    /// The descriptor of a batch of the socket with this name.
    pub(super) fn batch_fd(&self, name: &Name) -> Option<Arc<OwnedFd>> {
        self.batch_of(name).map(|b| Arc::clone(&b.fd))
    }

    /// Posts a send behind those that are kept for its socket. All of them leave now, unless it
    /// may wait, too.
    fn post_behind(&mut self, now: Time, xfer: Xfer, may_wait: bool) {
        let xfer = match may_wait {
            true => match KeptSend::of(xfer) {
                Ok(send) => return self.join(now, send),
                Err(xfer) => xfer,
            },
            false => xfer,
        };
        let Some(batch) = self.batch.take() else { return };
        let slot = self.spill(now, batch, 0);
        self.note_limit(&xfer.posted, slot);
        let s = &mut self.socks[slot];
        s.tx.push_back(xfer);
        s.ready.1 = true;
        self.pump(slot, now);
        self.burst.last = None;
    }

    /// Adds a send to the batch, which leaves if it is full or nobody is sure to come for it.
    fn join(&mut self, now: Time, send: KeptSend) {
        let Some(batch) = &mut self.batch else { return };
        batch.bytes += send.piece.len();
        batch.sends.push(send);
        if !self.may_keep || batch.is_full() {
            self.send_batch(now);
            self.burst.last = None;
        }
    }

    /// True if the batch is of the socket that `number` stands for. The number may mean another
    /// socket since the send before it, so the kernel is asked; our descriptor of the socket makes
    /// that a cheap question.
    pub(super) fn keeps_for_number(&self, number: RawFd) -> bool {
        self.batch.as_ref().is_some_and(|b| sys::is_duplicate(number, b.fd.as_fd()))
    }

    /// Posts a send to the socket of the batch; `burst`: it may wait there. True if it does, and no
    /// operation has ended.
    pub fn post_kept(&mut self, now: Time, burst: bool, posted: Posted, piece: Segment) -> bool {
        let send = KeptSend { op: posted.op, number: posted.number, piece };
        match burst && is_small(send.piece.len()) {
            true => self.join(now, send),
            false => self.post_behind(now, send.into_xfer(0), false),
        }
        self.done.is_empty()
    }

    /// An operation of this socket is held: when its time is over, it ends.
    pub(super) fn note_limit(&mut self, posted: &Posted, slot: usize) {
        if let Some((at, _)) = posted.limit {
            self.limits.insert((at, posted.op), slot);
        }
    }

    /// The batch leaves, as far as there is room; the rest waits in the table.
    pub(super) fn send_batch(&mut self, now: Time) {
        let Some(mut batch) = self.batch.take() else { return };
        let sent = match batch.send() {
            Ok(sent) if sent == batch.bytes => {
                for send in batch.sends.drain(..) {
                    self.done.push_back(Done::sent(send.op, send.piece.len()));
                }
                self.spare = batch.sends;
                return release(batch.fd);
            }
            Ok(sent) => sent,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                let slot = self.spill(now, batch, 0);
                return self.settle(slot, now);
            }
            // It is the first one's: the others meet it, or another, themselves.
            Err(e) => {
                let first = batch.sends.remove(0).into_xfer(0);
                self.end(first.posted, End::new(0, Err(Failure::os("send", &e))));
                0
            }
        };
        let slot = self.spill(now, batch, sent);
        self.socks[slot].ready.1 = true;
        self.pump(slot, now);
    }

    /// The batch leaves, if it is of the socket with this name.
    pub(super) fn send_batch_of(&mut self, name: &Name, now: Time) {
        if self.keeps_for(name) {
            self.send_batch(now);
        }
    }

    /// Moves a batch of which the kernel has taken `sent` bytes to the socket's entry in the table,
    /// and ends what has left. The caller moves or settles the entry.
    fn spill(&mut self, now: Time, mut batch: Batch, mut sent: usize) -> usize {
        let slot = self.entry(now, batch.name, batch.fd, Kind::Stream);
        for send in batch.sends.drain(..) {
            let len = send.piece.len();
            let done = sent.min(len);
            sent -= done;
            match done == len {
                true => self.done.push_back(Done::sent(send.op, len)),
                false => self.socks[slot].tx.push_back(send.into_xfer(done)),
            }
        }
        self.spare = batch.sends;
        slot
    }

    /// What is kept leaves, as a thread has come for it.
    pub(super) fn send_all_kept(&mut self, now: Time) {
        let Some(batch) = &self.batch else { return };
        let several = batch.sends.len() > 1;
        self.send_batch(now);
        if several { self.burst.served() } else { self.burst.alone() }
    }

    /// Whether sends may be kept during the call that begins: the program's thread, or one
    /// of ours, is sure to come soon.
    pub fn begin_call(&mut self, may_keep: bool) {
        (self.may_keep, self.would_keep) = (may_keep, false);
    }

    /// Until when a thread that finds its events need not lead for sends that are kept: the
    /// more there are, the more leave in one call. Those that wait for room are another matter.
    pub fn rests_until(&self) -> Option<Time> {
        self.batch.as_ref().filter(|_| self.full.is_empty()).map(|b| b.until)
    }

    /// True if sends are kept. And if it is good for sends that the program's thread leads
    /// when it comes: they are kept, or would be; or they wait for room, and a thread of ours
    /// that found it would be in the way of the program's next posts.
    pub fn keeps(&self) -> (bool, bool) {
        let kept = self.batch.is_some();
        (kept, kept || self.would_keep || !self.full.is_empty())
    }

    /// Nobody came for what is kept.
    pub fn kept_in_vain(&mut self) {
        if self.batch.is_some() {
            self.burst.in_vain();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixStream;

    use super::super::{Direct, KernelIo, Request};
    use super::*;
    use crate::mem::Buffer;

    /// A stream whose peer counts what has come.
    struct World {
        plain: Plain,
        _poll: mio::Poll,
        ours: UnixStream,
        peer: UnixStream,
        memory: Vec<Buffer>,
        now: Time,
        posted: u64,
    }

    fn target(ours: &UnixStream) -> Target<'_> {
        let identity = sys::identify(ours.as_raw_fd()).unwrap();
        Target { fd: ours.as_fd(), identity, kind: Kind::Stream }
    }

    impl World {
        fn new() -> World {
            let poll = mio::Poll::new().unwrap();
            let plain = Plain::new(poll.registry().try_clone().unwrap(), 0, KernelIo::Auto);
            let (ours, peer) = UnixStream::pair().unwrap();
            peer.set_nonblocking(true).unwrap();
            let (memory, now) = (Vec::new(), Time::from_nanos(1));
            World { plain, _poll: poll, ours, peer, memory, now, posted: 0 }
        }

        fn post(&mut self, request: Request) {
            self.post_within(None, request);
        }

        fn post_within(&mut self, limit: Option<Duration>, request: Request) {
            self.posted += 1;
            let (op, number) = (self.posted, self.ours.as_raw_fd());
            let limit = limit.map(|d| (self.now + d, d));
            let posted = Posted { op, number, limit, group: 0 };
            self.plain.post(self.now, posted, &target(&self.ours), request);
        }

        fn send(&mut self, len: usize) {
            let request = self.sending(len);
            self.post(request);
        }

        fn sending(&mut self, len: usize) -> Request {
            let buffer = Buffer::from(vec![7; len]);
            let pieces = Pieces::One(buffer.segment());
            self.memory.push(buffer);
            Request::Send { pieces, to: None, flags: 0 }
        }

        /// A burst that is long enough, in single bytes.
        fn burst(&mut self) {
            for _ in 0..ALONE {
                self.send(1);
            }
            assert_eq!(self.arrived(), ALONE as usize);
        }

        /// Bytes that have come since the last look.
        fn arrived(&mut self) -> usize {
            let (mut total, mut room) = (0, vec![0; 1 << 16]);
            loop {
                match self.peer.read(&mut room) {
                    Ok(0) => return total,
                    Ok(n) => total += n,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return total,
                    Err(e) => panic!("{e}"),
                }
            }
        }

        /// Operations that have ended since the last look: (name, whether well).
        fn ended(&mut self) -> Vec<(u64, bool)> {
            std::iter::from_fn(|| self.plain.poll_done())
                .map(|done| (done.op, done.end.result.is_ok()))
                .collect()
        }
    }

    #[test]
    fn sends_of_a_burst_wait_for_the_program() {
        let mut w = World::new();
        w.plain.begin_call(true);
        w.burst();
        w.send(1);
        w.send(1);
        assert_eq!((w.arrived(), w.plain.keeps()), (0, (true, true)));
        assert_eq!(w.ended().len(), ALONE as usize);
        w.plain.progress(w.now);
        assert_eq!((w.arrived(), w.plain.keeps()), (2, (false, false)));
        assert_eq!(w.ended(), [(5, true), (6, true)]);
        // The burst goes on, however long the system calls took.
        w.now = w.now + PAUSE * 2;
        w.send(1);
        assert_eq!(w.arrived(), 0);
        // A pause ends it, and takes along what was kept.
        w.now = w.now + PAUSE * 2;
        w.send(1);
        assert_eq!(w.arrived(), 2);
        assert!(!w.plain.is_waiting(), "an idle socket is not held");
    }

    /// True if the kernel tells which numbers are duplicates; if it does not, fstat(2) serves.
    fn tells_duplicates(w: &World) -> bool {
        let second = w.ours.try_clone().unwrap();
        let told = sys::is_duplicate(second.as_raw_fd(), w.ours.as_fd());
        if !told {
            println!("skipped: this kernel does not tell duplicates (Linux 6.10 does)");
        }
        told
    }

    /// Posts a byte by a number (None: the one of `send`) as the C library does; true if it waits
    /// with those that are kept.
    fn joins(w: &mut World, fd: Option<&UnixStream>) -> bool {
        let buffer = Buffer::from(vec![7]);
        let piece = buffer.segment();
        let fd = fd.unwrap_or(&w.ours);
        let number = fd.as_raw_fd();
        let Direct::Kept { burst } = w.plain.send_direct(w.now, fd.as_fd(), &piece) else {
            return false;
        };
        w.memory.push(buffer);
        w.posted += 1;
        let posted = Posted { op: w.posted, number, limit: None, group: 0 };
        w.plain.post_kept(w.now, burst, posted, piece)
    }

    #[test]
    fn a_send_by_number_joins_those_of_its_own_socket_only() {
        let mut w = World::new();
        if !tells_duplicates(&w) {
            return;
        }
        let stranger = UnixStream::pair().unwrap().0;
        w.plain.begin_call(true);
        w.burst();
        assert!(!joins(&mut w, None), "none is kept yet");
        w.send(1);
        assert_eq!(w.ended().len(), ALONE as usize);
        assert!(joins(&mut w, None) && joins(&mut w, None));
        assert!(!joins(&mut w, Some(&stranger)));
        assert_eq!((w.arrived(), w.ended()), (0, vec![]));
        w.plain.progress(w.now);
        assert_eq!(w.arrived(), 3);
        assert_eq!(w.ended(), [(5, true), (6, true), (7, true)]);
        assert!(!joins(&mut w, None), "none is kept any more");
    }

    #[test]
    fn a_send_that_does_not_wait_takes_those_before_it_along() {
        for late in [true, false] {
            let mut w = World::new();
            if !tells_duplicates(&w) {
                return;
            }
            let second = w.ours.try_clone().unwrap();
            w.plain.begin_call(true);
            w.burst();
            w.send(1);
            assert_eq!((w.arrived(), w.ended().len()), (0, ALONE as usize));
            // After a pause, or by another number of the socket, a send is of no burst.
            let other = (!late).then_some(&second);
            w.now = if late { w.now + PAUSE * 2 } else { w.now };
            assert!(!joins(&mut w, other));
            assert_eq!(w.arrived(), 2);
            assert_eq!(w.ended(), [(5, true), (6, true)]);
        }
    }

    #[test]
    fn enough_bytes_leave_by_themselves() {
        let mut w = World::new();
        w.plain.begin_call(true);
        w.burst();
        // (A UNIX-domain socket has room for less: that some of it came is enough.)
        for _ in 0..8 {
            assert_eq!(w.arrived(), 0);
            w.send(TOGETHER / 8);
        }
        assert!(w.arrived() > 0);
        // One that is large enough waits for nobody.
        let mut w = World::new();
        w.plain.begin_call(true);
        w.burst();
        w.send(TOGETHER);
        assert!(w.arrived() > 0);
    }

    #[test]
    fn what_is_no_such_send_takes_those_before_it_along() {
        let mut w = World::new();
        w.plain.begin_call(true);
        w.burst();
        w.send(1);
        w.post(Request::Shutdown(libc::SHUT_WR));
        assert_eq!(w.arrived(), 1);
        assert_eq!(w.peer.read(&mut [0]).unwrap(), 0, "the end, behind it");
        assert_eq!(w.ended().last(), Some(&(6, true)));
    }

    #[test]
    fn a_time_limit_holds_behind_them_too() {
        let mut w = World::new();
        w.plain.begin_call(true);
        w.burst();
        w.send(1);
        // More than the peer, which does not read, has room for.
        let (limit, request) = (Duration::from_millis(1), w.sending(8 << 20));
        w.post_within(Some(limit), request);
        assert_eq!(w.ended().last(), Some(&(5, true)));
        w.now = w.now + limit;
        assert!(w.plain.next_timeout().is_some_and(|at| at <= w.now));
        w.plain.progress(w.now);
        assert_eq!(w.ended(), [(6, false)]);
    }

    #[test]
    fn a_cancel_finds_them_done_if_there_is_room() {
        let mut w = World::new();
        w.plain.begin_call(true);
        w.burst();
        w.send(1);
        assert_eq!(w.plain.cancel(w.now, &target(&w.ours), |_| true), 0);
        assert_eq!(w.arrived(), 1);
    }

    #[test]
    fn nothing_is_kept_if_nobody_is_sure_to_come() {
        let mut w = World::new();
        w.plain.begin_call(false);
        w.burst();
        assert_eq!(w.plain.keeps(), (false, false));
        w.send(1);
        assert_eq!((w.arrived(), w.plain.keeps()), (1, (false, true)));
        // Who had them kept in vain must send many more before it happens again.
        w.plain.begin_call(true);
        w.send(1);
        assert_eq!(w.arrived(), 0);
        w.plain.kept_in_vain();
        w.plain.progress(w.now);
        assert_eq!(w.arrived(), 1);
        for _ in 0..ALONE * 4 {
            w.send(1);
            assert_eq!(w.arrived(), 1);
        }
    }
}
