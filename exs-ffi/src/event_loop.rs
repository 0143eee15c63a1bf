//! The event loop behind an epoll set: what `exs_epoll_wait` finds without the kernel.
//!
//! A program that waits by `exs_epoll_wait` comes back to the library before it sleeps. So no thread
//! and no peer must make a descriptor readable for each message. The call drives the shards of the
//! sockets in the set (`LoopDriver`), as a dequeue drives that of its queue, and learns which sockets
//! have data. Before it sleeps in epoll_wait(2), it announces one sleep for each shard. The
//! descriptors that drive the shards are in the program's epoll set, too.
//!
//! # Which sockets it serves
//! An arrival descriptor (`arrivals`) that the kernel makes readable costs less than a turn, and so
//! does one at which a peer rings while few sockets are busy. From [`CROWD`] sockets on, one turn finds
//! what would take a peer dozens of rings. Sockets without an arrival descriptor are always served.
//!
//! # What the loop keeps in memory
//! Data for a socket that is registered in this set alone. Everything else shows at the socket's own
//! descriptor, as without a loop: room to send, the end, and data that a call or another thread
//! finds. A [`LoopNote`] says what the loop knows of a socket:
//!
//! | state | meaning | next |
//! |---|---|---|
//! | nothing | the socket's descriptor shows whether there are data | found: the loop's own turn brings data |
//! | found | the socket is on the list of the loop | returned: `exs_epoll_wait` returns it |
//! | returned | the program has been told, and no call has looked for the data since | found: the next `exs_epoll_wait` of a level-triggered set, or more data |
//!
//! Any call that receives turns it back to nothing. So does the descriptor, when it shows the data. The
//! background thread lets the descriptor show them if the program has not come for 20 to 200 ms.
//!
//! # No event is lost
//! A state names the number of the last arrival that the loop has found. A receive that has left nothing
//! turns the state back only if that number is not above its own. So it never hides what came after
//! it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use exs::__ffi::{LoopDriver, LoopId, ProcessNumber};
use exs::Shard;

use crate::sockets::Entry;

/// Sockets in a set from which on the loop looks in memory for all of them. Round trips of 64 bytes
/// over shared memory, on two processors, beside arrival descriptors: half as many for 8 connections,
/// as many for 16, twice as many for 32, 2.5 times as many for 1,000.
const CROWD: usize = 24;

/// A socket that only a loop serves was registered in a set of the process.
static NEEDED: ProcessNumber = ProcessNumber::new(0);

/// True if a loop of the process drives a shard, or may have to.
pub(crate) fn are_needed() -> bool {
    NEEDED.get() > 0
}

/// Bits of the state below the number of the arrival.
const STATE: u64 = 3;
const FOUND: u64 = 1;
const RETURNED: u64 = 2;

/// What an event loop knows of a socket.
#[derive(Debug, Default)]
pub(crate) struct LoopNote(AtomicU64);

impl LoopNote {
    /// Notes data that the loop has found. Returns true if the socket must be put on its list.
    fn find(&self, arrived: u64) -> bool {
        self.0.swap(arrived << 2 | FOUND, Ordering::SeqCst) & STATE != FOUND
    }

