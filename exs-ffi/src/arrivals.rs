//! Arrival descriptors: what an epoll set of the program watches beside the descriptor of a socket.
//!
//! The descriptor of an EXS socket is one end of a socket pair (`pair`), which a thread of the
//! library makes readable. A program that registers the socket by `exs_epoll_ctl` needs no such
//! thread: the epoll set also gets the socket's *arrival descriptor*, for the same event data.
//!
//! | transport | the arrival descriptor | it becomes readable when |
//! |---|---|---|
//! | software RNIC | the TCP stream of the connection | bytes arrive there |
//! | shared memory | one end of a socket pair of the library's; the peer has the other | the peer has written a message, and the program has announced its sleep |
//! | RDMA device | none | |
//!
//! It is registered by edges, for EPOLLIN alone. So it says nothing but "receive": a receive that
//! does not wait takes all that has come from the connection. What the receive leaves in the library
//! shows at the socket's own descriptor, and so does everything else: room to send, the end. While
//! a thread of the library looks after the connection, an edge can find nothing to receive.
//!
//! The first receive that does not wait makes the arrival descriptor, since no connection is there
//! before. It is taken out of all epoll sets before the socket's descriptor shows an end, so that a
//! program which closes the socket then has no event of it left.
//!
//! # Locks
//! A thread may hold the locks of the socket's state and of its face when it takes that of its
//! arrivals, and takes neither of them after that. With the lock it only looks at the engine: a call that
//! begins work may show the socket's changes, which takes these locks.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exs::__ffi::{self as raw, AttendedStream, LoopId, RungBy};

use crate::epoll_set::EpollSet;
use crate::error::Result;
use crate::event_loop::LoopNote;
use crate::ring_end::RingEnd;
use crate::sockets::Entry;

/// Rings after which the messages of a pair are taken out. A few hundred fit.
const MOST_RINGS: u32 = 16;

/// A registration of the program's that an arrival descriptor serves.
#[derive(Debug)]
struct Interest {
    set: Arc<EpollSet>,
    /// The program's numbers of the epoll set and of the socket.
    numbers: (c_int, c_int),
    /// What the program asks for, and its data.
    event: libc::epoll_event,
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.set.event_loop.remove_member();
    }
}

impl Interest {
    /// The part of an event that the arrival descriptor serves. None: it serves none.
    /// EPOLLONESHOT would have to disarm two registrations at once.
    fn of(
        set: Arc<EpollSet>,
        numbers: (c_int, c_int),
        event: libc::epoll_event,
    ) -> Option<Interest> {
        let (readable, oneshot) =
            (libc::EPOLLIN.cast_unsigned(), libc::EPOLLONESHOT.cast_unsigned());
        let served = event.events & readable != 0 && event.events & oneshot == 0;
        served.then(|| {
            set.event_loop.add_member();
            Interest { set, numbers, event }
        })
    }

    /// The registration of the arrival descriptor: EPOLLIN, EPOLLET and, if the program asks for it,
    /// EPOLLEXCLUSIVE.
    fn of_arrivals(&self) -> libc::epoll_event {
        let exclusive = self.event.events & libc::EPOLLEXCLUSIVE.cast_unsigned();
        let events = (libc::EPOLLIN | libc::EPOLLET).cast_unsigned() | exclusive;
        libc::epoll_event { events, u64: self.event.u64 }
    }

    /// The event that says that there are data.
    fn of_data(&self) -> libc::epoll_event {
        let asked = self.event.events & libc::EPOLLRDNORM.cast_unsigned();
        libc::epoll_event { events: libc::EPOLLIN.cast_unsigned() | asked, u64: self.event.u64 }
    }

    fn by_level(&self) -> bool {
        self.event.events & libc::EPOLLET.cast_unsigned() == 0
    }
}

/// The arrival descriptor of a socket.
#[derive(Debug)]
enum ArrivalFd {
    /// There is none yet.
    Unmade,
    Stream(AttendedStream),
    Pair(ArrivalPair),
    /// There is none: the event loop of the only epoll set that has the socket serves it
    /// (`event_loop`).
    Looped,
    /// The connection can have none, or has ended.
    Nothing,
}

