//! The context: the engine, its lock, its threads.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::Error;
use super::call::{Call, Deferred, Ringing};
use super::companions::{self, ShardUse};
use super::devices::Devices;
use super::drive::Drive;
use super::engine::{
    Engine, KERNEL_TOKENS, Outlook, Released, ShownOutlook, TOKENS_PER_DEVICE, Verbs, Watch,
};
use super::event::RawEvent;
use super::lead::Lead;
use super::leader::Leadership;
use super::owed;
use super::pace::{Attention, ROUNDS_PER_POLL};
use super::queue::QueueCore;
use super::reactor::Reactor;
use super::reliance::Reliance;
use super::shards::{OtherShards, Shard};
use super::sleep_end::SleepEnd;
use super::waiter::Waiter;
use crate::plain::Plain;
use crate::sys::{Clock, HeldSignals, ProcessNumber, cold_path};
use crate::time::Time;

/// A weak reference to a context. The engine keeps one to its own context.
pub(super) type Weak = std::sync::Weak<Context>;

/// The outcome of a turn of the engine.
pub(super) struct Turn {
    /// The engine has more to do at once.
    pub(super) more: bool,
    /// The turn has woken followers.
    pub(super) served_others: bool,
}

/// A shard: its devices, sockets and operations, and the background thread, which moves them when
/// no other thread does.
pub struct Context {
    shard: Shard,
    pub(super) clock: Clock,
    engine: Mutex<Engine>,
    /// The number of threads that wait for the engine's lock to post something. A thread that spins
    /// lets them through.
    pub(super) posters: AtomicUsize,
    pub(super) lead: Leadership,
    /// The state with which descriptors of queues drive the shard.
    pub(super) drive: Drive,
    /// Whether the program relies on descriptors.
    pub(super) reliance: Reliance,
    /// Changes of sockets wait until a thread shows them on descriptors.
    pub(super) has_news: AtomicBool,
    /// An event loop may keep changes of sockets in memory.
    pub(super) has_kept: AtomicBool,
    pub(super) released: Arc<Released>,
    /// The sleep that the leader has announced.
    pub(super) announced: SleepEnd,
    /// The state of the engine that threads without its lock can see.
    pub(super) outlook: ShownOutlook,
    /// How many times a thread slept in the reactor or for its own connection.
    pub(super) sleeps: AtomicU64,
    /// The record of what threads have done in this shard.
    pub(super) attention: Attention,
    pub(super) others: OtherShards,
}

static NEXT_ID: ProcessNumber = ProcessNumber::new(1);

/// How a call enters a context.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    /// The call may begin work.
    Call,
    /// The call may begin work, and the event of the operation that it posts goes to a queue of
    /// this shard.
    Post(Shard),
    /// The call begins no work.
    Look,
}

impl Context {
    /// Makes this the context of the process: for tests with devices of their own.
    ///
    /// # Errors
    /// The process has a context already.
    #[cfg(any(test, feature = "internals"))]
    pub fn install(context: Arc<Context>) -> Result<(), Error> {
        super::shards::install(context)
    }

    /// Makes a context with these devices, as the first shard.
    ///
    /// # Errors
    /// The error of the kernel or of the software RNIC.
    #[cfg(any(test, feature = "internals"))]
    pub fn new(devices: Devices) -> Result<Arc<Context>, Error> {
        Context::in_shard(Shard::FIRST, devices)
    }

    /// Makes the context that is this shard, and starts its background thread.
    pub(super) fn in_shard(shard: Shard, devices: Devices) -> Result<Arc<Context>, Error> {
        let reactor = Reactor::new().map_err(|e| Error::os("epoll_create", &e))?;
        let registry =
            || reactor.registry().try_clone().map_err(|e| Error::os("dup of the reactor", &e));
        let soft = (devices.soft)(registry()?, 0)?;
        let shm = devices.shm.map(|make| make(registry()?, TOKENS_PER_DEVICE)).transpose()?;
        let plain = Plain::new(registry()?, KERNEL_TOKENS, devices.kernel_io);
        let verbs = match devices.verbs {
            Some(open) => Verbs::new(open, registry()?),
            None => Verbs::Unbuilt,
        };
        let drive = Drive::new(&reactor);
        let lead = Leadership::new(reactor, shard).map_err(|e| Error::os("eventfd", &e))?;
        let id = NEXT_ID.add(1);
        let context = Arc::new_cyclic(|me: &Weak| {
            let released = Arc::new(Released::new(me.clone()));
            let engine = Engine::new((shard, id), Arc::clone(&released), (soft, shm, plain), verbs);
            Context {
                shard,
                clock: Clock::default(),
                engine: Mutex::new(engine),
                posters: AtomicUsize::new(0),
                lead,
                drive,
                reliance: Reliance::default(),
                has_news: AtomicBool::new(false),
                has_kept: AtomicBool::new(false),
                released,
                announced: SleepEnd::default(),
                outlook: ShownOutlook::default(),
                sleeps: AtomicU64::new(0),
                attention: Attention::default(),
                others: OtherShards::default(),
            }
        });
        let background = Arc::clone(&context);
        // The background thread inherits the held signals, since the program's signals are for the
        // program's threads.
        let _held = HeldSignals::new();
        std::thread::Builder::new()
            .name("exs-progress".into())
            .spawn(move || background.background())
            .map_err(|e| Error::os("starting the progress thread", &e))?;
        Ok(context)
    }

