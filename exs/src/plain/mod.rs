//! F5: asynchronous operations on ordinary kernel sockets. The peer need not use EXS, and the
//! owner can go on using the socket as before.
//!
//! This floor promises:
//! - The socket stays as its owner left it. The library changes no flag and no option: the calls
//!   that move data carry MSG_DONTWAIT themselves.
//! - Operations of one direction are carried out in the order of posting, and each operation ends
//!   exactly once ([`End`]).
//! - While operations are in flight, the library holds a descriptor of its own for the socket. So
//!   no call can hit another file that got the number of a closed one. Otherwise the library holds
//!   nothing: the owner's close(2) is the last one, and the peer sees the end. The one exception
//!   is a lease, which ends when the program dequeues the last event of a batch of kept sends, or
//!   with the next tick (`batch`).
//! - If the program closes the descriptor that an operation was posted with, the operation ends as
//!   cancelled, as in POSIX for aio_read(3). The kernel does not report a close, so every tick
//!   (100 ms) the table compares which file each number stands for.
//!
//! This floor must not know queues, tokens or buffers. It does what a thread with a reactor of its
//! own would do.
//!
//! Modules: [`Plain`] is the whole. Its parts own their fields: `table` has the sockets, and `sock` the
//! queues of each; `timers` knows when to look at them; `coalesce` decides which small sends are kept,
//! `send_burst` counts those that follow each other, and `batch` sends them together; `helper` waits in
//! connect(2) and accept(2) where the socket blocks, for `wait`, which does connects and accepts; `files`
//! fetches the bytes of files. `call` makes the system calls of one transfer, `direct` sends on a number
//! without a look at it first, `ends` ends operations early, `figures` says what sockets are doing, and
//! `types` is the vocabulary.
//!
//! **Readiness, and not io_uring, moves the data.** The library tries an operation when it is posted,
//! unless another is before it or it is kept. Then the reactor (edge-triggered) says when to try again,
//! and several sends leave in one gathered call. On loopback with 64 KiB sends, 16 in flight, io_uring
//! moved as much as this and as a blocking loop. But requests of io_uring end with the thread that
//! submitted them, and completions interrupt that thread's epoll_wait(2).

mod batch;
mod call;
mod coalesce;
mod direct;
mod ends;
mod figures;
mod files;
mod helper;
mod send_burst;
mod sock;
mod table;
mod timers;
mod types;
mod wait;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use mio::unix::SourceFd;

use self::call::{Step, What, Xfer};
use self::coalesce::Coalescer;
use self::files::{CHUNK, Scratch};
use self::helper::Jobs;
use self::sock::{Ended, Name, Sock, name, release};
use self::table::KernelTable;
use self::timers::KernelTimers;
use crate::ids::OpId;
use crate::rnic::Ready;
use crate::time::Time;

pub use self::batch::Lease;
pub use self::direct::Direct;
#[cfg(any(test, feature = "internals"))]
pub use self::direct::Sent;
pub use self::figures::KernelFigures;
pub use self::types::{End, Failure, KernelDone, KernelIo, Kind, Pieces, Posted, Request, Target};

/// Full sockets that a spinning thread tries; the reactor reports the others.
const SPUN: usize = 4;
/// Tries of a transfer when it is posted, before other sockets have their turn.
const TRIES: usize = 8;
/// The tokens of the helper's bell and of the bell for files: the last two.
const BELL: usize = u32::MAX as usize;
const FETCHED: usize = BELL - 1;

/// The table of kernel sockets that have operations in flight.
pub struct Plain {
    registry: mio::Registry,
    token_base: usize,
    socks: KernelTable,
    timers: KernelTimers,
    coalescer: Coalescer,
    jobs: Jobs,
    scratch: Scratch,
    /// Operations that have ended in the socket that is being pumped.
    ended: Ended,
    done: VecDeque<KernelDone>,
}

impl Plain {
    /// Makes an empty table. Its tokens of the reactor are the 2^32 from `token_base` on.
    pub fn new(registry: mio::Registry, token_base: usize, io: KernelIo) -> Plain {
        Plain {
            registry,
            token_base,
            socks: KernelTable::default(),
            timers: KernelTimers::default(),
            coalescer: Coalescer::default(),
            jobs: Jobs::new(io),
            scratch: Scratch::default(),
            ended: Vec::new(),
            done: VecDeque::new(),
        }
    }

    // ---- posting -------------------------------------------------------------

