//! What threads see of the engine that do not have its lock.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::Engine;
use crate::time::Time;

/// What threads without the engine's lock must know of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::progress) struct Outlook {
    /// Posted work waits for the next doorbell.
    pub(in crate::progress) lazy: bool,
    /// A thread that comes to dequeue does kernel sockets good by leading.
    pub(in crate::progress) keeps: bool,
    /// Until when (ns) all of that may wait for a thread that finds its events without leading; 0
    /// if it may not.
    pub(in crate::progress) rests_until: u64,
    /// Kernel sockets wait for what the reactor alone reports.
    pub(in crate::progress) watches_kernel: bool,
    /// Connections that threads attend, or have left a moment ago.
    pub(in crate::progress) attended: usize,
}

/// The outlook as threads read it that do not have the lock. It is written under the lock alone.
#[derive(Debug, Default)]
pub(in crate::progress) struct ShownOutlook {
    lazy: AtomicBool,
    keeps: AtomicBool,
    rests_until: AtomicU64,
    watches_kernel: AtomicBool,
    attended: AtomicUsize,
}

impl ShownOutlook {
    pub(in crate::progress) fn show(&self, outlook: &Outlook) {
        self.lazy.store(outlook.lazy, Ordering::SeqCst);
        self.keeps.store(outlook.keeps, Ordering::Relaxed);
        self.rests_until.store(outlook.rests_until, Ordering::Relaxed);
        self.watches_kernel.store(outlook.watches_kernel, Ordering::Relaxed);
        self.attended.store(outlook.attended, Ordering::Relaxed);
    }

    #[inline]
    pub(in crate::progress) fn lazy(&self) -> bool {
        self.lazy.load(Ordering::SeqCst)
    }

    #[inline]
    pub(in crate::progress) fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Relaxed)
    }

    #[inline]
    pub(in crate::progress) fn rests_until(&self) -> u64 {
        self.rests_until.load(Ordering::Relaxed)
    }

    #[inline]
    pub(in crate::progress) fn watches_kernel(&self) -> bool {
        self.watches_kernel.load(Ordering::Relaxed)
    }

    #[inline]
    pub(in crate::progress) fn attended(&self) -> usize {
        self.attended.load(Ordering::Relaxed)
    }
}

impl Engine {
    /// True if posted work waits for the next doorbell.
    pub(in crate::progress) fn has_lazy(&self) -> bool {
        self.plain.keeps().0 || !self.lazy.is_empty()
    }

    /// What threads without the lock must know of it, if that is not what `told` says.
    #[inline]
    pub(in crate::progress) fn news_since(&self, told: &Outlook) -> Option<Outlook> {
        let outlook = match self.plain.is_idle() {
            true => Outlook {
                lazy: !self.lazy.is_empty(),
                attended: self.attended(),
                ..Outlook::default()
            },
            false => self.outlook_with_kernel(),
        };
        (outlook != *told).then_some(outlook)
    }

    #[inline(never)]
    fn outlook_with_kernel(&self) -> Outlook {
        let rests = self.plain.rests_until().filter(|_| self.lazy.is_empty());
        Outlook {
            lazy: self.has_lazy(),
            keeps: self.plain.keeps().1,
            rests_until: rests.map_or(0, Time::as_nanos),
            watches_kernel: self.plain.is_waiting(),
            attended: self.attended(),
        }
    }
}
