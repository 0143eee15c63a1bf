//! The event queue: where the engine leaves events and threads wait for them.

mod connection;
mod fd;
mod places;
mod poster;
mod purpose;
mod run;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::context::Context;
use super::event::RawEvent;
use super::grouping::GroupUse;
use super::pace::Pace;
use super::shards::{Seat, Shard};
use super::waiter::Waiter;
use super::{Error, QueueOptions, WaitPolicy};
use crate::sys::EventFd;

pub(in crate::progress) use self::connection::Away;
use self::connection::QueueConnections;
pub(in crate::progress) use self::fd::DriveFds;
pub use self::fd::FdUse;
use self::fd::Signal;
use self::places::Places;
pub(crate) use self::purpose::QueueUse;
#[cfg(feature = "futures")]
pub(crate) use self::purpose::Workers;

/// The events that a thread wants from a queue, and the place for them.
pub(crate) struct Want<'a, E> {
    pub(crate) min: usize,
    pub(crate) max: usize,
    pub(crate) out: &'a mut Vec<E>,
}

#[derive(Default)]
struct Inner {
    events: VecDeque<RawEvent>,
    waiters: Vec<Arc<Waiter>>,
    signal: Signal,
}

/// The shared part of an event queue.
pub struct QueueCore {
    /// The queue's place in a shard. Empty before the first use.
    seat: OnceLock<Seat>,
    inner: Mutex<Inner>,
    /// The number of events in the queue. A thread that is about to wait reads it without the lock.
    /// It is on the list of waiters by then, so an event that it does not see wakes it.
    len: AtomicUsize,
    places: Places,
    pace: Pace,
    connections: QueueConnections,
    /// The eventfd for a program that waits by epoll(7) or the like. None: it is for blocking calls.
    fd: Option<EventFd>,
    /// What the program polls. Empty: this does not drive the shard.
    drive: OnceLock<DriveFds>,
    serves: QueueUse,
    /// The user of the descriptor ([`FdUse`]). The queue keeps a descriptor with a user up to date.
    fd_use: AtomicU8,
}

impl QueueCore {
    /// Makes an empty queue, in the shard that the options name.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a depth of 0, and errors of the kernel.
    pub fn new(opts: &QueueOptions) -> Result<Arc<QueueCore>, Error> {
        QueueCore::build(opts, QueueUse::Program).map(Arc::new)
    }

    /// Makes a queue for other operations than those that the program posts.
    ///
    /// # Errors
    /// As [`QueueCore::new`].
    pub(crate) fn of_use(opts: &QueueOptions, serves: QueueUse) -> Result<Arc<QueueCore>, Error> {
        QueueCore::build(opts, serves).map(Arc::new)
    }

    fn build(opts: &QueueOptions, serves: QueueUse) -> Result<QueueCore, Error> {
        let seat = match opts.shard {
            Some(shard) => OnceLock::from(Seat::beside(shard)?),
            None => OnceLock::new(),
        };
        let fd = (serves != QueueUse::Blocking).then(EventFd::new).transpose();
        Ok(QueueCore {
            seat,
            inner: Mutex::default(),
            len: AtomicUsize::new(0),
            places: Places::new(opts.depth)?,
            pace: Pace::new(opts.wait),
            connections: QueueConnections::default(),
            fd: fd.map_err(|e| Error::os("eventfd", &e))?,
            drive: OnceLock::new(),
            serves,
            fd_use: AtomicU8::new(FdUse::None as u8),
        })
    }

    /// The queue's shard. A queue without a shard gets its shard in this call.
    #[inline]
    pub fn shard(&self) -> Shard {
        self.seat.get().unwrap_or_else(|| self.sit_down(None)).shard()
    }

    /// As `shard`, for a queue that a caller names together with a socket of this shard.
    #[inline]
    pub(super) fn shard_beside(&self, socket: Shard) -> Shard {
        self.seat.get().unwrap_or_else(|| self.sit_down(Some(socket))).shard()
    }

    #[cold]
    fn sit_down(&self, wanted: Option<Shard>) -> &Seat {
        self.seat.get_or_init(|| Seat::take_any(wanted))
    }

