//! What threads see of the engine that do not have its lock.

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