    /// Posts an operation, and carries it out at once if possible. Never waits.
    pub fn post(&mut self, now: Time, posted: Posted, target: &Target<'_>, request: Request) {
        let what = match request {
            Request::Send { pieces, to, flags } => What::Send { pieces, to, flags },
            Request::File(range) => What::File(range),
            Request::Shutdown(how) => What::Shutdown(how),
            Request::Recv { pieces, flags, from } => What::Recv { pieces, flags, from },
            Request::Connect(addr) => {
                self.send_batch_of(&name(target), now);
                return self.post_connect(now, posted, &self.seen(target), addr);
            }
            Request::Accept => return self.post_accept(now, posted, &self.seen(target)),
            Request::Poll { readable, writable } => {
                let events = if readable { libc::POLLIN } else { 0 }
                    | if writable { libc::POLLOUT } else { 0 };
                return self.post_poll(now, posted, &self.seen(target), events);
            }
        };
        if posted.group != 0 && self.has_failed(posted.group) {
            return self.end(posted, End::new(0, Err(Failure::Cancelled)));
        }
        if let Err(xfer) = self.keep(now, target, Xfer { posted, what, done: 0 }) {
            match target.kind {
                Kind::Unseen => self.post_unseen(now, target, xfer),
                _ => self.post_xfer(now, target, xfer),
            }
        }
    }

    fn post_xfer(&mut self, now: Time, target: &Target<'_>, mut xfer: Xfer) {
        if let What::File(range) = &xfer.what
            && target.kind != Kind::Stream
            && range.len > CHUNK as u64
        {
            let why = Failure::Os { call: "sendfile", errno: libc::EMSGSIZE };
            return self.end(xfer.posted, xfer.end(Err(why)));
        }
        let first = self.socks.of(&name(target)).is_none_or(|s| {
            s.connecting.is_none() && if xfer.is_tx() { s.tx.is_empty() } else { s.rx.is_empty() }
        });
        let mut blocked = !first;
        for _ in 0..TRIES {
            if blocked {
                break;
            }
            match xfer.step(target.fd, target.kind, &mut self.scratch) {
                Step::Ended(end) => return self.end(xfer.posted, end),
                Step::Moved => {}
                Step::Blocked => blocked = true,
            }
        }
        let must_retry = first && blocked && xfer.has_address();
        let (posted, so_far) = (xfer.posted, xfer.done as u64);
        let held = self.hold(now, target, &posted, so_far, |s| {
            s.must_retry |= must_retry;
            if xfer.is_tx() { s.tx.push_back(xfer) } else { s.rx.push_back(xfer) }
        });
        if let Some(slot) = held {
            if !blocked {
                self.socks[slot].ready = (true, true);
                self.socks.list(slot);
            }
            self.settle(slot, now);
        }
    }

    fn post_poll(&mut self, now: Time, posted: Posted, target: &Target<'_>, events: i16) {
        if let Some(end) = sock::poll_once(target.fd, events) {
            return self.end(posted, end);
        }
        if let Some(slot) = self.hold(now, target, &posted, 0, |s| s.polls.push((posted, events))) {
            self.settle(slot, now);
        }
    }

    /// Adds an operation to the socket's entry, which is made if there is none. None: the socket
    /// could not be duplicated, and the operation has ended after `so_far` bytes.
    fn hold(
        &mut self,
        now: Time,
        target: &Target<'_>,
        posted: &Posted,
        so_far: u64,
        add: impl FnOnce(&mut Sock),
    ) -> Option<usize> {
        let name = name(target);
        let slot = match self.socks.slot_of(&name) {
            Some(slot) => slot,
            None => {
                let own = || target.fd.try_clone_to_owned().map(Arc::new);
                match self.coalescer.batch_fd(&name).map_or_else(own, Ok) {
                    Ok(fd) => self.entry(now, name, fd, target.kind),
                    Err(e) => {
                        self.end(*posted, End::new(so_far, Err(Failure::os("dup", &e))));
                        return None;
                    }
                }
            }
        };
        add(&mut self.socks[slot]);
        self.note_limit(posted, slot);
        Some(slot)
    }

    /// The slot of the socket's entry, which is made with `fd` if there is none.
    fn entry(&mut self, now: Time, name: Name, fd: Arc<OwnedFd>, kind: Kind) -> usize {
        self.timers.start_tick(now);
        self.socks.slot_of(&name).unwrap_or_else(|| self.socks.insert(name, fd, kind))
    }

    /// True if a part of this send has failed and the engine does not know of it yet.
    fn has_failed(&self, group: OpId) -> bool {
        self.done.iter().any(|done| done.group == group && done.end.result.is_err())
    }

    fn end(&mut self, posted: Posted, end: End) {
        self.forget_fetched(posted.op);
        self.done.push_back(KernelDone { op: posted.op, group: posted.group, end });
    }

    /// Takes the next operation that has ended, in the order of their ends.
    #[inline]
    pub fn poll_done(&mut self) -> Option<KernelDone> {
        self.done.pop_front()
    }

    /// The operation that `poll_done` gives next.
    #[inline]
    pub fn next_done(&self) -> Option<&KernelDone> {
        self.done.front()
    }

    // ---- progress ------------------------------------------------------------

    /// Notes what the reactor reports of a token; `progress` acts on it.
    pub fn handle_ready(&mut self, token: usize, ready: Ready) {
        let slot = token - self.token_base;
        if slot == BELL {
            self.jobs.note_bell();
        } else if slot == FETCHED {
            self.note_fetched();
        } else if let Some(s) = self.socks.get_mut(slot) {
            s.ready.0 |= ready.readable || ready.hup;
            s.ready.1 |= ready.writable || ready.hup;
            self.socks.list(slot);
        }
    }

