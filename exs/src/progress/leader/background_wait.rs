//! Rule 3: how the background thread waits until it must lead.
//!
//! It looks after the shard in ticks. [`Lookout`] says what it does where threads of the program lead or
//! follow, and [`Alone`] where the program sleeps for descriptors and comes by itself.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use super::{LeadState, Leadership};
use crate::progress::alone::{Alone, Ticks};
use crate::progress::lead::{Lead, LeadEvent};
use crate::progress::reactor::Reactor;
use crate::progress::sentry::Duty;
use crate::progress::ticks::{AfterLook, Lookout};

/// The lock of the lead, which a step may release for a time.
type Locked<'a> = MutexGuard<'a, LeadState>;

/// A wait of the background thread.
pub(super) struct BackgroundWait<'a> {
    lead: &'a Leadership,
    ticks: &'a Ticks<'a>,
    lookout: Lookout,
    alone: Alone,
}

/// What the background thread does after a look.
enum NextStep {
    End(Duty),
    /// It sleeps until a leader calls it.
    Park,
    /// It looks again after this time.
    Tick(Duration),
}

impl<'a> BackgroundWait<'a> {
    /// `hasty`: other threads have hardly left the lead to the background thread.
    pub(super) fn new(lead: &'a Leadership, ticks: &'a Ticks<'a>, hasty: bool) -> Self {
        BackgroundWait { lead, ticks, lookout: Lookout::new(hasty), alone: Alone::default() }
    }

    /// Sleeps until the thread must lead, or until a leader calls it to sleep below.
    pub(super) fn wait(mut self, mut st: Locked<'a>) -> Duty {
        loop {
            let next;
            (next, st) = self.look(st);
            st = match next {
                NextStep::End(duty) => return duty,
                NextStep::Tick(tick) => self.tick(st, tick),
                NextStep::Park => {
                    let st = self.lead.park(st);
                    self.lookout.begin_anew();
                    st
                }
            };
        }
    }

    fn look(&mut self, mut st: Locked<'a>) -> (NextStep, Locked<'a>) {
        if std::mem::take(&mut st.background.called) && st.lead == Lead::Application {
            return (NextStep::End(Duty::SleepBelow), st);
        }
        let polls = (self.ticks.polls)();
        // A program that waits for descriptors of sockets does not come when the descriptor of a queue
        // is readable.
        if st.reactor.is_some() && st.followers.is_empty() && (self.ticks.armed)() && !polls {
            return (self.leave_to_program(&mut st), st);
        }
        self.alone = Alone::default();
        let takes_over = std::mem::take(&mut st.background.takes_over);
        // A thread of the program that has left the lead most likely waits for a descriptor.
        if (polls || takes_over)
            && st.lead.is_free()
            && let Some(reactor) = self.lead.lead_in_background(&mut st)
        {
            return (NextStep::End(Duty::Lead(reactor)), st);
        }
        match self.lookout.look(st.turns, st.reactor.is_none(), self.ticks.program) {
            AfterLook::Park if !(self.ticks.keeps)() => return (NextStep::Park, st),
            AfterLook::Call => {
                // If that thread no longer wants the lead, the next tick asks another thread.
                let reactor;
                (reactor, st) = self.have_it_led(st);
                if let Some(reactor) = reactor {
                    return (NextStep::End(Duty::Lead(reactor)), st);
                }
            }
            AfterLook::Park | AfterLook::Wait => {}
        }
        (NextStep::Tick(self.lookout.tick(!st.followers.is_empty())), st)
    }

    /// The program comes when the shard has something to do. The background thread leads if it does
    /// not.
    fn leave_to_program(&mut self, st: &mut LeadState) -> NextStep {
        if self.alone.is_over((self.ticks.ready)().then_some(st.turns))
            && let Some(reactor) = self.lead.lead_in_background(st)
        {
            return NextStep::End(Duty::Lead(reactor));
        }
        NextStep::Tick(self.alone.tick())
    }

    /// Waits for a tick, or until another thread wakes this thread.
    fn tick(&self, st: Locked<'a>, tick: Duration) -> Locked<'a> {
        let waited = self.lead.wake_background.wait_timeout(st, tick);
        let (mut st, over) = waited.unwrap_or_else(PoisonError::into_inner);
        if over.timed_out() {
            // The thread to which the reactor was promised has had its time.
            self.lead.pass(&mut st, LeadEvent::Lapse, None);
            drop(st);
            (self.ticks.ticked)();
            st = self.lead.lock();
        }
        st
    }

    /// No thread leads: asks the first follower to lead, or the program that waits for descriptors.
    /// Takes the reactor if there is neither.
    fn have_it_led(&self, mut st: Locked<'a>) -> (Option<Reactor>, Locked<'a>) {
        let (_, next) = self.lead.pass(&mut st, LeadEvent::Call, None);
        if let Some(next) = next {
            next.fd.signal();
            return (None, st);
        }
        drop(st);
        let comes = (self.ticks.arm)();
        st = self.lead.lock();
        let reactor = if comes { None } else { self.lead.lead_in_background(&mut st) };
        (reactor, st)
    }
}