    /// True if the caller did not choose the queue's shard.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.seat.get().is_none_or(Seat::is_counted)
    }

    /// How the program uses the connections that begin here.
    pub(crate) fn group_use(&self) -> GroupUse {
        self.serves.group_use()
    }

    /// The context of the queue's shard.
    #[inline]
    pub(crate) fn context(&self) -> &'static Arc<Context> {
        self.shard().context().expect("a queue's shard was made before it")
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most operations in flight and events that wait, together.
    pub fn depth(&self) -> usize {
        self.places.depth()
    }

    /// Changes the depth. Operations and events beyond the new depth stay.
    pub fn set_depth(&self, depth: usize) -> Result<(), Error> {
        self.places.set_depth(depth)
    }

    /// The number of operations whose events have not come.
    pub fn in_flight(&self) -> usize {
        let inner = self.lock();
        self.outstanding().saturating_sub(inner.events.len())
    }

    /// True if threads wait here.
    pub fn is_watched(&self) -> bool {
        !self.lock().waiters.is_empty()
    }

    /// The number of operations in flight and of events that no thread has dequeued, together.
    pub fn outstanding(&self) -> usize {
        self.places.outstanding()
    }

    /// Books the place of a later event, so that the queue cannot overflow.
    pub fn reserve(&self) -> Result<(), Error> {
        self.reserve_some(1).map(|_| ())
    }

    /// Books the places of `most` later events, or fewer if there is less room. Returns the number
    /// of places.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room.
    #[inline]
    pub fn reserve_some(&self, most: usize) -> Result<usize, Error> {
        self.connections.poster.note();
        self.places.book(most)
    }

    /// Gives back places whose events will not come, because the posts were refused.
    pub fn unreserve(&self, places: usize) {
        let _inner = self.lock();
        self.places.free(places);
    }

    /// The number of events that wait.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// True if no event waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an event. Appends the waiters that it satisfies to `wake`; the caller wakes them after
    /// it has released its locks. Returns true if the program polls a descriptor that does not
    /// drive the shard, the event has made it readable, and no thread waits here.
    pub fn push(&self, event: RawEvent, wake: &mut Vec<Arc<Waiter>>) -> bool {
        let mut inner = self.lock();
        self.add(&mut inner, event, wake);
        self.needs_leader() && inner.events.len() == 1 && inner.waiters.is_empty()
    }

    fn add(&self, inner: &mut Inner, event: RawEvent, wake: &mut Vec<Arc<Waiter>>) {
        inner.events.push_back(event);
        self.show(inner, wake);
    }

    /// Publishes events that were added.
    fn show(&self, inner: &mut Inner, wake: &mut Vec<Arc<Waiter>>) {
        let len = inner.events.len();
        self.len.store(len, Ordering::Release);
        self.signal(inner);
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
        self.note_removed(&mut inner, 1);
        Some(event)
    }

    /// Moves up to `max` events to `out`, and frees their places. Returns the number of events.
    pub fn take<E: From<RawEvent>>(&self, max: usize, out: &mut Vec<E>) -> usize {
        self.take_at_least(0, max, out)
    }

    /// As `take`, but moves nothing if there are fewer than `min` events: another thread was
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

    /// Adds events that were caught on their way here, and takes events at once, as
    /// [`QueueCore::take_at_least`]. Usually there are no others, and the queue stays as it is.
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
        // Events in the queue go first, if no other thread takes them just now.
        let before = self.len();
        let enough = (want.min..=want.max).contains(&(before + n));
        if enough && (before == 0 || self.take_at_least(before, before, want.out) == before) {
            match caught.pop() {
                Some(only) if n == 1 => want.out.push(E::from(only)),
                last => want.out.extend(caught.drain(..).chain(last).map(E::from)),
            }
            // The thread holds the engine's lock of the queue's own shard, so no other thread
            // writes.
            self.places.hand_over(n);
            return before + n;
        }
        self.exchange_here(caught, want, wake)
    }

    /// As `exchange`, by way of the queue.
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
        // A `drain` costs more than it saves.
        for _ in 0..n {
            if let Some(event) = inner.events.pop_front() {
                out.push(E::from(event));
            }
        }
        self.note_removed(inner, n);
        n
    }

    /// Frees the places of `n` events that were removed.
    fn note_removed(&self, inner: &mut Inner, n: usize) {
        self.len.store(inner.events.len(), Ordering::Release);
        self.places.free(n);
        self.end_signal(inner);
    }

    /// Puts `waiter` on the list: it is woken when its events are there.
    pub fn enlist(&self, waiter: &Arc<Waiter>) {
        self.lock().waiters.push(Arc::clone(waiter));
    }

    /// Takes `waiter` from the list.
    pub fn delist(&self, waiter: &Arc<Waiter>) {
        self.lock().waiters.retain(|w| !Arc::ptr_eq(w, waiter));
    }

    /// How threads wait here, and the record of the waits that have paid.
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
    fn waiters_are_woken_when_their_events_are_there() {
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
    fn caught_events_go_in_order_to_the_thread_that_wants_them() {
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
        assert_eq!(caught(3..4, 2, 8), (2, 0, 0), "enough with the event that waits");
        assert_eq!(caught(4..6, 3, 8), (0, 2, 2), "too few: the events wait");
        assert_eq!(caught(6..7, 3, 8), (3, 0, 0), "after the events that were there");
        assert_eq!(caught(7..10, 1, 2), (2, 1, 1), "the event beyond `max` waits");
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
        assert!(!q.push(RawEvent::new(1, EventKind::Send), &mut Vec::new()), "no program polls");
        let readable = || q.fd(FdUse::Program).wait(Some(Duration::ZERO)).unwrap();
        assert!(readable(), "an event that came before the program asked counts");
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
