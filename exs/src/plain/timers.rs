//! When kernel sockets must be looked after.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::OpId;
use crate::time::Time;

/// How often the table looks for descriptors that the owner has closed.
const TICK: Duration = Duration::from_millis(100);
/// After this time a send to an address whose queue was full is tried again.
const RETRY: Duration = Duration::from_millis(2);

/// The timers.
#[derive(Default)]
pub(super) struct KernelTimers {
    /// The slots of operations with a time limit.
    limits: BTreeMap<(Time, OpId), usize>,
    /// When to look for closed descriptors. None: never.
    tick: Option<Time>,
    /// When to try full addresses again. None: never.
    retry: Option<Time>,
}

impl KernelTimers {
    /// The first deadline.
    pub(super) fn next(&self) -> Option<Time> {
        let limit = self.limits.first_key_value().map(|((at, _), _)| *at);
        [limit, self.tick, self.retry].into_iter().flatten().min()
    }

    /// Notes the time limit of an operation of the socket in `slot`.
    pub(super) fn limit(&mut self, op: OpId, at: Time, slot: usize) {
        self.limits.insert((at, op), slot);
    }

    /// The operation has ended.
    pub(super) fn end(&mut self, op: OpId, at: Time) {
        self.limits.remove(&(at, op));
    }

    /// An operation whose time limit has passed, and its slot.
    pub(super) fn take_late(&mut self, now: Time) -> Option<(OpId, usize)> {
        let first = self.limits.first_entry().filter(|first| first.key().0 <= now)?;
        let ((_, op), slot) = first.remove_entry();
        Some((op, slot))
    }

    /// Starts the tick unless it runs.
    pub(super) fn start_tick(&mut self, now: Time) {
        self.tick.get_or_insert(now + TICK);
    }

    /// There is nothing to look for any more.
    pub(super) fn stop_tick(&mut self) {
        self.tick = None;
    }

    /// True if the tick is due, which ends it.
    pub(super) fn take_tick(&mut self, now: Time) -> bool {
        self.tick.take_if(|at| *at <= now).is_some()
    }

    /// Has full addresses tried again soon.
    pub(super) fn start_retry(&mut self, now: Time) {
        self.retry.get_or_insert(now + RETRY);
    }

    /// True if the retry is due, which ends it.
    pub(super) fn take_retry(&mut self, now: Time) -> bool {
        self.retry.take_if(|at| *at <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_deadline_is_taken_once() {
        let at = |ms: u64| Time::from_nanos(1_000_000 * ms);
        let mut timers = KernelTimers::default();
        assert_eq!((timers.next(), timers.take_late(at(9))), (None, None));
        timers.start_tick(at(0));
        timers.start_tick(at(50));
        timers.limit(7, at(30), 1);
        timers.limit(8, at(20), 2);
        timers.limit(9, at(10), 3);
        timers.end(9, at(10));
        assert_eq!(timers.next(), Some(at(20)));
        timers.start_retry(at(0));
        assert_eq!(timers.next(), Some(at(0) + RETRY));
        assert!(!timers.take_retry(at(1)) && timers.take_retry(at(2)));
        assert!(!timers.take_retry(at(2)));
        assert_eq!(timers.take_late(at(19)), None);
        assert_eq!(timers.take_late(at(30)), Some((8, 2)));
        assert_eq!(timers.take_late(at(30)), Some((7, 1)));
        assert!(!timers.take_tick(at(99)) && timers.take_tick(at(100)));
        assert_eq!(timers.next(), None);
        timers.start_tick(at(0));
        timers.stop_tick();
        assert!(!timers.take_tick(at(100)));
    }
}