impl ArrivalFd {
    /// The descriptor for epoll sets.
    fn number(&self) -> Option<RawFd> {
        match self {
            ArrivalFd::Stream(stream) => Some(stream.as_raw_fd()),
            ArrivalFd::Pair(pair) => Some(pair.shown.as_raw_fd()),
            ArrivalFd::Unmade | ArrivalFd::Looped | ArrivalFd::Nothing => None,
        }
    }
}

/// A socket pair at whose end the peer rings.
#[derive(Debug)]
struct ArrivalPair {
    /// The end in the epoll sets.
    shown: OwnedFd,
    /// The end of which the peer gets a copy.
    lent: Arc<OwnedFd>,
    /// Messages that lie there, at most.
    rings: u32,
}

impl ArrivalPair {
    fn new() -> Result<ArrivalPair> {
        let [shown, lent] = crate::pair::ends(0)?;
        Ok(ArrivalPair { shown, lent: Arc::new(lent), rings: 0 })
    }

    /// Counts rings, and takes the messages out before they fill the pair: a ring without room
    /// gives no edge. A message that is late is taken out by a later call.
    fn count(&mut self, rings: u32) {
        self.rings = self.rings.saturating_add(rings);
        if self.rings >= MOST_RINGS {
            self.rings = 0;
            crate::pair::empty(&self.shown);
        }
    }
}

/// The arrival descriptor of a socket, and the epoll sets that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// The program has registered the socket by `exs_epoll_ctl`, now or before.
    used: AtomicBool,
    /// The arrival descriptor is `Looped`.
    looped: AtomicBool,
    /// What that loop knows.
    pub(crate) note: LoopNote,
    parts: Mutex<Parts>,
}

#[derive(Debug)]
struct Parts {
    interests: Vec<Interest>,
    /// The epoll set that waits for something else than data, as for the end of a connect. So the set is
    /// known before its first connection is there.
    other: Option<Arc<EpollSet>>,
    fd: ArrivalFd,
}

impl Default for Parts {
    fn default() -> Parts {
        Parts { interests: Vec::new(), other: None, fd: ArrivalFd::Unmade }
    }
}

impl Parts {
    /// Puts the arrival descriptor into the epoll set of an interest. Returns false if the kernel has
    /// no memory for it, or if the socket is there twice, by two numbers.
    fn register(&self, interest: &Interest) -> bool {
        self.fd.number().is_none_or(|fd| {
            interest.set.control(libc::EPOLL_CTL_ADD, fd, Some(interest.of_arrivals()))
        })
    }

    /// Takes the arrival descriptor out of the epoll set of an interest.
    fn deregister(&self, interest: &Interest) {
        if let Some(fd) = self.fd.number() {
            // It is not there if the program has closed the epoll set.
            let _ = interest.set.control(libc::EPOLL_CTL_DEL, fd, None);
        }
    }

    /// Finds the interest of these numbers. The epoll set may have another number by now.
    fn index(&self, numbers: (c_int, c_int)) -> Option<usize> {
        let by_numbers = self.interests.iter().position(|i| i.numbers == numbers);
        let same = |i: &Interest| i.numbers.1 == numbers.1 && i.set.is_named(numbers.0);
        by_numbers.or_else(|| self.interests.iter().position(same))
    }

    /// From now on there is no arrival descriptor.
    fn end(&mut self, entry: &Entry) {
        self.interests.iter().for_each(|interest| self.deregister(interest));
        if matches!(std::mem::replace(&mut self.fd, ArrivalFd::Nothing), ArrivalFd::Stream(_)) {
            raw::end_polling_at_end(&entry.socket);
        }
    }

    /// True if an epoll set waits for an arrival descriptor, and there is none yet.
    fn lacks_one(&self) -> bool {
        matches!(self.fd, ArrivalFd::Unmade) && !self.interests.is_empty()
    }

    /// True if the event loop should take the place of the arrival descriptor, or of a thread that shows
    /// the data. Where the kernel shows what arrives, it does so only if its turns move the data of other
    /// sockets of the shard anyway.
    fn should_join(&self, entry: &Entry) -> bool {
        match self.fd {
            ArrivalFd::Pair(_) => self.is_crowded(),
            ArrivalFd::Nothing => self.looped().is_some(),
            ArrivalFd::Stream(_) => self.is_driven(entry),
            ArrivalFd::Unmade | ArrivalFd::Looped => false,
        }
    }

    /// True if the event loop of the only epoll set drives the socket's shard.
    fn is_driven(&self, entry: &Entry) -> bool {
        let drives = |one: &Interest| one.set.event_loop.drives(raw::shard_of(&entry.socket));
        self.looped().is_some_and(drives)
    }

