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

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use exs::__ffi::{self as raw, AttendedStream, ProcessLock, RungBy};

use crate::error::{Fail, Result};
use crate::pollable::RingEnd;
use crate::sockets::Entry;

/// Rings after which the messages of a pair are taken out. A few hundred fit.
const MOST_RINGS: u32 = 16;

/// An epoll set of the program, by a descriptor of the library's. A set that the program closes stays
/// for as long as sockets are registered there.
#[derive(Debug)]
pub(crate) struct EpollSet(OwnedFd);

/// The epoll sets of the program in which sockets are registered, by the program's numbers.
static SETS: ProcessLock<Option<HashMap<c_int, Weak<EpollSet>>>> = ProcessLock::new(None);

impl EpollSet {
    /// Returns the epoll set that the number names.
    pub(crate) fn of(number: c_int) -> Result<Arc<EpollSet>> {
        let mut sets = SETS.lock();
        let sets = sets.get_or_insert_default();
        if let Some(set) = sets.get(&number).and_then(Weak::upgrade)
            && set.is_named(number)
        {
            return Ok(set);
        }
        // SAFETY: takes no pointers.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return Err(Fail::os("fcntl"));
        }
        // SAFETY: just made, with no other owner.
        let set = Arc::new(EpollSet(unsafe { OwnedFd::from_raw_fd(copy) }));
        sets.retain(|_, set| set.strong_count() > 0);
        sets.insert(number, Arc::downgrade(&set));
        Ok(set)
    }

    /// Returns true if the number names this epoll set, as far as the kernel can say.
    fn is_named(&self, number: c_int) -> bool {
        raw::is_duplicate(number, self.0.as_fd())
    }

    fn control(&self, op: c_int, fd: RawFd, event: Option<&Interest>) -> bool {
        let mut event =
            event.map(|interest| libc::epoll_event { events: interest.flags, u64: interest.data });
        let at = event.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // SAFETY: an event that is alive for the call, or none where none is read.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd, at) == 0 }
    }
}

/// A registration of the program's that an arrival descriptor serves.
#[derive(Debug)]
struct Interest {
    set: Arc<EpollSet>,
    /// The program's numbers of the epoll set and of the socket.
    numbers: (c_int, c_int),
    /// EPOLLIN, EPOLLET and, if the program asks for it, EPOLLEXCLUSIVE.
    flags: u32,
    data: u64,
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
        let flags = readable
            | libc::EPOLLET.cast_unsigned()
            | event.events & libc::EPOLLEXCLUSIVE.cast_unsigned();
        let served = event.events & readable != 0 && event.events & oneshot == 0;
        served.then_some(Interest { set, numbers, flags, data: event.u64 })
    }
}

/// The arrival descriptor of a socket.
#[derive(Debug)]
enum ArrivalFd {
    /// There is none yet.
    Unmade,
    Stream(AttendedStream),
    Pair(ArrivalPair),
    /// The connection can have none, or has ended.
    Nothing,
}

impl ArrivalFd {
    /// The descriptor for epoll sets.
    fn number(&self) -> Option<RawFd> {
        match self {
            ArrivalFd::Stream(stream) => Some(stream.as_raw_fd()),
            ArrivalFd::Pair(pair) => Some(pair.shown.as_raw_fd()),
            ArrivalFd::Unmade | ArrivalFd::Nothing => None,
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

/// The arrival descriptor of a socket, and who waits for it.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// The program has registered the socket by `exs_epoll_ctl`, now or before.
    used: AtomicBool,
    parts: Mutex<Parts>,
}

#[derive(Debug)]
struct Parts {
    interests: Vec<Interest>,
    fd: ArrivalFd,
}

impl Default for Parts {
    fn default() -> Parts {
        Parts { interests: Vec::new(), fd: ArrivalFd::Unmade }
    }
}

impl Parts {
    /// Puts the arrival descriptor into the epoll set of an interest. Returns false if the kernel has
    /// no memory for it, or if the socket is there twice, by two numbers.
    fn register(&self, interest: &Interest) -> bool {
        self.fd
            .number()
            .is_none_or(|fd| interest.set.control(libc::EPOLL_CTL_ADD, fd, Some(interest)))
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

    /// Makes the arrival descriptor, if there is a connection by now. `lent`: the peer rings at the
    /// socket's descriptor.
    fn make(&mut self, entry: &Entry, lent: bool) {
        self.fd = match raw::rung_by(&entry.socket) {
            RungBy::Nothing => ArrivalFd::Nothing,
            RungBy::Stream(stream) => ArrivalFd::Stream(stream),
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
        if !entry.arrivals.is_used() {
            return;
        }
        if entry.arrivals.parts().lacks_one() {
            let lent = entry.face.is_lent();
            let mut parts = entry.arrivals.parts();
            // Another thread may have made it meanwhile.
            if parts.lacks_one() {
                parts.make(entry, lent);
            }
        }
    }

    /// Returns where the peer must ring while the program sleeps. None: the socket has no
    /// arrival descriptor, so the peer may ring at its own one.
    #[inline]
    pub(crate) fn ring_end(entry: &Entry) -> Option<RingEnd> {
        if !entry.arrivals.is_used() {
            return None;
        }
        let parts = entry.arrivals.parts();
        match &parts.fd {
            ArrivalFd::Stream(_) => Some(RingEnd::None),
            // No epoll set waits for it: a thread of the library shows what comes.
            ArrivalFd::Pair(_) if parts.interests.is_empty() => Some(RingEnd::None),
            ArrivalFd::Pair(pair) => Some(RingEnd::ArrivalFd(Arc::clone(&pair.lent))),
            ArrivalFd::Unmade | ArrivalFd::Nothing => None,
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
        let now = set.and_then(|set| Interest::of(set, numbers, event));
        let unchanged = |a: &Interest, b: &Interest| {
            Arc::ptr_eq(&a.set, &b.set) && (a.flags, a.data) == (b.flags, b.data)
        };
        let kept = matches!((&before, &now), (Some(a), Some(b)) if unchanged(a, b));
        if let Some(before) = before.filter(|_| !kept) {
            parts.deregister(&before);
        }
        if let Some(now) = now {
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
        Arrivals::settle(entry, parts);
    }

    /// Notes that the socket is registered, or was. If no epoll set waits for arrivals, a thread of
    /// the library looks after the connection.
    fn settle(entry: &Entry, mut parts: MutexGuard<'_, Parts>) {
        entry.arrivals.used.store(true, Ordering::Release);
        let unheard = parts.interests.is_empty() && parts.fd.number().is_some();
        if unheard && matches!(parts.fd, ArrivalFd::Stream(_)) {
            parts.fd = ArrivalFd::Unmade;
        }
        drop(parts);
        if unheard {
            raw::end_polling(&entry.socket);
        }
    }

    /// The connection has ended, or the program has closed the socket.
    pub(crate) fn end(entry: &Entry) {
        if entry.arrivals.is_used() {
            entry.arrivals.parts().end(entry);
        }
    }
}
