//! Small sends that are kept for the sends behind them, so that they leave in one call.
//!
//! A program in a burst posts sends on one stream, one after the other, and comes back to dequeue.
//! From the fifth on, such sends are kept in a [`Batch`](super::batch::Batch). The batch leaves
//! - when it has [`TOGETHER`] bytes or [`PIECES`](super::call::PIECES) sends;
//! - when the program waits for an event, or dequeues one without a wait after [`PAUSE`](super::send_burst::PAUSE);
//! - when another thread takes the lead, which happens after some milliseconds at most.
//!
//! A program that dequeues after each single send has none kept. On loopback four sends of 64 KiB in
//! one call move 30 % more than in four calls: the kernel locks the socket once, its segments are full,
//! and the receiver wakes less often.
//!
//! Some programs post and then do not dequeue, but wait in a call of their own. The library keeps sends
//! of such a program again only after a much longer burst.

use super::Plain;
use super::batch::{Batch, KeptSend, Rested, may_be_kept};
use super::call::Xfer;
use super::send_burst::SendBurst;
use super::sock::name;
use super::types::{Kind, Posted, Target};
use crate::time::Time;

/// Bytes with which a batch leaves.
pub(super) const TOGETHER: usize = 256 << 10;

/// What decides which sends are kept, and the sends that are.
#[derive(Default)]
pub(super) struct Coalescer {
    /// The burst of sends that goes on.
    pub(super) burst: SendBurst,
    /// The sends of it that are kept.
    pub(super) batch: Option<Batch>,
    /// The socket of the batch that left last. None: there is no lease. If there is one, it may have
    /// ended, too.
    pub(super) rested: Option<Rested>,
    /// Empty: memory for the sends of the next batch.
    pub(super) spare: Vec<KeptSend>,
    /// Set by each call: sends may be kept during it.
    may_keep: bool,
    /// A send of this call would have been kept if that had been allowed.
    would_keep: bool,
}

impl Coalescer {
    /// Begins a call of the program.
    fn begin_call(&mut self, may_keep: bool) {
        (self.may_keep, self.would_keep) = (may_keep, false);
    }

    /// True if sends may be kept during this call.
    pub(super) fn may_keep(&self) -> bool {
        self.may_keep
    }

    /// A send would have been kept if that had been allowed.
    pub(super) fn note_would_keep(&mut self) {
        self.would_keep = true;
    }

    /// True if sends are kept.
    pub(super) fn keeps(&self) -> bool {
        self.batch.is_some()
    }
}

impl Plain {
    /// Keeps a new send, or sends it together with the batch before it. Gives back
    /// a transfer that must go its own way.
    pub(super) fn keep(&mut self, now: Time, target: &Target<'_>, xfer: Xfer) -> Result<(), Xfer> {
        if !xfer.is_tx() {
            return Err(xfer);
        }
        let may_wait = may_be_kept(&xfer)
            && matches!(target.kind, Kind::Stream | Kind::Unseen)
            && self.coalescer.burst.grow(xfer.posted.number, now);
        let target = &if may_wait { self.seen(target) } else { *target };
        let may_wait = may_wait && target.kind == Kind::Stream;
        if self.coalescer.keeps_for(&name(target)) {
            self.post_behind(now, xfer, may_wait);
            return Ok(());
        }
        if !may_wait || !self.is_free(&name(target)) {
            return Err(xfer);
        }
        if !self.coalescer.burst.is_on(name(target)) {
            return Err(xfer);
        }
        if !self.coalescer.may_keep() {
            self.coalescer.note_would_keep();
            return Err(xfer);
        }
        self.start_batch(now, target, xfer)
    }

    /// Notes the time limit, if any, of an operation that the entry in `slot` holds.
    pub(super) fn note_limit(&mut self, posted: &Posted, slot: usize) {
        if let Some((at, _)) = posted.limit {
            self.timers.limit(posted.op, at, slot);
        }
    }

    /// Sends what is kept, for a thread that leads.
    pub(super) fn send_all_kept(&mut self, now: Time) {
        let Some(batch) = &self.coalescer.batch else { return };
        let several = batch.sends.len() > 1;
        self.send_batch(now);
        let burst = &mut self.coalescer.burst;
        if several { burst.served() } else { burst.alone() }
    }

    /// Begins a call. `may_keep`: sends may be kept, because a thread is sure to lead soon.
    pub fn begin_call(&mut self, may_keep: bool) {
        self.coalescer.begin_call(may_keep);
    }

    /// Until then a thread that finds its events in the queue need not lead for the kept sends: the
    /// more sends there are, the more leave in one call. None: nothing is kept, or sends wait for
    /// room.
    pub fn rests_until(&self) -> Option<Time> {
        self.coalescer.batch.as_ref().filter(|_| !self.socks.has_full()).map(|b| b.until)
    }

    /// Whether sends are kept; and whether the program's thread should lead when it comes. It should
    /// if sends are kept, or would be if it led, or wait for room: the background thread would be
    /// in the way of the program's next posts.
    pub fn keeps(&self) -> (bool, bool) {
        let kept = self.coalescer.keeps();
        (kept, kept || self.coalescer.would_keep || self.socks.has_full())
    }