    /// True if the only epoll set has enough sockets for its event loop to serve this one.
    fn is_crowded(&self) -> bool {
        self.looped().is_some_and(|interest| interest.set.event_loop.is_crowded())
    }

    /// The only registration, if its epoll set has an event loop.
    fn looped(&self) -> Option<&Interest> {
        match &self.interests[..] {
            [one] if one.set.event_loop.is_used() => Some(one),
            _ => None,
        }
    }

    /// Makes the arrival descriptor, if there is a connection by now. `lent`: the peer rings at the
    /// socket's descriptor.
    fn make(&mut self, entry: &Entry, lent: bool) {
        self.fd = match raw::rung_by(&entry.socket) {
            RungBy::Stream(_) if self.is_driven(entry) => ArrivalFd::Looped,
            RungBy::Stream(stream) => ArrivalFd::Stream(stream),
            RungBy::Nothing if self.looped().is_some() => ArrivalFd::Looped,
            RungBy::Nothing => ArrivalFd::Nothing,
            RungBy::Peer if self.is_crowded() => ArrivalFd::Looped,
            // A peer rings at one descriptor only.
            RungBy::Peer if lent => ArrivalFd::Nothing,
            RungBy::Peer => ArrivalPair::new().map_or(ArrivalFd::Nothing, ArrivalFd::Pair),
            // There is no connection yet.
            _ => return,
        };
        if !self.interests.iter().all(|interest| self.register(interest)) {
            self.end(entry);
        }
    }
}

impl Arrivals {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Makes the arrival descriptor before a receive, if an epoll set waits for it and there is none.
    #[inline]
    pub(crate) fn prepare(entry: &Entry) {
        if !entry.arrivals.is_used() || Arrivals::is_looped(entry) {
            return;
        }
        let parts = entry.arrivals.parts();
        if parts.lacks_one() || parts.should_join(entry) {
            drop(parts);
            Arrivals::make(entry);
        }
    }

    fn make(entry: &Entry) {
        let lent = entry.face.is_lent();
        let mut parts = entry.arrivals.parts();
        if parts.should_join(entry) {
            parts.interests.iter().for_each(|interest| parts.deregister(interest));
            parts.fd = ArrivalFd::Looped;
        }
        if parts.looped().is_some() {
            raw::note_loop(&entry.socket);
        }
        // Another thread may have made it meanwhile.
        if parts.lacks_one() {
            parts.make(entry, lent);
        }
        if let (ArrivalFd::Looped, Some(interest)) = (&parts.fd, parts.looped()) {
            interest.set.add_shard(raw::shard_of(&entry.socket));
            entry.arrivals.looped.store(true, Ordering::Release);
            drop(parts);
            // The loop's turns look after it.
            raw::end_polling(&entry.socket);
        }
    }

    /// True if an event loop serves the socket.
    pub(crate) fn is_looped(entry: &Entry) -> bool {
        entry.arrivals.looped.load(Ordering::Acquire)
    }

    /// True if the program waits for the socket in an event loop that drives shards.
    pub(crate) fn is_driven(entry: &Entry) -> bool {
        Arrivals::is_looped(entry)
            || entry.arrivals.is_used() && entry.arrivals.parts().is_driven(entry)
    }

    /// Lets the loop find data of a socket, if it is the only one that waits for it. The caller has the
    /// lock of what is shown. Returns false if the descriptor must show them.
    pub(crate) fn find(entry: &Entry, event_loop: LoopId, arrived: u64) -> bool {
        let parts = entry.arrivals.parts();
        let set = parts.looped().map(|interest| &interest.set);
        let Some(set) = set.filter(|set| set.event_loop.id() == event_loop) else { return false };
        set.event_loop.find(entry, arrived);
        true
    }

    /// The event for data that the loop has found, and whether the registration is level-triggered.
    /// None: the program waits for them no longer.
    pub(crate) fn event(entry: &Entry) -> Option<(libc::epoll_event, bool)> {
        let parts = entry.arrivals.parts();
        parts.looped().map(|interest| (interest.of_data(), interest.by_level()))
    }