    fn step(&self, from: u64, to: u64) -> bool {
        let step = |now: u64| (now & STATE == from).then_some(now & !STATE | to);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step).is_ok()
    }

    /// The loop returns the socket to the program. False: it has nothing to return.
    fn give(&self) -> bool {
        self.step(FOUND, RETURNED)
    }

    /// The data that the program knows are still there. False: they are not, or their
    /// descriptor shows them.
    fn repeat(&self) -> bool {
        self.step(RETURNED, FOUND)
    }

    /// A receive has left nothing of what had arrived by this number.
    pub(crate) fn took_all(&self, arrived: u64) {
        let now = self.0.load(Ordering::SeqCst);
        if now & STATE != 0 && now >> 2 <= arrived {
            // If it fails, the loop has found more.
            let _ = self.0.compare_exchange(now, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// The descriptor shows the state from now on. The caller has the lock of what is shown.
    pub(crate) fn clear(&self) {
        if self.is_set() {
            self.0.store(0, Ordering::SeqCst);
        }
    }

    /// True if the loop keeps something in memory.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst) & STATE != 0
    }
}

/// What drives one shard. None: it could not be made, and the background thread shows what happens
/// there.
struct ShardDriver {
    shard: Shard,
    driver: Option<Arc<LoopDriver>>,
}

/// The sockets of a set that the loop has found.
#[derive(Default)]
struct Lists {
    /// To be returned.
    found: VecDeque<Weak<Entry>>,
    /// Returned by the last call, and level-triggered.
    returned: Vec<Weak<Entry>>,
}

/// The event loop of an epoll set.
#[derive(Default)]
pub(crate) struct EventLoop {
    /// The program has waited by `exs_epoll_wait`.
    used: AtomicBool,
    drivers: Mutex<Vec<ShardDriver>>,
    lists: Mutex<Lists>,
    /// Registrations of sockets that wait for data.
    members: AtomicUsize,
    /// The loop drives a shard.
    drives: AtomicBool,
    /// A connection is among them, or was.
    has_connections: AtomicBool,
    /// A thread of the loop has accepted.
    accepts: AtomicBool,
    /// The last call had no room for the kernel's events.
    full: AtomicBool,
    /// Threads in `exs_epoll_wait`.
    threads: AtomicUsize,
}

impl std::fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventLoop").field("used", &self.used).finish_non_exhaustive()
    }
}

/// Whether a loop may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Nothing happens, and a descriptor of a driver becomes readable when something does.
    Asleep,
    /// There is something to do or to return.
    Awake,
}

impl EventLoop {
    fn drivers(&self) -> MutexGuard<'_, Vec<ShardDriver>> {
        self.drivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the loop, and the data of its events in the epoll set: an address, which no
    /// object of the program has.
    pub(crate) fn id(&self) -> LoopId {
        LoopId::new(std::ptr::from_ref(self).addr() as u64)
    }

    /// True once the program has waited by `exs_epoll_wait`.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// A socket that waits for data was registered.
    pub(crate) fn add_member(&self) {
        self.members.fetch_add(1, Ordering::Relaxed);
    }

    /// The socket is a connection.
    pub(crate) fn note_connection(&self) {
        self.has_connections.store(true, Ordering::Relaxed);
    }

    /// A thread of the loop accepts. Returns true if the loop will most likely serve the connection. It
    /// does not if the threads give what they accept to others: then the loop has no connections.
    pub(crate) fn serves_accepted(&self) -> bool {
        let first = !self.accepts.swap(true, Ordering::Relaxed);
        first || self.has_connections.load(Ordering::Relaxed)
    }

    /// Such a registration has ended.
    pub(crate) fn remove_member(&self) {
        self.members.fetch_sub(1, Ordering::Relaxed);
    }

    /// True if to look in memory for all sockets pays.
    pub(crate) fn is_crowded(&self) -> bool {
        self.members.load(Ordering::Relaxed) >= CROWD
    }

    /// The program waits by `exs_epoll_wait` from now on. `register` puts a descriptor into the epoll
    /// set.
    pub(crate) fn begin(&self, register: impl Fn(&LoopDriver) -> bool) {
        let mut drivers = self.drivers();
        for one in drivers.iter_mut().filter(|one| one.driver.is_none()) {
            self.make(one, &register);
        }
        self.used.store(true, Ordering::Release);
    }

    /// Sockets of this shard are in the set.
    pub(crate) fn add_shard(&self, shard: Shard, register: impl Fn(&LoopDriver) -> bool) {
        if !are_needed() {
            NEEDED.set(1);
        }
        let mut drivers = self.drivers();
        if drivers.iter().any(|one| one.shard == shard) {
            return;
        }
        let mut one = ShardDriver { shard, driver: None };
        if self.is_used() {
            self.make(&mut one, register);
        }
        drivers.push(one);
    }

    fn make(&self, one: &mut ShardDriver, register: impl Fn(&LoopDriver) -> bool) {
        one.driver = LoopDriver::new(one.shard).ok().filter(register).map(Arc::new);
        self.drives.fetch_or(one.driver.is_some(), Ordering::Relaxed);
    }

    /// True if the loop drives this shard.
    pub(crate) fn drives(&self, shard: Shard) -> bool {
        let is_it = |one: &ShardDriver| one.shard == shard && one.driver.is_some();
        self.drives_any() && self.drivers().iter().any(is_it)
    }

    /// True if the loop drives a shard.
    pub(crate) fn drives_any(&self) -> bool {
        self.drives.load(Ordering::Relaxed)
    }