    /// True if the program has sent on a stream that could keep sends.
    #[inline]
    pub fn has_sent(&self) -> bool {
        self.coalescer.burst.has_begun()
    }

    /// True if no kernel socket is held, and none would be: [`Plain::keeps`], [`Plain::rests_until`]
    /// and [`Plain::is_waiting`] say that there is nothing.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !self.coalescer.would_keep && !self.socks.has_full() && !self.is_waiting()
    }

    /// The background thread leads, because the program did not come for what is kept.
    pub fn note_needless_batch(&mut self) {
        if self.coalescer.keeps() {
            self.coalescer.burst.not_served();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::send_burst::{ALONE, PAUSE};
    use super::super::{Direct, KernelIo, Lease, Pieces, Request};
    use super::*;
    use crate::mem::Buffer;
    use crate::sys;

    /// A stream whose peer counts the bytes that have come.
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

        /// Operations that have ended since the last look, as if the program dequeued their events:
        /// (name, whether well).
        fn ended(&mut self) -> Vec<(u64, bool)> {
            let (ended, lease) = self.ended_in_queue();
            lease.inspect(|lease| lease.end());
            ended
        }

        /// The same, before the program dequeues the last event; with what that leases.
        fn ended_in_queue(&mut self) -> (Vec<(u64, bool)>, Option<Arc<Lease>>) {
            let done: Vec<_> = std::iter::from_fn(|| self.plain.poll_done()).collect();
            let ended = done.iter().map(|d| (d.op, d.end.result.is_ok())).collect();
            (ended, done.into_iter().filter_map(|d| d.end.lease).next_back())
        }

        /// A batch has left, and its last event is in the queue.
        fn leave_leased(&mut self) -> Arc<Lease> {
            self.plain.begin_call(true);
            self.burst();
            self.send(1);
            self.send(1);
            self.plain.progress(self.now);
            assert_eq!(self.arrived(), 2);
            self.ended_in_queue().1.expect("a batch that has left leases its socket")
        }

        /// The program closes the stream; true if the peer sees the end.
        fn closes(mut self) -> bool {
            drop(self.ours);
            self.peer.read(&mut [0]).is_ok_and(|n| n == 0)
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
        w.plain.progress(w.plain.next_timeout().unwrap());
        assert!(!w.plain.is_waiting(), "an idle socket is not held");
    }

    /// True if the kernel says which numbers are duplicates. If it does not, the library asks by fstat(2).
    fn tells_duplicates(w: &World) -> bool {
        let second = w.ours.try_clone().unwrap();
        let told = sys::is_duplicate(second.as_raw_fd(), w.ours.as_fd());
        if !told {
            println!("skipped: this kernel does not tell duplicates (Linux 6.10 does)");
        }
        told
    }

    /// Posts a byte by a number (None: that of `send`) as the C library does; true if the send is kept.
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
    fn the_next_batch_takes_the_lease_over() {
        let mut w = World::new();
        if !tells_duplicates(&w) {
            return;
        }
        let lease = w.leave_leased();
        let second = w.ours.try_clone().unwrap();
        assert!(!joins(&mut w, Some(&second)), "of no burst");
        for _ in 0..ALONE {
            w.send(1);
        }
        assert_eq!((w.arrived(), w.ended().len()), (ALONE as usize, ALONE as usize));
        assert!(joins(&mut w, None) && joins(&mut w, None));
        lease.end();
        w.plain.progress(w.now);
        assert_eq!(w.arrived(), 2, "the batch has the descriptor, and not the lease");
    }

    #[test]
    fn a_lease_ends_with_its_event_a_tick_or_a_cancel() {
        for how in 0..3 {
            let mut w = World::new();
            let lease = w.leave_leased();
            assert!(w.plain.is_waiting(), "the socket is held");
            match how {
                0 => lease.end(),
                1 => {
                    w.now = w.plain.next_timeout().unwrap();
                    w.plain.progress(w.now);
                }
                _ => assert_eq!(w.plain.cancel(w.now, &target(&w.ours), |_| true), 0),
            }
            assert!(w.closes(), "{how}");
        }
        let mut w = World::new();
        let _lease = w.leave_leased();
        assert!(!w.closes(), "the lease runs");
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
        // A UNIX-domain socket has room for less, so a part of the bytes is enough.
        for _ in 0..8 {
            assert_eq!(w.arrived(), 0);
            w.send(TOGETHER / 8);
        }
        assert!(w.arrived() > 0);
        // A send that is large enough does not wait.
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
    fn nothing_is_kept_if_no_thread_is_sure_to_come() {
        let mut w = World::new();
        w.plain.begin_call(false);
        w.burst();
        assert_eq!(w.plain.keeps(), (false, false));
        w.send(1);
        assert_eq!((w.arrived(), w.plain.keeps()), (1, (false, true)));
        // After that a program must send many more before its sends are kept again.
        w.plain.begin_call(true);
        w.send(1);
        assert_eq!(w.arrived(), 0);
        w.plain.note_needless_batch();
        w.plain.progress(w.now);
        assert_eq!(w.arrived(), 1);
        for _ in 0..ALONE * 4 {
            w.send(1);
            assert_eq!(w.arrived(), 1);
        }
    }
}
