//! Ends of operations before they are done: by a time limit, by a cancel, or because the program
//! has closed the descriptor.

use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use super::sock::{NO_NUMBER, name};
use super::types::{Failure, Posted, Target};
use super::{Plain, TICK};
use crate::ids::OpId;
use crate::time::Time;

impl Plain {
    pub(super) fn handle_timeouts(&mut self, now: Time) {
        while let Some((&(at, op), &slot)) = self.limits.first_key_value()
            && at <= now
        {
            self.limits.pop_first();
            let late =
                |p: &Posted| Failure::TimedOut(p.limit.map_or(Duration::ZERO, |(_, given)| given));
            self.cut(slot, now, |p| p.op == op, late);
        }
        if self.retry.is_some_and(|at| at <= now) {
            self.retry = None;
            let full: Vec<_> =
                self.socks.iter().filter(|(_, s)| s.must_retry).map(|(i, _)| i).collect();
            for slot in full {
                self.socks[slot].ready.1 = true;
                self.list(slot);
            }
        }
        if self.tick.is_some_and(|at| at <= now) {
            self.stop_strays();
            if let Some(rested) = self.rested.take() {
                rested.lease.end();
            }
            self.tick = self.must_tick().then(|| now + TICK);
            let slots: Vec<_> = self.socks.iter().map(|(i, _)| i).collect();
            for slot in slots {
                self.check_owner(slot, now);
            }
        }
    }

    pub(super) fn must_tick(&self) -> bool {
        !self.socks.is_empty() || !self.strays.is_empty() || self.rested.is_some()
    }

    /// Ends operations that were posted with a descriptor that the program has closed.
    fn check_owner(&mut self, slot: usize, now: Time) {
        let Some(s) = self.socks.get(slot) else { return };
        let mut numbers: Vec<RawFd> = s.posted().map(|p| p.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.retain(|n| s.has_lost(*n));
        if !numbers.is_empty() {
            self.cut(slot, now, |p| numbers.contains(&p.number), |_| Failure::Cancelled);
        }
    }

    /// Looks at once for closed descriptors of a socket. Files that are no sockets wait for the tick.
    pub fn recheck(&mut self, now: Time, dev: u64, ino: u64) {
        let name = (dev, ino, NO_NUMBER);
        self.send_batch_of(&name, now);
        if let Some(&slot) = self.by_name.get(&name) {
            self.check_owner(slot, now);
        }
    }

    /// Ends operations that were posted with this descriptor; returns how many. Each ends as
    /// cancelled after the bytes moved so far, or as done if that was faster. Kept sends leave first.
    pub fn cancel(
        &mut self,
        now: Time,
        target: &Target<'_>,
        which: impl Fn(OpId) -> bool,
    ) -> usize {
        let name = name(target);
        self.send_batch_of(&name, now);
        let Some(&slot) = self.by_name.get(&name) else { return 0 };
        let number = target.fd.as_raw_fd();
        self.cut(slot, now, |p| p.number == number && which(p.op), |_| Failure::Cancelled)
    }
}
