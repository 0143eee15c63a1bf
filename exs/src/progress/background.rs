//! The background thread, and calls that run the engine in passing.
//!
//! The background thread leads where no thread of the program does. A thread that comes to a queue
//! rings the doorbells that were put off, whether it waits or not. Handles and other engines leave
//! work for the next leader.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::alone::Ticks;
use super::companions::{self, ShardUse};
use super::context::Context;
use super::engine::{Parcel, SockId, Watch};
use super::lead::Lead;
use super::owed;
use super::queue::QueueCore;
use super::reactor::Reactor;
use super::sentry::{AfterSleep, Duty};
use super::shards::{self, Shard};
use super::sleep_end::SleepEnd;
use super::ticks::{LastLeader, Program};
use crate::sys::{is_runnable, note_calls, processor_time, yield_now};

/// The most turns of a thread that passes by. It ends earlier if there is no more to do. They serve
/// about as many connections as the events of one dequeue name.
pub(super) const PASSING_TURNS: u32 = 4;

impl Context {
    /// A thread comes to `queue`: rings the doorbell for work that was posted without one, here and in the
    /// shards where the thread has left some.
    ///
    /// A thread that finds events in the queue does not lead, however often it comes. The background
    /// thread then leads beside it after a tick, and serves the connections without events. A thread
    /// that sends on kernel sockets leads now and then instead: these sends leave in its own calls.
    pub(crate) fn nudge(&self, queue: &QueueCore) {
        companions::note(self.shard(), ShardUse::Dequeues);
        owed::ring(self.shard());
        let outlook = self.outlook.get();
        if !queue.is_empty() && outlook.rests(|| self.clock.about()) {
            return;
        }
        let lazy = outlook.lazy();
        let away = || self.attention.lacks_leader(self.clock.about());
        // Kernel sockets keep sends back only as long as threads of the program lead now and then.
        // But a thread whose sends are kept may never have to wait, so it leads here. The background
        // thread serves a queue with a descriptor.
        if !queue.has_fd()
            && !self.is_served()
            && (outlook.keeps() || outlook.sends_kernel() && !queue.is_empty() && away())
        {
            self.lead_in_passing(lazy);
        } else if lazy {
            self.turn(None, false, None);
        }
    }

    /// True if the background thread leads, and keeps the lead because the program relies on
    /// descriptors.
    pub(super) fn is_served(&self) -> bool {
        self.reliance.polls() && matches!(self.lead.lead(), Lead::Background { .. } | Lead::Sentry)
    }

    /// The program relies on descriptors: the background thread leads whenever no other does.
    pub(crate) fn rely(&self) {
        if self.reliance.note_shown() {
            self.lead.call_background();
        }
    }

    /// A call found nothing and does not wait: perhaps the program polls next.
    pub(crate) fn note_miss(&self) {
        if self.reliance.note_miss() {
            self.lead.call_background();
        }
    }

    /// Shows changes of sockets on their descriptors. With `aged`, shows only changes that were due
    /// a tick ago and that no call has fetched since.
    pub(super) fn show_news(&self, aged: bool) {
        let due = self.take_news(aged);
        if aged && !due.is_empty() {
            self.rely();
        }
        due.iter().for_each(|watch| watch.changed());
    }

    /// Takes the watches of the sockets with changes.
    pub(super) fn take_news(&self, aged: bool) -> Vec<Arc<dyn Watch>> {
        if !self.has_news.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut engine = self.lock();
        let due = engine.take_news(aged);
        self.has_news.store(engine.delivery.has_news(), Ordering::Relaxed);
        due
    }

    /// The background thread has waited for a tick.
    fn tick(&self) {
        self.show_news(true);
        self.show_kept(false);
    }

    /// Leads for some turns, which send what kernel sockets have kept. If another thread leads, this
    /// thread only rings the doorbells for `lazy` work.
    #[inline(never)]
    fn lead_in_passing(&self, lazy: bool) {
        let Some(mut reactor) = self.lead.try_lead(false) else {
            if lazy {
                self.turn(None, false, None);
            }
            return;
        };
        self.take_turns(&mut reactor);
        self.lead.leave(reactor, None, self.reliance.polls());
    }