    /// Sends what is kept, ends what is late, and moves what can be moved. True if there is more to do at
    /// once.
    pub fn progress(&mut self, now: Time) -> bool {
        if self.jobs.are_over() {
            self.collect(now);
        }
        self.take_fetched();
        self.send_all_kept(now);
        self.handle_timeouts(now);
        for slot in self.socks.take_work() {
            // The pump of another socket may have ended this one.
            if self.socks.get(slot).is_some() {
                self.pump(slot, now);
            }
        }
        self.socks.has_work()
    }

    fn pump(&mut self, slot: usize, now: Time) {
        let s = &mut self.socks[slot];
        let (mut rx, mut tx) = std::mem::take(&mut s.ready);
        let wanted = s.wanted();
        s.look(&mut self.ended);
        if s.connecting.is_some() {
            self.advance_connect(slot);
        }
        if rx && !self.socks[slot].accepting.queue.is_empty() {
            self.advance_accept(slot);
        }
        let s = &mut self.socks[slot];
        tx = tx && s.pump_tx(&mut self.scratch, &mut self.ended);
        rx = rx && s.pump_rx(&mut self.scratch, &mut self.ended);
        let vain = (s.watched.0 && !wanted.0) || (s.watched.1 && !wanted.1);
        if rx || tx {
            s.ready = (rx, tx);
            self.socks.list(slot);
        }
        self.watch(slot, vain);
        self.settle(slot, now);
    }

    /// After a change of a socket's queues: hands on what has ended, has the reactor watch what the
    /// rest waits for, and closes the entry if nothing is in flight.
    fn settle(&mut self, slot: usize, now: Time) {
        let mut ended = std::mem::take(&mut self.ended);
        for (posted, end) in ended.drain(..) {
            if let Some((at, _)) = posted.limit {
                self.timers.end(posted.op, at);
            }
            self.end(posted, end);
        }
        self.ended = ended;
        self.start_fetches();
        self.socks.count_full(slot);
        let s = &self.socks[slot];
        if s.must_retry {
            self.timers.start_retry(now);
        }
        if !s.is_idle() {
            return self.watch(slot, false);
        }
        let s = self.socks.remove(slot);
        if s.watched != (false, false) {
            // It is registered, so this cannot fail. The registration of a closed descriptor would
            // live on with the owner's descriptor.
            let _ = self.registry.deregister(&mut SourceFd(&s.fd.as_raw_fd()));
        }
        if !self.must_tick() {
            self.timers.stop_tick();
        }
        release(s.fd);
    }

    /// Has the reactor watch what the socket's operations wait for. `exactly`: and nothing else,
    /// because the reactor has just reported an event that no operation waits for.
    fn watch(&mut self, slot: usize, exactly: bool) {
        let s = &mut self.socks[slot];
        let (wanted, old) = (s.wanted(), s.watched);
        let covered = (old.0 || !wanted.0) && (old.1 || !wanted.1);
        if covered && !(exactly && wanted != old) {
            return;
        }
        let (number, token) = (s.fd.as_raw_fd(), mio::Token(self.token_base + slot));
        let mut source = SourceFd(&number);
        let interest = match wanted {
            (true, true) => Some(mio::Interest::READABLE | mio::Interest::WRITABLE),
            (true, false) => Some(mio::Interest::READABLE),
            (false, true) => Some(mio::Interest::WRITABLE),
            (false, false) => None,
        };
        let done = match (interest, old) {
            (Some(i), (false, false)) => self.registry.register(&mut source, token, i),
            (Some(i), _) => self.registry.reregister(&mut source, token, i),
            (None, _) => self.registry.deregister(&mut source),
        };
        match done {
            Ok(()) => s.watched = wanted,
            Err(e) => {
                // Without a watch the operations would never end.
                let errno = e.raw_os_error().unwrap_or(libc::EIO);
                let why = |_: &Posted| Failure::Os { call: "epoll_ctl", errno };
                s.cut(|_| true, why, &mut self.ended);
                self.socks.list(slot);
            }
        }
    }

    /// When `progress` must be called at the latest.
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// True if `progress` should be called at once.
    pub fn has_work(&self) -> bool {
        self.socks.has_work() || self.jobs.are_over() || self.has_fetched()
    }

    /// True if the library holds a kernel socket: operations wait for the reactor, sends are kept, or
    /// there may be a lease.
    pub fn is_waiting(&self) -> bool {
        !self.socks.is_empty() || self.coalescer.keeps() || self.coalescer.has_lease()
    }

    /// The sockets with operations in flight.
    pub fn in_use(&self) -> usize {
        self.socks.len()
    }

    /// For a spinning thread: `progress` tries sends again that wait for room. The reactor reports
    /// room only when there is much (three quarters in a UNIX-domain socket), and by then the peer is
    /// about to run dry.
    pub fn spin(&mut self) {
        self.socks.try_full(SPUN);
    }
}