    /// A turn of the loop has found data of a socket. The caller has the lock of what is shown.
    pub(crate) fn find(&self, entry: &Entry, arrived: u64) {
        if entry.arrivals.note.find(arrived) {
            self.lists().found.push_back(entry.me.clone());
        }
    }

    /// A thread begins a call. What the last call has returned, and no call has looked for since, is
    /// returned again.
    pub(crate) fn enter(&self) -> InLoop<'_> {
        self.threads.fetch_add(1, Ordering::SeqCst);
        // The lock is not held while that of what a socket shows is taken.
        let returned = std::mem::take(&mut self.lists().returned);
        for entry in returned {
            if entry.upgrade().is_some_and(|e| !e.face.is_hung_up() && e.arrivals.note.repeat()) {
                self.lists().found.push_back(entry);
            }
        }
        InLoop(self)
    }
}

/// A thread in `exs_epoll_wait`.
#[derive(Debug)]
pub(crate) struct InLoop<'a>(&'a EventLoop);

impl Drop for InLoop<'_> {
    fn drop(&mut self) {
        if self.0.threads.fetch_sub(1, Ordering::SeqCst) == 1 {
            return;
        }
        // Another thread may sleep. It must come for what this one leaves.
        let leaves = self.has_found();
        for one in self.0.drivers().iter() {
            one.driver.iter().for_each(|driver| driver.leave(leaves));
        }
    }
}

impl InLoop<'_> {
    pub(crate) fn event_loop(&self) -> &EventLoop {
        self.0
    }

    fn has_found(&self) -> bool {
        !self.0.lists().found.is_empty()
    }

    /// Notes that the call has no room for the kernel's events.
    pub(crate) fn note_full(&self) {
        self.0.full.store(true, Ordering::Relaxed);
    }

    /// Returns true if the last call had no room for the kernel's events.
    pub(crate) fn was_full(&self) -> bool {
        self.0.full.swap(false, Ordering::Relaxed)
    }

    /// Moves the data of all shards of the set. `woken`: the kernel says that one has something to do.
    pub(crate) fn drive(&self, woken: bool) -> Rest {
        let mut rest = Rest::Asleep;
        // Without the lock: a turn shows changes, which takes locks of the sockets.
        for at in 0.. {
            let Some(driver) = self.0.drivers().get(at).map(|one| one.driver.clone()) else {
                break;
            };
            let Some(driver) = driver else { continue };
            // An error of the reactor comes again if it lasts. The kernel reports the socket itself.
            if !driver.drive(self.0.id(), woken, || self.has_found()).unwrap_or(true) {
                rest = Rest::Awake;
            }
        }
        if self.has_found() { Rest::Awake } else { rest }
    }

    /// Takes up to `max` sockets that were found, for which `give` finds a registration that waits for
    /// data. `give` returns true if it is level-triggered.
    pub(crate) fn take(&self, max: usize, mut give: impl FnMut(&Entry) -> Option<bool>) {
        let mut given = 0;
        while given < max {
            let Some(entry) = self.0.lists().found.pop_front() else { break };
            let Some(found) = entry.upgrade().filter(|e| e.arrivals.note.give()) else { continue };
            let Some(by_level) = give(&found) else { continue };
            given += 1;
            if by_level {
                self.0.lists().returned.push(entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_returned_once_and_repeated_until_a_receive_has_taken_all() {
        let note = LoopNote::default();
        assert!(!note.is_set() && !note.give() && !note.repeat());
        assert!(note.find(1), "not on the list yet");
        assert!(!note.find(2), "it is on the list");
        assert!(note.give() && !note.give(), "once");
        assert!(note.repeat() && !note.repeat());
        assert!(note.give());
        note.took_all(1);
        assert!(note.is_set(), "the receive had not seen the second arrival");
        note.took_all(2);
        assert!(!note.is_set() && !note.repeat() && !note.give());
    }

    #[test]
    fn data_that_come_after_the_program_was_told_are_found_again() {
        let note = LoopNote::default();
        assert!(note.find(1) && note.give());
        assert!(note.find(2), "it must be put on the list again");
        note.took_all(1);
        assert!(note.give(), "the receive has not taken these");
        note.clear();
        assert!(!note.is_set() && !note.repeat());
    }
}