    /// If no thread has led for a while, the thread also asks the kernel for news and looks at memory.
    fn take_turns(&self, reactor: &mut Reactor) {
        let now = self.now();
        let due = self.attention.lacks_leader(now);
        if due {
            self.attention.note_lead(now);
            // A thread that waits returns the error, if it lasts.
            let _ = reactor.poll(Some(Duration::ZERO));
        }
        for _ in 0..PASSING_TURNS {
            if !self.turn(Some(reactor), due, None).more {
                break;
            }
        }
    }

    /// As `nudge`, for a thread that is about to call the kernel itself: sends what kernel sockets
    /// have kept.
    pub(crate) fn send_kept() {
        if let Some(context) = shards::existing_first()
            && context.outlook.get().keeps()
        {
            context.turn(None, false, None);
        }
    }

    /// The loop of the background thread, which never ends.
    pub(super) fn background(self: Arc<Context>) {
        // Makes the thread's counter of system calls now. Later, this would take a lock of the
        // process while other threads move data.
        note_calls(0);
        let mut parks = false;
        loop {
            let ticks = Ticks {
                program: self.as_ref(),
                armed: &|| self.is_armed(),
                arm: &|| self.arm_for_sleeper(),
                ready: &|| self.is_due(),
                polls: &|| self.reliance.polls(),
                keeps: &|| self.keeps_news(),
                ticked: &|| self.tick(),
            };
            let slept = match self.lead.background_wait(&ticks, parks) {
                Duty::Lead(reactor) => {
                    self.show_kept(true);
                    // No thread of the program rang the doorbell, so this thread does.
                    self.lock().plain.note_needless_batch();
                    AfterSleep::Leads(reactor)
                }
                Duty::SleepBelow => self.sleep_below(SleepEnd::FAR),
            };
            parks = self.lead_in_background(slept);
        }
    }

    /// The background thread leads until it must leave the lead, or until another thread has taken it.
    /// Returns true if the thread parks then.
    fn lead_in_background(&self, mut slept: AfterSleep) -> bool {
        loop {
            let mut reactor = match slept {
                AfterSleep::Leads(reactor) => reactor,
                AfterSleep::Looks => return false,
                AfterSleep::Parks => return true,
            };
            while self.posters.load(Ordering::Relaxed) > 0 {
                yield_now();
            }
            let turn = self.turn(Some(&mut reactor), false, None);
            if self.lead.must_leave() {
                self.lead.background_leave(reactor);
                self.call_sleeper();
                return false;
            }
            slept = match turn.more {
                true => AfterSleep::Leads(self.ask_kernel(reactor)),
                false => self.sleep_as_sentry(reactor),
            };
        }
    }

    /// A handle was dropped. The next turn closes its socket, or resets it if the program has never
    /// `taken` it.
    pub(super) fn release(&self, id: SockId, taken: bool) {
        self.released.socket(id, taken);
        self.wake();
    }

    /// Takes a parcel that the engine of the shard `from` sends, and wakes the leader.
    pub(super) fn send(&self, from: Shard, parcel: Parcel) {
        self.released.parcel(from, parcel);
        self.wake();
    }

    /// Wakes the thread that sleeps in the reactor, so that it runs the engine. The caller has left
    /// work. A leader that is awake finds the work before it sleeps, as it looks for work after it has
    /// announced its sleep. A program that waits for the descriptor of a queue may sleep unannounced.
    pub(super) fn wake(&self) {
        if self.drive.is_used() {
            self.lead.wake();
        } else if self.announced.sleeps() {
            self.lead.bell.end_announced_sleep();
        }
    }

    /// The program may have closed a kernel socket: the next turn looks after it.
    pub(crate) fn release_kernel(&self, dev: u64, ino: u64) {
        // If this thread reads the outlook too early, the engine's next tick finds the socket.
        if self.outlook.get().watches_kernel() {
            self.released.kernel(dev, ino);
            self.lead.wake();
        }
    }
}

impl Program for Context {
    fn at_work(&self) -> bool {
        Context::at_work(self)
    }

    fn last_leader(&self) -> Option<LastLeader> {
        let thread = self.attention.last_leader()?;
        processor_time(thread).map(|ran| LastLeader { thread, ran })
    }

    fn is_runnable(&self, thread: i32) -> bool {
        is_runnable(thread)
    }
}
