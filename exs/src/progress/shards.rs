//! The shards of the process.
//!
//! A shard is a [`Context`]: an engine with its reactor, its devices, its sockets and its lock.
//! Shards share nothing on the data path, so threads that use different shards do not slow each
//! other down. There are at most `EXS_SHARDS` of them. By default there are four for each processor
//! that the process may run on, and up to 32 if more threads have queues. Threads that share a shard
//! wait for each other's turns, which costs 20 % with four threads on two processors (64-byte messages
//! over the software RNIC). On a host with RDMA devices there is also no more than one for each 8 MiB
//! that the process may lock. A shard is made when the first queue needs it, and lasts as long as the
//! process.
//!
//! - An event queue belongs to a shard from its first use on. If the socket of that use has a home, the
//!   queue belongs there. Otherwise [`ShardLimits`] chooses: the shard with the fewest queues.
//! - A connection lives in the shard of the queue that its connect or its accept names, and goes to that
//!   of the queue that is first used with it, see [`handle`](super::handle). Before that, and as a
//!   listener, a socket lives in the shard of the thread that has made it. A thread that has used no
//!   shard makes its sockets in the first shard.
//! - An operation may name a queue of another shard. Its event then crosses, which costs a lock of
//!   that queue and perhaps a wake-up.
//! - Kernel sockets live in the first shard.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::Error;
use super::context::Context;
use super::devices::Devices;
use super::engine::add_counters;
use super::options::check_environment;
use super::shard_limits::{MOST, ShardLimits};
use crate::session::Counters;
use crate::sys::{ProcessLock, ProcessNumber};

/// A shard's number in the process. Two queues with the same number share one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shard(u32);

impl Shard {
    /// The shard of the kernel sockets, and of the sockets of threads without a shard.
    pub(crate) const FIRST: Shard = Shard(0);

    pub(super) fn at(index: usize) -> Shard {
        Shard(u32::try_from(index).unwrap_or(0))
    }

    /// The shard of turn `n`, where `shards` shards take turns.
    fn in_turn(n: u64, shards: usize) -> Shard {
        Shard::at(usize::try_from(n).unwrap_or(0) % shards)
    }

    pub(super) fn index(self) -> usize {
        self.0 as usize
    }

    /// The shard itself. None: it has not been made.
    #[inline]
    pub(super) fn context(self) -> Option<&'static Arc<Context>> {
        MADE[self.index()].get()
    }
}

static MADE: [OnceLock<Arc<Context>>; MOST] = [const { OnceLock::new() }; MOST];
/// How many shards the process may have; set when the first shard is made.
static LIMITS: OnceLock<ShardLimits> = OnceLock::new();
/// The number of live queues of each shard.
static QUEUES: [ProcessNumber; MOST] = [const { ProcessNumber::new(0) }; MOST];
/// Held by a thread that makes a shard, or chooses the shard of a queue.
static SET_UP: ProcessLock<()> = ProcessLock::new(());

/// The first shard. Its first user makes it.
///
/// # Errors
/// [`Error::Start`], until its cause is gone: for example, until descriptors are free again.
#[inline]
pub(crate) fn first() -> Result<&'static Arc<Context>, Error> {
    match MADE[0].get() {
        Some(made) => Ok(made),
        None => make(Shard::FIRST),
    }
}

/// The shard in which the thread's new sockets live. It is the shard of the thread's blocking calls
/// and of its own queue, where most of these sockets stay. A thread that has used no shard makes
/// its sockets in the first shard.
///
/// # Errors
/// As [`first`].
pub(crate) fn of_new_socket() -> Result<&'static Arc<Context>, Error> {
    let own = MINE.try_with(Cell::get).ok().flatten();
    own.and_then(Shard::context).map_or_else(first, Ok)
}

/// The first shard, if EXS is in use.
pub(super) fn existing_first() -> Option<&'static Arc<Context>> {
    MADE[0].get()
}

/// The shards that were made.
pub(super) fn all() -> impl Iterator<Item = &'static Arc<Context>> {
    let (usual, beyond) = MADE.split_at(limits().usual);
    // Those beyond the usual ones are made one after another.
    usual.iter().filter_map(OnceLock::get).chain(beyond.iter().map_while(OnceLock::get))
}

