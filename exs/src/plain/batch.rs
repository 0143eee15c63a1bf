//! The batch: the kept sends of one stream. They leave in one call.
//!
//! A batch stands beside the table of sockets, because most batches never wait for room: they need
//! no entry, no queue of transfers, and no watch by the reactor. A batch that the kernel takes only
//! in part moves to the table ([`Plain::spill`]). There is one batch at a time; a batch of another
//! socket sends the one before.
//!
//! After a batch has left, its descriptor stays open as a [`Lease`] until the program dequeues the
//! event of its last send. A program that still has such events to dequeue cannot know that its sends
//! have left, and does not close the socket. So the next batch of the burst takes the descriptor over
//! after one question to the kernel, in place of five system calls (fstat, two getsockopt, dup,
//! close: 1 us on the machine where a send of 1 KiB takes 0.8 us). If the program does close the socket
//! with such events in the queue, the next tick ends the lease, and so does a cancel or a close by the
//! library.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Plain;
use super::call::{PIECES, What, Xfer};
use super::coalesce::{Coalescer, TOGETHER};
use super::send_burst::PAUSE;
use super::sock::{Name, name, release};
use super::types::{End, Failure, KernelDone, Kind, Pieces, Posted, Target};
use crate::ids::OpId;
use crate::mem::Segment;
use crate::sys::{self, IoVec};
use crate::time::Time;

/// A kept send: one piece, not empty, without a time limit.
pub(super) struct KeptSend {
    op: OpId,
    /// The descriptor that the program posted it with.
    number: RawFd,
    piece: Segment,
}

impl KeptSend {
    /// The send as a transfer of which the kernel has taken `done` bytes.
    fn into_xfer(self, done: usize) -> Xfer {
        let posted = Posted { op: self.op, number: self.number, limit: None, group: 0 };
        let what = What::Send { pieces: Pieces::One(self.piece), to: None, flags: 0 };
        Xfer { posted, what, done }
    }

    /// The reverse, for a transfer that may be kept ([`may_be_kept`]); gives back any other.
    fn of(xfer: Xfer) -> Result<KeptSend, Xfer> {
        match xfer {
            Xfer { posted, what: What::Send { pieces: Pieces::One(piece), .. }, .. } => {
                Ok(KeptSend { op: posted.op, number: posted.number, piece })
            }
            other => Err(other),
        }
    }
}

/// True if a transfer that has not been tried yet may be kept: a small send of one piece, without
/// flags, address or time limit, and no part of a larger send.
pub(super) fn may_be_kept(xfer: &Xfer) -> bool {
    xfer.posted.limit.is_none()
        && xfer.posted.group == 0
        && xfer.gatherable().is_some_and(|p| matches!(p, Pieces::One(_)) && is_small(p.bytes()))
}

fn is_small(len: usize) -> bool {
    (1..TOGETHER).contains(&len)
}

/// The kept sends of one stream, in the order of posting.
pub(super) struct Batch {
    name: Name,
    /// A descriptor of the library's own. An entry of the table for the same socket shares it.
    fd: Arc<OwnedFd>,
    pub(super) sends: Vec<KeptSend>,
    /// The sum of their lengths.
    bytes: usize,
    /// Until then the sends may wait, even if a thread dequeues events that are there already.
    pub(super) until: Time,
}

impl Batch {
    /// Sends all of them in one call that does not wait; returns the bytes that the kernel took.
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

/// A descriptor of a socket that stays open until an event is dequeued (module essay).
#[derive(Debug)]
#[allow(unnameable_types, reason = "an event holds it, of this crate alone")]
pub struct Lease(Mutex<Option<Arc<OwnedFd>>>);

impl Lease {
    fn of(fd: Arc<OwnedFd>) -> Lease {
        Lease(Mutex::new(Some(fd)))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<OwnedFd>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the descriptor; None if the lease is over.
    fn take(&self) -> Option<Arc<OwnedFd>> {
        self.lock().take()
    }

    /// Takes the descriptor if `may` agrees.
    fn take_if(&self, may: impl FnOnce(&OwnedFd) -> bool) -> Option<Arc<OwnedFd>> {
        self.lock().take_if(|fd| may(fd))
    }

    /// Closes the descriptor, unless it was taken before.
    pub fn end(&self) {
        if let Some(fd) = self.take() {
            release(fd);
        }
    }
}

/// The socket of the batch that left last.
pub(super) struct Rested {
    name: Name,
    pub(super) lease: Arc<Lease>,
}

impl Coalescer {
    /// Opens an empty batch of a socket.
    fn open(&mut self, now: Time, name: Name, fd: Arc<OwnedFd>) {
        let sends = std::mem::take(&mut self.spare);
        self.batch = Some(Batch { name, fd, sends, bytes: 0, until: now + PAUSE });
    }

