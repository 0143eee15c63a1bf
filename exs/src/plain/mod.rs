//! F5: asynchronous operations on ordinary kernel sockets, whose peers know nothing of
//! EXS, and whose owner goes on using them as before.
//!
//! What this floor promises:
//! - The socket stays as its owner left it. No flag and no option of it is changed: the
//!   calls that move data carry MSG_DONTWAIT themselves.
//! - Operations of one direction are carried out in the order of posting, and each
//!   ends exactly once ([`End`]).
//! - While operations are in flight the table holds a descriptor of its own for the
//!   socket, so no call can hit another file that got the number of one that was
//!   closed. When none is in flight it holds nothing, so that the owner's close(2) is
//!   the last one, and the peer sees the end.
//! - If the program closes the descriptor that an operation was posted with, that
//!   operation ends as cancelled, as POSIX has it for aio_read(3). Nobody tells us of
//!   a close, so every tick (100 ms) what the number stands for is compared.
//!
//! What it must never know: queues, tokens, buffers. It does no more than a thread that
//! has a reactor would do.
//!
//! Shape: [`Plain`] is the table; `sock` one socket's queues; `call` one transfer's system
//! calls; `keep` sends that wait for the next ones; `direct` small ones by their number;
//! `files` a file's bytes on their way; `wait` connects and accepts; `helper` the thread that
//! waits for these where the socket blocks; `types` the vocabulary.
//!
//! **Readiness, and not io_uring, moves the data.** An operation is tried when it is posted,
//! unless one is before it or it is kept; then the reactor (edge-triggered) says when to try
//! again, and several sends leave in one gathered call. On loopback with 64 KiB sends, 16 in
//! flight, io_uring moved as much as this and as a blocking loop. Its requests end with the
//! thread that submitted them, and its completions interrupt that thread's epoll_wait(2).

mod batch;
mod call;
mod coalesce;
mod direct;
mod files;
mod helper;
mod sock;
mod types;
mod wait;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use mio::unix::SourceFd;

use self::batch::{Batch, KeptSend, Rested};
use self::call::{Step, What, Xfer};
use self::coalesce::Burst;
use self::files::{CHUNK, Scratch};
use self::helper::Helper;
use self::sock::{Ended, NO_NUMBER, Name, Sock, name, release};
use crate::ids::OpId;
use crate::rnic::Ready;
use crate::time::Time;

pub use self::batch::Lease;
pub use self::direct::Direct;
#[cfg(any(test, feature = "internals"))]
pub use self::direct::Sent;
pub use self::types::{Done, End, Failure, KernelIo, Kind, Pieces, Posted, Request, Target};

/// How often it is looked whether the owner has closed a descriptor.
const TICK: Duration = Duration::from_millis(100);
/// When to try again to send to an address whose queue was full.
const RETRY: Duration = Duration::from_millis(2);
/// Sockets that a thread that spins looks at; of others the reactor tells.
const SPUN: usize = 4;
/// Tries when posting, before the others have their turn.
const TRIES: usize = 8;
/// The token of the helper's bell, and of the bell for files: the last ones.
const BELL: usize = u32::MAX as usize;
const FETCHED: usize = BELL - 1;

/// The table of kernel sockets that have operations in flight.
pub struct Plain {
    registry: mio::Registry,
    token_base: usize,
    io: KernelIo,
    socks: slab::Slab<Sock>,
    by_name: HashMap<Name, usize>,
    /// Sockets to be looked after.
    work: Vec<usize>,
    /// Ended in the socket that is looked after just now.
    ended: Ended,
    done: VecDeque<Done>,
    /// Operations with a time limit, and their sockets.
    limits: BTreeMap<(Time, OpId), usize>,
    /// Sockets whose sends wait for room.
    full: Vec<usize>,
    /// Sends that follow each other, those that are kept, and whether more may be.
    burst: Burst,
    batch: Option<Batch>,
    /// The socket of the batch that left last, if it is leased.
    rested: Option<Rested>,
    /// Room for the sends of the next batch.
    spare: Vec<KeptSend>,
    may_keep: bool,
    would_keep: bool,
    /// When to look for closed descriptors, and when to try full addresses again.
    tick: Option<Time>,
    retry: Option<Time>,
    scratch: Scratch,
    helper: Option<Helper>,
    bell_rang: bool,
    /// The helper's jobs, and whose they are.
    jobs: HashMap<u64, usize>,
    /// Sockets of connects that were called off before their thread had begun with them.
    strays: HashMap<u64, OwnedFd>,
}

impl Plain {
    /// An empty table, whose tokens of the reactor are `token_base` and up (2^32 of them).
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
            burst: Burst::default(),
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

    /// Posts an operation, and carries it out at once if that is possible.
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

    /// The socket's entry with an operation added, made if there is none. If that cannot
    /// be, the operation ends.
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

    /// The entry of the socket with this name, made if there is none.
    fn entry(&mut self, now: Time, name: Name, fd: Arc<OwnedFd>, kind: Kind) -> usize {
        self.tick.get_or_insert(now + TICK);
        if let Some(slot) = self.by_name.get(&name) {
            return *slot;
        }
        let slot = self.socks.insert(Sock::new(name, fd, kind));
        self.by_name.insert(name, slot);
        slot
    }

