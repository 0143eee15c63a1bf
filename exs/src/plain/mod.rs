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
//! Modules: [`Plain`] is the table of sockets; `sock` has the queues of one socket; `call` makes the
//! system calls of one transfer; `coalesce` decides which small sends are kept, `send_burst` counts
//! those that follow each other, and `batch` sends them together; `direct` sends on a number without a look at it first; `files` fetches the bytes of
//! files; `ends` ends operations early; `wait` does connects and accepts, and `helper` waits for them
//! where the socket blocks; `types` is the vocabulary.
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
mod files;
mod helper;
mod send_burst;
mod sock;
mod types;
mod wait;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use mio::unix::SourceFd;

use self::batch::{Batch, KeptSend, Rested};
use self::call::{Step, What, Xfer};
use self::files::{CHUNK, Scratch};
use self::helper::Helper;
use self::send_burst::SendBurst;
use self::sock::{Ended, Name, Sock, name, release};
use crate::ids::OpId;
use crate::rnic::Ready;
use crate::time::Time;

pub use self::batch::Lease;
pub use self::direct::Direct;
#[cfg(any(test, feature = "internals"))]
pub use self::direct::Sent;
pub use self::types::{End, Failure, KernelDone, KernelIo, Kind, Pieces, Posted, Request, Target};

/// How often the table looks for descriptors that the owner has closed.
const TICK: Duration = Duration::from_millis(100);
/// After this time a send to an address whose queue was full is tried again.
const RETRY: Duration = Duration::from_millis(2);
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
    io: KernelIo,
    socks: slab::Slab<Sock>,
    by_name: HashMap<Name, usize>,
    /// Slots of sockets that `progress` must pump.
    work: Vec<usize>,
    /// Operations that have ended in the socket that is being pumped.
    ended: Ended,
    done: VecDeque<KernelDone>,
    /// The slots of operations with a time limit.
    limits: BTreeMap<(Time, OpId), usize>,
    /// Slots of sockets whose sends wait for room.
    full: Vec<usize>,
    /// The burst of sends that goes on, and the sends of it that are kept.
    burst: SendBurst,
    batch: Option<Batch>,
    /// The socket of the batch that left last; None if there is no lease, which may also have ended.
    rested: Option<Rested>,
    /// Empty: memory for the sends of the next batch.
    spare: Vec<KeptSend>,
    /// Set by each call: sends may be kept during it.
    may_keep: bool,
    /// A send of this call would have been kept if that had been allowed.
    would_keep: bool,
    /// When to look for closed descriptors, and when to try full addresses again; None: never.
    tick: Option<Time>,
    retry: Option<Time>,
    scratch: Scratch,
    helper: Option<Helper>,
    bell_rang: bool,
    /// The slots of the sockets that the helper's jobs are for.
    jobs: HashMap<u64, usize>,
    /// Sockets of connects that were called off before their thread had begun.
    strays: HashMap<u64, OwnedFd>,
}

impl Plain {
    /// Makes an empty table. Its tokens of the reactor are the 2^32 from `token_base` on.
    pub fn new(registry: mio::Registry, token_base: usize, io: KernelIo) -> Plain {
        Plain {
            registry,
            token_base,
            io,
            socks: slab::Slab::new(),
            by_name: HashMap::new(),
            work: Vec::new(),
            ended: Vec::new(),
            done: VecDeque::new(),
            limits: BTreeMap::new(),
            full: Vec::new(),
            burst: SendBurst::default(),
            batch: None,
            rested: None,
            spare: Vec::new(),
            may_keep: false,
            would_keep: false,
            tick: None,
            retry: None,
            scratch: Scratch::default(),
            helper: None,
            bell_rang: false,
            jobs: HashMap::new(),
            strays: HashMap::new(),
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
        let slot = self.by_name.get(&name(target)).copied();
        let first = slot.is_none_or(|s| {
            let s = &self.socks[s];
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
                self.list(slot);
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
        let slot = match self.by_name.get(&name) {
            Some(slot) => *slot,
            None => {
                let own = || target.fd.try_clone_to_owned().map(Arc::new);
                match self.batch_fd(&name).map_or_else(own, Ok) {
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
        self.tick.get_or_insert(now + TICK);
        if let Some(slot) = self.by_name.get(&name) {
            return *slot;
        }
        let slot = self.socks.insert(Sock::new(name, fd, kind));
        self.by_name.insert(name, slot);
        slot
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
            self.bell_rang = true;
        } else if slot == FETCHED {
            self.note_fetched();
        } else if let Some(s) = self.socks.get_mut(slot) {
            s.ready.0 |= ready.readable || ready.hup;
            s.ready.1 |= ready.writable || ready.hup;
            self.list(slot);
        }
    }

    fn list(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.socks[slot].listed, true) {
            self.work.push(slot);
        }
    }

    /// Sends what is kept, ends what is late, and moves what can be moved. True if there is more to do at
    /// once.
    pub fn progress(&mut self, now: Time) -> bool {
        if std::mem::take(&mut self.bell_rang) {
            self.collect(now);
        }
        self.take_fetched();
        self.send_all_kept(now);
        self.handle_timeouts(now);
        for slot in std::mem::take(&mut self.work) {
            if let Some(s) = self.socks.get_mut(slot) {
                s.listed = false;
                self.pump(slot, now);
            }
        }
        !self.work.is_empty()
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
            self.list(slot);
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
                self.limits.remove(&(at, posted.op));
            }
            self.end(posted, end);
        }
        self.ended = ended;
        self.start_fetches();
        let s = &mut self.socks[slot];
        let full = !s.tx.is_empty();
        match (std::mem::replace(&mut s.counted, full), full) {
            (false, true) => self.full.push(slot),
            (true, false) => self.full.retain(|other| *other != slot),
            _ => {}
        }
        if s.must_retry && self.retry.is_none() {
            self.retry = Some(now + RETRY);
        }
        if !s.is_idle() {
            return self.watch(slot, false);
        }
        let s = self.socks.remove(slot);
        self.by_name.remove(&s.name);
        if s.watched != (false, false) {
            // It is registered, so this cannot fail. The registration of a closed descriptor would
            // live on with the owner's descriptor.
            let _ = self.registry.deregister(&mut SourceFd(&s.fd.as_raw_fd()));
        }
        self.tick = self.tick.filter(|_| self.must_tick());
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
                self.list(slot);
            }
        }
    }

    /// When `progress` must be called at the latest.
    pub fn next_timeout(&self) -> Option<Time> {
        let limit = self.limits.first_key_value().map(|((at, _), _)| *at);
        [limit, self.tick, self.retry].into_iter().flatten().min()
    }

    /// True if `progress` should be called at once.
    pub fn has_work(&self) -> bool {
        !self.work.is_empty() || self.bell_rang || self.has_fetched()
    }

    /// True if the library holds a kernel socket: operations wait for the reactor, sends are kept, or
    /// there may be a lease.
    pub fn is_waiting(&self) -> bool {
        !self.socks.is_empty() || self.batch.is_some() || self.rested.is_some()
    }

    /// For a spinning thread: `progress` tries sends again that wait for room. The reactor reports
    /// room only when there is much (three quarters in a UNIX-domain socket), and by then the peer is
    /// about to run dry.
    pub fn spin(&mut self) {
        for at in 0..self.full.len().min(SPUN) {
            let slot = self.full[at];
            self.socks[slot].ready.1 = true;
            self.list(slot);
        }
    }
}