    /// Adds a send to the batch. True if the batch must leave: it is full, or no thread is sure to come
    /// for it.
    fn add(&mut self, send: KeptSend) -> bool {
        let batch = self.batch.as_mut().expect("the caller has found a batch");
        batch.bytes += send.piece.len();
        batch.sends.push(send);
        batch.is_full() || !self.may_keep()
    }

    /// The batch, if it is of this socket.
    fn batch_of(&self, name: &Name) -> Option<&Batch> {
        self.batch.as_ref().filter(|b| b.name == *name)
    }

    /// True if there is a batch and it is of this socket. The socket is a stream then.
    pub(super) fn keeps_for(&self, name: &Name) -> bool {
        self.batch_of(name).is_some()
    }

    /// The descriptor of the batch, if it is of this socket.
    pub(super) fn batch_fd(&self, name: &Name) -> Option<Arc<OwnedFd>> {
        self.batch_of(name).map(|b| Arc::clone(&b.fd))
    }

    /// True if `number` stands for the socket of the batch. The program may have given the number to
    /// another socket since the last send, so each send asks the kernel. The batch's descriptor
    /// makes that one cheap call.
    pub(super) fn keeps_for_number(&self, number: RawFd) -> bool {
        self.batch.as_ref().is_some_and(|b| sys::is_duplicate(number, b.fd.as_fd()))
    }

    /// True if there may be a lease.
    pub(super) fn has_lease(&self) -> bool {
        self.rested.is_some()
    }

    /// Ends the lease, if there is one.
    pub(super) fn end_lease(&mut self) {
        if let Some(rested) = self.rested.take() {
            rested.lease.end();
        }
    }

    /// Takes the descriptor that is leased, if it is of this socket.
    fn take_leased(&self, name: &Name) -> Option<Arc<OwnedFd>> {
        self.rested.as_ref().filter(|rested| rested.name == *name)?.lease.take()
    }
}

impl Plain {
    /// Begins a batch with a send; a batch of another socket leaves now. Gives the transfer back if the
    /// socket cannot be duplicated.
    pub(super) fn start_batch(
        &mut self,
        now: Time,
        target: &Target<'_>,
        xfer: Xfer,
    ) -> Result<(), Xfer> {
        self.send_batch(now);
        let name = name(target);
        let held = self.socks.of(&name).map(|s| Arc::clone(&s.fd));
        let fd = match held.or_else(|| self.coalescer.take_leased(&name)) {
            Some(fd) => fd,
            None => match target.fd.try_clone_to_owned() {
                Ok(fd) => Arc::new(fd),
                Err(_) => return Err(xfer),
            },
        };
        let first = KeptSend::of(xfer)?;
        self.coalescer.open(now, name, fd);
        self.join(now, first);
        Ok(())
    }

    /// Begins an empty batch on the socket of the batch before, for a send that follows at once.
    /// True if the lease still runs and `number` stands for that socket; else nothing has changed.
    pub(super) fn resume_batch(&mut self, now: Time, number: RawFd) -> bool {
        if self.coalescer.keeps() {
            return false;
        }
        let Some(rested) = self.coalescer.rested.take() else { return false };
        let name = rested.name;
        let free = self.is_free(&name);
        let same = |fd: &OwnedFd| free && sys::is_duplicate(number, fd.as_fd());
        match rested.lease.take_if(same) {
            Some(fd) => {
                self.coalescer.open(now, name, fd);
                true
            }
            None => {
                self.coalescer.rested = Some(rested);
                false
            }
        }
    }