/// Calls between two looks at the other shards.
const CALLS_PER_LOOK: u32 = 16;

/// The threads that block in the other shards, as seen a few calls ago.
#[derive(Debug, Default)]
pub(super) struct OtherShards {
    calls: AtomicU32,
    /// Their number, or one that is not less than that of the processors.
    blocked: AtomicU64,
}

impl OtherShards {
    /// True if at least as many threads lead, or attend connections, in the other shards as there are
    /// processors: a thread that spins would keep one of them from its processor.
    pub(super) fn fill_processors(&self, beside: Shard) -> bool {
        self.fill_with(beside, 0)
    }

    /// True if those and `more` threads are as many as there are processors.
    pub(super) fn fill_with(&self, beside: Shard, more: u64) -> bool {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        if calls.is_multiple_of(CALLS_PER_LOOK) {
            self.blocked.store(blocked_beside(beside), Ordering::Relaxed);
        }
        self.blocked.load(Ordering::Relaxed).saturating_add(more) >= processors()
    }
}

/// The threads that block in the other shards; at least as many as there are processors, if they are more.
fn blocked_beside(beside: Shard) -> u64 {
    let mut blocked = 0;
    for other in all().filter(|context| context.shard() != beside) {
        blocked += other.blocked_threads();
        if blocked >= processors() {
            break;
        }
    }
    blocked
}

fn processors() -> u64 {
    static PROCESSORS: OnceLock<u64> = OnceLock::new();
    *PROCESSORS.get_or_init(|| u64::try_from(super::options::processors()).unwrap_or(u64::MAX))
}

/// The sums of the counters of all shards.
#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) counters: Counters,
    pub(crate) events: u64,
    pub(crate) runs: u64,
    /// How many times a thread slept in a reactor or for its own connection.
    pub(crate) sleeps: u64,
    /// The number of operations in flight now.
    pub(crate) in_flight: u64,
}

/// The figures of the process.
pub(crate) fn figures_of_all() -> Figures {
    let mut sum = Figures::default();
    for context in all() {
        context.call(|engine, now| {
            let (counters, events, runs) = engine.counters_of_all(now);
            add_counters(&mut sum.counters, &counters);
            sum.events += events;
            sum.runs += runs;
            sum.in_flight += engine.in_flight() as u64;
        });
        sum.sleeps += context.sleeps();
    }
    sum
}

fn limits() -> ShardLimits {
    LIMITS.get().copied().unwrap_or(ShardLimits::exactly(1))
}

#[cold]
fn make(shard: Shard) -> Result<&'static Arc<Context>, Error> {
    let _one = SET_UP.lock();
    make_locked(shard)
}

fn make_locked(shard: Shard) -> Result<&'static Arc<Context>, Error> {
    let place = &MADE[shard.index()];
    if let Some(made) = place.get() {
        return Ok(made);
    }
    let made = check_environment()
        .and_then(|()| Context::in_shard(shard, Devices::of_host()))
        .inspect(|_| begin(shard, ShardLimits::of_process))
        .map_err(|e| Error::Start { why: e.to_string(), errno: e.errno() })?;
    let made = place.get_or_init(|| made);
    if shard == Shard::FIRST {
        super::stats::offer_by_environment();
    }
    Ok(made)
}

/// Prepares the process when it makes its first shard.
fn begin(shard: Shard, limits: impl FnOnce() -> ShardLimits) {
    if shard == Shard::FIRST {
        LIMITS.get_or_init(limits);
        super::exit::close_at_exit();
    }
}

/// Sets how many shards this process may have, whatever the environment says: for tests.
///
/// # Errors
/// EXS is in use, with another number of shards.
#[cfg(any(test, feature = "internals"))]
pub fn limit_shards(number: usize) -> Result<(), Error> {
    let wanted = ShardLimits::exactly(number);
    match *LIMITS.get_or_init(|| wanted) {
        limits if limits == wanted => Ok(()),
        limits => Err(Error::invalid(format!("EXS has {} shards already", limits.usual))),
    }
}

/// The number of threads of the process that attend connections: for tests.
#[cfg(any(test, feature = "internals"))]
pub fn attending_threads() -> usize {
    all().map(|context| context.look(|engine| engine.sockets.attending_threads())).sum()
}

