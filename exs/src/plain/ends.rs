//! Ends of operations before they are done: by a time limit, by a cancel, or because the program
//! has closed the descriptor.

use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use super::Plain;
use super::sock::{NO_NUMBER, name};
use super::types::{Failure, Posted, Target};
use crate::ids::OpId;
use crate::time::Time;

impl Plain {
    pub(super) fn handle_timeouts(&mut self, now: Time) {
        while let Some((op, slot)) = self.timers.take_late(now) {
            let late =
                |p: &Posted| Failure::TimedOut(p.limit.map_or(Duration::ZERO, |(_, given)| given));
            self.cut(slot, now, |p| p.op == op, late);
        }
        if self.timers.take_retry(now) {
            self.socks.retry();
        }
        if self.timers.take_tick(now) {
            self.jobs.stop_strays();
            self.coalescer.end_lease();
            if self.must_tick() {
                self.timers.start_tick(now);
            }
            for slot in self.socks.slots() {
                self.check_owner(slot, now);
            }
        }
    }

    pub(super) fn must_tick(&self) -> bool {
        !self.socks.is_empty() || self.jobs.has_strays() || self.coalescer.has_lease()
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
        if let Some(slot) = self.socks.slot_of(&name) {
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
        let Some(slot) = self.socks.slot_of(&name) else { return 0 };
        let number = target.fd.as_raw_fd();
        self.cut(slot, now, |p| p.number == number && which(p.op), |_| Failure::Cancelled)
    }
}