    /// A part of this send has failed, and nobody has been told yet.
    fn has_failed(&self, group: OpId) -> bool {
        self.done.iter().any(|done| done.group == group && done.end.result.is_err())
    }

    fn end(&mut self, posted: Posted, end: End) {
        self.forget_fetched(posted.op);
        self.done.push_back(Done { op: posted.op, group: posted.group, end });
    }

    /// What has ended, in order.
    #[inline]
    pub fn poll_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// What `poll_done` gives next.
    #[inline]
    pub fn next_done(&self) -> Option<&Done> {
        self.done.front()
    }

    // ---- progress ------------------------------------------------------------

    /// The reactor found something.
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

    /// Moves what can be moved. True if there is more to do at once.
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

    /// After a change of a socket's queues: tells what has ended, watches what must be,
    /// and lets go of a socket that has nothing in flight.
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
            // It is registered, so it can be deregistered: a closed descriptor's
            // registration would live on with the owner's.
            let _ = self.registry.deregister(&mut SourceFd(&s.fd.as_raw_fd()));
        }
        self.tick = self.tick.filter(|_| self.must_tick());
        release(s.fd);
    }

    /// Has the reactor watch what is wanted. `exactly`: and nothing else, as it has just
    /// reported what nobody waits for.
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
                // Nobody would ever move them.
                let errno = e.raw_os_error().unwrap_or(libc::EIO);
                let why = |_: &Posted| Failure::Os { call: "epoll_ctl", errno };
                s.cut(|_| true, why, &mut self.ended);
                self.list(slot);
            }
        }
    }

    // ---- ends ----------------------------------------------------------------

    /// When `progress` must be called at the latest.
    pub fn next_timeout(&self) -> Option<Time> {
        let limit = self.limits.first_key_value().map(|((at, _), _)| *at);
        [limit, self.tick, self.retry].into_iter().flatten().min()
    }

    /// True if `progress` should be called at once.
    pub fn has_work(&self) -> bool {
        !self.work.is_empty() || self.bell_rang || self.has_fetched()
    }

    /// True if anything waits for the reactor.
    pub fn is_waiting(&self) -> bool {
        !self.socks.is_empty() || self.batch.is_some() || self.rested.is_some()
    }

    /// For a thread that spins: sends that wait for room are tried again. The reactor tells
    /// of room only when there is much (of a UNIX-domain socket three quarters), and by then
    /// the peer is about to run dry.
    pub fn spin(&mut self) {
        for at in 0..self.full.len().min(SPUN) {
            let slot = self.full[at];
            self.socks[slot].ready.1 = true;
            self.list(slot);
        }
    }

    fn handle_timeouts(&mut self, now: Time) {
        while let Some((&(at, op), &slot)) = self.limits.first_key_value()
            && at <= now
        {
            self.limits.pop_first();
            let late =
                |p: &Posted| Failure::TimedOut(p.limit.map_or(Duration::ZERO, |(_, given)| given));
            self.cut(slot, now, |p| p.op == op, late);
        }
        if self.retry.is_some_and(|at| at <= now) {
            self.retry = None;
            let full: Vec<_> =
                self.socks.iter().filter(|(_, s)| s.must_retry).map(|(i, _)| i).collect();
            for slot in full {
                self.socks[slot].ready.1 = true;
                self.list(slot);
            }
        }
        if self.tick.is_some_and(|at| at <= now) {
            self.stop_strays();
            if let Some(rested) = self.rested.take() {
                rested.lease.end();
            }
            self.tick = self.must_tick().then(|| now + TICK);
            let slots: Vec<_> = self.socks.iter().map(|(i, _)| i).collect();
            for slot in slots {
                self.check_owner(slot, now);
            }
        }
    }

    fn must_tick(&self) -> bool {
        !self.socks.is_empty() || !self.strays.is_empty() || self.rested.is_some()
    }

    /// Ends what was posted with a descriptor that the program has closed.
    fn check_owner(&mut self, slot: usize, now: Time) {
        let Some(s) = self.socks.get(slot) else { return };
        let mut numbers: Vec<RawFd> = s.posted().map(|p| p.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.retain(|n| s.has_lost(*n));
        if !numbers.is_empty() {
            self.cut(slot, now, |p| numbers.contains(&p.number), |_| Failure::Cancelled);
        }
    }

    /// Looks at once whether the program has closed descriptors of a socket. (What is
    /// none is looked at when the tick comes.)
    pub fn recheck(&mut self, now: Time, dev: u64, ino: u64) {
        let name = (dev, ino, NO_NUMBER);
        self.send_batch_of(&name, now);
        if let Some(&slot) = self.by_name.get(&name) {
            self.check_owner(slot, now);
        }
    }

    /// Asks operations to end that were posted with this descriptor; returns how many.
    /// Each still ends: as cancelled, or done if that was faster.
    pub fn cancel(
        &mut self,
        now: Time,
        target: &Target<'_>,
        which: impl Fn(OpId) -> bool,
    ) -> usize {
        let name = name(target);
        self.send_batch_of(&name, now);
        let Some(&slot) = self.by_name.get(&name) else { return 0 };
        let number = target.fd.as_raw_fd();
        self.cut(slot, now, |p| p.number == number && which(p.op), |_| Failure::Cancelled)
    }
}
