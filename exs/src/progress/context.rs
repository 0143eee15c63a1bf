//! The context: the engine, its lock, its threads.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::Error;
use super::companions;
use super::devices::Devices;
use super::drive::Drive;
use super::engine::{
    Engine, KERNEL_TOKENS, Outlook, Released, ShownOutlook, TOKENS_PER_DEVICE, Verbs, Watch,
};
use super::event::RawEvent;
use super::lazy_now::LazyNow;
use super::leader::{Leader, Leadership};
use super::pace::Attention;
use super::queue::QueueCore;
use super::reactor::Reactor;
use super::reliance::Reliance;
use super::shards::Shard;
use super::waiter::Waiter;
use crate::plain::Plain;
use crate::sys::{Clock, HeldSignals, ProcessNumber, cold_path};
use crate::time::Time;

/// A weak reference to a context, as the engine inside of it keeps one.
pub(super) type Weak = std::sync::Weak<Context>;

/// What a turn of the engine came to.
pub(super) struct Turn {
    /// There is more to do at once.
    pub(super) more: bool,
    /// Threads that follow were woken.
    pub(super) served_others: bool,
}

/// A shard: devices, sockets, operations, and the thread that moves them when no other does.
pub struct Context {
    shard: Shard,
    pub(super) clock: Clock,
    engine: Mutex<Engine>,
    /// Threads that wait for the engine's lock to post something; a thread that
    /// spins lets them through.
    pub(super) posters: AtomicUsize,
    pub(super) lead: Leadership,
    /// For programs that wait for the descriptors of queues.
    pub(super) drive: Drive,
    /// Whether the program relies on descriptors.
    pub(super) reliance: Reliance,
    /// News wait to be shown.
    pub(super) has_news: AtomicBool,
    pub(super) released: Arc<Released>,
    /// Deadline (ns) with which the leader sleeps; `u64::MAX` while it does not.
    pub(super) asleep_until: AtomicU64,
    /// What threads without the engine's lock know of it.
    pub(super) outlook: ShownOutlook,
    /// Times that a thread slept in the reactor.
    pub(super) sleeps: AtomicU64,
    /// What threads have done here lately.
    pub(super) attention: Attention,
}

static NEXT_ID: ProcessNumber = ProcessNumber::new(1);

/// How a call enters a context.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    /// It may set something going.
    Call,
    /// So it may; and what it posts ends in a queue of this shard.
    Post(Shard),
    /// It sets nothing going.
    Look,
}

impl Context {
    /// Makes this the context of the process: for tests with devices of their own.
    ///
    /// # Errors
    /// The process has one already.
    #[cfg(any(test, feature = "internals"))]
    pub fn install(context: Arc<Context>) -> Result<(), Error> {
        super::shards::install(context)
    }

    /// A context with these devices: the first shard.
    ///
    /// # Errors
    /// What the kernel or the software RNIC says.
    #[cfg(any(test, feature = "internals"))]
    pub fn new(devices: Devices) -> Result<Arc<Context>, Error> {
        Context::in_shard(Shard::FIRST, devices)
    }