/// The number of threads of the process that lead: for tests.
#[cfg(any(test, feature = "internals"))]
pub fn leading_threads() -> usize {
    all().filter(|context| context.lead.lead() == super::lead::Lead::Application).count()
}

/// The number of threads of the program that lead, follow or attend in this shard: for tests.
#[cfg(any(test, feature = "internals"))]
pub fn waiting_threads(shard: Shard) -> usize {
    let waiting = |context: &Arc<Context>| {
        context.lead.waiting_threads() + context.look(|engine| engine.sockets.attending_threads())
    };
    shard.context().map_or(0, waiting)
}

/// Makes this the only shard of the process: for tests with devices of their own.
///
/// # Errors
/// EXS is in use.
#[cfg(any(test, feature = "internals"))]
pub(super) fn install(context: Arc<Context>) -> Result<(), Error> {
    MADE[0].set(context).map_err(|_| Error::invalid("EXS has been used already"))?;
    begin(Shard::FIRST, || ShardLimits::exactly(1));
    Ok(())
}

/// A queue's seat in its shard.
#[derive(Debug)]
pub(crate) struct Seat {
    shard: Shard,
    /// True if the seat counts among the shard's queues until it is dropped.
    counted: bool,
}

impl Seat {
    /// A seat in a shard that the caller chose. Its queue accompanies other queues, and does not
    /// count.
    ///
    /// # Errors
    /// As [`first`].
    pub(crate) fn beside(shard: Shard) -> Result<Seat, Error> {
        make(shard)?;
        Ok(Seat { shard, counted: false })
    }

    /// A seat in the `wanted` shard. None: in the one that [`ShardLimits`] chooses.
    fn take(wanted: Option<Shard>) -> Result<Seat, Error> {
        first()?;
        let _one = SET_UP.lock();
        let choose = |first_of_thread| {
            Shard::at(limits().choose(first_of_thread, |shard| QUEUES[shard].get()))
        };
        let shard = match wanted {
            Some(shard) => shard,
            None if is_first_queue() => {
                let own = choose(true);
                // The usual shards exist, where the process cannot have another one.
                if make_locked(own).is_ok() { own } else { choose(false) }
            }
            None => choose(false),
        };
        make_locked(shard)?;
        QUEUES[shard.index()].add(1);
        Ok(Seat { shard, counted: true })
    }

    /// As `take`, for a caller that cannot return an error: a seat in the first shard if `take`
    /// fails.
    pub(super) fn take_any(wanted: Option<Shard>) -> Seat {
        let first = |_| Seat { shard: Shard::FIRST, counted: false };
        Seat::take(wanted).unwrap_or_else(first)
    }

    pub(super) fn shard(&self) -> Shard {
        self.shard
    }

    pub(super) fn is_counted(&self) -> bool {
        self.counted
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.counted {
            QUEUES[self.shard.index()].subtract(1);
        }
    }
}

thread_local! {
    /// The shard of the thread's blocking calls. None: the thread has none yet.
    static MINE: Cell<Option<Shard>> = const { Cell::new(None) };
    /// The number of connections that the thread's blocking accepts have brought for other threads.
    static GIVEN: Cell<u64> = const { Cell::new(0) };
    /// True if the thread has made a blocking call on a connection since its last accept.
    static SERVES: Cell<bool> = const { Cell::new(true) };
    /// True if the thread has chosen the shard of a queue.
    static HAS_QUEUE: Cell<bool> = const { Cell::new(false) };
}

/// True if the thread chooses the shard of a queue for the first time.
fn is_first_queue() -> bool {
    // A thread that ends has no locals any more.
    HAS_QUEUE.try_with(|has| !has.replace(true)).unwrap_or(false)
}

/// The thread dequeues from a queue of its own: its blocking calls belong to the same shard.
#[inline]
pub(crate) fn note_own(shard: Shard) {
    // A thread that ends has no locals any more.
    let _ = MINE.try_with(|mine| mine.set(Some(shard)));
}

/// The turns in which threads get their shards.
struct ThreadTurns {
    /// The number of threads that have had their turn so far.
    had: u64,
    /// The first shard has a listener, and is kept for the first thread that accepts.
    kept: bool,
}

static TURNS: ProcessLock<ThreadTurns> = ProcessLock::new(ThreadTurns { had: 0, kept: false });