    /// True if the table has no send and no connect of this socket.
    pub(super) fn is_free(&self, name: &Name) -> bool {
        self.socks.of(name).is_none_or(|s| s.connecting.is_none() && s.tx.is_empty())
    }

    /// Posts a transfer behind the batch of its socket. With `may_wait` the transfer joins the batch;
    /// else it takes the batch along, in one call if it is a send.
    pub(super) fn post_behind(&mut self, now: Time, xfer: Xfer, may_wait: bool) {
        let xfer = match may_wait {
            true => match KeptSend::of(xfer) {
                Ok(send) => return self.join(now, send),
                Err(xfer) => xfer,
            },
            false => xfer,
        };
        let batch = self.coalescer.batch.take().expect("the caller has found a batch");
        let slot = self.spill(now, batch, 0);
        self.note_limit(&xfer.posted, slot);
        let s = &mut self.socks[slot];
        s.tx.push_back(xfer);
        s.ready.1 = true;
        self.pump(slot, now);
        self.coalescer.burst.forgive_pause();
    }

    /// Adds a send to the batch. The batch leaves if it is full, or if no thread is sure to come for it.
    fn join(&mut self, now: Time, send: KeptSend) {
        if self.coalescer.add(send) {
            self.send_batch(now);
            self.coalescer.burst.forgive_pause();
        }
    }

    /// Posts a send on the socket of the batch, for which [`Plain::send_direct`] has found it. True if the
    /// send waits there and no operation has ended.
    pub fn post_kept(&mut self, now: Time, burst: bool, posted: Posted, piece: Segment) -> bool {
        let send = KeptSend { op: posted.op, number: posted.number, piece };
        match burst && is_small(send.piece.len()) {
            true => self.join(now, send),
            false => self.post_behind(now, send.into_xfer(0), false),
        }
        self.done.is_empty()
    }

    /// Sends the batch. Bytes that the socket has no room for wait in the table.
    pub(super) fn send_batch(&mut self, now: Time) {
        let Some(mut batch) = self.coalescer.batch.take() else { return };
        let sent = match batch.send() {
            Ok(sent) if sent == batch.bytes => {
                for send in batch.sends.drain(..) {
                    self.done.push_back(KernelDone::sent(send.op, send.piece.len()));
                }
                self.coalescer.spare = batch.sends;
                return self.rest(now, batch.name, batch.fd);
            }
            Ok(sent) => sent,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                let slot = self.spill(now, batch, 0);
                return self.settle(slot, now);
            }
            // The error is the first send's; the others find out for themselves.
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

    /// Sends the batch if it is of this socket, and ends the lease if that is.
    pub(super) fn send_batch_of(&mut self, name: &Name, now: Time) {
        if self.coalescer.keeps_for(name) {
            self.send_batch(now);
        }
        if let Some(rested) = self.coalescer.rested.take_if(|r| r.name == *name) {
            rested.lease.end();
        }
    }

    /// Leases the descriptor of a batch that has left to the event of its last send, which is the
    /// last operation that has ended.
    fn rest(&mut self, now: Time, name: Name, fd: Arc<OwnedFd>) {
        let lease = Arc::new(Lease::of(fd));
        match self.done.back_mut() {
            Some(last) => last.end.lease = Some(Arc::clone(&lease)),
            None => return lease.end(),
        }
        self.timers.start_tick(now);
        if let Some(before) = self.coalescer.rested.replace(Rested { name, lease }) {
            before.lease.end();
        }
    }

    /// Moves a batch, of which the kernel has taken `sent` bytes, to the socket's entry in the table.
    /// Sends that have left whole end. The caller pumps or settles the entry, whose slot this returns.
    fn spill(&mut self, now: Time, mut batch: Batch, mut sent: usize) -> usize {
        let slot = self.entry(now, batch.name, batch.fd, Kind::Stream);
        for send in batch.sends.drain(..) {
            let len = send.piece.len();
            let done = sent.min(len);
            sent -= done;
            match done == len {
                true => self.done.push_back(KernelDone::sent(send.op, len)),
                false => self.socks[slot].tx.push_back(send.into_xfer(done)),
            }
        }
        self.coalescer.spare = batch.sends;
        slot
    }
}
