//! The epoll sets of the program in which sockets are registered.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

use exs::__ffi::{self as raw, LoopDriver, ProcessLock, ProcessNumber};
use exs::Shard;

use crate::error::{Fail, Result};
use crate::event_loop::{self, EventLoop};

/// An epoll set of the program, by a descriptor of the library's. A set that the program closes stays
/// for as long as sockets are registered there.
#[derive(Debug)]
pub(crate) struct EpollSet {
    fd: OwnedFd,
    pub(crate) event_loop: EventLoop,
}

/// The epoll sets of the program in which sockets are registered, by the program's numbers.
static SETS: ProcessLock<Option<HashMap<c_int, Weak<EpollSet>>>> = ProcessLock::new(None);

/// Counts the sets in which the program has registered a first socket.
static MADE: ProcessNumber = ProcessNumber::new(0);

/// The set that a thread has found last.
struct Last {
    number: c_int,
    set: Weak<EpollSet>,
    /// The count of sets by then.
    made: u64,
}

thread_local! {
    static LAST: RefCell<Last> =
        const { RefCell::new(Last { number: -1, set: Weak::new(), made: 0 }) };
}

impl Last {
    /// Returns the set if the number still names it. The kernel is asked only where it matters: while no
    /// loop of the process drives a shard, a set tells nothing that epoll_wait(2) does not find by
    /// the number. A set in which sockets were registered since was counted.
    fn named(&self, number: c_int) -> Option<Arc<EpollSet>> {
        if self.number != number {
            return None;
        }
        let set = self.set.upgrade()?;
        let rests = !event_loop::are_needed() && self.made == MADE.get();
        (rests || set.is_named(number)).then_some(set)
    }
}

impl EpollSet {
    /// Returns the epoll set that the number names.
    pub(crate) fn of(number: c_int) -> Result<Arc<EpollSet>> {
        let mut sets = SETS.lock();
        let sets = sets.get_or_insert_default();
        if let Some(set) = known(sets, number) {
            return Ok(set);
        }
        // SAFETY: takes no pointers.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return Err(Fail::os("fcntl"));
        }
        // SAFETY: just made, with no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(copy) };
        let set = Arc::new(EpollSet { fd, event_loop: EventLoop::default() });
        sets.retain(|_, set| set.strong_count() > 0);
        sets.insert(number, Arc::downgrade(&set));
        MADE.add(1);
        Ok(set)
    }

    /// Returns the epoll set that the number names, if sockets are registered there.
    pub(crate) fn find(number: c_int) -> Option<Arc<EpollSet>> {
        LAST.with_borrow_mut(|last| {
            if let Some(set) = last.named(number) {
                return Some(set);
            }
            // Before the look, so that a set that comes behind it is noticed.
            let made = MADE.get();
            let known = known(SETS.lock().get_or_insert_default(), number);
            let set = known.as_ref().map_or_else(Weak::new, Arc::downgrade);
            *last = Last { number, set, made };
            known
        })
    }

    /// Returns the epoll set for which this thread waits by `exs_epoll_wait`. None if it never did, or if
    /// no socket is registered there any more.
    pub(crate) fn of_thread() -> Option<Arc<EpollSet>> {
        // A thread that ends has no locals any more.
        let set = LAST.try_with(|last| last.borrow().set.upgrade()).ok().flatten();
        set.filter(|set| set.event_loop.is_used())
    }

    /// Returns true if the number names this epoll set, as far as the kernel can say.
    pub(crate) fn is_named(&self, number: c_int) -> bool {
        raw::is_duplicate(number, self.fd.as_fd())
    }

    /// Calls epoll_ctl(2). Returns true if it succeeds.
    pub(crate) fn control(&self, op: c_int, fd: RawFd, event: Option<libc::epoll_event>) -> bool {
        let mut event = event;
        let at = event.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // SAFETY: an event that is alive for the call, or none where none is read.
        unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd, at) == 0 }
    }

    /// Puts what drives a shard into the set.
    fn register(&self, driver: &LoopDriver) -> bool {
        let event = libc::epoll_event {
            events: libc::EPOLLIN.cast_unsigned(),
            u64: self.event_loop.id().number(),
        };
        self.control(libc::EPOLL_CTL_ADD, driver.as_raw_fd(), Some(event))
    }

    /// The program waits for this set by `exs_epoll_wait`.
    pub(crate) fn begin_loop(&self) {
        if !self.event_loop.is_used() {
            self.event_loop.begin(|driver| self.register(driver));
        }
    }

    /// A socket of this shard is registered in the set.
    pub(crate) fn add_shard(&self, shard: Shard) {
        self.event_loop.add_shard(shard, |driver| self.register(driver));
    }
}

/// Finds a set by the number, or by another number for the same set.
fn known(sets: &mut HashMap<c_int, Weak<EpollSet>>, number: c_int) -> Option<Arc<EpollSet>> {
    let named = |set: &Weak<EpollSet>| set.upgrade().filter(|set| set.is_named(number));
    if let Some(set) = sets.get(&number).and_then(named) {
        return Some(set);
    }
    let set = sets.values().find_map(named)?;
    sets.insert(number, Arc::downgrade(&set));
    Some(set)
}
