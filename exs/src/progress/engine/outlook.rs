//! The outlook: the state of the engine that threads without its lock can see.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::Engine;
use crate::time::Time;

/// The state of the engine that threads without its lock must know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::progress) struct Outlook {
    /// Posted work waits for the next doorbell.
    pub(in crate::progress) lazy: bool,
    /// Kernel sockets gain if a thread that comes to dequeue leads.
    pub(in crate::progress) keeps: bool,
    /// The time (ns) until which all of this may wait while threads find their events without
    /// leading. 0: it may not wait.
    pub(in crate::progress) rests_until: u64,
    /// Kernel sockets wait for readiness that only the reactor reports.
    pub(in crate::progress) watches_kernel: bool,
    /// The program sends on kernel sockets.
    pub(in crate::progress) sends_kernel: bool,
    /// The number of connections that threads attend, or have left a moment ago.
    pub(in crate::progress) attended: usize,
}

/// The outlook, as threads without the lock read it. Only a thread with the lock writes it.
#[derive(Debug, Default)]
pub(in crate::progress) struct ShownOutlook {
    lazy: AtomicBool,
    keeps: AtomicBool,
    rests_until: AtomicU64,
    watches_kernel: AtomicBool,
    sends_kernel: AtomicBool,
    attended: AtomicUsize,
}

impl ShownOutlook {
    pub(in crate::progress) fn show(&self, outlook: &Outlook) {
        self.lazy.store(outlook.lazy, Ordering::SeqCst);
        self.keeps.store(outlook.keeps, Ordering::Relaxed);
        self.rests_until.store(outlook.rests_until, Ordering::Relaxed);
        self.watches_kernel.store(outlook.watches_kernel, Ordering::Relaxed);
        self.sends_kernel.store(outlook.sends_kernel, Ordering::Relaxed);
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
    pub(in crate::progress) fn sends_kernel(&self) -> bool {
        self.sends_kernel.load(Ordering::Relaxed)
    }

    #[inline]
    pub(in crate::progress) fn attended(&self) -> usize {
        self.attended.load(Ordering::Relaxed)
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
        let outlook = match self.plain.is_idle() {
            true => Outlook {
                lazy: self.sockets.has_lazy(),
                sends_kernel: self.plain.has_sent(),
                attended: self.attended(),
                ..Outlook::default()
            },
            false => self.outlook_with_kernel(),
        };
        if outlook == self.told {
            return None;
        }
        self.told = outlook;
        Some(outlook)
    }

    #[inline(never)]
    fn outlook_with_kernel(&self) -> Outlook {
        let rests = self.plain.rests_until().filter(|_| !self.sockets.has_lazy());
        Outlook {
            lazy: self.has_lazy(),
            keeps: self.plain.keeps().1,
            rests_until: rests.map_or(0, Time::as_nanos),
            watches_kernel: self.plain.is_waiting(),
            sends_kernel: self.plain.has_sent(),
            attended: self.attended(),
        }
    }
}
