//! The timers of sockets: the time at which the engine must look after each of them, though nothing
//! has happened to it.

use std::collections::BTreeSet;

use super::sock::Sock;
use crate::time::Time;

/// The timers. Each socket has at most one.
#[derive(Default)]
pub(super) struct TimerTable {
    /// The times, each with the number of its socket.
    times: BTreeSet<(Time, u32)>,
}

/// A socket's timer: its time in the table. None: the timer is not set.
#[derive(Debug, Default)]
pub(super) struct Timer(Option<Time>);

impl Timer {
    #[inline]
    pub(super) fn is_set(&self) -> bool {
        self.0.is_some()
    }
}

impl TimerTable {
    /// Sets a socket's timer to the time at which the engine must look after it.
    #[inline]
    pub(super) fn update(&mut self, index: u32, s: &mut Sock) {
        let next = s.next_timeout();
        self.set(index, &mut s.timer, next);
    }

    /// Sets a timer. None: the socket has no deadline, or is gone. A deadline that has moved back keeps its old
    /// place. Its timer fires early, finds nothing, and is set again, which is cheaper than a move
    /// with every message.
    #[inline]
    pub(super) fn set(&mut self, index: u32, timer: &mut Timer, next: Option<Time>) {
        match (timer.0, next) {
            (Some(old), Some(new)) if new >= old => {}
            (None, None) => {}
            (old, new) => {
                if let Some(t) = old {
                    self.times.remove(&(t, index));
                }
                if let Some(t) = new {
                    self.times.insert((t, index));
                }
                timer.0 = new;
            }
        }
    }

    /// True if a timer is due.
    #[inline]
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.times.first().is_some_and(|(at, _)| *at <= now)
    }

    /// Takes the first timer that is due out of the table. Returns the number of its socket, whose
    /// [`Timer`] the caller must clear. None: no timer is due.
    pub(super) fn take_due(&mut self, now: Time) -> Option<u32> {
        if !self.is_due(now) {
            return None;
        }
        self.times.pop_first().map(|(_, index)| index)
    }

    /// The earliest time. None: no timer is set.
    pub(super) fn next(&self) -> Option<Time> {
        self.times.first().map(|&(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(secs: u64) -> Option<Time> {
        Some(Time::ZERO + Duration::from_secs(secs))
    }

    #[test]
    fn a_timer_moves_forward_only_and_fires_once() {
        let (mut table, mut timers) = (TimerTable::default(), [Timer::default(), Timer::default()]);
        table.set(0, &mut timers[0], at(5));
        table.set(1, &mut timers[1], at(7));
        table.set(0, &mut timers[0], at(9));
        assert_eq!((table.next(), timers[0].0), (at(5), at(5)), "a later deadline moves nothing");
        table.set(1, &mut timers[1], at(3));
        assert_eq!(table.next(), at(3));
        let fired = |table: &mut TimerTable, secs| table.take_due(at(secs).unwrap());
        assert_eq!(fired(&mut table, 2), None);
        assert_eq!(fired(&mut table, 5), Some(1));
        assert_eq!((fired(&mut table, 5), fired(&mut table, 5)), (Some(0), None));
        assert_eq!(table.next(), None);
    }

    #[test]
    fn a_socket_without_deadlines_has_no_timer() {
        let (mut table, mut timer) = (TimerTable::default(), Timer::default());
        table.set(4, &mut timer, None);
        assert!(!timer.is_set());
        table.set(4, &mut timer, at(1));
        assert!(timer.is_set() && table.is_due(at(1).unwrap()) && !table.is_due(Time::ZERO));
        table.set(4, &mut timer, None);
        assert!(!timer.is_set() && table.next().is_none(), "the timer is taken out");
    }
}
