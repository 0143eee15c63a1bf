//! The event queue: where the engine leaves events and threads wait for them.

mod fd;
mod run;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::context::Context;
use super::event::RawEvent;
use super::pace::Pace;
use super::shards::{Seat, Shard};
use super::waiter::Waiter;
use super::{Error, QueueOptions, WaitPolicy};
use crate::sys::{EpollSet, EventFd, cold_path};

pub use self::fd::FdUse;

/// What a thread wants of a queue: events, and where to.
pub(crate) struct Want<'a, E> {
    pub(crate) min: usize,
    pub(crate) max: usize,
    pub(crate) out: &'a mut Vec<E>,
}

#[derive(Default)]
struct Inner {
    events: VecDeque<RawEvent>,
    waiters: Vec<Arc<Waiter>>,
}

/// The shared part of an event queue.
pub struct QueueCore {
    /// Its place in a shard. None before its first use.
    seat: OnceLock<Seat>,
    inner: Mutex<Inner>,
    /// Events in the queue. Read without the lock by threads about to wait: they are among
    /// the waiters by then, so an event that they do not see wakes them.
    len: AtomicUsize,
    /// Places that were ever booked, and that came free again (written under the lock), or
    /// by events that were handed over without it: between them lie the operations in flight
    /// and the events not yet dequeued.
    booked: AtomicUsize,
    freed: AtomicUsize,
    handed: AtomicUsize,
    depth: AtomicUsize,
    pace: Pace,
    /// For epoll and its kin.
    fd: EventFd,
    /// The descriptor that the program polls, if it drives the shard.
    drive: OnceLock<EpollSet>,
    /// Of the calls of one thread that wait, each for its own operation.
    attends: bool,
    /// Who has asked for the descriptor ([`FdUse`]): from then on it is kept up to date.
    fd_use: AtomicU8,
}

impl QueueCore {
    /// An empty queue, in the shard that the options say.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a depth of 0; what the kernel says.
    pub fn new(opts: &QueueOptions) -> Result<Arc<QueueCore>, Error> {
        QueueCore::build(opts, false).map(Arc::new)
    }

    /// The same for the calls of one thread that block, each for its own operation.
    ///
    /// # Errors
    /// As [`QueueCore::new`].
    pub(crate) fn for_blocking_calls(opts: &QueueOptions) -> Result<Arc<QueueCore>, Error> {
        QueueCore::build(opts, true).map(Arc::new)
    }

    fn build(opts: &QueueOptions, attends: bool) -> Result<QueueCore, Error> {
        let seat = match opts.shard {
            Some(shard) => OnceLock::from(Seat::beside(shard)?),
            None => OnceLock::new(),
        };
        if opts.depth == 0 {
            return Err(Error::invalid("an event queue needs a depth of at least 1"));
        }
        Ok(QueueCore {
            seat,
            inner: Mutex::default(),
            len: AtomicUsize::new(0),
            booked: AtomicUsize::new(0),
            freed: AtomicUsize::new(0),
            handed: AtomicUsize::new(0),
            depth: AtomicUsize::new(opts.depth),
            pace: Pace::new(opts.wait),
            fd: EventFd::new().map_err(|e| Error::os("eventfd", &e))?,
            drive: OnceLock::new(),
            attends,
            fd_use: AtomicU8::new(FdUse::None as u8),
        })
    }

    /// The shard that it belongs to: from this call on, if it had none.
    #[inline]
    pub fn shard(&self) -> Shard {
        self.seat.get().unwrap_or_else(|| self.sit_down(None)).shard()
    }

    /// The same for a queue that is named with a socket of this shard.
    #[inline]
    pub(super) fn shard_beside(&self, socket: Shard) -> Shard {
        self.seat.get().unwrap_or_else(|| self.sit_down(Some(socket))).shard()
    }

    #[cold]
    fn sit_down(&self, wanted: Option<Shard>) -> &Seat {
        self.seat.get_or_init(|| Seat::take_any(wanted))
    }