    /// The context that is this shard.
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
            let engine = Engine::new(
                (shard, id),
                me.clone(),
                Arc::clone(&released),
                (soft, shm, plain),
                verbs,
            );
            Context {
                shard,
                clock: Clock::default(),
                engine: Mutex::new(engine),
                posters: AtomicUsize::new(0),
                lead,
                drive,
                reliance: Reliance::default(),
                has_news: AtomicBool::new(false),
                released,
                asleep_until: AtomicU64::new(u64::MAX),
                outlook: ShownOutlook::default(),
                sleeps: AtomicU64::new(0),
                attention: Attention::default(),
            }
        });
        let background = Arc::clone(&context);
        // The thread inherits it: the program's signals are for the program's threads.
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

    /// About `now`, for the limits of waits: it may be less than another thread was told.
    pub fn about_now(&self) -> Time {
        self.clock.about()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Engine> {
        // A panic inside the engine is a bug of ours; its state is then as good as
        // any, and refusing to go on would hang every thread that waits.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if a thread has the engine.
    pub(super) fn at_work(&self) -> bool {
        matches!(self.engine.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Waits for a thread that has the engine. One that only looks around lets go of it when it
    /// hears of this.
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

    /// Its number.
    pub(crate) fn shard(&self) -> Shard {
        self.shard
    }

    /// Runs a call of the API on the engine and looks after what it set going.
    pub(crate) fn call<T>(&self, f: impl FnOnce(&mut Engine, Time) -> T) -> T {
        self.enter(Entry::Call, |engine, moment| f(engine, moment.now()))
    }

    /// The same for a call that posts what ends in a queue of a shard.
    pub(crate) fn post<T>(&self, shard: Shard, f: impl FnOnce(&mut Engine, Time) -> T) -> T {
        self.enter(Entry::Post(shard), |engine, moment| f(engine, moment.now()))
    }

    /// Has the engine for something that sets nothing going.
    #[inline]
    pub(crate) fn look<T>(&self, f: impl FnOnce(&mut Engine) -> T) -> T {
        self.enter(Entry::Look, |engine, _| f(engine))
    }

    /// Enters the engine, and looks after what the call set going.
    #[inline]
    pub(super) fn enter<T>(
        &self,
        entry: Entry,
        f: impl FnOnce(&mut Engine, &LazyNow<'_>) -> T,
    ) -> T {
        let mut engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(why) => self.lock_behind(why),
        };
        let moment = LazyNow::new(&self.clock);
        let crosses = match entry {
            Entry::Look => return f(&mut engine, &moment),
            Entry::Call => false,
            Entry::Post(shard) => shard != self.shard,
        };
        // Work may wait for a doorbell if this thread, or the background thread after a
        // tick, is the next to lead: each rings it first of all. A thread that waits for the
        // event in another shard does not lead here.
        let lazy = self.lead.leader() == Leader::Nobody && !crosses && !self.is_armed();
        engine.begin_call(lazy);
        let result = f(&mut engine, &moment);
        if !engine.has_passed() {
            cold_path();
            engine.settle(moment.now(), lazy);
            engine.end_call();
            if engine.leaver().is_some() {
                drop(engine);
                self.stay();
                engine = self.lock();
            }
        }
        self.finish(engine, None);
        if crosses {
            companions::note(self.shard);
        }
        result
    }

    /// Lets go of the lock, wakes whom it concerns (but for `me`, who is awake). True
    /// if a thread was woken that follows.
    #[inline]
    pub(super) fn finish(&self, mut engine: MutexGuard<'_, Engine>, me: Option<&Waiter>) -> bool {
        if let Some(outlook) = engine.news_since(&engine.told) {
            self.tell(&mut engine, outlook);
        }
        // Mostly nobody waits: everybody who is concerned is this thread.
        if engine.wake.is_empty()
            && self.asleep_until.load(Ordering::SeqCst) == u64::MAX
            && !engine.has_news()
            && !engine.signalled
        {
            return false;
        }
        self.wake_others(engine, me)
    }

    /// Shows threads without the lock how the engine stands. Mostly nothing has changed.
    #[inline(never)]
    fn tell(&self, engine: &mut Engine, outlook: Outlook) {
        engine.told = outlook;
        self.outlook.show(&outlook);
    }

    #[inline(never)]
    fn wake_others(&self, mut engine: MutexGuard<'_, Engine>, me: Option<&Waiter>) -> bool {
        engine.wake.retain(|w| me.is_none_or(|me| !std::ptr::eq(me, &**w)));
        // (Mostly nobody is left, and the list keeps its room.)
        let wake = match engine.wake.is_empty() {
            true => Vec::new(),
            false => std::mem::take(&mut engine.wake),
        };
        let asleep = self.asleep_until.load(Ordering::SeqCst);
        // Another thread sleeps in the reactor: what this turn began must wake it too. A
        // device may have had nothing to wait for when that thread fell asleep (no send
        // under way, a link that was not yet there), so it is asked once more.
        let hurry = asleep != u64::MAX
            && (engine.prepare_sleep()
                || engine.wants_run()
                || engine.next_deadline().is_some_and(|t| t.as_nanos() < asleep));
        let show = self.due_news(&mut engine);
        drop(engine);
        let mut others = false;
        for w in &wake {
            others |= self.lead.wake_waiter(w);
        }
        if hurry {
            self.lead.wake();
        }
        show.iter().for_each(|watch| watch.changed());
        others
    }

    /// What is to be shown on descriptors now.
    fn due_news(&self, engine: &mut Engine) -> Vec<Arc<dyn Watch>> {
        let signalled = std::mem::take(&mut engine.signalled);
        let background = self.lead.leader() == Leader::Background;
        if background && (signalled || engine.has_news()) {
            // No thread has come for it within a tick, or the program polls anyway.
            self.rely();
        }
        let due = match engine.has_news() && (background || self.reliance.polls()) {
            true => engine.take_news(false),
            false => Vec::new(),
        };
        self.has_news.store(engine.has_news(), Ordering::Relaxed);
        due
    }

    /// Runs the engine, with what the reactor found.
    pub(super) fn turn(
        &self,
        reactor: Option<&mut Reactor>,
        spin: bool,
        me: Option<&Waiter>,
    ) -> Turn {
        let mut engine = self.lock();
        let now = self.clock.now_locked(None);
        if let Some(r) = reactor {
            let finds = self.attention.take_finds();
            r.unseen = r.unseen.saturating_add(finds).saturating_add(1);
            for (token, ready) in r.ready.drain(..) {
                engine.handle_ready(token, ready);
            }
        }
        let more = engine.run(now, spin);
        let served_others = self.finish(engine, me);
        Turn { more, served_others }
    }

    /// Puts an event that no engine made into a queue, in the place booked for it.
    pub(crate) fn deliver(&self, queue: &QueueCore, event: RawEvent) {
        let mut wake = Vec::new();
        queue.push(event, &mut wake);
        for w in &wake {
            self.lead.wake_waiter(w);
        }
    }

    /// Times that a thread slept in the reactor.
    pub fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }
}
