//! The budget of a queue pair's send queue: the entries that each kind of work may use.
//!
//! A device refuses more WRs than its queue was made for, and that ends the connection. So each kind
//! of work has entries of its own, which no other kind can take, and the queue is as deep as all of
//! them together. A WR uses its entry until it has completed. That takes as long as a peer holds up
//! earlier WRs.

/// Entries for binds of windows.
pub(super) const MAX_BINDS: u32 = 64;
/// Entries for eager messages.
pub(super) const MAX_EAGER: u32 = 32;

/// The kind of a WR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A WR of the user.
    Caller,
    /// The bind of a window.
    Bind,
    /// An eager message.
    Eager,
}

/// The entries of one queue pair, by kind.
#[derive(Debug)]
pub(super) struct SendBudget {
    limits: [usize; 3],
    used: [usize; 3],
}

impl SendBudget {
    /// The budget of a queue pair whose user may have `caller` WRs outstanding.
    pub(super) fn new(caller: usize) -> SendBudget {
        SendBudget { limits: [caller, MAX_BINDS as usize, MAX_EAGER as usize], used: [0; 3] }
    }

    /// WRs that the device's queue must take.
    pub(super) fn depth(&self) -> u32 {
        u32::try_from(self.limits.iter().sum::<usize>()).unwrap_or(u32::MAX)
    }

    #[inline]
    pub(super) fn has(&self, work: Work) -> bool {
        self.used[work as usize] < self.limits[work as usize]
    }

    /// Takes an entry; there must be one.
    #[inline]
    pub(super) fn take(&mut self, work: Work) {
        debug_assert!(self.has(work), "{work:?} without a place");
        self.used[work as usize] += 1;
    }

    #[inline]
    pub(super) fn give(&mut self, work: Work) {
        self.used[work as usize] -= 1;
    }

    /// Frees all entries: the device's queue is gone.
    pub(super) fn clear(&mut self) {
        self.used = [0; 3];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_work_takes_the_entries_of_another() {
        let all = [Work::Caller, Work::Bind, Work::Eager];
        for greedy in all {
            let mut budget = SendBudget::new(128);
            let mut taken = 0;
            for work in [greedy].into_iter().chain(all) {
                while budget.has(work) {
                    budget.take(work);
                    taken += 1;
                }
                assert!(
                    taken > 0 && taken <= budget.depth(),
                    "{greedy:?} first, then {work:?}: {taken}"
                );
            }
            assert_eq!(taken, budget.depth(), "each has found its budget");
            budget.give(greedy);
            assert_eq!(all.map(|work| budget.has(work)), all.map(|work| work == greedy));
        }
    }
}