    /// The context's clock.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Roughly the time, for the limits of waits. It may be earlier than a time that another thread
    /// has read.
    pub fn about_now(&self) -> Time {
        self.clock.about()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Engine> {
        // A panic inside the engine is a bug of EXS. The engine goes on with the state that it has:
        // if it stopped, every thread that waits would hang.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if a thread holds the engine's lock.
    pub(super) fn at_work(&self) -> bool {
        matches!(self.engine.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Waits until another thread releases the engine. A thread that spins sees `posters`, and
    /// releases the engine.
    #[cold]
    fn lock_behind<'a>(
        &'a self,
        why: TryLockError<MutexGuard<'a, Engine>>,
    ) -> MutexGuard<'a, Engine> {
        match why {
            TryLockError::Poisoned(p) => p.into_inner(),
            TryLockError::WouldBlock => {
                self.posters.fetch_add(1, Ordering::Relaxed);
                let engine = self.lock();
                self.posters.fetch_sub(1, Ordering::Relaxed);
                engine
            }
        }
    }

    /// The shard's number.
    pub(crate) fn shard(&self) -> Shard {
        self.shard
    }

    /// Runs a call of the API on the engine, and settles the work that the call began.
    pub(crate) fn call<T>(&self, f: impl FnOnce(&mut Engine, Time) -> T) -> T {
        self.enter(Entry::Call, |engine, call| f(engine, call.now()))
    }

    /// The same for a call that posts an operation whose event goes to a queue of `shard`.
    pub(crate) fn post<T>(
        &self,
        shard: Shard,
        f: impl FnOnce(&mut Engine, &mut Call<'_>) -> T,
    ) -> T {
        self.enter(Entry::Post(shard), f)
    }

    /// Runs `f`, which begins no work, on the engine.
    #[inline]
    pub(crate) fn look<T>(&self, f: impl FnOnce(&mut Engine) -> T) -> T {
        self.enter(Entry::Look, |engine, _| f(engine))
    }

    /// Runs `f` on the engine, and settles the work that `f` began.
    #[inline]
    pub(super) fn enter<T>(
        &self,
        entry: Entry,
        f: impl FnOnce(&mut Engine, &mut Call<'_>) -> T,
    ) -> T {
        let mut engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(why) => self.lock_behind(why),
        };
        let (crosses, owes) = match entry {
            Entry::Look => return f(&mut engine, &mut Call::new(&self.clock, Ringing::AtOnce)),
            Entry::Call => (false, false),
            Entry::Post(shard) if shard == self.shard => (false, false),
            Entry::Post(shard) => (true, owed::comes_back_to(shard) && !self.is_armed()),
        };
        // Work may wait for a doorbell if the next leader is this thread, or the background thread
        // after a tick. Each of the two rings the doorbell first of all. A thread that waits for
        // the event in another shard does not lead here, but rings when it dequeues there.
        let leads = self.lead.lead().is_free() && !crosses && !self.is_armed();
        let ringing = if leads || owes { Ringing::Lazy } else { Ringing::AtOnce };
        engine.plain.begin_call(leads);
        let mut call = Call::new(&self.clock, ringing);
        let result = f(&mut engine, &mut call);
        if !call.has_passed() || engine.sockets.has_marked() {
            cold_path();
            engine.settle(call.now(), call.ringing());
            if engine.delivery.leaver().is_some() {
                drop(engine);
                // Until the write is made, nothing else leaves on that connection.
                if let Some(deferred) = call.take_deferred() {
                    self.write_deferred(deferred);
                }
                self.stay();
                engine = self.lock();
            }
        }
        let left = owes && engine.leave_doorbells(call.now());
        self.finish(engine, None);
        if let Some(deferred) = call.take_deferred() {
            self.write_deferred(deferred);
        }
        if left {
            owed::note(self.shard);
        }
        if crosses {
            companions::note(self.shard, ShardUse::Posts);
        }
        result
    }

    /// Makes a write that the engine has left to this thread.
    #[inline(never)]
    fn write_deferred(&self, deferred: Deferred) {
        let Deferred { device, write } = deferred;
        if let Some(end) = write.run() {
            let mut engine = self.lock();
            let now = self.clock.now_locked(None);
            engine.end_deferred(device, end, now);
            self.finish(engine, None);
        }
    }

    /// Releases the lock, and wakes the threads that the engine has listed, except `me`, which is
    /// awake. True if a follower was woken.
    #[inline]
    pub(super) fn finish(&self, mut engine: MutexGuard<'_, Engine>, me: Option<&Waiter>) -> bool {
        if let Some(outlook) = engine.changed_outlook() {
            self.show_outlook(outlook);
        }
        if let Some(me) = me {
            engine.delivery.excuse(me);
        }
        // If another thread sleeps in the reactor, work that this turn began must wake that thread,
        // too.
        let hurry = self.announced.until().is_some_and(|end| engine.must_wake_sleeper(end));
        // The usual case: the call concerns no thread but this one.
        if !hurry && engine.delivery.is_quiet() {
            return false;
        }
        self.wake_others(engine, hurry)
    }

    /// As `finish`, for a thread that has left nothing for which a thread in the reactor must wake.
    #[inline]
    pub(super) fn finish_idle(&self, mut engine: MutexGuard<'_, Engine>) {
        if !engine.delivery.is_quiet() {
            self.finish(engine, None);
        } else if let Some(outlook) = engine.changed_outlook() {
            self.show_outlook(outlook);
        }
    }

    /// Shows the engine's state to threads without the lock. The state rarely changes.
    #[inline(never)]
    fn show_outlook(&self, outlook: Outlook) {
        self.outlook.show(outlook);
    }

    /// Releases the lock, and wakes the threads that the engine has listed. With `hurry`, also wakes
    /// the thread that sleeps in the reactor.
    #[inline(never)]
    fn wake_others(&self, mut engine: MutexGuard<'_, Engine>, hurry: bool) -> bool {
        let wake = engine.delivery.take_waiters();
        let show = self.due_news(&mut engine);
        drop(engine);
        let mut others = false;
        for w in &wake {
            others |= self.lead.wake_waiter(w);
        }
        if hurry {
            self.lead.bell.end_announced_sleep();
        }
        show.iter().for_each(|watch| watch.changed());
        others
    }

    /// The watches whose descriptors must show a change now.
    fn due_news(&self, engine: &mut Engine) -> Vec<Arc<dyn Watch>> {
        let signalled = engine.delivery.take_signalled();
        // A background thread that was asked to leave the lead leaves the changes to the thread that came.
        let lead = self.lead.lead();
        let background = matches!(lead, Lead::Background { .. }) && !lead.must_leave();
        if background && (signalled || engine.delivery.has_news()) {
            // No thread has fetched the event within a tick, or the program polls anyway.
            self.rely();
        }
        // No thread looks after changes while the background thread sleeps.
        let shows = background || lead == Lead::Sentry || self.reliance.polls();
        let due = match engine.delivery.has_news() && shows {
            true => engine.take_news(false),
            false => Vec::new(),
        };
        self.has_news.store(engine.delivery.has_news(), Ordering::Relaxed);
        due
    }

    /// Runs the engine with what the reactor found.
    pub(super) fn turn(
        &self,
        mut reactor: Option<&mut Reactor>,
        spin: bool,
        me: Option<&Waiter>,
    ) -> Turn {
        let mut engine = self.lock();
        let now = self.clock.now_locked(None);
        // A thread that only passes by does not come back before it returns to the program.
        let ringing = if reactor.is_some() { Ringing::InTurn } else { Ringing::AtOnce };
        if let Some(r) = &mut reactor {
            self.lead.findings.fetch(&mut r.ready);
            let finds = self.attention.take_finds();
            r.unseen = r.unseen.saturating_add(finds).saturating_add(1);
            for (token, ready) in r.ready.drain(..) {
                engine.handle_ready(token, ready);
            }
        }
        let more = engine.run(now, spin, ringing);
        if let Some(r) = reactor
            && spin
            && engine.devices.spin_by_reactor()
        {
            r.unseen = r.unseen.max(ROUNDS_PER_POLL);
        }
        let served_others = self.finish(engine, me);
        Turn { more, served_others }
    }

    /// Puts an event that no engine made into `queue`. The caller has booked a place there for it.
    pub(crate) fn deliver(&self, queue: &QueueCore, event: RawEvent) {
        let mut wake = Vec::new();
        queue.push(event, &mut wake);
        for w in &wake {
            self.lead.wake_waiter(w);
        }
    }

    /// Wakes the threads that wait at a queue, whatever comes.
    #[cold]
    pub(super) fn wake_waiters(&self, queue: &QueueCore) {
        for waiter in queue.waiters() {
            self.lead.wake_waiter(&waiter);
        }
    }

    /// How many times a thread slept in the reactor or for its own connection.
    pub fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }
}
