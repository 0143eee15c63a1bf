//! SendBudget in the send queue of a device's queue pair.
//!
//! A device refuses more WRs than its queue was made for, and the connection ends with that.
//! So each kind of work has places of its own, which no other can take, and the queue is made
//! as deep as all of them together. A WR keeps its place until it has completed, which takes
//! as long as a peer holds up what was posted before it.

/// For binds of windows.
pub(super) const BINDS: u32 = 64;
/// For messages of the short way.
pub(super) const SHORTS: u32 = 32;

/// What a WR is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// One of the caller's.
    Caller,
    /// The bind of a window.
    Bind,
    /// A message of the short way.
    Short,
}

/// The places of one queue pair.
#[derive(Debug)]
pub(super) struct SendBudget {
    limits: [usize; 3],
    used: [usize; 3],
}

impl SendBudget {
    /// Of a queue pair whose caller may have so many WRs outstanding.
    pub(super) fn new(caller: usize) -> SendBudget {
        SendBudget { limits: [caller, BINDS as usize, SHORTS as usize], used: [0; 3] }
    }

    /// WRs that the device's queue must take.
    pub(super) fn depth(&self) -> u32 {
        u32::try_from(self.limits.iter().sum::<usize>()).unwrap_or(u32::MAX)
    }

    #[inline]
    pub(super) fn has(&self, work: Work) -> bool {
        self.used[work as usize] < self.limits[work as usize]
    }

    /// One of the places that there are is taken.
    #[inline]
    pub(super) fn take(&mut self, work: Work) {
        debug_assert!(self.has(work), "{work:?} without a place");
        self.used[work as usize] += 1;
    }

    #[inline]
    pub(super) fn give(&mut self, work: Work) {
        self.used[work as usize] -= 1;
    }

    /// The device's queue is gone, and all that was in it.
    pub(super) fn clear(&mut self) {
        self.used = [0; 3];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_work_takes_the_places_of_another() {
        let all = [Work::Caller, Work::Bind, Work::Short];
        for greedy in all {
            let mut places = SendBudget::new(128);
            let mut taken = 0;
            for work in [greedy].into_iter().chain(all) {
                while places.has(work) {
                    places.take(work);
                    taken += 1;
                }
                assert!(
                    taken > 0 && taken <= places.depth(),
                    "{greedy:?} first, then {work:?}: {taken}"
                );
            }
            assert_eq!(taken, places.depth(), "each has found its places");
            places.give(greedy);
            assert_eq!(all.map(|work| places.has(work)), all.map(|work| work == greedy));
        }
    }
}