    /// True if its shard was not chosen by the caller.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.seat.get().is_none_or(Seat::is_counted)
    }

    /// True if the thread that posts an operation here then waits for it.
    #[inline]
    pub(crate) fn attends(&self) -> bool {
        self.attends
    }

    /// Its shard's context.
    #[inline]
    pub(crate) fn context(&self) -> &'static Arc<Context> {
        self.shard().context().expect("a queue's shard was made before it")
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Operations that may be outstanding.
    pub fn depth(&self) -> usize {
        self.depth.load(Ordering::Relaxed)
    }

    /// Changes how many may be outstanding; what is outstanding beyond it stays.
    pub fn set_depth(&self, depth: usize) -> Result<(), Error> {
        if depth == 0 {
            return Err(Error::invalid("an event queue needs a depth of at least 1"));
        }
        self.depth.store(depth, Ordering::Relaxed);
        Ok(())
    }

    /// Operations whose events have not come.
    pub fn in_flight(&self) -> usize {
        let inner = self.lock();
        self.outstanding().saturating_sub(inner.events.len())
    }

    /// True if threads wait here.
    pub fn is_watched(&self) -> bool {
        !self.lock().waiters.is_empty()
    }

    /// Operations in flight plus events not yet dequeued.
    pub fn outstanding(&self) -> usize {
        // In this order it may be told too many, and never fewer than none.
        let freed = self.freed();
        self.booked.load(Ordering::Relaxed).wrapping_sub(freed)
    }

    /// Places that came free again: at least those at the time of the call.
    fn freed(&self) -> usize {
        let handed = self.handed.load(Ordering::Acquire);
        self.freed.load(Ordering::Acquire).wrapping_add(handed)
    }

    /// So many places are free again. The lock says who may write.
    fn free(&self, _: &Inner, places: usize) {
        let freed = self.freed.load(Ordering::Relaxed);
        self.freed.store(freed.wrapping_add(places), Ordering::Release);
    }

    /// Books the place of one event to come, so that the queue cannot overflow.
    pub fn reserve(&self) -> Result<(), Error> {
        self.reserve_some(1).map(|_| ())
    }

    /// Books the places of `most` events to come, or of as many as there is room for. Returns how
    /// many.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room.
    #[inline]
    pub fn reserve_some(&self, most: usize) -> Result<usize, Error> {
        let limit = self.depth();
        loop {
            let freed = self.freed();
            let booked = self.booked.load(Ordering::Acquire);
            let room = limit.saturating_sub(booked.wrapping_sub(freed));
            if room == 0 {
                // Unless places came free, and were booked, between the two looks.
                if self.freed() == freed {
                    cold_path();
                    return Err(Error::WouldBlock { what: "event queue", limit });
                }
                continue;
            }
            let places = most.min(room);
            let next = booked.wrapping_add(places);
            let book = self.booked.compare_exchange_weak(
                booked,
                next,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if book.is_ok() {
                return Ok(places);
            }
        }
    }

    /// Gives back places whose events will not come (the posts were refused).
    pub fn unreserve(&self, places: usize) {
        self.free(&self.lock(), places);
    }

    /// Events that wait.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// True if no event waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an event; the waiters that it satisfies are appended to `wake`, and
    /// the caller wakes them when it has let go of its locks. True if the event has made the
    /// descriptor readable that the program polls, and no thread waits here.
    pub fn push(&self, event: RawEvent, wake: &mut Vec<Arc<Waiter>>) -> bool {
        let mut inner = self.lock();
        self.add(&mut inner, event, wake);
        self.needs_leader() && inner.events.len() == 1 && inner.waiters.is_empty()
    }

    fn add(&self, inner: &mut Inner, event: RawEvent, wake: &mut Vec<Arc<Waiter>>) {
        inner.events.push_back(event);
        self.show(inner, inner.events.len() - 1, wake);
    }

    /// Publishes events that were added behind `before` others.
    fn show(&self, inner: &Inner, before: usize, wake: &mut Vec<Arc<Waiter>>) {
        let len = inner.events.len();
        self.len.store(len, Ordering::Release);
        if before == 0 && self.has_fd() {
            self.fd.signal();
        }
        for w in &inner.waiters {
            if len >= w.min.load(Ordering::SeqCst) && !wake.iter().any(|x| Arc::ptr_eq(x, w)) {
                wake.push(Arc::clone(w));
            }
        }
    }

    /// Takes the first event.
    pub(crate) fn pop(&self) -> Option<RawEvent> {
        let mut inner = self.lock();
        let event = inner.events.pop_front()?;
        self.note_removed(&inner, 1);
        Some(event)
    }

    /// Moves up to `max` events to `out`; returns how many. Their places are free
    /// again.
    pub fn take<E: From<RawEvent>>(&self, max: usize, out: &mut Vec<E>) -> usize {
        self.take_at_least(0, max, out)
    }

    /// As `take`, but nothing if there are fewer than `min`: another thread was
    /// faster.
    #[inline]
    pub fn take_at_least<E: From<RawEvent>>(
        &self,
        min: usize,
        max: usize,
        out: &mut Vec<E>,
    ) -> usize {
        self.remove(&mut self.lock(), min, max, out)
    }

    /// Adds events that were caught on their way here, and takes at once what is there, as
    /// [`QueueCore::take_at_least`]. Mostly they are all, and the queue need not be touched.
    pub(super) fn exchange<E: From<RawEvent>>(
        &self,
        caught: &mut Vec<RawEvent>,
        want: &mut Want<'_, E>,
        wake: &mut Vec<Arc<Waiter>>,
    ) -> usize {
        let n = caught.len();
        if n == 0 {
            return 0;
        }
        // Those before them go first, if no other thread takes them just now.
        let before = self.len();
        let enough = (want.min..=want.max).contains(&(before + n));
        if enough && (before == 0 || self.take_at_least(before, before, want.out) == before) {
            match caught.pop() {
                Some(only) if n == 1 => want.out.push(E::from(only)),
                last => want.out.extend(caught.drain(..).chain(last).map(E::from)),
            }
            // The caller holds the lock of the queue's own shard.
            let handed = self.handed.load(Ordering::Relaxed);
            self.handed.store(handed.wrapping_add(n), Ordering::Release);
            return before + n;
        }
        self.exchange_here(caught, want, wake)
    }

    /// The same by way of the queue.
    #[inline(never)]
    fn exchange_here<E: From<RawEvent>>(
        &self,
        caught: &mut Vec<RawEvent>,
        want: &mut Want<'_, E>,
        wake: &mut Vec<Arc<Waiter>>,
    ) -> usize {
        let mut inner = self.lock();
        for event in caught.drain(..) {
            self.add(&mut inner, event, wake);
        }
        self.remove(&mut inner, want.min, want.max, want.out)
    }

    fn remove<E: From<RawEvent>>(
        &self,
        inner: &mut Inner,
        min: usize,
        max: usize,
        out: &mut Vec<E>,
    ) -> usize {
        if inner.events.len() < min {
            return 0;
        }
        let n = inner.events.len().min(max);
        out.reserve(n);
        // `drain` does more than it saves.
        for _ in 0..n {
            if let Some(event) = inner.events.pop_front() {
                out.push(E::from(event));
            }
        }
        self.note_removed(inner, n);
        n
    }

    /// Events were removed: their places are free.
    fn note_removed(&self, inner: &Inner, n: usize) {
        let left = inner.events.len();
        self.len.store(left, Ordering::Release);
        self.free(inner, n);
        if n > 0 && left == 0 && self.has_fd() {
            self.fd.drain();
        }
    }

    /// From now on `waiter` is woken when its events are there.
    pub fn enlist(&self, waiter: &Arc<Waiter>) {
        self.lock().waiters.push(Arc::clone(waiter));
    }

    /// No longer.
    pub fn delist(&self, waiter: &Arc<Waiter>) {
        self.lock().waiters.retain(|w| !Arc::ptr_eq(w, waiter));
    }

    /// How threads wait here, and what has paid lately.
    #[inline]
    pub(super) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Sets how threads wait here.
    pub fn set_wait_policy(&self, policy: WaitPolicy) {
        self.pace.set_policy(policy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::EventKind;
    use std::time::Duration;

    fn queue(depth: usize) -> Arc<QueueCore> {
        QueueCore::new(&QueueOptions::new().with_depth(depth).with_wait(WaitPolicy::Notify))
            .unwrap()
    }

    fn push(q: &QueueCore, token: u64) -> Vec<Arc<Waiter>> {
        let mut wake = Vec::new();
        q.push(RawEvent::new(token, EventKind::Send), &mut wake);
        wake
    }

    #[test]
    fn places_are_booked_and_come_back_with_the_events() {
        let q = queue(2);
        q.reserve().unwrap();
        q.reserve().unwrap();
        assert!(matches!(q.reserve(), Err(Error::WouldBlock { limit: 2, .. })));
        push(&q, 1);
        assert!(q.reserve().is_err(), "an event still waits in its place");
        let mut out: Vec<RawEvent> = Vec::new();
        assert_eq!(q.take(5, &mut out), 1);
        q.reserve().unwrap();
        q.unreserve(1);
        assert_eq!(q.outstanding(), 1);
        assert!(QueueCore::new(&QueueOptions { depth: 0, ..QueueOptions::default() }).is_err());
    }

    #[test]
    fn waiters_are_woken_when_what_they_wait_for_is_there() {
        let q = queue(8);
        let w = Waiter::new().unwrap();
        w.min.store(2, Ordering::SeqCst);
        q.enlist(&w);
        assert!(push(&q, 1).is_empty());
        assert_eq!(push(&q, 2).len(), 1);
        q.delist(&w);
        assert!(push(&q, 3).is_empty());
    }

    #[test]
    fn caught_events_go_to_who_wants_them_in_order() {
        let q = queue(8);
        let (mut out, mut wake): (Vec<RawEvent>, _) = (Vec::new(), Vec::new());
        let mut caught = |tokens: std::ops::Range<u64>, min, max| {
            let mut events: Vec<_> = tokens
                .map(|token| {
                    q.reserve().unwrap();
                    RawEvent::new(token, EventKind::Recv)
                })
                .collect();
            let mut want = Want { min, max, out: &mut out };
            let got = q.exchange(&mut events, &mut want, &mut wake);
            assert!(events.is_empty());
            (got, q.len(), q.outstanding())
        };
        assert_eq!(caught(0..0, 1, 8), (0, 0, 0));
        assert_eq!(caught(0..2, 1, 8), (2, 0, 0), "straight to the thread");
        assert_eq!(caught(2..3, 2, 8), (0, 1, 1), "one is too few");
        assert_eq!(caught(3..4, 2, 8), (2, 0, 0), "but not with the one that waits");
        assert_eq!(caught(4..6, 3, 8), (0, 2, 2), "too few: they wait");
        assert_eq!(caught(6..7, 3, 8), (3, 0, 0), "after those that were there");
        assert_eq!(caught(7..10, 1, 2), (2, 1, 1), "what is too many waits");
        assert_eq!(out.iter().map(|e| e.token).collect::<Vec<_>>(), (0..9).collect::<Vec<_>>());
    }

    #[test]
    fn caught_events_that_are_left_wake_other_waiters() {
        let q = queue(8);
        let w = Waiter::new().unwrap();
        q.enlist(&w);
        let (mut out, mut wake): (Vec<RawEvent>, _) = (Vec::new(), Vec::new());
        let mut events = vec![RawEvent::new(1, EventKind::Recv)];
        q.reserve().unwrap();
        let mut want = Want { min: 2, max: 2, out: &mut out };
        assert_eq!(q.exchange(&mut events, &mut want, &mut wake), 0);
        assert_eq!(wake.len(), 1);
    }

    #[test]
    fn the_descriptor_is_readable_while_events_wait() {
        let q = queue(8);
        assert!(!q.push(RawEvent::new(1, EventKind::Send), &mut Vec::new()), "nobody polls it");
        let readable = || q.fd(FdUse::Program).wait(Some(Duration::ZERO)).unwrap();
        assert!(readable(), "an event that came before anybody asked counts");
        push(&q, 2);
        let mut out: Vec<RawEvent> = Vec::new();
        q.take(1, &mut out);
        assert!(readable());
        q.take(1, &mut out);
        assert!(!readable());
        q.take(1, &mut out);
        push(&q, 3);
        assert!(readable());
    }
}