impl ThreadTurns {
    /// The first shard has a listener from now on.
    fn keep_first(&mut self) {
        if self.had == 0 {
            *self = ThreadTurns { had: 1, kept: true };
        }
    }

    fn next(&mut self, accepts: bool, shards: usize) -> Shard {
        if accepts && std::mem::take(&mut self.kept) {
            return Shard::FIRST;
        }
        self.had += 1;
        Shard::in_turn(self.had - 1, shards)
    }
}

/// A socket listens in the first shard, as most listeners do. The first thread that accepts gets
/// that shard, unless another thread has it. Then the events of its connections need not cross.
pub(super) fn keep_first() {
    TURNS.lock().keep_first();
}

fn of_thread_that(accepts: bool) -> Shard {
    let chosen = MINE.try_with(|mine| {
        let shard = mine.get().unwrap_or_else(|| TURNS.lock().next(accepts, limits().usual));
        mine.set(Some(shard));
        shard
    });
    chosen.unwrap_or(Shard::FIRST)
}

/// The shard of this thread's blocking calls on sockets that have no home yet: the shard of the
/// queue from which the thread dequeues. Threads without such a queue take turns.
pub(crate) fn of_thread() -> Shard {
    of_thread_that(false)
}

/// The thread makes a blocking call on a connection.
#[inline]
pub(crate) fn note_service() {
    // A thread that ends has no locals any more.
    let _ = SERVES.try_with(|serves| serves.set(true));
}

/// The place of the connection that a blocking accept brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextAccept {
    /// Its home.
    pub(crate) home: Shard,
    /// The thread that accepts serves the connection, so it waits for it there, too.
    pub(crate) serves: bool,
}

/// The place of the connection that a blocking accept brings. A thread that serves its connections
/// itself gets them in its own shard. A thread that accepts again and again, and makes no call on
/// the connections, gives them to other threads. Then the shards take turns.
pub(crate) fn of_next_accept() -> NextAccept {
    let own = of_thread_that(true);
    let serves = SERVES.try_with(|serves| serves.replace(false)).unwrap_or(true);
    if serves {
        return NextAccept { home: usable(own), serves };
    }
    let given = GIVEN.try_with(|n| n.replace(n.get() + 1) + 1).unwrap_or(0);
    let home = usable(Shard::in_turn(own.index() as u64 + given, limits().usual));
    NextAccept { home, serves }
}

/// The home of the connection that an accept brings to the event loop of this thread, which serves it.
pub(crate) fn of_loop() -> Shard {
    usable(of_thread_that(true))
}

/// This shard, or the first one if it cannot be made.
fn usable(shard: Shard) -> Shard {
    if shard.context().is_some() {
        return shard;
    }
    match make(shard) {
        Ok(_) => shard,
        // The first shard exists already.
        Err(_) => Shard::FIRST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_thread_that_accepts_gets_the_shard_of_the_listener() {
        let indices = |turns: &mut ThreadTurns, accepts: &[bool]| -> Vec<usize> {
            accepts.iter().map(|accepts| turns.next(*accepts, 3).index()).collect()
        };
        let mut turns = ThreadTurns { had: 0, kept: false };
        turns.keep_first();
        turns.keep_first();
        assert_eq!(indices(&mut turns, &[false, true, true, false]), [1, 0, 2, 0]);
        // Another thread has got the first shard before any socket listened.
        let mut turns = ThreadTurns { had: 0, kept: false };
        assert_eq!(indices(&mut turns, &[false]), [0]);
        turns.keep_first();
        assert_eq!(indices(&mut turns, &[true, false]), [1, 2]);
    }

    #[test]
    fn a_thread_that_serves_its_connections_has_them_in_its_own_shard() {
        let own = of_thread();
        assert_eq!(own, of_thread());
        for _ in 0..3 {
            assert_eq!(of_next_accept(), NextAccept { home: own, serves: true });
            note_service();
        }
        // Now the thread gives its connections away. The process has no more than one shard here.
        assert_eq!(of_next_accept(), NextAccept { home: own, serves: true });
        let given = GIVEN.get();
        for _ in 0..3 {
            assert!(!of_next_accept().serves);
        }
        assert_eq!(GIVEN.get(), given + 3);
    }
}
