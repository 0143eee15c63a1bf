//! The end of a sleep that a thread announces to others.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::time::Time;

/// Whether a thread sleeps, and when it wakes by itself. It is sequentially consistent: a thread that
/// leaves work and sees no sleep need not wake the other, which looks for work after it has announced
/// its sleep.
#[derive(Debug, Default)]
pub(super) struct SleepEnd(AtomicU64);

impl SleepEnd {
    /// The end of a sleep that only another thread ends.
    pub(super) const FAR: Time = Time::from_nanos(u64::MAX);
    const AWAKE: u64 = 0;

    /// The thread is about to sleep, and wakes by itself at `until`.
    pub(super) fn begin(&self, until: Time) {
        self.0.store(until.as_nanos().max(Self::AWAKE + 1), Ordering::SeqCst);
    }

    /// The thread is awake.
    pub(super) fn end(&self) {
        self.0.store(Self::AWAKE, Ordering::SeqCst);
    }

    /// When the thread wakes by itself. None: it is awake.
    #[inline]
    pub(super) fn until(&self) -> Option<Time> {
        match self.0.load(Ordering::SeqCst) {
            Self::AWAKE => None,
            until => Some(Time::from_nanos(until)),
        }
    }

    /// True if the thread sleeps.
    #[inline]
    pub(super) fn sleeps(&self) -> bool {
        self.until().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_has_an_end_until_it_is_over() {
        let sleep = SleepEnd::default();
        assert!(!sleep.sleeps());
        for until in [Time::from_nanos(7), SleepEnd::FAR] {
            sleep.begin(until);
            assert_eq!((sleep.sleeps(), sleep.until()), (true, Some(until)));
        }
        sleep.begin(Time::ZERO);
        assert!(sleep.sleeps());
        sleep.end();
        assert_eq!(sleep.until(), None);
    }
}