    /// Returns where the peer must ring while the program sleeps. None: the socket has no
    /// arrival descriptor, so the peer may ring at its own one.
    #[inline]
    pub(crate) fn ring_end(entry: &Entry) -> Option<RingEnd> {
        if !entry.arrivals.is_used() {
            return None;
        }
        if Arrivals::is_looped(entry) {
            return Some(RingEnd::None);
        }
        let parts = entry.arrivals.parts();
        match &parts.fd {
            ArrivalFd::Stream(_) => Some(RingEnd::None),
            // No epoll set waits for it: a thread of the library shows what comes.
            ArrivalFd::Pair(_) if parts.interests.is_empty() => Some(RingEnd::None),
            ArrivalFd::Pair(pair) => Some(RingEnd::ArrivalFd(Arc::clone(&pair.lent))),
            ArrivalFd::Unmade | ArrivalFd::Looped | ArrivalFd::Nothing => None,
        }
    }

    /// Counts rings of the peer's.
    pub(crate) fn count(entry: &Entry, rings: u32) {
        if rings > 0
            && let ArrivalFd::Pair(pair) = &mut entry.arrivals.parts().fd
        {
            pair.count(rings);
        }
    }

    /// The program has registered the socket in an epoll set, or has changed a registration. Where no
    /// descriptor is left for that, the socket's own shows everything.
    pub(crate) fn watch(entry: &Entry, numbers: (c_int, c_int), event: libc::epoll_event) {
        let set = EpollSet::of(numbers.0).ok();
        let mut parts = entry.arrivals.parts();
        let before = parts.index(numbers).map(|at| parts.interests.swap_remove(at));
        let oneshot = event.events & libc::EPOLLONESHOT.cast_unsigned() != 0;
        parts.other = set.clone().filter(|_| !oneshot);
        let now = set.and_then(|set| Interest::of(set, numbers, event));
        if now.is_some() {
            parts.other = None;
        }
        let unchanged = |a: &Interest, b: &Interest| {
            let of = |interest: &Interest| {
                let event = interest.of_arrivals();
                (event.events, event.u64)
            };
            Arc::ptr_eq(&a.set, &b.set) && of(a) == of(b)
        };
        let kept = matches!((&before, &now), (Some(a), Some(b)) if unchanged(a, b));
        if let Some(before) = before.filter(|_| !kept) {
            parts.deregister(&before);
        }
        if let Some(now) = now {
            if !entry.socket.is_listening() {
                now.set.event_loop.note_connection();
            }
            let registered = kept || parts.register(&now);
            parts.interests.push(now);
            if !registered {
                // The socket's descriptor shows everything, as without.
                parts.end(entry);
            }
        }
        Arrivals::settle(entry, parts);
    }

    /// The program has taken the socket out of an epoll set.
    pub(crate) fn unwatch(entry: &Entry, numbers: (c_int, c_int)) {
        let mut parts = entry.arrivals.parts();
        if let Some(at) = parts.index(numbers) {
            let before = parts.interests.swap_remove(at);
            parts.deregister(&before);
        }
        parts.other = None;
        Arrivals::settle(entry, parts);
    }

    /// Notes that the socket is registered, or was. If no epoll set waits for arrivals, a thread of
    /// the library looks after the connection.
    fn settle(entry: &Entry, mut parts: MutexGuard<'_, Parts>) {
        entry.arrivals.used.store(true, Ordering::Release);
        if matches!(parts.fd, ArrivalFd::Looped) {
            // The next receive decides anew.
            parts.fd = ArrivalFd::Unmade;
            entry.arrivals.looped.store(false, Ordering::Release);
        }
        let unheard = parts.interests.is_empty() && parts.fd.number().is_some();
        if unheard && matches!(parts.fd, ArrivalFd::Stream(_)) {
            parts.fd = ArrivalFd::Unmade;
        }
        drop(parts);
        if unheard {
            raw::end_polling(&entry.socket);
        }
    }

    /// The connection has ended.
    pub(crate) fn end(entry: &Entry) {
        if entry.arrivals.is_used() {
            entry.arrivals.parts().end(entry);
        }
    }

    /// The program has closed the socket, which the kernel has taken out of all epoll sets.
    pub(crate) fn close(entry: &Entry) {
        if entry.arrivals.is_used() {
            let mut parts = entry.arrivals.parts();
            parts.end(entry);
            let sets = (std::mem::take(&mut parts.interests), parts.other.take());
            entry.arrivals.note.clear();
            drop(parts);
            drop(sets);
        }
    }
}
