//! What goes on when no thread of the program waits: the background thread, and work that is
//! left for whoever leads next.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::alone::Ticks;
use super::companions::{self, Companions};
use super::context::Context;
use super::engine::{Parcel, SockId};
use super::leader::Leader;
use super::queue::QueueCore;
use super::reactor::Reactor;
use super::shards::{self, Shard};
use crate::sys::{note_calls, yield_now};

/// Turns that such a thread then takes, as long as there is more to do: about as many
/// connections as it is told of in one dequeue.
pub(super) const VISIT_TURNS: u32 = 4;

impl Context {
    /// Rings the doorbell for work that was posted without one, for a thread that comes to a
    /// `queue`. One that finds events there, and need not wait, leads now and then all the
    /// same: else the background thread would, beside it.
    pub(crate) fn nudge(&self, queue: &QueueCore) {
        companions::note(self.shard());
        let lazy = self.outlook.lazy();
        let rests = self.outlook.rests_until();
        if rests != 0 && !queue.is_empty() && self.clock.about().as_nanos() < rests {
            return;
        }
        let away = || self.attention.lacks_leader(self.clock.about());
        // Sends are kept as long as programs' threads lead now and then, though those that
        // keep some may never have to wait. (A queue with a descriptor is served by the
        // background thread.)
        if !queue.has_fd()
            && !self.is_served()
            && (self.outlook.keeps() || !queue.is_empty() && away())
        {
            self.visit(lazy);
        } else if lazy {
            self.turn(None, false, None);
        }
    }

    /// The background thread leads, and is to go on with it.
    pub(super) fn is_served(&self) -> bool {
        self.reliance.polls() && self.lead.leader() == Leader::Background
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

    /// Shows what is to be shown; with `aged` only what was to be shown a tick ago, and no call
    /// has come for.
    pub(super) fn show_news(&self, aged: bool) {
        if !self.has_news.load(Ordering::Relaxed) {
            return;
        }
        let mut engine = self.lock();
        let due = engine.take_news(aged);
        self.has_news.store(engine.has_news(), Ordering::Relaxed);
        drop(engine);
        if aged && !due.is_empty() {
            self.rely();
        }
        due.iter().for_each(|watch| watch.changed());
    }

    /// Leads for some turns. As no other thread does meanwhile, the kernel is asked for news, and
    /// memory is looked at, if that was not done of late. (Connections that are served with
    /// each doorbell can keep a program from ever waiting: others would not be heard.) If
    /// another leads, the doorbells for `lazy` work are rung all the same.
    #[inline(never)]
    fn visit(&self, lazy: bool) {
        let Some(mut reactor) = self.lead.try_lead(false) else {
            if lazy {
                self.turn(None, false, None);
            }
            return;
        };
        self.take_turns(&mut reactor);
        self.lead.leave(reactor, None, (false, self.reliance.polls()));
    }

    fn take_turns(&self, reactor: &mut Reactor) {
        let now = self.now();
        let due = self.attention.lacks_leader(now);
        if due {
            self.attention.note_lead(now);
            // What keeps it from answering is told to whoever waits.
            let _ = reactor.poll(Some(Duration::ZERO));
        }
        for _ in 0..VISIT_TURNS {
            if !self.turn(Some(reactor), due, None).more {
                break;
            }
        }
    }

    /// As `nudge`, for a thread that is about to call the kernel itself.
    pub(crate) fn send_kept() {
        if let Some(context) = shards::existing_first()
            && context.outlook.keeps()
        {
            context.turn(None, false, None);
        }
    }

    /// The background thread.
    pub(super) fn background(self: Arc<Context>) {
        // The thread's counter is made now: later this would be a lock of the process, taken while
        // other threads move data.
        note_calls(0);
        loop {
            let mut reactor = self.lead.background_wait(&Ticks {
                at_work: &|| self.at_work(),
                armed: &|| self.is_armed(),
                arm: &|| self.arm_for_sleeper(),
                ready: &|| self.is_due(),
                polls: &|| self.reliance.polls(),
                ticked: &|| self.show_news(true),
            });
            self.lock().begin_background();
            loop {
                while self.posters.load(Ordering::Relaxed) > 0 {
                    yield_now();
                }
                let turn = self.turn(Some(&mut reactor), false, None);
                if self.lead.must_leave() {
                    break;
                }
                let slept = if turn.more {
                    reactor.poll(Some(Duration::ZERO))
                } else {
                    let must_leave = || self.lead.must_leave();
                    let alone = &mut Companions::default();
                    self.sleep_until(None, None, &mut reactor, alone, must_leave)
                };
                if let Err(e) = slept
                    && e.kind() != std::io::ErrorKind::Interrupted
                {
                    crate::trace::warn!("the reactor failed: {e}");
                }
            }
            self.lead.background_leave(reactor);
        }
    }

    /// A handle was dropped: its socket is closed at the next turn, or reset if the program
    /// has never `taken` it.
    pub(super) fn release(&self, id: SockId, taken: bool) {
        self.released.socket(id, taken);
        self.lead.wake();
    }

    /// The engine of the shard `from` sends something.
    pub(super) fn send(&self, from: Shard, parcel: Parcel) {
        self.released.parcel(from, parcel);
        self.lead.wake();
    }

    /// Has whoever sleeps in the reactor look after the engine.
    pub(super) fn wake(&self) {
        self.lead.wake();
    }

    /// The program may have closed a kernel socket: looked after at the next turn.
    pub(crate) fn release_kernel(&self, dev: u64, ino: u64) {
        // Should this be read too early, the next tick of the engine's finds it.
        if self.outlook.watches_kernel() {
            self.released.kernel(dev, ino);
            self.lead.wake();
        }
    }
}
