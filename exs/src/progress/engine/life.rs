//! Timers, and the ends of sockets, sessions and the process.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Engine;
use super::domain::Place;
use super::sock::State;
use super::spread::Overdue;
use super::timers::Timer;
use crate::progress::call::Ringing;
use crate::rnic::Mr;
use crate::time::Time;

fn take<T>(list: &Mutex<Vec<T>>) -> Vec<T> {
    std::mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Engine {
    // ---- timers --------------------------------------------------------------

    pub(super) fn fire_timers(&mut self, now: Time) {
        if self.timers.is_due(now) {
            // A thread that did not run for a long time finds messages that have arrived beside
            // deadlines that have passed. The messages count, so they come first.
            self.reap(now);
        }
        while let Some(index) = self.timers.take_due(now) {
            self.recall(self.sockets.id(index), now);
            let s = &mut self.sockets[index];
            s.timer = Timer::default();
            if let Some(session) = s.session.as_mut()
                && session.next_timeout().is_some_and(|t| t <= now)
            {
                session.handle_timeout(now);
            }
            s.expire_exports(&mut self.devices[s.place.device], now);
            self.make_room(index, now);
            self.drive_race(self.sockets.id(index), now);
            self.sockets.mark(index);
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let kernel = self.plain.next_timeout();
        let own = self.timers.next().into_iter().chain(kernel).chain(self.sweeps.next());
        own.chain(self.devices.next_timeout()).min()
    }

    /// True if the thread that sleeps in the reactor until `end` must wake: there is something to do, or
    /// a deadline before that.
    #[inline(never)]
    pub(in crate::progress) fn must_wake_sleeper(&mut self, end: Time) -> bool {
        // A device may have had nothing to wait for when the thread fell asleep: no send was under way,
        // or a link did not exist yet. So the engine asks the devices once more.
        if self.devices.prepare_sleep() || self.wants_run() {
            return true;
        }
        let before = |deadline: Option<Time>| deadline.is_some_and(|t| t < end);
        before(self.timers.next())
            || before(self.sweeps.next())
            || before(self.plain.next_timeout())
            || before(self.devices.next_timeout())
    }

    // ---- ends ----------------------------------------------------------------

    /// Handles the work that other threads have left. Returns start-ups that listeners of other shards
    /// have given up.
    pub(super) fn collect_released(&mut self, now: Time) -> Vec<Overdue> {
        let mut overdue = Vec::new();
        if !self.released.take_any() {
            return overdue;
        }
        for (id, taken) in take(&self.released.sockets) {
            match taken {
                true => self.release_socket(id, now),
                false => self.reset_untaken(id, now),
            }
        }
        for (dev, ino) in take(&self.released.kernel) {
            self.plain.recheck(now, dev, ino);
        }
        for (device, came) in take(&self.released.fetched) {
            let qp = came.0;
            if let Some(d) = self.devices.get_mut(device)
                && d.staging.arrived(came)
            {
                self.sockets.mark_qp(device, qp);
            }
        }
        for resolved in take(&self.released.resolved) {
            self.handle_resolved(resolved, now);
        }
        for (from, parcel) in take(&self.released.parcels) {
            overdue.extend(self.receive(from, parcel, now));
        }
        for (tag, key) in take(&self.released.keys) {
            let Place { device, domain } = Place::of_tag(tag);
            if let Some(d) = self.devices.get_mut(device) {
                d.dereg_mr(domain, Mr { key });
            }
        }
        overdue
    }

    /// Frees the queue pair of a closed socket whose session has finished, and the socket itself
    /// when no handle refers to it. A connection that broke keeps its session until the program
    /// closes it, since the session knows what later calls must return.
    pub(super) fn tear_down(&mut self, index: u32) {
        let s = &self.sockets[index];
        if s.state != State::Closed {
            return;
        }
        if s.session.as_ref().is_some_and(|x| x.is_finished()) {
            s.log_end();
            self.drop_session(index);
            self.sockets[index].facts.end_span();
        }
        let s = &self.sockets[index];
        if s.holder.is_held() || s.session.is_some() || s.qp.is_some() {
            return;
        }
        let mut gone = self.sockets.remove(index);
        self.timers.set(index, &mut gone.timer, None);
        self.sweeps.forget(&gone.attended);
        for e in gone.exports.into_entries() {
            e.free(&mut self.devices[gone.place.device], gone.place.domain);
        }
    }

    // ---- the end of the process ------------------------------------------------

    /// `thread` ends the process: suppresses all events from now on, unless the process goes on. Other
    /// threads that have borrowed a connection come back.
    pub(in crate::progress) fn suppress_events(&mut self, thread: i32, now: Time) {
        for id in self.sockets.ids() {
            self.forget_reader(id, thread, now);
            self.recall(id, now);
        }
        self.delivery.suppress(thread);
    }

    /// The thread that ends the process may have a write that the engine has left to it. All others have
    /// made theirs.
    pub(in crate::progress) fn forget_deferred(&mut self) {
        self.devices.forget_deferred();
    }

    /// Closes all sockets, since the process ends. Returns how long that may take.
    pub(in crate::progress) fn leave_all(&mut self, now: Time) -> Duration {
        // Overdue start-ups need no care: all start-ups end below.
        self.collect_released(now);
        let mut patience = Duration::ZERO;
        for id in self.sockets.ids() {
            // The leader looks after all connections. A thread that is in a read brings what it has read.
            self.recall(id, now);
            self.attendances().end(id);
            // A connection that waits to be accepted ends with its listener, so it may be gone.
            let Ok(s) = self.sockets.find(id) else { continue };
            patience = patience.max(s.opts.linger);
            // Neither call can fail: each socket exists, and is open where it is closed here.
            let _ = match s.state {
                State::Closed => Ok(()),
                _ if s.is_untaken() => self.abort(id, now),
                _ => self.close(id, None, now),
            };
        }
        self.settle(now, Ringing::AtOnce);
        patience
    }

    pub(super) fn drop_session(&mut self, index: u32) {
        if let Some((Place { device, domain }, qp)) = self.sockets.end_session(index) {
            self.devices[device].destroy_qp(domain, qp);
            self.devices[device].wake_file_waiters(|qp| self.sockets.mark_qp(device, qp));
        }
    }
}
