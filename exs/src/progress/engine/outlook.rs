//! The outlook: the state of the engine that threads without its lock can see.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Engine;
use crate::time::Time;

/// The state of the engine that threads without its lock must know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::progress) struct Outlook {
    /// The constants below, and above them the number of connections that threads attend.
    bits: u64,
    /// In ns. 0: nothing may wait.
    rests_until: u64,
}

const LAZY: u64 = 1;
const KEEPS: u64 = 1 << 1;
const WATCHES_KERNEL: u64 = 1 << 2;
const SENDS_KERNEL: u64 = 1 << 3;
/// One connection that a thread attends.
const ATTENDED: u64 = 1 << 4;

impl Outlook {
    /// Adds `bit` if `holds`.
    fn with(self, bit: u64, holds: bool) -> Outlook {
        Outlook { bits: self.bits | if holds { bit } else { 0 }, ..self }
    }

    fn has(self, bit: u64) -> bool {
        self.bits & bit != 0
    }

    /// Posted work waits for the next doorbell.
    pub(in crate::progress) fn lazy(self) -> bool {
        self.has(LAZY)
    }

    /// Kernel sockets gain if a thread that comes to dequeue leads.
    pub(in crate::progress) fn keeps(self) -> bool {
        self.has(KEEPS)
    }

    /// Kernel sockets wait for readiness that only the reactor reports.
    pub(in crate::progress) fn watches_kernel(self) -> bool {
        self.has(WATCHES_KERNEL)
    }

    /// The program sends on kernel sockets.
    pub(in crate::progress) fn sends_kernel(self) -> bool {
        self.has(SENDS_KERNEL)
    }

    /// The number of connections that threads attend, or have left a moment ago.
    pub(in crate::progress) fn attended(self) -> u64 {
        self.bits / ATTENDED
    }

    /// True at `now` if all that waits may go on waiting, while threads find their events without
    /// leading.
    pub(in crate::progress) fn rests(self, now: impl FnOnce() -> Time) -> bool {
        self.rests_until != 0 && now().as_nanos() < self.rests_until
    }
}

/// The outlook, as threads without the lock read it. Only a thread with the lock writes it.
#[derive(Debug, Default)]
pub(in crate::progress) struct ShownOutlook {
    bits: AtomicU64,
    rests_until: AtomicU64,
}

impl ShownOutlook {
    pub(in crate::progress) fn show(&self, outlook: Outlook) {
        self.rests_until.store(outlook.rests_until, Ordering::Relaxed);
        // A thread that posts work without a doorbell, and then looks for threads that lead, must
        // have shown the work before.
        self.bits.store(outlook.bits, Ordering::SeqCst);
    }

    #[inline]
    pub(in crate::progress) fn get(&self) -> Outlook {
        let bits = self.bits.load(Ordering::SeqCst);
        Outlook { bits, rests_until: self.rests_until.load(Ordering::Relaxed) }
    }
}

impl Engine {
    /// True if posted work waits for the next doorbell.
    pub(in crate::progress) fn has_lazy(&self) -> bool {
        self.plain.keeps().0 || self.sockets.has_lazy()
    }

    /// The outlook, which the caller must show. None: it was shown already.
    #[inline]
    pub(in crate::progress) fn changed_outlook(&mut self) -> Option<Outlook> {
        let attended = ATTENDED * self.sweeps.out() as u64;
        let outlook = Outlook { bits: attended, rests_until: 0 }
            .with(LAZY, self.sockets.has_lazy())
            .with(SENDS_KERNEL, self.plain.has_sent());
        let outlook = match self.plain.is_idle() {
            true => outlook,
            false => self.with_kernel(outlook),
        };
        if outlook == self.told {
            return None;
        }
        self.told = outlook;
        Some(outlook)
    }

    /// The outlook with the state of kernel sockets.
    #[inline(never)]
    fn with_kernel(&self, outlook: Outlook) -> Outlook {
        let rests = self.plain.rests_until().filter(|_| !self.sockets.has_lazy());
        let (lazy, keeps) = self.plain.keeps();
        Outlook { rests_until: rests.map_or(0, Time::as_nanos), ..outlook }
            .with(LAZY, lazy)
            .with(KEEPS, keeps)
            .with(WATCHES_KERNEL, self.plain.is_waiting())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outlook_is_shown_whole() {
        let shown = ShownOutlook::default();
        assert_eq!(shown.get(), Outlook::default());
        assert!(!shown.get().lazy() && shown.get().attended() == 0);
        let outlook = Outlook { bits: 3 * ATTENDED, rests_until: 7 }
            .with(KEEPS, true)
            .with(LAZY, false)
            .with(SENDS_KERNEL, true);
        shown.show(outlook);
        let seen = shown.get();
        assert_eq!(seen, outlook);
        assert!(seen.keeps() && seen.sends_kernel() && seen.attended() > 0);
        assert!(!seen.lazy() && !seen.watches_kernel());
        assert!(seen.rests(|| Time::from_nanos(6)) && !seen.rests(|| Time::from_nanos(7)));
        assert!(!Outlook::default().rests(|| unreachable!("nothing may wait")));
    }
}
